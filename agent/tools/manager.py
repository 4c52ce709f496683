"""The one ToolManager of a process: the catalog of all tools, and the way every call goes.

A call is checked against the policy and the tool's schema, runs under a deadline, and its result is
bounded and masked. Whatever goes wrong comes back as an error result that a model can act on.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import importlib
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from agent.tools.arguments import ArgumentChecker
from agent.tools.base import Caller, Tool, ToolContext, ToolFailure, ToolResult
from agent.tools.builtin import builtin_tools
from agent.tools.catalog import Catalog
from agent.tools.policy import allowed, denial
from agent.tools.results import Masker, finish
from agent.tools.settings import ToolSettings
from agent.tools.workers import Workers

__all__ = ["McpSource", "ToolManager", "ToolSettings", "ToolStats", "UnknownTool"]

log = logging.getLogger("causeway.tools")

#: Seconds that an MCP tool, which watches its deadline itself, gets on top of it to say so in its words.
_OWN_DEADLINE_MARGIN = 5.0
_MAX_STATS = 2000
# An absolute path of the host; not a URL's, nor a part of a relative one.
_HOST_PATH = re.compile(r"(?<![\w/:.\\-])(?:/(?!skills/)(?:[\w.@+~-]+/)+[\w.@+~-]*|[A-Za-z]:\\[^\s'\"<>|]+)")


class McpSource(Protocol):
    """Where MCP tools come from. All of it is used on the event loop."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools of all servers that are ready."""
        ...

    @property
    def status(self) -> tuple[Any, ...]:
        """One entry a server, for people."""
        ...

    async def start(self, on_change: Callable[[], None]) -> None:
        """Start the servers in the background and return at once. `on_change` is called when `tools` may
        have changed."""
        ...

    async def refresh(self) -> object:
        """Follow the configuration file. Returns without waiting for servers to start."""
        ...

    async def stop(self) -> None: ...


@dataclass(slots=True)
class ToolStats:
    """What a tool has done since the start. `milliseconds` and `bytes` are sums over all calls; `bytes` are
    of results as models got them (UTF-8)."""

    calls: int = 0
    failures: int = 0
    timeouts: int = 0
    milliseconds: float = 0.0
    bytes: int = 0


class UnknownTool(Exception):
    """There is no tool of this name. `close_matches` are names like it that the caller may use."""

    def __init__(self, name: str, close_matches: tuple[str, ...] = ()) -> None:
        super().__init__(f"there is no tool named {name[:100]!r}")
        self.name = name
        self.close_matches = close_matches


