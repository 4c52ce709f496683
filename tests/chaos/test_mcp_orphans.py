"""After kill -9 of the bridge: servers that do not notice it are ended by the next start."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import psutil

from tests.harness import ROOT, Process, say_by_api, write_config


def servers_of(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = " ".join(process.info["cmdline"] or ())
        if str(folder) in words and "mcp_plain" in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


async def ready(bridge: Process) -> None:
    async with asyncio.timeout(30):
        while "1 of 1" not in await say_by_api(bridge, "/status"):
            await asyncio.sleep(0.05)


async def test_a_server_that_outlives_a_killed_bridge_is_ended_by_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    arguments = ["-m", "tests.fakes.mcp_plain", "--stubborn", "--log", str(tmp_path / "server.log")]
    server = {"command": sys.executable, "args": arguments, "cwd": str(ROOT)}
    (tmp_path / "workspace" / "mcp.json").write_text(json.dumps({"mcpServers": {"s": server}}))
    bridge = Process(write_config(tmp_path, {"channels": {"api": {}}}), tmp_path, dev=False)
    try:
        await bridge.start()
        await ready(bridge)
        (left,) = servers_of(tmp_path)
        await bridge.kill()
        assert left.is_running()  # it ignores that its stdin is closed
        await bridge.start()
        await ready(bridge)
        (new,) = servers_of(tmp_path)
        assert new.pid != left.pid
        assert await bridge.terminate() == 0
        assert servers_of(tmp_path) == []
    finally:
        await bridge.close()
        for process in servers_of(tmp_path):
            process.kill()
