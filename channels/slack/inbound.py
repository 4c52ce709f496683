"""Slack's message events as the bridge's `Inbound`. Everything here is pure.

The identity of a message is channel and ts: a mention comes as `app_mention` and as `message`, with two event
ids, and both give the same `Inbound`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from channels.base import Address, Attachment, AttachmentKind, Cue, Inbound, Quote, Sender
from channels.slack.config import SlackConfig
from channels.slack.mrkdwn_in import (
    Names,
    calls_another,
    channels_in,
    dicts,
    full_text,
    mentions,
    readable,
    share_text,
    shared,
    users_in,
)

Data: TypeAlias = dict[str, Any]

#: Subtypes in which somebody says something. All others are Slack's own notices.
SPOKEN = frozenset({"", "file_share", "thread_broadcast", "me_message", "bot_message"})
_SLACKBOT = "USLACKBOT"
#: Values of a file's `file_access` and `mode` with which it cannot be had.
_FAULTS = ("access_denied", "file_not_found", "tombstone", "hidden_by_limit", "external")
_BY_MIME: dict[str, AttachmentKind] = {"image": "image", "audio": "audio", "video": "video"}


@dataclass(slots=True)
class Identity:
    """Who the bot is. Filled by `auth.test`; empty before."""

    user: str = ""
    bot: str = ""
    team: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of somebody else: Slack's fields (`data`), its chat, and where an answer belongs.

    `text` is still in Slack's escaped form. `kind` is Slack's word for the chat: im, mpim, channel, group.
    """

    data: Data
    id: str
    chat: str
    kind: str
    text: str
    replaces: str = ""
    cue: Cue = ""
    thread: str | None = None

    @property
    def ts(self) -> str:
        return str(self.data["ts"])

    @property
    def root(self) -> str:
        """The ts of the thread that Slack shows it in; its own at top level."""
        return str(self.data.get("thread_ts") or self.ts)

    @property
    def within(self) -> bool:
        """It stands in a thread."""
        return self.root != self.ts

    @property
    def for_another(self) -> bool:
        """It begins by calling somebody who is not the bot."""
        return self.cue == "" and calls_another(self.text, "")

    @property
    def users(self) -> list[str]:
        """Whose names are wanted, the author's first."""
        author = str(self.data.get("user") or "")
        return [*filter(None, [author]), *sorted(users_in(self.text) - {author})]

    @property
    def channels(self) -> set[str]:
        return channels_in(self.text)


def read(event: Data, me: Identity, config: SlackConfig, *, assistant: bool = False) -> Message | None:
    """The message in an event of type `message` or `app_mention`; None when nobody said anything new.

    `assistant`: its thread is known to be one of the assistant's. An `app_mention` says nothing about the
    kind of its chat: a caller that knows it adds `channel_type`. Raises KeyError for an event that is not
    what Slack documents.
    """
    data, replaces = event, ""
    if event.get("subtype") == "message_changed":
        found = _edited(event)
        if found is None:
            return None
        data, replaces = found, str(found["ts"])
    elif event.get("edited") and event.get("type") == "app_mention":
        # An edit that brings the mention in. It must not start a turn of its own.
        replaces = str(event["ts"])
    elif event.get("hidden"):
        return None
    if replaces and config.edits == "ignore":
        return None
    if str(data.get("subtype") or "") not in SPOKEN or _own(data, me) or not _author(data):
        return None
    chat = str(event["channel"])
    kind = str(event.get("channel_type") or ("im" if chat.startswith("D") else "channel"))
    id = f"{data['ts']}:{(data.get('edited') or {}).get('ts', '')}" if replaces else str(data["ts"])
    message = Message(data, id, chat, kind, full_text(data), replaces)
    thread = _thread(message, config, assistant=assistant or "assistant_thread" in data)
    return replace(message, cue=_cue(message, event, me, config), thread=thread)


def _edited(event: Data) -> Data | None:
    """The message that a person changed. Previews of links and the bot's own updates are no edits."""
    message, before = event.get("message"), event.get("previous_message") or {}
    if not isinstance(message, dict) or not message.get("edited"):
        return None
    return None if full_text(message) == full_text(before) else message