class ToolManager:
    """All tools of a process. Used from one event loop."""

    def __init__(self, settings: ToolSettings, *, mcp: McpSource | None, masker: Masker) -> None:
        self._settings = settings
        self._mcp = mcp
        self._masker = masker
        self._workers = Workers()
        self._builtin = tuple(builtin_tools(settings, self._workers))
        self._checker = ArgumentChecker()
        self._stats: dict[str, ToolStats] = {}
        self._catalog = Catalog(self._builtin)

    @property
    def catalog(self) -> Catalog:
        """The tools of now. Immutable: whoever holds it keeps what it holds."""
        return self._catalog

    @property
    def stats(self) -> Mapping[str, ToolStats]:
        """What each tool that was called has done, by name."""
        return MappingProxyType(self._stats)

    @property
    def mcp_status(self) -> tuple[Any, ...]:
        """The state of each MCP server; empty without MCP."""
        return self._mcp.status if self._mcp else ()

    async def start(self) -> None:
        """Start what tools need, without waiting for it. Built-in tools work before this too."""
        # The first call would wait for these imports, and so would everybody else on the loop.
        for module in ("jsonschema", "regex"):
            self._workers.prepare(functools.partial(importlib.import_module, module))
        if self._mcp:
            await self._mcp.start(self._rebuild)

    async def refresh(self) -> None:
        """Upkeep: follow `mcp.json`. Never on the way of a reply."""
        if self._mcp:
            await self._mcp.refresh()

    async def stop(self) -> None:
        """Stop the MCP servers and the threads. Calls that still run should have been cancelled before."""
        try:
            if self._mcp:
                await self._mcp.stop()
        finally:
            self._workers.close()

    def offered(self, catalog: Catalog, caller: Caller) -> tuple[Tool, ...]:
        """The tools of the catalog that this caller may use, in the catalog's order."""
        return tuple(tool for tool in catalog if allowed(tool, caller))

    async def call(
        self, catalog: Catalog, name: str, call_id: str, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolResult:
        """Run a call and return its result, bounded and masked; failures are error results.

        Raises UnknownTool for a name that is not in the catalog, and passes cancellation on.
        """
        tool = catalog.get(name)
        if tool is None:
            raise UnknownTool(name, self._close_matches(catalog, name, context.caller))
        began = time.monotonic()
        outcome = "cancelled"
        result = None
        try:
            result, outcome = await self._outcome(tool, arguments, context)
            text = finish(result.text, self._settings.result_chars, self._masker)
            result = replace(result, text=_storable(text))
        finally:
            self._record(tool, call_id, context, outcome, time.monotonic() - began, result)
        return result

    async def _outcome(
        self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext
    ) -> tuple[ToolResult, str]:
        """The raw result, and how the call ended in one word."""
        if reason := denial(tool, context.caller):
            return _failed(f"{tool.name} was not run. {reason} Do without it."), "denied"
        try:
            ready = self._checker.check(tool.name, tool.params, arguments)
        except ToolFailure as failure:
            return _failed(str(failure)), "invalid"
        margin = 0.0 if tool.source == "builtin" else _OWN_DEADLINE_MARGIN
        deadline = asyncio.timeout(tool.timeout + margin)
        try:
            async with deadline:
                result = await tool.execute(ready, context)
        except ToolFailure as failure:
            return _failed(_without_folder(str(failure), context.folder)), "failed"
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled this task: something that the tool waited for was cancelled elsewhere.
            return _failed(f"{tool.name} was interrupted. Try once more, or go on without it."), "failed"
        except Exception as error:
            # Whatever a tool raises must reach the model as a result, or the run would end for it.
            if deadline.expired() and isinstance(error, TimeoutError):
                return _failed(_too_late(tool)), "timeout"
            log.warning("tool %s raised %s", tool.name, type(error).__name__, exc_info=True)
            return _failed(_explained(tool, error, context.folder)), "failed"
        return result, "failed" if result.is_error else "ok"

    def _record(
        self,
        tool: Tool,
        call_id: str,
        context: ToolContext,
        outcome: str,
        seconds: float,
        result: ToolResult | None,
    ) -> None:
        size = len(result.text.encode()) if result else 0
        stats = self._stats.setdefault(tool.name, ToolStats())
        while len(self._stats) > _MAX_STATS:
            del self._stats[next(iter(self._stats))]
        stats.calls += 1
        stats.failures += outcome not in ("ok", "cancelled")
        stats.timeouts += outcome == "timeout"
        stats.milliseconds += seconds * 1000
        stats.bytes += size
        log.info(
            "tool %s %s in %.0f ms, %d bytes (session %s, run %s, call %s)",
            tool.name, outcome, seconds * 1000, size, context.session, context.run, call_id,
        )  # fmt: skip

    def _rebuild(self) -> None:
        self._catalog = Catalog((*self._builtin, *(self._mcp.tools if self._mcp else ())))

    def _close_matches(self, catalog: Catalog, name: str, caller: Caller) -> tuple[str, ...]:
        names = [tool.name for tool in self.offered(catalog, caller)]
        # An MCP tool called without its server's name, or with the server's name written otherwise.
        short = name[:64].rpartition("__")[2]
        same = [known for known in names if short and known.rpartition("__")[2] == short]
        near = difflib.get_close_matches(name[:64], names, 3)
        return tuple(dict.fromkeys([*same, *near]))[:3]


def _storable(text: str) -> str:
    """The text without what stores and providers refuse: NUL, and halves of surrogate pairs."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def _failed(text: str) -> ToolResult:
    return ToolResult(text, is_error=True)


def _too_late(tool: Tool) -> str:
    return (
        f"{tool.name} did not end within {tool.timeout:g} s and was stopped. "
        "What it had already done stays done. Ask for less at a time, or go on without it."
    )


def _explained(tool: Tool, error: Exception, folder: Path) -> str:
    """What, why and what to try, from an exception that was not meant for a model."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OSError) and error.strerror:
        why = error.strerror  # without the file's name, which is a path of the host
    else:
        first = next((line for line in str(error).splitlines() if line.strip()), "").strip()
        why = f"{type(error).__name__}: {first[:500]}" if first else type(error).__name__
    why = _HOST_PATH.sub("(path)", _without_folder(why, folder)).rstrip(".")
    return f"{tool.name} failed. {why}. Try it with other arguments, or go on without it."


def _without_folder(text: str, folder: Path) -> str:
    """The text with paths in the session's folder made relative, as tools take them."""
    for base in {str(folder), os.path.realpath(folder)}:
        text = text.replace(base + "/", "").replace(base, ".")
    return text
