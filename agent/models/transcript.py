"""A history as turns that every provider accepts, before a protocol gives them its words.

Providers refuse a call without its result, a result without its call, and anything between the two. A
stored history may hold all of these after a crash or an interruption; `turns` never does.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from agent.history import Assistant, Entry, ImageRef, ToolOutput, User

NO_TEXT = "(empty message)"
NO_OUTPUT = "(no output)"
EARLIER = "(The conversation began earlier.)"
GO_ON = "(Please go on.)"
INTERRUPTED = (
    "Error: this call was interrupted before its result was recorded; whether it took effect is unknown. "
    "Check before doing it again."
)

_LEGAL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_ILLEGAL_IN_NAME = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class Said:
    """What people wrote: neighbouring `User` entries as one."""

    text: str
    images: tuple[ImageRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one call."""

    text: str
    is_error: bool = False
    images: tuple[ImageRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A call with an id and a name that providers accept, together with its result."""

    id: str
    name: str
    arguments: dict[str, Any]
    result: Result
    original_id: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said, with every call followed by its result."""

    text: str
    calls: tuple[Call, ...] = ()
    opaque: dict[str, Any] = field(default_factory=dict)


Turn: TypeAlias = Said | Answer


def turns(entries: Sequence[Entry], *, longest_id: int = 64) -> list[Turn]:
    """Bring entries into an order that providers accept.

    What a person wrote while a tool ran comes after the results. Results are looked for up to the next
    answer; ids may repeat between answers (some servers count from zero each time), so a result belongs
    to the nearest answer before it. Missing results say that the call was interrupted; results that
    belong to no call are dropped. Ids longer than `longest_id` or with other letters than
    `[a-zA-Z0-9_-]`, and ids seen before, are replaced by a hash.
    """
    found: list[Turn] = []
    taken: set[str] = set()
    for position, entry in enumerate(entries):
        if isinstance(entry, User):
            _add_said(found, entry)
        elif isinstance(entry, Assistant) and (entry.calls or entry.text.strip()):
            outputs = _outputs_after(entries, position) if entry.calls else []
            found.append(_answer(entry, outputs, taken, longest_id))
    return found


def _add_said(found: list[Turn], entry: User) -> None:
    text = entry.text.strip("\n")
    before = found[-1] if found else None
    if isinstance(before, Said):
        texts = [part for part in (before.text, text) if part.strip()]
        found[-1] = Said("\n\n".join(texts), before.images + entry.images)
    else:
        found.append(Said(text if text.strip() else "", entry.images))


def _outputs_after(entries: Sequence[Entry], position: int) -> list[ToolOutput]:
    outputs: list[ToolOutput] = []
    for later in range(position + 1, len(entries)):
        entry = entries[later]
        if isinstance(entry, Assistant):
            break
        if isinstance(entry, ToolOutput):
            outputs.append(entry)
    return outputs


def _answer(entry: Assistant, outputs: list[ToolOutput], taken: set[str], longest_id: int) -> Answer:
    calls = []
    for number, call in enumerate(entry.calls):
        output = next((one for one in outputs if one.call == call.id), None)
        if output is not None:
            outputs.remove(output)
            said = output.text if output.text.strip() else NO_OUTPUT
            result = Result(said, output.is_error, output.images)
        else:
            result = Result(INTERRUPTED, is_error=True)
        legal = _fresh(call.id, number, taken, longest_id)
        calls.append(Call(legal, legal_name(call.name), call.arguments, result, call.id))
    return Answer(entry.text if entry.text.strip() else "", tuple(calls), entry.opaque)


def _fresh(wanted: str, number: int, taken: set[str], longest: int) -> str:
    legal, attempt = wanted, 0
    while legal in taken or len(legal) > longest or not _LEGAL_ID.fullmatch(legal):
        legal = "call_" + hashlib.sha256(f"{wanted}/{number}/{attempt}".encode()).hexdigest()[:24]
        attempt += 1
    taken.add(legal)
    return legal


def legal_name(name: str) -> str:
    """A tool name that providers accept in a history, for a name that a model made up."""
    return _ILLEGAL_IN_NAME.sub("_", name)[:64] or "unknown"


def call_ids(entries: Iterable[Entry]) -> set[str]:
    """The ids of all calls in a history."""
    return {call.id for entry in entries if isinstance(entry, Assistant) for call in entry.calls}


def unused_id(wanted: str, taken: set[str]) -> str:
    """`wanted`, or when it is empty or taken a variant that is free; it is taken afterwards.

    Some servers number calls from zero in every answer, or give no ids at all; records of calls need
    ids that differ.
    """
    stem, number = wanted or "call", 1
    found = wanted or "call_1"
    while found in taken:
        number += 1
        found = f"{stem}_{number}"
    taken.add(found)
    return found
