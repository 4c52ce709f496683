"""Streamed text as pure functions: cutting Markdown into messages, and going on in a new one.

A stream shows its whole text anew with each packet and lives about six minutes. When it runs out, what it
shows is closed at a line's end and the rest follows in a message of its own, so that people read the whole
text once.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from channels.text import good_cut, length, reach

#: Most bytes of a chunk: WeCom's 20,480 less what closing a code block and the note of a hand-over take.
MAX_CHUNK = 20_000
_FENCE = re.compile(r" {0,3}(`{3,40}|~{3,40})([^\n`]*)$")
_LONGEST_INFO = 80


@dataclass(frozen=True, slots=True)
class Shown:
    """How much of a chunk people have seen in a stream that is over: so many characters, with this digest.
    `complete`: all of it, and the stream was closed with it."""

    length: int = 0
    digest: str = ""
    complete: bool = False


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def stream_id(*parts: object) -> str:
    """The same parts always give the same id, so that a repeated packet shows nothing twice."""
    joined = "\0".join(str(part) for part in parts)
    return "s" + hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()[:30]


def open_fence(text: str, before: str = "") -> str:
    """The opening line of the code block that is open at the end of `text`; `before`: one open at its
    start."""
    opened = before
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if found is None:
            continue
        if not opened:
            opened = f"{found[1]}{found[2].strip()[:_LONGEST_INFO]}"
        elif found[1].startswith(_mark(opened)) and not found[2].strip():
            opened = ""
    return opened


def _mark(fence: str) -> str:
    return fence[: len(fence) - len(fence.lstrip(fence[0]))]


def closed(text: str) -> str:
    """`text` with a code block that it leaves open closed."""
    fence = open_fence(text)
    return f"{text}{'' if text.endswith(chr(10)) else chr(10)}{_mark(fence)}" if fence else text


def split(text: str, limit: int = MAX_CHUNK) -> list[str]:
    """Cut Markdown into pieces of at most `limit` UTF-8 bytes at good places; a code block that is cut is
    closed and opened again. All but the last piece stay the same while the text grows."""
    pieces: list[str] = []
    start, fence = 0, ""
    while start < len(text):
        head = f"{fence}\n" if fence else ""
        end = reach(text, start, limit - length(head, "bytes") - _LONGEST_INFO, "bytes")
        if end < len(text):
            end = good_cut(text, start, end)
        body = text[start:end]
        pieces.append(head + body if end == len(text) else closed(head + body))
        start, fence = end, open_fence(body, fence)
    return pieces


def hand_over(text: str) -> Shown:
    """Where a stream that shows `text` is best left: after its last whole line."""
    at = text.rfind("\n") + 1
    kept = text[:at] if text[:at].strip() else text
    return Shown(len(kept), digest(kept))


def rest(text: str, shown: Shown) -> str:
    """What of `text` is still to be shown; all of it when it does not go on from what was."""
    seen = text[: shown.length]
    if not shown.length or digest(seen) != shown.digest:
        return text
    left = text[shown.length :].lstrip("\n")
    fence = open_fence(seen)
    return f"{fence}\n{left}" if fence and left.strip() else left
