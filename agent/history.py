"""A session's history: what was said and done, in a form that every provider's rules can be met from.

Entries are plain frozen data with a JSON form and a version. The order that always holds: each
`Assistant` entry with calls is followed by exactly one `ToolOutput` a call before any other entry of the
model's view. What a crash left open is closed by the agent when the run goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
    """What people wrote, as the model reads it. `run` is the run that answers it (empty: seeded context);
    `messages` are the inbox numbers of the messages it was made of."""

    run: str
    text: str
    images: tuple[ImageRef, ...] = ()
    messages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as the model asked for it. `fault`: why its arguments could not be read (else empty)."""

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
    """The run ended without a full answer: `failure` says why (see `Outcome`). Models do not see it."""

    run: str
    failure: str


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
    if "messages" in values:
        values["messages"] = tuple(values["messages"])
    if "files" in values:
        values["files"] = tuple(FileRef(**file) for file in values["files"])
    if "calls" in values:
        values["calls"] = tuple(ToolCall(**call) for call in values["calls"])
    entry: Entry = _KINDS[data["kind"]](**values)
    return entry


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a history: how many entries stand before it, and its own, oldest first."""

    before: int
    entries: list[Entry]


def same_run(older: Entry, newer: Entry) -> bool:
    """Whether two neighbours belong to one run, so that a tail must not part them."""
    return bool(older.run) and older.run == newer.run


class HistoryStore(Protocol):
    """Where histories are kept. A write is committed when the call returns."""

    async def load(self, session: str) -> list[Entry]:
        """All entries of the session, oldest first."""
        ...

    async def tail(self, session: str, least: int) -> Tail:
        """The newest entries: `least` of them (or all), and what belongs to the oldest one's run."""
        ...

    async def count(self, session: str) -> int:
        """How many entries the session has."""
        ...

    async def exists(self, session: str) -> bool:
        """Whether the session has any entry."""
        ...

    async def append(self, session: str, entries: Sequence[Entry]) -> None:
        """Add entries in order, all or none."""
        ...

    async def clear(self, session: str) -> None: ...


def of_run(entries: Sequence[Entry], run: str) -> list[Entry]:
    """The entries that a run wrote, oldest first."""
    return [entry for entry in entries if entry.run == run]


def open_calls(entries: Sequence[Entry]) -> list[ToolCall]:
    """Calls of the newest `Assistant` entry that have no `ToolOutput` yet, in the order they were asked."""
    for index in range(len(entries) - 1, -1, -1):
        entry = entries[index]
        if isinstance(entry, Assistant):
            answered = {e.call for e in entries[index + 1 :] if isinstance(e, ToolOutput)}
            return [call for call in entry.calls if call.id not in answered]
    return []


def reply_text(entries: Sequence[Entry]) -> str:
    """What a run said: the texts of its answers as paragraphs. The same on a restart as in the first try."""
    return "\n\n".join(e.text.strip() for e in entries if isinstance(e, Assistant) and e.text.strip())


def reply_files(entries: Sequence[Entry]) -> tuple[FileRef, ...]:
    """The files that a run's tools made for the person, each once, in order."""
    files = (file for e in entries if isinstance(e, ToolOutput) for file in e.files)
    return tuple({file.path: file for file in files}.values())


def window(entries: Sequence[Entry], run: str, limit: int, before: int = 0) -> list[Entry]:
    """The entries that a model is shown: at most about `limit`, always with all calls and results together.
    `entries` are the history's tail, of `limit` or more; `before` says how many stand before it.

    Old turns go first, in blocks of half the limit and only up to a `User` entry, so that the beginning of
    the view (which providers cache) stays the same for many turns. The current run keeps its request however
    long it grows; then its own oldest steps go.
    """
    if limit < 4:
        raise ValueError(f"a history limit of {limit} entries cannot hold one step")
    if before + len(entries) <= limit:
        return list(entries)
    block = limit // 2
    start = -(-(before + len(entries) - limit) // block) * block - before
    first_own = next((i for i, e in enumerate(entries) if e.run == run), len(entries))
    while start < len(entries) and not isinstance(entries[start], User):
        start += 1
    if start <= first_own:
        return list(entries[start:])
    own = list(entries[first_own:])
    if len(own) <= limit:
        return own
    request = [e for e in own if isinstance(e, User)]
    steps = [e for e in own if not isinstance(e, User)]
    cut = -(-(len(steps) + len(request) - limit) // block) * block
    while cut < len(steps) and not isinstance(steps[cut], Assistant):
        cut += 1
    return [*request, *steps[cut:]]


#: How a turn that a person stopped ends in the model's view. Without it, it would do in the next turn, with
#: the rights of the next person, what was asked in this one.
STOPPED_TURN = (
    "[A person stopped me here. This is over: I do nothing of what was asked in it unless somebody asks for "
    "it again.]"
)


def told(entries: Sequence[Entry]) -> list[Entry]:
    """The entries with such an ending behind each turn that was stopped, for the model's view."""
    shown: list[Entry] = []
    for entry in entries:
        if not isinstance(entry, Ended):
            shown.append(entry)
        elif entry.failure == "stopped":
            last = shown[-1] if shown else None
            if isinstance(last, Assistant) and last.run == entry.run and not last.calls:
                shown[-1] = replace(last, text=f"{last.text}\n\n{STOPPED_TURN}", opaque={})
            else:
                shown.append(Assistant(entry.run, STOPPED_TURN))
    return shown


def shortened(entries: Sequence[Entry], run: str, level: int) -> list[Entry]:
    """A smaller view for a provider that refused the request's length; each level from 1 to 3 is smaller.

    Tool results are cut first, then old turns are left out; the current run's request stays whole.
    """
    keep = {1: 4000, 2: 1000, 3: 300}[level]
    own = next((i for i, e in enumerate(entries) if e.run == run), len(entries))
    view = list(entries)
    if level > 1:
        # In steps of 20, so that the beginning stays the same for some turns (providers cache it).
        start = own if level == 3 else max(own - 20, 0) // 20 * 20
        while start < own and not isinstance(entries[start], User):
            start += 1
        view = view[start:]
    return [_cut(e, keep) if isinstance(e, ToolOutput) else e for e in view]


def _cut(output: ToolOutput, keep: int) -> ToolOutput:
    if len(output.text) <= keep:
        return output
    half = keep // 2
    text = f"{output.text[:half]}\n[… {len(output.text) - keep} characters left out …]\n{output.text[-half:]}"
    return replace(output, text=text, images=())
