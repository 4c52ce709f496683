"""One conformance scenario played by our hub: connect, list, call what the scenario is about."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any, TypedDict

from aiohttp import ClientSession

from agent.tools.base import Answer, Caller, Question, Sample, Tool, ToolContext
from agent.tools.mcp.hub import McpHub
from agent.tools.mcp.logins import LoginFailed, Logins
from tests.fakes.mcp_bench import QUICK


class Orders(TypedDict):
    """What the suite tells: the server's address, the scenario, and what is arranged beforehand."""

    url: str
    scenario: str
    context: dict[str, Any]


#: Arguments of tools that cannot do without.
_ARGUMENTS: dict[str, dict[str, Any]] = {"add_numbers": {"a": 5, "b": 3}}


_CLIENT = ("client_id", "client_secret", "issuer")
#: Where the suite presumes that a client describes itself.
_DOCUMENT = "https://conformance-test.local/client-metadata.json"
#: How often somebody logs in anew before it is given up.
LOGINS = 3


class Yes:
    """A desk whose person accepts each form as it is offered."""

    async def ask(self, question: Question) -> Answer:
        fields = question.schema.get("properties", {})
        offered = {name: field["default"] for name, field in fields.items() if "default" in field}
        missing = {
            name: {"string": "x", "boolean": True}.get(str(field.get("type")), 1)
            for name, field in fields.items()
            if name in question.schema.get("required", ()) and name not in offered
        }
        return Answer("accept", {**offered, **missing})

    def progress(self, done: float, total: float | None, message: str) -> None:
        pass

    async def sample(self, sample: Sample) -> str:
        return "some text"


class Kept:
    """Tokens in memory, as long as the scenario is played."""

    def __init__(self) -> None:
        self._records: dict[str, Any] = {}

    async def load(self, server: str) -> Any:
        return self._records.get(server)

    async def save(self, server: str, record: dict[str, Any] | None) -> None:
        self._records[server] = record


async def play(orders: Orders, folder: Path) -> str:
    """Play a scenario. Returns why the server could not be used, or nothing."""
    file = folder / "mcp.json"
    entry = {"url": orders["url"], "start_timeout": 20}
    if orders["scenario"] == "auth/pre-registration":
        entry["oauth"] = {key: orders["context"][key] for key in _CLIENT if key in orders["context"]}
    file.write_text(json.dumps({"mcpServers": {"s": entry}}))
    logins = Logins(Kept(), lambda: "http://127.0.0.1:8765/mcp/callback", client_document=lambda: _DOCUMENT)
    hub = McpHub(
        file,
        environ=os.environ,
        log_dir=None,
        cwd_default=folder,
        patience=QUICK,
        sampling=True,
        logins=logins,
    )
    await hub.start(lambda: None)
    fault = ""
    try:
        for left in reversed(range(LOGINS + 1)):
            await hub.settle(20)
            status = hub.status[0]
            fault = await _use(hub, orders, folder) if status.state == "ready" else status.reason
            if "login" not in fault or not left:
                break
            await _log_in(hub, logins)
        return fault
    except LoginFailed as failed:
        return str(failed)
    finally:
        await hub.stop()


async def _log_in(hub: McpHub, logins: Logins) -> None:
    """Do what an admin and a browser do; then wait until the server was started anew."""
    link = await hub.login("s")
    async with ClientSession() as browser, browser.get(link, allow_redirects=False) as page:
        address = page.headers.get("Location", "")
    before = hub.status[0]
    if await logins.answer_address(address) == "done" and before.state != "ready":
        async with asyncio.timeout(10):
            while (now := hub.status[0]).since == before.since or now.state in ("starting", "restarting"):
                await asyncio.sleep(0.005)


async def _use(hub: McpHub, orders: Orders, folder: Path) -> str:
    """Call what the scenario is about. Returns why a call needs a login, if one does."""
    context = ToolContext("s", "r", folder, Caller("u"), lambda name: None, call="c", desk=Yes())
    for tool, arguments in _calls(hub, orders):
        result = await tool.execute(arguments, context)
        print(f"{tool.name}: {result.text[:200]}")
        if result.is_error and "/mcp login" in result.text:
            return result.text
    for resource in hub.resources():
        await hub.read_resource(resource.server, resource.uri, folder)
    for prompt in hub.prompts():
        await hub.get_prompt(prompt.server, prompt.name, {"arg1": "a", "arg2": "b"})
    return ""


def _calls(hub: McpHub, orders: Orders) -> list[tuple[Tool, dict[str, Any]]]:
    """The calls that the suite asks for by name, else one of each tool."""
    known = {getattr(tool, "original", tool.name): tool for tool in hub.tools}
    if "toolCalls" in orders["context"]:
        return [(known[call["name"]], call["arguments"]) for call in orders["context"]["toolCalls"]]
    arguments = dict(_ARGUMENTS)
    if "json_schema_echo" in known:  # it wants the schema of the other tool as the server gave it
        server = hub.find("s")
        given = {tool.name: tool.schema for tool in server.tools} if server is not None else {}
        arguments["json_schema_echo"] = {"schema": given["json_schema_2020_12_tool"]}
    return [(tool, arguments.get(name, {})) for name, tool in known.items()]
