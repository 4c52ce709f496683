"""MCP beyond tools, from the chat: resources, prompts, questions of a server, text from the model."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.app import App
from tests.fakes.llm import Call, Say, ScriptedModel, Seen
from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.harness import ROOT, bridge, openai_at

ELICIT: dict[str, Any] = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Which size?",
        "requestedSchema": {
            "type": "object",
            "properties": {"size": {"type": "string", "enum": ["small", "large"]}},
            "required": ["size"],
        },
    },
}
SAMPLE: dict[str, Any] = {
    "method": "sampling/createMessage",
    "params": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "Name a colour."}}],
        "maxTokens": 50,
    },
}


@asynccontextmanager
async def talking(
    folder: Path, answer: Callable[[Seen], Say], *options: str, **settings: Any
) -> AsyncIterator[tuple[App, FakeTelegram, ScriptedModel]]:
    server = {"command": sys.executable, "args": ["-m", "tests.fakes.mcp_sdk", *options], "cwd": str(ROOT)}
    (folder / "workspace").mkdir()
    (folder / "workspace" / "mcp.json").write_text(json.dumps({"mcpServers": {"sdk": server}}))
    async with FakeTelegram() as fake, ScriptedModel(answer).running() as model:
        given = {
            "model": openai_at(model.openai_url),
            "channels": {"telegram": {"token": TOKEN, "base_url": fake.url}},
            "access": {"telegram": {"admins": ["5"], "allow": ["6"]}},
            **settings,
        }
        async with bridge(folder, given) as app:
            async with asyncio.timeout(30):
                while not (app.mcp.tools and app.mcp.resources() and app.mcp.prompts()):
                    await app.maintenance.settled()
            yield app, fake, model


def echo(seen: Seen) -> Say:
    return Say(f"re: {seen.last_user}")


async def shown(fake: FakeTelegram, words: str) -> None:
    await fake.wait_for(lambda: words in fake.chat(5).text, 15)


async def test_a_resource_is_listed_attached_and_read_by_the_model_with_the_next_message(
    tmp_path: Path,
) -> None:
    async with talking(tmp_path, echo) as (_, fake, model):
        fake.say(5, "/resource")
        await shown(fake, "sdk:today")
        fake.say(5, "/resource today")
        await shown(fake, "is attached")
        fake.say(5, "/resource nonsense")
        await shown(fake, "no resource “nonsense”")
        assert model.seen == []
        fake.say(5, "what is on?")
        await shown(fake, "re:")
        assert "water the plants" in json.dumps(model.seen[0].body["messages"])


async def test_a_prompt_runs_with_its_arguments_and_asks_for_those_that_are_missing(tmp_path: Path) -> None:
    async with talking(tmp_path, echo) as (_, fake, model):
        fake.say(5, "/prompt")
        await shown(fake, "sdk:greet")
        fake.say(5, "/prompt greet name=Ann tone=cold")
        await shown(fake, "re: Greet Ann in a cold way.")
        fake.say(5, "/prompt sdk:greet")
        await shown(fake, "(1/1) name")
        fake.say(5, "Bob")
        await shown(fake, "re: Greet Bob in a warm way.")
        fake.say(5, "/prompt greet")
        await fake.wait_for(lambda: fake.chat(5).text.count("(1/1) name") == 2, 15)
        fake.say(5, "/deny")
        await shown(fake, "The prompt was not run.")
        assert len(model.seen) == 2


def asks(request: dict[str, Any]) -> Callable[[Seen], Say]:
    def answer(seen: Seen) -> Say:
        if "Name a colour." in seen.last_user:
            return Say("teal")
        if "order" in seen.last_user and seen.results:
            return Say(f"It said: {seen.results[-1]}")
        if "order" in seen.last_user:
            return Say(calls=(Call("sdk__ask", {"request": request}),))
        return echo(seen)

    return answer


@pytest.mark.parametrize("options", [(), ("--legacy",)], ids=["2026-07-28", "handshake era"])
async def test_a_server_s_question_is_asked_in_the_chat_and_answered_there(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    async with talking(tmp_path, asks(ELICIT), *options) as (_, fake, model):
        fake.say(5, "order")
        await shown(fake, "sdk asks: Which size?")
        fake.say(6, "large")  # somebody else's chat is another conversation
        fake.say(5, "/status")  # commands work meanwhile
        await shown(fake, "Model:")
        fake.say(5, "LARGE")
        await shown(fake, "It said:")
        assert '"size": "large"' in fake.chat(5).text
        await fake.wait_for(lambda: fake.chat(6).texts == ["re: large"])
        roles = [m["role"] for m in model.seen[-1].body["messages"]]
        assert roles.count("user") <= 1 or "large" not in json.dumps(model.seen[0].body)


async def test_stopping_while_a_server_asks_closes_the_question(tmp_path: Path) -> None:
    async with talking(tmp_path, asks(ELICIT)) as (_, fake, _model):
        fake.say(5, "order")
        await shown(fake, "sdk asks: Which size?")
        fake.say(5, "/stop")
        await shown(fake, "Stopped.")
        fake.say(5, "large")
        await shown(fake, "re: large")


@pytest.mark.parametrize("options", [(), ("--legacy",)], ids=["2026-07-28", "handshake era"])
async def test_sampling_is_off_by_default_and_goes_to_the_model_when_it_is_on(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    async with talking(tmp_path, asks(SAMPLE), *options) as (_, fake, model):
        fake.say(5, "order")
        await shown(fake, "It said:")
        assert "teal" not in fake.chat(5).text
        assert len(model.seen) == 2
    (tmp_path / "on").mkdir()
    on = {"mcp": {"sampling": {"enabled": True, "per_turn": 1}}}
    async with talking(tmp_path / "on", asks(SAMPLE), *options, **on) as (_, fake, model):
        fake.say(5, "order")
        await shown(fake, "It said:")
        assert "teal" in fake.chat(5).text
        assert len(model.seen) == 3


async def test_mc_25_a_tool_that_an_admin_switched_off_stays_off(tmp_path: Path) -> None:
    def offered(seen: Seen) -> Say:
        return Say(f"add is {'there' if 'sdk__add' in seen.tools else 'away'}: {seen.last_user}")

    async with talking(tmp_path, offered) as (app, fake, _model):
        fake.say(5, "one")
        await shown(fake, "add is there: one")
        fake.say(6, "/tools off sdk__add")
        await fake.wait_for(lambda: "Only an admin" in fake.chat(6).text, 15)
        fake.say(5, "/tools off sdk__ad")
        await shown(fake, "Did you mean")
        fake.say(5, "/tools off sdk__add")
        await shown(fake, "is switched off for everybody")
        fake.say(5, "two")
        await shown(fake, "add is away: two")
        fake.say(6, "for others too")
        await fake.wait_for(lambda: "add is away: for others too" in fake.chat(6).text, 15)
        assert await app.mcp.restart("sdk")
        await app.maintenance.settled()
        fake.say(5, "three")
        await shown(fake, "add is away: three")
        file = tmp_path / "workspace" / "mcp.json"
        entry = file.read_text()
        file.write_text('{"mcpServers": {}}')
        await app.maintenance.settled()
        file.write_text(entry)
        await app.maintenance.settled()
        fake.say(5, "four")
        await shown(fake, "add is away: four")
        await app.stop()
        app = App(app.config)
        await app.start()
        try:
            async with asyncio.timeout(30):
                while not app.mcp.tools:
                    await app.maintenance.settled()
            fake.say(5, "five")
            await shown(fake, "add is away: five")
            fake.say(5, "/tools on sdk__add")
            await shown(fake, "is switched on")
            fake.say(5, "six")
            await shown(fake, "add is there: six")
        finally:
            await app.stop()


async def test_mc_20_what_a_run_has_used_stays_offered_to_its_end_though_its_server_is_gone(
    tmp_path: Path,
) -> None:
    """Retrieval is off: all tools are offered. A used one stays, and says that its server is gone."""
    seen_tools: list[list[str]] = []
    app_box: list[App] = []

    async def answer(seen: Seen) -> Say:
        seen_tools.append(seen.tools)
        if len(seen_tools) == 1:
            return Say(calls=(Call("sdk__add", {"a": 1, "b": 2}),))
        if len(seen_tools) == 2:
            file = tmp_path / "workspace" / "mcp.json"
            file.write_text('{"mcpServers": {}}')
            await app_box[0].maintenance.settled()
            return Say(calls=(Call("read", {"path": "x"}),))
        if len(seen_tools) == 3:
            return Say(calls=(Call("sdk__add", {"a": 3, "b": 4}),))
        return Say(f"It said: {seen.results[-1]}")

    async with talking(tmp_path, answer) as (app, fake, _model):  # type: ignore[arg-type]
        app_box.append(app)
        fake.say(5, "go")
        await shown(fake, "It said:")
        assert "is gone" in fake.chat(5).text
        assert all("sdk__add" in tools and "read" in tools for tools in seen_tools)
        assert "sdk__whoami" not in seen_tools[-1]
        fake.say(5, "next")
        await fake.wait_for(lambda: len(seen_tools) == 5, 15)
        assert "sdk__add" not in seen_tools[-1]
