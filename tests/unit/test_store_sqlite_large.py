"""A large file: sessions lie together, what is forgotten leaves room, no message waits behind a search."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agent.history import Assistant, User
from bridge.store.sqlite import SqliteStore
from channels.base import Address, Inbound, Sender


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def pragma(path: Path, name: str) -> int:
    db = sqlite3.connect(path)
    try:
        return int(db.execute(f"PRAGMA {name}").fetchone()[0])
    finally:
        db.close()


async def crowd(store: SqliteStore, sessions: int, turns: int) -> None:
    """All sessions talk at the same time."""
    for turn in range(turns):
        pair = [User(f"r{turn}", "How is it?" * 5), Assistant(f"r{turn}", "Fine. " * 30)]
        await asyncio.gather(*(store.history.append(f"s{n}", pair) for n in range(sessions)))


async def test_sessions_that_talked_at_the_same_time_lie_apart_in_the_file(tmp_path: Path) -> None:
    """When every tenth goes, about a tenth of the pages is free: each page held one or two sessions."""
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await crowd(store, 200, 40)
        old = [(f"s{n}",) for n in range(0, 200, 10)]
        age = "UPDATE session SET active = 0 WHERE id = ?"
        await store._writer.run(lambda db: db.executemany(age, old) and None)
    whole, free = pragma(path, "page_count"), pragma(path, "freelist_count")
    async with opened(path) as store:
        gone = await store.forget_sessions(time.time() - 3600)
        assert len(gone) == 20
        assert len(await store.history.load("s1")) == 80
    assert pragma(path, "freelist_count") - free > 0.07 * whole


async def test_waking_a_long_session_reads_a_few_pages(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await crowd(store, 100, 100)
        read = 0

        def count() -> int:
            nonlocal read
            read += 1
            return 0

        # Steps of SQLite's machine, in tens: loading the end does not depend on what stands before it.
        await store._reader.run(lambda db: db.set_progress_handler(count, 10))
        assert len((await store.history.tail("s7", 20)).entries) == 20
        tail, read = read, 0
        assert len(await store.history.load("s7")) == 200
        assert read > 5 * tail


async def test_no_message_waits_behind_a_search_of_the_file(tmp_path: Path) -> None:
    started, free = threading.Event(), threading.Event()

    def search(db: sqlite3.Connection) -> None:
        started.set()
        free.wait(20)

    async with opened(tmp_path / "store.db") as store:
        long = asyncio.create_task(store._search(search))
        await asyncio.to_thread(started.wait, 10)
        listing = asyncio.create_task(store.usage("2026-01-01"))
        inbound = Inbound("1", Address("telegram", "7"), Sender("42"), "hello")
        assert await store.accept(inbound, "s", 10) == "accepted"
        assert [one.inbound for one in await store.next("s")] == [inbound]
        await store.history.append("s", [User("r", "hello")])
        assert (await store.history.tail("s", 10)).entries == [User("r", "hello")]
        assert not long.done()
        assert not listing.done()
        free.set()
        await long
        assert await listing == []
