"""A database over the years: damage set aside, backups under load, growth bounded, room given back, a full
disk, older files."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from agent.history import User
from agent.tools.masking import Masker
from bridge import cli_store
from bridge.config import Config, load_config
from bridge.store import sqlite as sqlite_store
from bridge.store.base import USAGE_SECONDS, StoreError, UsageRow
from bridge.store.sqlite import SqliteStore
from bridge.store.sqlite_schema import MIGRATIONS, migrate
from bridge.store.sqlite_upkeep import backup, compact, damage, damaged_files
from channels.base import Address, Inbound, Sender
from tests.harness import ROOT, clean_environ, write_config


def message(id: str, chat: str = "7") -> Inbound:
    return Inbound(id=id, address=Address("telegram", chat), sender=Sender("42"), text="hello")


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def filled(path: Path, sessions: int = 20, size: int = 4000) -> None:
    async with opened(path) as store:
        for n in range(sessions):
            await store.history.append(f"s{n}", [User("r", "x" * size)] * 5)


def trample(path: Path, first_page: int = 8) -> None:
    """Write over everything but the first pages, as a failing disk may."""
    with path.open("r+b") as file:
        for page in range(first_page, path.stat().st_size // 4096):
            file.seek(page * 4096)
            file.write(b"\xff" * 4096)


# -- damage ------------------------------------------------------------------------------------------


async def test_a_damaged_file_is_set_aside_whole_and_told_and_a_new_one_begun(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "causeway.db"
    await filled(path)
    trample(path)
    damaged = path.read_bytes()
    (tmp_path / "causeway.db-wal").write_bytes(b"")
    async with opened(path, sole=True, clock=lambda: 0.0) as store:
        assert await store.accept(message("1"), "s", 10) == "accepted"
        told = store.notice()
    [aside] = damaged_files(path)
    assert aside.name.startswith("causeway.db.damaged-19")
    assert aside.read_bytes() == damaged
    for words in (str(aside), "restore a backup", "stop the bridge"):
        assert words in told
    assert told in caplog.text
    async with opened(path, sole=True) as store:
        assert store.notice() == ""
        assert len(await store.next("s")) == 1


async def test_damage_that_the_short_look_at_the_start_missed_is_found_beside_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "causeway.db"
    await filled(path)
    async with opened(path, sole=True) as store:
        await store.examine()
        assert store.notice() == ""
    trample(path)
    monkeypatch.setattr("bridge.store.sqlite._CHECK_SECONDS", 0.0)
    async with opened(path, sole=True) as store:
        await store.examine()
        assert "is damaged" in store.notice()
        assert "restore a backup" in store.notice()
        assert store.notice() in caplog.text
    assert damaged_files(path) == [], "nothing is moved under a bridge that works"


async def test_a_long_look_ends_at_once_when_the_bridge_stops(tmp_path: Path) -> None:
    path = tmp_path / "causeway.db"
    await filled(path)
    stop = threading.Event()
    stop.set()
    assert await asyncio.to_thread(damage, path, 3600.0, stop) == ""


async def test_a_second_damaged_file_does_not_take_the_place_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "causeway.db"
    for _ in range(3):
        await filled(path)
        trample(path)
        async with opened(path, sole=True, clock=lambda: 0.0):
            pass
    assert len(damaged_files(path)) == 3


async def test_a_store_that_others_may_have_open_sets_nothing_aside(tmp_path: Path) -> None:
    path = tmp_path / "causeway.db"
    await filled(path)
    trample(path)
    with pytest.raises(StoreError, match="restore a backup"):
        async with opened(path) as store:
            await store.history.load("s0")
    assert damaged_files(path) == []


async def test_a_sound_file_is_found_sound_and_others_files_are_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "causeway.db"
    await filled(path)
    assert damage(path, 10) == ""
    with closing(sqlite3.connect(tmp_path / "photos.db")) as db:
        db.execute("CREATE TABLE photo (name)")
    assert damage(tmp_path / "photos.db", 10) == ""
    (tmp_path / "text").write_bytes(b"this is a text, and a long one at that. " * 200)
    assert damage(tmp_path / "text", 10) == ""


async def test_the_look_through_a_large_file_is_given_up_in_time_and_condemns_nothing(tmp_path: Path) -> None:
    path = tmp_path / "causeway.db"
    await filled(path, sessions=300, size=20_000)
    began = time.perf_counter()
    assert damage(path, 0.0) == ""
    assert time.perf_counter() - began < 2
    async with opened(path, sole=True) as store:
        assert len(await store.sessions()) == 300


# -- backup ------------------------------------------------------------------------------------------


async def test_a_backup_made_under_writes_is_one_moment_of_the_database(tmp_path: Path) -> None:
    path, copy = tmp_path / "causeway.db", tmp_path / "backups" / "copy.db"
    await filled(path, sessions=200, size=10_000)
    async with opened(path) as store:
        stopping = False
        written = 0

        async def write() -> None:
            nonlocal written
            while not stopping:
                # Both or neither: a copy of two moments would have one without the other.
                await store.accept(message(str(written)), "pair", 10**6)
                await store.history.append("pair", [User("r", f"{written}a"), User("r", f"{written}b")])
                written += 1

        writing = asyncio.create_task(write())
        while written < 20:
            await asyncio.sleep(0)
        before = written
        size = await asyncio.to_thread(backup, path, copy)
        after = written
        stopping = True
        await writing
    assert after > before  # writing went on meanwhile
    assert size == copy.stat().st_size > 1_000_000
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert [one.name for one in copy.parent.iterdir()] == ["copy.db"]
    restored = tmp_path / "elsewhere" / "causeway.db"
    restored.parent.mkdir()
    copy.rename(restored)
    async with opened(restored, sole=True) as store:
        texts = [entry.text for entry in await store.history.load("pair") if isinstance(entry, User)]
        ids = [w.inbound.id for w in await store.next("pair", 10**6)]
        assert texts == [f"{n}{part}" for n in range(len(texts) // 2) for part in "ab"]
        assert before <= len(texts) // 2 <= len(ids) <= after + 1
        assert len(await store.sessions()) == 201
        assert await store.accept(message("0"), "pair", 10) == "seen"


async def test_a_backup_is_refused_with_its_reason_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "causeway.db"
    with pytest.raises(StoreError, match=r"no database .* yet"):
        backup(path, tmp_path / "a.db")
    await filled(path)
    (tmp_path / "there.db").write_text("mine")
    with pytest.raises(StoreError, match="is there already"):
        backup(path, tmp_path / "there.db")
    assert (tmp_path / "there.db").read_text() == "mine"
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be written"):
        backup(path, tmp_path / "file" / "a.db")
    with closing(sqlite3.connect(tmp_path / "photos.db")) as db:
        db.execute("CREATE TABLE photo (name)")
    with pytest.raises(StoreError, match="no database of Causeway"):
        backup(tmp_path / "photos.db", tmp_path / "b.db")
    trample(path)
    with pytest.raises(StoreError, match="damaged"):
        backup(path, tmp_path / "c.db")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["causeway.db", "file", "photos.db", "there.db"]


# -- growth ------------------------------------------------------------------------------------------


async def test_what_is_forgotten_gives_its_room_back_to_the_disk(tmp_path: Path) -> None:
    path, now = tmp_path / "causeway.db", 1_000_000.0
    async with opened(path, clock=lambda: now) as store:
        for n in range(60):
            await store.history.append(f"s{n}", [User("r", "x" * 40_000)] * 10)
        pages = await store._reader.run(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
        full = pages * 4096
        assert full > 20_000_000
        now += 1000
        while await store.forget_sessions(now - 10):
            pass
        for _ in range(3):
            await store.tidy()
    assert path.stat().st_size < full / 3
    assert damage(path, 10) == ""


async def test_a_session_active_while_sessions_are_forgotten_stays(tmp_path: Path) -> None:
    now = 1000.0
    async with opened(tmp_path / "causeway.db", clock=lambda: now) as store:
        await store.history.append("s", [User("r", "old")])
        now = 5000.0
        forgetting = asyncio.create_task(store.forget_sessions(4000.0))
        await store.history.append("s", [User("r", "new")])  # handed in before the deletion
        assert await forgetting == []
        assert len(await store.history.load("s")) == 2


async def test_logs_are_cut_to_their_newest_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "LOG_MOST", 10)
    async with opened(tmp_path / "causeway.db") as store:
        state, other = store.channel_state("web"), store.channel_state("other")
        for n in range(25):
            await state.append("long", str(n), {"n": n})
        for n in range(8):
            await state.append("short", str(n), {})
            await other.append("long", str(n), {})
        await store.tidy()
        assert [e.id for e in await state.read("long")] == [str(n) for n in range(15, 25)]
        assert len(await state.read("short")) == len(await other.read("long")) == 8


async def test_sums_of_use_are_kept_for_more_than_a_year_and_not_for_ever(tmp_path: Path) -> None:
    now = 1_800_000_000.0
    async with opened(tmp_path / "causeway.db", clock=lambda: now) as store:
        days = [time.strftime("%Y-%m-%d", time.gmtime(now - d * 86_400)) for d in (0, 395, 405)]
        assert USAGE_SECONDS == 400 * 86_400
        await store.add_usage([UsageRow(day, "s", "t", "c", "p", "model", "m", 1) for day in days])
        await store.tidy()
        assert [row.day for row in await store.usage("")] == sorted(days[:2])


async def test_a_clock_that_jumps_back_leaves_sessions_and_order_as_they_are(tmp_path: Path) -> None:
    now = 1_000_000.0
    async with opened(tmp_path / "causeway.db", clock=lambda: now) as store:
        await store.accept(message("1"), "s", 10)
        now = 5.0
        await store.accept(message("2"), "s", 10)
        await store.history.append("s", [User("r", "x")])
        assert await store.accept(message("1"), "s", 10) == "seen"
        assert [w.inbound.id for w in await store.next("s", 9)] == ["1", "2"]
        now = 1_000_010.0
        await store.accept(message("3"), "s", 10)
        assert await store.forget_sessions(1_000_000.0) == []


# -- older files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
async def test_a_file_of_an_older_version_is_brought_up_to_date_with_all_it_holds(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "causeway.db"
    with monkeypatch.context() as patch, closing(sqlite3.connect(path, isolation_level=None)) as db:
        patch.setattr("bridge.store.sqlite_schema.MIGRATIONS", MIGRATIONS[:version])
        migrate(db, path)
        entry = '{"v":1,"kind":"user","run":"r","text":"old","images":[],"messages":[]}'
        db.execute("INSERT INTO history (session, seq, entry) VALUES ('s', 1, ?)", (entry,))
        db.execute("INSERT INTO setting VALUES ('scope', 'key', '1')")
    async with opened(path, sole=True) as store:
        assert await store.history.load("s") == [User("r", "old")]
        assert await store.get_setting("scope", "key") == 1
        assert await store.forget_sessions(time.time() - 3600) == []
        assert await store.forget_sessions(time.time() + 3600) == ["s"]


async def test_compacting_makes_an_older_file_small_and_able_to_give_room_back(tmp_path: Path) -> None:
    path = tmp_path / "causeway.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        migrate(db, path)  # without incremental vacuum, as early versions made it
    await filled(path, sessions=50, size=20_000)
    async with opened(path) as store:
        while await store.forget_sessions(time.time() + 10):
            pass
        await store.history.append("s", [User("r", "kept")])
        await store.tidy()
    before, after = compact(path)
    assert before > 4_000_000
    assert after < 300_000
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA auto_vacuum").fetchone()[0] == 2
    async with opened(path, sole=True) as store:
        assert await store.history.load("s") == [User("r", "kept")]


# -- a full disk -------------------------------------------------------------------------------------

_FULL_DISK = """
import asyncio, resource, sys
from pathlib import Path
from agent.history import User
from bridge.store.base import StoreError
from bridge.store.sqlite import SqliteStore
from channels.base import Address, Inbound, Sender

