"""The OpenAI-compatible API in two gateways that share their notes and their folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from channels.api import ApiChannel, ApiConfig
from channels.base import Inbound, Outbound, ReplyRef
from tests.fakes.channel_env import MemoryState, memory_env, until
from tests.integration.balanced import Balancer


@dataclass
class Two:
    one: ApiChannel
    other: ApiChannel
    balancer: Balancer
    got: list[Inbound]
    deliveries: list[Inbound]

    async def ask(self, gateway: int, text: str = "hi", key: str = "k1") -> dict[str, Any]:
        body = {"model": "causeway", "messages": [{"role": "user", "content": text}], "user": "u"}
        url = f"{self.balancer.at(gateway)}/v1/chat/completions"
        async with aiohttp.ClientSession(headers={"Idempotency-Key": key} if key else {}) as client:
            async with client.post(url, json=body) as response:
                found: dict[str, Any] = await response.json()
                assert response.status == 200, found
                return found

    @property
    def ref(self) -> ReplyRef:
        return ReplyRef(f"run-{self.got[0].id}", self.got[0].address, self.got[0].id)


def said(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


@pytest.fixture
async def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Two]:
    monkeypatch.setattr("channels.api.channel._LOOK", 0.02)
    state, got, deliveries = MemoryState(), list[Inbound](), list[Inbound]()

    async def receive(inbound: Inbound) -> None:
        deliveries.append(inbound)
        if inbound.id not in [known.id for known in got]:
            got.append(inbound)

    async with AsyncExitStack() as stack:
        balancer = await stack.enter_async_context(Balancer())
        channels = []
        for _ in range(2):
            channel = ApiChannel("api", ApiConfig(), memory_env(tmp_path, state, shared=True))
            await balancer.add(channel)
            await channel.start(receive)
            stack.push_async_callback(channel.stop)
            channels.append(channel)
        yield Two(channels[0], channels[1], balancer, got, deliveries)


async def finish(channel: ApiChannel, ref: ReplyRef, text: str) -> None:
    (chunk,) = channel.render(Outbound(text))
    await channel.post(ref, 0, chunk, final=True)
    await channel.end(ref)


async def test_a_request_repeated_to_the_other_gateway_gets_the_same_answer(both: Two) -> None:
    first = asyncio.create_task(both.ask(0))
    await until(lambda: both.got)
    second = asyncio.create_task(both.ask(1))
    await until(lambda: len(both.deliveries) == 2)
    await finish(both.one, both.ref, "an answer")
    assert [said(await first), said(await second)] == ["an answer", "an answer"]
    assert said(await both.ask(1)) == said(await both.ask(0)) == "an answer"
    assert len(both.got) == 1


async def test_a_client_whose_gateway_died_is_answered_by_the_other(both: Two) -> None:
    lost = asyncio.create_task(both.ask(0))
    await until(lambda: both.got)
    lost.cancel()
    await both.one.stop()
    again = asyncio.create_task(both.ask(1))
    await until(lambda: len(both.deliveries) == 2)
    await finish(both.other, both.ref, "an answer")
    assert said(await again) == "an answer"


async def test_a_run_that_is_stopped_without_words_ends_the_repeated_request_as_well(both: Two) -> None:
    first = asyncio.create_task(both.ask(0))
    await until(lambda: both.got)
    second = asyncio.create_task(both.ask(1))
    await until(lambda: len(both.deliveries) == 2)
    await both.one.end(both.ref)
    assert [said(await first), said(await second)] == ["", ""]


async def test_requests_without_a_key_are_answered_where_they_are_held(both: Two) -> None:
    asked = asyncio.create_task(both.ask(1, key=""))
    await until(lambda: both.got)
    await finish(both.other, both.ref, "an answer")
    assert said(await asked) == "an answer"
    assert both.one.env.state.values == {}  # type: ignore[attr-defined]
