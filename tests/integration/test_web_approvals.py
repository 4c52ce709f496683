"""A confirmation in the web chat over the whole bridge: asked, kept over a restart, answered, done once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aiohttp.test_utils import unused_port

from bridge.app import App
from bridge.config import load_config
from tests.fakes.llm import Call, Say, ScriptedModel, Seen
from tests.harness import clean_environ, openai_at, write_config
from tests.integration.web_house import Visitor

COMMAND = "echo ran >> ran.txt; wc -l < ran.txt"


def answer(seen: Seen) -> Say:
    if not seen.results:
        return Say(calls=(Call("bash", {"command": COMMAND}),))
    return Say(f"It said: {seen.results[-1]}")


@asynccontextmanager
async def started(folder: Path, model: ScriptedModel, port: int) -> AsyncIterator[App]:
    settings: dict[str, Any] = {
        "model": openai_at(model.openai_url),
        "channels": {"web": {}},
        "tools": {"bash": {"enabled": True}},
        "server": {"port": port},
    }
    app = App(load_config(write_config(folder, settings), clean_environ(folder)))
    await app.start()
    try:
        yield app
    finally:
        await app.stop(grace=0)


async def entry(visitor: Visitor, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The first event of an open page for which this holds."""
    async with asyncio.timeout(15):
        async for _, _, data in visitor.events():
            if condition(data):
                return data
    raise AssertionError("the stream of events ended")


def html(data: dict[str, Any]) -> str:
    return unescape("".join(data.get("blocks", [])))


async def test_a_call_asked_before_a_restart_is_allowed_after_it_and_runs_once(tmp_path: Path) -> None:
    port = unused_port()
    house: Any = SimpleNamespace(url=f"http://127.0.0.1:{port}")
    async with ScriptedModel(answer).running() as model, AsyncExitStack() as stack:
        async with started(tmp_path, model, port):
            visitor = await stack.enter_async_context(Visitor(house))
            assert await visitor.send("message-1", "run it") == 200
            before = await entry(visitor, lambda data: "choices" in data)
            assert "outcome" not in before
            assert COMMAND in html(before)
        async with started(tmp_path, model, port):
            after = await entry(visitor, lambda data: "choices" in data)
            assert (after["id"], after["choices"]) == (before["id"], before["choices"])
            yes = next(one["id"] for one in after["choices"] if one["style"] == "primary")
            status, body = await visitor.press(after["id"], yes)
            assert (status, body["said"]) == (200, "Allowed: bash.")
            settled = await entry(visitor, lambda data: "outcome" in data)
            assert "allowed by local" in settled["outcome"][0]
            assert settled["id"] == before["id"]
            assert "exit code 0" in html(await entry(visitor, lambda data: "It said" in html(data)))
            assert (await visitor.press(after["id"], yes))[1]["said"] == "This question is no longer open."
    (ran,) = (tmp_path / "workspace" / "sessions").rglob("ran.txt")
    assert ran.read_text() == "ran\n"
