"""An MCP tool in the shape that the agent knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agent.tools.base import Annotations, ToolContext, ToolResult
from agent.tools.mcp.faults import Down, McpFault
from agent.tools.mcp.requests import HELD_AT_MOST, ceiling
from agent.tools.mcp.results import render_reply
from agent.tools.mcp.server import McpServer


@dataclass(frozen=True, slots=True, eq=False)
class McpTool:
    """One tool of one server.

    It finds its server at each call by name, so that a run that still holds an older catalog reaches the
    server that serves now, and learns it when there is none.
    """

    name: str
    description: str
    params: dict[str, Any]
    annotations: Annotations
    timeout: float
    source: str
    original: str  # the server's own name of the tool
    find: Callable[[str], McpServer | None]
    pre_approved: bool = False  # the entry's alwaysAllow names it
    admin_only: bool = False
    mount: tuple[str, ...] = ()  # where and for whom it is there; empty: everywhere
    on_request: bool = False  # only where an admin has mounted its server

    @property
    def ceiling(self) -> float:
        """Seconds after which a call is over however much progress its server tells and however long people
        take to answer; `timeout` is how long the server may be silent."""
        return ceiling(self.timeout) + HELD_AT_MOST

    async def execute(self, params: dict[str, Any], context: ToolContext) -> ToolResult:
        """Call the tool. A failure of any kind is an error result; only cancelling raises."""
        server = self.find(self.source)
        if server is None:
            return ToolResult(
                f"{self.name} is gone: its MCP server {self.source!r} was removed from mcp.json. "
                "Do without it, or ask an admin to add the server again.",
                is_error=True,
            )
        try:
            reply = await server.call(self.original, params, self.timeout, context)
        except McpFault as fault:
            cure = fault.cure
            if isinstance(fault, Down) and self.annotations.read_only:
                cure = "Try once more in a few seconds; if it fails again, do without this tool."
            what = str(fault).strip()
            stop = "" if what.endswith((".", "!", "?")) else "."
            return ToolResult(f"{self.name} failed: {what}{stop} {cure}", is_error=True)
        parts = (reply.content, reply.structured, reply.is_error)
        return await asyncio.to_thread(render_reply, *parts, folder=context.folder, stem=self.name)
