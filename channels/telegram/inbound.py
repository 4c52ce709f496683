"""From an update of the Bot API (plain JSON) to an `Inbound`. Pure.

Sources: Bot API, Message, MessageEntity, User, Chat; the ids of the stand-in users are documented there too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from channels.base import Address, Attachment, AttachmentKind, ChatKind, Inbound, Quote, Sender

Data: TypeAlias = Mapping[str, Any]

#: Users that stand for somebody else: an anonymous admin, a channel that posts in a group.
_STAND_INS = frozenset({1087968824, 136817688})
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


def read_update(update: Data, channel: str, me: Me) -> Inbound | None:
    """The message that an update brings, or None when it is not for us (other kinds, bots, service messages).

    Raises KeyError, TypeError or ValueError when the update is not as the Bot API describes it.
    """
    message = update.get("message")
    if not isinstance(message, Mapping):
        return None
    sender = _sender(message)
    kind = _KINDS.get(message["chat"]["type"])
    if sender is None or kind is None or kind == "channel":
        return None
    mentions = _Mentions(me)
    text = mentions.strip(message)
    if mentions.other_bot:
        return None
    attachments = _attachments(message)
    text = text or _described(message)
    if not text and not attachments:
        return None
    quote, to_us = _quote(message, me)
    return Inbound(
        id=str(message["message_id"]),
        address=Address(channel, str(message["chat"]["id"]), kind, _thread(message, me)),
        sender=sender,
        text=text,
        addressed=kind == "direct" or mentions.ours or to_us,
        quote=quote,
        attachments=attachments,
        sent_at=float(message.get("date", 0)),
    )


def is_forum(update: Data) -> bool:
    message = update.get("message")
    return isinstance(message, Mapping) and bool(message.get("chat", {}).get("is_forum"))


# -- who and where -----------------------------------------------------------------------------------


def _sender(message: Data) -> Sender | None:
    user = message.get("from")
    other = message.get("sender_chat")
    if message.get("is_automatic_forward"):
        return None  # a channel's post that Telegram copies into its discussion group
    if other and (user is None or user["id"] in _STAND_INS):
        return Sender(str(other["id"]), str(message.get("author_signature") or other.get("title", "")))
    if user is None or user.get("is_bot"):
        return None
    return Sender(str(user["id"]), _name(user), language=str(user.get("language_code", "")))


def _name(user: Data) -> str:
    full = f"{user.get('first_name', '')} {user.get('last_name', '')}".strip()
    return full or str(user.get("username", ""))


def _thread(message: Data, me: Me) -> str | None:
    """The topic. A plain reply thread carries an id as well, and General carries none."""
    if not message.get("is_topic_message"):
        return None
    thread = message.get("message_thread_id")
    if message["chat"]["type"] == "private" and not me.private_topics:
        return None
    return None if thread in (None, 1) else str(thread)


# -- text --------------------------------------------------------------------------------------------


class _Mentions:
    """Finds out whether the bot is meant and takes its name out of the text."""

    def __init__(self, me: Me) -> None:
        self.me = me
        self.ours = False
        self.other_bot = False

    def strip(self, message: Data) -> str:
        name = "text" if "text" in message else "caption"
        text = str(message.get(name, ""))
        entities = message.get("entities" if name == "text" else "caption_entities") or ()
        if not entities:
            return text.strip()
        units = text.encode("utf-16-le", "surrogatepass")
        # From the last to the first, so that earlier offsets stay true.
        for entity in sorted(entities, key=lambda e: int(e["offset"]), reverse=True):
            start, end = 2 * entity["offset"], 2 * (entity["offset"] + entity["length"])
            word = units[start:end].decode("utf-16-le", "replace")
            kept = self._kept(entity, word)
            if not kept and units[start - 2 : start] == units[end : end + 2] == _BLANK:
                end += 2
            if kept != word:
                units = units[:start] + kept.encode("utf-16-le", "surrogatepass") + units[end:]
        text = units.decode("utf-16-le", "replace")
        if self.ours:
            text = re.sub(r"^[\s,:，：]+", "", text)
        return text.strip()

    def _kept(self, entity: Data, word: str) -> str:
        """What stays in the text in place of an entity's word."""
        kind = entity["type"]
        if kind == "mention":
            if word.casefold() == f"@{self.me.username}".casefold():
                self.ours = True
                return ""
        elif kind == "text_mention":
            if entity.get("user", {}).get("id") == self.me.id:
                self.ours = True
                return ""
        elif kind == "bot_command":
            return self._command(word, at_start=entity["offset"] == 0)
        elif kind == "text_link" and entity.get("url") and entity["url"].rstrip("/") != word.rstrip("/"):
            return f"{word} ({entity['url']})"
        return word

    def _command(self, word: str, *, at_start: bool) -> str:
        """`/cmd@bot`: ours without the name; another bot's makes the message none of our business."""
        command, _, name = word.partition("@")
        if not name:
            self.ours = self.ours or at_start
            return word
        if name.casefold() == self.me.username.casefold():
            self.ours = True
            return command
        if at_start:
            self.other_bot = True
        return word


