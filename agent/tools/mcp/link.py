"""One live session with a server, through the SDK's client. Imports the SDK; load it lazily."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from agent.tools.mcp.config import ServerSpec
from agent.tools.mcp.faults import (
    CallRefused,
    CallTimeout,
    Down,
    McpFault,
    NeedsLogin,
    SessionGone,
    StartFailed,
)
from agent.tools.mcp.process import Child, Grace, StderrLog, child_environment
from agent.tools.mcp.remote import LOST, describe, http_client
from agent.tools.mcp.schema import ListedTool, read_annotations
from agent.tools.mcp.stdio import stdio_streams
from agent.tools.mcp.wire import Watched, Wire

log = logging.getLogger("causeway.mcp")

_MOST_PAGES = 200
_MOST_TOOLS = 5_000
_RELISTEN = (1.0, 60.0)  # seconds before a lost subscription is opened again, at first and at most


@dataclass(frozen=True, slots=True)
class Reply:
    """A tool's result as plain JSON: content parts, structured content, and whether it is an error."""

    content: tuple[dict[str, Any], ...]
    structured: Any = None
    is_error: bool = False


class Link:
    """A session that is open. Any task may call; only the task that opened it closes it."""

    def __init__(self, client: Client, wire: Wire) -> None:
        self._client = client
        self._wire = wire

    @property
    def modern(self) -> bool:
        """Whether changes are told through a subscription (2026-07-28) instead of notifications."""
        return self._client.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def tells_changes(self) -> bool:
        tools = self._client.server_capabilities.tools
        return tools is not None and bool(tools.list_changed)

    async def list_tools(self) -> tuple[list[ListedTool], list[str]]:
        """All pages of the list, in the server's order, and what had to be left out.

        Ends at a cursor that was seen before. Raises McpFault.
        """
        if self._client.server_capabilities.tools is None:
            return await self._unannounced_tools()
        return await self._all_pages()

    async def _unannounced_tools(self) -> tuple[list[ListedTool], list[str]]:
        """The tools of a server that forgot to announce them; none if it does not know the question."""
        try:
            async with asyncio.timeout(5.0):
                return await self._all_pages()
        except (TimeoutError, CallRefused, CallTimeout):
            return [], []

    async def _all_pages(self) -> tuple[list[ListedTool], list[str]]:
        self._wire.faults.clear()
        tools: list[ListedTool] = []
        names: set[str] = set()
        seen: set[str] = set()
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            try:
                page = await self._client.list_tools(cursor=cursor)
            except (MCPError, ValidationError, RuntimeError, anyio.ClosedResourceError) as fault:
                raise self._translate(fault, "its tools could not be listed") from fault
            for tool in page.tools:
                if tool.name not in names:
                    names.add(tool.name)
                    tools.append(_listed(tool))
            cursor = page.next_cursor
            if cursor is None or cursor in seen or len(tools) >= _MOST_TOOLS:
                break
            seen.add(cursor)
        return tools[:_MOST_TOOLS], list(self._wire.faults)

    async def call(self, tool: str, arguments: dict[str, Any], timeout: float) -> Reply:
        """Run a tool. Cancelling it, or its deadline, tells the server to stop. Raises McpFault."""
        if self._wire.ended:
            raise SessionGone("the session has ended.")
        try:
            result = await self._client.call_tool(tool, arguments, read_timeout_seconds=timeout)
        except (MCPError, ValidationError, RuntimeError, anyio.ClosedResourceError) as fault:
            raise self._translate(fault, "the call failed", timeout) from fault
        plain = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return Reply(
            tuple(plain.get("content") or ()), plain.get("structuredContent"), bool(plain.get("isError"))
        )

    async def watch(self, on_change: Callable[[], None]) -> None:
        """Report changes of the tool list until cancelled. Returns when the server will not tell any."""
        pause = _RELISTEN[0]
        while self.modern and self.tells_changes:
            try:
                async with self._client.listen(tools_list_changed=True) as changes:
                    on_change()  # something may have changed before the subscription stood
                    async for _ in changes:
                        pause = _RELISTEN[0]
                        on_change()
            except SubscriptionLost:
                on_change()  # also finds out whether the server is still there
            except (MCPError, TimeoutError, RuntimeError) as fault:
                log.info("an MCP server takes no subscription: %s", type(fault).__name__)
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, _RELISTEN[1])

    async def farewell(self) -> str:
        """Why the connection ended, as far as can be told."""
        child = self._wire.child
        if child is None:
            return "the connection ended"
        code = await child.exit_code(0.5)
        if code is None:
            return "it closed its output"
        return f"its process ended (signal {-code})" if code < 0 else f"its process ended (exit code {code})"

    def _translate(self, fault: Exception, what: str, timeout: float = 0.0) -> McpFault:
        http = self._wire.http
        if isinstance(fault, ValidationError):
            return CallRefused(f"{what}: the server's answer is not valid MCP.")
        if isinstance(fault, anyio.ClosedResourceError):
            return Down("the connection to the server is closed.")
        if not isinstance(fault, MCPError):
            return CallRefused(f"{what}: {_short(str(fault))}")
        if fault.code == types.REQUEST_TIMEOUT:
            return CallTimeout(
                f"no answer within {timeout:g} s." if timeout else f"{what}: no answer in time."
            )
        # Servers use the code for faults of their own, too: it means the connection only with more evidence.
        gone = self._wire.ended or fault.message == "Connection closed" or fault.data == LOST
        if fault.code == types.CONNECTION_CLOSED and (gone or fault.message.startswith("SSE stream ended")):
            return Down(_short(fault.message))
        if fault.code == types.INVALID_REQUEST and fault.message == "Session terminated" and http is not None:
            return SessionGone("the server forgot the session.")
        if http is not None and http.refused:
            return NeedsLogin(f"the server asks for a login (HTTP {http.refused}).")
        status = f" (HTTP {http.status})" if http is not None and http.status else ""
        return CallRefused(f"{what}: {_short(fault.message)}{status}")


