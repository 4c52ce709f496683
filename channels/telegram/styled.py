"""Styled text: plain runs with a style each, and how Telegram writes the same thing down as entities.

Telegram's rules, which this form cannot break (Bot API, MessageEntity): entities lie inside the text, count
UTF-16 units, nest or are apart; nothing lies inside `code` and `pre`, nor are these inside anything but a
quote; quotes do not nest.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from channels.text import length


class Style(NamedTuple):
    """How a run looks. `pre` and `quote` are block numbers (0: none), so that two neighbours stay two."""

    bold: bool = False
    italic: bool = False
    strike: bool = False
    code: bool = False
    link: str = ""
    pre: int = 0
    language: str = ""
    quote: int = 0


PLAIN = Style()
Run: TypeAlias = tuple[str, Style]
Entity: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """An entity with its place in characters (`start`) and in UTF-16 units."""

    start: int
    entity: Entity


def spans(runs: Iterable[Run]) -> list[Span]:
    """The entities of a text, in the order in which they begin, the outer one first."""
    found: list[tuple[int, Span]] = []  # with the number of entities around it
    open_: list[tuple[str, str | int, str, int, int]] = []  # kind, value, extra, start, utf16 start
    chars = units = 0

    def close(upto: int) -> None:
        while len(open_) > upto:
            kind, value, extra, start, unit_start = open_.pop()
            entity: Entity = {"type": kind, "offset": unit_start, "length": units - unit_start}
            if kind == "text_link":
                entity["url"] = value
            elif kind == "pre" and extra:
                entity["language"] = extra
            found.append((len(open_), Span(start, entity)))

    for text, style in runs:
        if not text:
            continue
        wanted = _entities_of(style)
        keep = 0
        while keep < len(open_) and open_[keep][:3] in wanted:
            keep += 1
        close(keep)
        held = {entry[:3] for entry in open_}
        open_.extend((*entry, chars, units) for entry in wanted if entry not in held)
        chars += len(text)
        units += length(text, "utf16")
    close(0)
    found.sort(key=lambda item: (item[1].start, -item[1].entity["length"], item[0]))
    return [span for _, span in found]


def _entities_of(style: Style) -> list[tuple[str, str | int, str]]:
    wanted: list[tuple[str, str | int, str]] = []
    if style.quote:
        wanted.append(("blockquote", style.quote, ""))
    if style.pre:
        wanted.append(("pre", style.pre, style.language))
        return wanted
    if style.link:
        wanted.append(("text_link", style.link, ""))
    elif style.code:
        wanted.append(("code", 0, ""))
        return wanted
    if style.bold:
        wanted.append(("bold", 0, ""))
    if style.italic:
        wanted.append(("italic", 0, ""))
    if style.strike:
        wanted.append(("strikethrough", 0, ""))
    return wanted


# -- what the server does to a text by itself (tdlib: clean_input_string, is_empty_string) ----------------

_LINE_SEPARATORS = re.compile("\r\n?|[\u2028\u2029]")
_REMOVED = re.compile("[\u202a-\u202e\u0333\u033f\u030a]")
_TO_SPACE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
#: Characters that do not count as content: a message of nothing else is refused as empty.
_EMPTY = re.compile(
    "[ \n\u00a0\u1680\u180e\u2000-\u200f\u202e\u202f\u205f\u2800\u3000\ufeff\ufffc\U000e0000-\U000e007f]*"
)


def clean(text: str) -> str:
    """Do first what the server would do silently, so that what is sent is what is shown.

    Control characters become spaces, directional overrides and stacked lines vanish; tabs stay for the
    renderer. What UTF-8 cannot carry (half a surrogate pair) becomes U+FFFD.
    """
    if text.isascii() and text.isprintable():
        return text
    if "\u030a" in text:
        text = unicodedata.normalize("NFC", text)  # keeps the ring of a decomposed "Å"
    text = _LINE_SEPARATORS.sub("\n", text)
    text = _TO_SPACE.sub(" ", _REMOVED.sub("", text))
    return _SURROGATE.sub("\ufffd", text)


def is_empty(text: str) -> bool:
    """Whether Telegram refuses the text with "message text is empty"."""
    return _EMPTY.fullmatch(text) is not None