def most(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def message(n):
    return Inbound(str(n), Address("telegram", "7"), Sender("42"), "hello")

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    await store.open()
    kept = 0
    most(400_000)
    try:
        while True:
            assert await store.accept(message(kept), "s", 10**6) == "accepted"
            await store.history.append("s", [User("r", "x" * 2000)])
            kept += 1
    except StoreError as error:
        print(error)
    long = "x" * 300_000
    for call in (store.history.append("s", [User("r", long)]), store.put_setting("a", "b", long)):
        try:
            await call
            print("kept?!")
        except StoreError:
            pass
    assert len(await store.next("s", 10**6)) in (kept, kept + 1)
    most(resource.RLIM_INFINITY)
    assert await store.accept(message(kept), "s", 10**6) in ("accepted", "seen")
    waiting = await store.next("s", 10**6)
    assert [w.inbound.id for w in waiting] == [str(n) for n in range(kept + 1)], len(waiting)
    assert kept <= len(await store.history.load("s")) <= kept + 1
    await store.close()
    print("went on after", kept)

asyncio.run(main())
"""


def test_a_disk_that_takes_no_more_is_told_and_the_store_goes_on_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    done = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(path)],
        capture_output=True, text=True, timeout=60, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told, end = done.stdout.splitlines()
    assert str(path) in told
    assert "disk" in told
    assert end.startswith("went on after")
    assert damage(path, 10) == ""


# -- the command -------------------------------------------------------------------------------------


def _options(*words: str) -> argparse.Namespace:
    top = argparse.ArgumentParser()
    cli_store.add_parser(top.add_subparsers(), [])
    return top.parse_args(["backup", *words])


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config(write_config(tmp_path, {}), clean_environ(tmp_path, LANG="en_US.UTF-8"))


async def _backup(config: Config, *words: str) -> int:
    return await cli_store.run(config, _options(*words), Masker([]))


async def test_the_command_copies_beside_a_running_bridge_and_says_how_to_restore(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config.workspace / "causeway.db"
    async with opened(path) as store:
        await store.history.append("s", [User("r", "x")])
        with (config.workspace / "causeway.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert await _backup(config) == 0
            said = capsys.readouterr().out
            [file] = (config.workspace / "backups").iterdir()
            assert str(file) in said
            assert str(path) in said
            assert await _backup(config, str(config.workspace / "mine.db"), "--compact") == 1
            assert "--compact" in capsys.readouterr().err
            assert not (config.workspace / "mine.db").exists()
    assert await _backup(config, str(config.workspace / "mine.db"), "--compact") == 0
    assert "MiB, now" in capsys.readouterr().out
    assert await _backup(config, str(config.workspace / "mine.db")) == 1
    assert "is there already" in capsys.readouterr().err
    async with opened(config.workspace / "mine.db", sole=True) as copy:
        assert await copy.history.load("s") == [User("r", "x")]


async def test_the_command_sends_people_with_redis_to_redis(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    config.store.url = "redis://localhost"
    assert await _backup(config) == 1
    assert "append-only" in capsys.readouterr().err


def test_both_languages_say_the_same_values() -> None:
    import string

    from bridge.store.redis_check import TEXTS

    for key, (english, chinese) in {**TEXTS, **cli_store.TEXTS}.items():
        fields = [
            {name for _, name, _, _ in string.Formatter().parse(one) if name} for one in (english, chinese)
        ]
        assert {name.removesuffix("_zh") for name in fields[0]} == {
            n.removesuffix("_zh") for n in fields[1]
        }, key
    assert os.sep  # the texts are read on every system
