"""What a message holds besides its text: files, and words for what has no text.

Sources: Bot API, Message and ExternalReplyInfo (which names its media alike). Notes in brackets are for the
agent and therefore in English, like its instructions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from channels.base import Attachment, AttachmentKind

Data: TypeAlias = Mapping[str, Any]

#: (field, kind, usual MIME type, suffix)
_MEDIA: tuple[tuple[str, AttachmentKind, str, str], ...] = (
    ("document", "file", "", ""),
    ("voice", "audio", "audio/ogg", ".ogg"),
    ("audio", "audio", "audio/mpeg", ".mp3"),
    ("video", "video", "video/mp4", ".mp4"),
    ("video_note", "video", "video/mp4", ".mp4"),
    ("animation", "video", "video/mp4", ".mp4"),
)
#: Pictures that programs commonly show; others (vector, raw, layered) are files.
_PICTURES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_BY_MIME: dict[str, AttachmentKind] = {"audio": "audio", "video": "video"}


def attachments(message: Data, number: object) -> tuple[Attachment, ...]:
    """The files of a message; `number` (its id) goes into the names of those that have none."""
    found = []
    if message.get("photo"):
        best = max(message["photo"], key=lambda size: int(size["width"]) * int(size["height"]))
        found.append(_attachment("image", best, "image/jpeg", f"photo_{number}.jpg"))
    for name, kind, mime, suffix in _MEDIA:
        media = message.get(name)
        if not media or (name == "document" and "animation" in message):
            continue  # an animation comes as a document too
        found.append(_attachment(kind, media, mime, f"{name}_{number}{suffix}"))
    sticker = message.get("sticker")
    if sticker and not sticker.get("is_animated") and not sticker.get("is_video"):
        found.append(_attachment("image", sticker, "image/webp", f"sticker_{number}.webp"))
    return tuple(found)


def _attachment(kind: AttachmentKind, media: Data, mime: str, name: str) -> Attachment:
    mime = str(media.get("mime_type") or mime)
    if kind == "file":
        kind = "image" if mime in _PICTURES else _BY_MIME.get(mime.partition("/")[0], kind)
    size = int(media["file_size"]) if "file_size" in media else -1
    return Attachment(kind, str(media["file_id"]), mime, str(media.get("file_name") or name), size)


def described(message: Data) -> str:
    """Words for what has no text of its own; empty for files, and for what is no person's message to a bot
    (polls, payments, service messages)."""
    if "sticker" in message:
        emoji = str(message["sticker"].get("emoji", ""))
        return f"[sticker {emoji}]" if emoji else "[sticker]"
    if "venue" in message:
        place = message["venue"]
        where = place.get("location") or {}
        return (
            f"[place: {place.get('title', '')}, {place.get('address', '')} "
            f"({where.get('latitude')}, {where.get('longitude')})]"
        )
    if "location" in message:
        place = message["location"]
        kind = "live location" if place.get("live_period") else "location"
        return f"[{kind}: {place['latitude']}, {place['longitude']}]"
    if "contact" in message:
        person = message["contact"]
        return f"[contact: {full_name(person)}, {person.get('phone_number', '')}]"
    if "dice" in message:
        return f"[dice {message['dice'].get('emoji', '')}: {message['dice'].get('value')}]"
    if "game" in message:
        return f"[game: {message['game'].get('title', '')}]"
    if "story" in message:
        return f"[story of {chat_name(message['story'].get('chat') or {})}]"
    if "checklist" in message:
        return _checklist(message["checklist"])
    return ""


def _checklist(checklist: Data) -> str:
    tasks = [
        f"{'[x]' if task.get('completion_date') else '[ ]'} {task.get('text', '')}"
        for task in checklist.get("tasks") or ()
    ]
    return "\n".join([f"[checklist: {checklist.get('title', '')}]", *tasks])


def kind_name(message: Data) -> str:
    """A word for a message that is only referred to."""
    kinds = ("animation", "photo", "video", "voice", "audio", "document", "video_note", "paid_media")
    kind = next((kind for kind in kinds if kind in message), "")
    if kind:
        return f"[{kind.replace('_', ' ')}]"
    if "poll" in message:
        options = ", ".join(str(option.get("text", "")) for option in message["poll"].get("options") or ())
        return f"[poll: {message['poll'].get('question', '')} ({options})]"
    return described(message)


def full_name(user: Data) -> str:
    full = f"{user.get('first_name', '')} {user.get('last_name', '')}".strip()
    return full or str(user.get("username", ""))


def chat_name(chat: Data) -> str:
    return str(chat.get("title") or "") or full_name(chat)


def origin_name(origin: Data) -> str:
    """From whom a forwarded or quoted message comes (Bot API, MessageOrigin)."""
    if origin.get("sender_user"):
        return full_name(origin["sender_user"])
    if origin.get("sender_user_name"):
        return str(origin["sender_user_name"])
    name = chat_name(origin.get("sender_chat") or origin.get("chat") or {})
    signature = str(origin.get("author_signature", ""))
    return f"{name} ({signature})" if name and signature else name or signature
