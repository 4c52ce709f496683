"""Writes to a terminal or pipe from a thread of its own.

A terminal can be paused and a pipe's reader can be slow: neither may stall the event loop, and a write that
hangs may not keep the process from ending (so it is a daemon thread, and it writes to the descriptor: the
lock of `sys.stdout` would be missed at exit).
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading

log = logging.getLogger("causeway.terminal")

_MAX_WAITING = 1000
#: C0 and C1 controls but newline and tab: what a model or a tool says must not steer the terminal.
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (ord("\n"), ord("\t"))}


def harmless(text: str) -> str:
    """Without control characters and line separators that a terminal would obey."""
    return text.translate(_CONTROLS)


class Screen:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: queue.Queue[tuple[bytes, asyncio.Future[None] | None] | None] = queue.Queue(
            _MAX_WAITING
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Nobody reads any more.
        self.broken = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._write_all, name="terminal output", daemon=True).start()

    def put(self, text: str) -> None:
        """Write soon. Dropped when very much waits: only for what is a courtesy."""
        try:
            self._waiting.put_nowait((text.encode("utf-8", "replace"), None))
        except queue.Full:
            log.debug("the terminal is slow; a line about progress is left out")

    async def write(self, text: str) -> None:
        """Returns when the text was written (or nobody reads any more)."""
        assert self._loop is not None, "start first"
        if self.broken:
            return
        written: asyncio.Future[None] = self._loop.create_future()
        item = (text.encode("utf-8", "replace"), written)
        while True:
            try:
                self._waiting.put_nowait(item)
                break
            except queue.Full:
                await asyncio.sleep(0.05)
        await written

    def stop(self) -> None:
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            log.debug("the terminal does not take its output; it is left")

    def _write_all(self) -> None:
        assert self._loop is not None
        while (item := self._waiting.get()) is not None:
            data, written = item
            try:
                while data and not self.broken:
                    data = data[os.write(self._descriptor, data) :]
            except OSError as error:
                log.info("output ended: %s", error)
                self.broken = True
            if written is not None:
                try:
                    self._loop.call_soon_threadsafe(_settle, written)
                except RuntimeError:  # the loop is closed: nobody waits
                    return


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