def _own(data: Data, me: Identity) -> bool:
    return (bool(me.user) and data.get("user") == me.user) or (bool(me.bot) and data.get("bot_id") == me.bot)


def _author(data: Data) -> str:
    return str(data.get("user") or data.get("bot_id") or "")


def _is_bot(data: Data) -> bool:
    """Apps, also those that post with a person's token: `app_id` without the id that a client gives."""
    if data.get("bot_id") or data.get("subtype") == "bot_message" or data.get("user") == _SLACKBOT:
        return True
    return bool(data.get("app_id")) and not data.get("client_msg_id")


def _cue(message: Message, event: Data, me: Identity, config: SlackConfig) -> Cue:
    if message.kind == "im":
        return "direct"
    if mentions(message.text, me.user) or event.get("type") == "app_mention":
        return "mention"
    if calls_another(message.text, me.user) or (config.threads == "mention" and message.within):
        return ""
    if me.user and message.data.get("parent_user_id") == me.user and message.within:
        return "reply"
    return "direct" if message.kind == "mpim" and config.group_dms == "all" else ""


def _thread(message: Message, config: SlackConfig, *, assistant: bool) -> str | None:
    """The thread in which an answer belongs; it is a session. None: the chat itself."""
    if message.kind == "im":
        return message.root if assistant or config.direct_sessions == "thread" else None
    if message.within:
        return message.root
    if message.kind == "mpim":  # a conversation of a few people, like a direct one
        return message.ts if config.direct_sessions == "thread" else None
    return message.ts if config.reply_in == "thread" else None


def build(
    message: Message, channel: str, names: Names, sender: Sender, me: Identity, cue: Cue = ""
) -> Inbound:
    """The `Inbound` of a message, with its ids named. `cue` is used where the message itself has none."""
    cue = message.cue or cue
    text = readable(message.text, names, me.user)
    quote = None
    for forward in shared(message.data):
        words = readable(share_text(forward), names)
        author = str(forward.get("author_name") or forward.get("author_subname") or "")
        if quote is None:
            quote = Quote(words, author, str(forward.get("ts") or ""))
        else:
            lines = ([f"{author}:"] if author else []) + words.split("\n")
            text += "\n\n" + "\n".join(f"> {line}" for line in lines)
    edited = (message.data.get("edited") or {}) if message.replaces else {}
    return Inbound(
        id=message.id,
        address=Address(channel, message.chat, "direct" if message.kind == "im" else "group", message.thread),
        sender=sender,
        text=text.strip(),
        addressed=cue != "",
        quote=quote,
        attachments=attachments(message.data),
        sent_at=float(edited.get("ts") or message.ts),
        cue=cue,
        replaces=message.replaces,
    )


def sender_of(data: Data, name: str = "", language: str = "", *, is_bot: bool = False) -> Sender:
    """Who wrote a message. `name`, `language` and `is_bot` are what Slack knows of a user."""
    profile = data.get("bot_profile")
    of_app = str(data.get("username") or (profile.get("name") if isinstance(profile, dict) else "") or "")
    return Sender(_author(data), name or of_app, is_bot or _is_bot(data), language)


def attachments(data: Data) -> tuple[Attachment, ...]:
    """The files of a message. `ref` is JSON: the file's id, its address, and why it cannot be had, if so."""
    return tuple(_attachment(file) for file in dicts(data.get("files")) if file.get("id"))


def _attachment(file: Data) -> Attachment:
    mime = str(file.get("mimetype") or "")
    url = str(file.get("url_private_download") or file.get("url_private") or "")
    ref: dict[str, str] = {"id": str(file["id"])}
    if fault := next((str(file[key]) for key in ("file_access", "mode") if file.get(key) in _FAULTS), ""):
        ref["fault"] = fault
    elif url and file.get("file_access") != "check_file_info":
        ref["url"] = url
    return Attachment(
        _BY_MIME.get(mime.partition("/")[0], "file"),
        json.dumps(ref),
        mime,
        str(file.get("name") or file.get("title") or file["id"]),
        int(file.get("size") or -1),
    )
