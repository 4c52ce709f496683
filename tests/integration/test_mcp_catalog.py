"""Servers and the manager together: what runs are offered while servers come, change and go."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.models.base import ToolSpec
from agent.models.chat import render_tool
from agent.models.schema import DEEPEST, ToolRenderer
from agent.tools.base import Caller, ToolContext, ToolResult
from agent.tools.catalog import Catalog
from agent.tools.manager import ToolManager, ToolSettings, UnknownTool
from agent.tools.mcp.hub import McpHub
from agent.tools.results import Masker
from tests.fakes.mcp_bench import QUICK, alive, plain, until
from tests.fakes.mcp_plain import PNG

ME = Caller("1")


class House:
    """A manager over an mcp.json, and calls from sessions with a folder each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "mcp.json"
        self.hub = McpHub(
            self.file, environ={"PATH": "/usr/bin"}, log_dir=None, cwd_default=folder, patience=QUICK
        )
        self.manager = ToolManager(ToolSettings(), mcp=self.hub, masker=Masker())

    def write(self, servers: Mapping[str, Any]) -> None:
        self.file.write_text(json.dumps({"mcpServers": servers}))

    async def follow(self, servers: Mapping[str, Any]) -> None:
        """Change the file, as after a reply."""
        self.write(servers)
        await self.manager.refresh()
        assert await self.hub.settle(20)

    async def call(
        self, name: str, /, _session: str = "s", _catalog: Catalog | None = None, **arguments: Any
    ) -> ToolResult:
        session = self.folder / _session
        session.mkdir(exist_ok=True)
        context = ToolContext(_session, "r", session, ME, lambda _: None)
        catalog = self.manager.catalog if _catalog is None else _catalog
        async with asyncio.timeout(20):
            return await self.manager.call(catalog, name, "c", arguments, context)

    def mcp_names(self, catalog: Catalog | None = None) -> list[str]:
        tools = self.manager.offered(self.manager.catalog if catalog is None else catalog, ME)
        return [tool.name for tool in tools if tool.source != "builtin"]


@asynccontextmanager
async def house(folder: Path, servers: Mapping[str, Any]) -> AsyncIterator[House]:
    folder.mkdir(exist_ok=True)
    made = House(folder)
    made.write(servers)
    await made.manager.start()
    try:
        assert await made.hub.settle(20)
        yield made
    finally:
        await made.manager.stop()


def listed(folder: Path, name: str, *tools: dict[str, Any]) -> str:
    file = folder / f"{name}.json"
    file.write_text(json.dumps([{"inputSchema": {"type": "object"}, **tool} for tool in tools]))
    return str(file)


async def test_mc_01_every_session_sees_a_change_at_its_next_step_and_a_run_keeps_what_it_used(
    tmp_path: Path,
) -> None:
    async with house(tmp_path, {"one": plain()}) as h:
        run = h.manager.catalog  # session B is in the middle of a run and has used a tool
        assert (await h.call("one__echo", "b", run, text="hi")).text.startswith("echo")
        await h.follow({"two": plain()})  # after a reply of session A
        run = h.manager.catalog.keeping(run, ["one__echo"])
        names = h.mcp_names(run)
        assert "two__echo" in names
        assert [name for name in names if name.startswith("one__")] == ["one__echo"]
        gone = await h.call("one__echo", "b", run, text="hi")
        assert gone.is_error
        assert "'one' was removed from mcp.json" in gone.text
        await h.follow({})
        assert h.mcp_names() == []
        assert h.mcp_names(h.manager.catalog.keeping(run, ["one__echo"])) == ["one__echo"]
        with pytest.raises(UnknownTool):
            await h.call("two__echo")


async def test_a_held_catalog_reaches_the_server_that_serves_now(tmp_path: Path) -> None:
    """A server that came back with the same tool names must not leave its dead client with live agents."""
    async with house(tmp_path, {"a": plain()}) as h:
        held = h.manager.catalog
        first = int((await h.call("a__pid", _catalog=held)).text)
        await h.follow({"a": plain("--tag", "changed")})
        second = int((await h.call("a__pid", _catalog=held)).text)
        assert second != first
        await until(lambda: not alive(first))
        assert h.manager.catalog.get("a__pid") is not None
        assert int((await h.call("a__pid")).text) == second


