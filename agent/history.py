"""A session's history: what was said and done, in a form that every provider's rules can be met from.

Entries are plain frozen data with a JSON form and a version. The order that always holds: each
`Assistant` entry with calls is followed by exactly one `ToolOutput` a call before any other entry of the
model's view. `repair` brings a history that a crash left open into that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeAlias

from agent.events import FileRef

ENTRY_VERSION = 1


@dataclass(frozen=True, slots=True)
class ImageRef:
    """A picture in the session's folder, `path` relative to it."""

    path: str
    mime: str


@dataclass(frozen=True, slots=True)
class User:
    """What people wrote, as the model reads it. `run` is the run that answers it (empty: seeded context)."""

    run: str
    text: str
    images: tuple[ImageRef, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as the model asked for it. `fault` says why its arguments could not be read (else empty)."""

    id: str
    name: str
    arguments: dict[str, Any]
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Assistant:
    """One finished model answer. `opaque` holds what a protocol wants back unchanged (thinking blocks),
    keyed by protocol name."""

    run: str
    text: str
    calls: tuple[ToolCall, ...] = ()
    opaque: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolBegun:
    """A call that may change something was begun. Not shown to models; it tells a restart that the outcome
    of a call without a `ToolOutput` is unknown."""

    run: str
    call: str


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """The result of one call, already bounded and masked."""

    run: str
    call: str
    name: str
    text: str
    is_error: bool = False
    files: tuple[FileRef, ...] = ()
    images: tuple[ImageRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The run ended without a full answer (a fault, a stop). `text` went to the person; models do not see it."""

    run: str
    failure: str
    text: str


Entry: TypeAlias = User | Assistant | ToolBegun | ToolOutput | Ended
_KINDS: dict[str, type[Any]] = {
    "user": User, "assistant": Assistant, "begun": ToolBegun, "output": ToolOutput, "ended": Ended,
}  # fmt: skip
_NAMES = {cls: name for name, cls in _KINDS.items()}


def entry_to_json(entry: Entry) -> dict[str, Any]:
    return {"v": ENTRY_VERSION, "kind": _NAMES[type(entry)], **asdict(entry)}


def entry_from_json(data: Mapping[str, Any]) -> Entry:
    """Read what `entry_to_json` wrote. Raises ValueError for an unknown version or kind."""
    if data.get("v") != ENTRY_VERSION or data.get("kind") not in _KINDS:
        raise ValueError(f"stored history entry has version {data.get('v')!r}, kind {data.get('kind')!r}")
    values = {key: value for key, value in data.items() if key not in ("v", "kind")}
    if "images" in values:
        values["images"] = tuple(ImageRef(**image) for image in values["images"])
    if "files" in values:
        values["files"] = tuple(FileRef(**file) for file in values["files"])
    if "calls" in values:
        values["calls"] = tuple(ToolCall(**call) for call in values["calls"])
    entry: Entry = _KINDS[data["kind"]](**values)
    return entry


class HistoryStore(Protocol):
    """Where histories are kept. A write is committed when the call returns."""

    async def load(self, session: str) -> list[Entry]:
        """All entries of the session, oldest first."""
        ...

    async def append(self, session: str, entries: Sequence[Entry]) -> None:
        """Add entries in order, all or none."""
        ...

    async def clear(self, session: str) -> None: ...
