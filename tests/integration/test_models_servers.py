"""Both protocols against mock servers that nobody here wrote, with the transcript gate in front."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent.history import Assistant, Entry, ImageRef, ToolOutput, User
from agent.models.anthropic import AnthropicModel
from agent.models.base import (
    Completed,
    Connection,
    ContextTooLong,
    ModelError,
    Overloaded,
    RateLimited,
    Request,
    Text,
    ToolSpec,
    Unauthorised,
)
from agent.models.openai import OpenAIModel
from tests.fakes.llm import Server, aimock_server, llmock_server
from tests.fakes.transcript import Gate

TOOLS = (
    ToolSpec(
        "weather", "The weather of a city.", {"type": "object", "properties": {"city": {"type": "string"}}}
    ),
    ToolSpec("now", "The time.", {"type": "object"}),
)
AnyModel = OpenAIModel | AnthropicModel
MakeModel = Callable[..., AnyModel]

AIMOCK_FIXTURES: list[dict[str, Any]] = [
    {
        "match": {"userMessage": "Paris", "hasToolResult": False},
        "response": {
            "content": "I look.",
            "toolCalls": [
                {"name": "weather", "arguments": {"city": "Paris"}},
                {"name": "now", "arguments": {}},
            ],
        },
    },
    {"match": {"userMessage": "Paris", "hasToolResult": True}, "response": {"content": "Sunny, at noon."}},
    {
        "match": {"userMessage": "cut"},
        "response": {"content": "a long answer that is cut after some chunks of it"},
        "truncateAfterChunks": 2,
    },
    {
        "match": {"userMessage": "limit"},
        "response": {"error": {"message": "Rate limited", "type": "rate_limit_error"}, "status": 429},
    },
    {
        "match": {"userMessage": "busy"},
        "response": {"error": {"message": "Overloaded", "type": "overloaded_error"}, "status": 529},
    },
    {
        "match": {"userMessage": "key"},
        "response": {
            "error": {"message": "invalid x-api-key", "type": "authentication_error"},
            "status": 401,
        },
    },
    {
        "match": {"userMessage": "think"},
        "response": {"content": "Forty-two.", "reasoning": "Let me count."},
    },
]


@pytest.fixture(scope="module")
def llmock_running() -> Iterator[Server]:
    with llmock_server() as server:
        yield server


@pytest.fixture(scope="module")
def aimock_running() -> Iterator[Server]:
    with aimock_server(AIMOCK_FIXTURES, "--chunk-size", "5") as server:
        yield server


@pytest.fixture(params=["openai", "anthropic"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def gated(server: Server, protocol: str, timeout: float = 5.0) -> AsyncIterator[tuple[AnyModel, Gate]]:
    async with Gate(server.openai, server.anthropic).running() as gate:
        model: AnyModel
        if protocol == "openai":
            model = OpenAIModel("gpt-5.5", api_key="sk-CANARY-1", base_url=gate.openai_url, timeout=timeout)
        else:
            model = AnthropicModel(
                "claude-sonnet-5-5", api_key="sk-CANARY-1", base_url=gate.anthropic_url, timeout=timeout
            )
        try:
            yield model, gate
        finally:
            await model.close()


def ask(*entries: Entry, tools: tuple[ToolSpec, ...] = ()) -> Request:
    return Request("You help.", entries, tools, lambda ref: b"")


async def whole(model: AnyModel, request: Request) -> tuple[str, Completed]:
    pieces, completed = [], None
    async for delta in model.stream(request):
        if isinstance(delta, Text):
            assert completed is None, "text came after the end"
            pieces.append(delta.text)
        else:
            completed = delta
    assert completed is not None
    return "".join(pieces), completed


async def take_a_turn_with_two_calls(model: AnyModel, gate: Gate) -> None:
    question = User("r1", "What is the weather in Paris?")
    text, first = await whole(model, ask(question, tools=TOOLS))
    assert first.stop == "tools"
    assert [call.name for call in first.calls] == ["weather", "now"]
    assert first.calls[0].arguments == {"city": "Paris"}
    assert not any(call.fault for call in first.calls)
    assert text == first.text
    entries: list[Entry] = [question, Assistant("r1", first.text, first.calls, first.opaque)]
    entries += [ToolOutput("r1", call.id, call.name, f"result of {call.name}") for call in first.calls]
    text, second = await whole(model, ask(*entries, tools=TOOLS))
    assert second.stop == "end"
    assert text == second.text != ""
    entries += [Assistant("r1", second.text), User("r2", "Thank you, Paris.")]
    await whole(model, ask(*entries))
    assert gate.refusals == []
    assert len(gate.bodies) == 3


async def test_a_turn_with_two_tool_calls_through_llmock(llmock_running: Server, protocol: str) -> None:
    llmock_running.control("/_llmock/reset")
    calls = [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]
    llmock_running.control(
        "/_llmock/scenario",
        {"behaviors": [{"type": "reply", "tool_calls": calls}, {"type": "reply", "text": "Sunny."}]},
    )
    async with gated(llmock_running, protocol) as (model, gate):
        await take_a_turn_with_two_calls(model, gate)


async def test_a_turn_with_two_tool_calls_through_aimock(aimock_running: Server, protocol: str) -> None:
    async with gated(aimock_running, protocol) as (model, gate):
        await take_a_turn_with_two_calls(model, gate)


@pytest.mark.parametrize(
    ("behaviour", "expected", "wait"),
    [
        ({"type": "fail", "status": 429, "retry_after": 7}, RateLimited, 7.0),
        ({"type": "fail", "status": 529}, Overloaded, None),
        ({"type": "fail", "status": 503}, Overloaded, None),
        ({"type": "fail", "status": 500}, Overloaded, None),
        ({"type": "fail", "status": 408}, Connection, None),
        ({"type": "fail", "status": 409}, Overloaded, None),
        ({"type": "fail", "status": 401}, Unauthorised, None),
        ({"type": "fail", "status": 403}, Unauthorised, None),
        ({"type": "stream_fault", "kind": "disconnect", "after_chunks": 2}, Connection, None),
        ({"type": "stream_fault", "kind": "truncate", "after_chunks": 2}, Connection, None),
        ({"type": "stream_fault", "kind": "malformed", "after_chunks": 2}, Connection, None),
        ({"type": "stream_fault", "kind": "stall", "after_chunks": 2, "stall_seconds": 3}, Connection, None),
    ],
    ids=lambda value: (
        "-".join(str(value.get(k)) for k in ("status", "kind") if k in value)
        if isinstance(value, dict)
        else None
    ),
)
async def test_each_fault_of_llmock_becomes_the_right_error(
    llmock_running: Server,
    protocol: str,
    behaviour: dict[str, object],
    expected: type[ModelError],
    wait: float | None,
) -> None:
    llmock_running.control("/_llmock/reset")
    words = {"type": "reply", "text": "one two three four five six seven eight nine ten"}
    llmock_running.control("/_llmock/scenario", {"behaviors": [behaviour, words]})
    async with gated(llmock_running, protocol, timeout=0.5) as (model, gate):
        with pytest.raises(ModelError) as caught:
            await whole(model, ask(User("r", "hello")))
    assert type(caught.value) is expected
    assert wait is None or caught.value.retry_after == wait
    assert "CANARY" not in caught.value.detail
    assert "Traceback" not in caught.value.detail
    assert len(gate.bodies) == 1, "the model must not try again by itself"


async def test_a_call_with_broken_arguments_through_llmock_has_a_fault(
    llmock_running: Server, protocol: str
) -> None:
    llmock_running.control("/_llmock/reset")
    llmock_running.control(
        "/_llmock/scenario", {"behaviors": [{"type": "tool_fault", "kind": "malformed_arguments"}]}
    )
    async with gated(llmock_running, protocol) as (model, _):
        _, completed = await whole(model, ask(User("r", "weather?"), tools=TOOLS))
    assert completed.calls[0].fault
    assert completed.calls[0].arguments == {}


async def test_the_context_window_of_a_server_is_recognised(protocol: str) -> None:
    with llmock_server("--context-window", "50") as server:
        async with gated(server, protocol) as (model, _):
            with pytest.raises(ContextTooLong):
                await whole(model, ask(User("r", "word " * 500)))


@pytest.mark.parametrize(
    ("word", "expected"),
    [("cut", Connection), ("limit", RateLimited), ("busy", Overloaded), ("key", Unauthorised)],
)
async def test_each_fault_of_aimock_becomes_the_right_error(
    aimock_running: Server, protocol: str, word: str, expected: type[ModelError]
) -> None:
    async with gated(aimock_running, protocol) as (model, _):
        with pytest.raises(ModelError) as caught:
            await whole(model, ask(User("r", word)))
    assert type(caught.value) is expected


async def test_text_comes_in_pieces_as_the_server_sends_them(aimock_running: Server, protocol: str) -> None:
    async with gated(aimock_running, protocol) as (model, _):
        pieces = [delta async for delta in model.stream(ask(User("r", "think")))]
    texts = [delta.text for delta in pieces if isinstance(delta, Text)]
    assert "".join(texts) == "Forty-two."
    assert len(texts) > 1
    assert "count" not in "".join(texts), "reasoning is not part of the answer"


async def test_thinking_is_given_back_with_the_calls_that_it_led_to(aimock_running: Server) -> None:
    async with gated(aimock_running, "anthropic") as (model, gate):
        _, completed = await whole(model, ask(User("r", "think")))
        kept = completed.opaque["anthropic"]["content"]
        assert kept[0]["type"] == "thinking"
        assert kept[0]["thinking"] == "Let me count."
        answer = Assistant("r", completed.text, (), completed.opaque)
        await whole(model, ask(User("r", "hello think"), answer, User("r2", "think again")))
    assert gate.refusals == []
    assert gate.bodies[1]["messages"][1]["content"] == kept


async def test_pictures_are_accepted_by_the_gate(aimock_running: Server, protocol: str) -> None:
    png = b"\x89PNG\r\n\x1a\n" + b"0" * 50
    picture, gone = ImageRef("a.png", "image/jpeg"), ImageRef("gone.png", "image/png")

    def load(ref: ImageRef) -> bytes:
        if ref == gone:
            raise FileNotFoundError(2, "No such file or directory")
        return png

    entries = (User("r", "think of this", (picture, gone)),)
    async with gated(aimock_running, protocol) as (model, gate):
        async for _ in model.stream(Request("s", entries, (), load)):
            pass
    assert gate.refusals == []
    sent = str(gate.bodies[0])
    assert "image/png" in sent, "the type is told by the content"
    assert "gone.png could not be read: No such file or directory" in sent
