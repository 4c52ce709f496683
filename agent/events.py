"""What an agent tells while it works. Plain data; the bridge turns it into what people see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of the reply."""

    text: str


@dataclass(frozen=True, slots=True)
class TextReset:
    """The step's stream broke and is tried again: the reply's text shrinks back to `keep` characters."""

    keep: int


@dataclass(frozen=True, slots=True)
class ToolStarted:
    call: str
    name: str
    preview: str


@dataclass(frozen=True, slots=True)
class ToolFinished:
    call: str
    name: str
    ok: bool
    preview: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """A call under way tells how far it is, in words."""

    call: str
    name: str
    preview: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer; 0 where the provider did not say. `cached` is a part of `input`."""

    input: int = 0
    output: int = 0
    cached: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.input + other.input, self.output + other.output, self.cached + other.cached)


@dataclass(frozen=True, slots=True)
class Used:
    """The model gave an answer and took this for it."""

    model: str
    usage: Usage


Event: TypeAlias = TextDelta | TextReset | ToolStarted | ToolProgress | ToolFinished | Used
#: Called on the event loop; must return at once.
Emit: TypeAlias = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file in the session's folder that the reply brings along. `path` is relative to that folder."""

    path: str
    name: str
    mime: str = "application/octet-stream"
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `text` is the whole reply; `failure` is the kind of fault when there was one:
    a `ModelError.kind`, or "empty", "cut_off", "steps", "loop", "stopped", "internal".
    """

    text: str
    files: tuple[FileRef, ...] = ()
    failure: str = ""
    detail: str = ""  # for the admin's log, never for the chat
