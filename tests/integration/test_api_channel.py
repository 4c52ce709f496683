"""The API channel behind a real aiohttp server, spoken to by the official client and by hand."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from channels.api import ApiChannel, ApiConfig
from channels.base import Flooded, Inbound, Outbound, OutFile, ReplyRef
from tests.fakes.channel_env import MemoryState, memory_env, until

Behaviour = Callable[["Bridge", Inbound], Awaitable[None]]
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Bridge:
    """The bridge's side as far as a channel sees it: takes messages and answers by `behaviour`."""

    def __init__(self, channel: ApiChannel, behaviour: Behaviour) -> None:
        self.channel = channel
        self.behaviour = behaviour
        self.received: list[Inbound] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def receive(self, inbound: Inbound) -> None:
        if inbound.id in [seen.id for seen in self.received]:
            return
        self.received.append(inbound)
        task = asyncio.create_task(self.behaviour(self, inbound))
        self._tasks.add(task)

    async def say(self, to: Inbound, *texts: str, end: bool = True) -> None:
        """Show each text so far in turn; the last one is final."""
        ref = ReplyRef(f"run-{to.id}", to.address, to.id)
        for i, text in enumerate(texts):
            last = end and i == len(texts) - 1
            chunk = self.channel.render(Outbound(text))[0]
            if i == 0:
                await self.channel.post(ref, 0, chunk, final=last)
            else:
                await self.channel.edit(ref, 0, f"{ref.id}/0", chunk, final=last)
            await asyncio.sleep(0)
        if end:
            await self.channel.end(ref)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


async def echo(bridge: Bridge, inbound: Inbound) -> None:
    text = f"you said: {inbound.text}"
    await bridge.say(inbound, text[:4], text[:12], text)


class House:
    """A running channel with its server and clients."""

    def __init__(self, folder: Path, state: MemoryState | None = None) -> None:
        self.folder, self.state = folder, state or MemoryState()

    async def start(self, behaviour: Behaviour = echo, **config: object) -> House:
        self.channel = ApiChannel("api", ApiConfig(**config), memory_env(self.folder, self.state))
        self.bridge = Bridge(self.channel, behaviour)
        app = web.Application()
        app.add_routes(self.channel.routes())
        await self.channel.start(self.bridge.receive)
        self.server = TestServer(app)
        await self.server.start_server()
        self.url = str(self.server.make_url("/v1"))
        self.openai = openai.AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0)
        self.http = aiohttp.ClientSession()
        return self

    async def stop(self) -> None:
        await self.channel.stop()
        await self.server.close()
        await self.openai.close()
        await self.http.close()
        await self.bridge.close()

    async def post(self, body: object, **headers: str) -> tuple[int, dict]:
        data = body if isinstance(body, bytes) else json.dumps(body)
        async with self.http.post(self.url + "/chat/completions", data=data, headers=headers) as response:
            return response.status, await response.json()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House(tmp_path)
    yield house
    if hasattr(house, "server"):
        await house.stop()


def ask(text: str = "hello", **more: object) -> dict:
    return {"model": "causeway", "messages": [{"role": "user", "content": text}], **more}


# -- the official client ---------------------------------------------------------------------------------


async def test_the_official_client_gets_a_whole_answer(house: House) -> None:
    await house.start()
    answer = await house.openai.chat.completions.create(**ask("héllo 你好"))
    assert answer.choices[0].message.content == "you said: héllo 你好"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "causeway"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 0


