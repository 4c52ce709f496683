"""What tests of MCP share: a hub over a file in a temporary folder, and waiting for conditions."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent.tools.base import Caller, Tool, ToolContext, ToolResult
from agent.tools.mcp.hub import McpHub, RefreshReport, ServerStatus
from agent.tools.mcp.process import Grace
from agent.tools.mcp.surroundings import Patience

FAKES = Path(__file__).parent
#: Short times, so that tests need not wait; the order of the steps is the real one.
QUICK = Patience(first_pause=0.05, longest_pause=0.2, between_listings=0.01, grace=Grace(0.5, 0.5, 1.0))


def plain(*options: str, **entry: Any) -> dict[str, Any]:
    """An entry for the plain fake."""
    return {"command": sys.executable, "args": [str(FAKES / "mcp_plain.py"), *options], **entry}


def sdk(*options: str, **entry: Any) -> dict[str, Any]:
    """An entry for the fake that is made with the SDK."""
    return {"command": sys.executable, "args": [str(FAKES / "mcp_sdk.py"), *options], **entry}


async def until(condition: Callable[[], Any], timeout: float = 10.0) -> None:
    """Wait for a condition; fails when it does not come about."""
    deadline = asyncio.get_running_loop().time() + timeout
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition did not come about in time"
        await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process lives; a zombie that nobody has reaped yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def living(pids: Path) -> list[int]:
    """The processes of those that wrote their number into a file that live."""
    return [int(line) for line in pids.read_text().split() if alive(int(line))] if pids.exists() else []


class Bench:
    """One hub, its file and its folder."""

    def __init__(self, folder: Path, hub: McpHub) -> None:
        self.folder = folder
        self.hub = hub
        self.file = folder / "mcp.json"
        self.changes = 0

    def write(self, servers: Mapping[str, Any]) -> None:
        self.file.write_text(json.dumps({"mcpServers": servers}, indent=1))

    async def reload(self, servers: Mapping[str, Any]) -> RefreshReport:
        """Write the file, follow it, and wait until everything has started."""
        self.write(servers)
        report = await self.hub.refresh()
        assert await self.hub.settle(20)
        return report

    def names(self) -> list[str]:
        return [tool.name for tool in self.hub.tools]

    def tool(self, name: str) -> Tool:
        return next(tool for tool in self.hub.tools if tool.name == name)

    def status(self, name: str) -> ServerStatus:
        return next(status for status in self.hub.status if status.name == name)

    async def call(self, name: str, /, **arguments: Any) -> ToolResult:
        return await self.run(self.tool(name), **arguments)

    async def run(self, tool: Tool, /, **arguments: Any) -> ToolResult:
        session = self.folder / "session"
        session.mkdir(exist_ok=True)
        context = ToolContext("s", "r", session, Caller("u"), lambda name: None)
        return await tool.execute(arguments, context)


@asynccontextmanager
async def bench(
    folder: Path,
    servers: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    patience: Patience = QUICK,
    settle: bool = True,
    **options: Any,
) -> AsyncIterator[Bench]:
    """A started hub; at the end it is stopped, and no task of it may be left."""
    before = asyncio.all_tasks()
    hub = McpHub(
        folder / "mcp.json",
        environ=os.environ if environ is None else environ,
        log_dir=folder / "logs",
        cwd_default=folder,
        patience=patience,
        **options,
    )
    made = Bench(folder, hub)
    if servers is not None:
        made.write(servers)

    def changed() -> None:
        made.changes += 1

    await hub.start(changed)
    try:
        if settle:
            assert await hub.settle(20)
        yield made
    finally:
        await hub.stop()
        assert hub.tools == ()
        # A double's own server may still be at work on a request that the hub gave up.
        new = [task for task in asyncio.all_tasks() - before if "RequestHandler" not in repr(task)]
        assert [task for task in new if not task.done()] == []
