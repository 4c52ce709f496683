"""Tools ranked by their words: BM25 over weighted fields. Pure; an index never changes."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from agent.tools.base import Tool
from agent.tools.retrieval.query import Query
from agent.tools.retrieval.words import split_name, words

#: Weight of a field, and how much its length counts against it (BM25's b): a tool's own name and its
#: server's say more in fewer words than a description does.
_NAME, _SERVER, _DESCRIPTION, _PARAMETERS = (2.0, 0.3), (2.0, 0.0), (1.0, 0.5), (0.5, 0.5)
_FIELDS = (_NAME, _SERVER, _DESCRIPTION, _PARAMETERS)
#: How soon more of the same word adds nothing (BM25's k1).
_SATURATION = 1.2
#: Characters of a description that a vector is made of.
_DESCRIBED = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """What ranking knows of one tool. `text` is what a vector is made of, `key` its hash."""

    tool: Tool
    fields: tuple[list[str], ...]
    text: str
    key: str


def document(tool: Tool) -> Document:
    """Read a tool. Raises nothing for odd schemas: they just have no parameters."""
    name = getattr(tool, "original", "") or tool.name.partition("__")[2] or tool.name
    properties = tool.params.get("properties") if isinstance(tool.params, Mapping) else None
    parameters = " ".join(map(str, properties)) if isinstance(properties, Mapping) else ""
    fields = (words(name), words(tool.source), words(tool.description), words(parameters))
    text = f"{split_name(tool.source)} {split_name(name)}: {' '.join(tool.description[:_DESCRIBED].split())}"
    return Document(tool, fields, text, hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32])


class Index:
    """The words of a set of tools. `known` are documents that need not be read again, by `id(tool)`.

    A word is rare when few tools have it, and also when few servers have it: all tools of a server share
    words that set them apart from every other server's.
    """

    def __init__(self, tools: Iterable[Tool], known: Mapping[int, Document] | None = None) -> None:
        known = known or {}
        self.documents = tuple(known.get(id(tool)) or document(tool) for tool in tools)
        self.names = tuple(doc.tool.name for doc in self.documents)
        self.servers: dict[str, list[int]] = defaultdict(list)
        places: list[int] = []
        for at, doc in enumerate(self.documents):
            members = self.servers[doc.tool.source]
            places.append(len(members))
            members.append(at)
        #: All tools, each server's first before any server's second.
        self.by_place = sorted(range(len(places)), key=places.__getitem__)
        self._postings = self._weighed()

    @cached_property
    def by_id(self) -> dict[int, Document]:
        return {id(doc.tool): doc for doc in self.documents}

    def _weighed(self) -> dict[str, list[tuple[int, float]]]:
        lengths = [max(1.0, _mean(len(d.fields[f]) for d in self.documents)) for f in range(len(_FIELDS))]
        counts: dict[str, dict[int, float]] = defaultdict(dict)
        for at, doc in enumerate(self.documents):
            weights: dict[str, float] = defaultdict(float)
            for field, (weight, b), usual in zip(doc.fields, _FIELDS, lengths, strict=True):
                each = weight / (1 - b + b * len(field) / usual)
                for word in field:
                    weights[word] += each
            for word, weight in weights.items():
                counts[word][at] = weight
        tools, servers = len(self.documents), len(self.servers)
        postings = {}
        for word, holders in counts.items():
            sources = {self.documents[at].tool.source for at in holders}
            rare = (_rarity(len(holders), tools) + _rarity(len(sources), servers)) / 2
            postings[word] = [
                (at, rare * weight * (_SATURATION + 1) / (weight + _SATURATION))
                for at, weight in holders.items()
            ]
        return postings

    def scores(self, query: Query) -> list[float]:
        """One score a tool, in the order of `names`; 0 for a tool without any of the query's words."""
        wanted: dict[str, float] = defaultdict(float)
        for text, weight in query.texts:
            for word, times in Counter(words(text)).items():
                wanted[word] += weight * (1 + math.log(times))
        scores = [0.0] * len(self.documents)
        for word, weight in wanted.items():
            for at, score in self._postings.get(word, ()):
                scores[at] += weight * score
        return scores


def _rarity(holders: int, all_of_them: int) -> float:
    return math.log(1 + (all_of_them - holders + 0.5) / (holders + 0.5))


def _mean(values: Iterable[int]) -> float:
    numbers: Sequence[int] = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0
