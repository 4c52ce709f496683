"""Threads of the tools' own, so that slow files or names never hold up whoever uses the loop's threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

#: Seconds that a cancelled call waits for its thread, so that a write has ended when the call has.
_GRACE = 2.0


class Workers:
    """A bounded pool of threads; they are started when needed."""

    def __init__(self, size: int = 8) -> None:
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="causeway-tool")

    async def run(self, work: Callable[[], T], stop: threading.Event | None = None) -> T:
        """Run `work` in a thread. When cancelled, set `stop` (which `work` looks at), wait a little for the
        thread to end, and pass the cancellation on."""
        job = self._pool.submit(work)
        waiter = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(waiter)
        except asyncio.CancelledError:
            if stop is not None:
                stop.set()
            if not job.cancel():
                await asyncio.wait([waiter], timeout=_GRACE)
            raise

    def prepare(self, work: Callable[[], object]) -> None:
        """Run something in the background that nobody waits for, such as an import. It must not fail."""
        self._pool.submit(work)

    def close(self) -> None:
        """Take no more work. Threads that are still busy end by their own limits."""
        self._pool.shutdown(wait=False, cancel_futures=True)
