"""From an update of the Bot API (plain JSON) to an `Inbound`. Pure.

Sources: Bot API, Update, Message, User, Chat; the ids of the stand-in users are documented there too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from channels.base import Address, Attachment, ChatKind, Cue, Inbound, Quote, Sender
from channels.telegram.chats import business_chat
from channels.telegram.contents import attachments, chat_name, described, full_name, kind_name, origin_name
from channels.telegram.mentions import read_text

Data: TypeAlias = Mapping[str, Any]

#: Users that stand for somebody else: an anonymous admin, a channel that posts in a group, Telegram itself.
_STAND_INS = frozenset({1087968824, 136817688, 777000})
_KINDS: dict[str, ChatKind] = {
    "private": "direct",
    "group": "group",
    "supergroup": "group",
    "channel": "channel",
}


@dataclass(frozen=True, slots=True)
class Me:
    """The bot itself, from getMe."""

    id: int
    username: str
    private_topics: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which kinds of updates are read besides messages."""

    edits: bool = False
    channel_posts: bool = False
    business: bool = False

    def updates(self) -> list[str]:
        """The names of the updates to ask Telegram for; all that the channel understands."""
        names = ["message", "callback_query", "my_chat_member"]
        names += ["channel_post"] * self.channel_posts
        names += ["business_message", "business_connection"] * self.business
        if self.edits:
            names += [f"edited_{name}" for name in names if name in _MESSAGES]
        return names


_MESSAGES = ("message", "channel_post", "business_message")
_EDITS = tuple(f"edited_{name}" for name in _MESSAGES)


def message_of(update: Data) -> Data:
    """The message of an update, edited or not; empty for other updates."""
    found = next((update[name] for name in (*_MESSAGES, *_EDITS) if name in update), None)
    return found if isinstance(found, Mapping) else {}


def read_update(update: Data, channel: str, me: Me, wanted: Wanted = Wanted()) -> Inbound | None:
    """The message that an update brings, or None when it is not for us (our own, another bot's command,
    service messages, what is not wanted).

    Raises KeyError, TypeError or ValueError when the update is not as the Bot API describes it.
    """
    message = message_of(update)
    edited = any(name in update for name in _EDITS)
    if not message or (edited and (not wanted.edits or "location" in message)):
        return None  # a live location is edited all the time
    address, sender = address_of(message, channel, me), _sender(message, me)
    if address is None or sender is None or not _is_wanted(message, wanted):
        return None
    said = read_text(message, me.id, me.username)
    number = str(message["message_id"])
    files = attachments(message, number)
    text = said.text or described(message)
    if said.elsewhere or not (text or files):
        return None
    quote, quoted_files, to_us = _quote(message, me)
    cue = _cue(message, address, said.cue, to_us)
    return Inbound(
        id=f"{number}:e{message.get('edit_date', 0)}" if edited else number,
        address=address,
        sender=sender,
        text=_forwarded(message, text),
        addressed=bool(cue),
        quote=quote,
        # Each part of an album quotes the same message: its files are not taken ten times.
        attachments=files if "media_group_id" in message else (*files, *quoted_files),
        sent_at=float(message.get("edit_date" if edited else "date", 0)),
        cue=cue,
        album=str(message.get("media_group_id", "")),
        replaces=number if edited else "",
    )


def read_move(update: Data) -> tuple[str, str] | None:
    """(old, new) chat id when a group became a supergroup. Told in both chats."""
    message = message_of(update)
    if "migrate_to_chat_id" in message:
        return str(message["chat"]["id"]), str(message["migrate_to_chat_id"])
    if "migrate_from_chat_id" in message:
        return str(message["migrate_from_chat_id"]), str(message["chat"]["id"])
    return None


def is_forum(update: Data) -> bool:
    return bool((message_of(update).get("chat") or {}).get("is_forum"))


def _is_wanted(message: Data, wanted: Wanted) -> bool:
    if message["chat"]["type"] == "channel":
        return wanted.channel_posts
    return wanted.business or "business_connection_id" not in message


