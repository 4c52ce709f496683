"""One live session with a server, through the SDK's client. Imports the SDK; load it lazily."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
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
)
from agent.tools.mcp.logins import Logins, has_own_credentials, login_cure
from agent.tools.mcp.primitives import (
    MOST_OFFERS,
    PromptInfo,
    ResourceInfo,
    prompt_info,
    prompt_text,
    resource_info,
)
from agent.tools.mcp.process import Child, Grace, StderrLog, child_environment
from agent.tools.mcp.remote import LOST, REFUSED, describe, http_client
from agent.tools.mcp.requests import Call, Calls
from agent.tools.mcp.schema import ListedTool, read_annotations
from agent.tools.mcp.stdio import stdio_streams
from agent.tools.mcp.wire import Watched, Wire

log = logging.getLogger("causeway.mcp")

_MOST_PAGES = 200
_MOST_TOOLS = 5_000
_RELISTEN = (1.0, 60.0)  # seconds before a lost subscription is opened again, at first and at most
_FAULTS = (MCPError, ValidationError, RuntimeError, anyio.ClosedResourceError)

T = TypeVar("T")
Page = TypeVar("Page", types.ListToolsResult, types.ListResourcesResult, types.ListPromptsResult)


@dataclass(frozen=True, slots=True)
class Reply:
    """A tool's result as plain JSON: content parts, structured content, and whether it is an error."""

    content: tuple[dict[str, Any], ...]
    structured: Any = None
    is_error: bool = False


