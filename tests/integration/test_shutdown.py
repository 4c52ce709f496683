"""SIGTERM: in time, exit code 0, no child left, nothing forgotten."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.fakes.llm import Call, Say, ScriptedModel, Seen
from tests.harness import Process, openai_at, say_by_api, write_config

TIME = {"mcpServers": {"time": {"command": sys.executable, "args": ["-m", "mcp_server_time"]}}}
COMPLAINTS = ("was destroyed", "Unclosed", "unclosed", "never awaited", "never retrieved", "Traceback")


@pytest.mark.parametrize("busy", ["idle", "model", "tool"])
async def test_sigterm_ends_within_the_grace_time_and_leaves_nothing(tmp_path: Path, busy: str) -> None:
    asked = asyncio.Event()

    async def answer(seen: Seen) -> Say:
        asked.set()
        if busy == "model":
            await asyncio.Event().wait()
        if not seen.results:
            return Say(calls=(Call("bash", {"command": "trap '' TERM; sleep 300 & sleep 300"}),))
        return Say("done")

    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "mcp.json").write_text(json.dumps(TIME))
    async with ScriptedModel(answer).running() as model:
        settings = {
            "model": openai_at(model.openai_url),
            "sessions": {"grace_seconds": 1},
            "tools": {"bash": {"enabled": True}, "policy": [{"effect": "allow", "tools": ["bash"]}]},
        }
        bridge = Process(write_config(tmp_path, settings), tmp_path)
        try:
            await bridge.start()
            me = psutil.Process(bridge.pid)
            async with asyncio.timeout(20):
                while "1 of 1" not in await say_by_api(bridge, "/status"):
                    await asyncio.sleep(0.05)
            page = asyncio.create_task(watch(bridge))
            question = None
            if busy != "idle":
                question = asyncio.create_task(say_by_api(bridge, "go", "other"))
                await asyncio.wait_for(asked.wait(), 10)
            if busy == "tool":
                async with asyncio.timeout(10):
                    while sum("sleep" in " ".join(c.cmdline()) for c in me.children(recursive=True)) < 2:
                        await asyncio.sleep(0.02)
            children = me.children(recursive=True)
            assert children
            began = time.monotonic()
            assert await bridge.terminate() == 0
            took = time.monotonic() - began
            assert took < 1 + 6, f"{took:.1f} s"
            _, alive = psutil.wait_procs(children, timeout=0.5)
            # A dead grandchild waits for the machine's init to reap it; it runs no more.
            alive = [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]
            assert not alive, alive
            for complaint in COMPLAINTS:
                assert complaint not in bridge.output, bridge.output
            for task in (page, question):
                if task is not None:
                    await asyncio.wait({task}, timeout=5)
                    assert task.done()
        finally:
            await bridge.close()


async def watch(bridge: Process) -> None:
    """A browser that keeps the page's event stream open."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
        async with client.get(f"{bridge.url}/") as response:
            await response.text()
        try:
            async with client.get(f"{bridge.url}/web/events") as response:
                async for _ in response.content:
                    pass
        except aiohttp.ClientError:
            return


async def test_a_second_bridge_on_the_same_workspace_is_refused_with_the_cure(tmp_path: Path) -> None:
    config = write_config(tmp_path, {})
    first, second = Process(config, tmp_path), Process(config, tmp_path)
    try:
        await first.start()
        await second.start(ready=False)
        assert second.process is not None
        assert await asyncio.wait_for(second.process.wait(), 20) == 1
        await second._drained()
        assert "Another bridge already works in" in second.output
        assert "Traceback" not in second.output
    finally:
        await first.close()
        await second.close()
