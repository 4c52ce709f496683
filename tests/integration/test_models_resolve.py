"""Settings and environment lead to the right model, or to a sentence that says what to change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from pydantic import ValidationError

from agent.history import User
from agent.models.anthropic import AnthropicModel
from agent.models.base import Completed, Request
from agent.models.demo import DemoModel
from agent.models.openai import OpenAIModel
from agent.models.resolve import (
    DEFAULT_ANTHROPIC,
    DEFAULT_OPENAI,
    ModelSettings,
    ModelSetupError,
    resolve,
)
from tests.fakes.llm import Say, ScriptedModel

NOWHERE = "http://127.0.0.1:9"
BOTH = {"OPENAI_API_KEY": "sk-1", "ANTHROPIC_API_KEY": "sk-2"}
DEEPSEEK = "https://api.deepseek.com/anthropic"


def settings(**values: Any) -> ModelSettings:
    return ModelSettings.model_validate(values)


@asynccontextmanager
async def ollama(body: object, delay: float = 0.0) -> AsyncIterator[str]:
    async def tags(_: web.Request) -> web.Response:
        await asyncio.sleep(delay)
        return web.json_response(body)

    app = web.Application()
    app.router.add_get("/api/tags", tags)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("values", "environ", "kind", "name"),
    [
        ({}, {}, DemoModel, "demo"),
        ({}, {"OPENAI_API_KEY": " "}, DemoModel, "demo"),
        ({}, {"OPENAI_API_KEY": "sk-1"}, OpenAIModel, DEFAULT_OPENAI),
        ({}, {"ANTHROPIC_API_KEY": "sk-2"}, AnthropicModel, DEFAULT_ANTHROPIC),
        ({}, BOTH, OpenAIModel, DEFAULT_OPENAI),
        ({"name": "claude-x"}, BOTH, AnthropicModel, "claude-x"),
        ({"api_key": "sk-ant-1"}, {}, AnthropicModel, DEFAULT_ANTHROPIC),
        ({"api_key": "sk-1"}, {"ANTHROPIC_API_KEY": "sk-2"}, OpenAIModel, DEFAULT_OPENAI),
        ({"base_url": "http://h/v1", "name": "q"}, {}, OpenAIModel, "q"),
        ({"base_url": DEEPSEEK, "api_key": "k", "name": "d"}, {}, AnthropicModel, "d"),
        ({"provider": "anthropic"}, BOTH, AnthropicModel, DEFAULT_ANTHROPIC),
        ({"provider": "demo"}, {"OPENAI_API_KEY": "sk-1"}, DemoModel, "demo"),
    ],
)  # fmt: skip
async def test_the_right_model_is_taken(
    values: dict[str, Any], environ: dict[str, str], kind: type[Any], name: str
) -> None:
    model = await resolve(settings(**values), environ, ollama=NOWHERE)
    assert type(model) is kind
    assert model.name == name
    await model.close()


@pytest.mark.parametrize(
    ("values", "environ", "part"),
    [
        ({"provider": "openai"}, {}, "OPENAI_API_KEY"),
        ({"provider": "anthropic"}, {}, "ANTHROPIC_API_KEY"),
        ({"base_url": "localhost:1234"}, {}, "model.base_url is no web address"),
        ({"name": "x"}, {"OPENAI_BASE_URL": "nonsense"}, "OPENAI_BASE_URL is no web address"),
        ({"base_url": f"{NOWHERE}/v1"}, {}, "model.name is not set"),
        ({"api_key": "sk-CANARY\u2026"}, {}, "Copy it again"),
    ],
)
async def test_settings_that_lead_nowhere_say_what_to_change(
    values: dict[str, Any], environ: dict[str, str], part: str
) -> None:
    with pytest.raises(ModelSetupError) as caught:
        await resolve(settings(**values), environ, ollama=NOWHERE)
    assert part in str(caught.value)
    assert "CANARY" not in str(caught.value)


async def test_a_local_ollama_is_found_and_its_first_model_taken() -> None:
    async with ollama({"models": [{"name": "qwen3:8b"}, {"name": "other"}]}) as root:
        model = await resolve(settings(), {}, ollama=root)
        named = await resolve(settings(name="other"), {}, ollama=root)
    assert isinstance(model, OpenAIModel)
    assert (model.name, named.name) == ("qwen3:8b", "other")


@pytest.mark.parametrize("body", [{"models": []}, {}, [], "x", {"models": [{}]}, {"models": None}])
async def test_an_ollama_without_models_means_the_demo(body: object) -> None:
    async with ollama(body) as root:
        assert isinstance(await resolve(settings(), {}, ollama=root), DemoModel)


async def test_an_ollama_that_does_not_answer_costs_a_third_of_a_second() -> None:
    async with ollama({"models": [{"name": "x"}]}, delay=5) as root:
        started = time.monotonic()
        assert isinstance(await resolve(settings(), {}, ollama=root), DemoModel)
        assert time.monotonic() - started < 2


async def test_base_urls_of_the_environment_are_honoured() -> None:
    async with ScriptedModel([Say("from here")]).running() as server:
        for environ in (
            {"OPENAI_BASE_URL": server.openai_url},
            {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": server.anthropic_url},
        ):
            model = await resolve(settings(), environ, ollama=NOWHERE)
            deltas = [d async for d in model.stream(Request("", [User("r", "hi")], (), lambda ref: b""))]
            await model.close()
            assert isinstance(deltas[-1], Completed)
            assert deltas[-1].text == "from here"
    assert [seen.body["model"] for seen in server.seen] == ["scripted", DEFAULT_ANTHROPIC]


def test_unknown_and_impossible_settings_are_refused() -> None:
    for values in ({"modle": "x"}, {"timeout": 0}, {"max_tokens": -1}, {"provider": "mystery"}):
        with pytest.raises(ValidationError):
            settings(**values)
    assert "CANARY" not in repr(settings(api_key="sk-CANARY"))


async def test_a_fallback_answers_when_the_first_model_s_key_is_refused() -> None:
    def script(seen: Any) -> Say:
        return Say("no", status=401) if seen.protocol == "openai" else Say("from the fallback")

    async with ScriptedModel(script).running() as server:
        fallback = {"provider": "anthropic", "base_url": server.anthropic_url, "api_key": "k", "name": "b"}
        values = {"base_url": server.openai_url, "name": "a", "fallbacks": [fallback]}
        model = await resolve(settings(**values), {}, ollama=NOWHERE)
        deltas = [d async for d in model.stream(Request("", [User("r", "hi")], (), lambda ref: b""))]
        await model.close()
    assert isinstance(deltas[-1], Completed)
    assert deltas[-1].text == "from the fallback"


async def test_a_fallback_that_leads_nowhere_is_named() -> None:
    with pytest.raises(ModelSetupError, match=r"fallbacks\[0\].*ANTHROPIC_API_KEY"):
        await resolve(
            settings(fallbacks=[{"provider": "anthropic"}]), {"OPENAI_API_KEY": "sk-1"}, ollama=NOWHERE
        )
