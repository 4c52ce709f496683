"""Which tools a model is offered, and in which order. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from agent.history import Assistant, Entry, ToolOutput
from agent.tools.base import Tool

FIND_TOOLS = "find_tools"
#: The best ranked, of which a run must lack one before its list grows: each change costs what a provider has
#: cached, so the list does not follow every turn of phrase.
_BEST = 3
BUILTIN = "builtin"
_FOUND = re.compile(r"^- ([A-Za-z0-9_-]{1,64}):", re.MULTILINE)


def used_names(entries: Iterable[Entry]) -> tuple[str, ...]:
    """The names of all tools that stand in a history, the first used first. Providers refuse calls of tools
    that are not offered along with them."""
    names: dict[str, None] = {}
    for entry in entries:
        if isinstance(entry, Assistant):
            names.update((call.name, None) for call in entry.calls)
        elif isinstance(entry, ToolOutput):
            names[entry.name] = None
    return tuple(names)


def found_names(entries: Iterable[Entry], run: str) -> tuple[str, ...]:
    """What `find_tools` found in this run. It is read from the history, so a restart keeps it."""
    outputs = (e for e in entries if isinstance(e, ToolOutput) and e.run == run and e.name == FIND_TOOLS)
    return tuple(dict.fromkeys(name for output in outputs for name in _FOUND.findall(output.text)))


def select(
    ranked: Sequence[str],
    offered: Sequence[Tool],
    injected: Sequence[str],
    used: Collection[str],
    *,
    top_k: int,
    threshold: int,
) -> tuple[str, ...]:
    """The names of the tools to inject, in order.

    `offered` is all that may be used, `injected` what the run was given before: it stays in front, in its
    order, and only tools that are no longer offered leave it. Behind it come the built-in tools (with
    `find_tools` when something is left out), what the history used, and the `top_k` best of `ranked`; in a
    run that goes on these only when one of the very best is not there yet. With at most `threshold` MCP tools
    all are taken.
    """
    everything = [tool.name for tool in offered if tool.name != FIND_TOOLS]
    mcp = {tool.name for tool in offered if tool.source != BUILTIN}
    keep = {*used, *injected}
    if len(mcp) <= threshold:
        wanted = everything
    else:
        best = [name for name in ranked if name in mcp][:top_k]
        if injected and keep.issuperset(best[:_BEST]):
            best = []
        wanted = [name for name in everything if name not in mcp]
        wanted += [name for name in used if name in mcp]
        wanted += best
    hidden = mcp.difference(keep, wanted)
    if hidden or FIND_TOOLS in keep:
        # Among the built-in tools, which come first: what follows can change without moving it.
        wanted.insert(sum(tool.source == BUILTIN and tool.name != FIND_TOOLS for tool in offered), FIND_TOOLS)
    there = {tool.name for tool in offered}
    return tuple(name for name in dict.fromkeys([*injected, *wanted]) if name in there)


def arranged(
    names: Sequence[str], before: Sequence[str], offered: Sequence[Tool], used: Collection[str], *, top_k: int
) -> tuple[str, ...]:
    """A new run's tools, as near as can be to those of the session's last run, so that what a provider has
    cached stays so: the list of then while it holds all that is wanted now and is not much longer, else what
    both have in common first."""
    mcp = {tool.name for tool in offered if tool.source != BUILTIN}
    there = {tool.name for tool in offered}
    idle = [name for name in before if name in mcp and name not in used]
    if there.issuperset(before) and set(before).issuperset(names) and len(idle) <= 2 * top_k:
        return tuple(before)
    common = [name for name in before if name in set(names)]
    return tuple(dict.fromkeys([*common, *names]))
