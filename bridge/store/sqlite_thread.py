"""A thread that owns one SQLite connection and does the work handed to it in order, many pieces at a time.

The event loop never waits for the disk: `run` puts a function into a queue and awaits its result. All that
waits in the queue becomes one transaction, so that a thousand chats that write at once pay for a few
commits, and the results of a batch come back to the loop in one wake-up.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from bridge.store.base import StoreError

log = logging.getLogger("causeway.store")

T = TypeVar("T")
Work: TypeAlias = Callable[[sqlite3.Connection], T]
_Item: TypeAlias = "tuple[Work[Any], asyncio.Future[Any]]"
_Outcome: TypeAlias = "tuple[asyncio.Future[Any], Any, Exception | None]"

MAX_BATCH = (
    256  # pieces of work in one transaction: at most some 10 ms, so that the first is not kept waiting
)
MAX_QUEUED = 4096
STOP_BUSY_SECONDS = 10.0
_WARN_BUSY_SECONDS = 5.0
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}

_LOCKED = "Another program keeps it locked. Close that program (a database browser, a backup)."
_CURES = {
    sqlite3.SQLITE_FULL: "The disk (or quota) is full. Free some space; the bridge goes on by itself.",
    sqlite3.SQLITE_READONLY: "It may only be read. Give the bridge's user the right to write to it.",
    sqlite3.SQLITE_PERM: "Access is denied. Give the bridge's user the right to read and write it.",
    sqlite3.SQLITE_CANTOPEN: "It cannot be opened. Check that the folder exists and may be written to.",
    sqlite3.SQLITE_IOERR: "The disk reported an error. Check the disk, its free space and the system log.",
    sqlite3.SQLITE_NOTADB: "It is no SQLite database. Move it away to start with a new one, or "
    "restore a backup.",
    sqlite3.SQLITE_CORRUPT: "It is damaged. Stop the bridge, keep a copy, then restore a backup or move the "
    "file (with its -wal and -shm) away to start with a new one.",
}  # fmt: skip


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code (the low byte of the extended one); 0 when the error carries none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else holds a lock: trying again later helps."""
    return primary_code(error) in _BUSY


def store_error(error: sqlite3.Error, path: Path) -> StoreError:
    """Say what failed, why, and what an admin can do."""
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return StoreError(f"The database {path} cannot be used ({name}: {error}). {_cure(error)}")


def _cure(error: sqlite3.Error) -> str:
    if is_busy(error):
        return _LOCKED
    return _CURES.get(primary_code(error), "This is a fault of the bridge or of the file; see the log.")


