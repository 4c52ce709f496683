"""An MCP server made with the official SDK: both protocol eras, over stdio or streamable HTTP.

`--port N` serves HTTP on 127.0.0.1:N (`/mcp`), else stdio. The tool `grow` adds a tool and tells it.
"""

from __future__ import annotations

import argparse
import asyncio
import os

import mcp_types as types
from mcp.server.mcpserver import Context, MCPServer


def build() -> MCPServer:
    server = MCPServer("sdk-fake")

    @server.tool()
    async def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @server.tool()
    async def wait(seconds: float) -> str:
        """Waits."""
        await asyncio.sleep(seconds)
        return "waited"

    @server.tool(annotations=types.ToolAnnotations(read_only_hint=True))
    async def whoami() -> str:
        """The process id."""
        return str(os.getpid())

    @server.tool()
    async def drop() -> str:
        """Ends the process in the middle of the call."""
        os._exit(4)

    @server.tool()
    async def grow(ctx: Context) -> str:
        """Adds a tool."""

        async def grown() -> str:
            """It was added later."""
            return "grown"

        server.add_tool(grown, name="grown")
        await ctx.notify_tools_changed()
        return "grew"

    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    if options.port:
        build().run("streamable-http", host="127.0.0.1", port=options.port)
    else:
        build().run("stdio")