async def test_the_official_client_gets_a_stream_that_joins_to_the_answer(house: House) -> None:
    await house.start()
    stream = await house.openai.chat.completions.create(
        **ask("你好 😀"), stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "you said: 你好 😀"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert len({chunk.id for chunk in chunks}) == 1


async def test_the_official_client_lists_and_finds_the_model(house: House) -> None:
    await house.start()
    assert [model.id async for model in house.openai.models.list()] == ["causeway"]
    assert (await house.openai.models.retrieve("causeway")).owned_by == "causeway"
    with pytest.raises(openai.NotFoundError):
        await house.openai.models.retrieve("gpt-4o")


async def test_text_that_shrinks_in_between_never_reaches_a_stream_twice(house: House) -> None:
    async def retried(bridge: Bridge, inbound: Inbound) -> None:
        ref = ReplyRef("run", inbound.address, inbound.id)
        chunk = bridge.channel.render(Outbound("Once upon"))[0]
        await bridge.channel.post(ref, 0, chunk, final=False)
        await until(lambda: bridge.channel._calls[inbound.address.chat, inbound.id].streams)
        await bridge.say(inbound, "Once upon", "Once", "Once up", "Once upon a time")

    await house.start(retried)
    stream = await house.openai.chat.completions.create(**ask(), stream=True)
    assert "".join([c.choices[0].delta.content or "" async for c in stream]) == "Once upon a time"


# -- sessions --------------------------------------------------------------------------------------------


async def test_a_session_takes_only_the_last_user_message(house: House) -> None:
    await house.start()
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two"},
    ]
    body = {"model": "causeway", "messages": messages}
    await house.post(body, **{"X-Session-Id": "s1"})
    await house.post({**body, "user": "anna"})
    await house.post({**body, "user": "anna"}, **{"X-Session-Id": "s2"})
    await house.post(body)
    await house.post(body)
    chats = [inbound.address.chat for inbound in house.bridge.received]
    assert chats[:3] == ["s1", "anna", "s2"]
    assert len(set(chats)) == 5
    assert [inbound.text for inbound in house.bridge.received] == ["two"] * 5
    assert [len(inbound.context) for inbound in house.bridge.received] == [0, 0, 0, 3, 3]
    assert [(c.role, c.text) for c in house.bridge.received[3].context] == [
        ("system", "be brief"),
        ("user", "one"),
        ("assistant", "1"),
    ]


async def test_a_message_without_a_session_keeps_nothing_in_memory_afterwards(house: House) -> None:
    await house.start()
    for _ in range(3):
        await house.post(ask())
    await until(lambda: not house.channel._calls)
    assert not house.channel._answered


# -- idempotency -----------------------------------------------------------------------------------------


async def test_the_same_key_joins_a_request_under_way_and_later_gets_its_answer(house: House) -> None:
    go = asyncio.Event()

    async def waits(bridge: Bridge, inbound: Inbound) -> None:
        await go.wait()
        await bridge.say(inbound, "slow", "slow answer")

    await house.start(waits)
    key = {"Idempotency-Key": "k1"}
    first = asyncio.create_task(house.post(ask(user="u"), **key))
    second = asyncio.create_task(house.post(ask(user="u"), **key))
    await until(lambda: house.channel._running == 2 and house.bridge.received)
    go.set()
    answers = [await first, await second, await house.post(ask(user="u"), **key)]
    assert len(house.bridge.received) == 1
    assert {json.dumps(answer) for answer in answers} == {json.dumps(answers[0])}
    assert answers[0][1]["choices"][0]["message"]["content"] == "slow answer"
    status, body = await house.post(ask("another question", user="u"), **key)
    assert (status, body["error"]["param"]) == (400, "Idempotency-Key")


async def test_a_keyed_answer_survives_a_restart(house: House, tmp_path: Path) -> None:
    await house.start()
    before = await house.post(ask(), **{"Idempotency-Key": "k2"})
    await house.stop()

    async def must_not_run(bridge: Bridge, inbound: Inbound) -> None:
        raise AssertionError("the message came twice")

    await house.start(must_not_run)
    after = await house.post(ask(), **{"Idempotency-Key": "k2"})
    assert after == before
    assert not house.bridge.received


async def test_a_keyed_answer_that_a_restart_finished_is_there_for_the_repeated_request(house: House) -> None:
    async def never(bridge: Bridge, inbound: Inbound) -> None:
        await asyncio.Event().wait()

    await house.start(never)
    lost = asyncio.create_task(house.post(ask(user="u"), **{"Idempotency-Key": "k3"}))
    await until(lambda: house.bridge.received)
    taken = house.bridge.received[0]
    await house.stop()
    assert (await lost)[0] == 503
    await house.start(never)
    await house.bridge.say(taken, "finished after the restart")
    status, body = await house.post(ask(user="u"), **{"Idempotency-Key": "k3"})
    assert status == 200
    assert body["choices"][0]["message"]["content"] == "finished after the restart"


# -- errors ----------------------------------------------------------------------------------------------


async def test_a_reply_to_a_request_that_is_gone_is_accepted_silently(house: House) -> None:
    await house.start()
    from channels.base import Address, Sender

    gone = Inbound("chatcmpl-0", Address("api", "s"), Sender("local"), "hello")
    await house.bridge.say(gone, "too", "too late")
    assert not house.channel._calls