class SqliteThread:
    """Runs reads, each on its own (see `SqliteWriter` for writes).

    Holds at most `max_queued` pieces of work; further callers wait for room. A database that is locked by
    another process is tried again for `busy_limit` seconds, then the work fails with StoreError.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        connect: Callable[[], sqlite3.Connection],
        *,
        busy_limit: float = 120.0,
        max_queued: int = MAX_QUEUED,
    ) -> None:
        #: Why the last work failed, if that was the database's own fault; empty once work goes through.
        self.fault = ""
        self._name = name
        self._path = path
        self._connect = connect
        self._busy_limit = busy_limit
        self._max_queued = max_queued
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._queued = 0
        self._room: deque[asyncio.Future[None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Future[None] | None = None
        self._stopping = False

    @property
    def started(self) -> bool:
        return self._thread is not None

    async def start(self) -> None:
        """Open the connection in the thread. Raises StoreError; nothing is left running then."""
        if self._stopping:
            raise self._closed()
        loop = self._loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = loop.create_future()
        self._ended = loop.create_future()
        # A daemon, so that a bridge that dies without `stop` does not hang: what is queued then was promised
        # to nobody.
        self._thread = threading.Thread(target=self._main, args=(started,), name=self._name, daemon=True)
        self._thread.start()
        await started

    async def run(self, work: Work[T]) -> T:
        """Do a piece of work in the thread; a write is committed when this returns.

        Work may be done a second time after a rollback, so it must have no effect outside the connection.
        Cancelling the caller does not take back what was queued. Raises StoreError.
        """
        while self._queued >= self._max_queued and not self._stopping:
            await self._wait_for_room()
        loop = self._loop
        if self._stopping or loop is None:
            raise self._closed()
        future: asyncio.Future[Any] = loop.create_future()
        self._queued += 1
        self._queue.put((work, future))
        return cast(T, await future)

    async def stop(self, timeout: float = 30.0) -> None:
        """Finish what is queued, then close the connection. Raises StoreError when that takes too long."""
        if self._ended is None or self._thread is None:
            self._stopping = True
            return
        if not self._stopping:
            self._stopping = True
            self._queue.put(None)
            self._wake(len(self._room))
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self._ended)
        except TimeoutError:
            raise StoreError(
                f"The database {self._path} did not finish its writes within {timeout:.0f} s. "
                "Check the disk; writes that had not returned may be missing."
            ) from None
        self._thread.join(timeout=1.0)  # it has nothing left to do but return

    def _closed(self) -> StoreError:
        return StoreError(f"The database {self._path} is closed: the bridge is stopping or never opened it.")

    async def _wait_for_room(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake(1)  # the room that was meant for this caller goes to the next
            raise

    def _wake(self, count: int) -> None:
        while count > 0 and self._room:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def _resolve(self, outcomes: list[_Outcome]) -> None:
        """On the loop: hand a batch's results to their callers."""
        self._queued -= len(outcomes)
        for future, value, error in outcomes:
            if future.done():  # its caller was cancelled
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)
        if self._room:
            self._wake(self._max_queued - self._queued)

    # -- in the thread -------------------------------------------------------------------------------

    def _tell(self, call: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop is closed: nobody waits any more
            log.warning("The event loop ended before the database thread %s.", self._name)

    def _main(self, started: asyncio.Future[None]) -> None:
        try:
            connection = self._patiently(None, self._connect)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller of `start` must get it instead of a hang
            if isinstance(error, sqlite3.Error):
                error = store_error(error, self._path)
            self._stopping = True
            self._tell(_settle, started, error)
            self._tell(_settle, self._ended, None)
            return
        self._tell(_settle, started, None)
        try:
            self._serve(connection)
        finally:
            connection.close()
            self._tell(_settle, self._ended, None)

    def _serve(self, connection: sqlite3.Connection) -> None:
        get, get_nowait = self._queue.get, self._queue.get_nowait
        going = True
        while going:
            batch: list[_Item] = []
            item = get()
            try:
                while item is not None:
                    batch.append(item)
                    if len(batch) == MAX_BATCH:
                        break
                    item = get_nowait()
                else:
                    going = False  # nothing is queued behind the None of `stop`
            except queue.Empty:
                pass
            if batch:
                try:
                    outcomes = self._execute(connection, batch)
                except Exception as error:  # not even a rollback worked: the callers must not wait for ever
                    log.exception("The database thread %s failed.", self._name)
                    failure = StoreError(f"The database {self._path} cannot be used: {error}. See the log.")
                    outcomes = [(future, None, failure) for _, future in batch]
                self._tell(self._resolve, outcomes)

    def _execute(self, connection: sqlite3.Connection, batch: list[_Item]) -> list[_Outcome]:
        return [self._one(connection, item) for item in batch]

    def _one(self, connection: sqlite3.Connection, item: _Item) -> _Outcome:
        work, future = item
        try:
            value = self._patiently(connection, lambda: work(connection))
        except sqlite3.Error as error:
            self._failed(error)
            return future, None, store_error(error, self._path)
        except Exception as error:  # noqa: BLE001 - the caller's fault, never the thread's end
            return future, None, error
        self.fault = ""
        return future, value, None

    def _failed(self, error: sqlite3.Error) -> None:
        """Note the fault for whoever asks how the store is."""
        if is_busy(error) or primary_code(error) in _CURES:
            self.fault = f"{getattr(error, 'sqlite_errorname', 'SQLite')}: {error}. {_cure(error)}"

    def _patiently(self, connection: sqlite3.Connection | None, attempt: Callable[[], T]) -> T:
        """Try again while another process holds a lock; each try waits for the connection's timeout."""
        began = time.monotonic()
        warned = False
        while True:
            try:
                return attempt()
            except sqlite3.OperationalError as error:
                if connection is not None:
                    _roll_back(connection)
                waited = time.monotonic() - began
                limit = min(self._busy_limit, STOP_BUSY_SECONDS) if self._stopping else self._busy_limit
                if not is_busy(error) or waited >= limit:
                    raise
                if waited >= _WARN_BUSY_SECONDS and not warned:
                    warned = True
                    self._failed(error)
                    log.warning(
                        "The database %s has been locked by another program for %.0f s; the bridge waits.",
                        self._path,
                        waited,
                    )


class SqliteWriter(SqliteThread):
    """Runs writes. A batch is one transaction; if any piece of it fails, the batch is rolled back and each
    piece gets a transaction of its own, so that one that fails harms no other."""

    def _execute(self, connection: sqlite3.Connection, batch: list[_Item]) -> list[_Outcome]:
        def together() -> list[_Outcome]:
            connection.execute("BEGIN IMMEDIATE")
            outcomes: list[_Outcome] = [(future, work(connection), None) for work, future in batch]
            connection.execute("COMMIT")
            return outcomes

        try:
            outcomes = self._patiently(connection, together)
        except Exception as error:  # noqa: BLE001 - each runs alone below, where it is reported
            _roll_back(connection)
            if isinstance(error, sqlite3.Error) and is_busy(error):  # all have waited their time already
                self._failed(error)
                return [(future, None, store_error(error, self._path)) for _, future in batch]
        else:
            self.fault = ""
            return outcomes
        return [self._one(connection, item) for item in batch]

    def _one(self, connection: sqlite3.Connection, item: _Item) -> _Outcome:
        work, future = item

        def alone(inner: sqlite3.Connection) -> Any:
            inner.execute("BEGIN IMMEDIATE")
            value = work(inner)
            inner.execute("COMMIT")
            return value

        outcome = super()._one(connection, (alone, future))
        _roll_back(connection)
        return outcome


def _roll_back(connection: sqlite3.Connection) -> None:
    """Leave the transaction if one is open (SQLite itself has left it after some errors)."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
