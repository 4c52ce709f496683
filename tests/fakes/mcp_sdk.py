"""An MCP server made with the official SDK: both protocol eras, over stdio or streamable HTTP.

`--port N` serves HTTP on 127.0.0.1:N (`/mcp`), else stdio. The tool `grow` adds a tool and tells it.
`--legacy` speaks the handshake era only; `--legacy-port M` serves that over HTTP beside the other. With
`--log FILE` what tools live through is written there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import TypeAdapter

_REQUESTS: TypeAdapter[Any] = TypeAdapter(types.InputRequest)
_ANSWERS = {
    "elicitation/create": types.ElicitResult,
    "sampling/createMessage": types.CreateMessageResult,
    "roots/list": types.ListRootsResult,
}
PAGE = "https://example.org/in"
Asked = types.CallToolResult | types.InputRequiredResult


def offer(server: MCPServer) -> None:
    """Resources and prompts, and a tool that adds one of each and tells it."""

    @server.resource("note://today", name="today", description="What is on today.", mime_type="text/plain")
    async def today() -> str:
        return "water the plants"

    @server.resource("note://logo", name="logo", mime_type="image/png")
    async def logo() -> bytes:
        return b"\x89PNG\r\n\x1a\n and more"

    @server.prompt(description="Greets somebody.")
    async def greet(name: str, tone: str = "warm") -> str:
        return f"Greet {name} in a {tone} way."

    @server.tool()
    async def offer_more(ctx: Context) -> str:
        """Adds a resource and a prompt."""

        @server.resource("note://later", name="later")
        async def later() -> str:
            return "later"

        @server.prompt(name="farewell")
        async def farewell() -> str:
            return "Say goodbye."

        if modern(ctx):
            await ctx.notify_resources_changed()
            await ctx.notify_prompts_changed()
        else:
            await ctx.session.send_resource_list_changed()
            await ctx.session.send_prompt_list_changed()
        return "offered"


def modern(ctx: Context) -> bool:
    return (ctx.protocol_version or "") >= "2026"


def asking(server: MCPServer, log: str) -> None:
    """Tools that need something of the client: as a request of their own, or as a result that asks."""

    def note(line: str) -> None:
        if log:
            with Path(log).open("a") as file:
                file.write(line + "\n")

    @server.tool()
    async def ask(ctx: Context, request: dict[str, Any]) -> Asked:
        """Asks the client what the argument says; the answer as JSON."""
        wanted = _REQUESTS.validate_python(request)
        if modern(ctx):
            if not ctx.input_responses:
                return types.InputRequiredResult(input_requests={"it": wanted}, request_state="round 1")
            answer: Any = ctx.input_responses["it"]
            if hasattr(answer, "model_dump"):
                answer = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
        else:
            for_this = ServerMessageMetadata(related_request_id=ctx.request_id)
            result = await ctx.session.send_request(wanted, _ANSWERS[request["method"]], metadata=for_this)
            answer = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return types.CallToolResult(content=[types.TextContent(type="text", text=json.dumps(answer))])

    @server.tool()
    async def ask_alone(ctx: Context, request: dict[str, Any], seconds: float = 0.0) -> str:
        """Asks, and does not say for which call; then waits."""
        wanted = _REQUESTS.validate_python(request)
        await asyncio.sleep(seconds)
        result = await ctx.session.send_request(wanted, _ANSWERS[request["method"]])
        return json.dumps(result.model_dump(by_alias=True, mode="json", exclude_none=True))

    @server.tool()
    async def needs_page(key: str) -> str:
        """Is refused until a page was opened."""
        if key not in opened:
            opened.add(key)
            page = {
                "mode": "url",
                "message": "Sign in",
                "url": "https://example.org/in",
                "elicitationId": "1",
            }
            raise MCPError(types.URL_ELICITATION_REQUIRED, "sign in first", {"elicitations": [page]})
        return "signed in"

    opened: set[str] = set()

    @server.tool()
    async def work(ctx: Context, steps: int, pause: float) -> str:
        """Tells progress and writes to the log."""
        for step in range(1, steps + 1):
            await asyncio.sleep(pause)
            await ctx.report_progress(step, steps, f"step {step}")
        for number in range(100):
            await ctx.log("warning", f"line {number}")
        return "worked"

    @server.tool()
    async def linger() -> str:
        """Waits until it is cancelled, and writes that down."""
        note("began")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            note("cancelled")
            raise
        return "lingered"


def build(log: str = "") -> MCPServer:
    server = MCPServer("sdk-fake")
    offer(server)
    asking(server, log)

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


async def legacy_stdio(server: MCPServer) -> None:
    low = server._lowlevel_server
    async with stdio_server() as (read, write), low.lifespan(low) as state:
        await serve_loop(low, read, write, lifespan_state=state)


async def both_over_http(port: int, legacy_port: int, log: str) -> None:
    import uvicorn

    app, legacy = (build(log).streamable_http_app() for _ in range(2))

    async def handshake_only(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers") or ())
        if headers.get(b"mcp-protocol-version", b"").startswith(b"2026"):
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await legacy(scope, receive, send)

    made: list[tuple[Any, int]] = [(app, port), (handshake_only, legacy_port)]
    servers = [uvicorn.Server(uvicorn.Config(one, port=at, log_level="error")) for one, at in made]
    await asyncio.gather(*(server.serve() for server in servers))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--legacy", action="store_true")
    parser.add_argument("--legacy-port", type=int, default=0)
    parser.add_argument("--log", default="")
    options = parser.parse_args()
    made = build(options.log)
    if options.legacy_port:
        asyncio.run(both_over_http(options.port, options.legacy_port, options.log))
    elif options.port:
        made.run("streamable-http", host="127.0.0.1", port=options.port)
    elif options.legacy:
        asyncio.run(legacy_stdio(made))
    else:
        made.run("stdio")
