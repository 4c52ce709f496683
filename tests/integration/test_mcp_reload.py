"""Following `mcp.json` while it runs."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import time
from pathlib import Path

import pytest

from tests.fakes.mcp_bench import Bench, bench, living, plain, until


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_mc_02_a_half_written_empty_or_vanished_file_changes_nothing_and_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path, {"a": plain(), "b": plain()}) as b:
        names, pid = b.names(), (await b.call("a__pid")).text
        b.write({"a": plain(), "b": plain(), "c": plain()})
        whole = b.file.read_bytes()
        for damaged in (whole[: len(whole) // 2], b"", b"\xef\xbb\xbf \r\n", None):
            caplog.clear()
            if damaged is None:
                b.file.unlink()
            else:
                b.file.write_bytes(damaged)
            for _ in range(3):
                await b.hub.refresh()
            assert b.names() == names
            assert (await b.call("a__pid")).text == pid
            (warning,) = warnings(caplog)
            assert "mcp.json" in warning
            assert b.hub.problems == (warning.split("; the last good")[0],)
            assert (b.file.read_bytes() if b.file.exists() else None) == damaged, "the program wrote the file"
        b.file.write_bytes(whole[: len(whole) // 2])
        await b.hub.refresh()
        assert f"mcp.json:{whole[: len(whole) // 2].count(10) + 1}:" in b.hub.problems[0]
        b.file.write_bytes(whole)
        report = await b.hub.refresh()
        assert report.added == ("c",)
        assert b.hub.problems == ()
        assert await b.hub.settle(10)
        assert "c__echo" in b.names()
        assert (await b.call("a__pid")).text == pid


async def test_a_file_that_is_damaged_and_then_restored_unchanged_clears_the_fault(tmp_path: Path) -> None:
    async with bench(tmp_path, {"a": plain()}) as b:
        whole = b.file.read_bytes()
        for damage in (lambda: b.file.write_text("{"), b.file.unlink):
            damage()
            await b.hub.refresh()
            assert len(b.hub.problems) == 1
            b.file.write_bytes(whole)
            assert not await b.hub.refresh()
            assert b.hub.problems == ()


async def test_a_broken_file_at_the_start_is_reported_and_followed_once_it_is_mended(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{\n "mcpServers": {,}\n}')
    async with bench(tmp_path) as b:
        assert b.hub.tools == ()
        assert "mcp.json:2:" in b.hub.problems[0]
        await b.reload({"a": plain()})
        assert b.hub.problems == ()
        assert "a__echo" in b.names()


async def test_without_a_file_nothing_is_wrong_and_one_that_appears_is_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path) as b:
        await b.hub.refresh()
        assert (b.hub.tools, b.hub.problems, b.hub.status) == ((), (), ())
        assert warnings(caplog) == []
        await b.reload({"a": plain()})
        assert "a__echo" in b.names()


async def test_added_removed_and_untouched_servers(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with bench(tmp_path, {"stays": plain(), "goes": plain("--pids", str(pids))}) as b:
        pid = (await b.call("stays__pid")).text
        old = b.tool("goes__echo")
        report = await b.reload({"comes": plain(), "stays": plain()})
        assert (report.added, report.removed, report.changed) == (("comes",), ("goes",), ())
        assert {tool.source for tool in b.hub.tools} == {"comes", "stays"}
        assert [tool.source for tool in b.hub.tools] == sorted(tool.source for tool in b.hub.tools)
        assert (await b.call("stays__pid")).text == pid
        result = await b.run(old, text="x")
        assert result.is_error
        assert "removed" in result.text
        await until(lambda: living(pids) == [])


async def test_a_refresh_without_a_change_reads_nothing_and_keeps_the_same_objects(tmp_path: Path) -> None:
    async with bench(tmp_path, {"a": plain()}) as b:
        old = time.time() - 60
        os.utime(b.file, (old, old))
        await b.hub.refresh()
        tools, changes = b.hub.tools, b.changes
        b.file.chmod(0)  # reading would fail, were it tried by anybody but root; changes would be told
        stat = b.file.stat()
        os.utime(b.file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        await b.hub.refresh()
        began = time.process_time()
        for _ in range(500):
            assert not await b.hub.refresh()
        assert (time.process_time() - began) / 500 < 0.001
        assert b.hub.tools is tools
        assert b.changes == changes


async def test_the_same_words_in_another_order_are_no_change(tmp_path: Path) -> None:
    async with bench(tmp_path, {"a": plain(), "b": plain()}) as b:
        pid, tools = (await b.call("a__pid")).text, b.hub.tools
        b.file.write_text(json.dumps({"mcpServers": {"b": plain(), "a": dict(reversed(plain().items()))}}))
        assert not await b.hub.refresh()
        assert b.hub.tools is tools
        assert (await b.call("a__pid")).text == pid


async def test_a_changed_server_is_swapped_when_ready_and_calls_in_flight_finish(
    tmp_path: Path,
) -> None:
    pids, log = tmp_path / "pids", tmp_path / "log"
    common = ("--pids", str(pids), "--log", str(log))
    async with bench(tmp_path, {"a": plain(*common)}) as b:
        old = b.tool("a__pid")
        before = (await b.run(old)).text
        slow = asyncio.create_task(b.call("a__sleep", seconds=0.8))
        await until(lambda: "call sleep" in log.read_text())
        b.write({"a": plain(*common, "--delay", "0.3")})
        report = await b.hub.refresh()
        assert report.changed == ("a",)
        assert (await b.run(old)).text == before, "the old server did not serve until the new one was ready"
        assert "previous one serves" in b.status("a").reason
        assert await b.hub.settle(10)
        after = await b.run(old)
        assert not after.is_error, "a tool of the older catalog did not reach the new server"
        assert after.text != before
        assert not slow.done(), "the swap waited for the slow call"
        assert not (await slow).is_error, "the call in flight was lost"
        await until(lambda: len(living(pids)) == 1)
        assert b.status("a").reason == ""


async def test_a_changed_server_that_fails_leaves_the_old_one_in_place_and_says_so(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with bench(tmp_path, {"a": plain()}) as b:
        pid, names = (await b.call("a__pid")).text, b.names()
        await b.reload({"a": plain("--refuse-to-start", "--pids", str(pids))})
        assert b.names() == names
        assert (await b.call("a__pid")).text == pid
        assert b.status("a").state == "ready"
        assert "previous one is kept" in b.status("a").reason
        assert "exit code 7" in b.status("a").reason
        await until(lambda: living(pids) == [])
        await b.reload({"a": plain()})  # back again: nothing to start
        assert (await b.call("a__pid")).text == pid
        assert b.status("a").reason == ""


async def test_a_server_that_cannot_run_twice_is_stopped_before_its_successor_starts(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def entry(tag: str) -> dict[str, object]:
        return plain("--pids", str(pids), "--tag", tag, restart="stop-first")

    async with bench(tmp_path, {"a": entry("1")}) as b:
        b.write({"a": entry("2")})
        await b.hub.refresh()
        most = 0
        while len(pids.read_text().split()) < 2 or b.status("a").state != "ready":
            most = max(most, len(living(pids)))
            await asyncio.sleep(0.005)
        assert most == 1
        assert len(living(pids)) == 1


async def test_a_server_removed_while_it_starts_never_comes_back(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    slow = plain("--pids", str(pids), "--delay", "1")
    async with bench(tmp_path, {"a": slow}, settle=False) as b:
        await until(lambda: living(pids))
        b.write({})
        await b.hub.refresh()
        assert b.hub.status == ()
        await until(lambda: living(pids) == [], 5)
        await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name() == "mcp-a"])
        assert b.hub.tools == ()
        assert len(pids.read_text().split()) == 1


async def test_a_server_changed_while_it_starts_runs_once(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with bench(tmp_path, {"a": plain("--pids", str(pids), "--delay", "1")}, settle=False) as b:
        await until(lambda: living(pids))
        await b.reload({"a": plain("--pids", str(pids))})
        assert b.status("a").state == "ready"
        await until(lambda: len(living(pids)) == 1)


async def test_a_removed_server_finishes_its_call_first(tmp_path: Path) -> None:
    pids, log = tmp_path / "pids", tmp_path / "log"
    async with bench(tmp_path, {"a": plain("--pids", str(pids), "--log", str(log))}) as b:
        call = asyncio.create_task(b.call("a__sleep", seconds=0.5))
        await until(lambda: "call sleep" in log.read_text())
        await b.reload({})
        assert b.hub.tools == ()
        assert not (await call).is_error
        await until(lambda: living(pids) == [])


async def test_a_removed_server_does_not_wait_for_its_calls_for_ever(tmp_path: Path) -> None:
    pids, log = tmp_path / "pids", tmp_path / "log"
    entry = plain("--pids", str(pids), "--log", str(log))
    async with bench(tmp_path, {"a": entry}, drain=0.2) as b:
        call = asyncio.create_task(b.call("a__sleep", seconds=30))
        await until(lambda: "call sleep" in log.read_text())
        await b.reload({})
        assert (await asyncio.wait_for(call, 5)).is_error
        assert living(pids) == []


async def test_a_disabled_server_is_shown_and_not_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    entry = plain("--pids", str(pids))
    async with bench(tmp_path, {"a": {**entry, "disabled": True}}) as b:
        assert (b.status("a").state, b.status("a").tools) == ("disabled", 0)
        assert not pids.exists()
        await b.reload({"a": entry})
        assert b.status("a").state == "ready"
        await b.reload({"a": {**entry, "disabled": True}})
        assert b.status("a").state == "disabled"
        assert b.hub.tools == ()
        await until(lambda: living(pids) == [])


async def test_a_changed_filter_needs_no_new_process(tmp_path: Path) -> None:
    async with bench(tmp_path, {"a": plain()}) as b:
        pid = (await b.call("a__pid")).text
        report = await b.reload({"a": plain(excludeTools=["die"], timeout=3)})
        assert report.changed == ("a",)
        assert "a__die" not in b.names()
        assert b.tool("a__pid").timeout == 3.0
        assert (await b.call("a__pid")).text == pid


async def test_a_credential_that_changed_in_the_environment_is_a_change(tmp_path: Path) -> None:
    environ = {**os.environ, "DEMO_TOKEN": "first-token"}
    async with bench(tmp_path, {"a": plain(env={"K": "${DEMO_TOKEN}"}), "b": plain()}, environ=environ) as b:
        pid = (await b.call("b__pid")).text
        assert (await b.call("a__env", name="K")).text == "first-token"
        environ["DEMO_TOKEN"] = "second-token"
        report = await b.hub.refresh()
        assert report.changed == ("a",)
        assert await b.hub.settle(10)
        assert (await b.call("a__env", name="K")).text == "second-token"
        assert (await b.call("b__pid")).text == pid


async def test_a_faulty_entry_of_a_running_server_leaves_it_running(tmp_path: Path) -> None:
    async with bench(tmp_path, {"a": plain()}) as b:
        pid = (await b.call("a__pid")).text
        await b.reload({"a": {"command": "x", "url": "http://h"}, "new": {}, "b": plain()})
        assert (await b.call("a__pid")).text == pid
        assert "last good one is kept" in b.status("a").reason
        assert b.status("new").state == "failed"
        assert "b__echo" in b.names()
        assert len(b.hub.problems) == 2
        await b.reload({"a": plain()})
        assert b.status("a").reason == ""
        assert b.hub.problems == ()
        assert (await b.call("a__pid")).text == pid


async def test_servers_start_side_by_side(tmp_path: Path) -> None:
    servers = {f"s{n}": plain("--delay", "1") for n in range(5)}
    async with bench(tmp_path, servers, settle=False) as b:
        began = time.monotonic()
        assert await b.hub.settle(15)
        assert time.monotonic() - began < 4, "five servers of one second each were started in turn"
        assert len(b.hub.tools) == 35


async def test_nothing_is_shown_of_a_server_that_is_still_starting(tmp_path: Path) -> None:
    entry = plain("--page", "2", "--list-delay", "0.1")
    async with bench(tmp_path, {"a": entry}, settle=False) as b:
        counts = set()
        while b.status("a").state == "starting":
            counts.add(len(b.hub.tools))
            await asyncio.sleep(0.01)
        counts.add(len(b.hub.tools))
        assert counts == {0, 7}


async def test_the_start_returns_at_once_and_the_loop_is_never_held(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.write({f"s{n}": plain("--delay", "0.3") for n in range(4)})
        worst = 0.0
        began = last = time.monotonic()
        await b.hub.refresh()
        assert time.monotonic() - began < 0.3
        while not await b.hub.settle(0.0):
            await asyncio.sleep(0.001)
            now = time.monotonic()
            worst, last = max(worst, now - last), now
        assert worst < 0.3, f"the loop stood still for {worst:.3f} s"


async def test_random_edits_under_calls_lose_no_call_and_leave_no_process(tmp_path: Path) -> None:
    """Adds, removes, changes, breaks, disables, in a seeded order, while chats call tools without pause."""
    pick = random.Random(7)
    pids = tmp_path / "pids"

    def entry(version: int) -> dict[str, object]:
        restart = pick.choice(["new-first", "stop-first"])
        return plain(
            "--pids", str(pids), "--tag", str(version), disabled=pick.random() < 0.15, restart=restart
        )

    wanted: dict[str, dict[str, object]] = {name: entry(0) for name in "abc"}
    answered = 0

    async def chat(b: Bench) -> None:
        nonlocal answered
        while True:
            tools = [tool for tool in b.hub.tools if tool.name.endswith("__echo")]
            if tools:
                result = await b.run(pick.choice(tools), text="x")
                assert result.text.startswith("echo") or (result.is_error and len(result.text) > 30), (
                    result.text
                )
                answered += 1
            await asyncio.sleep(0.005)

    async with bench(tmp_path, wanted, drain=2.0) as b:
        chats = [asyncio.create_task(chat(b)) for _ in range(5)]
        for edit in range(40):
            name = pick.choice("abcd")
            if pick.random() < 0.3:
                wanted.pop(name, None)
            else:
                wanted[name] = entry(edit)
            b.write(wanted)
            if pick.random() < 0.2:
                b.file.write_text(b.file.read_text()[: pick.randrange(40)])
            await b.hub.refresh()
            await asyncio.sleep(pick.random() * 0.08)
        await b.reload(wanted)
        for task in chats:
            task.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError)
            for end in await asyncio.gather(*chats, return_exceptions=True)
        )
        on = sorted(name for name, item in wanted.items() if not item["disabled"])
        assert sorted({tool.source for tool in b.hub.tools}) == on
        assert [status.name for status in b.hub.status] == sorted(wanted)
        await until(lambda: len(living(pids)) == len(on))
        assert answered > 50
    assert living(pids) == []
