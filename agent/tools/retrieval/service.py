"""Choosing among many tools: the one object that agents and upkeep share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from agent.history import Entry
from agent.tools.base import FunctionTool, Tool, ToolContext
from agent.tools.catalog import Catalog
from agent.tools.retrieval.embedding import Embedder
from agent.tools.retrieval.finder import described, find_tools_tool
from agent.tools.retrieval.lexical import Document, Index
from agent.tools.retrieval.query import Query, build_query, query_of
from agent.tools.retrieval.rank import rank
from agent.tools.retrieval.select import BUILTIN, FIND_TOOLS, arranged, found_names, select, used_names
from agent.tools.retrieval.settings import RetrievalSettings
from agent.tools.retrieval.vectors import Vectors, VectorStore

log = logging.getLogger("causeway.retrieval")

#: Indices that are kept: that of now, and those that runs and sessions with other tools still use.
_INDICES = 4
#: Tools from which on an index is made in a thread.
_MANY = 50

Way = Literal["all", "words", "vectors", "fault"]


@dataclass(slots=True)
class Injected:
    """What a session's model was given; kept by the session's agent. Losing it costs a provider's cache and
    nothing else."""

    run: str = ""
    names: tuple[str, ...] = ()
    finder: Tool | None = None  # `find_tools` as this run was given it


@dataclass(frozen=True, slots=True)
class Selection:
    """The tools for one request, in order. `left_out` is how many usable ones are not among them; `way` is
    how they were chosen, for people."""

    tools: tuple[Tool, ...]
    left_out: int = 0
    way: Way = "all"


@dataclass(slots=True)
class Retrieval:
    """Used from one event loop. Without an embedder tools are ranked by their words."""

    settings: RetrievalSettings
    embedder: Embedder | None = None
    store: VectorStore | None = None
    query_deadline: float = 2.0
    clock: Callable[[], float] = time.monotonic
    _vectors: Vectors | None = field(init=False, default=None)
    _indices: list[tuple[tuple[Tool, ...], Index]] = field(init=False, default_factory=list)
    _latest: tuple[object, Index] | None = field(init=False, default=None)
    _indexing: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        if self.embedder is not None:
            self._vectors = Vectors(
                self.embedder, self.store, query_deadline=self.query_deadline, clock=self.clock
            )

    def find_tools(self, usable: Callable[[ToolContext], Sequence[Tool]]) -> FunctionTool:
        """The built-in tool that finds what was left out. `usable` gives what a caller may use."""
        return find_tools_tool(self.search, usable)

    async def choose(
        self, catalog: Catalog, offered: Sequence[Tool], entries: Sequence[Entry], run: str, state: Injected
    ) -> Selection:
        """The tools for a run's next request. Raises nothing but CancelledError: any fault injects all.

        `offered` are the tools of the catalog that the caller may use, `entries` the history as the model is
        shown it. Within a run the list only grows, at its end; only tools that are offered no more leave it.
        """
        if state.run != run:
            before, state.names, state.finder, state.run = state.names, (), None, run
        else:
            before = ()
        by_name = {tool.name: tool for tool in offered}
        try:
            names, way = await self._chosen(catalog, offered, entries, state.names, run)
            if before:
                names = arranged(names, before, offered, used_names(entries), top_k=self.settings.top_k)
        except Exception:
            # Retrieval saves tokens; whatever goes wrong in it, the model has to have its tools.
            log.exception("choosing among the tools failed; all of them are offered")
            names = tuple(dict.fromkeys([*before, *state.names, *by_name]))
            way = "fault"
        state.names = tuple(name for name in names if name in by_name)
        tools = tuple(self._shown(by_name[name], offered, state) for name in state.names)
        return Selection(tools, len(by_name.keys() - set(names) - {FIND_TOOLS}), way)

    async def _chosen(
        self,
        catalog: Catalog,
        offered: Sequence[Tool],
        entries: Sequence[Entry],
        injected: tuple[str, ...],
        run: str,
    ) -> tuple[tuple[str, ...], Way]:
        threshold = self.settings.threshold
        way: Way = "all"
        usable = {tool.name for tool in offered if tool.source != BUILTIN}
        ranked: list[str] = []
        query = Query()
        if self.settings.enabled and len(usable) > threshold:
            query = build_query(entries)
        if query:
            scored, way = await self._ranked(query, catalog)
            ranked = [name for name, _ in scored if name in usable]
        else:
            # Off, few tools, or nothing that anybody wrote to choose by: all of them.
            threshold = len(usable)
        used = dict.fromkeys([*used_names(entries), *found_names(entries, run)])
        names = select(ranked, offered, injected, used, top_k=self.settings.top_k, threshold=threshold)
        return names, way

    async def _ranked(self, query: Query, tools: Catalog) -> tuple[list[tuple[str, float]], Way]:
        index = await self._index(tools)
        similar = await self._vectors.similar(query, index) if self._vectors is not None else {}
        return rank(query, index, similar), "vectors" if similar else "words"

    async def search(self, text: str, tools: Sequence[Tool]) -> list[Tool]:
        """The tools that fit a text, best first; those without anything in common with it are left out."""
        query = query_of(text)
        if not query:
            return []
        index = await self._index(tools)
        similar = await self._vectors.similar(query, index) if self._vectors is not None else {}
        fits = {name for name, score in zip(index.names, index.scores(query), strict=True) if score > 0}
        fits.update(similar)
        by_name = {tool.name: tool for tool in tools}
        return [by_name[name] for name, _ in rank(query, index, similar) if name in fits]

    @staticmethod
    def _shown(tool: Tool, offered: Sequence[Tool], state: Injected) -> Tool:
        """The tool as models see it: `find_tools` names the servers there are, the same ones all through a
        run."""
        if tool.name != FIND_TOOLS or not isinstance(tool, FunctionTool):
            return tool
        if state.finder is None:
            state.finder = replace(tool, description=described(offered))
        return state.finder

    async def _index(self, tools: Catalog | Sequence[Tool]) -> Index:
        """The index of the MCP tools among these; only tools that no kept index knows are read anew."""
        if self._latest is not None and self._latest[0] is tools:
            return self._latest[1]
        mcp = tuple(tool for tool in tools if tool.source != BUILTIN)
        if (index := self._kept(mcp)) is None:
            async with self._indexing:
                index = self._kept(mcp) or await self._made(mcp)
        self._latest = tools, index
        return index

    async def _made(self, mcp: tuple[Tool, ...]) -> Index:
        read: dict[int, Document] = {}
        for _, index in self._indices:
            read.update(index.by_id)
        made = Index(mcp, read) if len(mcp) < _MANY else await asyncio.to_thread(Index, mcp, read)
        self._indices = [(mcp, made), *self._indices[: _INDICES - 1]]
        return made

    def _kept(self, mcp: tuple[Tool, ...]) -> Index | None:
        """The index of these very tools, if there is one."""
        identity = tuple(map(id, mcp))
        for place, (known, index) in enumerate(self._indices):
            if tuple(map(id, known)) == identity:
                self._indices.insert(0, self._indices.pop(place))
                return index
        return None

    async def refresh(self, catalog: Catalog) -> int:
        """Upkeep, never on a reply's way: index the tools, compute and store the vectors that are missing.

        How many tools are still without one, for the next pass. Raises the store's errors.
        """
        if not self.settings.enabled:
            return 0
        index = await self._index(catalog)
        return await self._vectors.refresh(index.documents) if self._vectors is not None else 0

    @property
    def resting(self) -> str | None:
        """Why tools are ranked by words alone although there should be vectors; None when there is no fault.
        For people."""
        return self._vectors.fault if self._vectors is not None else None

    async def close(self) -> None:
        if self.embedder is not None:
            await self.embedder.close()
