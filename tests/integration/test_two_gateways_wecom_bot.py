"""One WeCom AI bot in two gateways that share their notes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from channels.base import Address, Chunk, Lost, NotSent, ReplyRef
from channels.wecom_bot.channel import WecomBotChannel
from channels.wecom_bot.lease import Lease, _dead, place
from tests.fakes.channel_env import MemoryState, until
from tests.fakes.wecom_bot import FakeWecomSocket
from tests.integration.test_wecom_bot_socket import YES_NO, Bridge, show


@pytest.fixture
async def fake() -> AsyncIterator[FakeWecomSocket]:
    async with FakeWecomSocket() as server:
        yield server


@pytest.fixture
async def bridge(tmp_path: Path, fake: FakeWecomSocket) -> AsyncIterator[Bridge]:
    bridge = Bridge(tmp_path, fake)
    yield bridge
    for channel in bridge.channels:
        await channel.stop()


async def two(bridge: Bridge) -> tuple[WecomBotChannel, WecomBotChannel]:
    """The one that is connected, and the other."""
    one = await bridge.connected()
    other = await bridge.open()
    await until(lambda: "another gateway" in other.health().reason)
    return one, other


async def test_the_gateway_without_the_connection_says_so_at_once(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    one, other = await two(bridge)
    assert (one.holds, other.holds) == (True, False)
    assert other.health().ok
    ref = await bridge.hear()
    card = await one.ask(ref, "Sure?", YES_NO)
    began = time.monotonic()
    for call in (
        other.post(ref, 0, Chunk("x"), final=True),
        other.edit(ref, 0, await one.post(ref, 0, Chunk("y"), final=False), Chunk("z"), final=True),
        other.ask(ref, "Sure?", YES_NO),
        other.settle(ref, card, "Allowed"),
    ):
        with pytest.raises(NotSent, match="another gateway"):
            await call
    await other.typing(ref)
    await other.end(ref)
    assert time.monotonic() - began < 1.5
    await one.settle(ref, card, "Allowed")
    assert fake.texts("anna")[-1] == "Allowed"


async def test_the_gateway_that_takes_over_answers_what_the_other_took_in(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    one, other = await two(bridge)
    ref = await bridge.hear()
    card = await one.ask(ref, "Sure?", YES_NO)
    shown = await one.post(ref, 0, Chunk("half\n"), final=False)
    await one.stop()
    await until(lambda: other.holds and other.health().ok)
    bridge.later += 10
    whole = Chunk("half\nand the rest")
    with pytest.raises(Lost):  # WeCom takes no packet of a stream that another connection began
        await other.edit(ref, 0, shown, whole, final=True)
    await other.post(ref, 0, whole, final=True)
    await other.settle(ref, card, "Allowed")
    assert fake.texts("anna")[-2:] == ["half\nand the rest", "Allowed"]


async def test_a_gateway_that_loses_the_lease_closes_its_connection(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    one = await bridge.connected()
    bridge.state.leases["connection"] = ("somebody else", time.time() + 60)
    await until(lambda: "another gateway" in one.health().reason)
    assert not one.holds
    assert not fake.connected
    with pytest.raises(NotSent):
        await show(one, ReplyRef("r", Address("bot", "anna")), "x")


async def test_a_process_of_another_container_is_not_taken_for_dead() -> None:
    state = MemoryState()
    one, other = Lease(state, 5.0), Lease(state, 5.0)
    assert await one.hold()
    assert not await other.hold()
    number = 4_000_000  # no such process here
    assert _dead(f"{place()}:{number}:other:1")
    assert not _dead(f"{place()}0:{number}:other:1")
    await one.free()
    assert await other.hold()
    await asyncio.sleep(0)
    assert not await one.hold()
    assert one.elsewhere
