"""One MCP server as an actor: a single task connects, lists, watches, restarts and leaves.

The SDK's client must be entered and left in one task, so that task is `run`; everybody else talks to it by
flags and a wake-up. Calls multiplex over its session from any task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from agent.tools.base import ToolContext
from agent.tools.mcp.config import ServerSpec
from agent.tools.mcp.faults import (
    CallTimeout,
    Down,
    McpFault,
    NeedsLogin,
    SessionGone,
    StartFailed,
    Unreachable,
    leaf_of,
)
from agent.tools.mcp.names import file_stem
from agent.tools.mcp.primitives import PromptInfo, ResourceInfo
from agent.tools.mcp.process import StderrLog
from agent.tools.mcp.requests import Call, Calls
from agent.tools.mcp.schema import ListedTool
from agent.tools.mcp.surroundings import Hooks, Surroundings

if TYPE_CHECKING:
    from agent.tools.mcp.link import Link, Reply

log = logging.getLogger("causeway.mcp")

_FORGOTTEN = "the server forgot the session"
_IDLE = "it was idle"

T = TypeVar("T")
State = Literal["starting", "ready", "failed", "restarting", "needs_auth", "disabled"]


class McpServer:
    """A server from its first start to its stop. `on_change` is called after a change of state or tools."""

    def __init__(self, spec: ServerSpec, around: Surroundings, on_change: Callable[[], None]) -> None:
        self.spec = spec
        self.state: State = "disabled" if spec.disabled else "starting"
        self.reason = ""
        self.since = around.clock()
        self.start_ms: int | None = None
        self.tools: tuple[ListedTool, ...] = ()
        self.resources: tuple[ResourceInfo, ...] = ()
        self.prompts: tuple[PromptInfo, ...] = ()
        self.stopping = False  # it was told to end
        self._around = around
        self._on_change = on_change
        path = None if around.log_dir is None else around.log_dir / f"mcp-{file_stem(spec.name)}.log"
        self._stderr = StderrLog(path, around.mask)
        self._link: Link | None = None
        self._limit: asyncio.Timeout | None = None
        self._wake = asyncio.Event()
        self._pulse = asyncio.Event()
        self._drain = 0.0
        self._ending = ""  # why the present session is to end
        self._dirty = False  # the list of tools may have changed
        self._stale = False  # the lists of resources and prompts may have changed
        self._kicked = False  # somebody asked for a restart
        self._wanted = False  # a call waits for a server that was stopped for idleness
        self._calls = Calls(spec.name)
        self._noisy = False
        self._hooks = Hooks(
            lambda: self._end_session(None, "lost"), self._note_change, self._note_offers, self._note_noise
        )

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def offered(self) -> tuple[ListedTool, ...]:
        """The tools that are shown: those of a server that is ready, or was and is coming back."""
        return self.tools if self.state in ("ready", "restarting") else ()

    # What others ask of the actor ------------------------------------------------------------------------

    def adopt(self, spec: ServerSpec) -> None:
        """Take on settings that need no new process: filters, time limits, approvals."""
        self.spec = spec
        self._wake.set()
        self._changed()

    def restart(self) -> None:
        """End the present session, if any, and start anew at once, also from rest."""
        self._kicked = True
        self._ending = self._ending or "a restart was asked for"
        self._wake.set()

    def logged_in(self) -> None:
        """Somebody logged in at the server: start anew, unless the session stands and needed more rights."""
        if self.state != "ready":
            self._set("restarting", "somebody logged in")
            self.restart()

    def stop(self, drain: float = 0.0) -> None:
        """Let `run` finish: no new calls, up to `drain` seconds for those under way, then the session ends.

        A server that is still starting is given up at once and never becomes ready.
        """
        self.stopping = True
        self._drain = drain
        self._wake.set()
        self._changed()
        if self._link is None and self._limit is not None:
            with suppress(RuntimeError):  # the start ended in this very moment
                self._limit.reschedule(asyncio.get_running_loop().time())

    async def call(self, tool: str, arguments: dict[str, Any], timeout: float, context: ToolContext) -> Reply:
        """Call a tool by the server's own name for it. Raises McpFault.

        `timeout` is how long the server may be silent, in seconds; progress that it tells extends the call
        up to a ceiling, and waiting for a person or the model does not count. What it asks meanwhile goes to
        the desk of `context`.
        """
        under = Call.of(context, timeout)
        return await self.through(lambda link: link.call(tool, arguments, under), under)

    async def through(self, send: Callable[[Link], Awaitable[T]], under: Call) -> T:
        """Send a request through the session that serves. Raises McpFault.

        While the server restarts the request waits a few seconds for it. A remote session that was forgotten
        is opened anew once for all that meet it, and each is sent once more: it was not run.
        """
        patience = min(under.timeout, self._around.patience.reconnect)
        link = await self._usable(patience)
        try:
            return await self._once(link, send, under)
        except SessionGone:
            self._end_session(link, _FORGOTTEN)
            link = await self._usable(patience, instead_of=link)
            return await self._once(link, send, under)

    async def _once(self, link: Link, send: Callable[[Link], Awaitable[T]], under: Call) -> T:
        began = asyncio.get_running_loop().time()
        try:
            async with self._calls.under_way(under):
                return await send(link)
        except TimeoutError:
            spent = asyncio.get_running_loop().time() - began
            if spent < under.timeout * 1.5:
                raise CallTimeout(f"no answer within {under.timeout:g} s.") from None
            raise CallTimeout(f"no end within {spent:.0f} s, though it told progress or asked.") from None
        except Down as fault:
            self._note_change()  # a dead connection shows itself when the list is read
            why = await link.farewell() if self.spec.kind == "stdio" else str(fault)
            raise Down(f"{why.rstrip('.')} during the call; it is being restarted.") from fault
        finally:
            self._changed(tell=False)
            if self.spec.idle_stop is not None:
                self._wake.set()

    async def _usable(self, patience: float, instead_of: Link | None = None) -> Link:
        """The session to call through; waits up to `patience` seconds for one that is on its way, longer for
        a server that has to be started for it."""
        if self.state == "ready" and self._link is None and not self.stopping:
            self._wanted = True
            self._wake.set()
            patience = self.spec.start_timeout
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while not self.stopping and self.state in ("starting", "ready", "restarting"):
                    if self.state == "ready" and self._link not in (None, instead_of):
                        break
                    await self._pulse.wait()
        link = self._link
        if link is None or link is instead_of or self.state != "ready" or self.stopping:
            what = "is being stopped" if self.stopping else f"is {self.state.replace('_', ' ')}"
            raise Unreachable(f"the server {what}" + (f": {self.reason}" if self.reason else "."))
        return link

    # The actor -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Own the server until `stop` is called. Raises nothing but CancelledError."""
        failures = 0
        while not self.spec.disabled:
            began = asyncio.get_running_loop().time()
            fault = await self._live()
            if self.stopping:
                break
            if self._ending == _IDLE:
                failures = 0
                await self._asleep()
                continue
            lived = asyncio.get_running_loop().time() - began
            if self._kicked:
                self._kicked, failures = False, 0
                self._set("restarting", "a restart was asked for")
                continue
            if isinstance(fault, SessionGone) and lived >= self._around.patience.first_pause:
                self._set("restarting", str(fault))
                continue
            failures = 1 if lived >= self._around.patience.settled else failures + 1
            await self._pause(fault, failures)
        self._link = None
        if not self.spec.disabled:
            self.tools = ()

    async def _pause(self, fault: McpFault, failures: int) -> None:
        """Say what happened and wait until it is time to try again."""
        patience = self._around.patience
        text = str(fault).rstrip(".")
        pause: float | None
        if fault.lasting or failures >= patience.failures:
            pause = None if fault.lasting or self.spec.kind == "stdio" else patience.resting_remote
            if isinstance(fault, NeedsLogin):  # it says itself what to do
                self._set("needs_auth", f"{text}.")
            else:
                rest = "" if fault.lasting else f" It failed {failures} times in a row and rests now."
                cure = f"mend its entry or restart it with /mcp restart {self.name}"
                self._set("failed", f"{text}; {cure}.{rest}")
        else:
            pause = min(patience.first_pause * 2 ** (failures - 1), patience.longest_pause)
            pause *= 0.5 + self._around.rng()
            crashed = self.state == "restarting"
            text = f"{text}; next try in {pause:.0f} s" if pause >= 1 else str(fault)
            self._set("restarting" if crashed else "failed", text)
        log.warning("MCP server %s: %s", self.name, self.reason)
        await self._woken(pause)
        self._kicked = False

    async def _asleep(self) -> None:
        """Stopped for idleness: its tools stay listed, and a call starts it."""
        self._set("ready", f"stopped after {self.spec.idle_stop or 0:g} s without calls; a call starts it")
        await self._woken(None)
        if not self.stopping:
            self._set("restarting", "a call has started it")

    async def _woken(self, seconds: float | None) -> None:
        """Wait until it is to stop, to restart or to serve a call, at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not (self.stopping or self._kicked or self._wanted):
                    await self._wake.wait()
                    self._wake.clear()

    async def _live(self) -> McpFault:
        """One session from connecting to its end. Returns why it ended."""
        self._ending, self._dirty, self._stale, self._kicked, self._wanted = "", False, False, False, False
        loop = asyncio.get_running_loop()
        limit: asyncio.Timeout | None = None
        outcome: McpFault | None = None
        try:
            module = await self._around.sdk.link()
            cwd = await asyncio.to_thread(self._folder)
            began = loop.time()
            async with asyncio.timeout(self.spec.start_timeout) as limit:
                self._limit = limit
                if self.stopping:
                    return Down("it was stopped")
                async with module.open_link(
                    self.spec,
                    self._around,
                    cwd=str(cwd),
                    stderr=self._stderr,
                    hooks=self._hooks,
                    calls=self._calls,
                ) as link:
                    outcome = await self._session(link, limit, began)
                    limit.reschedule(loop.time() + self._around.patience.leaving)
        except Exception as fault:  # noqa: BLE001 - a client that breaks may raise anything; it becomes a reason
            if outcome is None:
                outcome = self._broken(fault, limit is not None and limit.expired())
            else:
                log.info(
                    "MCP server %s: its session did not close cleanly (%s)",
                    self.name,
                    type(leaf_of(fault)).__name__,
                )
        finally:
            self._link = None
            self._limit = None
        return outcome or Down("its session ended")

    def _broken(self, fault: Exception, too_late: bool) -> McpFault:
        if self.stopping:
            return Down("it was stopped")
        if too_late:
            cure = "check that it is an MCP server, or give it more time with 'start_timeout'"
            what = f"it did not answer within {self.spec.start_timeout:g} s{self._stderr.last_words()}"
            return StartFailed(f"{what}; {cure}", lasting=True)
        if isinstance(fault, McpFault):
            return fault
        log.warning("MCP server %s: its session broke", self.name, exc_info=fault)
        return Down(f"its session broke ({type(leaf_of(fault)).__name__})")

    async def _session(self, link: Link, limit: asyncio.Timeout, began: float) -> McpFault:
        """List, publish and serve. Raises no McpFault: the SDK's task groups would wrap it."""
        loop = asyncio.get_running_loop()
        fault: McpFault | None = None
        try:
            tools, faults = await link.list_tools()
            limit.reschedule(None)
            self.start_ms = round((loop.time() - began) * 1000)
            self._link = link
            self.tools = tuple(tools)
            self._stale = bool(link.offers or self.resources or self.prompts)
            self._calls.idle_since = loop.time()
            self._set("ready", _left_out(faults))
            await self._serve(link)
        except McpFault as broken:
            fault = broken
        finally:
            self._link = None
            if self.state == "ready" and not self.stopping and self._ending != _IDLE:
                self._set("restarting", "its session has ended")
        if self._ending == "lost":
            fault = Down(f"{await link.farewell()}{self._stderr.last_words()}")
            if self.state == "restarting":
                self._set("restarting", str(fault))
        if fault is None and self._ending == _FORGOTTEN:
            return SessionGone(_FORGOTTEN)
        return fault or Down(self._ending or "it was stopped")

    def _folder(self) -> Path:
        folder = self._around.cwd / Path(self.spec.cwd).expanduser()
        if self.spec.kind == "stdio" and not folder.is_dir():
            raise StartFailed(f"its folder 'cwd' {self.spec.cwd!r} does not exist; create it", lasting=True)
        return folder

    async def _serve(self, link: Link) -> None:
        """Follow changes of the list until the session is to end. Raises McpFault."""
        watcher = asyncio.create_task(link.watch(), name=f"mcp-watch-{self.name}")
        try:
            while not self.stopping and not self._ending:
                if self._dirty or self._stale:
                    await self._list_again(link)
                elif await self._idle():
                    self._ending, self._link = _IDLE, None  # from here on calls wait for the next session
            if not self._ending:
                await self._drained(self._drain)
            elif self._ending == _FORGOTTEN:
                await self._drained(self._around.patience.forgotten)  # each call learns it by itself
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    async def _idle(self) -> bool:
        """Wait for something to do; whether there were no calls for `idle_stop` seconds."""
        now, quiet = asyncio.get_running_loop().time(), None
        if self.spec.idle_stop is not None and not self._calls:
            quiet = self._calls.idle_since + self.spec.idle_stop - now
            if quiet <= 0:
                return True
        with suppress(TimeoutError):
            async with asyncio.timeout(quiet):
                await self._wake.wait()
        self._wake.clear()
        return False

    async def _list_again(self, link: Link) -> None:
        # Cleared before asking: a change that is told while the answer is under way is not lost.
        tools_too, offers_too = self._dirty, self._stale
        self._dirty = self._stale = False
        if tools_too:
            try:
                async with asyncio.timeout(self._around.patience.listing):
                    tools, faults = await link.list_tools()
            except TimeoutError:
                raise Down("it does not answer any more") from None
            self.tools = tuple(tools)
            self.reason = _left_out(faults)
        if offers_too:
            self.resources = await self._listed("resources", link, link.list_resources, self.resources)
            self.prompts = await self._listed("prompts", link, link.list_prompts, self.prompts)
        self._changed()
        await asyncio.sleep(self._around.patience.between_listings)

    async def _listed(
        self, kind: str, link: Link, ask: Callable[[], Awaitable[tuple[T, ...]]], old: tuple[T, ...]
    ) -> tuple[T, ...]:
        """A list of offers; the old one stays when it cannot be had: tools must not suffer from it."""
        if kind not in link.offers:
            return ()
        try:
            async with asyncio.timeout(self._around.patience.listing):
                return await ask()
        except (McpFault, TimeoutError) as fault:
            why = str(fault) or "no answer"
            log.warning("MCP server %s: its %s were not listed: %s", self.name, kind, why)
            return old

    async def _drained(self, seconds: float) -> None:
        ending = self._ending
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._calls and self._ending == ending:
                    await self._pulse.wait()

    # Flags, set from hooks and from other tasks ----------------------------------------------------------

    def _note_change(self) -> None:
        self._dirty = True
        self._wake.set()

    def _note_offers(self) -> None:
        self._stale = True
        self._wake.set()

    def _end_session(self, link: Link | None, why: str) -> None:
        if self._ending != _IDLE and (link is None or link is self._link):
            self._ending = self._ending or why
            if self.state == "ready" and not self.stopping:
                self._set("restarting", "its session has ended")  # so that calls wait for the next one
            self._wake.set()

    def _note_noise(self) -> None:
        if not self._noisy:
            self._noisy = True
            what = "writes lines to stdout that are no messages; they are skipped. Its logs belong on stderr"
            log.warning("MCP server %s %s", self.name, what)

    def _set(self, state: State, reason: str) -> None:
        self.state = state
        self.reason = reason
        self.since = self._around.clock()
        self._changed()

    def _changed(self, *, tell: bool = True) -> None:
        self._pulse.set()
        self._pulse = asyncio.Event()
        if tell:
            self._on_change()


def _left_out(faults: list[str]) -> str:
    if not faults:
        return ""
    shown = "; ".join(faults[:3]) + ("; ..." if len(faults) > 3 else "")
    return f"{len(faults)} left out of its tools: {shown}"
