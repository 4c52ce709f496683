"""Tools that are easily mistaken for each other, and definitions that cost too much. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from agent.tools.base import Tool
from agent.tools.retrieval.lexical import Document, document
from agent.tools.retrieval.select import BUILTIN
from agent.tools.stats import definition_tokens

#: How many of their words two descriptions share (of all that either has) to count as one text, and how
#: many words they must have for that to mean anything.
_ALIKE, _FEWEST = 0.7, 4
#: From this many holders on a word says nothing, and would make every pair a candidate.
_COMMON = 60
#: Tokens from which a definition is told to be dear: ten of them cost as much as a long system prompt.
DEAR = 800


@dataclass(frozen=True, slots=True)
class Confusable:
    """Two tools, by name. "name": their servers call them the same; "description": the same words describe
    both. `alike` is the share of words that both descriptions have, from 0 to 1."""

    first: str
    second: str
    why: Literal["name", "description"]
    alike: float


@dataclass(frozen=True, slots=True)
class Dear:
    """A definition that costs about `tokens` in each request that offers it."""

    name: str
    tokens: int


def confusable(tools: Iterable[Tool], limit: int = 50) -> tuple[Confusable, ...]:
    """Pairs of MCP tools that a model easily takes for each other, the likest first, at most `limit`.

    Tools with one name on two servers always are a pair; others when their descriptions use the same words
    and neither names the other.
    """
    documents = [document(tool) for tool in tools if tool.source != BUILTIN]
    described = [frozenset(doc.fields[2]) for doc in documents]
    found: dict[tuple[int, int], Confusable] = {}
    for pair in _same_names(documents):
        found[pair] = _pair(documents, pair, "name", _share(described, pair))
    for pair in _near(described):
        alike = _share(described, pair)
        if pair not in found and alike >= _ALIKE and not _told_apart(documents, pair):
            found[pair] = _pair(documents, pair, "description", alike)
    ordered = sorted(found.values(), key=lambda one: (-one.alike, one.first, one.second))
    return tuple(ordered[:limit])


def dear(tools: Iterable[Tool], tokens: int = DEAR) -> tuple[Dear, ...]:
    """MCP tools whose definition costs at least so many tokens in each request, the dearest first."""
    costs = [Dear(tool.name, definition_tokens(tool)) for tool in tools if tool.source != BUILTIN]
    return tuple(sorted((cost for cost in costs if cost.tokens >= tokens), key=lambda c: (-c.tokens, c.name)))


def _same_names(documents: Sequence[Document]) -> Iterable[tuple[int, int]]:
    """Neighbours among the tools of one name; every pair of many would be told again and again."""
    by_name: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for at, doc in enumerate(documents):
        by_name[tuple(sorted(doc.fields[0]))].append(at)
    for words, holders in by_name.items():
        if words:
            yield from (
                (one, other)
                for one, other in pairwise(holders)
                if documents[one].tool.source != documents[other].tool.source
            )


def _near(described: Sequence[frozenset[str]]) -> Iterable[tuple[int, int]]:
    """Pairs that may be alike, found by the words that few have."""
    holders: dict[str, list[int]] = defaultdict(list)
    for at, words in enumerate(described):
        if len(words) >= _FEWEST:
            for word in words:
                holders[word].append(at)
    shared: Counter[tuple[int, int]] = Counter()
    for at_all in holders.values():
        if len(at_all) <= _COMMON:
            shared.update((one, other) for place, one in enumerate(at_all) for other in at_all[place + 1 :])
    return sorted(pair for pair, words in shared.items() if words >= 2)


def _share(described: Sequence[frozenset[str]], pair: tuple[int, int]) -> float:
    one, other = described[pair[0]], described[pair[1]]
    return len(one & other) / len(one | other) if one or other else 0.0


def _told_apart(documents: Sequence[Document], pair: tuple[int, int]) -> bool:
    """Whether an author says in one tool's description when the other is meant."""
    one, other = documents[pair[0]].tool, documents[pair[1]].tool
    return _names(one, other) or _names(other, one)


def _names(tool: Tool, other: Tool) -> bool:
    return re.search(rf"(?<!\w){re.escape(_short(other))}(?!\w)", tool.description) is not None


def _short(tool: Tool) -> str:
    return str(getattr(tool, "original", "") or tool.name.partition("__")[2] or tool.name)


def _pair(
    documents: Sequence[Document], pair: tuple[int, int], why: Literal["name", "description"], alike: float
) -> Confusable:
    return Confusable(documents[pair[0]].tool.name, documents[pair[1]].tool.name, why, alike)
