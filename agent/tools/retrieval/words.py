"""Texts as words that can be compared: names split, plurals made one with singulars. Pure."""

from __future__ import annotations

import re

from agent.skills.words import COMMON

#: Characters of one text that are looked at.
_MOST = 20_000
_LONGEST_WORD = 30
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_")
# Letters of scripts with spaces between words, digits, and runs of scripts that are written without spaces.
_UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[^\W\d_{_UNSPACED}]+|[0-9]+|[{_UNSPACED}]+")


def split_name(name: str) -> str:
    """A name of code as words: `getStoryWithComments` and `get-story_with` become words with spaces."""
    return " ".join(_HUMP.sub(" ", name).replace("-", " ").replace(".", " ").split())


def words(text: str) -> list[str]:
    """The words that tell one text from another, in order, with repetitions. What is written without spaces
    counts by pairs of characters."""
    found: list[str] = []
    for word in _WORD.findall(_HUMP.sub(" ", text[:_MOST]).lower()):
        if word[0] >= "\u3040":
            found.extend(word[i : i + 2] for i in range(max(1, len(word) - 1)))
        elif 1 < len(word) < _LONGEST_WORD and word not in COMMON:
            found.append(_singular(word))
    return found


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word
