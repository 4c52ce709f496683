"""Upkeep after each reply: MCP hot reload, then skill refresh. Coalesced, and never on anybody's way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("causeway.maintenance")


@dataclass(frozen=True, slots=True)
class Chore:
    """One piece of upkeep. `every`: least seconds between two runs of it (0: on each pass). `apart`: it may
    take long, so the others do not wait for it; it never runs twice at a time."""

    name: str
    run: Callable[[], Awaitable[object]]
    every: float = 0.0
    apart: bool = False


class Maintenance:
    """Runs the chores one after the other: at most one pass runs and one waits, however many replies go out.

    An idle bridge runs a pass every `idle_interval` seconds, so that edits are followed without a message.
    A pass ends with `linger` (waiting for what the chores began, such as servers that start); the next
    request for a pass cuts it short, so nothing that hangs holds up later passes. Passes begin at least
    `spacing` seconds apart: hundreds of replies a second cost a few passes.
    """

    def __init__(
        self,
        chores: Sequence[Chore],
        *,
        linger: Callable[[], Coroutine[Any, Any, object]] | None = None,
        idle_interval: float = 15.0,
        spacing: float = 0.2,
    ) -> None:
        self._chores = chores
        self._linger = linger
        self._idle_interval = idle_interval
        self._spacing = spacing
        self._wanted = asyncio.Event()
        self._last: dict[str, float] = {}
        self._begun = self._passes = 0
        self._calm = 0  # the number of the last pass that was not cut short
        self._done = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._apart: dict[str, asyncio.Task[None]] = {}

    def add(self, chore: Chore) -> None:
        """One more, before `start`."""
        self._chores = (*self._chores, chore)

    def trigger(self) -> None:
        """Ask for a pass. Returns at once."""
        self._wanted.set()

    @property
    def passes(self) -> int:
        """How many passes have ended."""
        return self._passes

    async def settled(self) -> None:
        """Wait until a pass that begins after this call has ended, its lingering not cut short."""
        begun = self._begun
        self.trigger()
        async with self._done:
            await self._done.wait_for(lambda: self._calm > begun)

    def start(self) -> None:
        self._task = asyncio.create_task(self._loop(), name="maintenance")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None
        for task in self._apart.values():
            task.cancel()
        if self._apart:
            await asyncio.wait(self._apart.values())

    async def _loop(self) -> None:
        began = -self._spacing
        while True:
            try:
                async with asyncio.timeout(self._idle_interval):
                    await self._wanted.wait()
            except TimeoutError:
                pass  # the slow timer: an idle bridge follows edits too
            if (pause := began + self._spacing - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            began = time.monotonic()
            self._wanted.clear()
            self._begun += 1
            for chore in self._chores:
                now = time.monotonic()
                if chore.every and now - self._last.get(chore.name, -chore.every) < chore.every:
                    continue
                self._last[chore.name] = now
                if not chore.apart:
                    await self._run(chore)
                elif chore.name not in self._apart or self._apart[chore.name].done():
                    self._apart[chore.name] = asyncio.create_task(self._run(chore), name=chore.name)
            if self._linger is None or await self._wait_for(self._linger()):
                self._calm = self._begun
            self._passes += 1
            async with self._done:
                self._done.notify_all()

    async def _run(self, chore: Chore) -> None:
        try:
            await chore.run()
        except Exception:
            # One chore's fault must not keep the others, or the next pass, from running.
            log.exception("maintenance: %s failed", chore.name)

    async def _wait_for(self, lingering: Coroutine[Any, Any, object]) -> bool:
        """Until `lingering` ends (True) or another pass is wanted (False)."""
        ends = asyncio.create_task(lingering)
        tasks = {ends, asyncio.create_task(self._wanted.wait())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return ends.done()
        finally:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    log.error("maintenance: lingering failed", exc_info=result)
