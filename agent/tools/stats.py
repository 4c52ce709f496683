"""What each tool has done, and what its definition costs a model at every step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from agent.tools.base import Tool

_MOST_KEPT = 2000
#: What providers add around a tool's name, description and schema, in tokens.
_AROUND = 12


@dataclass(slots=True)
class ToolStats:
    """What a tool has done since the start. `milliseconds` and `bytes` are sums over all calls; `bytes` are
    of results as models got them (UTF-8)."""

    calls: int = 0
    failures: int = 0
    timeouts: int = 0
    milliseconds: float = 0.0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ToolUsage:
    """A tool as people see it. `on`: not switched off. `tokens` is an estimate of what its definition costs
    in each request; the other figures are those of `ToolStats`."""

    name: str
    source: str
    on: bool
    tokens: int
    calls: int = 0
    failures: int = 0
    timeouts: int = 0
    milliseconds: float = 0.0
    bytes: int = 0


def text_tokens(text: str) -> int:
    """About how many tokens a text has: four Latin characters or one other are one. Within some 25 % of
    what the vendors count for prose, code and JSON."""
    plain = len(text.encode("ascii", "ignore"))
    return -(-plain // 4) + len(text) - plain


def definition_tokens(tool: Tool) -> int:
    """About how many tokens a tool's definition costs in each request."""
    schema = json.dumps(tool.params, ensure_ascii=False, separators=(",", ":"), default=str)
    return _AROUND + text_tokens(tool.name) + text_tokens(tool.description) + text_tokens(schema)


class Usage(Mapping[str, ToolStats]):
    """The figures by tool name, for the tools called first to last; bounded, the oldest go first."""

    def __init__(self) -> None:
        self._stats: dict[str, ToolStats] = {}
        self._tokens: dict[str, tuple[Tool, int]] = {}

    def __getitem__(self, name: str) -> ToolStats:
        return self._stats[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stats)

    def __len__(self) -> int:
        return len(self._stats)

    def record(self, name: str, outcome: str, seconds: float, size: int) -> None:
        """Count a call. `outcome` is one word: ok, failed, invalid, denied, timeout or cancelled."""
        stats = self._stats.setdefault(name, ToolStats())
        while len(self._stats) > _MOST_KEPT:
            del self._stats[next(iter(self._stats))]
        stats.calls += 1
        stats.failures += outcome not in ("ok", "cancelled")
        stats.timeouts += outcome == "timeout"
        stats.milliseconds += seconds * 1000
        stats.bytes += size

    def of(self, tools: Iterable[Tool], off: frozenset[str]) -> tuple[ToolUsage, ...]:
        """One row a tool, in the order given. A definition is counted once, so asking again is cheap."""
        counted: dict[str, tuple[Tool, int]] = {}
        rows = []
        for tool in tools:
            known = self._tokens.get(tool.name)
            if known is None or known[0] is not tool:
                known = (tool, definition_tokens(tool))
            counted[tool.name] = known
            did = self._stats.get(tool.name) or ToolStats()
            rows.append(
                ToolUsage(
                    tool.name, tool.source, tool.name not in off, known[1],
                    did.calls, did.failures, did.timeouts, did.milliseconds, did.bytes,
                )
            )  # fmt: skip
        self._tokens = counted
        return tuple(rows)