async def test_a_client_that_leaves_does_not_end_the_run(house: House) -> None:
    left = asyncio.Event()
    finished = asyncio.Event()

    async def slow(bridge: Bridge, inbound: Inbound) -> None:
        await left.wait()
        await bridge.say(inbound, "a", "ab", "abc")
        finished.set()

    await house.start(slow)
    async with house.http.post(house.url + "/chat/completions", json=ask(stream=True)) as response:
        await response.content.readany()
    left.set()
    await asyncio.wait_for(finished.wait(), 5)
    await until(lambda: not house.channel._running)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_past_its_deadline_gets_an_error_the_client_does_not_repeat(
    house: House, stream: bool
) -> None:
    async def never(bridge: Bridge, inbound: Inbound) -> None:
        await asyncio.Event().wait()

    await house.start(never, timeout=0.05)
    client = house.openai.with_options(max_retries=3)

    async def whole_answer() -> None:
        answer = await client.chat.completions.create(**ask(), stream=stream)
        async for _ in answer:
            pass

    with pytest.raises(openai.APIError, match="took longer"):
        await whole_answer()
    assert len(house.bridge.received) == 1


async def test_more_requests_than_allowed_get_429_and_the_others_their_answer(house: House) -> None:
    go = asyncio.Event()

    async def waits(bridge: Bridge, inbound: Inbound) -> None:
        await go.wait()
        await bridge.say(inbound, "done")

    await house.start(waits, max_requests=2)
    running = [asyncio.create_task(house.post(ask())) for _ in range(2)]
    await until(lambda: len(house.bridge.received) == 2)
    with pytest.raises(openai.RateLimitError, match="at once"):
        await house.openai.chat.completions.create(**ask())
    go.set()
    assert [(await task)[0] for task in running] == [200, 200]
    assert (await house.post(ask()))[0] == 200


async def test_a_bridge_that_is_full_or_broken_is_429_or_503(house: House) -> None:
    await house.start()
    faults: list[Exception] = [Flooded("too many messages wait", 7), OSError("disk full at /secret/path")]

    async def refuse(inbound: Inbound) -> None:
        raise faults.pop(0)

    house.channel._receive = refuse
    async with house.http.post(house.url + "/chat/completions", json=ask()) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "7")
    status, body = await house.post(ask())
    assert status == 503
    assert "/secret" not in json.dumps(body)
    assert not house.channel._calls


async def test_a_paused_channel_refuses_new_requests_and_finishes_the_running_one(house: House) -> None:
    go = asyncio.Event()

    async def waits(bridge: Bridge, inbound: Inbound) -> None:
        await go.wait()
        await bridge.say(inbound, "done")

    await house.start(waits)
    running = asyncio.create_task(house.post(ask()))
    await until(lambda: house.bridge.received)
    await house.channel.pause()
    assert (await house.post(ask()))[0] == 503
    go.set()
    assert (await running)[0] == 200


async def test_a_stop_ends_waiting_requests_with_an_error_that_is_not_repeated(house: House) -> None:
    async def never(bridge: Bridge, inbound: Inbound) -> None:
        await asyncio.Event().wait()

    await house.start(never)
    running = asyncio.create_task(house.http.post(house.url + "/chat/completions", json=ask()))
    await until(lambda: house.bridge.received)
    await house.channel.stop()
    async with await running as response:
        assert response.status == 503
        assert response.headers["x-should-retry"] == "false"  # the message is stored: it will be answered
        assert "stopping" in (await response.json())["error"]["message"]


