"""Both protocols against a scripted server, where a test needs exact control of the stream."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from agent.history import Assistant, Entry, ToolCall, ToolOutput, User
from agent.models.anthropic import AnthropicModel
from agent.models.base import BadRequest, Completed, Connection, ModelError, Refused, Request, Text, ToolSpec
from agent.models.openai import OpenAIModel
from tests.fakes.llm import Call, Say, Script, ScriptedModel
from tests.fakes.transcript import Gate, check_anthropic, check_openai

AnyModel = OpenAIModel | AnthropicModel
WRITE = ToolSpec(
    "write",
    "Write a file.",
    {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)


@pytest.fixture(params=["openai", "anthropic"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def model_at(server: Any, protocol: str, **options: Any) -> AnyModel:
    if protocol == "openai":
        return OpenAIModel("m", api_key="sk-CANARY-2", base_url=server.openai_url, **options)
    return AnthropicModel("m", api_key="sk-CANARY-2", base_url=server.anthropic_url, **options)


@asynccontextmanager
async def scripted(
    script: Script, protocol: str, **options: Any
) -> AsyncIterator[tuple[AnyModel, ScriptedModel]]:
    async with ScriptedModel(script).running() as server:
        model = model_at(server, protocol, **options)
        try:
            yield model, server
        finally:
            await model.close()


def ask(*entries: Entry, tools: tuple[ToolSpec, ...] = ()) -> Request:
    return Request("You help.", entries or (User("r", "hello"),), tools, lambda ref: b"", key="web:1")


async def completed(model: AnyModel, request: Request) -> Completed:
    last = None
    async for delta in model.stream(request):
        last = delta
    assert isinstance(last, Completed)
    return last


async def test_cancelling_the_consumer_closes_the_connection_at_once(protocol: str) -> None:
    async with scripted([Say("one two three", pieces=3, fault="stall", after=1)], protocol) as (
        model,
        server,
    ):
        got_text = asyncio.Event()

        async def consume() -> None:
            async for delta in model.stream(ask()):
                assert isinstance(delta, Text)
                got_text.set()

        task = asyncio.create_task(consume())
        async with asyncio.timeout(30):
            await got_text.wait()
        assert server.active == 1
        task.cancel()
        started = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.until(lambda: server.left == 1 and server.active == 0, 5)
        assert time.monotonic() - started < 1


async def test_cancelling_before_the_first_byte_closes_the_connection(protocol: str) -> None:
    async with scripted([Say("late", gate=asyncio.Event())], protocol) as (model, server):
        task = asyncio.create_task(completed(model, ask()))
        await server.until(lambda: server.active == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.until(lambda: server.left == 1, 5)


async def test_closing_the_iterator_closes_the_connection(protocol: str) -> None:
    async with scripted([Say("one two", pieces=2, fault="stall", after=1)], protocol) as (model, server):
        stream = model.stream(ask())
        await anext(stream)
        await stream.aclose()
        await server.until(lambda: server.left == 1, 5)


async def test_one_connection_serves_many_answers_though_their_end_comes_late() -> None:
    ports: set[int] = set()

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername")[1])
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        if request.path.endswith("/messages"):
            await response.write(ANTHROPIC_ANSWER)
        else:
            await response.write(OPENAI_ANSWER)
        await asyncio.sleep(0.01)  # the stream's own end comes after its last event
        return response

    async with served("/{rest:.*}", handler) as root:
        for model in (
            OpenAIModel("m", api_key="k", base_url=f"{root}/v1"),
            AnthropicModel("m", api_key="k", base_url=root),
        ):
            ports.clear()
            for _ in range(4):
                assert (await completed(model, ask())).text == "all"
            await model.close()
            assert len(ports) == 1


def _event(kind: str, **content: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **content})}\n\n".encode()


OPENAI_ANSWER = (
    b'data: {"choices": [{"index": 0, "delta": {"content": "all"}, "finish_reason": "stop"}]}'
    b"\n\ndata: [DONE]\n\n"
)
ANTHROPIC_ANSWER = (
    _event("content_block_start", index=0, content_block={"type": "text", "text": "all"})
    + _event("message_delta", delta={"stop_reason": "end_turn"})
    + _event("message_stop")
)


@pytest.mark.parametrize("finish", ["length", "tool_calls"])
async def test_ag_04_arguments_cut_inside_a_string_are_a_fault_and_never_empty_arguments(
    protocol: str, finish: str
) -> None:
    reasons = {"length": "max_tokens", "tool_calls": "tool_use"}
    call = Call("write", id="call_9", text='{"path": "a.txt", "content": "half a sen')
    say = Say(calls=(call,), finish=finish if protocol == "openai" else reasons[finish])
    async with scripted([say], protocol) as (model, _):
        answer = await completed(model, ask(tools=(WRITE,)))
    (made,) = answer.calls
    assert made.arguments == {}
    assert "cut off" in made.fault
    assert answer.stop == ("length" if finish == "length" else "tools")


async def test_ag_04_a_connection_closed_inside_the_arguments_is_a_broken_connection(protocol: str) -> None:
    call = Call("write", text='{"path": "a.txt", "content": "half a sen')
    async with scripted([Say(calls=(call,), fault="disconnect", after=2)], protocol) as (model, _):
        with pytest.raises(Connection):
            await completed(model, ask(tools=(WRITE,)))


async def test_ag_04_a_call_cut_before_its_arguments_is_a_fault(protocol: str) -> None:
    finish = "length" if protocol == "openai" else "max_tokens"
    async with scripted([Say(calls=(Call("write", text=""),), finish=finish)], protocol) as (model, _):
        answer = await completed(model, ask(tools=(WRITE,)))
    assert "cut off" in answer.calls[0].fault


async def test_a_history_after_a_faulty_call_is_accepted(protocol: str) -> None:
    say = Say(calls=(Call("write", text='{"path": "a'),))
    async with scripted([say, Say("I try again.")], protocol) as (upstream_model, server):
        await upstream_model.close()
        async with Gate(server.openai_url, server.anthropic_url).running() as gate:
            model = model_at(gate, protocol)
            question = User("r", "write it")
            first = await completed(model, ask(question, tools=(WRITE,)))
            entries = (
                question,
                Assistant("r", first.text, first.calls, first.opaque),
                ToolOutput("r", first.calls[0].id, "write", "Error: the call was cut off.", is_error=True),
            )
            assert (await completed(model, ask(*entries, tools=(WRITE,)))).text == "I try again."
            await model.close()
    assert gate.refusals == []


async def test_calls_get_ids_of_their_own_when_the_server_repeats_them(protocol: str) -> None:
    say = Say(calls=(Call("write", {"path": "a"}, id="call_0"), Call("write", {"path": "b"}, id="call_0")))
    async with scripted([say], protocol) as (model, _):
        first = await completed(model, ask(tools=(WRITE,)))
        outputs = [ToolOutput("r", call.id, "write", "done") for call in first.calls]
        second = await completed(
            model, ask(User("r", "go"), Assistant("r", "", first.calls), *outputs, tools=(WRITE,))
        )
    ids = [call.id for call in (*first.calls, *second.calls)]
    assert len(set(ids)) == len(ids)


async def test_an_answer_that_is_whole_survives_a_connection_lost_at_the_farewell() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        choice = {"index": 0, "delta": {"content": "all"}, "finish_reason": "stop"}
        await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with served("/v1/chat/completions", handler) as root:
        model = OpenAIModel("m", api_key="k", base_url=f"{root}/v1")
        answer = await completed(model, ask())
        await model.close()
    assert (answer.text, answer.stop) == ("all", "end")


@asynccontextmanager
async def served(path: str, handler: Any) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", path, handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("option", "message", "settings"),
    [
        ("stream_options", "Unrecognized request argument supplied: stream_options", {}),
        (
            "max_tokens",
            "Unsupported parameter: 'max_tokens' is not supported here. Use 'max_completion_tokens' instead.",
            {"max_tokens": 500},
        ),
    ],
)
async def test_an_option_that_the_server_refuses_is_left_out_from_then_on(
    option: str, message: str, settings: dict[str, Any]
) -> None:
    def script(seen: Any) -> Say:
        return Say(message, status=400, kind="invalid_request_error") if option in seen.body else Say("fine")

    async with scripted(script, "openai", **settings) as (model, server):
        assert (await completed(model, ask())).text == "fine"
        assert (await completed(model, ask())).text == "fine"
    assert [option in seen.body for seen in server.seen] == [True, False, False]
    if option == "max_tokens":
        assert server.seen[1].body["max_completion_tokens"] == 500


async def test_a_refused_value_of_an_option_is_an_error_and_no_endless_loop() -> None:
    say = Say("max_tokens is too large: 500. This model supports at most 100.", status=400)
    async with scripted([say], "openai", max_tokens=500) as (model, server):
        with pytest.raises(BadRequest):
            await completed(model, ask())
    assert len(server.seen) == 1


async def test_descriptions_are_shortened_for_a_server_that_bounds_them() -> None:
    def script(seen: Any) -> Say:
        about = seen.body["tools"][0]["function"]["description"]
        message = "Invalid 'tools[0].function.description': string too long. Expected maximum length 1024."
        return Say(message, status=400, kind="invalid_request_error") if len(about) > 1024 else Say("fine")

    tool = ToolSpec("t", "long " * 1000, {"type": "object"})
    async with scripted(script, "openai") as (model, server):
        assert (await completed(model, ask(tools=(tool,)))).text == "fine"
    assert len(server.seen) == 2


async def test_a_server_that_does_not_stream_is_understood() -> None:
    async def handler(request: web.Request) -> web.Response:
        call = {"id": "c1", "type": "function", "function": {"name": "write", "arguments": '{"path": "a"}'}}
        message = {"role": "assistant", "content": "Done.", "tool_calls": [call]}
        return web.json_response(
            {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
        )

    async with served("/v1/chat/completions", handler) as root:
        model = OpenAIModel("m", api_key="k", base_url=f"{root}/v1")
        answer = await completed(model, ask())
        await model.close()
    assert (answer.text, answer.calls[0].arguments) == ("Done.", {"path": "a"})


async def test_a_web_page_instead_of_an_answer_points_to_base_url(protocol: str) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text="<html>Welcome</html>", content_type="text/html")

    async with served("/{rest:.*}", handler) as root:
        model = (OpenAIModel if protocol == "openai" else AnthropicModel)("m", api_key="k", base_url=root)
        with pytest.raises(BadRequest, match="base_url"):
            await completed(model, ask())
        await model.close()


async def test_a_redirect_is_not_followed_for_it_would_carry_the_key(protocol: str) -> None:
    asked: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=307, headers={"location": "http://127.0.0.1:9/other"})

    async with served("/{rest:.*}", handler) as root:
        model = (OpenAIModel if protocol == "openai" else AnthropicModel)("m", api_key="k", base_url=root)
        with pytest.raises(BadRequest, match=r"127\.0\.0\.1:9/other"):
            await completed(model, ask())
        await model.close()
    assert len(asked) == 1


async def test_a_server_that_is_not_there_is_a_connection_error(protocol: str) -> None:
    async with ScriptedModel().running() as server:
        root = server.root
    model = (OpenAIModel if protocol == "openai" else AnthropicModel)("m", api_key="k", base_url=root)
    with pytest.raises(Connection) as caught:
        await completed(model, ask())
    await model.close()
    assert caught.value.retryable


async def test_an_error_event_inside_the_stream_is_told_by_its_kind() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
        await response.write(b"event: error\ndata: " + json.dumps(error).encode() + b"\n\n")
        return response

    async with served("/{rest:.*}", handler) as root:
        for model in (
            OpenAIModel("m", api_key="k", base_url=f"{root}/v1"),
            AnthropicModel("m", api_key="k", base_url=root),
        ):
            with pytest.raises(ModelError) as caught:
                await completed(model, ask())
            assert caught.value.kind == "overloaded"
            await model.close()


@pytest.mark.parametrize(
    "chunk",
    [b"[1]", b'"x"', b'{"choices": 5}', b'{"choices": ["x"]}', b'{"choices": [{"delta": 7}]}', b"\xff\xfe{"],
)
async def test_nonsense_in_the_stream_is_a_broken_connection(chunk: bytes) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: " + chunk + b"\n\n")
        return response

    async with served("/v1/chat/completions", handler) as root:
        model = OpenAIModel("m", api_key="k", base_url=f"{root}/v1")
        with pytest.raises(Connection):
            await completed(model, ask())
        await model.close()


async def test_a_refusal_without_text_raises_and_with_text_says_so(protocol: str) -> None:
    finish = "content_filter" if protocol == "openai" else "refusal"
    async with scripted([Say("", finish=finish), Say("I would rather not", finish=finish)], protocol) as (
        model,
        _,
    ):
        with pytest.raises(Refused):
            await completed(model, ask())
        answer = await completed(model, ask())
    assert (answer.stop, answer.text, answer.calls) == ("refused", "I would rather not", ())


async def test_the_usage_of_an_answer_is_told(protocol: str) -> None:
    async with scripted([Say("hi")], protocol) as (model, _):
        usage = (await completed(model, ask())).usage
    assert (usage.input, usage.output) == (10, 5)


async def test_sc_05_the_key_is_in_no_error_and_no_log(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    texts = [
        Say("Incorrect API key provided: sk-CANARY-2", status=401, kind="invalid_request_error"),
        Say("url http://user:CANARY-2@host/ with Bearer sk-CANARY-2 failed", status=500),
        Say("one two", fault="disconnect", pieces=2),
        Say("one two", fault="malformed", pieces=2),
    ]
    async with scripted(texts, protocol) as (model, server):
        for _ in texts:
            with pytest.raises(ModelError) as caught:
                await completed(model, ask())
            assert "CANARY" not in caught.value.detail
            assert "CANARY" not in str(caught.value.__cause__)
    assert len(server.seen) == len(texts)
    assert "CANARY" not in caplog.text


async def test_reasoning_goes_back_to_its_model_and_stays_so_that_the_cached_beginning_does() -> None:
    say = Say(thinking="First I look.", calls=(Call("write", {"path": "a"}),))
    async with scripted([say, Say("done")], "openai") as (model, server):
        question = User("r", "go")
        first = await completed(model, ask(question, tools=(WRITE,)))
        turn = (
            question,
            Assistant("r", "", first.calls, first.opaque),
            ToolOutput("r", first.calls[0].id, "write", "written"),
        )
        await completed(model, ask(*turn, tools=(WRITE,)))
        await completed(model, ask(*turn, Assistant("r", "done"), User("s", "more"), tools=(WRITE,)))
    assert server.seen[1].body["messages"][2]["reasoning_content"] == "First I look."
    assert server.seen[2].body["messages"][2] == server.seen[1].body["messages"][2]


async def test_a_thinking_turn_with_calls_is_given_back_unchanged() -> None:
    say = Say("I look.", thinking="Hm.", calls=(Call("write", {"path": "a"}, id="toolu_1"),))
    async with scripted([say, Say("done")], "anthropic") as (model, server):
        first = await completed(model, ask(tools=(WRITE,)))
        turn = (
            User("r", "go"),
            Assistant("r", first.text, first.calls, first.opaque),
            ToolOutput("r", "toolu_1", "write", "written"),
        )
        await completed(model, ask(*turn, tools=(WRITE,)))
    body = server.seen[1].body
    assert [block["type"] for block in body["messages"][1]["content"]] == ["thinking", "text", "tool_use"]
    assert body["messages"][1]["content"][0] == {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    assert check_anthropic(body) == []


async def test_a_history_of_one_provider_goes_on_with_the_other() -> None:
    say = Say("I look.", thinking="Hm.", calls=(Call("write", {"path": "a"}, id="weird:id/1"), Call("write")))
    async with ScriptedModel([say, Say("done"), say, Say("done")]).running() as server:
        models: list[AnyModel] = [model_at(server, "openai"), model_at(server, "anthropic")]
        for one, other in (models, models[::-1]):
            first = await completed(one, ask(tools=(WRITE,)))
            entries: list[Entry] = [User("r", "go"), Assistant("r", first.text, first.calls, first.opaque)]
            outputs = [ToolOutput("r", call.id, call.name, "ok") for call in first.calls]
            await completed(other, ask(*entries, *outputs, tools=(WRITE,)))
        for model in models:
            await model.close()
    assert check_anthropic(server.seen[1].body) == []
    assert check_openai(server.seen[3].body) == []


async def test_the_event_loop_is_not_held_while_the_sdk_loads_and_a_long_history_is_sent(
    protocol: str,
) -> None:
    entries: list[Entry] = []
    for n in range(300):
        call = call_number(n)
        entries += [Assistant("r", "", (call,)), ToolOutput("r", call.id, "write", "line of output\n" * 400)]
    async with scripted([Say("ok")], protocol) as (model, _):
        await model.warm()
        await completed(model, ask())
        longest = await longest_block(completed(model, ask(User("r", "go"), *entries)))
    assert longest < 0.05, f"the loop was held for {longest * 1000:.0f} ms"


def call_number(n: int) -> ToolCall:
    return ToolCall(f"call_{n}", "write", {"path": f"{n}.txt", "content": "text " * 50})


async def longest_block(work: Any) -> float:
    """The most CPU seconds that the loop's thread spent in one go while `work` ran. CPU and not time, so
    that a busy machine does not count."""
    longest, done = 0.0, False

    async def beat() -> None:
        nonlocal longest
        last = time.thread_time()
        while not done:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest = max(longest, now - last)
            last = now

    beating = asyncio.create_task(beat())
    await work
    done = True
    await beating
    return longest


async def test_a_closed_model_leaves_no_open_connection_behind(protocol: str) -> None:
    async with scripted([Say("ok")], protocol) as (model, _):
        await completed(model, ask())
        await model.close()
        with pytest.raises(Connection):
            await completed(model, ask())
    gc.collect()
