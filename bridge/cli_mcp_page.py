"""How `causeway mcp` shows what it found: text for a terminal of 80 columns, or JSON. Secrets are masked."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent.tools.base import FunctionTool, ToolContext, ToolResult
from agent.tools.masking import Masker
from agent.tools.mcp.alone import Step
from agent.tools.mcp.names import offered_name
from agent.tools.mcp.probe import Probe
from agent.tools.mcp.schema import ListedTool, provider_schema, short_description
from agent.tools.stats import definition_tokens
from bridge.cli_mcp_hints import Definition, Hint, hints
from bridge.mcp_admin import masked

_WIDEST = 100
_LONGEST_ANSWER = 2_000  # characters of a call's answer
_MOST_NAMED = 12  # tools that one hint names
_MARKS = {"ok": "ok", "odd": "odd", "broken": "BROKEN"}
#: What a server wrote must not steer the terminal.
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


class Page:
    """Where a command writes. As JSON it writes one object at the end, and nothing before."""

    def __init__(self, masker: Masker, *, as_json: bool) -> None:
        self.masker = masker
        self.as_json = as_json
        self._width = max(40, min(shutil.get_terminal_size().columns, _WIDEST)) - 1
        if isinstance(sys.stdout, io.TextIOWrapper):  # a server may send what this terminal cannot show
            sys.stdout.reconfigure(errors="backslashreplace")

    def say(self, text: str, first: str = "", then: str | None = None) -> None:
        """Write `text`, wrapped; `first` stands before its first line, `then` before the others."""
        text = _CONTROL.sub(" ", self.masker.mask(text))
        then = " " * len(first) if then is None else then
        for line in text.split("\n"):
            sys.stdout.write((self._wrap(line, first, then) or first.rstrip()) + "\n")
            first = then
        sys.stdout.flush()  # a walk takes a while; each link is shown when it is known

    def _wrap(self, line: str, first: str = "", then: str = "") -> str:
        # Paths and addresses stay in one piece, so that they can be copied.
        wrapper = textwrap.TextWrapper(
            self._width, first, then, break_on_hyphens=False, break_long_words=False
        )
        return "\n".join(wrapper.wrap(line))

    def whole(self, text: str) -> None:
        """Write `text` as it is, for what must not be broken, such as an address to open."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def refuse(self, text: str) -> None:
        if self.as_json:
            self._write({"error": text})
        else:
            sys.stderr.write(self._wrap(_CONTROL.sub(" ", self.masker.mask(text))) + "\n")

    def _write(self, value: Any) -> None:
        sys.stdout.write(json.dumps(masked(value, self.masker), indent=2) + "\n")

    # Lists -----------------------------------------------------------------------------------------------

    def no_servers(self, file: Path) -> int:
        if self.as_json:
            self._write({"file": str(file), "servers": [], "problems": []})
        else:
            self.say(f"No servers. Add them in {file}, for example:")
            self.say('{"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}}', "  ")
        return 0

    def servers(self, found: dict[str, Any], file: Path, origin: str) -> int:
        """All servers. The exit code is 1 when one has failed or something is wrong with the file."""
        servers, problems = found["servers"], found["problems"]
        if not servers and not problems:
            return self.no_servers(file)
        bad = bool(problems) or any(server["state"] in ("failed", "needs_auth") for server in servers)
        if self.as_json:
            self._write(found)
            return int(bad)
        self.say(origin)
        self._states(servers, tools=True)
        self._sum(servers)
        self._problems(problems)
        if any(server["state"] == "failed" for server in servers):
            self.say("causeway mcp test NAME tells at which link a server breaks.")
        return int(bad)

    def _states(self, servers: Sequence[dict[str, Any]], *, tools: bool) -> None:
        width = max([4, *(len(server["name"]) for server in servers if len(server["name"]) <= 20)])
        for server in servers:
            figures = f"{len(server['tools']):4} tools  {server['tokens']:7,} tokens"
            if server["start_ms"] is not None:
                figures += f"  {_time(server['start_ms']):>7}"
            if server["state"] in ("failed", "disabled") and not server["tools"]:
                figures = ""
            self._row(f"{server['name']:<{width}}  {server['state']:<10}{figures}".rstrip())
            if server["reason"]:
                self.say(server["reason"], "    ")
            if tools and server["tools"]:
                self.say(", ".join(tool["name"] for tool in server["tools"]), "    ")

    def _row(self, line: str) -> None:
        sys.stdout.write(_CONTROL.sub(" ", self.masker.mask(line)) + "\n")

    def _sum(self, servers: Sequence[dict[str, Any]]) -> None:
        ready = sum(server["state"] == "ready" for server in servers)
        tools, tokens = (sum(n) for n in zip(*((len(s["tools"]), s["tokens"]) for s in servers), strict=True))
        self.say(f"{ready} of {len(servers)} ready; {_tools(tools)}, {_tokens(tokens)}.")

    def _problems(self, problems: Sequence[str]) -> None:
        for problem in problems:
            self.say(problem, "problem: ", "  ")

    # A running bridge ------------------------------------------------------------------------------------

    def reloaded(self, found: dict[str, Any]) -> int:
        bad = bool(found["problems"]) or not found["settled"]
        if self.as_json:
            self._write(found)
            return int(bad)
        kinds = ["added", "changed", "removed"]
        kinds += [f"{what}_{how}" for what in ("tools", "skills") for how in ("added", "removed")]
        changes = [f"{kind.replace('_', ' ')}: {', '.join(found[kind])}" for kind in kinds if found[kind]]
        for change in changes:
            self.say(change)
        if not changes:
            self.say("Nothing has changed since the bridge last looked (it does after each reply).")
        if not found["settled"]:
            self.say("Some servers are still starting; look again with causeway mcp list.")
        if found["servers"]:
            self._states(found["servers"], tools=False)
        self._problems(found["problems"])
        return int(bad)

    def restarted(self, found: dict[str, Any], name: str) -> int:
        server = next((server for server in found["servers"] if server["name"] == name), None)
        ready = server is not None and server["state"] == "ready"
        if self.as_json:
            self._write(found)
        elif server is None:
            self.say(f"{name} was removed from the file meanwhile.")
        else:
            self._states([server], tools=False)
        return int(not ready)

    # Walks -----------------------------------------------------------------------------------------------

    def title(self, name: str) -> None:
        self.say(name)

    def step(self, step: Step) -> None:
        text = step.text + (f" ({_time(step.ms)})" if step.ms is not None else "")
        self.say(text, f"  {_MARKS[step.state]:<7}{step.link:<10} ", " " * 20)
        if step.cure:
            self.say(step.cure, " " * 20)

    def walked(self, probe: Probe, *, steps: bool) -> Probe:
        """Show the end of a walk, and its steps where they were not shown on the way."""
        if self.as_json:
            return probe
        if steps:
            self.title(probe.name)
            for step in probe.steps:
                self.step(step)
        if probe.answer:
            answer = probe.answer
            if len(answer) > _LONGEST_ANSWER:
                answer = f"{answer[:_LONGEST_ANSWER]}\n… ({len(answer):,} characters in all)"
            self.say(answer, "    | ", "    | ")
        if probe.start_ms is not None:
            tokens = sum(cost for _, _, cost in _offered(probe))
            self.say(f"ready in {_time(probe.start_ms)}; {_tools(len(probe.tools))}, {_tokens(tokens)}", "  ")
        return probe

    def tested(self, probes: Sequence[Probe], *, off: int) -> int:
        """The end of all walks: what to mend, taken over all servers."""
        found = hints([
            Definition(probe.name, tool.name, tool.description, cost)
            for probe in probes
            for tool, _, cost in _offered(probe)
        ])  # fmt: skip
        broken = [probe for probe in probes if probe.broken is not None]
        if self.as_json:
            self._write({"servers": [_plain(probe) for probe in probes], "hints": [asdict(h) for h in found]})
            return int(bool(broken))
        for hint in found:
            self.say(_hint(hint), "  hint: ", "    ")
        if len(probes) > 1 or off:
            tokens = sum(cost for probe in probes for _, _, cost in _offered(probe))
            tools = sum(len(probe.tools) for probe in probes)
            rest = f"; {off} switched off" if off else ""
            work = f"{len(probes) - len(broken)} of {len(probes)} servers work{rest}"
            self.say(f"{work}; {_tools(tools)}, {_tokens(tokens)}.")
        return int(bool(broken))