async def test_two_servers_may_have_the_same_tool_and_one_may_go(tmp_path: Path) -> None:
    async with house(tmp_path, {"a": plain(), "b": plain()}) as h:
        pids = {(await h.call(f"{name}__pid")).text for name in "ab"}
        assert len(pids) == 2
        await h.follow({"b": plain()})
        assert not [name for name in h.mcp_names() if name.startswith("a__")]
        assert (await h.call("b__pid")).text in pids


async def test_no_server_can_take_the_place_of_a_built_in_tool(tmp_path: Path) -> None:
    tools = listed(tmp_path, "tools", *({"name": name} for name in ("read", "bash", "write", "task_status")))
    servers = {name: plain("--tools", tools) for name in ("read", "_", "builtin", "x__read")}
    async with house(tmp_path / "h", servers) as h:
        (tmp_path / "h" / "s").mkdir()
        (tmp_path / "h" / "s" / "note.txt").write_text("the note")
        assert (await h.call("read", path="note.txt")).text.startswith("the note")
        built_in = {tool.name for tool in h.manager.catalog if tool.source == "builtin"}
        others = h.mcp_names()
        assert not built_in & set(others)
        assert len(others) == len(set(others)) == 12
        (failed,) = [status for status in h.hub.status if status.state != "ready"]
        assert (failed.name, "taken by the built-in tools" in failed.reason) == ("builtin", True)
        await h.follow({})
        assert {tool.name for tool in h.manager.catalog} == built_in - {"task_status"}


async def test_two_managers_in_one_process_share_nothing(tmp_path: Path) -> None:
    async with house(tmp_path / "one", {"fs": plain()}) as one:
        async with house(tmp_path / "two", {"fs": plain()}) as two:
            pids = {(await h.call("fs__pid")).text for h in (one, two)}
            assert len(pids) == 2
            await two.follow({})
        assert (await one.call("fs__pid")).text in pids


async def test_calls_of_two_sessions_at_once_end_in_their_own_folders(tmp_path: Path) -> None:
    async with house(tmp_path, {"a": plain()}) as h:
        results = await asyncio.gather(*(h.call("a__shapes", f"s{n}", kind="png") for n in range(6)))
        for n, result in enumerate(results):
            assert (tmp_path / f"s{n}" / result.images[0].path).read_bytes() == PNG
            assert len(list((tmp_path / f"s{n}").rglob("*.png"))) == 1


async def test_mc_17_sounds_links_blobs_and_nothing_arrive_in_the_right_form(tmp_path: Path) -> None:
    async with house(tmp_path, {"a": plain()}) as h:
        sound = await h.call("a__shapes", kind="audio")
        assert [(file.mime, (tmp_path / "s" / file.path).read_bytes()[:4]) for file in sound.files] == [
            ("audio/wav", b"RIFF")
        ]
        assert sound.images == ()
        blob = await h.call("a__shapes", kind="blob")
        assert "file://x.pdf (application/pdf, 6 bytes) saved as mcp/" in blob.text
        assert "https://example.org/a" in (await h.call("a__shapes", kind="link")).text
        assert (await h.call("a__shapes", kind="nothing")).text == "(the tool returned nothing)"


async def test_mc_25_a_tool_stays_off_while_its_server_restarts_leaves_and_comes_back(tmp_path: Path) -> None:
    async with house(tmp_path, {"a": plain()}) as h:
        await h.manager.switch("a__echo", False)
        pid = (await h.call("a__pid")).text
        assert await h.hub.restart("a")
        await until(lambda: h.hub.status[0].state == "ready" and h.mcp_names() and not alive(int(pid)))
        assert "a__echo" not in h.mcp_names()
        await h.follow({})
        await h.follow({"a": plain()})
        assert "a__pid" in h.mcp_names()
        assert "a__echo" not in h.mcp_names()
        assert "switched it off" in (await h.call("a__echo", text="x")).text
        await h.manager.switch("a__echo", True)
        assert (await h.call("a__echo", text="x")).text.startswith("echo")


