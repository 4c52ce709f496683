"""Calls that outlast their deadline go on as background tasks, whose ids the model polls.

A task belongs to one session. It lives in memory only: after a restart its id means nothing any more, and
the answer to a poll says that the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from agent.tools.base import (
    Answer,
    Caller,
    Desk,
    Question,
    Sample,
    Tool,
    ToolContext,
    ToolFailure,
    ToolResult,
)
from agent.tools.mcp.requests import ceiling
from agent.tools.policy import Decision
from agent.tools.settings import BackgroundSettings

log = logging.getLogger("causeway.tools")

MOST_A_SESSION = 5
MOST = 200
#: Seconds that a task's result is kept for those who ask for it.
KEPT = 3600.0
#: Polls in a row without any news after which a task is given up.
MOST_UNCHANGED = 3

#: Runs the call to its end, in the work's context. Raises nothing but CancelledError.
Start = Callable[["Work"], Coroutine[Any, Any, ToolResult]]


@dataclass(slots=True, eq=False)
class Work:
    """One call under way. With an `id` it is a background task.

    `ending` is why it was ended from outside, in the word that statistics know it by. Times are of the
    event loop's clock.
    """

    tool: Tool
    context: ToolContext
    began: float
    heard: float  # when it last gave a sign of life
    limit: float  # when it leaves the foreground in any case
    id: str = ""
    ending: str = ""
    told: str = ""
    progress: str = ""
    unchanged: int = 0
    counted: float = 0.0  # when the last poll without news ended
    ended: float = 0.0
    held: int = 0
    job: asyncio.Task[ToolResult] = field(init=False)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self) -> None:
        """Wake those who wait for news."""
        self._news.set()
        self._news = asyncio.Event()

    async def news(self, seconds: float) -> None:
        """Wait until the task has ended or has something new to tell, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                while not self.job.done() and self.progress == self.told:
                    await self._news.wait()
        except TimeoutError:
            return


class _WatchedDesk:
    """The call's way to the chat, which notes signs of life. Once the call is a task nobody is asked: the
    turn that it came from may be over."""

    def __init__(self, work: Work, inner: Desk | None) -> None:
        self._work = work
        self._inner = inner

    async def ask(self, question: Question) -> Answer:
        if self._inner is None or self._work.id:
            return Answer("cancel")
        with self._waiting():
            return await self._inner.ask(question)

    def progress(self, done: float, total: float | None, message: str) -> None:
        work = self._work
        work.heard = asyncio.get_running_loop().time()
        part = f"{done / total:.0%}" if total else f"{done:g}"
        work.progress = f"{part} {' '.join(message.split())[:160]}".strip()
        work.tell()
        if self._inner is not None and not work.id:
            self._inner.progress(done, total, message)

    async def sample(self, sample: Sample) -> str:
        if self._inner is None or self._work.id:
            raise ToolFailure("The model cannot be asked:", "the turn that this call came from is over.")
        with self._waiting():
            return await self._inner.sample(sample)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Time in which a person or the model is waited for is not the tool's."""
        loop, work = asyncio.get_running_loop(), self._work
        began = loop.time()
        work.held += 1
        try:
            yield
        finally:
            work.held -= 1
            work.heard = loop.time()
            work.limit += work.heard - began


