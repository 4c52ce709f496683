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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

from agent.models.base import ToolSpec
from agent.models.schema import trimmed
from agent.tools.arguments import ArgumentChecker
from agent.tools.base import Caller, Tool, ToolContext, ToolFailure, ToolResult
from agent.tools.builtin import builtin_tools
from agent.tools.builtin.tasks import task_tool
from agent.tools.catalog import Catalog
from agent.tools.policy import Decision, Policy
from agent.tools.results import MaskedDesk, Masker, Results
from agent.tools.settings import ToolSettings
from agent.tools.stats import ToolStats, ToolUsage, Usage
from agent.tools.tasks import Tasks, Work
from agent.tools.workers import Workers

__all__ = ["McpSource", "Switches", "ToolManager", "ToolSettings", "ToolStats", "ToolUsage", "UnknownTool"]

log = logging.getLogger("causeway.tools")

#: Seconds that an MCP tool, which watches its deadlines itself, gets on top of them to say so in its words.
_OWN_DEADLINE_MARGIN = 5.0
#: Characters that a task's result is shorter than others, so that it is not cut again when it is fetched.
_TASK_MARGIN = 300
#: Offers (what a caller may use of a catalog) that are kept; they are made anew beyond that.
_MOST_OFFERS = 500
#: Definitions as models see them that are kept; they are made anew beyond that.
_MOST_SPECS = 5000
#: Names that can be switched off at once.
_MOST_OFF = 1000
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


class Switches(Protocol):
    """Where it is kept which tools are switched off."""

    async def load(self) -> Iterable[str]:
        """The names of the tools that are off."""
        ...

    async def save(self, off: frozenset[str]) -> None:
        """Keep these names instead; on disk when this returns."""
        ...


class UnknownTool(Exception):
    """There is no tool of this name. `close_matches` are names like it that the caller may use."""

    def __init__(self, name: str, close_matches: tuple[str, ...] = ()) -> None:
        super().__init__(f"there is no tool named {name[:100]!r}")
        self.name = name
        self.close_matches = close_matches


