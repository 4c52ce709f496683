"""Servers as real child processes: starting, listing, calling, dying, being stopped."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import sys
from pathlib import Path

import pytest

from agent.tools.mcp.process import Grace
from agent.tools.mcp.surroundings import Patience
from tests.fakes.mcp_bench import FAKES, QUICK, alive, bench, living, plain, sdk, until
from tests.fakes.mcp_plain import PNG


async def test_a_published_server_from_the_registry_answers(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": ["-m", "mcp_server_time"]}
    async with bench(tmp_path, {"time": entry}) as b:
        assert b.names() == ["time__get_current_time", "time__convert_time"]
        status = b.status("time")
        assert (status.state, status.tools, status.reason) == ("ready", 2, "")
        assert status.start_ms is not None
        result = await b.call("time__get_current_time", timezone="Europe/Paris")
        assert json.loads(result.text)["timezone"] == "Europe/Paris"
        wrong = await b.call("time__get_current_time", timezone="Mars/Olympus")
        assert wrong.is_error
        missing = await b.call("time__convert_time")
        assert missing.is_error


async def test_a_minimal_server_that_answers_notifications_works(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": ["-u", str(FAKES / "mcp_seed.py")]}
    async with bench(tmp_path, {"local-files": entry}) as b:
        (tmp_path / "text").write_text("a\nb\n")
        assert (await b.call("local-files__count_lines", path=str(tmp_path / "text"))).text == "2 lines"


async def test_mc_04_a_server_that_never_answers_fails_alone_after_its_own_time(
    tmp_path: Path,
) -> None:
    pids = tmp_path / "pids"
    servers = {"h": plain("--hang", "--pids", str(pids), start_timeout=1.5), "g": plain()}
    async with bench(tmp_path, servers, settle=False) as b:
        await until(lambda: "g__echo" in b.names(), 5)
        assert b.status("h").state == "starting", "the good server waited for the bad one"
        assert not (await b.call("g__echo", text="x")).is_error
        assert await b.hub.settle(10)
        assert b.status("h").state == "failed"
        assert "1.5 s" in b.status("h").reason
        assert len(pids.read_text().split()) == 1
        assert living(pids) == []
        await b.reload({**servers, "h": plain("--pids", str(pids))})
        assert b.status("h").state == "ready", "a later change of the entry was not honoured"


async def test_mc_05_a_crash_in_a_call_is_an_error_at_once_and_the_server_comes_back(tmp_path: Path) -> None:
    async with bench(tmp_path, {"a": plain(), "other": plain()}) as b:
        other = (await b.call("other__pid")).text
        first = (await b.call("a__pid")).text
        waiting = asyncio.create_task(b.call("a__sleep", seconds=30))
        await asyncio.sleep(0)
        async with asyncio.timeout(3):
            died = await b.call("a__die")
            slept = await waiting
        for result in (died, slept):
            assert result.is_error
            assert "exit code 3" in result.text
            assert "Traceback" not in result.text
        await until(lambda: b.status("a").state == "ready")
        again = await b.call("a__pid")
        assert not again.is_error
        assert again.text != first
        assert (await b.call("other__pid")).text == other


async def test_a_server_that_dies_while_idle_is_noticed_and_restarted(tmp_path: Path) -> None:
    async with bench(tmp_path, {"a": plain()}) as b:
        pid = int((await b.call("a__pid")).text)
        os.kill(pid, 9)
        await until(lambda: not alive(pid))
        reasons = set()
        while "signal 9" not in " ".join(reasons):
            reasons.add(b.status("a").reason)
            await asyncio.sleep(0.005)
        result = await b.call("a__pid")  # waits for the restart instead of failing
        assert not result.is_error
        assert int(result.text) != pid


async def test_a_server_that_keeps_failing_rests_and_wakes_on_request(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with bench(tmp_path, {"a": plain("--refuse-to-start", "--pids", str(pids))}) as b:
        await until(lambda: "rests" in b.status("a").reason)
        assert b.status("a").state == "failed"
        assert "exit code 7" in b.status("a").reason
        assert "no database" in b.status("a").reason, "the reason does not quote the server's last words"
        tried = len(pids.read_text().split())
        assert tried == QUICK.failures
        assert await b.hub.restart("a")
        await until(lambda: len(pids.read_text().split()) > tried)
        assert not await b.hub.restart("nobody")


async def test_a_missing_command_says_so_and_is_not_tried_again(tmp_path: Path) -> None:
    async with bench(tmp_path, {"a": {"command": "no-such-command-here"}, "b": plain(cwd="nowhere")}) as b:
        assert "was not found" in b.status("a").reason
        assert "'cwd'" in b.status("b").reason
        assert {b.status("a").state, b.status("b").state} == {"failed"}


async def test_mc_07_nothing_is_left_of_a_wrapper_whose_child_ignores_sigterm(
    tmp_path: Path,
) -> None:
    pids = tmp_path / "pids"
    script = f"{sys.executable} {FAKES / 'mcp_plain.py'} --child --pids {pids} --tag $0"

    def wrapped(tag: int) -> dict[str, object]:
        return {"command": "/bin/sh", "args": ["-c", f"{script}; true", str(tag)]}

    async with bench(tmp_path, {"w": wrapped(0)}) as b:
        for change in range(1, 6):
            await b.reload({"w": wrapped(change)})
            await until(lambda: len(living(pids)) == 2)  # the server and its child, of one tree
        assert len(pids.read_text().split()) == 12
        await b.reload({})
        await until(lambda: living(pids) == [])
        await b.reload({"w": wrapped(9)})
        assert len(living(pids)) == 2
    assert living(pids) == []


async def test_a_stubborn_server_is_killed_within_the_grace_times(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with bench(tmp_path, {"a": plain("--stubborn", "--pids", str(pids))}) as b:
        assert len(living(pids)) == 1
        async with asyncio.timeout(3):
            await b.hub.stop()
        assert living(pids) == []


async def test_a_second_cancelling_kills_at_once_what_the_first_one_stops_politely(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    patience = Patience(grace=Grace(30, 30, 1))
    async with bench(tmp_path, {"a": plain("--stubborn", "--child", "--pids", str(pids))}, patience=patience):
        assert len(living(pids)) == 2
        (owner,) = [task for task in asyncio.all_tasks() if task.get_name() == "mcp-a"]
        owner.cancel()
        await asyncio.wait({owner}, timeout=0.7)
        assert not owner.done()
        owner.cancel()
        await asyncio.wait({owner}, timeout=5)
        assert owner.done()
        await until(lambda: living(pids) == [])


async def test_mc_13_much_stderr_blocks_nothing_and_its_log_is_bounded(tmp_path: Path) -> None:
    async with bench(tmp_path, {"a": plain("--stderr", "200")}) as b:
        for _ in range(8):
            async with asyncio.timeout(5):
                assert not (await b.call("a__echo", text="x")).is_error
    logs = sorted((tmp_path / "logs").iterdir())
    assert logs[0].name == "mcp-a.log"
    assert 0 < sum(log.stat().st_size for log in logs) < 1_500_000
    assert all(log.stat().st_mode & 0o077 == 0 for log in logs)


async def test_noise_on_stdout_is_skipped_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path, {"a": plain("--noise")}) as b:
        for _ in range(3):
            assert not (await b.call("a__echo", text="x")).is_error
    told = [record for record in caplog.records if "stdout" in record.getMessage()]
    assert len(told) == 1
    assert not any(record.exc_info for record in caplog.records)


async def test_mc_16_all_pages_of_a_list_are_read_in_order(tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(6)]))
    async with bench(tmp_path, {"a": plain("--tools", str(tools), "--page", "2")}) as b:
        assert b.names() == [f"a__t{n}" for n in range(6)]
        assert not (await b.call("a__t5")).is_error


async def test_a_list_whose_cursors_repeat_comes_to_an_end(tmp_path: Path) -> None:
    async with bench(tmp_path, {"a": plain("--page", "3", "--loop")}) as b:
        assert len(b.names()) == 7


async def test_bad_tools_in_a_list_do_not_cost_the_good_ones(tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    raw = [{"description": "no name"}, {"name": "x", "inputSchema": {}}, {"name": "y", "inputSchema": 1}]
    tools.write_text(json.dumps(raw))
    async with bench(tmp_path, {"a": plain("--tools", str(tools))}) as b:
        assert b.names() == ["a__x"]
        assert b.tool("a__x").params == {"type": "object", "properties": {}}
        assert "2 left out" in b.status("a").reason


async def test_a_server_that_does_not_announce_its_tools_is_asked_all_the_same(tmp_path: Path) -> None:
    async with bench(tmp_path, {"a": plain("--unannounced")}) as b:
        assert "a__echo" in b.names()


@pytest.mark.parametrize("where", ["between", "during"])
async def test_mc_19_a_burst_of_changes_gives_the_new_list(tmp_path: Path, where: str) -> None:
    tools, log = tmp_path / "tools.json", tmp_path / "log"
    schema = {"type": "object"}
    tools.write_text(
        json.dumps([{"name": "burst", "inputSchema": schema}, {"name": "old", "inputSchema": schema}])
    )
    entry = plain(
        "--tools", str(tools), "--log", str(log), "--list-delay", "0.2" if where == "during" else "0"
    )
    async with bench(tmp_path, {"a": entry}) as b:
        assert b.names() == ["a__burst", "a__old"]
        if where == "during":
            await b.call("a__burst")
            await until(
                lambda: log.read_text().count("list") == 2
            )  # this listing reads the old file or the new
        tools.write_text(
            json.dumps([{"name": "burst", "inputSchema": schema}, {"name": "new", "inputSchema": schema}])
        )
        await b.call("a__burst")
        await until(lambda: b.names() == ["a__burst", "a__new"])
        await until(lambda: b.status("a").state == "ready")
        assert log.read_text().count("list") <= 5


async def test_mc_19_a_change_is_told_by_subscription_in_the_newer_protocol(tmp_path: Path) -> None:
    async with bench(tmp_path, {"s": sdk()}) as b:
        assert "s__grown" not in b.names()
        assert (await b.call("s__grow")).text == "grew"
        await until(lambda: "s__grown" in b.names())
        assert (await b.call("s__grown")).text == "grown"


async def test_mc_22_variables_reach_the_server_and_its_values_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "causeway")
    secrets: list[str] = []
    environ = {**os.environ, "DEMO_TOKEN": "sesame$1-${PATH}"}
    servers = {
        "set": plain("--tag", "${DEMO_TOKEN}", env={"K": "${DEMO_TOKEN}"}),
        "unset": plain(env={"K": "${DEMO_MISSING}"}),
    }
    async with bench(tmp_path, servers, environ=environ, on_secret=secrets.append) as b:
        before = b.file.read_bytes()
        assert (await b.call("set__env", name="K")).text == "sesame$1-${PATH}"
        assert b.status("unset").state == "failed"
        assert "DEMO_MISSING" in b.status("unset").reason
        assert any("DEMO_MISSING" in problem and "mcp.json:" in problem for problem in b.hub.problems)
        assert b.file.read_bytes() == before
    assert "sesame$1-${PATH}" in secrets
    assert "sesame" not in caplog.text


async def test_a_server_sees_only_a_small_environment(tmp_path: Path) -> None:
    environ = {**os.environ, "BRIDGE_PASSWORD": "x"}
    async with bench(tmp_path, {"a": plain(env={"MINE": "1"})}, environ=environ) as b:
        assert (await b.call("a__env", name="BRIDGE_PASSWORD")).text == "(unset)"
        assert (await b.call("a__env", name="MINE")).text == "1"
        assert (await b.call("a__env", name="PATH")).text == os.environ["PATH"]


async def test_a_slow_call_holds_back_no_other_and_ends_at_its_deadline(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with bench(tmp_path, {"a": plain("--log", str(log), timeout=0.6)}) as b:
        assert b.tool("a__sleep").timeout == 0.6
        slow = asyncio.create_task(b.call("a__sleep", seconds=30))
        await until(lambda: "call sleep" in (log.read_text() if log.exists() else ""))
        assert not (await b.call("a__echo", text="x")).is_error
        assert not slow.done()
        result = await slow
        assert result.is_error
        assert "0.6 s" in result.text
        await until(lambda: "cancelled" in log.read_text())  # the server was told to stop
        assert not (await b.call("a__echo", text="x")).is_error


async def test_cancelling_a_call_tells_the_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with bench(tmp_path, {"a": plain("--log", str(log))}) as b:
        call = asyncio.create_task(b.call("a__sleep", seconds=30))
        await until(lambda: "call sleep" in log.read_text())
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: "cancelled" in log.read_text())


async def test_mc_17_results_of_every_shape_arrive_in_the_right_form(tmp_path: Path) -> None:
    async with bench(tmp_path, {"a": plain()}) as b:
        assert (await b.call("a__shapes", kind="structured")).text == '{"n": 1}'
        picture = await b.call("a__shapes", kind="png")
        assert base64.b64encode(PNG).decode()[:60] not in picture.text
        assert (tmp_path / "session" / picture.images[0].path).read_bytes() == PNG
        failed = await b.call("a__shapes", kind="error")
        assert (failed.text, failed.is_error) == ("no", True)
        assert "the note" in (await b.call("a__shapes", kind="resource")).text
        odd = await b.call("a__shapes", kind="odd")
        assert "still here" in odd.text
        assert "hologram" in odd.text
        assert not odd.is_error


async def test_a_protocol_error_is_an_error_result_and_no_crash(tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"name": "refused", "inputSchema": {}}, {"name": "pid", "inputSchema": {}}]))
    async with bench(tmp_path, {"a": plain("--tools", str(tools))}) as b:
        pid = (await b.call("a__pid")).text
        result = await b.call("a__refused")
        assert result.is_error
        assert "quota used up" in result.text
        assert (await b.call("a__pid")).text == pid, "an error of the server's own restarted it"


async def test_filters_time_limits_and_approvals_of_an_entry_hold(tmp_path: Path) -> None:
    entry = plain(includeTools=["e*", "pid"], excludeTools=["env"], alwaysAllow=["echo"], timeout=7)
    async with bench(tmp_path, {"a": entry}) as b:
        assert b.names() == ["a__echo", "a__pid"]
        assert b.status("a").tools == 2
        assert {tool.timeout for tool in b.hub.tools} == {7.0}
        assert [getattr(tool, "pre_approved", None) for tool in b.hub.tools] == [True, False]
        assert b.tool("a__echo").annotations.read_only
        assert b.tool("a__pid").annotations.destructive


async def test_mc_10_names_are_the_same_in_any_start_order(
    tmp_path: Path,
) -> None:
    tools = tmp_path / "tools.json"
    long = "n" * 89
    raw = ["a.b", "a_b", long + "1", long + "2"]
    tools.write_text(json.dumps([{"name": name, "inputSchema": {"type": "object"}} for name in raw]))
    seen = []
    for slow in ("my srv", "two"):
        folder = tmp_path / slow.replace(" ", "")
        folder.mkdir()
        servers = {
            name: plain("--tools", str(tools), "--delay", "0.4" if name == slow else "0")
            for name in ("my srv", "two")
        }
        async with bench(folder, servers) as b:
            seen.append(b.names())
            for tool in b.hub.tools:
                answer = await b.run(tool, x=1)
                assert answer.text.split(":")[0] == getattr(tool, "original", None)
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == 8


async def test_a_server_that_ends_after_the_handshake_is_failed_with_its_exit_code(tmp_path: Path) -> None:
    entry = plain("--tools", str(tmp_path / "missing.json"), "--die-on-list")
    async with bench(tmp_path, {"a": entry}) as b:
        assert b.status("a").state == "failed"
        assert "exit code 5" in b.status("a").reason
