"""The receiving half of the channel: signs in, listens, and hands messages to the bridge in order."""

from __future__ import annotations

import asyncio
import logging
from weakref import WeakValueDictionary

from channels.base import Health, Inbound, Receive
from channels.slack.api import ApiError, trouble
from channels.slack.bounded import Owned, Recent
from channels.slack.cards import Cards
from channels.slack.config import secret
from channels.slack.events import Data, Events
from channels.slack.inbound import Message, build, read, sender_of
from channels.slack.people import People
from channels.slack.sending import Sender
from channels.slack.socket import Socket, growing

log = logging.getLogger("causeway.slack")

#: Threads and chats remembered in memory (threads are also in the channel's notes), and notices (home opened,
#: …) under way.
_REMEMBERED = 5000
_MOST_NOTICES = 100
_NOTICE_DEADLINE = 60.0
_KIND_IN = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


class Receiver:
    """One workspace's events, from its making on; signing in goes on until it succeeds."""

    def __init__(self, sender: Sender, people: People, events: Events, receive: Receive) -> None:
        self._name, self._config, self._env = sender.name, sender.config, sender.env
        self._api, self._me = sender.api, sender.me
        self._people, self._events, self._receive = people, events, receive
        self._cards = Cards(sender, people, receive)
        self.interaction, self.command = self._cards.handle_interaction, self._cards.handle_command
        # One lane for each place of answers (a thread, or the chat itself), as long as somebody is in it.
        self._lanes: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._kinds: Recent[str, str] = Recent(_REMEMBERED)  # chat -> im, mpim, channel, group
        self._threads: Recent[str, bool] = Recent(_REMEMBERED)  # notes that are known to be there
        self._notices = Owned()
        self._socket: Socket | None = None
        self._trouble: Health | None = Health(False, "not signed in to Slack yet", "wait a moment")
        self._task = asyncio.create_task(self._run(), name=f"slack {self._name}")

    # -- life --------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Stop receiving. What was taken from Slack before is still handed over."""
        self._events.open = False
        self._task.cancel()
        await asyncio.wait({self._task})

    async def stop(self) -> None:
        await self.pause()
        await self._events.close()
        await self._notices.end()

    def health(self) -> Health:
        if self._trouble is not None:
            return self._trouble
        if self._task.done() and not self._task.cancelled():
            return Health(False, "receiving ended unexpectedly", "restart the bridge and report the log")
        return self._socket.health() if self._socket is not None else Health(True)

    async def _run(self) -> None:
        await self._sign_in()
        if self._config.mode == "http":
            self._events.bind(self)
            await asyncio.Event().wait()
        token = secret(self._config.app_token)

        async def connect() -> str:
            answer = await self._api.call("apps.connections.open", _token=token)
            return str(answer["url"])

        self._socket = Socket(connect, self._api.session, self._events.envelope)
        self._events.bind(self)
        await self._socket.run()

    async def _sign_in(self) -> None:
        """Learn who the bot is; until then nothing can be told from its own words."""
        failures = 0
        while True:
            try:
                found = await self._api.call("auth.test")
            except ApiError as error:
                health, failures = trouble(error), failures + 1
                if self._trouble is None or self._trouble.reason != health.reason:
                    log.warning("Slack: %s; %s", health.reason, health.cure)
                self._trouble = health
                pause = growing(failures, _FIRST_PAUSE, _LONGEST_PAUSE)
                await asyncio.sleep(max(error.retry_after, pause))
            else:
                break
        me = self._me
        me.user, me.bot = str(found.get("user_id") or ""), str(found.get("bot_id") or "")
        me.team = str(found.get("team_id") or "")
        log.info("Slack: signed in to %s as %s", found.get("team"), found.get("user"))
        self._trouble = None

    # -- what comes in -----------------------------------------------------------------------------------

    async def message(self, event: Data) -> None:
        """Hand a message over, in order; returns when the bridge has it."""
        try:
            event = await self._with_kind(event)
            found = read(event, self._me, self._config)
        except (KeyError, TypeError, ValueError, AttributeError):
            # One odd event must not come back for ever.
            log.exception("an event of type %s could not be read; it is skipped", event.get("type"))
            return
        if found is None:
            return
        lane = self._lanes.setdefault(f"{found.chat} {found.thread or ''}", asyncio.Lock())
        async with lane:
            await self._receive(await self._build(event, found))

    async def _with_kind(self, event: Data) -> Data:
        """Both events of a mention must give the same address, and `app_mention` lacks the chat's kind."""
        chat = str(event["channel"])
        if kind := event.get("channel_type"):
            self._kinds[chat] = str(kind)
        elif chat not in self._kinds:
            try:
                answer = await self._api.call("conversations.info", _KIND_IN, channel=chat)
            except ApiError as error:
                log.info("the kind of a chat is not known: %s", error)
                return event
            found = answer.get("channel") or {}
            self._kinds[chat] = next((k for k in ("im", "mpim") if found.get(f"is_{k}")), "channel")
        self._kinds.move_to_end(chat)
        return {**event, "channel_type": self._kinds[chat]}

    async def _build(self, event: Data, found: Message) -> Inbound:
        cue = found.cue
        if found.kind == "im" and found.within and found.thread is None:
            # The assistant's threads are sessions of their own, whatever holds for the chat.
            if await self._noted("assistant", found.chat, found.root):
                found = read(event, self._me, self._config, assistant=True) or found
        elif found.within and not (cue or found.for_another) and self._config.threads == "joined":
            cue = "reply" if await self._noted("joined", found.chat, found.root) else ""
        names = await self._people.names(found.users, found.channels)
        person = self._people.known(str(found.data.get("user") or ""))
        sender = sender_of(found.data, person.name, person.language, is_bot=person.is_bot)
        return build(found, self._name, names, sender, self._me, cue)

    async def notice(self, event: Data) -> None:
        """Anything but a message. Slack is not kept waiting for what follows from it."""
        kind = event.get("type")
        if kind == "user_change":
            user = event.get("user")
            self._people.forget(str(user.get("id") if isinstance(user, dict) else user))
        elif kind in ("channel_rename", "group_rename"):
            self._people.forget(str((event.get("channel") or {}).get("id")))
        elif kind == "assistant_thread_started":
            thread = event.get("assistant_thread") or {}
            await self.note("assistant", str(thread.get("channel_id")), str(thread.get("thread_ts")))
        if len(self._notices) >= _MOST_NOTICES:
            log.warning("%d notices of Slack are under way; a %s is dropped", _MOST_NOTICES, kind)
            return
        work = asyncio.wait_for(self._cards.handle_notice(event), _NOTICE_DEADLINE)
        self._notices.start(work, f"what follows from Slack's {kind}")

    # -- threads -----------------------------------------------------------------------------------------

    async def note(self, what: str, chat: str, thread: str | None) -> None:
        """Remember, also over a restart and for other gateways, that a thread is `joined` or `assistant`."""
        key = f"{what}:{chat}:{thread}"
        if thread and key not in self._threads:
            await self._env.state.put(key, self._env.clock())
            self._threads[key] = True

    async def _noted(self, what: str, chat: str, thread: str) -> bool:
        key = f"{what}:{chat}:{thread}"
        if key not in self._threads and await self._env.state.get(key) is None:
            return False
        self._threads[key] = True
        return True