def _described(message: Data) -> str:
    """Words for what has no text of its own."""
    if "sticker" in message:
        return str(message["sticker"].get("emoji", ""))
    if "venue" in message:
        place = message["venue"]
        return f"[place: {place.get('title', '')}, {place.get('address', '')}]"
    if "location" in message:
        place = message["location"]
        return f"[location: {place['latitude']}, {place['longitude']}]"
    if "contact" in message:
        person = message["contact"]
        return f"[contact: {_name(person)}, {person.get('phone_number', '')}]"
    return ""


# -- what it replies to ------------------------------------------------------------------------------


def _quote(message: Data, me: Me) -> tuple[Quote | None, bool]:
    """The quoted message, and whether it was ours."""
    part = str((message.get("quote") or {}).get("text", ""))
    original = message.get("reply_to_message")
    if original and not _is_topic_root(message, original):
        author = original.get("from") or {}
        text = part or str(original.get("text") or original.get("caption") or _media_name(original))
        quote = Quote(text, _name(author), str(original["message_id"]))
        return quote, author.get("id") == me.id
    if message.get("external_reply"):
        origin = message["external_reply"].get("origin") or {}
        author = origin.get("sender_user") or {}
        name = _name(author) or str(origin.get("sender_user_name", ""))
        return (Quote(part, name) if part else None), author.get("id") == me.id
    return None, False


def _is_topic_root(message: Data, original: Data) -> bool:
    """In a topic each message that replies to nothing "replies" to the topic's first service message."""
    return "forum_topic_created" in original or (
        bool(message.get("is_topic_message")) and original["message_id"] == message.get("message_thread_id")
    )


def _media_name(message: Data) -> str:
    kinds = ("photo", "video", "voice", "audio", "document", "sticker")
    return next((f"[{kind}]" for kind in kinds if kind in message), "")


# -- attachments -------------------------------------------------------------------------------------


def _attachments(message: Data) -> tuple[Attachment, ...]:
    found = []
    if message.get("photo"):
        best = max(message["photo"], key=lambda size: int(size["width"]) * int(size["height"]))
        found.append(_attachment("image", best, "image/jpeg", f"photo_{message['message_id']}.jpg"))
    for name, kind, mime, suffix in _MEDIA:
        media = message.get(name)
        if not media or (name == "document" and "animation" in message):
            continue  # an animation comes as a document too
        default = f"{name}_{message['message_id']}{suffix}"
        found.append(_attachment(kind, media, mime, default))
    sticker = message.get("sticker")
    if sticker and not sticker.get("is_animated") and not sticker.get("is_video"):
        found.append(_attachment("image", sticker, "image/webp", f"sticker_{message['message_id']}.webp"))
    return tuple(found)


_MEDIA: tuple[tuple[str, AttachmentKind, str, str], ...] = (
    ("document", "file", "", ""),
    ("voice", "audio", "audio/ogg", ".ogg"),
    ("audio", "audio", "audio/mpeg", ".mp3"),
    ("video", "video", "video/mp4", ".mp4"),
    ("video_note", "video", "video/mp4", ".mp4"),
    ("animation", "video", "video/mp4", ".mp4"),
)


_BLANK = " ".encode("utf-16-le")
_BY_MIME: dict[str, AttachmentKind] = {"image": "image", "audio": "audio", "video": "video"}


def _attachment(kind: AttachmentKind, media: Data, mime: str, name: str) -> Attachment:
    mime = str(media.get("mime_type") or mime)
    if kind == "file":
        kind = _BY_MIME.get(mime.partition("/")[0], kind)
    return Attachment(
        kind,
        str(media["file_id"]),
        mime,
        str(media.get("file_name") or name),
        int(media.get("file_size", -1)),
    )