class ToolManager:
    """All tools of a process. Used from one event loop."""

    def __init__(
        self,
        settings: ToolSettings,
        *,
        mcp: McpSource | None,
        masker: Masker,
        switches: Switches | None = None,
        more: Iterable[Tool] = (),
        mounted: Callable[[str], frozenset[str]] = lambda session: frozenset(),
    ) -> None:
        """Without `switches` what is switched off is on again after a restart. `more` are built-in tools that
        need another part of the program. `mounted` names the servers that an admin put into a session."""
        self._settings = settings
        self._policy = Policy(settings.policy)
        self._mounted = mounted
        self._offers: dict[tuple[Catalog, Caller, frozenset[str]], tuple[Tool, ...]] = {}
        self._mcp = mcp
        self._masker = masker
        self._results = Results(settings, masker)
        self._switches = switches
        self._switching = asyncio.Lock()
        self._off: frozenset[str] = frozenset()
        self._workers = Workers()
        self._tasks = Tasks(settings.background, decide=self.decide) if settings.background.enabled else None
        self._builtin = (*_builtin(settings, self._workers, masker), *more)
        self._task_tool = task_tool(self._tasks) if self._tasks else None
        self._checker = ArgumentChecker()
        self._stats = Usage()
        self._specs: dict[str, tuple[Tool, ToolSpec]] = {}
        self._known: tuple[Tool, ...] = ()
        self._catalog = Catalog()
        self._rebuild()

    @property
    def catalog(self) -> Catalog:
        """The tools of now. Immutable: whoever holds it keeps what it holds."""
        return self._catalog

    @property
    def stats(self) -> Mapping[str, ToolStats]:
        """What each tool that was called has done, by name."""
        return self._stats

    def usage(self) -> tuple[ToolUsage, ...]:
        """One row a tool, also for those that are switched off: what it has done, and what it costs."""
        return self._stats.of(self._known, self._off)

    @property
    def switched_off(self) -> frozenset[str]:
        """The names of the tools that are off, also of those that are not there now."""
        return self._off

    async def switch(self, name: str, on: bool) -> None:
        """Switch a tool on or off for everybody, also after a restart and when its server comes back.

        Raises UnknownTool for a name that no tool has and that is not off, ValueError when too many are
        off, and the errors of `Switches.save`; nothing has changed then.
        """
        async with self._switching:
            if name not in self._off and all(tool.name != name for tool in self._known):
                names = [tool.name for tool in self._known]
                raise UnknownTool(name, tuple(difflib.get_close_matches(name[:64], names, 3)))
            kept = frozenset(await self._switches.load()) if self._switches else self._off
            off = kept - {name} if on else kept | {name}
            if len(off) > _MOST_OFF:
                raise ValueError(f"{_MOST_OFF} tools are switched off already; switch some on first")
            if off == self._off:
                return
            if self._switches:
                await self._switches.save(off)
            self._off = off
            self._rebuild()

    async def follow_switches(self) -> None:
        """Take over what another process has switched on or off. Raises the errors of `Switches.load`."""
        off = frozenset(await self._switches.load()) if self._switches else self._off
        if off != self._off:
            self._off = off
            self._rebuild()

    @property
    def mcp_status(self) -> tuple[Any, ...]:
        """The state of each MCP server; empty without MCP."""
        return self._mcp.status if self._mcp else ()

    async def start(self) -> None:
        """Start what tools need, without waiting for it. Built-in tools work before this too.

        Raises the errors of `Switches.load`: nothing that was switched off is offered by mistake.
        """
        if self._switches:
            self._off = frozenset(await self._switches.load())
            self._rebuild()
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
        """Stop background tasks, the MCP servers and the threads. Calls that still run should have been
        cancelled before."""
        try:
            if self._tasks:
                await self._tasks.stop()
            if self._mcp:
                await self._mcp.stop()
        finally:
            self._workers.close()

    async def end_session(self, session: str) -> None:
        """End the background tasks of a session that is over (`/new`)."""
        if self._tasks:
            await self._tasks.end_session(session)

    def offered(self, catalog: Catalog, caller: Caller, session: str = "") -> tuple[Tool, ...]:
        """The tools of the catalog that this caller may use, in the catalog's order."""
        mounted = self._mounted(session)
        key = (catalog, caller, mounted)
        if (known := self._offers.get(key)) is None:
            known = tuple(tool for tool in catalog if self._policy.allowed(tool, caller, mounted))
            if len(self._offers) >= _MOST_OFFERS:
                self._offers.clear()
            self._offers[key] = known
        return known

    def specs(self, tools: Iterable[Tool]) -> list[ToolSpec]:
        """The tools as models see them, trimmed as the settings say; the same tool is always the same."""
        specs: list[ToolSpec] = []
        for tool in tools:
            known = self._specs.get(tool.name)
            if known is None or known[0] is not tool:
                trim, whole = self._settings.trim, ToolSpec(tool.name, tool.description, tool.params)
                known = self._specs[tool.name] = (tool, trimmed(whole, trim.descriptions, plain=trim.schemas))
                while len(self._specs) > _MOST_SPECS:
                    del self._specs[next(iter(self._specs))]
            specs.append(known[1])
        return specs

    def decide(self, tool: Tool, caller: Caller, session: str = "") -> Decision:
        """Whether this caller may use the tool here, or a person has to say yes first."""
        return self._policy.decide(tool, caller, self._mounted(session))

    async def call(
        self, catalog: Catalog, name: str, call_id: str, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolResult:
        """Run a call and return its result, bounded and masked; failures are error results.

        A call that outlasts its deadline may go on as a background task; the result then says so. Raises
        UnknownTool for a name that is not in the catalog, and passes cancellation on.
        """
        tool = catalog.get(name)
        if name in self._off:
            return _failed(f"{name} was not run. An admin has switched it off. Do without it.")
        if tool is None:
            raise UnknownTool(name, self._close_matches(catalog, name, context))
        tasks = self._tasks
        if tasks is None or not _may_last(tool):
            return await self._run(tool, call_id, arguments, context)

        async def start(work: Work) -> ToolResult:
            # The tool as it is, with more time; the deadline of its own is kept by the tasks.
            patient = cast(Tool, replace(cast(Any, tool), timeout=self._settings.background.limit))
            return await self._run(patient, call_id, arguments, work.context, work)

        return await tasks.run(tool, context, start)

    async def _run(
        self,
        tool: Tool,
        call_id: str,
        arguments: Mapping[str, Any],
        context: ToolContext,
        work: Work | None = None,
    ) -> ToolResult:
        """Run a call to its end: the result as models get it, counted."""
        began = time.monotonic()
        outcome = "cancelled"
        if context.desk is not None:
            context = replace(context, desk=MaskedDesk(context.desk, self._masker))
        result = None
        try:
            result, outcome = await self._outcome(tool, arguments, context, patient=work is not None)
            shorter = _TASK_MARGIN if work and work.id else 0
            text = await self._results.finish(
                result.text, tool=tool.name, folder=context.folder, shorter=shorter
            )
            result = replace(result, text=text)
        finally:
            if outcome == "cancelled" and work and work.ending in ("timeout", "given up"):
                outcome = "timeout"
            self._record(tool, call_id, context, outcome, time.monotonic() - began, result)
        return result

    async def _outcome(
        self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext, *, patient: bool = False
    ) -> tuple[ToolResult, str]:
        """The raw result, and how the call ended in one word. `patient`: its deadline is the last one."""
        decision = self.decide(tool, context.caller, context.session)
        if decision.effect == "deny":
            return _failed(f"{tool.name} was not run. {decision.reason} Do without it."), "denied"
        try:
            ready = self._checker.check(tool.name, tool.params, arguments)
        except ToolFailure as failure:
            return _failed(str(failure)), "invalid"
        deadline = asyncio.timeout(tool.timeout if patient else _longest(tool))
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
        self._stats.record(tool.name, outcome, seconds, size)
        log.info(
            "tool %s %s in %.0f ms, %d bytes (session %s, run %s, call %s)",
            tool.name, outcome, seconds * 1000, size, context.session, context.run, call_id,
        )  # fmt: skip

    def _rebuild(self) -> None:
        tools: tuple[Tool, ...] = (*self._builtin, *(self._mcp.tools if self._mcp else ()))
        if self._task_tool and any(map(_may_last, tools)):
            tools = (*self._builtin, self._task_tool, *tools[len(self._builtin) :])
        self._known = tools
        offered = [tool for tool in tools if tool.name not in self._off]
        # Servers tell changes of their state, too: the same tools are the same catalog.
        if list(map(id, offered)) != list(map(id, self._catalog)):
            self._catalog = Catalog(offered)
            self._offers.clear()

    def _close_matches(self, catalog: Catalog, name: str, context: ToolContext) -> tuple[str, ...]:
        names = [tool.name for tool in self.offered(catalog, context.caller, context.session)]
        # An MCP tool called without its server's name, or with the server's name written otherwise.
        short = name[:64].rpartition("__")[2]
        same = [known for known in names if short and known.rpartition("__")[2] == short]
        near = difflib.get_close_matches(name[:64], names, 3)
        return tuple(dict.fromkeys([*same, *near]))[:3]


def _builtin(settings: ToolSettings, workers: Workers, masker: Masker) -> tuple[Tool, ...]:
    """The built-in tools with their deadlines. A command that may go on in the background has the time for
    it; what it may take before that stays the tool's deadline."""
    seconds: dict[str, float] = dict(settings.timeouts)
    if settings.background.enabled:
        seconds["bash"] = settings.bash.timeout
        longest = max(settings.background.limit, settings.bash.timeout)
        settings = settings.model_copy(update={"bash": settings.bash.model_copy(update={"timeout": longest})})
    return tuple(
        cast(Tool, replace(cast(Any, tool), timeout=seconds[tool.name])) if tool.name in seconds else tool
        for tool in builtin_tools(settings, workers, masker)
    )


def _may_last(tool: Tool) -> bool:
    """Whether a call of the tool may go on in the background."""
    return tool.source != "builtin" or tool.name == "bash"


def _longest(tool: Tool) -> float:
    """Seconds after which a call is cut off. An MCP tool watches its deadline itself, moves it when its
    server tells progress or a person is asked, and says in its own words that it is over."""
    if tool.source == "builtin":
        return tool.timeout
    return float(getattr(tool, "ceiling", tool.timeout)) + _OWN_DEADLINE_MARGIN


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