def _hint(hint: Hint) -> str:
    if not hint.tools:
        return hint.text
    more = len(hint.tools) - _MOST_NAMED
    return f"{hint.text}: {', '.join(hint.tools[:_MOST_NAMED])}" + (f" and {more} more" if more > 0 else "")


def _offered(probe: Probe) -> list[tuple[ListedTool, str, int]]:
    """The tools of a walk with the names and the costs that models see."""
    return [(tool, *_as_offered(probe.name, tool)) for tool in probe.tools]


def _as_offered(server: str, tool: ListedTool) -> tuple[str, int]:
    async def never(_params: dict[str, Any], _context: ToolContext) -> ToolResult:
        raise NotImplementedError  # it is made to be weighed, not to be called

    name, params = offered_name(server, tool.name), provider_schema(tool.schema)
    return name, definition_tokens(FunctionTool(name, short_description(tool.description), params, never))


def _plain(probe: Probe) -> dict[str, Any]:
    tools = _offered(probe)
    return {
        "name": probe.name,
        "ok": probe.broken is None,
        "start_ms": probe.start_ms,
        "tokens": sum(cost for _, _, cost in tools),
        "steps": [asdict(step) for step in probe.steps],
        "tools": [{"name": name, "original": tool.name, "tokens": cost} for tool, name, cost in tools],
        "answer": probe.answer,
    }


def _time(ms: int) -> str:
    return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def _tools(count: int) -> str:
    return f"{count} tool{'' if count == 1 else 's'}"


def _tokens(count: int) -> str:
    return f"about {count:,} tokens in each request to the model"
