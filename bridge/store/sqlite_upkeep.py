"""A database file over the years: looked through at start, set aside when it is damaged, copied while it is
in use, and made small. All of it blocks; the callers are threads."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

from bridge.store.base import StoreError
from bridge.store.sqlite_schema import APPLICATION_ID
from bridge.store.sqlite_thread import primary_code, store_error

_DAMAGED = ".damaged-"
_BUSY_SECONDS = 30.0
#: Free pages that are left in the file for what comes next, and how many go back to the disk in one step.
KEPT_PAGES = 1000
STEP_PAGES = 64


def damage(path: Path, seconds: float, stop: threading.Event | None = None) -> str:
    """What is wrong inside one of our files; empty when nothing was found in that many seconds, or until
    `stop` was set.

    A file that is none of ours, or no database at all, is not judged: opening it says so. Raises
    sqlite3.Error when the file cannot be looked at (locked, unreadable).
    """
    late, done, stop = threading.Event(), threading.Event(), stop or threading.Event()
    with closing(sqlite3.connect(path, timeout=1.0, check_same_thread=False)) as connection:

        def give_up() -> None:
            stop.wait(seconds)
            if not done.is_set():
                late.set()
                connection.interrupt()

        timer = threading.Thread(target=give_up, name="store-check", daemon=True)
        try:
            if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                return ""
            timer.start()
            found = "; ".join(row[0] for row in connection.execute("PRAGMA quick_check(3)"))
        except sqlite3.DatabaseError as error:
            if late.is_set() or primary_code(error) == sqlite3.SQLITE_NOTADB:
                return ""
            if primary_code(error) != sqlite3.SQLITE_CORRUPT:
                raise
            return str(error)
        finally:
            done.set()
            stop.set()
            if timer.is_alive():
                timer.join()  # else it might interrupt a connection that is closed
    # What a check that was cut short has to say means nothing.
    return "" if late.is_set() or found == "ok" else found


def set_aside(path: Path, now: float) -> Path:
    """Rename a damaged file, with its log, so that a new one can be begun. Raises OSError."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    aside = path.with_name(f"{path.name}{_DAMAGED}{stamp}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}{_DAMAGED}{stamp}-{number}")
    path.rename(aside)
    for tail in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + tail).rename(aside.with_name(aside.name + tail))
    return aside


def damaged_files(path: Path) -> list[Path]:
    """Files that were set aside beside `path`, oldest first: for `doctor`."""
    found = path.parent.glob(f"{path.name}{_DAMAGED}*")
    return sorted(one for one in found if not one.name.endswith(("-wal", "-shm")))


def backup(path: Path, target: Path) -> int:
    """Copy the database as it is at one moment, while others read and write it; returns the copy's bytes.

    The copy is one file, checked, and has its name only when it is whole. Raises StoreError.
    """
    if target.exists():
        raise StoreError(f"{target} is there already. Name another file, or move that one away.")
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            with closing(_ours(path)) as source, closing(sqlite3.connect(part)) as copy:
                # In one step: a copy in many is begun anew whenever somebody writes. In a write-ahead log the
                # long read holds nobody up.
                source.backup(copy, pages=-1)
                copy.execute("PRAGMA journal_mode = DELETE")
                found = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise StoreError(f"The database {path} is damaged ({found}), so its copy is of no use.")
            with part.open("rb+") as file:
                os.fsync(file.fileno())
            part.rename(target)
        finally:
            part.unlink(missing_ok=True)
    except sqlite3.Error as error:
        raise store_error(error, path) from None
    except OSError as error:
        raise StoreError(
            f"The backup {target} cannot be written: {error.strerror}. Choose another place, or free space."
        ) from None
    return target.stat().st_size


def compact(path: Path) -> tuple[int, int]:
    """Write the file anew without its free room, and let it give room back from now on; bytes before and
    after. Nobody may write meanwhile: the bridge must not run. Raises StoreError."""
    before = path.stat().st_size
    try:
        with closing(_ours(path)) as connection:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error as error:
        raise store_error(error, path) from None
    return before, path.stat().st_size


def _ours(path: Path) -> sqlite3.Connection:
    if not path.exists():
        raise StoreError(f"There is no database {path} yet. The bridge makes it when it first starts.")
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise StoreError(f"The file {path} is no database of Causeway.")
    except BaseException:
        connection.close()
        raise
    return connection


def give_back(connection: sqlite3.Connection) -> bool:
    """Give some free pages back to the disk; True while there is more to give. For the writer's thread."""
    free = int(connection.execute("PRAGMA freelist_count").fetchone()[0])
    if free <= KEPT_PAGES or connection.execute("PRAGMA auto_vacuum").fetchone()[0] != 2:  # 2: incremental
        return False
    for _ in range(min(STEP_PAGES, free - KEPT_PAGES)):
        # One page each: this pragma gives an answer without columns for each page, and Python's sqlite3 ends
        # a statement after the first of those.
        connection.execute("PRAGMA incremental_vacuum(1)").close()
    return free - STEP_PAGES > KEPT_PAGES
