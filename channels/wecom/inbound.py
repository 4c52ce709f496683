"""What a callback says. Pure: fields of the decrypted XML (WW 90239, 90240) to plain data."""

from __future__ import annotations

from dataclasses import dataclass

from channels.base import Address, Attachment, AttachmentKind, Inbound, Sender, Translate
from channels.wechat.xml import Data, text_of

_MEDIA: dict[str, tuple[AttachmentKind, str, str]] = {
    "image": ("image", "image/jpeg", "jpg"),
    "voice": ("audio", "audio/amr", "amr"),
    "video": ("video", "video/mp4", "mp4"),
    "shortvideo": ("video", "video/mp4", "mp4"),
    "file": ("file", "", "bin"),
}


@dataclass(frozen=True, slots=True)
class CardPress:
    """A member pressed a button of a card: `task` is the card's task_id, `code` lets the card be updated."""

    id: str
    person: str
    task: str
    choice: str
    code: str


@dataclass(frozen=True, slots=True)
class Entered:
    """A member opened the application."""

    person: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """A callback that asks for no answer; `kind` is for the log."""

    kind: str


def agent_of(data: Data) -> str:
    """The application that a callback is for; "" where it names none (events of the whole company)."""
    return text_of(data, "AgentID")


def read(data: Data, channel: str, language: str, text: Translate) -> Inbound | CardPress | Entered | Nothing:
    """Raises ValueError for a message that lacks what it must have. The sender's name is not in it."""
    kind = text_of(data, "MsgType").lower()
    if not kind:
        raise ValueError("no MsgType")
    if kind == "event":
        return _event(data, channel, language)
    person, message_id = text_of(data, "FromUserName"), text_of(data, "MsgId")
    if not person or not message_id:
        raise ValueError(f"a {kind} message without FromUserName or MsgId")
    if kind in _MEDIA:
        return _inbound(data, channel, language, message_id, "", (_attachment(kind, data, message_id),))
    if kind == "text":
        words = text_of(data, "Content")
    elif kind == "location":
        words = text(
            "wecom.location",
            language,
            label=text_of(data, "Label").strip(),
            latitude=text_of(data, "Location_X"),
            longitude=text_of(data, "Location_Y"),
        )
    elif kind == "link":
        parts = (text_of(data, field).strip() for field in ("Title", "Description", "Url"))
        words = "\n".join(part for part in parts if part)
    else:
        return Nothing(kind)
    return _inbound(data, channel, language, message_id, words) if words.strip() else Nothing(kind)


def person_of(data: Data) -> str:
    return text_of(data, "FromUserName")


def event_id(data: Data) -> str:
    """Events have no MsgId. CreateTime has seconds, so what happened belongs to the key as well (WX-07)."""
    fields = ("FromUserName", "CreateTime", "Event", "EventKey", "TaskId")
    return ":".join(text_of(data, field) for field in fields).rstrip(":")


def _event(data: Data, channel: str, language: str) -> Inbound | CardPress | Entered | Nothing:
    event, person = text_of(data, "Event").lower(), person_of(data)
    if event == "enter_agent" and person:
        return Entered(person)
    if event == "template_card_event":
        task, choice = text_of(data, "TaskId"), text_of(data, "EventKey")
        if not (person and task and choice):
            raise ValueError("a pressed button without member, task or key")
        return CardPress(event_id(data), person, task, choice, text_of(data, "ResponseCode"))
    key = text_of(data, "EventKey").strip()
    if event == "click" and person and key:
        # A menu entry's key is what the member would have typed.
        return _inbound(data, channel, language, event_id(data), key)
    return Nothing(f"event {event}")


def _attachment(kind: str, data: Data, message_id: str) -> Attachment:
    media = text_of(data, "MediaId")
    if not media:
        raise ValueError(f"a {kind} message without MediaId")
    what, mime, ending = _MEDIA[kind]
    given = text_of(data, "Format").lower() if kind == "voice" else ""
    if given and given != "amr":
        mime, ending = f"audio/{given}", given
    name = text_of(data, "FileName") or text_of(data, "Title") if kind == "file" else ""
    return Attachment(what, media, mime, name or f"{message_id}.{ending}")


def _inbound(
    data: Data,
    channel: str,
    language: str,
    message_id: str,
    words: str,
    attachments: tuple[Attachment, ...] = (),
) -> Inbound:
    person = person_of(data)
    at = float(text_of(data, "CreateTime") or 0)
    return Inbound(
        id=message_id,
        address=Address(channel, person, "direct"),
        sender=Sender(person, language=language),
        text=words,
        cue="direct",
        attachments=attachments,
        sent_at=at,
    )
