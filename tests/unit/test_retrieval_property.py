"""Whatever happens to catalogs, vectors and services while people write: retrieval costs nobody a tool."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.tools.retrieval.select import BUILTIN, FIND_TOOLS, used_names
from tests.unit.retrieval_support import (
    Encoder,
    Session,
    Shelf,
    called,
    catalog,
    names,
    retrieval,
    said,
    tool,
)

SERVERS = ("files", "web", "mail", "日历")
WORDS = [
    "weather",
    "读取文件",
    "send a letter",
    "",
    "open the file and then search the web",
    "yes",
    "😀",
    "x" * 90,
]
KINDS = ["read_file", "search", "sendLetter", "weather", "open"]
ABOUT = ["Reads a file.", "Searches the web, and all of it.", "发送一封信", "", "The weather."]

places = st.tuples(st.sampled_from(SERVERS), st.sampled_from(KINDS), st.integers(0, 3))
actions = st.one_of(
    st.tuples(st.just("says"), st.sampled_from(WORDS)),
    st.tuples(st.just("works"), st.tuples(st.sampled_from(WORDS), st.integers(0, 60))),
    st.tuples(st.just("joins"), st.sampled_from(WORDS)),
    st.tuples(st.just("tools"), st.dictionaries(places, st.sampled_from(ABOUT), max_size=12)),
    st.tuples(st.just("mood"), st.sampled_from(["well", "dead", "hangs", "raises", "short", "refuses"])),
    st.tuples(st.just("poison"), st.sampled_from(["", "file", "web"])),
    st.tuples(st.just("model"), st.sampled_from(["a", "b"])),
    st.tuples(st.just("width"), st.sampled_from([8, 16])),
    st.tuples(st.just("store"), st.booleans()),
    st.tuples(st.just("time"), st.sampled_from([1.0, 61.0, 1000.0])),
    st.tuples(st.just("upkeep"), st.none()),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("breaks"), st.none()),
)


class World:
    """A session whose world changes; each request is checked."""

    def __init__(self, top_k: int, threshold: int, vectors: bool) -> None:
        self.encoder = Encoder(width=16, model="a") if vectors else None
        self.shelf = Shelf()
        self.options = {"top_k": top_k, "threshold": threshold}
        self.retrieval: Any = retrieval(self.encoder, self.shelf, **self.options)
        self.retrieval.query_deadline = 0.001
        self.session = Session(self.retrieval)
        self.tools: dict[tuple[str, str, int], str] = {}
        self.catalog = catalog()
        self.run = 0
        self.before: list[str] = []

    async def act(self, action: str, value: Any) -> None:
        if action == "says":
            self.run += 1
            self.before = []
            await self.request(*said(self.name, value))
        elif action == "works" and self.run:
            # Models also call what they were not given: a name from an older message is run all the same.
            text, number = value
            name = self.catalog.names[number % len(self.catalog)]
            await self.request(*called(self.name, name, text))
        elif action == "joins" and self.run:
            await self.request(*said(self.name, value))
        elif action == "tools":
            for place, about in value.items():
                self.tools[place] = about
            for place in list(self.tools)[: len(value) // 2]:
                del self.tools[place]
            made = [tool(s, f"{kind}{n}", about) for (s, kind, n), about in self.tools.items()]
            self.catalog = catalog(*made)
        elif action == "time":
            self.retrieval.clock.now += value
        elif action == "store":
            self.shelf.broken = value
        elif action == "upkeep":
            await self.upkeep()
        elif action == "restart":
            entries = self.session.entries
            self.retrieval = retrieval(self.encoder, self.shelf, **self.options)
            self.session = Session(self.retrieval)
            self.session.entries, self.before = entries, []
        elif action == "breaks" and self.run:
            await self.broken()
        elif self.encoder is not None and action in ("mood", "poison", "model", "width"):
            setattr(self.encoder, action, value)

    @property
    def name(self) -> str:
        return f"run{self.run}"

    async def upkeep(self) -> None:
        if self.encoder is not None and self.encoder.mood == "hangs":
            return  # nobody waits for upkeep, nor should this test
        try:
            await self.retrieval.refresh(self.catalog)
        except OSError:
            assert self.shelf.broken

    async def request(self, *entries: Any) -> None:
        chosen = await self.session.step(self.name, self.catalog, *entries)
        offered = self.session.catalog
        assert offered is not None
        given = names(chosen)
        assert len(set(given)) == len(given)
        assert given[: len(self.before)] == self.before, "within a run the list grows only at its end"
        self.before = given
        built_in = {t.name for t in offered if t.source == BUILTIN} - {FIND_TOOLS}
        assert built_in <= set(given), "no built-in tool is left out"
        used = set(used_names(self.session.entries)) & set(offered.names)
        assert used <= set(given), "nothing that was used is left out"
        mcp = {t.name for t in offered if t.source != BUILTIN}
        left_out = mcp - set(given)
        assert chosen.left_out == len(left_out)
        if left_out:
            assert FIND_TOOLS in given, "what is left out can be found"
            assert len(mcp) > self.options["threshold"]
        else:
            return
        assert len(mcp & set(given)) >= min(self.options["top_k"], len(mcp)), "as many as were promised"
        assert chosen.way in ("words", "vectors")

    async def broken(self) -> None:
        """A fault of any kind in choosing injects everything."""
        with patch("agent.tools.retrieval.service.build_query", side_effect=RuntimeError("a fault")):
            chosen = await self.session.step(self.name, self.catalog)
        assert self.session.catalog is not None
        if sum(t.source != BUILTIN for t in self.session.catalog) > self.options["threshold"]:
            assert chosen.way == "fault"
            assert set(names(chosen)) == set(self.session.catalog.names)
        assert chosen.left_out == 0
        given = names(chosen)
        assert given[: len(self.before)] == self.before
        self.before = given


@given(
    st.lists(actions, max_size=30),
    st.integers(0, 6),
    st.integers(0, 12),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_retrieval_costs_no_tool_whatever_happens(
    doings: list[tuple[str, Any]], top_k: int, threshold: int, vectors: bool
) -> None:
    async def live() -> None:
        world = World(top_k, threshold, vectors)
        everything = {(s, kind, n): ABOUT[n] for s in SERVERS for kind in KINDS for n in range(2)}
        await world.act("tools", everything)
        for action, value in doings:
            await world.act(action, value)

    asyncio.run(live())
