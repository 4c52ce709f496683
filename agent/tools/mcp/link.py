"""One live session with a server, through the SDK's client. Imports the SDK; load it lazily."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
import httpx2
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import PromptsListChanged, ResourcesListChanged, SubscriptionLost
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from agent.tools.mcp.auth import BearerAuth
from agent.tools.mcp.callbacks import Callbacks
from agent.tools.mcp.config import ServerSpec
from agent.tools.mcp.faults import (
    CallRefused,
    CallTimeout,
    Down,
    McpFault,
    NeedsLogin,
    SessionGone,
    StartFailed,
    leaf_of,
)
from agent.tools.mcp.logins import has_own_credentials, login_cure
from agent.tools.mcp.primitives import (
    MOST_OFFERS,
    PromptInfo,
    ResourceInfo,
    prompt_info,
    prompt_text,
    resource_info,
)
from agent.tools.mcp.process import Child, StderrLog, child_environment
from agent.tools.mcp.remote import LOST, REFUSED, CallBoundClient, describe
from agent.tools.mcp.requests import Call, Calls
from agent.tools.mcp.schema import ListedTool, read_annotations
from agent.tools.mcp.stdio import stdio_streams
from agent.tools.mcp.surroundings import Hooks, Surroundings
from agent.tools.mcp.wire import Wire, watched

log = logging.getLogger("causeway.mcp")

_MOST_PAGES = 200
_MOST_TOOLS = 5_000
_RELISTEN = (1.0, 60.0)  # seconds before a lost subscription is opened again, at first and at most
_FAULTS = (MCPError, ValidationError, RuntimeError, anyio.ClosedResourceError)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    """A tool's result as plain JSON: content parts, structured content, and whether it is an error."""

    content: tuple[dict[str, Any], ...]
    structured: Any = None
    is_error: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """A session that is open. Any task may call; only the task that opened it closes it."""

    _client: Client
    _wire: Wire
    _server: str
    _callbacks: Callbacks
    _hooks: Hooks

    @property
    def protocol(self) -> str:
        """The revision that both sides agreed on."""
        return self._client.protocol_version

    @property
    def offers(self) -> frozenset[str]:
        """What the server announced beside tools."""
        can = self._client.server_capabilities
        return frozenset(kind for kind in ("resources", "prompts") if getattr(can, kind) is not None)

    async def list_tools(self) -> tuple[list[ListedTool], list[str]]:
        """All pages of the list, in the server's order, and what had to be left out. Raises McpFault."""
        self._wire.faults.clear()
        forgotten = self._client.server_capabilities.tools is None
        try:
            # A server that did not announce its tools may have some, or may not know the question.
            async with asyncio.timeout(5.0 if forgotten else None):
                listed: list[types.Tool] = await self._pages("tools", "name", self._client.list_tools)
        except (TimeoutError, CallRefused, CallTimeout):
            if not forgotten:
                raise
            return [], []
        return [_listed(tool) for tool in listed[:_MOST_TOOLS]], list(self._wire.faults)

    async def list_resources(self) -> tuple[ResourceInfo, ...]:
        """All pages, in the server's order. Raises McpFault."""
        listed = await self._pages("resources", "uri", self._client.list_resources)
        return tuple(resource_info(self._server, _plain(item)) for item in listed[:MOST_OFFERS])

    async def list_prompts(self) -> tuple[PromptInfo, ...]:
        """All pages, in the server's order. Raises McpFault."""
        listed = await self._pages("prompts", "name", self._client.list_prompts)
        return tuple(prompt_info(self._server, _plain(item)) for item in listed[:MOST_OFFERS])

    async def _pages(self, kind: str, key: str, ask: Callable[..., Awaitable[Any]]) -> list[Any]:
        """All pages, each key once; ends at a cursor that was seen before."""
        found: dict[str, Any] = {}
        seen: set[str] = set()
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            try:
                page = await ask(cursor=cursor)
            except _FAULTS as fault:
                raise self._translate(fault, f"its {kind} could not be listed") from fault
            for item in getattr(page, kind):
                found.setdefault(getattr(item, key), item)
            cursor = page.next_cursor
            if cursor is None or cursor in seen or len(found) >= _MOST_TOOLS:
                break
            seen.add(cursor)
        return list(found.values())

    async def call(self, tool: str, arguments: dict[str, Any], under: Call) -> Reply:
        """Run a tool. Cancelling it, as its deadline does, tells the server to stop. Raises McpFault.

        Progress is told to `under`, whose deadline counts. A server that refuses the call until pages have
        been opened is called once more when they were.
        """

        async def send() -> types.CallToolResult:
            return await self._client.call_tool(
                tool, arguments, read_timeout_seconds=under.longest, progress_callback=under.progress
            )

        async def ask() -> types.CallToolResult:
            try:
                return await send()
            except MCPError as fault:
                wanted = fault.code == types.URL_ELICITATION_REQUIRED
                if not wanted or not await self._callbacks.open_pages(fault.data):
                    raise
                return await send()

        plain = _plain(await self._asked(ask, "the call failed"))
        return Reply(
            tuple(plain.get("content") or ()), plain.get("structuredContent"), bool(plain.get("isError"))
        )

    async def read_resource(self, uri: str) -> tuple[dict[str, Any], ...]:
        """The parts of a resource, each with `text` or with `blob` (base64). Raises McpFault."""
        what = f"{uri[:200]!r} could not be read"
        read = await self._asked(lambda: self._client.read_resource(uri), what)
        return tuple(_plain(part) for part in read.contents)

    async def get_prompt(self, name: str, arguments: dict[str, str]) -> tuple[tuple[str, str], ...]:
        """The messages of a prompt as (role, text). Raises McpFault."""
        what = f"the prompt {name[:80]!r} was refused"
        got = await self._asked(lambda: self._client.get_prompt(name, arguments), what)
        return tuple((message.role, prompt_text(_plain(message.content))) for message in got.messages)

    async def _asked(self, send: Callable[[], Awaitable[T]], what: str) -> T:
        if self._wire.ended:
            raise SessionGone("the session has ended.")
        try:
            return await send()
        except _FAULTS as fault:
            raise self._translate(fault, what) from fault

    async def watch(self) -> None:
        """Report what changes until cancelled. Returns when the server will not tell any."""
        on_change, on_offers = self._hooks.on_change, self._hooks.on_offers
        pause = _RELISTEN[0]
        can = self._client.server_capabilities
        parts = {"tools": can.tools, "resources": can.resources, "prompts": can.prompts}
        told: dict[str, Any] = {
            f"{kind}_list_changed": bool(part and part.list_changed) for kind, part in parts.items()
        }
        # Until 2025-11-25 changes are told by notifications.
        while self.protocol in MODERN_PROTOCOL_VERSIONS and any(told.values()):
            try:
                async with self._client.listen(**told) as changes:
                    on_change()  # something may have changed before the subscription stood
                    on_offers()
                    async for event in changes:
                        pause = _RELISTEN[0]
                        other = isinstance(event, ResourcesListChanged | PromptsListChanged)
                        (on_offers if other else on_change)()
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

    def _translate(self, fault: Exception, what: str) -> McpFault:
        http = self._wire.http
        if isinstance(fault, ValidationError):
            return CallRefused(f"{what}: the server's answer is not valid MCP.")
        if isinstance(fault, anyio.ClosedResourceError):
            return Down("the connection to the server is closed.")
        if not isinstance(fault, MCPError):
            return CallRefused(f"{what}: {_short(str(fault))}")
        if fault.code == types.REQUEST_TIMEOUT:
            return CallTimeout(f"{what}: no answer in time.")
        # Servers use the code for faults of their own, too: it means the connection only with more evidence.
        gone = self._wire.ended or fault.message == "Connection closed" or fault.data == LOST
        if fault.code == types.CONNECTION_CLOSED and (gone or fault.message.startswith("SSE stream ended")):
            return Down(_short(fault.message))
        if fault.code == types.INVALID_REQUEST and fault.message == "Session terminated" and http is not None:
            return SessionGone("the server forgot the session.")
        if fault.data == REFUSED:
            return NeedsLogin(fault.message)
        status = f" (HTTP {http.status})" if http is not None and http.status else ""
        return CallRefused(f"{what}: {_short(fault.message)}{status}")


