"""bash with real processes: what it may do, how much it keeps, and that nothing outlives a call."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from agent.tools.base import Caller
from agent.tools.manager import ToolManager, ToolSettings
from agent.tools.results import Masker

from .tools_support import Bench, make_context

ADMIN = Caller("1", admin=True)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    settings = ToolSettings.model_validate(
        {"bash": {"enabled": True, "timeout": 20, "output_bytes": 3_000_000}}
    )
    manager = ToolManager(settings, mcp=None, masker=Masker())
    yield Bench(manager, make_context(tmp_path, ADMIN), tmp_path)
    await manager.stop()


def _alive(token: str) -> list[int]:
    """Processes that have the token in their command line and are no zombies."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        words = " ".join(process.info["cmdline"] or ())
        if token in words and process.info["status"] != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
            found.append(process.pid)
    return found


async def _until(condition: object, seconds: float = 5.0) -> None:
    assert callable(condition)
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def test_it_is_off_unless_enabled() -> None:
    manager = ToolManager(ToolSettings(), mcp=None, masker=Masker())
    assert manager.catalog.get("bash") is None
    await manager.stop()


@pytest.mark.parametrize("caller", [Caller("2"), Caller("1", admin=True, chat_kind="group")])
async def test_only_an_admin_in_a_direct_chat_may_use_it(bench: Bench, caller: Caller) -> None:
    bench.as_caller(caller)
    assert "bash" not in [tool.name for tool in bench.manager.offered(bench.manager.catalog, caller)]
    assert "was not run" in await bench.refused("bash", command="touch ran")
    assert not (bench.folder / "ran").exists()


async def test_a_command_runs_in_the_folder_with_a_small_environment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_API_KEY", "hidden-value")
    text = await bench.fine(
        "bash", command='pwd; echo "$HOME"; env | cut -d= -f1 | sort | tr "\\n" " "; cat; echo é'
    )
    lines = text.splitlines()
    assert lines[0] == lines[1] == str(bench.folder)
    assert set(lines[2].split()) <= {
        "PATH",
        "HOME",
        "LANG",
        "PWD",
        "SHLVL",
        "_",
        "OLDPWD",
        "CAUSEWAY_CALL",
        "é",
    }
    assert "é" in text
    assert "exit code 0" in lines[-1]


async def test_an_exit_code_is_told_and_counts_as_an_error(bench: Bench) -> None:
    text = await bench.refused("bash", command="echo out; echo err >&2; exit 3")
    assert text.startswith("out\nerr\n[exit code 3 after")
    assert "killed by SIGSEGV" in await bench.refused("bash", command="kill -SEGV $$")


async def test_long_output_keeps_its_beginning_and_its_end(bench: Bench) -> None:
    text = await bench.fine("bash", command="echo first; seq 1 300000; echo last")
    assert text.startswith("first\n1\n2\n")
    assert "\n300000\nlast\n[exit code 0" in text
    assert len(text) < 21_000
    assert "left out" in text


async def test_a_command_that_prints_without_end_is_stopped(bench: Bench) -> None:
    began = time.monotonic()
    text = await bench.refused("bash", command="yes with-token-endless")
    assert "printed too much" in text
    assert time.monotonic() - began < 8
    assert not _alive("with-token-endless")


async def test_a_command_over_its_time_is_ended_with_all_its_children(bench: Bench) -> None:
    # A child that ignores SIGTERM, and one that says goodbye on it.
    script = (
        "(trap '' TERM; exec -a stubborn-7301 sleep 300 >/dev/null) & "
        "trap 'echo goodbye; exit 0' TERM; echo begun; sleep 301 & wait"
    )
    began = time.monotonic()
    text = await bench.refused("bash", command=script, timeout=1)
    assert text.startswith("begun\ngoodbye\n[stopped: it did not end within 1 s")
    assert time.monotonic() - began < 6
    assert not _alive("stubborn-7301")


async def test_background_processes_end_with_the_call(bench: Bench) -> None:
    began = time.monotonic()
    command = (
        "sleep 7302.1 & nohup sleep 7302.2 >/dev/null 2>&1 & setsid sleep 7302.3 & "
        "(setsid setsid sleep 7302.4 >/dev/null 2>&1 &) ; echo started"
    )
    text = await bench.fine("bash", command=command)
    assert text.startswith("started\n")
    assert time.monotonic() - began < 6
    assert not _alive("7302.")


async def test_cancelling_kills_at_once_and_leaves_nothing(bench: Bench) -> None:
    script = "trap '' TERM; (trap '' TERM; sleep 7303.1) & setsid sleep 7303.2 & sleep 7303.3"
    running = asyncio.create_task(bench.call("bash", command=script))
    await _until(lambda: len(_alive("sleep 7303.")) >= 4)  # the shell and three sleeps
    began = time.monotonic()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert time.monotonic() - began < 2
    assert not _alive("7303.")


async def test_cancelling_at_any_moment_leaves_nothing(bench: Bench) -> None:
    for step in range(25):
        running = asyncio.create_task(bench.call("bash", command="sleep 7304.1 & sleep 7304.2"))
        for _ in range(step):
            await asyncio.sleep(0)
        await asyncio.sleep(step / 2_000)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert not _alive("7304.")


async def test_no_descriptor_is_left_open(bench: Bench) -> None:
    await bench.fine("bash", command="true")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(5):
        await bench.fine("bash", command="sleep 0.01 & echo x")
        await bench.refused("bash", command="false")
    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208


async def test_a_command_with_a_nul_is_refused(bench: Bench) -> None:
    assert "could not be started" in await bench.refused("bash", command="echo a\0b")


async def test_a_command_that_kills_its_own_group_is_reported(bench: Bench) -> None:
    text = await bench.refused("bash", command=f"echo x; kill -{int(signal.SIGKILL)} 0")
    assert "killed by SIGKILL" in text
