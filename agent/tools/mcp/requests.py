"""The calls under way at one server: their deadlines, and what the server may ask of the chats they run for.

A server's question names no call. It belongs to the call in whose context it came (a round of the call
itself, or the stream of its HTTP answer), else to the only place that has calls under way there. With calls
of several chats under way nobody is asked: a question in the wrong chat would be worse than none.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from agent.tools.base import Answer, Desk, Question, Sample, ToolContext, ToolFailure

log = logging.getLogger("causeway.mcp")

#: Seconds that a call may wait for people and for the model, all in all, on top of its own deadline.
HELD_AT_MOST = 900.0
#: Questions and requests for text that one call may lead to.
MOST_REQUESTS = 20
_SAMPLING = 180.0
_GRACE = 5.0  # for the desk to end a question by its own deadline
_LONGEST_MESSAGE = 300

_current: ContextVar[Call | None] = ContextVar("causeway_mcp_call", default=None)


def ceiling(timeout: float) -> float:
    """How long a call may run in seconds, however much progress it tells."""
    return max(timeout, min(10 * timeout, 600.0))


@dataclass(slots=True, eq=False)
class Call:
    """A call under way. `timeout` is how long the server may be silent, in seconds.

    `place` is the chat and the turn that it belongs to; without one it can be asked nothing.
    """

    timeout: float
    desk: Desk | None = None
    folder: Path | None = None
    place: tuple[str, ...] | None = None
    requests: int = 0
    _limit: asyncio.Timeout | None = None
    _highest: float = math.inf  # loop time; progress extends the deadline up to here
    _last: float = math.inf  # loop time; nothing extends it further
    _holds: int = 0
    _held: tuple[float, float] = (0.0, 0.0)  # loop time when that began, and the seconds that were left

    @classmethod
    def of(cls, context: ToolContext, timeout: float) -> Call:
        place = (context.session, context.run, context.caller.id)
        return cls(timeout, context.desk, context.folder, place)

    @property
    def longest(self) -> float:
        """Seconds after which the call is over in any case."""
        return ceiling(self.timeout) + HELD_AT_MOST

    @asynccontextmanager
    async def deadline(self) -> AsyncIterator[None]:
        """Ends what is awaited inside by TimeoutError when the call has been silent for too long."""
        now = asyncio.get_running_loop().time()
        self._highest, self._last = now + ceiling(self.timeout), now + self.longest
        token = _current.set(self)
        try:
            async with asyncio.timeout(self.timeout) as self._limit:
                yield
        finally:
            self._limit = None
            _current.reset(token)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """The server told progress: show it, and wait for it longer."""
        if self._limit is None or not math.isfinite(progress):
            return
        if not self._holds:
            _move(self._limit, min(asyncio.get_running_loop().time() + self.timeout, self._highest))
        if self.desk is not None:
            known = total if total is not None and math.isfinite(total) and total > 0 else None
            self.desk.progress(progress, known, (message or "")[:_LONGEST_MESSAGE])

    @contextmanager
    def held(self) -> Iterator[None]:
        """While this is open, the wait is not the server's fault and does not count."""
        loop = asyncio.get_running_loop()
        if not self._holds and self._limit is not None:
            now = loop.time()
            self._held = (now, (self._limit.when() or now) - now)
            _move(self._limit, self._last)
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds and self._limit is not None:
                began, left = self._held
                self._highest += loop.time() - began
                _move(self._limit, min(loop.time() + left, self._last))


@dataclass(slots=True)
class Calls:
    """All calls under way at one server, and its way to their chats. None of this raises McpFault."""

    server: str
    idle_since: float = 0.0  # loop time
    _open: dict[Call, None] = field(default_factory=dict)
    _waits: dict[asyncio.Timeout, set[Call]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def under_way(self, call: Call) -> AsyncIterator[None]:
        """Count the call and hold its deadline; what was asked for it alone is withdrawn when it ends."""
        self._open[call] = None
        try:
            async with call.deadline():
                yield
        finally:
            del self._open[call]
            self.idle_since = asyncio.get_running_loop().time()
            for limit, owners in self._waits.items():
                owners.discard(call)
                if not owners:
                    _move(limit, self.idle_since)

    def asking(self) -> tuple[Call, ...]:
        """The calls that a request of the server can be for; all of one turn in one chat, or none."""
        tied = _current.get()
        if tied is not None:
            return (tied,) if tied in self._open else ()
        places = {call.place for call in self._open}
        return tuple(self._open) if len(places) == 1 and None not in places else ()

    def folder(self) -> Path | None:
        """The folder of the session for which the server works."""
        return next((call.folder for call in self.asking() if call.place is not None), None)

    async def ask(self, question: Question) -> Answer:
        """Ask the person; "cancel" when nobody can be asked, in time, or the call has ended."""
        with suppress(TimeoutError):
            async with self._desk(question.deadline + _GRACE) as desk:
                if desk is not None:
                    return await desk.ask(question)
                log.info("MCP server %s asks, but nobody can be asked; the answer is cancel", self.server)
        return Answer("cancel")

    async def sample(self, sample: Sample) -> str:
        """Text from the model. Raises ToolFailure."""
        try:
            async with self._desk(_SAMPLING) as desk:
                if desk is not None:
                    return await desk.sample(sample)
        except TimeoutError:
            raise ToolFailure("The model gave no text", "in time.") from None
        raise ToolFailure("The model cannot be asked:", "no single call is under way that this is for.")

    @asynccontextmanager
    async def _desk(self, seconds: float) -> AsyncIterator[Desk | None]:
        """Where to ask, for up to `seconds` in which the calls it is for are held; None if nowhere."""
        calls = self.asking()
        asked = next((call for call in calls if call.desk is not None), None)
        if sum(call.requests for call in calls) >= MOST_REQUESTS:
            log.warning("MCP server %s asks too much in one call; it is not heard", self.server)
            asked = None
        if asked is None:
            yield None
            return
        asked.requests += 1
        with ExitStack() as holds:
            for call in calls:
                holds.enter_context(call.held())
            async with asyncio.timeout(seconds) as limit:
                self._waits[limit] = set(calls)
                try:
                    yield asked.desk
                finally:
                    del self._waits[limit]


def _move(limit: asyncio.Timeout, when: float) -> None:
    with suppress(RuntimeError):  # it has ended in this very moment
        limit.reschedule(when)
