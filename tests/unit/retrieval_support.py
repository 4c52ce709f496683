"""What tests of retrieval share: tools, an encoder that can fail in every way, and a store in memory."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agent.history import Assistant, Entry, ToolCall, ToolOutput, User
from agent.tools.base import FunctionTool, ToolContext, ToolResult
from agent.tools.catalog import Catalog
from agent.tools.retrieval import Injected, Retrieval, RetrievalSettings, Selection
from agent.tools.retrieval.embedding import EmbeddingFailed, normalised
from agent.tools.retrieval.lexical import Index
from agent.tools.retrieval.query import Query, query_of
from agent.tools.retrieval.rank import rank
from agent.tools.retrieval.select import FIND_TOOLS
from agent.tools.retrieval.words import words

Mood = Literal["well", "dead", "hangs", "raises", "short", "refuses"]


async def nothing(params: dict[str, Any], context: ToolContext) -> ToolResult:
    return ToolResult("done")


def tool(server: str, name: str, about: str = "", *parameters: str) -> FunctionTool:
    """An MCP tool, or with the server "builtin" a built-in one."""
    params = {"type": "object", "properties": {key: {"type": "string"} for key in parameters}}
    full = name if server == "builtin" else f"{server}__{name}"
    return FunctionTool(full, about, params, nothing, source=server)


BUILTIN = (tool("builtin", "read", "Read a file."), tool("builtin", "write", "Write a file."))
FINDER = tool("builtin", FIND_TOOLS, "Find a tool.")


def crowd(count: int, servers: int = 5) -> list[FunctionTool]:
    """MCP tools that nothing in a test asks for."""
    return [tool(f"crowd{n % servers}", f"lamp_{n}", f"Turns lamp number {n} on.") for n in range(count)]


def catalog(*tools: FunctionTool) -> Catalog:
    return Catalog((*BUILTIN, FINDER, *tools))


def called(run: str, name: str, text: str = "") -> list[Entry]:
    """An answer that calls a tool, and its result."""
    return [
        Assistant(run, text, (ToolCall(f"c-{name}", name, {}),)),
        ToolOutput(run, f"c-{name}", name, "a result"),
    ]


def said(run: str, text: str) -> list[Entry]:
    return [User(run, text)]


def ranked(text: str, *tools: FunctionTool, similar: Mapping[str, float] | None = None) -> list[str]:
    """The tools' names, best first."""
    return [name for name, _ in rank(query_of(text), Index(tools), similar)]


class Encoder:
    """Vectors from words: texts with words in common are near each other; `alike` are words that mean the
    same. `mood` is how it fails; it may be changed at any time."""

    def __init__(self, width: int = 512, model: str = "m", alike: Mapping[str, str] | None = None) -> None:
        self.model = model
        self.width = width
        self.mood: Mood = "well"
        self.alike = dict(alike or {})
        self.poison = ""  # a text with this word is refused
        self.batches: list[list[str]] = []

    @property
    def texts(self) -> list[str]:
        return [text for batch in self.batches for text in batch]

    async def embed(self, texts: Sequence[str]) -> Any:
        self.batches.append(list(texts))
        await asyncio.sleep(0)
        if not texts:
            raise EmbeddingFailed("400: empty input", texts_at_fault=True)
        if self.mood == "dead":
            raise EmbeddingFailed("the connection was refused")
        if self.mood == "hangs":
            await asyncio.Event().wait()
        if self.mood == "raises":
            raise ZeroDivisionError
        if self.mood == "refuses" or (self.poison and any(self.poison in text for text in texts)):
            raise EmbeddingFailed("400", texts_at_fault=True)
        rows = [self._vector(text) for text in texts]
        return normalised(rows[:-1] if self.mood == "short" and len(rows) > 1 else rows)

    def _vector(self, text: str) -> Any:
        vector = [0.01] * self.width
        for word in words(text):
            word = self.alike.get(word, word)
            vector[zlib.crc32(f"{self.model} {word}".encode()) % self.width] += 1
        return vector

    async def close(self) -> None: ...


class Shelf:
    """A vector store in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, bytes]] = {}
        self.broken = False

    async def load(self, model: str) -> Mapping[str, bytes]:
        if self.broken:
            raise OSError("no disk")
        return dict(self.kept.get(model, {}))

    async def save(self, model: str, vectors: Mapping[str, bytes]) -> None:
        if self.broken:
            raise OSError("no disk")
        self.kept.setdefault(model, {}).update(vectors)

    async def prune(self, model: str, keep: frozenset[str]) -> None:
        self.kept = {model: {k: v for k, v in self.kept.get(model, {}).items() if k in keep}}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Session:
    """One session's runs against a retrieval, as its agent would drive it: what was injected in a run stays
    in its catalog."""

    def __init__(self, retrieval: Retrieval) -> None:
        self.retrieval = retrieval
        self.state = Injected()
        self.entries: list[Entry] = []
        self.catalog: Catalog | None = None
        self.run = ""

    async def step(self, run: str, now: Catalog, *entries: Entry) -> Selection:
        """What the next request of the run is given, after these entries."""
        self.entries.extend(entries)
        if run != self.run or self.catalog is None:
            self.run, self.catalog = run, now
        else:
            self.catalog = now.keeping(self.catalog, self.state.names)
        return await self.retrieval.choose(self.catalog, tuple(self.catalog), self.entries, run, self.state)


def retrieval(encoder: Encoder | None = None, shelf: Shelf | None = None, **settings: Any) -> Retrieval:
    """Switched on, with a short deadline and a clock that tests move."""
    made = RetrievalSettings(**{"enabled": True, **settings})
    return Retrieval(made, encoder, shelf, query_deadline=0.05, clock=Clock())


def names(selection: Selection) -> list[str]:
    return [tool.name for tool in selection.tools]


def query(text: str) -> Query:
    return query_of(text)
