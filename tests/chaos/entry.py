"""The bridge with a knife at its store: it notes each commit, and dies just before or after the one named.

    python -m tests.chaos.entry run --config FILE

The program is the real one; only the writing methods of the store are wrapped. `CAUSEWAY_COMMITS` is a file
in which each commit is noted, one name a line. `CAUSEWAY_DIE` is `before NAME 2` or `after NAME 2`: SIGKILL
at the second commit of that name in this process. In Redis a method of several round trips is several commits
(`store.accept/1`, `store.accept/2`).
"""

from __future__ import annotations

import inspect
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from agent.history import HistoryStore
from bridge.cli import main
from bridge.store.base import Claims, Meter, Store
from channels.base import ChannelState

#: What writes nothing that lasts. Everything else of the protocols counts as writing.
READS = frozenset(
    {
        *("open", "close", "next", "waiting_sessions", "waiting_count", "reply", "pending_replies"),
        *("get_setting", "settings", "usage", "sessions", "load", "count", "exists", "get", "read"),
    }
)
#: The protocols by the word that their commits' names begin with.
PARTS: dict[str, type[Any]] = {
    "store": Store,
    "claims": Claims,
    "meter": Meter,
    "history": HistoryStore,
    "state": ChannelState,
}

_KINDS = {"ToolOutput": "output", "ToolBegun": "begun"}
_DETAILS: dict[str, Callable[..., str]] = {
    "store.mark_seen": lambda inbound, reply=None: "answered" if reply else "",
    "store.open_reply": lambda reply: reply.state,
    "store.put_chunk": lambda reply, chunk: chunk.state,
    "store.settle_reply": lambda id, state, seqs: state,
    "store.put_setting": lambda scope, key, value: scope if value is not None else f"{scope} goes",
    "history.append": lambda session, entries: "+".join(
        _KINDS.get(type(entry).__name__, type(entry).__name__.lower()) for entry in entries
    ),
}


def writing() -> set[str]:
    """The names of all methods of the store's protocols that write."""
    return {
        f"{part}.{name}"
        for part, protocol in PARTS.items()
        for name, method in vars(protocol).items()
        if inspect.iscoroutinefunction(method) and name not in READS
    }


@dataclass(slots=True)
class _Inside:
    """A writing method under way."""

    name: str
    steps: int = 0


_inside: ContextVar[_Inside | None] = ContextVar("inside", default=None)


@dataclass(slots=True)
class Knife:
    noted: int | None
    side: str = ""
    name: str = ""
    nth: int = 0
    passed: Counter[str] = field(default_factory=Counter)

    @classmethod
    def from_environ(cls) -> Knife:
        path = os.environ.get("CAUSEWAY_COMMITS")
        noted = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if path else None
        side, _, rest = os.environ.get("CAUSEWAY_DIE", "").partition(" ")
        name, _, nth = rest.rpartition(" ")
        return cls(noted, side, name, int(nth or 0))

    async def commit(self, name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        self.passed[name] += 1
        mine = self.passed[name]
        if self.noted is not None:
            os.write(self.noted, f"{name}\n".encode())
        self._cut("before", name, mine)
        result = await work()
        self._cut("after", name, mine)
        return result

    def _cut(self, side: str, name: str, nth: int) -> None:
        if (side, name, nth) == (self.side, self.name, self.nth):
            os.kill(os.getpid(), signal.SIGKILL)


def watch(knife: Knife) -> None:
    """Wrap what writes, in both stores."""
    from bridge.store.meter import MemoryMeter
    from bridge.store.sqlite import SqliteStore
    from bridge.store.sqlite_state import SqliteChannelState, SqliteHistory

    classes: list[tuple[str, type[Any], bool]] = [
        ("store", SqliteStore, True),
        ("state", SqliteChannelState, True),
        ("history", SqliteHistory, True),
        ("meter", MemoryMeter, True),
    ]
    try:
        from bridge.store.redis import RedisStore
        from bridge.store.redis_line import RedisLine
        from bridge.store.redis_meter import RedisMeter
        from bridge.store.redis_state import RedisChannelState, RedisHistory
    except ImportError:  # without the client library there is no such store to watch
        RedisLine = None  # type: ignore[misc,assignment]
    else:
        classes += [("store", RedisStore, False), ("claims", RedisStore, False)]
        classes += [("state", RedisChannelState, False), ("history", RedisHistory, False)]
        classes += [("meter", RedisMeter, False)]
        _watch_line(RedisLine, knife)
    for part, cls, whole in classes:
        for name in sorted(writing()):
            of, _, method = name.partition(".")
            if of == part:
                _watch_method(cls, name, method, knife, whole=whole)


def _watch_method(cls: type[Any], name: str, method: str, knife: Knife, *, whole: bool) -> None:
    original = getattr(cls, method)

    async def watched(self: Any, *args: Any, **options: Any) -> Any:
        if _inside.get() is not None:
            return await original(self, *args, **options)
        detail = _detail(self, name, args, options)
        inside = _Inside(detail)
        token = _inside.set(inside)
        try:
            if whole:
                return await knife.commit(detail, lambda: original(self, *args, **options))
            result = await original(self, *args, **options)
            if not inside.steps:
                await knife.commit(f"{detail}/0", _nothing)  # it had nothing to write, this time
            return result
        finally:
            _inside.reset(token)

    setattr(cls, method, watched)


async def _nothing() -> None:
    return None


def _watch_line(line: type[Any], knife: Knife) -> None:
    original = line.run

    async def watched(self: Any, *commands: Any) -> Any:
        inside = _inside.get()
        if inside is None or not self._writes:
            return await original(self, *commands)
        inside.steps += 1
        return await knife.commit(f"{inside.name}/{inside.steps}", lambda: original(self, *commands))

    made = line.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        self._writes = bool(options.get("confirm"))  # the line that waits for replicas is the writing one
        made(self, *args, **options)

    line.__init__ = init
    line.run = watched


def _detail(self: Any, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> str:
    if name.startswith("state."):
        return f"{name} {self._channel}:{str(args[0]).partition(':')[0]}"  # not whose log or note
    of = _DETAILS.get(name)
    return f"{name} {of(*args, **options)}".strip() if of else name


if __name__ == "__main__":
    watch(Knife.from_environ())
    raise SystemExit(main())
