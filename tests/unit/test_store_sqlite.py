"""The SQLite store in bad circumstances: locks, kills, damage, full disks, foreign and newer files."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random

import pytest

from agent.history import User
from bridge.store import open_store, sqlite_path
from bridge.store.base import StoredReply, StoreError
from bridge.store.sqlite import SqliteStore
from bridge.store.sqlite_schema import MIGRATIONS
from bridge.store.sqlite_thread import SqliteThread, SqliteWriter
from channels.base import Address, Inbound, Sender


def message(id: str, chat: str = "7") -> Inbound:
    return Inbound(id=id, address=Address("telegram", chat), sender=Sender("42"), text="hello")


@asynccontextmanager
async def opened(path: Path, **options: float) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, **options)  # type: ignore[arg-type]
    await store.open()
    try:
        yield store
    finally:
        await store.close()


_HOLD = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
db.execute("REPLACE INTO setting (scope, key, value) VALUES ('other', 'program', '1')")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
db.execute("COMMIT")
"""


@contextmanager
def another_program_writes(path: Path, seconds: float) -> Iterator[None]:
    """A second process holds a write transaction for so long."""
    child = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path), str(seconds)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        yield
    finally:
        child.kill()
        child.wait(10)


async def longest_stall(until: asyncio.Event) -> float:
    """The longest time in seconds that the event loop did not get round to this."""
    worst, last = 0.0, time.perf_counter()
    while not until.is_set():
        await asyncio.sleep(0.002)
        now = time.perf_counter()
        worst, last = max(worst, now - last - 0.002), now
    return worst


# -- locks -------------------------------------------------------------------------------------------


