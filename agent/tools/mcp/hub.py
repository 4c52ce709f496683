"""All MCP servers of a process: started side by side, hot-reloaded by diff, published whole."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from agent.tools.base import Caller, Tool, ToolFailure
from agent.tools.mcp.config import START_TIMEOUT, McpConfig, ServerSpec, parse_config
from agent.tools.mcp.file import ConfigFile
from agent.tools.mcp.logins import LoginFailed, Logins
from agent.tools.mcp.names import offered_name
from agent.tools.mcp.orphans import MARK, end_orphans, mark
from agent.tools.mcp.primitives import PromptInfo, ResourceInfo, ResourceText, render_contents
from agent.tools.mcp.requests import Call
from agent.tools.mcp.schema import ListedTool, provider_schema, short_description
from agent.tools.mcp.server import McpServer, State
from agent.tools.mcp.surroundings import Patience, Sdk, Surroundings
from agent.tools.mcp.tool import McpTool
from agent.tools.policy import is_mounted

log = logging.getLogger("causeway.mcp")

LOCAL_TIMEOUT = 60.0
REMOTE_TIMEOUT = 30.0
_STOP_LIMIT = 12.0
_FAULTY = "its entry has a fault"


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """A server as people see it. `since` is Unix time; `start_ms` is None until it was ready once."""

    name: str
    state: State
    since: float
    reason: str = ""
    tools: int = 0
    start_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RefreshReport:
    """What one look at `mcp.json` led to. `fault` is why the file could not be used, if it could not."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    fault: str = ""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.fault)


@dataclass(slots=True)
class _Slot:
    """A name in the file: the server that serves, and perhaps one that is to take its place."""

    spec: ServerSpec
    current: McpServer
    coming: McpServer | None = None
    note: str = ""
    made: tuple[McpTool, ...] = ()
    made_from: tuple[tuple[ListedTool, ...], ServerSpec] | None = None


