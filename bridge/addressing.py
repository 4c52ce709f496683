"""When the bot answers in a group: one pure function of the message and the group's settings."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

import regex
from pydantic import BaseModel, ConfigDict, Field, field_validator

from channels.base import Cue

log = logging.getLogger("causeway.addressing")

Answer = Literal["mention", "always", "never"]
Why = Literal["", "mention", "reply", "command", "thread", "wake word", "pattern", "always"]


class GroupRule(BaseModel):
    """How the bot behaves in a group.

    `answer`: when it is meant (`mention`: named, replied to, a command, a wake word, a pattern, a thread it
    takes part in), to everything (`always`), or `never`. `threads`: whether a thread in which it has answered
    needs no mention any more (default: as is usual on the platform). `wake_words` begin a message;
    `patterns` are regular expressions found anywhere in it. `overhear`: how many messages that are not for
    the bot are kept as context for the next one that is (0: none).
    """

    model_config = ConfigDict(extra="forbid")

    answer: Answer = "mention"
    threads: bool | None = None
    wake_words: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    overhear: int = Field(default=30, ge=0, le=200)

    @field_validator("patterns")
    @classmethod
    def _compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                regex.compile(pattern)
            except regex.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        return patterns


@dataclass(frozen=True, slots=True)
class Meant:
    """`answer`: whether the bot answers; `why`: the first reason that held; `text`: without a wake word."""

    answer: bool
    why: Why
    text: str


#: Longest part of a message that patterns are searched in: a slow pattern must not hold up the bridge.
_SEARCHED = 2000
_PATTERN_SECONDS = 0.05
_AFTER_WAKE_WORD = " \t\n,，:：.。!！?？、"


def meant(
    text: str, cue: Cue, rule: GroupRule, *, in_thread: bool, activation: Answer | None = None
) -> Meant:
    """Whether a group's message is for the bot. `in_thread`: it stands in a thread in which the bot takes
    part and `threads` holds there. `activation`: what `/activation` set, which beats `rule.answer`."""
    answer = activation or rule.answer
    if answer == "never":
        return Meant(cue == "command", "command" if cue == "command" else "", text)
    if cue in ("mention", "reply", "command"):
        return Meant(True, cue, text)
    if (rest := _woken(text, rule.wake_words)) is not None:
        return Meant(True, "wake word", rest)
    if any(_found(pattern, text[:_SEARCHED]) for pattern in rule.patterns):
        return Meant(True, "pattern", text)
    if in_thread and rule.threads is not False:
        return Meant(True, "thread", text)
    return Meant(answer == "always", "always" if answer == "always" else "", text)


def _found(pattern: str, text: str) -> bool:
    """Whether a pattern is in the text; one that takes too long to tell is not."""
    try:
        return regex.search(pattern, text, timeout=_PATTERN_SECONDS) is not None
    except TimeoutError:
        log.warning(
            "a pattern of access took longer than %s s and was given up: %s", _PATTERN_SECONDS, pattern
        )
        return False


def _woken(text: str, words: tuple[str, ...]) -> str | None:
    """The text after a wake word at its beginning; None when there is none. A word of letters must end where
    the wake word ends ("botanik" does not wake "bot"); Chinese needs no gap."""
    stripped = text.lstrip()
    for word in words:
        if not word or stripped[: len(word)].casefold() != word.casefold():
            continue
        rest = stripped[len(word) :]
        if rest and word[-1].isascii() and word[-1].isalnum() and rest[0].isascii() and rest[0].isalnum():
            continue
        return rest.lstrip(_AFTER_WAKE_WORD) or rest.strip()
    return None