class Link:
    """A session that is open. Any task may call; only the task that opened it closes it."""

    def __init__(self, client: Client, wire: Wire, server: str, callbacks: Callbacks) -> None:
        self._client = client
        self._wire = wire
        self._server = server
        self._callbacks = callbacks

    @property
    def modern(self) -> bool:
        """Whether changes are told through a subscription (2026-07-28) instead of notifications."""
        return self._client.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def offers(self) -> frozenset[str]:
        """What the server announced beside tools."""
        can = self._client.server_capabilities
        return frozenset(kind for kind in ("resources", "prompts") if getattr(can, kind) is not None)

    def _tells(self, kind: str) -> bool:
        capability = getattr(self._client.server_capabilities, kind)
        return capability is not None and bool(capability.list_changed)

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
        listed = await self._pages(
            "tools", self._client.list_tools, lambda page: [(tool.name, tool) for tool in page.tools]
        )
        return [_listed(tool) for tool in listed[:_MOST_TOOLS]], list(self._wire.faults)

    async def list_resources(self) -> tuple[ResourceInfo, ...]:
        """All pages, in the server's order. Raises McpFault."""
        listed = await self._pages(
            "resources",
            self._client.list_resources,
            lambda page: [(item.uri, item) for item in page.resources],
        )
        return tuple(resource_info(self._server, _plain(item)) for item in listed[:MOST_OFFERS])

    async def list_prompts(self) -> tuple[PromptInfo, ...]:
        """All pages, in the server's order. Raises McpFault."""
        listed = await self._pages(
            "prompts", self._client.list_prompts, lambda page: [(item.name, item) for item in page.prompts]
        )
        return tuple(prompt_info(self._server, _plain(item)) for item in listed[:MOST_OFFERS])

    async def _pages(
        self, kind: str, ask: Callable[..., Awaitable[Page]], items: Callable[[Page], list[tuple[str, T]]]
    ) -> list[T]:
        """All pages, each key once; ends at a cursor that was seen before."""
        found: dict[str, T] = {}
        seen: set[str] = set()
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            try:
                page = await ask(cursor=cursor)
            except _FAULTS as fault:
                raise self._translate(fault, f"its {kind} could not be listed") from fault
            for key, item in items(page):
                found.setdefault(key, item)
            cursor = page.next_cursor
            if cursor is None or cursor in seen or len(found) >= _MOST_TOOLS:
                break
            seen.add(cursor)
        return list(found.values())

    async def call(
        self, tool: str, arguments: dict[str, Any], timeout: float, under: Call | None = None
    ) -> Reply:
        """Run a tool. Cancelling it, as its deadline does, tells the server to stop. Raises McpFault.

        With `under`, whose deadline then counts, progress is told and extends it. A server that refuses the
        call until pages have been opened is called once more when they were.
        """

        async def send() -> types.CallToolResult:
            return await self._client.call_tool(
                tool,
                arguments,
                read_timeout_seconds=under.longest if under else timeout,
                progress_callback=under.progress if under else None,
            )

        async def ask() -> types.CallToolResult:
            try:
                return await send()
            except MCPError as fault:
                if fault.code != types.URL_ELICITATION_REQUIRED:
                    raise
                if not await self._callbacks.open_pages(fault.data):
                    raise
                return await send()

        plain = _plain(await self._asked(ask, "the call failed", timeout))
        return Reply(
            tuple(plain.get("content") or ()), plain.get("structuredContent"), bool(plain.get("isError"))
        )

    async def read_resource(self, uri: str, timeout: float) -> tuple[dict[str, Any], ...]:
        """The parts of a resource, each with `text` or with `blob` (base64). Raises McpFault."""
        read = await self._asked(
            lambda: self._client.read_resource(uri), f"{uri[:200]!r} could not be read", timeout
        )
        return tuple(_plain(part) for part in read.contents)

    async def get_prompt(
        self, name: str, arguments: dict[str, str], timeout: float
    ) -> tuple[tuple[str, str], ...]:
        """The messages of a prompt as (role, text). Raises McpFault."""
        got = await self._asked(
            lambda: self._client.get_prompt(name, arguments), f"the prompt {name[:80]!r} was refused", timeout
        )
        return tuple((message.role, prompt_text(_plain(message.content))) for message in got.messages)

    async def _asked(self, send: Callable[[], Awaitable[T]], what: str, timeout: float) -> T:
        if self._wire.ended:
            raise SessionGone("the session has ended.")
        try:
            return await send()
        except _FAULTS as fault:
            raise self._translate(fault, what, timeout) from fault

    async def watch(self, on_change: Callable[[], None], on_offers: Callable[[], None]) -> None:
        """Report what changes until cancelled. Returns when the server will not tell any."""
        pause = _RELISTEN[0]
        kinds = [kind for kind in ("tools", "resources", "prompts") if self._tells(kind)]
        while self.modern and kinds:
            try:
                async with self._client.listen(
                    tools_list_changed="tools" in kinds,
                    resources_list_changed="resources" in kinds,
                    prompts_list_changed="prompts" in kinds,
                ) as changes:
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
    spec: ServerSpec,
    *,
    environ: Mapping[str, str],
    cwd: str,
    stderr: StderrLog,
    grace: Grace,
    on_end: Callable[[], None],
    on_change: Callable[[], None],
    on_noise: Callable[[], None],
    on_offers: Callable[[], None] = lambda: None,
    calls: Calls | None = None,
    sampling: bool = False,
    logins: Logins | None = None,
) -> AsyncIterator[Link]:
    """Connect and shake hands. Enter and leave it in the same task; put a deadline around entering.

    Raises McpFault when no session comes about. `on_end` is called when the connection is gone, `on_change`
    when the list of tools may be another one, `on_offers` when that of resources or of prompts may be,
    `on_noise` for each line on stdout that is no message. What the server asks is answered through `calls`
    (None: by cancel); whether it may ask for text from the model is `sampling`.
    """
    wire = Wire(on_end)
    callbacks = Callbacks(
        Calls(spec.name) if calls is None else calls, local=spec.kind == "stdio", sampling=sampling
    )

    async def on_message(message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            on_change()
        elif isinstance(message, types.ResourceListChangedNotification | types.PromptListChangedNotification):
            on_offers()

    transport = Watched(_streams(spec, wire, environ, cwd, stderr, grace, on_change, on_noise, logins), wire)
    client = Client(
        transport,
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
        yield Link(client, wire, spec.name, callbacks)


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
    logins: Logins | None,
) -> AsyncIterator[tuple[Any, Any]]:
    cure = login_cure(spec, logins)
    auth = None
    if spec.kind != "stdio" and logins is not None and not has_own_credentials(spec):
        auth = BearerAuth(await logins.access(spec.url))
    if spec.kind == "stdio":
        env = child_environment(environ, dict(spec.env))
        stderr.forget()
        argv = (spec.command, *spec.args)
        wire.child = await Child.spawn(argv, env=env, cwd=cwd, stderr=stderr, grace=grace)
        async with stdio_streams(wire.child, on_noise=on_noise) as streams:
            yield streams
    elif spec.kind == "http":
        # A request that could not be sent says little about the server: listing anew finds out.
        wire.http = http_client(dict(spec.headers), on_change, auth=auth, cure=cure)
        async with wire.http, streamable_http_client(spec.url, http_client=wire.http) as remote:
            yield remote
    else:

        def factory(
            headers: dict[str, str] | None = None,
            timeout: httpx2.Timeout | None = None,
            auth: httpx2.Auth | None = auth,
        ) -> httpx2.AsyncClient:
            wire.http = http_client(headers or {}, wire.on_end, auth=auth, cure=cure)
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


def _leaves(fault: BaseException) -> list[BaseException]:
    if isinstance(fault, BaseExceptionGroup):
        return [leaf for part in fault.exceptions for leaf in _leaves(part)]
    return [fault]


def _start_failure(spec: ServerSpec, wire: Wire, fault: Exception, stderr: StderrLog) -> McpFault:
    leaf = next((item for item in _leaves(fault) if not isinstance(item, asyncio.CancelledError)), fault)
    if wire.http is not None and wire.http.refused:
        return NeedsLogin(wire.http.refusal)
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
