"""What MCP costs when nothing happens, and how long many servers take to start. Part of `make bench`."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from agent.tools.manager import ToolManager
from agent.tools.mcp.hub import McpHub
from agent.tools.results import Masker
from agent.tools.settings import ToolSettings
from tests.fakes.mcp_bench import QUICK, plain

PASSES = 2_000
SERVERS = 20
SLEEP = 3.0  # seconds that each of them takes before it answers


def _manager(folder: Path) -> tuple[McpHub, ToolManager]:
    hub = McpHub(folder / "mcp.json", environ=os.environ, log_dir=None, cwd_default=folder, patience=QUICK)
    return hub, ToolManager(ToolSettings(), mcp=hub, masker=Masker())


def _write(folder: Path, count: int, *words: str) -> None:
    servers = {f"s{number}": plain(*words) for number in range(count)}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))


async def unchanged_pass(manager: ToolManager) -> float:
    """Median CPU microseconds of a refresh pass that finds the file as it was."""
    await asyncio.sleep(0.2)  # a file that was written this very moment is read once more
    taken = []
    for _ in range(PASSES):
        began = time.process_time_ns()
        await manager.refresh()
        taken.append((time.process_time_ns() - began) / 1000)
    return statistics.median(taken)


def catalog_check(manager: ToolManager) -> float:
    """Median CPU nanoseconds of a turn's look whether the catalog is still the one it has."""
    held, same = manager.catalog, 0
    taken = []
    for _ in range(PASSES):
        began = time.perf_counter_ns()
        same += manager.catalog is held
        taken.append(time.perf_counter_ns() - began)
    assert same == PASSES, "the catalog changed though nothing happened"
    return statistics.median(taken)


async def start_of_many(folder: Path) -> tuple[float, float]:
    """Seconds until all servers were ready, and the slowest of them by itself."""
    _write(folder, SERVERS, "--delay", str(SLEEP))
    hub, manager = _manager(folder)
    began = time.perf_counter()
    await manager.start()
    try:
        assert await hub.settle(60)
        whole = time.perf_counter() - began
        return whole, max(status.start_ms or 0 for status in hub.status) / 1000
    finally:
        await manager.stop()


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder, 3)
        hub, manager = _manager(folder)
        await manager.start()
        try:
            assert await hub.settle(30)
            cost = await unchanged_pass(manager)
            check = catalog_check(manager)
        finally:
            await manager.stop()
        whole, slowest = await start_of_many(folder)
    print(f"mcp.json unchanged, a pass: {cost:.1f} us CPU (aim: under 100); "
          f"a turn's catalog check: {check:.0f} ns")  # fmt: skip
    print(f"{SERVERS} servers of {SLEEP:g} s each: all ready after {whole:.2f} s (aim: under {2 * SLEEP:g}), "
          f"the slowest by itself {slowest:.2f} s")  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main())