class Tasks:
    """All calls that are, or may become, background tasks. Used from one event loop."""

    def __init__(
        self,
        settings: BackgroundSettings,
        *,
        unchanged_seconds: float = 1.0,
        decide: Callable[[Tool, Caller, str], Decision] | None = None,
    ) -> None:
        """`unchanged_seconds`: shorter waits for news do not count towards giving a task up. `decide`: who
        may see what a task brought, as for the call itself (without it: everybody)."""
        self._decide = decide
        self._settings = settings
        self._shortest = unchanged_seconds
        self._working: set[Work] = set()
        self._tasks: dict[str, Work] = {}

    async def run(self, tool: Tool, context: ToolContext, start: Start) -> ToolResult:
        """Run a call; when it stays silent for the tool's deadline it goes on as a task and the result says
        so. Cancelling ends the call, unless it is a task already."""
        now = asyncio.get_running_loop().time()
        work = Work(tool, context, now, now, now + ceiling(tool.timeout))
        work.context = replace(context, desk=_WatchedDesk(work, context.desk))
        work.job = asyncio.create_task(start(work))
        self._working.add(work)
        work.job.add_done_callback(lambda _: self._ended(work))
        try:
            while not work.job.done() and (left := _left(work)) > 0:
                await asyncio.wait({work.job}, timeout=left)
        except asyncio.CancelledError:
            await self._end(work, "cancelled")
            raise
        if work.job.done():
            return work.job.result()
        return await self._to_background(work)

    async def poll(self, context: ToolContext, task: str, seconds: float, *, stop: bool) -> ToolResult:
        """The result of a task of this session; or, after waiting for news at most so long, how it stands.

        Without news for three polls in a row the task is ended.
        """
        self._sweep()
        work = self._tasks.get(task)
        if work is None or work.context.session != context.session:
            return _error(
                f"There is no background task {task[:40]!r} in this conversation: it was lost in a restart, "
                "or is long over. Whether its call took effect is unknown; find out before repeating it."
            )
        if self._decide is not None:
            decision = self._decide(work.tool, context.caller, context.session)
            if decision.effect == "deny":
                return _error(f"{task} was not looked up. {decision.reason}")
        if stop and not work.job.done():
            await self._end(work, "stopped")
        loop = asyncio.get_running_loop()
        began = loop.time()
        await work.news(seconds)
        if not work.job.done():
            if work.progress != work.told:
                work.told, work.unchanged = work.progress, 0
                return ToolResult(f"{_running(work)} News: {work.told}.")
            # Polls side by side are one look.
            if began >= work.counted and loop.time() - began >= self._shortest:
                work.unchanged, work.counted = work.unchanged + 1, loop.time()
            if work.unchanged < MOST_UNCHANGED:
                return ToolResult(
                    f"{_running(work)} Nothing new ({work.unchanged} of {MOST_UNCHANGED} looks in a row, "
                    "then it is given up). Look again with a longer wait, or answer now and look later."
                )
            await self._end(work, "given up")
        return self._result(work)

    async def end_session(self, session: str) -> None:
        """End and forget the tasks of a session; returns when they have ended."""
        ours = [work for work in self._tasks.values() if work.context.session == session]
        for work in ours:
            del self._tasks[work.id]
        await asyncio.gather(*(self._end(work, "stopped") for work in ours))

    async def stop(self) -> None:
        """End everything; returns when it has ended."""
        self._tasks.clear()
        await asyncio.gather(*(self._end(work, "stopped") for work in list(self._working)))

    async def _to_background(self, work: Work) -> ToolResult:
        seconds = f"{work.tool.timeout:g} s"
        if not self._make_room(work.context.session):
            await self._end(work, "timeout")
            if not work.job.cancelled():  # it ended by itself at the last moment
                return work.job.result()
            return _error(
                f"{work.tool.name} did not end within {seconds} and was stopped, since "
                f"{MOST_A_SESSION} background tasks of this conversation are running already. "
                "What it had already done stays done. Wait for one of them first."
            )
        work.id = f"task-{secrets.token_hex(4)}"
        self._tasks[work.id] = work
        log.info("tool %s goes on in the background (session %s)", work.tool.name, work.context.session)
        return ToolResult(
            f"{work.tool.name} has not ended within {seconds}; it goes on as the background task {work.id}. "
            f"Do not call it again: get its result with task_status(task={work.id!r})."
        )

    def _make_room(self, session: str) -> bool:
        self._sweep()
        for most, ours in ((MOST_A_SESSION, True), (MOST, False)):
            tasks = [work for work in self._tasks.values() if not ours or work.context.session == session]
            over = sorted((work for work in tasks if work.job.done()), key=lambda work: work.ended)
            if len(tasks) - len(over) >= most:
                return False
            for work in over[: max(0, len(tasks) - most + 1)]:
                del self._tasks[work.id]
        return True

    def _sweep(self) -> None:
        oldest = asyncio.get_running_loop().time() - KEPT
        for work in [work for work in self._tasks.values() if work.job.done() and work.ended < oldest]:
            del self._tasks[work.id]

    def _ended(self, work: Work) -> None:
        self._working.discard(work)
        work.ended = asyncio.get_running_loop().time()
        # Its folder and desk are not needed any more; only the session is.
        work.context = replace(work.context, desk=None)
        work.tell()
        if not work.job.cancelled() and (fault := work.job.exception()) is not None and work.id:
            log.error("background task of %s broke", work.tool.name, exc_info=fault)

    async def _end(self, work: Work, why: str) -> None:
        """Cancel a call and wait for its end."""
        if not work.job.done():
            work.ending = work.ending or why
            work.job.cancel()
            await asyncio.wait({work.job})

    def _result(self, work: Work) -> ToolResult:
        if not work.job.cancelled():
            return work.job.result()
        what = f"The background task {work.id} ({work.tool.name})"
        if work.ending == "given up":
            why = f"was given up and ended: {MOST_UNCHANGED} looks in a row found nothing new."
        else:
            why = "was stopped."
        return _error(f"{what} {why} What it had already done stays done.")


def _left(work: Work) -> float:
    """Seconds that the call may stay in the foreground without a sign of life from now on."""
    if work.held:
        return work.tool.timeout
    return min(work.heard + work.tool.timeout, work.limit) - asyncio.get_running_loop().time()


def _running(work: Work) -> str:
    seconds = asyncio.get_running_loop().time() - work.began
    return f"{work.id} ({work.tool.name}) is still running after {seconds:.0f} s."


def _error(text: str) -> ToolResult:
    return ToolResult(text, is_error=True)