BAD = [
    (b"{", 400, None),
    (b"\xff", 400, None),
    ([], 400, None),
    ({"messages": []}, 400, "model"),
    ({"model": 3, "messages": []}, 400, "model"),
    (ask(model="gpt-4o") | {"model": "gpt-4o"}, 404, "model"),
    ({"model": "causeway"}, 400, "messages"),
    ({"model": "causeway", "messages": []}, 400, "messages"),
    ({"model": "causeway", "messages": ["x"]}, 400, "messages[0]"),
    ({"model": "causeway", "messages": [{"role": "boss", "content": "x"}]}, 400, "messages[0].role"),
    ({"model": "causeway", "messages": [{"role": ["user"], "content": "x"}]}, 400, "messages[0].role"),
    ({"model": "causeway", "messages": [{"role": "system", "content": "x"}]}, 400, "messages"),
    ({"model": "causeway", "messages": [{"role": "user", "content": 3}]}, 400, "messages[0].content"),
    ({"model": "causeway", "messages": [{"role": "user"}]}, 400, "messages[0].content"),
    (ask("  "), 400, "messages[0].content"),
    (ask([{"type": "input_audio"}]), 400, "messages[0].content[0].type"),
    (ask([{"type": "text", "text": 3}]), 400, "messages[0].content[0].text"),
    (
        ask([{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]),
        400,
        "messages[0].content[0].image_url.url",
    ),
    (
        ask([{"type": "image_url", "image_url": {"url": "data:image/png;base64,@@"}}]),
        400,
        "messages[0].content[0].image_url.url",
    ),
    (
        {
            "model": "causeway",
            "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        },
        400,
        "messages[1].role",
    ),
    (ask(n=2), 400, "n"),
    (ask(tool_choice="required"), 400, "tool_choice"),
    (ask(response_format={"type": "json_object"}), 400, "response_format"),
    (ask(logprobs=True), 400, "logprobs"),
    (ask(stream="yes"), 400, "stream"),
    (ask(stream_options={"include_usage": True}), 400, "stream_options"),
    (ask(user=""), 400, "user"),
    (ask(user=5), 400, "user"),
]


async def test_bad_requests_get_the_error_that_names_the_field(house: House) -> None:
    await house.start()
    for body, status, param in BAD:
        got_status, got = await house.post(body)
        assert (got_status, got["error"]["param"]) == (status, param), body
        assert got["error"]["message"]
        assert got["error"]["type"] == "invalid_request_error"
    assert not house.bridge.received
    assert not house.channel._calls


async def test_settings_that_only_shape_the_answer_are_ignored(house: House) -> None:
    await house.start()
    status, _ = await house.post(
        ask(
            temperature=0.2, max_tokens=5, stop=["x"], seed=1, n=1, tools=[{"type": "function"}],
            tool_choice="auto", response_format={"type": "text"}, a_field_of_2031=True, stream=None,
        )
    )  # fmt: skip
    assert status == 200


async def test_unknown_addresses_and_methods_get_json_errors(house: House) -> None:
    await house.start()
    async with house.http.get(house.url + "/embeddings") as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "unknown_url"
    async with house.http.get(house.url + "/chat/completions") as response:
        assert response.status == 405


async def test_a_body_over_the_limit_is_refused_and_one_over_the_servers_default_is_taken(
    house: House,
) -> None:
    await house.start(max_body=3_000_000)
    status, body = await house.post(ask("x" * 3_100_000))
    assert (status, body["error"]["code"]) == (413, "request_too_large")
    status, _ = await house.post(ask("x" * 2_000_000))
    assert status == 200


# -- pictures and files ----------------------------------------------------------------------------------


async def test_a_picture_can_be_fetched_until_the_reply_has_ended(house: House, tmp_path: Path) -> None:
    async def look(bridge: Bridge, inbound: Inbound) -> None:
        target = tmp_path / "fetched.png"
        await bridge.channel.fetch(inbound.attachments[0], target, 1000)
        await bridge.say(inbound, f"{inbound.attachments[0].mime} {target.read_bytes() == PNG}")

    await house.start(look)
    url = "data:image/png;base64," + base64.b64encode(PNG).decode()
    parts = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    status, body = await house.post(ask(parts))
    assert status == 200
    assert body["choices"][0]["message"]["content"] == "image/png True"
    await until(lambda: not list((tmp_path / "images").iterdir()))


async def test_files_of_a_reply_are_named_in_its_text(house: House) -> None:
    await house.start()
    file = OutFile("/workspace/sessions/x/report.pdf", "report.pdf")
    (chunk,) = house.channel.render(Outbound("Here it is.", (file,)))
    assert chunk.text.startswith("Here it is.")
    assert "report.pdf" in chunk.text
    assert "/workspace" not in chunk.text


# -- cost ------------------------------------------------------------------------------------------------


async def test_a_message_in_twenty_pieces_costs_little_cpu(house: House) -> None:
    async def pieces(bridge: Bridge, inbound: Inbound) -> None:
        text = "twenty pieces of an answer " * 20
        await bridge.say(inbound, *[text[: (i + 1) * 27] for i in range(20)])

    await house.start(pieces)
    count = 60
    await house.post(ask())
    begun = time.process_time()
    for _ in range(count):
        async with house.http.post(house.url + "/chat/completions", json=ask(stream=True)) as response:
            await response.read()
    # The client's own work is in this figure too; a channel that parses or copies per delta is far above it.
    assert (time.process_time() - begun) / count < 0.020
