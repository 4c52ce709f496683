"""What is bounded: tasks by their owner, memories by their size."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any, TypeVar

log = logging.getLogger("causeway.slack")

K = TypeVar("K")
V = TypeVar("V")


class Owned(set["asyncio.Task[Any]"]):
    """Tasks under way. Each leaves when it is done, and its fault is logged; the owner ends the rest."""

    def start(self, work: Coroutine[Any, Any, V], name: str) -> asyncio.Task[V]:
        task = asyncio.create_task(work, name=name)
        self.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)

    async def end(self) -> None:
        """Cancel what is under way and wait until it is gone."""
        for task in tuple(self):
            task.cancel()
        await self.wait()

    async def wait(self, seconds: float | None = None) -> None:
        if self:
            await asyncio.wait(tuple(self), timeout=seconds)


class Recent(OrderedDict[K, V]):
    """The `most` entries that were written (or moved to the end) last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)
