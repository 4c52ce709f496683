"""The store fails while the bridge runs: a full disk, a lock, no right to write. Whatever it is, nothing is
acknowledged that is not kept, the process lives and says what is wrong, and afterwards each message is
answered once."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from agent.events import TextDelta
from bridge import delivery as delivery_module
from bridge.delivery import Delivery
from bridge.store.sqlite import SqliteStore
from channels.base import Address, Chunk, Limits, Outbound, ReplyRef
from channels.telegram import polling
from tests.chaos.faults_support import at_start, bound_by_modes, echo, limit, page, ready, running, telegram
from tests.fakes.channel import Room, RoomConfig
from tests.fakes.llm import Call, Say, ScriptedModel, Seen
from tests.fakes.redis_server import RedisServer
from tests.fakes.telegram import FakeTelegram
from tests.harness import ROOT, bridge, clean_environ, write_config


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram() as made:
        yield made


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel(echo).running() as made:
        yield made


def asked(model: ScriptedModel) -> list[str]:
    return [seen.last_user for seen in model.seen]


# -- a full disk -----------------------------------------------------------------------------------------


async def test_on_a_full_disk_messages_stay_at_the_platform_and_are_answered_once_when_there_is_room(
    tmp_path: Path, fake: FakeTelegram, model: ScriptedModel
) -> None:
    async with running(tmp_path, telegram(fake, model)) as process:
        fake.say(1, "before")
        await fake.wait_for(lambda: fake.chat(1).texts == ["re before"], 20)
        limit(process, resource.RLIMIT_FSIZE, 1)  # no file takes another byte
        fake.say(1, "one")
        fake.say(1, "two")
        fake.say(2, "three")
        polls = len(fake.called("getUpdates"))
        await fake.wait_for(lambda: len(fake.called("getUpdates")) >= polls + 2, 20)
        await ready(process, lambda status, said: status == 503 and "disk" in said["store"]["reason"])
        assert (await page(process, "/healthz"))[0] == 200
        assert [u["message"]["text"] for u in fake.updates] == ["one", "two", "three"]
        assert asked(model) == ["before"]
        limit(process, resource.RLIMIT_FSIZE, -1)
        await fake.wait_for(lambda: len(fake.chat(1).texts) == 3 and fake.chat(2).texts, 30)
        await ready(process, lambda status, said: status == 200 and said["store"]["ok"])
        assert fake.chat(1).texts == ["re before", "re one", "re two"]
        assert fake.chat(2).texts == ["re three"]
        assert sorted(asked(model)) == ["before", "one", "three", "two"]
        assert "Free some space" in process.output or "free space" in process.output
        assert process.output.count("could not be taken") <= 5, "the log fills the disk"


async def test_a_run_that_meets_a_full_disk_goes_on_when_there_is_room(
    tmp_path: Path, fake: FakeTelegram, model: ScriptedModel
) -> None:
    gate = asyncio.Event()
    model.script = lambda seen: Say("a long answer", gate=gate)
    async with running(tmp_path, telegram(fake, model)) as process:
        fake.say(1, "hello")
        await model.until(lambda: len(model.seen) == 1, 20)
        limit(process, resource.RLIMIT_FSIZE, 1)
        gate.set()
        await process.until(lambda: "session waits for the store" in process.output)
        limit(process, resource.RLIMIT_FSIZE, -1)
        await fake.wait_for(lambda: fake.chat(1).texts, 30)
        fake.say(1, "and now?")
        await fake.wait_for(lambda: len(fake.chat(1).texts) == 2, 20)
        assert fake.chat(1).texts == ["a long answer"] * 2


def test_a_full_disk_at_the_start_is_told_and_the_next_start_finds_nothing_half_made(tmp_path: Path) -> None:
    code = (
        "import resource, sys\nfrom bridge.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))\nsys.exit(main())\n"
    )
    config = write_config(tmp_path, {})
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "--config", str(config)],
        capture_output=True, text=True, timeout=60, cwd=tmp_path, env=clean_environ(tmp_path),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "space" in done.stderr
    assert "Traceback" not in done.stderr
    asyncio.run(_starts(tmp_path))


async def _starts(folder: Path) -> None:
    async with bridge(folder, {}) as app:
        assert app.store.notice() == ""


async def test_a_database_that_sqlite_calls_full_loses_and_doubles_nothing(
    tmp_path: Path, fake: FakeTelegram, model: ScriptedModel
) -> None:
    chats, long = range(2, 8), " ".join(["word"] * 800)
    async with bridge(tmp_path, telegram(fake, model)) as app:
        store = cast(SqliteStore, app.store)
        fake.say(1, "before")
        await fake.wait_for(lambda: len(fake.chat(1).texts) == 1)
        # Free places of the file are filled before the first refusal: some messages meet it when they are
        # taken, others when their runs write, or when their replies go out.
        pages = await store._reader.run(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
        await store._writer.run(lambda db: db.execute(f"PRAGMA max_page_count = {pages + 4}").fetchone())
        for part in range(4):
            for chat in chats:
                fake.say(chat, f"{part} {long}")
        await fake.wait_for(lambda: fake.updates and "SQLITE_FULL" in store.fault(), 20)
        polls = len(fake.called("getUpdates"))
        await fake.wait_for(lambda: len(fake.called("getUpdates")) >= polls + 2, 20)
        await store._writer.run(lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchone())
        await fake.wait_for(lambda: all(len(fake.chat(chat).texts) >= 4 for chat in chats), 30)
        fake.say(1, "after")
        await fake.wait_for(lambda: len(fake.chat(1).texts) == 2, 20)
    for chat in chats:
        assert [text.split()[1] for text in fake.chat(chat).texts] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("growing", [False, True])
async def test_what_was_shown_when_the_store_failed_is_not_shown_again(
    growing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_module, "_CALL_DEADLINE", 0.5)  # a store may be away for longer
    store = SqliteStore(tmp_path / "test.db", busy_limit=0.05)
    await store.open()
    room = Room("room", RoomConfig(), None, Limits(streams=growing))
    other = sqlite3.connect(store.path)
    real, slept = room.post, list[float]()

    async def post(ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        message = await real(ref, n, chunk, final=final)
        other.execute("BEGIN EXCLUSIVE")
        return message

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            other.rollback()

    room.post = post  # type: ignore[method-assign]
    delivery = Delivery(store, {"room": room}, clock=lambda: 0.0, sleep=sleep)
    live = delivery.open(ReplyRef("r1", Address("room", "c1"), "m1"), "s1")
    live.start()
    if growing:
        live.emit(TextDelta("hello"))
        await room.until(lambda: "c1" in room.seen)
    async with asyncio.timeout(10):
        if growing:
            await live.park(patient=True)  # what a run does whose own write failed
            room.post = real  # type: ignore[method-assign]
            live = delivery.open(live.ref, "s1", await store.reply("r1"))
        assert await live.finish(Outbound("hello"), [])
    stored = await store.reply("r1")
    other.close()
    await store.close()
    assert room.seen["c1"] == ["hello"]
    assert slept[:3] == [1.0, 2.0, 4.0]
    assert stored is not None
    assert [(chunk.state, chunk.message_id) for chunk in stored.chunks] == [("sent", "0")]


async def test_a_commands_answer_waits_for_the_store_and_goes_out_without_a_restart(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "test.db", busy_limit=0.1)
    await store.open()
    room = Room("room", RoomConfig(), None, Limits())
    tries = asyncio.Event()

    async def sleep(seconds: float) -> None:
        tries.set()
        await asyncio.sleep(0.01)

    delivery = Delivery(store, {"room": room}, clock=lambda: 0.0, sleep=sleep)
    reply = delivery.command_reply(ReplyRef("c1", Address("room", "c1")), "s1", Outbound("status"))
    await store.open_reply(reply)
    with closing(sqlite3.connect(store.path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        delivery.deliver(reply)
        await asyncio.wait_for(tries.wait(), 10)
        other.rollback()
    await room.until(lambda: room.seen.get("c1") == ["status"])
    await delivery.stop(grace=5)
    assert await store.pending_replies(["room"]) == []
    await store.close()


# -- a lock ------------------------------------------------------------------------------------------------


async def test_a_database_locked_by_another_program_is_waited_for_and_told(
    tmp_path: Path, fake: FakeTelegram, model: ScriptedModel
) -> None:
    soon = at_start(tmp_path, "from bridge.store import sqlite_thread as s\ns._WARN_BUSY_SECONDS = 1.0\n")
    async with running(tmp_path, telegram(fake, model), **soon) as process:
        fake.say(1, "before")
        await fake.wait_for(lambda: fake.chat(1).texts == ["re before"], 20)
        with closing(sqlite3.connect(tmp_path / "workspace" / "causeway.db")) as other:
            other.execute("BEGIN EXCLUSIVE")
            fake.say(1, "one")
            fake.say(2, "two")
            await process.until(lambda: "locked by another program" in process.output)
            await ready(process, lambda status, said: status == 503 and "locked" in said["store"]["reason"])
            assert (await page(process, "/healthz"))[0] == 200
            assert [u["message"]["text"] for u in fake.updates] == ["one", "two"]
            other.rollback()
        await fake.wait_for(lambda: len(fake.chat(1).texts) == 2 and fake.chat(2).texts, 20)
        assert (fake.chat(1).texts, fake.chat(2).texts) == (["re before", "re one"], ["re two"])
        await ready(process, lambda status, said: status == 200)
        assert process.output.count("locked") <= 5


async def test_a_lock_of_minutes_fails_the_writes_and_the_messages_are_answered_once_afterwards(
    tmp_path: Path, fake: FakeTelegram, model: ScriptedModel
) -> None:
    async with bridge(tmp_path, telegram(fake, model)) as app:
        app.store._writer._busy_limit = 0.2  # type: ignore[attr-defined]  # for two minutes
        with closing(sqlite3.connect(tmp_path / "workspace" / "causeway.db")) as other:
            other.execute("BEGIN EXCLUSIVE")
            fake.say(1, "one")
            await fake.wait_for(lambda: "locked" in app.store.fault(), 20)
            polls = len(fake.called("getUpdates"))
            await fake.wait_for(lambda: len(fake.called("getUpdates")) >= polls + 2, 20)
            other.rollback()
        await fake.wait_for(lambda: fake.chat(1).texts, 20)
        fake.say(1, "two")
        await fake.wait_for(lambda: len(fake.chat(1).texts) == 2, 20)
    assert fake.chat(1).texts == ["re one", "re two"]
    assert asked(model) == ["one", "two"]


async def test_a_message_that_is_committed_after_its_channel_gave_up_waiting_is_answered_all_the_same(
    tmp_path: Path, fake: FakeTelegram, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "HANDLE_DEADLINE", 0.2)
    settings = telegram(fake, model)
    # Of an admin more is noted before the message itself.
    settings["access"] = {"telegram": {"direct": "allowlist", "allow": ["1"]}}
    async with bridge(tmp_path, settings) as app:
        with closing(sqlite3.connect(tmp_path / "workspace" / "causeway.db")) as other:
            other.execute("BEGIN EXCLUSIVE")
            fake.say(1, "one")
            polls = len(fake.called("getUpdates"))
            await fake.wait_for(lambda: len(fake.called("getUpdates")) >= polls + 3, 20)
            other.rollback()
        # The repetitions find it taken already: only the late commit itself can wake the session.
        await fake.wait_for(lambda: fake.chat(1).texts, 10)
        assert app.sessions.count == 1
    assert fake.chat(1).texts == ["re one"]


# -- no right to write -------------------------------------------------------------------------------------


def test_a_workspace_that_may_only_be_read_ends_the_start_with_the_cure_and_nothing_half_made(
    tmp_path: Path,
) -> None:
    config, workspace = write_config(tmp_path, {}), tmp_path / "workspace"
    workspace.mkdir(mode=0o555)
    done = subprocess.run(
        [sys.executable, "-m", "bridge.cli", "run", "--config", str(config)],
        capture_output=True, text=True, timeout=60, cwd=ROOT,
        env={**clean_environ(tmp_path), **bound_by_modes(tmp_path)},
    )  # fmt: skip
    left = list(workspace.iterdir())
    workspace.chmod(0o755)
    assert done.returncode == 1, done.stderr
    assert f"The workspace {workspace} cannot be used: Permission denied. Make it writable" in done.stderr
    assert "Traceback" not in done.stderr
    assert left == []


async def test_a_workspace_that_becomes_read_only_stops_files_and_no_conversation(
    tmp_path: Path, fake: FakeTelegram, model: ScriptedModel
) -> None:
    def script(seen: Seen) -> Say:
        if "run" in seen.last_user and not seen.results:
            return Say(calls=(Call("bash", {"command": "echo hi"}),))
        return Say(f"re {seen.last_user}: {' '.join(seen.results)[:200]}")

    model.script = script
    tools = {"bash": {"enabled": True}, "policy": [{"effect": "allow", "tools": ["bash"]}]}
    async with running(tmp_path, telegram(fake, model, tools=tools), **bound_by_modes(tmp_path)) as process:
        fake.say(1, "hello")
        await fake.wait_for(lambda: fake.chat(1).texts, 20)
        places = [tmp_path / "workspace", *(tmp_path / "workspace").iterdir()]
        for place in places:
            place.chmod(0o555 if place.is_dir() else 0o444)
        try:
            fake.say(1, "run it")
            await fake.wait_for(lambda: len(fake.chat(1).texts) == 2, 20)
            file = fake.file(b"data", "notes.txt")
            fake.say(1, "look", document={"file_id": file, "file_unique_id": "u", "file_name": "notes.txt"})
            await fake.wait_for(lambda: len(fake.chat(1).texts) == 3, 20)
        finally:
            for place in places:
                place.chmod(0o755 if place.is_dir() else 0o644)
        assert "cannot be made (Permission denied)" in fake.chat(1).texts[1]
        assert "notes.txt" in fake.chat(1).texts[2]
        assert "Traceback" not in process.output, process.output


# -- Redis -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["OOM", "MISCONF"])
async def test_a_redis_that_takes_nothing_loses_and_doubles_nothing(
    fault: str, tmp_path: Path, fake: FakeTelegram, model: ScriptedModel
) -> None:
    server = RedisServer(
        tmp_path / "redis",
        "--appendonly",
        "yes",
        "--appendfsync",
        "everysec",
        "--maxmemory-policy",
        "noeviction",
    )
    # Its own signal for a file that may not grow would end it, where a full disk does not.
    wrapper = tmp_path / "server.sh"
    wrapper.write_text(f"#!/bin/sh\ntrap '' XFSZ\nexec {server.program} \"$@\"\n")
    wrapper.chmod(0o755)
    server.program = wrapper
    server.start()
    assert server.process is not None
    pid = server.process.pid

    def full(on: bool) -> None:
        if fault == "OOM":
            assert b"OK" in server.say("CONFIG", "SET", "maxmemory", "1" if on else "0")
        else:
            most = 1 if on else resource.RLIM_INFINITY
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

    try:
        settings = telegram(fake, model, store={"url": server.url})
        async with running(tmp_path, settings) as process:
            fake.say(1, "before")
            await fake.wait_for(lambda: fake.chat(1).texts == ["re before"], 20)
            full(True)
            server.say("SET", "something", "that is to be written")
            fake.say(1, "one")
            await ready(process, lambda status, said: status == 503 and fault in said["store"]["reason"])
            polls = len(fake.called("getUpdates"))
            await fake.wait_for(lambda: len(fake.called("getUpdates")) >= polls + 2, 20)
            if fault == "OOM":  # before the first refusal a write may still have gone through
                assert [u["message"]["text"] for u in fake.updates] == ["one"]
            full(False)
            await fake.wait_for(lambda: len(fake.chat(1).texts) == 2, 30)
            await ready(process, lambda status, said: status == 200)
            fake.say(1, "two")
            await fake.wait_for(lambda: len(fake.chat(1).texts) == 3, 20)
            assert fake.chat(1).texts == ["re before", "re one", "re two"]
            assert asked(model) == ["before", "one", "two"]
    finally:
        server.stop()