def _listed(tool: types.Tool) -> ListedTool:
    hints = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else {}
    return ListedTool(
        tool.name, tool.description or tool.title or "", dict(tool.input_schema), read_annotations(hints)
    )


@asynccontextmanager
async def open_link(
    spec: ServerSpec,
    *,
    environ: Mapping[str, str],
    cwd: str,
    stderr: StderrLog,
    grace: Grace,
    on_end: Callable[[], None],
    on_change: Callable[[], None],
    on_noise: Callable[[], None],
) -> AsyncIterator[Link]:
    """Connect and shake hands. Enter and leave it in the same task; put a deadline around entering.

    Raises McpFault when no session comes about. `on_end` is called when the connection is gone, `on_change`
    when the list of tools may be another one, `on_noise` for each line on stdout that is no message.
    """
    wire = Wire(on_end)

    async def on_message(message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            on_change()

    transport = Watched(_streams(spec, wire, environ, cwd, stderr, grace, on_change, on_noise), wire)
    client = Client(
        transport,
        cache=None,  # we list when something changed; a cached answer would hide it
        message_handler=on_message,
        read_timeout_seconds=30.0,
        client_info=types.Implementation(name="causeway", version="1"),
    )
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(client)
        except Exception as fault:
            # Whatever the SDK raises while connecting, often inside exception groups, becomes one reason.
            raise _start_failure(spec, wire, fault, stderr) from fault
        yield Link(client, wire)


@asynccontextmanager
async def _streams(
    spec: ServerSpec,
    wire: Wire,
    environ: Mapping[str, str],
    cwd: str,
    stderr: StderrLog,
    grace: Grace,
    on_change: Callable[[], None],
    on_noise: Callable[[], None],
) -> AsyncIterator[tuple[Any, Any]]:
    if spec.kind == "stdio":
        env = child_environment(environ, dict(spec.env))
        stderr.forget()
        argv = (spec.command, *spec.args)
        wire.child = await Child.spawn(argv, env=env, cwd=cwd, stderr=stderr, grace=grace)
        async with stdio_streams(wire.child, on_noise=on_noise) as streams:
            yield streams
    elif spec.kind == "http":
        # A request that could not be sent says little about the server: listing anew finds out.
        wire.http = http_client(dict(spec.headers), on_change)
        async with wire.http, streamable_http_client(spec.url, http_client=wire.http) as remote:
            yield remote
    else:

        def factory(
            headers: dict[str, str] | None = None,
            timeout: httpx2.Timeout | None = None,
            auth: httpx2.Auth | None = None,
        ) -> httpx2.AsyncClient:
            wire.http = http_client(headers or {}, wire.on_end)
            return wire.http

        # An idle stream is no fault, so reading it has no time limit of its own.
        async with sse_client(
            spec.url, headers=dict(spec.headers), httpx_client_factory=factory, sse_read_timeout=86_400.0
        ) as remote:
            yield remote


def _leaves(fault: BaseException) -> list[BaseException]:
    if isinstance(fault, BaseExceptionGroup):
        return [leaf for part in fault.exceptions for leaf in _leaves(part)]
    return [fault]


def _start_failure(spec: ServerSpec, wire: Wire, fault: Exception, stderr: StderrLog) -> McpFault:
    leaf = next((item for item in _leaves(fault) if not isinstance(item, asyncio.CancelledError)), fault)
    if wire.http is not None and wire.http.refused:
        return NeedsLogin(
            f"the server asks for a login (HTTP {wire.http.refused}); give it a header such as "
            '"Authorization": "Bearer ${TOKEN}" in mcp.json'
        )
    if isinstance(leaf, FileNotFoundError):
        return StartFailed(
            f"the command {spec.command!r} was not found; install it or write its full path "
            "(its arguments belong into 'args')",
            lasting=True,
        )
    if isinstance(leaf, PermissionError | NotADirectoryError):
        return StartFailed(f"the command {spec.command!r} cannot be run ({leaf.strerror})", lasting=True)
    said = stderr.last_words() if spec.kind == "stdio" else ""
    tail = f"; its last words: {said}" if said else ""
    if isinstance(leaf, MCPError) and leaf.code == types.CONNECTION_CLOSED and spec.kind == "stdio":
        code = wire.child.returncode if wire.child is not None else None
        ended = f" (exit code {code})" if code is not None else ""
        return StartFailed(f"it ended before it answered{ended}{tail}")
    if isinstance(leaf, MCPError):
        status = wire.http.status if wire.http is not None else 0
        hint = ""
        if status in (400, 404, 405) and spec.kind == "http":
            hint = f' (HTTP {status}; is the path right? An older server may need "type": "sse")'
        elif status and status != 502:
            hint = f" (HTTP {status})"
        return StartFailed(f"no handshake: {_short(leaf.message)}{hint}{tail}")
    if isinstance(leaf, httpx2.HTTPError):
        return StartFailed(f"no handshake: {describe(leaf)}")
    if isinstance(leaf, ValidationError):
        return StartFailed(f"its answer to the handshake is not valid MCP{tail}", lasting=True)
    return StartFailed(f"no handshake: {_short(str(leaf)) or type(leaf).__name__}{tail}")


def _short(text: str) -> str:
    """The first line of a server's message, at most 300 characters."""
    return (text.strip().splitlines() or [""])[0][:300]
