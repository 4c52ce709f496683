"""Callbacks of WeCom as messages for the bridge. Long connection and callback URL carry the same bodies."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from channels.base import Address, Attachment, AttachmentKind, Inbound, Quote, Sender
from channels.wecom_bot.api import Data

#: A mention ends at a blank (WeCom puts U+2005 or a space behind it).
_MENTION = re.compile(r"@([^\s@\u2005]+)[\s\u2005]*")
_KINDS: dict[str, AttachmentKind] = {"image": "image", "file": "file", "video": "video"}


@dataclass(frozen=True, slots=True)
class Where:
    """Who did something where, as every callback says it."""

    address: Address
    sender: Sender

    @property
    def group(self) -> bool:
        return self.address.kind == "group"


def where(body: Data, channel: str) -> Where | None:
    """None when the callback names nobody."""
    user = str((body.get("from") or {}).get("userid") or "")
    chat = str(body.get("chatid") or "")
    if not user:
        return None
    if body.get("chattype") == "group" and chat:
        return Where(Address(channel, chat, "group"), Sender(user, user))
    return Where(Address(channel, user, "direct"), Sender(user, user))


def read_message(
    body: Data, channel: str, now: float, unmention: Callable[[str], str], word: Callable[[str], str]
) -> Inbound | None:
    """A message callback; None for a kind that is not known. `unmention` takes the bot's mention out of a
    group's text, `word` gives the word for a quoted picture, file, video or voice message."""
    place = where(body, channel)
    id = str(body.get("msgid") or "")
    if place is None or not id:
        return None
    texts, attachments = _content(body)
    if not texts and not attachments:
        return None
    text = "\n".join(texts)
    quote = body.get("quote")
    quoted, more = _quote(quote, word) if isinstance(quote, dict) else (None, [])
    return Inbound(
        id=id,
        address=place.address,
        sender=place.sender,
        text=(unmention(text) if place.group else text).strip(),
        addressed=True,  # a group's messages come only when they mention the bot (100719)
        cue="mention" if place.group else "direct",
        quote=quoted,
        attachments=(*attachments, *more),
        sent_at=_seconds(body.get("create_time"), now),
    )


def _content(body: Data) -> tuple[list[str], list[Attachment]]:
    texts: list[str] = []
    attachments: list[Attachment] = []
    for kind, part in _parts(body):
        if kind in ("text", "voice"):  # a voice message comes as the words that WeCom recognised
            if content := str(part.get("content") or ""):
                texts.append(content)
        elif kind in _KINDS and (attachment := _attachment(kind, part)) is not None:
            attachments.append(attachment)
    return texts, attachments


def _parts(body: Data) -> Iterator[tuple[str, Data]]:
    kind = str(body.get("msgtype") or "")
    if kind != "mixed":
        part = body.get(kind)
        if isinstance(part, dict):
            yield kind, part
        return
    items = (body.get("mixed") or {}).get("msg_item")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and item.get("msgtype") != "mixed":
            yield from _parts(item)


def _attachment(kind: str, part: Data) -> Attachment | None:
    url = str(part.get("url") or "")
    if not url.startswith(("https://", "http://")):
        return None
    ref = json.dumps({"url": url, "key": str(part.get("aeskey") or "")})
    name = str(part.get("filename") or part.get("file_name") or part.get("name") or "")
    return Attachment(_KINDS[kind], ref, "video/mp4" if kind == "video" else "", name[:200])


def _quote(quote: Data, word: Callable[[str], str]) -> tuple[Quote, list[Attachment]]:
    texts, attachments = _content(quote)
    words = [*texts, *(word(attachment.kind) for attachment in attachments)]
    if not words and quote.get("msgtype") == "voice":
        words = [word("voice")]
    return Quote("\n".join(words)), attachments


def _seconds(value: Any, now: float) -> float:
    try:
        at = float(value)
    except (TypeError, ValueError):
        return now
    return at if 0 < at < now + 3600 else now


class Mentions:
    """Takes the bot's mention out of a group's text. A callback does not say what the bot is called, so
    without a configured name it is what stands behind the only @ of a message; once known, it is found beside
    others."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._fixed = bool(name)

    def strip(self, text: str) -> str:
        if not self._fixed:
            found = _MENTION.findall(text)
            if len(found) == 1:
                self._name = found[0]
            elif found and text.startswith("@") and not self._name:
                return _MENTION.sub("", text, count=1)
        if not self._name:
            return text
        ours = re.compile(rf"@{re.escape(self._name)}(?:[\s\u2005]+|$|(?=[，。,.!！?？:：]))")
        return ours.sub("", text)


def pressed(body: Data) -> tuple[str, str]:
    """(task id, button key) of a pressed button; empty when the callback is none."""
    event = body.get("event") or {}
    card = event.get("template_card_event")
    found = card if isinstance(card, dict) else event
    return str(found.get("task_id") or ""), str(found.get("event_key") or "")