async def test_ag_11_eight_chats_are_stored_while_another_process_holds_a_write_transaction(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        done = asyncio.Event()
        stall = asyncio.create_task(longest_stall(done))
        began = time.perf_counter()
        with another_program_writes(path, 3.0):
            # Reading goes on meanwhile.
            async with asyncio.timeout(1):
                assert await store.next("s0") == []
            results = await asyncio.gather(
                *(store.accept(message("1", f"c{n}"), f"s{n}", 10) for n in range(8))
            )
        done.set()
        assert time.perf_counter() - began > 2  # the lock really was in the way
        assert results == ["accepted"] * 8
        # The promise is 50 ms; the rest is for a test machine with too much to do. A loop that waited for the
        # lock itself would stall for a second at least.
        assert await stall < 0.3
        for n in range(8):
            [waiting] = await store.next(f"s{n}")
            await store.take([waiting.seq], f"r{n}")
        assert await store.get_setting("other", "program") == 1


async def test_a_lock_that_never_ends_fails_all_waiting_writes_once_with_the_cure(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path, busy_limit=0.2) as store:
        with another_program_writes(path, 60.0):
            began = time.perf_counter()
            results = await asyncio.gather(
                *(store.put_setting("s", str(n), n) for n in range(20)), return_exceptions=True
            )
            assert time.perf_counter() - began < 5  # not once for each write
            assert all(isinstance(r, StoreError) and "Another program" in str(r) for r in results)
        await store.put_setting("s", "after", 1)
        assert await store.get_setting("s", "after") == 1


async def test_opening_waits_for_another_programs_transaction(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path):
        pass
    with another_program_writes(path, 0.5):
        async with asyncio.timeout(5), opened(path) as store:
            assert await store.get_setting("other", "program") == 1


# -- death at any moment -----------------------------------------------------------------------------

_WRITE_FOR_EVER = """
import asyncio, sys
from pathlib import Path
from agent.history import User
from bridge.store.sqlite import SqliteStore
from channels.base import Address, Inbound, Sender

async def chat(store, name):
    n = 0
    while True:
        inbound = Inbound(str(n), Address("telegram", name), Sender("42"), "hello " * 20)
        assert await store.accept(inbound, name, 10**6) == "accepted"
        await store.history.append(name, [User("r", f"{n}a"), User("r", f"{n}b")])
        sys.stdout.write(f"{name} {n}\\n")
        sys.stdout.flush()
        n += 1

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    await store.open()
    async with asyncio.TaskGroup() as group:
        for n in range(5):
            group.create_task(chat(store, f"{sys.argv[2]}-{n}"))

asyncio.run(main())
"""


async def test_what_was_acknowledged_is_there_after_kill_9(tmp_path: Path) -> None:
    path, random = tmp_path / "store.db", Random(11)
    acknowledged: dict[str, int] = {}
    for life in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", _WRITE_FOR_EVER, str(path), str(life)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        for _ in range(random.randint(5, 400)):
            line = child.stdout.readline()
            assert line, "the writer ended by itself"
            name, n = line.split()
            acknowledged[name] = int(n)
        child.kill()
        # What it had printed before it died was acknowledged as well.
        for line in child.stdout:
            if line.endswith("\n"):
                name, n = line.split()
                acknowledged[name] = int(n)
        child.wait(10)
    async with opened(path) as store:
        assert len(acknowledged) == 20
        for name, last in acknowledged.items():
            ids = [w.inbound.id for w in await store.next(name, 10**6)]
            assert ids == [str(n) for n in range(len(ids))]
            assert len(ids) > last
            texts = [entry.text for entry in await store.history.load(name) if isinstance(entry, User)]
            # Both entries of an append, or none.
            assert texts == [f"{n}{part}" for n in range(len(texts) // 2) for part in "ab"]
            assert len(texts) // 2 > last


# -- one bad write among good ones -------------------------------------------------------------------


async def test_a_write_that_fails_in_a_batch_harms_no_other_and_leaves_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:

        def half_done(db: sqlite3.Connection) -> None:
            db.execute("INSERT INTO setting (scope, key, value) VALUES ('half', 'done', '1')")
            raise KeyError("a fault of the caller")

        def refused(db: sqlite3.Connection) -> None:
            db.execute("INSERT INTO setting (scope, key, value) VALUES ('half', 'done', NULL)")

        results = await asyncio.gather(
            store.put_setting("s", "before", 1),
            store._writer.run(half_done),
            store.put_setting("s", "between", 2),
            store._writer.run(refused),
            store.put_setting("s", "after", 3),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [
            type(None),
            KeyError,
            type(None),
            StoreError,
            type(None),
        ]
        assert [await store.get_setting("s", key) for key in ("before", "between", "after")] == [1, 2, 3]
        assert await store.get_setting("half", "done") is None


async def test_a_full_disk_fails_the_write_and_the_store_goes_on_when_there_is_room(tmp_path: Path) -> None:
    def pages(most: int) -> str:
        return f"PRAGMA max_page_count = {most}"  # SQLite then reports a full disk as the disk itself would

    async with opened(tmp_path / "store.db") as store:
        await store.put_setting("s", "small", 1)
        used = await store._writer.run(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
        await store._writer.run(lambda db: db.execute(pages(used + 4)).fetchone())
        async with asyncio.timeout(10):
            with pytest.raises(StoreError, match=r"full.*Free some space"):
                await store.put_setting("s", "large", "x" * 200_000)
            with pytest.raises(StoreError, match="SQLITE_FULL"):
                await store.history.append("s", [User("r", "y" * 200_000)])
        assert await store.get_setting("s", "small") == 1
        await store._writer.run(lambda db: db.execute(pages(1_000_000)).fetchone())
        await store.put_setting("s", "large", "x" * 200_000)
        assert await store.get_setting("s", "large") == "x" * 200_000


# -- files that cannot be used -----------------------------------------------------------------------


async def refused(path: Path) -> str:
    """What `open` says about a file; the refusal must leave no thread behind."""
    store = SqliteStore(path)
    async with asyncio.timeout(10):
        with pytest.raises(StoreError) as caught:
            await store.open()
        await store.close()
    assert str(path) in str(caught.value)
    return str(caught.value)


async def test_a_newer_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path):
        pass
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 7}")
    db.close()
    before = path.read_bytes()
    text = await refused(path)
    assert "newer version of Causeway" in text
    assert f"format {len(MIGRATIONS) + 7}" in text
    assert path.read_bytes() == before


async def test_another_programs_database_is_refused_and_gets_no_tables(tmp_path: Path) -> None:
    path = tmp_path / "photos.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE photo (name)")
    db.close()
    assert "another program" in await refused(path)
    db = sqlite3.connect(path)
    assert db.execute("SELECT name FROM sqlite_schema").fetchall() == [("photo",)]
    db.close()


async def test_a_file_that_is_no_database_is_refused_with_the_cure(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"this is a text, and a long one at that. " * 200)
    assert "no SQLite database. Move it away" in await refused(path)
    assert path.read_bytes().startswith(b"this is a text")


async def test_damage_inside_the_file_is_told_with_the_cure_and_never_hangs(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        for n in range(200):
            await store.history.append("s", [User("r", f"{n} " * 500)])
    with path.open("r+b") as file:
        for page in range(8, path.stat().st_size // 4096):
            file.seek(page * 4096)
            file.write(b"\xff" * 4096)
    async with asyncio.timeout(10):
        with pytest.raises(StoreError, match=r"damaged.*restore a backup"):
            async with opened(path) as store:
                await store.history.load("s")


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert "cannot be created" in await refused(tmp_path / "file" / "store.db")


_OPEN_ONCE = """
import asyncio, os, sys
from pathlib import Path
from bridge.store.base import StoreError
from bridge.store.sqlite import SqliteStore
if os.geteuid() == 0:  # root may write everywhere, so somebody else has to try
    os.setegid(65534)
    os.seteuid(65534)
async def main():
    try:
        await SqliteStore(Path(sys.argv[1])).open()
    except StoreError as error:
        print(error)
asyncio.run(main())
"""


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_folder_or_file_that_may_only_be_read_is_named(what: str) -> None:
    with tempfile.TemporaryDirectory() as top:  # others may not look into pytest's own folder
        path = Path(top) / "folder" / "store.db"
        path.parent.mkdir()
        if what == "file":
            asyncio.run(_touch(path))
            path.chmod(0o444)
        Path(top).chmod(0o755)
        path.parent.chmod(0o555)
        result = subprocess.run(
            [sys.executable, "-c", _OPEN_ONCE, str(path)], capture_output=True, text=True, timeout=30
        )
        path.parent.chmod(0o755)
    assert str(path) in result.stdout, result.stderr
    assert "right to write" in result.stdout


async def _touch(path: Path) -> None:
    async with opened(path):
        pass


async def test_only_the_bridges_user_can_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "store.db"
    async with opened(path) as store:
        await store.put_setting("s", "k", 1)
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


async def test_what_stands_in_the_file_but_cannot_be_read_is_told_with_the_cure(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        await store.accept(message("1"), "s", 10)
        await store.history.append("s", [User("r", "x")])
        await store._writer.run(lambda db: db.execute("UPDATE inbox SET inbound = '{\"v\": 99}'").rowcount)
        await store._writer.run(lambda db: db.execute("UPDATE entry SET value = '{'").rowcount)
        with pytest.raises(StoreError, match=r"version 99.*backup"):
            await store.next("s")
        with pytest.raises(StoreError, match=r"history of session s.*/new"):
            await store.history.load("s")


# -- the threads -------------------------------------------------------------------------------------


def memory_thread(writes: bool, **options: int) -> SqliteThread:
    kind = SqliteWriter if writes else SqliteThread
    return kind(
        "test",
        Path("memory"),
        lambda: sqlite3.connect(":memory:", isolation_level=None),
        **options,
    )


async def test_a_full_queue_lets_callers_wait_and_all_are_served(tmp_path: Path) -> None:
    thread = memory_thread(writes=True, max_queued=5)
    await thread.start()
    most = 0

    async def call(n: int) -> int:
        nonlocal most
        result = await thread.run(lambda db: n)
        most = max(most, thread._queued)
        return result

    async with asyncio.timeout(10):
        assert await asyncio.gather(*(call(n) for n in range(300))) == list(range(300))
    assert most <= 5
    await thread.stop()


async def test_a_caller_cancelled_while_it_waits_for_room_takes_no_room(tmp_path: Path) -> None:
    thread = memory_thread(writes=False, max_queued=2)
    await thread.start()
    for _ in range(20):
        tasks = [asyncio.ensure_future(thread.run(lambda db: None)) for _ in range(10)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        async with asyncio.timeout(5):
            await asyncio.wait(tasks)
            assert await thread.run(lambda db: "served") == "served"
    assert thread._queued == 0
    await thread.stop()


async def test_callers_who_wait_for_room_when_the_store_closes_are_told(tmp_path: Path) -> None:
    thread = memory_thread(writes=True, max_queued=1)
    await thread.start()
    tasks = [asyncio.ensure_future(thread.run(lambda db: time.sleep(0.05))) for _ in range(6)]
    await asyncio.sleep(0)
    await thread.stop()
    async with asyncio.timeout(5):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[0] is None
    assert all(isinstance(result, StoreError) for result in results[1:])


async def test_a_batch_of_writes_is_one_commit(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        commits = 0

        def count(statement: str) -> None:
            nonlocal commits
            commits += statement == "COMMIT"

        await store._writer.run(lambda db: db.set_trace_callback(count))
        commits = 0
        await asyncio.gather(*(store.put_setting("s", str(n), n) for n in range(200)))
        assert 1 <= commits < 20


@pytest.mark.parametrize("level", ["normal", "full"])
async def test_synchronous_is_set_as_asked(level: str, tmp_path: Path) -> None:
    store = open_store("sqlite:///store.db", tmp_path, synchronous=level)  # type: ignore[arg-type]
    assert isinstance(store, SqliteStore)
    await store.open()
    value = await store._writer.run(lambda db: db.execute("PRAGMA synchronous").fetchone()[0])
    await store.close()
    assert value == {"normal": 1, "full": 2}[level]


async def test_every_lookup_uses_an_index(tmp_path: Path) -> None:
    from bridge.store import sqlite, sqlite_state

    found = {**vars(sqlite), **vars(sqlite_state)}
    statements = {
        name: value
        for name, value in found.items()
        if isinstance(value, str) and " WHERE " in value and not name.endswith("_ROWS")  # a part of others
    }
    assert len(statements) >= 6
    async with opened(tmp_path / "store.db") as store:
        await store.open_reply(StoredReply("r", "s", {"address": {"channel": "t"}}, {}, "open"))
        for name, statement in statements.items():
            marks = ("x",) * statement.count("?")
            plan = await store._reader.run(
                lambda db, s=statement, m=marks: db.execute(f"EXPLAIN QUERY PLAN {s}", m).fetchall()  # type: ignore[misc]
            )
            for *_, step in plan:
                whole_table = re.match(r"SCAN (?!json_each|CONSTANT|\()", step) and "INDEX" not in step
                # The oldest marks are the first rows of their table: it is read only as far as the limit.
                oldest = name in ("_FORGET_SEEN", "_REDATE_SEEN") and step == "SCAN seen"
                assert not whole_table or oldest, (name, step)


# -- addresses ---------------------------------------------------------------------------------------


def test_urls_name_files_in_the_workspace_or_absolute_ones() -> None:
    workspace = Path("/w")
    assert sqlite_path("sqlite:///causeway.db", workspace) == Path("/w/causeway.db")
    assert sqlite_path("sqlite:///data/a.db", workspace) == Path("/w/data/a.db")
    assert sqlite_path("sqlite:////var/lib/a.db", workspace) == Path("/var/lib/a.db")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgres://me:hunter2@host/db", "sqlite:///causeway.db"),
        ("sqlite:///", "sqlite:///causeway.db"),
        ("sqlite://", "sqlite:///causeway.db"),
        ("sqlite:///:memory:", "sqlite:///causeway.db"),
        ("causeway.db", "sqlite:///causeway.db"),
    ],
)
def test_other_urls_are_refused_with_what_to_write_and_without_their_secrets(url: str, words: str) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(url, Path("/w"))
    assert words in str(caught.value)
    assert "hunter2" not in str(caught.value)
