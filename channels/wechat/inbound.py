"""From a callback's fields to an `Inbound`. Pure.

Sources: developers.weixin.qq.com, receiving standard messages and receiving event pushes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from channels.base import Address, Attachment, Inbound, Sender
from channels.wechat.xml import Data, text_of

Kind: TypeAlias = Literal["message", "click", "subscribe", "ignored"]

#: Events whose result is what the person wanted to say.
_SCANNED = frozenset(("scancode_push", "scancode_waitmsg"))


@dataclass(frozen=True, slots=True)
class Callback:
    """What a callback means. `user` wrote, `account` is our own name there (the sender of a passive reply);
    `sent_at` is the platform's time in Unix seconds. `inbound` is set for messages and clicks."""

    kind: Kind
    user: str
    account: str
    id: str
    sent_at: int
    inbound: Inbound | None = None


def read_callback(data: Data, channel: str) -> Callback:
    """Raises ValueError when it lacks what every callback has."""
    user, account = text_of(data, "FromUserName"), text_of(data, "ToUserName")
    kind = text_of(data, "MsgType").lower()
    if not user or not kind:
        raise ValueError("it has no FromUserName or no MsgType")
    at = _number(text_of(data, "CreateTime"))
    if kind == "event":
        return _event(data, channel, user, account, at)
    id = text_of(data, "MsgId") or f"{user}:{at}:{kind}"
    text, attachments = _content(kind, data, id)
    if not text and not attachments:
        return Callback("ignored", user, account, id, at)
    return Callback("message", user, account, id, at, _inbound(channel, user, id, text, at, attachments))


def _event(data: Data, channel: str, user: str, account: str, at: int) -> Callback:
    event, key = text_of(data, "Event"), text_of(data, "EventKey")
    # Events have no MsgId, and two of one second differ only in these.
    id = f"{user}:{at}:{event}:{key}"
    if event.lower() == "subscribe":
        return Callback("subscribe", user, account, id, at)
    scan = data.get("ScanCodeInfo")
    if event.lower() in _SCANNED and isinstance(scan, dict):
        key = text_of(scan, "ScanResult")
    elif event.upper() != "CLICK":
        key = ""
    if not key:
        return Callback("ignored", user, account, id, at)
    return Callback("click", user, account, id, at, _inbound(channel, user, id, key, at, (), language="zh"))


def _inbound(
    channel: str,
    user: str,
    id: str,
    text: str,
    at: int,
    attachments: tuple[Attachment, ...],
    language: str = "",
) -> Inbound:
    if not any(ch.isalpha() for ch in text):
        language = "zh"  # a picture or a number says nothing; the platform's people write Chinese
    return Inbound(
        id=id,
        address=Address(channel, user),
        sender=Sender(user, language=language),
        text=text,
        attachments=attachments,
        sent_at=float(at),
        cue="direct",
    )


def _content(kind: str, data: Data, id: str) -> tuple[str, tuple[Attachment, ...]]:
    if kind == "text":
        return text_of(data, "Content").strip(), ()
    media = text_of(data, "MediaId")
    if kind == "image":
        url = text_of(data, "PicUrl")
        if not media and not url:
            return "", ()
        return "", (Attachment("image", media_ref(media, url), "image/jpeg", f"picture_{id}.jpg"),)
    if kind == "voice":
        said = text_of(data, "Recognition").strip()
        if said:
            return said, ()
        form = (text_of(data, "Format") or "amr").lower()
        return "", _media("audio", media, f"audio/{form}", f"voice_{id}.{form}")
    if kind in ("video", "shortvideo"):
        return "", _media("video", media, "video/mp4", f"video_{id}.mp4")
    if kind == "file":
        name = text_of(data, "Title") or text_of(data, "FileName") or f"file_{id}"
        # Official accounts are told of a file but mostly get no id to fetch it by.
        return f"[文件] {name}", _media("file", media, "", name)
    if kind == "location":
        place = f"{text_of(data, 'Location_X')}, {text_of(data, 'Location_Y')}"
        return f"[位置] {text_of(data, 'Label')} ({place})".replace("  ", " "), ()
    if kind == "link":
        parts = (text_of(data, "Title"), text_of(data, "Description"), text_of(data, "Url"))
        return "\n".join(part for part in parts if part), ()
    return "", ()


def _media(
    kind: Literal["audio", "video", "file"], media: str, mime: str, name: str
) -> tuple[Attachment, ...]:
    return (Attachment(kind, media_ref(media, ""), mime, name),) if media else ()


def media_ref(media: str, url: str) -> str:
    """How a file is found again: its media id (three days) and, for pictures, its address."""
    return f"{media}|{url}"


def read_media_ref(ref: str) -> tuple[str, str]:
    media, _, url = ref.partition("|")
    return media, url


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) <= 12 else 0


# -- words that only ask for what waits ----------------------------------------------------------------

_FETCH = frozenset(
    """继续 繼續 继续说 继续讲 接着 接着说 接着讲 下文 下一页 下一段 后面 后面呢 还有呢 然后呢 然后 看 查看
    看看 好 好的 好吧 好了 行 嗯 嗯嗯 哦 噢 收到 等 等等 稍等 在吗 在么 好了吗 好了没 好了么 答案 结果 回答
    答案呢 结果呢 1 ok okay okk k go goon continue more next answer result""".split()  # noqa: SIM905 - a table of words
)


def only_fetches(text: str) -> bool:
    """Whether words say nothing but "show me what waits": short words of going on, or only signs."""
    if len(text) > 20:
        return False
    words = "".join(ch for ch in text.casefold() if ch.isalnum())
    return not words or words in _FETCH


def language_in(text: str, otherwise: str) -> str:
    """The language of our own hints for somebody who writes `text`."""
    if any("\u4e00" <= ch <= "\u9fff" for ch in text):
        return "zh"
    if only_fetches(text) or not any(ch.isalpha() for ch in text):
        return otherwise
    return "en"
