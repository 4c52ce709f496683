"""The order of tools for a query, from words and, where there are any, vectors. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from agent.tools.retrieval.lexical import Index
from agent.tools.retrieval.query import Query

#: How much words count beside vectors; both as distances from the mean.
_WORDS = 0.5
#: How much a tool gains from its server's best tools, and how many of those are looked at: a server that
#: fits as a whole is likely to be used for several steps.
_LIFT, _BEST = 0.5, 3


def rank(query: Query, index: Index, similar: Mapping[str, float] | None = None) -> list[tuple[str, float]]:
    """All tools of the index with their scores, best first.

    `similar` is how near a tool's vector is to the query, by name. A tool that has none is put where its
    words put it among the others: it neither gains nor loses by that. Where nothing tells tools apart, each
    server's first comes before any server's second.
    """
    scores = index.scores(query)
    if similar:
        scores = _fused(_standard(scores), [similar.get(name) for name in index.names])
    scores = _lifted(scores, index)
    order = sorted(index.by_place, key=scores.__getitem__, reverse=True)  # equal ones keep their places
    return [(index.names[at], scores[at]) for at in order]


def _fused(lexical: Sequence[float], near: Sequence[float | None]) -> list[float]:
    present = [value for value in near if value is not None]
    if not present:
        return list(lexical)
    standard = iter(_standard(present))
    nearness = [None if value is None else next(standard) for value in near]
    if len(present) < len(near):
        nearness = _filled(lexical, nearness)
    return [_WORDS * word + (close or 0.0) for word, close in zip(lexical, nearness, strict=True)]


def _filled(lexical: Sequence[float], nearness: list[float | None]) -> list[float | None]:
    """A nearness for those that have none: that of the place which their words give them. Those without any
    word of the query stand in the middle."""
    ladder = sorted((value for value in nearness if value is not None), reverse=True)
    lowest = min(lexical)
    filled = list(nearness)
    order = sorted(range(len(lexical)), key=lambda at: -lexical[at])
    for place, at in enumerate(order):
        if filled[at] is None:
            filled[at] = 0.0 if lexical[at] <= lowest else ladder[place * len(ladder) // len(order)]
    return filled


def _standard(values: Sequence[float]) -> list[float]:
    """Distances from the mean in standard deviations."""
    if not values:
        return []
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    return [(value - mean) / spread for value in values] if spread > 1e-9 else [0.0] * len(values)


def _lifted(scores: Sequence[float], index: Index) -> list[float]:
    lifted = list(scores)
    for members in index.servers.values():
        best = sorted((scores[at] for at in members), reverse=True)[:_BEST]
        gain = _LIFT * sum(best) / len(best)
        for at in members:
            lifted[at] += gain
    return lifted
