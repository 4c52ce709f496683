"""Looking after the MCP servers of a running bridge over HTTP: what `causeway mcp` asks it for.

The routes are for the local guard: whoever may use the local channels of this machine may use them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

from aiohttp import web

from agent.skills.manager import SkillManager
from agent.tools.masking import Masker
from agent.tools.mcp.hub import McpHub, ServerStatus
from agent.tools.retrieval.confusable import confusable, dear
from agent.tools.stats import definition_tokens
from bridge.config import Config
from bridge.config_faults import nearest
from bridge.maintenance import Maintenance

#: Beyond the start time of the servers, for what a pass does besides.
_SLACK = 10.0
#: Pairs of tools that are easily mistaken, told at most.
_MOST_PAIRS = 20


class Host(Protocol):
    """What of the bridge is needed here; `App` has it."""

    config: Config
    masker: Masker
    mcp: McpHub
    maintenance: Maintenance
    skills: SkillManager


def routes(app: Host) -> Sequence[web.RouteDef]:
    """`GET /mcp/servers`, `POST /mcp/reload` and `POST /mcp/restart?name=`, to be put behind the guard of the
    local channels. They answer in JSON with secrets masked."""

    async def servers(_request: web.Request) -> web.Response:
        return await _json(app, await overview(app.mcp))

    async def reload(_request: web.Request) -> web.Response:
        return await _json(app, await _reload(app))

    async def restart(request: web.Request) -> web.Response:
        name = request.query.get("name", "")
        before = _status(app.mcp, name)
        if before is None or not await app.mcp.restart(name):
            known = [status.name for status in app.mcp.status]
            off = before is not None and before.state == "disabled"
            error = "disabled" if off else "bad entry" if before else "unknown"
            return await _json(app, {"error": error, "nearest": nearest(name, known), "known": known}, 404)
        await _restarted(app, before)
        return await _json(app, await overview(app.mcp))

    return [
        web.get("/mcp/servers", servers),
        web.post("/mcp/reload", reload),
        web.post("/mcp/restart", restart),
    ]


async def overview(hub: McpHub) -> dict[str, Any]:
    """All servers with their states and tools, as plain JSON. `tokens` is what a definition costs in each
    request to the model, about."""
    tools = hub.tools

    def look() -> tuple[list[int], list[list[str]], list[str]]:
        pairs = [[pair.first, pair.second] for pair in confusable(tools, _MOST_PAIRS)]
        return [definition_tokens(tool) for tool in tools], pairs, [one.name for one in dear(tools)]

    costs, pairs, costly = await asyncio.to_thread(look)
    servers = []
    for status in hub.status:
        own = [
            {"name": tool.name, "tokens": cost}
            for tool, cost in zip(tools, costs, strict=True)
            if tool.source == status.name
        ]
        servers.append(
            {
                "name": status.name,
                "state": status.state,
                "since": status.since,
                "reason": status.reason,
                "start_ms": status.start_ms,
                "tokens": sum(costs[place] for place, tool in enumerate(tools) if tool.source == status.name),
                "tools": own,
            }
        )
    return {"servers": servers, "problems": list(hub.problems), "confusable": pairs, "dear": costly}


async def _reload(app: Host) -> dict[str, Any]:
    """A pass of maintenance, waited for, and what it changed."""
    tools, skills = {tool.name for tool in app.mcp.tools}, _skills(app)
    report = await app.mcp.refresh()
    settled = True
    try:
        async with asyncio.timeout(app.config.mcp.start_timeout + _SLACK):
            await app.maintenance.settled()
    except TimeoutError:
        settled = False
    now, skills_now = {tool.name for tool in app.mcp.tools}, _skills(app)
    return {
        **await overview(app.mcp),
        "settled": settled,
        "added": report.added,
        "removed": report.removed,
        "changed": report.changed,
        "tools_added": sorted(now - tools),
        "tools_removed": sorted(tools - now),
        "skills_added": sorted(skills_now - skills),
        "skills_removed": sorted(skills - skills_now),
    }


async def _restarted(app: Host, before: ServerStatus) -> None:
    """Wait until the restarted server is ready or has failed again, at most its start time and a little."""
    deadline = time.monotonic() + app.config.mcp.start_timeout + _SLACK
    while (left := deadline - time.monotonic()) > 0:
        await app.mcp.settle(left)
        status = _status(app.mcp, before.name)
        moved = status is None or (status.since, status.reason) != (before.since, before.reason)
        if moved and (status is None or status.state not in ("starting", "restarting")):
            return
        await asyncio.sleep(0.05)


def _status(hub: McpHub, name: str) -> ServerStatus | None:
    return next((status for status in hub.status if status.name == name), None)


def _skills(app: Host) -> set[str]:
    return {skill.name for skill in app.skills.current.available}


async def _json(app: Host, value: dict[str, Any], status: int = 200) -> web.Response:
    whole = {"file": str(app.config.workspace / app.config.mcp.file), **value}
    safe = await asyncio.to_thread(masked, whole, app.masker)
    return web.json_response(safe, status=status, headers={"Cache-Control": "no-store"})


def masked(value: Any, masker: Masker) -> Any:
    """A copy of a JSON value with the secrets in its texts masked."""
    if isinstance(value, str):
        return masker.mask(value)
    if isinstance(value, dict):
        return {key: masked(item, masker) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item, masker) for item in value]
    return value