class McpHub:
    """The MCP servers that one `mcp.json` names. One a process; used from one event loop."""

    def __init__(
        self,
        path: Path,
        *,
        environ: Mapping[str, str],
        log_dir: Path | None,
        cwd_default: Path,
        on_secret: Callable[[str], None] = lambda value: None,
        mask: Callable[[str], str] = lambda text: text,
        clock: Callable[[], float] = time.time,
        default_timeout: float | None = None,
        start_timeout: float = START_TIMEOUT,
        drain: float = 60.0,
        sampling: bool = False,
        patience: Patience | None = None,
        logins: Logins | None = None,
    ) -> None:
        """`default_timeout` replaces both limits by kind (60 s local, 30 s remote) for calls of servers whose
        entry has no `timeout`; `start_timeout` is how long a server may take to be ready when its entry does
        not say; `drain` is how long a removed server's calls in flight may go on; with `sampling` servers are
        told that they may ask the model for text."""
        parse = partial(parse_config, environ=environ, on_secret=on_secret, start_timeout=start_timeout)
        self._file = ConfigFile(path, environ, parse)
        self._default_timeout = default_timeout
        self._drain = drain
        self._mark = mark(path)
        self._around = Surroundings(
            {**environ, MARK: self._mark},
            log_dir,
            cwd_default,
            Sdk(),
            clock=clock,
            patience=patience or Patience(),
            sampling=sampling,
            logins=logins,
            mask=mask,
        )
        if logins is not None:
            logins.on_login = self._logged_in
        self._slots: dict[str, _Slot] = {}
        self._bad: dict[str, ServerStatus] = {}
        self._tasks: dict[asyncio.Task[None], McpServer] = {}
        self._waiting: set[McpServer] = set()  # launched, but others of the name have to leave first
        self._tools: tuple[Tool, ...] = ()
        self._entry_faults: tuple[str, ...] = ()
        self._refreshing = asyncio.Lock()
        self._on_change: Callable[[], None] = lambda: None
        self._pulse = asyncio.Event()
        self._stopped = False

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools of all servers that are ready, by server name and then in the server's order.

        Immutable and the same object until something changes.
        """
        return self._tools

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the file, each with file and, where known, line."""
        return ((self._file.fault,) if self._file.fault else ()) + self._entry_faults

    @property
    def on_request(self) -> frozenset[str]:
        """The servers that are there only where an admin has mounted them."""
        return frozenset(name for name, slot in self._slots.items() if slot.current.spec.write)

    @property
    def status(self) -> tuple[ServerStatus, ...]:
        """All servers that the file names, by name."""
        known = {name: _status(slot) for name, slot in self._slots.items()}
        return tuple(known.get(name) or self._bad[name] for name in sorted({*known, *self._bad}))

    async def start(self, on_change: Callable[[], None]) -> None:
        """Read the file and let its servers start in the background. `on_change` is called on the event loop
        whenever `tools` or `status` may have changed, and must return at once."""
        self._on_change = on_change
        await asyncio.to_thread(end_orphans, self._mark)
        await self.refresh()

    async def refresh(self) -> RefreshReport:
        """Follow the file. Costs one stat when nothing changed; does not wait for servers to start.

        A file that is broken, empty or gone changes nothing and is reported once per content. Raises nothing.
        """
        async with self._refreshing:
            if self._stopped:
                return RefreshReport()
            look = await self._file.look(in_use=bool(self._slots))
            if look.config is not None:
                return self._apply(look.config)
            if look.changed:
                self._on_change()
            return RefreshReport(fault=self._file.fault if look.changed else "")

    async def settle(self, timeout: float) -> bool:
        """Wait until no server is starting and no changed one is about to take over, at most `timeout`
        seconds. Whether that came about."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._unsettled():
                    await self._pulse.wait()
        return not self._unsettled()

    async def restart(self, name: str) -> bool:
        """Start a server anew, also one that rests or whose changed entry failed. False: no such server."""
        slot = self._slots.get(name)
        if slot is None or slot.spec.disabled:
            return False
        if not self._retry_change(slot):
            slot.current.restart()
        return True

    def _retry_change(self, slot: _Slot) -> bool:
        """Try a changed entry again that is not in force; whether there is one."""
        waits = slot.spec.fingerprint != slot.current.spec.fingerprint
        if waits:
            self._change(slot, slot.spec)
        return waits

    async def login(self, name: str) -> str:
        """The address at which an admin logs in to a server that needs it; when that is done the server
        starts anew by itself. Raises LoginFailed."""
        slot, logins = self._slots.get(name), self._around.logins
        if slot is None or logins is None:
            raise LoginFailed(f"There is no server {name!r} to log in to.")
        return await logins.begin(slot.spec)

    async def answer_login(self, address: str) -> str:
        """Finish a login by the address at which the browser ended: for an admin whose browser cannot reach
        the callback. Returns "done", "failed" or "unknown"."""
        logins = self._around.logins
        return await logins.answer_address(address) if logins is not None else "unknown"

    def _logged_in(self, url: str) -> None:
        for slot in self._slots.values():
            if slot.spec.url == url and not self._retry_change(slot):
                slot.current.logged_in()

    async def stop(self) -> None:
        """End all servers and their processes; returns when none is left, within about 12 s."""
        async with self._refreshing:
            self._stopped = True
            self._slots.clear()
            for server in self._tasks.values():
                server.stop()
            tasks = set(self._tasks)
            if tasks:
                _, late = await asyncio.wait(tasks, timeout=_STOP_LIMIT)
                for task in late:
                    log.error("MCP server %s does not stop in time; it is killed", self._tasks[task].name)
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            if self._around.logins is not None:
                await self._around.logins.stop()
            self._publish()

    def find(self, name: str) -> McpServer | None:
        """The server that answers calls for `name` now."""
        slot = self._slots.get(name)
        return slot.current if slot is not None else None

    # Resources and prompts -------------------------------------------------------------------------------

    def is_mounted(self, server: str, caller: Caller, mounted: frozenset[str]) -> bool:
        """Whether a server is there for everybody of a turn, given what an admin has mounted there."""
        slot = self._slots.get(server)
        if slot is None:
            return False
        spec = slot.current.spec
        return all(is_mounted(server, spec.mount, spec.write, one, mounted) for one in caller.everybody)

    def resources(self) -> tuple[ResourceInfo, ...]:
        """The resources of all servers that are ready, by server name and then in the server's order."""
        return tuple(info for server in self._serving() for info in server.resources)

    def prompts(self) -> tuple[PromptInfo, ...]:
        """The prompts of all servers that are ready, by server name and then in the server's order."""
        return tuple(info for server in self._serving() for info in server.prompts)

    async def read_resource(self, server: str, uri: str, folder: Path) -> ResourceText:
        """Read a resource; what is no text is saved in `folder`. Raises ToolFailure."""
        found = self._server(server)
        under = Call(self._timeout_of(found.spec))
        contents = await found.through(lambda link: link.read_resource(uri), under)
        read = await asyncio.to_thread(render_contents, contents, folder, f"{server}-resource")
        return replace(read, text=await asyncio.to_thread(self._around.mask, read.text))

    async def get_prompt(
        self, server: str, name: str, arguments: Mapping[str, str]
    ) -> tuple[tuple[str, str], ...]:
        """The messages of a prompt as (role, text). Raises ToolFailure."""
        found = self._server(server)
        under = Call(self._timeout_of(found.spec))
        said = await found.through(lambda link: link.get_prompt(name, dict(arguments)), under)
        return tuple((role, self._around.mask(text)) for role, text in said)

    def _serving(self) -> list[McpServer]:
        servers = [self._slots[name].current for name in sorted(self._slots)]
        return [server for server in servers if server.state in ("ready", "restarting")]

    def _server(self, name: str) -> McpServer:
        server = self.find(name)
        if server is None:
            raise ToolFailure(f"There is no MCP server {name[:80]!r}.", "It is not in mcp.json any more.")
        return server

    # Following the file ----------------------------------------------------------------------------------

    def _apply(self, config: McpConfig) -> RefreshReport:
        wanted = {spec.name: spec for spec in config.servers}
        faulty = {entry.name for entry in config.bad}
        added = [name for name in wanted if name not in self._slots]
        removed = [name for name in self._slots if name not in wanted and name not in faulty]
        changed: list[str] = []
        for name in removed:
            self._retire_slot(self._slots.pop(name))
        for name, spec in wanted.items():
            slot = self._slots.get(name)
            if slot is None:
                self._slots[name] = _Slot(spec, self._launch(spec))
            elif spec.fingerprint != slot.spec.fingerprint:
                changed.append(name)
                self._change(slot, spec)
            elif spec != slot.spec:
                changed.append(name)
                slot.spec = spec
                for server in (slot.current, slot.coming):
                    if server is not None and server.spec.fingerprint == spec.fingerprint:
                        server.adopt(spec)
        self._note_faults(config)
        self._publish()
        if added or removed or changed:
            log.info("mcp.json: added %s, removed %s, changed %s", added, removed, changed)
        return RefreshReport(tuple(sorted(added)), tuple(sorted(removed)), tuple(sorted(changed)))

    def _note_faults(self, config: McpConfig) -> None:
        """An entry that fails alone: shown as failed, or, if it served before, kept as it was."""
        bad = {entry.name: entry.reason for entry in config.bad}
        for name, slot in self._slots.items():
            if name in bad:
                slot.note = f"{_FAULTY}, the last good one is kept: {bad[name]}"
            elif slot.note.startswith(_FAULTY):
                slot.note = ""
        alone = [name for name in bad if name not in self._slots]
        self._bad = {name: ServerStatus(name, "failed", self._around.clock(), bad[name]) for name in alone}
        faults = [self._file.where(f"{entry.name}: {entry.reason}", entry.line) for entry in config.bad]
        faults += [self._file.where(warning) for warning in config.warnings]
        for fault in faults:
            if fault not in self._entry_faults:
                log.warning("%s", fault)
        self._entry_faults = tuple(faults)

    def _change(self, slot: _Slot, spec: ServerSpec) -> None:
        """Bring a changed server in: new first where the old one serves, else in its place."""
        slot.spec, slot.note = spec, ""
        if slot.coming is not None:
            slot.coming.stop()
            slot.coming = None
        old = slot.current
        if spec.fingerprint == old.spec.fingerprint:  # changed back before the new one was ready
            old.adopt(spec)
        elif spec.disabled or spec.stop_first or old.state != "ready":
            old.stop(self._drain)
            slot.current = self._launch(spec, after=old)
        else:
            slot.note = "the changed entry is starting; the previous one serves until it is ready"
            slot.coming = self._launch(spec)

    def _retire_slot(self, slot: _Slot) -> None:
        slot.current.stop(self._drain)
        if slot.coming is not None:
            slot.coming.stop()

    def _launch(self, spec: ServerSpec, after: McpServer | None = None) -> McpServer:
        server = McpServer(spec, self._around, self._server_changed)
        task = asyncio.create_task(self._run(server, after), name=f"mcp-{spec.name}")
        self._tasks[task] = server
        task.add_done_callback(self._ended)
        return server

    async def _run(self, server: McpServer, after: McpServer | None) -> None:
        """Run a server when its turn has come: when `after` has ended, and beside at most one other of its
        name, which serves still or is on its way out; alone if it is stop-first."""
        self._waiting.add(server)
        try:
            while not server.stopping and (
                after in self._tasks.values() or self._ahead_of(server) > (not server.spec.stop_first)
            ):
                await self._pulse.wait()
        finally:
            self._waiting.discard(server)
        await server.run()

    def _ahead_of(self, server: McpServer) -> int:
        """How many servers of the same name were launched before this one and may have a process."""
        older = itertools.takewhile(lambda owner: owner is not server, self._tasks.values())
        return sum(owner.name == server.name and owner not in self._waiting for owner in older)

    def _ended(self, task: asyncio.Task[None]) -> None:
        server = self._tasks.pop(task, None)
        if not task.cancelled() and (fault := task.exception()) is not None and server is not None:
            log.error("MCP server %s: its task broke", server.name, exc_info=fault)
        self._pulse_now()

    # Publishing ------------------------------------------------------------------------------------------

    def _server_changed(self) -> None:
        for slot in self._slots.values():
            coming = slot.coming
            if coming is None:
                continue
            if coming.state == "ready":
                old, slot.current = slot.current, coming
                slot.coming, slot.note = None, ""
                old.stop(self._drain)
            elif coming.state in ("failed", "needs_auth"):
                slot.note = f"the changed entry failed, the previous one is kept: {coming.reason}"
                slot.coming = None
                coming.stop()
        self._publish()

    def _publish(self) -> None:
        tools: dict[str, Tool] = {}
        for name in sorted(self._slots):
            for tool in self._tools_of(self._slots[name]):
                if tools.setdefault(tool.name, tool) is not tool:
                    log.warning("%s: its tool %r is left out: its name is taken", name, tool.original[:80])
        # Cached tools are the same objects: comparing them is comparing references.
        if [*map(id, tools.values())] != [*map(id, self._tools)]:
            self._tools = tuple(tools.values())
        self._pulse_now()
        self._on_change()

    def _tools_of(self, slot: _Slot) -> tuple[McpTool, ...]:
        """A server's tools, made anew only when its list or its settings changed."""
        listed, spec = slot.current.offered, slot.current.spec
        if slot.made_from != (listed, spec):
            old = {tool.original: tool for tool in slot.made}
            made = [self._make(spec, tool) for tool in listed if spec.offers(tool.name)]
            slot.made = tuple(
                kept if (kept := old.get(tool.original)) is not None and _same(kept, tool) else tool
                for tool in made
            )
            slot.made_from = (listed, spec)
        return slot.made

    def _make(self, spec: ServerSpec, listed: ListedTool) -> McpTool:
        return McpTool(
            name=offered_name(spec.name, listed.name),
            description=short_description(listed.description),
            params=provider_schema(listed.schema),
            annotations=listed.annotations,
            timeout=_own_limit(spec, listed.name) or self._timeout_of(spec),
            source=spec.name,
            original=listed.name,
            find=self.find,
            pre_approved=any(fnmatchcase(listed.name, pattern) for pattern in spec.always_allow),
            mount=spec.mount,
            on_request=spec.write,
        )

    def _timeout_of(self, spec: ServerSpec) -> float:
        by_kind = LOCAL_TIMEOUT if spec.kind == "stdio" else REMOTE_TIMEOUT
        return spec.timeout or self._default_timeout or by_kind

    def _unsettled(self) -> bool:
        slots = self._slots.values()
        return any(slot.current.state == "starting" or slot.coming is not None for slot in slots)

    def _pulse_now(self) -> None:
        self._pulse.set()
        self._pulse = asyncio.Event()


def _status(slot: _Slot) -> ServerStatus:
    server = slot.current
    reason = "; ".join(part for part in (slot.note, server.reason) if part)
    shown = sum(server.spec.offers(tool.name) for tool in server.offered)
    return ServerStatus(server.name, server.state, server.since, reason, shown, server.start_ms)


def _same(one: McpTool, other: McpTool) -> bool:
    return all(getattr(one, part.name) == getattr(other, part.name) for part in fields(McpTool))


def _own_limit(spec: ServerSpec, tool: str) -> float | None:
    own = dict(spec.tool_timeouts)
    return own.get(tool) or next((own[key] for key in own if fnmatchcase(tool, key)), None)
