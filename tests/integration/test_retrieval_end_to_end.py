"""The whole bridge with 120 tools on six servers: one that fits is offered, another is found and called."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from bridge.app import App
from tests.fakes.llm import Call, Say, ScriptedModel, Seen
from tests.harness import bridge, openai_at, say_by_api
from tests.integration.test_retrieval_servers import servers

WANTED = "garage__lock_garage_entry"


def offered(seen: Seen) -> list[str]:
    return [tool["function"]["name"] for tool in seen.body["tools"]]


def script(seen: Seen) -> Say:
    """Calls what it was given for the weather; looks for what it lacks; says what came of it."""
    done = seen.number
    if done == 0:
        return Say(calls=(Call("meteo__export_meteo_entry", {"which": "all"}),))
    if done == 1:
        assert WANTED not in offered(seen)
        return Say(calls=(Call("find_tools", {"query": "lock the car"}),))
    if done == 2:
        return Say(calls=(Call(WANTED, {"which": "mine"}),))
    return Say(f"done: {seen.results}")


async def ready(app: App, tools: int) -> None:
    async with asyncio.timeout(60):
        while sum(tool.source != "builtin" for tool in app.tools.catalog) < tools:
            await asyncio.sleep(0.05)


async def test_the_fitting_tool_is_offered_and_one_outside_is_found_and_called_in_the_same_run(
    tmp_path: Path,
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "mcp.json").write_text(json.dumps({"mcpServers": servers(tmp_path)}))
    async with ScriptedModel(script).running() as model:
        settings: dict[str, Any] = {
            "model": openai_at(model.openai_url),
            "channels": {"api": {}},
            "retrieval": {"enabled": True},
        }
        async with bridge(tmp_path, settings) as app:
            await ready(app, 120)
            said = await say_by_api(app, "Please export all I have of the weather station.")
            assert '"which": "mine"' in said or "mine" in said
            lists = [offered(seen) for seen in model.seen]
            assert len(lists) == 4
            mcp = [name for name in lists[0] if "__" in name]
            assert len(mcp) == 10
            assert "meteo__export_meteo_entry" in mcp
            assert "find_tools" in lists[0]
            for before, after in pairwise(lists):
                assert after[: len(before)] == before  # it only grows, at its end
            assert WANTED in lists[2]


async def test_switched_off_everything_is_offered_and_there_is_nothing_to_find(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "mcp.json").write_text(json.dumps({"mcpServers": servers(tmp_path)}))
    async with ScriptedModel([Say("hi")]).running() as model:
        settings = {"model": openai_at(model.openai_url), "channels": {"api": {}}}
        async with bridge(tmp_path, settings) as app:
            await ready(app, 120)
            await say_by_api(app, "hello")
            names = offered(model.seen[0])
            assert sum("__" in name for name in names) == 120
            assert "find_tools" not in names