async def test_mc_11_real_listings_with_odd_schemas_are_offered_and_called(tmp_path: Path) -> None:
    endless: Any = {}
    for _ in range(DEEPEST + 1):
        endless = {"type": "object", "properties": {"p": endless}}
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}, "v": {"type": "integer"}}}
    tools = listed(
        tmp_path, "tools",
        {"name": "bare", "inputSchema": {}},
        {"name": "list", "inputSchema": {"type": "object", "properties": {"l": {"type": "array"}}}},
        {"name": "tree", "inputSchema": {
            "type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": node}}},
        {"name": "large", "inputSchema": {"type": "object", "properties": {
            f"p{n}": {"type": "string", "description": "d" * 300} for n in range(100)}}},
        {"name": "deep", "inputSchema": endless},
    )  # fmt: skip
    async with house(tmp_path / "h", {"a": plain("--tools", tools)}) as h:
        offered = h.manager.offered(h.manager.catalog, ME)
        specs = [ToolSpec(tool.name, tool.description, tool.params) for tool in offered]
        shown = {tool["function"]["name"] for tool in ToolRenderer("openai", render_tool)(specs)}
        assert {tool.name for tool in offered} - shown == {"a__deep"}
        assert (await h.call("a__tree", n={"next": {"v": 1}})).text == 'tree: {"n": {"next": {"v": 1}}}'
        refused = await h.call("a__tree", n={"next": {"next": {"next": {"v": "x y"}}}})
        assert "`n.next.next.next.v` must be of type integer" in refused.text, "the original is what counts"
        assert (await h.call("a__large", p99="kept")).text == 'large: {"p99": "kept"}'


async def test_the_deadlines_of_servers_and_of_single_tools_hold(tmp_path: Path) -> None:
    entry = plain(timeout=7, toolTimeouts={"sleep": 90, "e*": 3})
    async with house(tmp_path, {"a": entry, "b": plain(), "c": {"url": "http://127.0.0.1:9/mcp"}}) as h:
        times = {tool.name: tool.timeout for tool in h.manager.catalog if tool.source in "ab"}
        assert (times["a__sleep"], times["a__echo"], times["a__env"], times["a__pid"]) == (90, 3, 3, 7)
        assert times["b__pid"] == 60


async def test_a_slow_call_becomes_a_task_and_one_that_is_given_up_is_cancelled_at_the_server(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    entry = plain("--log", str(log), toolTimeouts={"sleep": 0.2})
    async with house(tmp_path, {"a": entry}) as h:

        async def begin(seconds: float) -> str:
            text = (await h.call("a__sleep", seconds=seconds)).text
            found = re.search(r"task-\w+", text)
            assert found, text
            return found[0]

        short, long = await begin(0.6), await begin(60)
        assert (await h.call("task_status", task=short, wait=10)).text.startswith("sleep: ")
        stopped = await h.call("task_status", task=long, stop=True)
        assert stopped.is_error
        await until(lambda: "cancelled" in log.read_text())
        assert (await h.call("a__pid")).text, "the server serves on"
        stats = h.manager.stats["a__sleep"]
        assert (stats.calls, stats.failures) == (2, 0)


async def test_a_task_whose_server_dies_ends_with_the_reason(tmp_path: Path) -> None:
    async with house(tmp_path, {"a": plain(toolTimeouts={"sleep": 0.1})}) as h:
        found = re.search(r"task-\w+", (await h.call("a__sleep", seconds=60)).text)
        assert found
        looking = asyncio.create_task(h.call("task_status", task=found[0], wait=15))
        await h.call("a__die")
        result = await looking
        assert result.is_error
        assert "its process ended (exit code 3)" in result.text