# -- who and where -----------------------------------------------------------------------------------


def address_of(message: Data, channel: str, me: Me) -> Address | None:
    """Where a message stands; None for chats that a bot cannot simply answer in."""
    chat = message["chat"]
    kind = _KINDS.get(chat["type"])
    if kind is None or chat.get("is_direct_messages"):
        return None  # one chat id for the private talks of all readers of a channel
    connection = message.get("business_connection_id")
    name = business_chat(str(connection), chat["id"]) if connection else str(chat["id"])
    return Address(channel, name, kind, _thread(message, me))


def _thread(message: Data, me: Me) -> str | None:
    """The topic. A plain reply thread carries an id as well, and General carries none."""
    if not message.get("is_topic_message"):
        return None
    thread = message.get("message_thread_id")
    if message["chat"]["type"] == "private" and not me.private_topics:
        return None
    return None if thread in (None, 1) else str(thread)


def person(user: Data) -> Sender:
    return Sender(
        str(user["id"]), full_name(user), bool(user.get("is_bot")), str(user.get("language_code", ""))
    )


def _sender(message: Data, me: Me) -> Sender | None:
    user, chat = message.get("from"), message.get("sender_chat")
    if message.get("is_automatic_forward"):
        return None  # a channel's post that Telegram copies into its discussion group
    if (message.get("sender_business_bot") or {}).get("id") == me.id:
        return None  # what the bot wrote in a business account's name
    if chat and (user is None or user["id"] in _STAND_INS):
        return Sender(str(chat["id"]), str(message.get("author_signature") or chat_name(chat)))
    if user is None or user["id"] == me.id:
        return None
    return person(user)


def _cue(message: Data, address: Address, said: Cue, to_us: bool) -> Cue:
    if address.kind != "direct":
        return said or ("reply" if to_us else "")
    # In a business chat the owner writes as well; he talks to his customer, not to the bot.
    owner = "business_connection_id" in message and message["from"]["id"] != message["chat"]["id"]
    return "" if owner else "direct"


# -- where it comes from, what it replies to -----------------------------------------------------------


def _forwarded(message: Data, text: str) -> str:
    """A forwarded message says so: it is not its sender's own word, and no command."""
    origin = message.get("forward_origin")
    if not origin:
        return text
    return f"[forwarded from {origin_name(origin) or 'somebody'}]\n{text}".rstrip()


def _quote(message: Data, me: Me) -> tuple[Quote | None, tuple[Attachment, ...], bool]:
    """The quoted message, its files, and whether it was ours (then the agent knows its files)."""
    part = str((message.get("quote") or {}).get("text", ""))
    original = message.get("reply_to_message")
    if original and not _is_topic_root(message, original):
        author = original.get("from") or {}
        ours = author.get("id") == me.id or (original.get("sender_business_bot") or {}).get("id") == me.id
        text = part or str(original.get("text") or original.get("caption") or kind_name(original))
        number = str(original["message_id"])
        quote = Quote(text, _author(original), number)
        return quote, () if ours else attachments(original, number), ours
    other = message.get("external_reply")
    if other:  # a message of another chat or topic; its text comes only as the quoted part
        origin = other.get("origin") or {}
        ours = (origin.get("sender_user") or {}).get("id") == me.id
        text = part or kind_name(other)
        quoted = Quote(text, origin_name(origin)) if text else None
        return quoted, attachments(other, other.get("message_id", message["message_id"])), ours
    story = message.get("reply_to_story")
    if story:
        return Quote("[story]", chat_name(story.get("chat") or {})), (), False
    return None, (), False


def _author(message: Data) -> str:
    user, chat = message.get("from") or {}, message.get("sender_chat")
    if chat and (not user or user.get("id") in _STAND_INS):
        return chat_name(chat)
    return full_name(user)


def _is_topic_root(message: Data, original: Data) -> bool:
    """In a topic each message that replies to nothing "replies" to the topic's first service message."""
    return "forum_topic_created" in original or (
        bool(message.get("is_topic_message")) and original["message_id"] == message.get("message_thread_id")
    )
