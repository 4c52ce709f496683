"""Testing one server link by link, from the cheap end: its entry, its process or address alone, the
handshake, the list of tools, a call. The first link that breaks ends the walk and names itself.

The process is started twice: once alone, where what it writes can be read as it is, once through the client.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent.tools.mcp.alone import LinkName, Step, check_address, check_process, folder_of, place_of
from agent.tools.mcp.config import ServerSpec
from agent.tools.mcp.faults import CallTimeout, Down, McpFault, NeedsLogin
from agent.tools.mcp.logins import has_own_credentials
from agent.tools.mcp.names import offered_name
from agent.tools.mcp.process import StderrLog
from agent.tools.mcp.requests import Call, Calls
from agent.tools.mcp.schema import ListedTool
from agent.tools.mcp.surroundings import Hooks, Surroundings

if TYPE_CHECKING:
    from agent.tools.mcp.link import Link, Reply

log = logging.getLogger("causeway.mcp")

_CALL_LIMIT = 60.0  # seconds for the call, when the entry does not say


@dataclass(slots=True)
class Probe:
    """What a walk found. `tools` are those that the entry's filters let through; `start_ms` is the time from
    starting to a whole list; `answer` is what a call brought."""

    name: str
    steps: list[Step] = field(default_factory=list)
    tools: tuple[ListedTool, ...] = ()
    start_ms: int | None = None
    answer: str = ""

    @property
    def broken(self) -> Step | None:
        return next((step for step in self.steps if step.state == "broken"), None)


async def probe(
    spec: ServerSpec,
    around: Surroundings,
    *,
    call: tuple[str, Mapping[str, Any]] | None = None,
    warnings: tuple[str, ...] = (),
    on_step: Callable[[Step], None] = lambda step: None,
) -> Probe:
    """Walk the chain for one server, also for one that is switched off. `call` is a tool, by either of its
    names, and its arguments. `warnings` are those that reading its entry gave. Takes at most about twice the
    entry's start time, plus the call's. Raises nothing but CancelledError."""
    found = Probe(spec.name)

    def note(step: Step) -> None:
        found.steps.append(step)
        on_step(step)

    note(_entry(spec, warnings))
    note(await (check_process(spec, around) if spec.kind == "stdio" else check_address(spec, around)))
    if found.broken is None:
        await _converse(spec, around, call, found, note)
    return found


def _entry(spec: ServerSpec, warnings: tuple[str, ...]) -> Step:
    if spec.kind == "stdio":
        names = ", ".join(name for name, _ in spec.env)
        count = f"{len(spec.args)} argument{'' if len(spec.args) == 1 else 's'}"
        text = f"a local program: {spec.command!r} with {count}" + (f"; env: {names}" if names else "")
    else:
        names = ", ".join(name for name, _ in spec.headers)
        text = f"a remote server ({spec.kind}) at {place_of(spec.url)}"
        text += f"; headers: {names}" if names else ""
    if spec.disabled:
        warnings = ("it is switched off ('disabled'), so the bridge does not start it", *warnings)
    return Step("entry", "odd" if warnings else "ok", "; ".join((text, *warnings)))


# The conversation ---------------------------------------------------------------------------------------


async def _converse(
    spec: ServerSpec,
    around: Surroundings,
    call: tuple[str, Mapping[str, Any]] | None,
    found: Probe,
    note: Callable[[Step], None],
) -> None:
    """Handshake, list and call in one session, each noted."""
    module = await around.sdk.link()
    cwd, stderr = str(folder_of(spec, around)), StderrLog(None)
    loop = asyncio.get_running_loop()
    began = loop.time()
    at: LinkName | None = "handshake"
    try:
        async with asyncio.timeout(spec.start_timeout) as limit:
            async with module.open_link(
                spec, around, cwd=cwd, stderr=stderr, hooks=Hooks(), calls=Calls(spec.name)
            ) as link:
                note(Step("handshake", "ok", f"agreed on protocol {link.protocol}", ms=_since(began)))
                at = "tools"
                listed = loop.time()
                try:
                    tools, faults = await link.list_tools()
                except McpFault as fault:
                    note(await _broken("tools", fault, link, stderr))
                    return
                found.tools = tuple(tool for tool in tools if spec.offers(tool.name))
                found.start_ms = _since(began)
                note(_listed(len(tools), len(found.tools), faults, _since(listed)))
                at = "call"
                limit.reschedule(None)
                if call is not None:
                    note(await _call(link, spec, tools, call, stderr, found))
                at = None
                limit.reschedule(loop.time() + around.patience.leaving)
    except TimeoutError:
        if at is not None:
            cure = "Give it more time with 'start_timeout'."
            note(Step(at, "broken", f"no answer within {spec.start_timeout:g} s", cure, _since(began)))
    except McpFault as fault:
        note(_refused(spec, at or "handshake", fault))
    except Exception as fault:
        # The client may raise anything, in groups: here it becomes a finding. The trace is in the log.
        log.warning("MCP server %s: its session broke in a test", spec.name, exc_info=fault)
        if at is not None:
            note(Step(at, "broken", f"its session broke ({type(fault).__name__})", "Look into the log."))


def _since(began: float) -> int:
    return round((asyncio.get_running_loop().time() - began) * 1000)


def _refused(spec: ServerSpec, at: LinkName, fault: McpFault) -> Step:
    cure = ""
    if isinstance(fault, NeedsLogin) and not has_own_credentials(spec):
        cure = f"If it offers a login by a web page: causeway mcp login {spec.name}"
    return Step(at, "broken", str(fault).rstrip("."), cure)


async def _broken(at: LinkName, fault: McpFault, link: Link, stderr: StderrLog) -> Step:
    text = str(fault).rstrip(".")
    if isinstance(fault, Down):
        text = f"{text}: {await link.farewell()}{stderr.last_words()}"
    cure = "It is a fault of the server: look into its own log, or try another version of it."
    if isinstance(fault, CallTimeout):
        cure = "Ask for less at a time, or give its calls more time with 'timeout'."
    return Step(at, "broken", text, cure)


def _listed(listed: int, offered: int, faults: list[str], ms: int) -> Step:
    count = f"{listed} tool{'' if listed == 1 else 's'}"
    if offered < listed:
        count += f", of which the entry's filters let {offered} through"
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        text = f"{count}; left out as invalid: {'; '.join(faults[:3])}{more}"
        return Step("tools", "odd", text, "Tell whoever makes the server; the others work.", ms)
    if not offered:
        cure = "Look at 'tools' and 'excludeTools' in its entry." if listed else ""
        return Step("tools", "odd", f"{count}: it offers nothing to the model", cure, ms)
    return Step("tools", "ok", count, ms=ms)


async def _call(
    link: Link,
    spec: ServerSpec,
    tools: list[ListedTool],
    call: tuple[str, Mapping[str, Any]],
    stderr: StderrLog,
    found: Probe,
) -> Step:
    name, arguments = call
    tool = next((tool for tool in tools if name in (tool.name, offered_name(spec.name, tool.name))), None)
    if tool is None:
        names = [tool.name for tool in tools]
        near = difflib.get_close_matches(name, names, n=1)
        meant = f"Did you mean {near[0]!r}? " if near else ""
        cure = f"{meant}It has: {', '.join(names[:20])}."
        return Step("call", "broken", f"there is no tool {name!r}", cure)
    name = tool.name
    began = asyncio.get_running_loop().time()
    timeout = spec.timeout or _CALL_LIMIT
    try:
        async with asyncio.timeout(timeout):
            reply = await link.call(name, dict(arguments), Call(timeout))
    except McpFault as fault:
        return await _broken("call", fault, link, stderr)
    except TimeoutError:
        return await _broken("call", CallTimeout(f"no answer within {timeout:g} s"), link, stderr)
    found.answer = _plain(reply)
    if reply.is_error:
        takes = _parameters(tool.schema)
        return Step("call", "broken", f"{name} answers with an error", f"It takes {takes}.", _since(began))
    return Step("call", "ok", f"{name} answers", ms=_since(began))


def _plain(reply: Reply) -> str:
    """A reply for a terminal: its texts, and a word for every part that is none."""
    lines = [
        str(part.get("text", "")) if part.get("type") == "text" else f"[{part.get('type')}]"
        for part in reply.content
    ]
    if not lines and reply.structured is not None:
        lines = [json.dumps(reply.structured, ensure_ascii=False)]
    return "\n".join(lines)


def _parameters(schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        return "no arguments"
    required = schema.get("required") or ()
    words = []
    for name, part in properties.items():
        kind = part.get("type", "") if isinstance(part, dict) else ""
        notes = [note for note in (str(kind), "required" if name in required else "") if note]
        words.append(f"{name} ({', '.join(notes)})" if notes else str(name))
    return " ".join(", ".join(words).split())