def _plain(model: Any) -> dict[str, Any]:
    plain: dict[str, Any] = model.model_dump(by_alias=True, mode="json", exclude_none=True)
    return plain


def _listed(tool: types.Tool) -> ListedTool:
    hints = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else {}
    return ListedTool(
        tool.name, tool.description or tool.title or "", dict(tool.input_schema), read_annotations(hints)
    )


@asynccontextmanager
async def open_link(
    spec: ServerSpec, around: Surroundings, *, cwd: str, stderr: StderrLog, hooks: Hooks, calls: Calls
) -> AsyncIterator[Link]:
    """Connect and shake hands. Enter and leave it in the same task; put a deadline around entering.

    Raises McpFault when no session comes about. What the server asks is answered through `calls`.
    """
    wire = Wire(hooks.on_end)
    callbacks = Callbacks(calls, local=spec.kind == "stdio", sampling=around.sampling)

    async def on_message(message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            hooks.on_change()
        elif isinstance(message, types.ResourceListChangedNotification | types.PromptListChangedNotification):
            hooks.on_offers()

    client = Client(
        watched(_streams(spec, around, wire, cwd, stderr, hooks), wire),
        cache=None,  # we list when something changed; a cached answer would hide it
        message_handler=on_message,
        read_timeout_seconds=30.0,
        client_info=types.Implementation(name="causeway", version="1"),
        **callbacks.options(),
    )
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(client)
        except Exception as fault:
            # Whatever the SDK raises while connecting, often inside exception groups, becomes one reason.
            raise _start_failure(spec, wire, fault, stderr) from fault
        yield Link(client, wire, spec.name, callbacks, hooks)


@asynccontextmanager
async def _streams(
    spec: ServerSpec, around: Surroundings, wire: Wire, cwd: str, stderr: StderrLog, hooks: Hooks
) -> AsyncIterator[tuple[Any, Any]]:
    cure = login_cure(spec, around.logins)
    auth = None
    if spec.kind != "stdio" and around.logins is not None and not has_own_credentials(spec):
        auth = BearerAuth(await around.logins.access(spec.url))
    if spec.kind == "stdio":
        env = child_environment(around.environ, dict(spec.env))
        stderr.forget()
        argv, grace = (spec.command, *spec.args), around.patience.grace
        wire.child = await Child.spawn(argv, env=env, cwd=cwd, stderr=stderr, grace=grace)
        async with stdio_streams(wire.child, on_noise=hooks.on_noise) as streams:
            yield streams
    elif spec.kind == "http":
        # A request that could not be sent says little about the server: listing anew finds out.
        wire.http = CallBoundClient(dict(spec.headers), hooks.on_change, auth=auth, cure=cure)
        async with wire.http, streamable_http_client(spec.url, http_client=wire.http) as remote:
            yield remote
    else:

        def factory(
            headers: dict[str, str] | None = None,
            timeout: httpx2.Timeout | None = None,
            auth: httpx2.Auth | None = auth,
        ) -> httpx2.AsyncClient:
            wire.http = CallBoundClient(headers or {}, hooks.on_end, auth=auth, cure=cure)
            return wire.http

        # An idle stream is no fault, so reading it has no time limit of its own.
        async with sse_client(
            spec.url,
            headers=dict(spec.headers),
            httpx_client_factory=factory,
            sse_read_timeout=86_400.0,
            auth=auth,
        ) as remote:
            yield remote


def _start_failure(spec: ServerSpec, wire: Wire, fault: Exception, stderr: StderrLog) -> McpFault:
    leaf = leaf_of(fault)
    if wire.http is not None and wire.http.refused:
        return NeedsLogin(wire.http.refusal)
    if isinstance(leaf, FileNotFoundError):
        cure = "install it or write its full path (its arguments belong into 'args')"
        return StartFailed(f"the command {spec.command!r} was not found; {cure}", lasting=True)
    if isinstance(leaf, PermissionError | NotADirectoryError):
        return StartFailed(f"the command {spec.command!r} cannot be run ({leaf.strerror})", lasting=True)
    tail = stderr.last_words()
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
