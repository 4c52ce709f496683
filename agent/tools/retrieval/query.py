"""What a conversation asks for, as a query. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agent.history import Assistant, Entry, User

#: Messages that a query is made of.
MESSAGES = 5
_HEAD, _TAIL = 1500, 500
_MOST_CLAUSES = 8
# Data in a text (base64, keys, long links): no words are to be found in it.
_BLOB = re.compile(r"[!-~]{60,}")
_LINK = re.compile(r"https?://[^/\s?#]{1,40}")
_BREAK = re.compile(
    r"[.!?;,:]+(?:\s+|\Z)|[。！？；，、：\n]+|\b(?:and then|and|then|or|also)\b|然后|并且|以及|接着",
    re.IGNORECASE,
)
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


@dataclass(frozen=True, slots=True)
class Query:
    """Texts with their weights, the heaviest first, and the parts of what was asked last: a sentence may ask
    for several things, and each wants a tool of its own."""

    texts: tuple[tuple[str, float], ...] = ()
    clauses: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.texts)


def query_of(text: str) -> Query:
    """A query that is one text."""
    text = _plain(text)
    return Query(((text, 1.0),), _clauses(text)) if text else Query()


def build_query(entries: Sequence[Entry]) -> Query:
    """The query of a conversation: the text of its last five messages that have any, without calls and
    results of tools.

    What a person wrote last always counts, however many steps ago, and counts most; every other message
    counts half as much as the one after it. Empty only when nobody has written any text.
    """
    said = [entry for entry in entries if isinstance(entry, User | Assistant) and _plain(entry.text)]
    asked = next((entry for entry in reversed(said) if isinstance(entry, User)), None)
    recent = said[-MESSAGES:]
    if asked is not None and asked not in recent:
        recent = [asked, *recent[1:]]
    texts: dict[str, float] = {}
    weight = 0.5
    for entry in reversed(recent):
        text = _plain(entry.text)
        if entry is asked:
            texts[text] = 1.0
        else:
            texts[text] = max(weight, texts.get(text, 0.0))
            weight /= 2
    ordered = sorted(texts.items(), key=lambda item: -item[1])
    last = _plain(asked.text) if asked is not None else ordered[0][0] if ordered else ""
    return Query(tuple(ordered), _clauses(last))


def _plain(text: str) -> str:
    """The text on one line, without data, its middle left out when it is long."""
    if len(text) > 4 * _HEAD:
        text = f"{text[: 3 * _HEAD]} {text[-_HEAD:]}"
    text = " ".join(_BLOB.sub(_without_data, text).split())
    return text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD]} {text[-_TAIL:]}"


def _without_data(match: re.Match[str]) -> str:
    link = _LINK.search(match.group())
    return f" {link.group()} " if link else " "


def _clauses(text: str) -> tuple[str, ...]:
    parts = [part.strip() for part in _BREAK.split(text) if _says_something(part)]
    return tuple(dict.fromkeys(parts))[:_MOST_CLAUSES] if len(parts) > 1 else ()


def _says_something(part: str) -> bool:
    return len(part.split()) >= 3 or len(_UNSPACED.findall(part)) >= 4
