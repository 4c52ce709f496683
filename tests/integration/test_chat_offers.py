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
