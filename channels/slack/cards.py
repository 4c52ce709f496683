"""What people do besides writing: buttons, the slash command, the message shortcut, the home tab."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any, TypeAlias

from channels.base import Address, ChatKind, Inbound, Press, Quote, Receive
from channels.base import Sender as Person
from channels.slack import home
from channels.slack.api import ApiError
from channels.slack.blocks import ACTION
from channels.slack.dialects import escape
from channels.slack.mrkdwn_in import Names, channels_in, readable, users_in
from channels.slack.people import People
from channels.slack.posting import COMMAND, EVENT
from channels.slack.sending import Sender

log = logging.getLogger("causeway.slack")

Data: TypeAlias = dict[str, Any]

#: callback_id of the message shortcut and of its dialog.
SHORTCUT = "ask_about_this"
#: Slack's limit for the dialog's private_metadata is 3,000 characters of JSON.
_MAX_QUOTE = 1500
_MAX_QUESTION = 3000
_WORDS_AFTER = 10.0


class Cards:
    """Interactions of one instance. Where a method returns something, it is the answer to Slack."""

    def __init__(self, sender: Sender, people: People, receive: Receive) -> None:
        self._sender, self._people, self._receive = sender, people, receive
        self._api, self._env = sender.api, sender.env

    async def handle_interaction(self, payload: Data) -> Data | None:
        match payload.get("type"):
            case "block_actions":
                await self._pressed(payload)
            case "message_action" | "shortcut" if payload.get("callback_id") == SHORTCUT:
                await self._open_dialog(payload)
            case "view_submission" if payload.get("view", {}).get("callback_id") == SHORTCUT:
                return await self._asked(payload)
            case kind:
                log.info("an interaction of type %r is not ours", kind)
        return None

    # -- buttons -----------------------------------------------------------------------------------------

    async def _pressed(self, payload: Data) -> None:
        container, message = payload.get("container") or {}, payload.get("message") or {}
        chat = str((payload.get("channel") or {}).get("id") or container.get("channel_id") or "")
        actions = [a for a in payload.get("actions") or () if str(a.get("action_id", "")).startswith(ACTION)]
        if not chat or not actions:
            return
        thread = container.get("thread_ts") or message.get("thread_ts")
        address = Address(self._sender.name, chat, _kind(chat), str(thread) if thread else None)
        person = await self._person(payload["user"])
        choice = str(actions[0].get("value") or "")
        ts = str(container.get("message_ts") or message.get("ts") or "")
        words = await self._env.press(Press(address, person, choice, ts))
        if words:
            await self._tell(address, person.id, words)

    async def _tell(self, address: Address, person: str, words: str) -> None:
        """Words for one person; a failure is only logged, since the card tells the outcome to all."""
        try:
            await self._api.call(
                "chat.postEphemeral",
                _WORDS_AFTER,
                channel=address.chat,
                user=person,
                thread_ts=address.thread,
                text=escape(words),
            )
        except ApiError as error:
            log.info("words for one person were not shown: %s", error)

    # -- the slash command -------------------------------------------------------------------------------

    async def handle_command(self, form: Data) -> Data | None:
        """`/causeway help` is `/help` here; alone it is `/help` as well."""
        chat = str(form.get("channel_id") or "")
        words = str(form.get("text") or "").strip().lstrip("/!") or "help"
        person = await self._person({"id": form.get("user_id"), "name": form.get("user_name")})
        names = await self._names(words)
        inbound = Inbound(
            # The trigger is used once, and Slack sends a command once.
            f"{COMMAND}{form.get('trigger_id')}",
            Address(self._sender.name, chat, _kind(chat)),
            person,
            "/" + readable(words, names),
            cue="command",
            sent_at=self._env.clock(),
        )
        self._sender.poster.remember(inbound.id, str(form.get("response_url") or ""))
        await self._receive(inbound)
        return None

    # -- "Ask about this" --------------------------------------------------------------------------------

    async def _open_dialog(self, payload: Data) -> None:
        message, chat = payload.get("message") or {}, str((payload.get("channel") or {}).get("id") or "")
        person = await self._person(payload["user"])
        text = str(message.get("text") or "")
        about = {
            "chat": chat,
            "ts": str(message.get("ts") or ""),
            "thread": str(message.get("thread_ts") or message.get("ts") or ""),
            "user": str(message.get("user") or ""),
            "text": readable(text, await self._names(text))[:_MAX_QUOTE],
        }
        view = home.dialog(self._env.text, person.language, json.dumps(about, ensure_ascii=False), SHORTCUT)
        try:
            await self._api.call("views.open", trigger_id=payload.get("trigger_id"), view=view)
        except ApiError as error:
            log.warning("the dialog of the shortcut was not opened: %s", error)

    async def _asked(self, payload: Data) -> Data | None:
        """The question is shown in the message's thread, so that people see what is answered; that message
        then is the question, also for whoever looks for its identity."""
        view = payload["view"]
        about = json.loads(view["private_metadata"])
        values = view.get("state", {}).get("values", {})
        question = str(values.get(home.QUESTION, {}).get(home.QUESTION, {}).get("value") or "").strip()
        person = await self._person(payload["user"])
        shown = self._env.text(
            "slack.asked", person.language, name=person.name or person.id, question=question
        )
        try:
            posted = await self._api.call(
                "chat.postMessage",
                channel=about["chat"],
                thread_ts=about["thread"],
                text=escape(shown)[:_MAX_QUESTION],
                unfurl_links=False,
                metadata={"event_type": EVENT, "event_payload": {"id": SHORTCUT}},
            )
        except ApiError as error:
            log.info("a question by the shortcut cannot be asked: %s", error)
            words = self._env.text("slack.not_here", person.language)
            return {"response_action": "errors", "errors": {home.QUESTION: words}}
        author = await self._known(about["user"])
        address = Address(self._sender.name, about["chat"], _kind(about["chat"]), about["thread"])
        inbound = Inbound(
            str(posted["ts"]),
            address,
            person,
            question,
            quote=Quote(about["text"], author.name, about["ts"]),
            cue="command",
            sent_at=self._env.clock(),
        )
        await self._receive(inbound)
        return None

    # -- home tab, assistant threads ---------------------------------------------------------------------

    async def handle_notice(self, event: Data) -> None:
        """Events that open a place of ours; others are nothing to us."""
        kind = event.get("type")
        try:
            if kind == "app_home_opened" and event.get("tab", "home") == "home":
                await self._show_home(str(event.get("user") or ""))
            elif kind == "assistant_thread_started":
                await self._suggest(event.get("assistant_thread") or {})
        except ApiError as error:
            log.info("%s was not answered: %s", kind, error)

    async def _show_home(self, user: str) -> None:
        person = await self._known(user)
        trouble = self._sender.health()
        view = home.tab(self._env.text, person.language, self._sender.me, trouble.reason if trouble else "")
        await self._api.call("views.publish", user_id=user, view=view)

    async def _suggest(self, thread: Data) -> None:
        person = await self._known(str(thread.get("user_id") or ""))
        title, prompts = home.prompts(self._env.text, person.language, self._sender.config.prompts)
        await self._api.call(
            "assistant.threads.setSuggestedPrompts",
            channel_id=thread.get("channel_id"),
            thread_ts=thread.get("thread_ts"),
            title=title,
            prompts=prompts,
        )

    async def _person(self, user: Data) -> Person:
        known = await self._known(str(user.get("id") or ""))
        return replace(known, name=known.name or str(user.get("name") or ""), is_bot=False)

    async def _known(self, user: str) -> Person:
        await self._people.names([user])
        return self._people.known(user)

    async def _names(self, text: str) -> Names:
        return await self._people.names(users_in(text), channels_in(text))


def _kind(chat: str) -> ChatKind:
    return "direct" if chat.startswith("D") else "group"
