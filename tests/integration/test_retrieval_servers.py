"""120 tools on six running MCP servers: the right one is offered, another is found and called in the run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.history import Assistant, Entry, ToolCall, ToolOutput, User
from agent.tools.base import Caller, Tool, ToolContext
from agent.tools.catalog import Catalog
from agent.tools.manager import ToolManager
from agent.tools.mcp.hub import McpHub
from agent.tools.results import Masker
from agent.tools.retrieval import Injected, Retrieval, RetrievalSettings
from agent.tools.retrieval.select import FIND_TOOLS
from agent.tools.settings import ToolSettings
from tests.fakes.mcp_bench import QUICK, plain
from tests.unit.retrieval_support import names

THINGS = {
    "meteo": "weather station", "ledger": "account in the books", "garden": "bed of flowers",
    "library": "book on loan", "kitchen": "recipe with its ingredients", "garage": "car and its service",
}  # fmt: skip
VERBS = (
    "list", "read", "create", "delete", "rename", "copy", "move", "share", "print", "archive", "restore",
    "count", "compare", "merge", "split", "sort", "tag", "lock", "watch", "export",
)  # fmt: skip
ME = Caller("1")


def servers(folder: Path) -> dict[str, Any]:
    """Six servers with twenty tools each."""
    entries = {}
    for server, thing in THINGS.items():
        tools = [
            {"name": f"{verb}_{server}_entry", "description": f"{verb.capitalize()}s a {thing}.",
             "inputSchema": {"type": "object", "properties": {"which": {"type": "string"}}}}
            for verb in VERBS
        ]  # fmt: skip
        file = folder / f"{server}.json"
        file.write_text(json.dumps(tools))
        entries[server] = plain("--tools", str(file))
    return entries


class House:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "mcp.json"
        self.hub = McpHub(
            self.file, environ={"PATH": "/usr/bin"}, log_dir=None, cwd_default=folder, patience=QUICK
        )
        self.retrieval = Retrieval(RetrievalSettings(enabled=True))
        self.manager = ToolManager(
            ToolSettings(), mcp=self.hub, masker=Masker(), more=[self.retrieval.find_tools(self.usable)]
        )
        self.state = Injected()
        self.entries: list[Entry] = []

    def usable(self, context: ToolContext) -> Sequence[Tool]:
        return self.manager.offered(self.manager.catalog, context.caller)

    async def write(self, entries: dict[str, Any]) -> None:
        self.file.write_text(json.dumps({"mcpServers": entries}))
        await self.manager.refresh()
        assert await self.hub.settle(20)
        await self.retrieval.refresh(self.manager.catalog)

    async def ask(self, catalog: Catalog) -> list[str]:
        offered = self.manager.offered(catalog, ME)
        return names(await self.retrieval.choose(catalog, offered, self.entries, "r", self.state))

    async def call(self, catalog: Catalog, name: str, **arguments: Any) -> str:
        session = self.folder / "s"
        session.mkdir(exist_ok=True)
        context = ToolContext("s", "r", session, ME, lambda _: None)
        result = await self.manager.call(catalog, name, "c", arguments, context)
        assert not result.is_error, result.text
        self.entries.append(Assistant("r", "", (ToolCall("c", name, arguments),)))
        self.entries.append(ToolOutput("r", "c", name, result.text))
        return result.text


async def test_with_120_tools_the_right_one_is_offered_and_another_is_found_and_called(
    tmp_path: Path,
) -> None:
    house = House(tmp_path)
    house.file.write_text('{"mcpServers": {}}')
    await house.manager.start()
    try:
        async with asyncio.timeout(60):
            await house.write(servers(tmp_path))
            catalog = house.manager.catalog
            assert sum(tool.source != "builtin" for tool in catalog) == 120
            house.entries.append(User("r", "Please export all I have of the weather station."))
            first = await house.ask(catalog)
            offered = house.manager.offered(catalog, ME)
            built_in = {tool.name for tool in offered if tool.source == "builtin"}
            assert built_in <= set(first)
            assert len(set(first) - built_in) == 10
            assert "meteo__export_meteo_entry" in first
            assert '"which": "all"' in await house.call(catalog, "meteo__export_meteo_entry", which="all")

            wanted = "garage__lock_garage_entry"
            assert wanted not in await house.ask(catalog)
            found = await house.call(catalog, FIND_TOOLS, query="lock the car")
            assert f"- {wanted}: Locks a car and its service." in found
            then = await house.ask(catalog)
            assert then[: len(first)] == first
            assert wanted in then
            assert '"which": "mine"' in await house.call(catalog, wanted, which="mine")

            # The server goes while the run lasts: what the run was given stays in its catalog, in its place.
            less = servers(tmp_path)
            del less["garage"]
            await house.write(less)
            kept = house.manager.catalog.keeping(catalog, house.state.names)
            assert (await house.ask(kept))[: len(then)] == then
            fresh = await house.retrieval.choose(
                house.manager.catalog, house.usable(ToolContext("s", "r2", tmp_path, ME, lambda _: None)),
                house.entries, "r2", house.state,
            )  # fmt: skip
            assert wanted not in names(fresh), "the next run sees that it is gone"
    finally:
        await house.manager.stop()
        await house.retrieval.close()
