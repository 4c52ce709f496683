"""One WeCom application in two gateways that share their notes; its callbacks reach either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from bridge.store import open_store
from channels.base import Choice, Flooded, NotSent
from channels.wecom.channel import WecomChannel
from tests.fakes.wecom import FakeWecom
from tests.integration.balanced import Balancer
from tests.integration.wecom_house import Bridge, ref, show

YES_NO = [Choice("ok:1", "允许", "primary"), Choice("no:1", "拒绝", "danger")]


@dataclass
class Two:
    fake: FakeWecom
    bridge: Bridge
    balancer: Balancer
    one: WecomChannel
    other: WecomChannel


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Two]:
    async with AsyncExitStack() as stack:
        fake = await stack.enter_async_context(FakeWecom())
        balancer = await stack.enter_async_context(Balancer())
        bridge = Bridge(tmp_path, fake, stack)
        bridge.shared = True
        one, other = [await bridge.open() for _ in range(2)]
        for channel in (one, other):
            await balancer.add(channel)
        fake.target = f"{balancer.url}/channels/wecom/callback"
        yield Two(fake, bridge, balancer, one, other)


async def test_both_gateways_take_messages_and_share_one_token(both: Two) -> None:
    await asyncio.gather(*(both.fake.say("ZhangSan", str(number)) for number in range(4)))
    assert set(both.balancer.served) == {0, 1}
    assert sorted(inbound.text for inbound in both.bridge.got) == ["0", "1", "2", "3"]
    await asyncio.gather(show(both.one, ref("a"), "from one"), show(both.other, ref("b"), "from the other"))
    assert sorted(both.fake.texts("ZhangSan")) == ["from one", "from the other"]
    assert both.fake.calls["gettoken"] == 1
    both.fake.expire_tokens()
    await asyncio.gather(show(both.one, ref("c"), "once more"), show(both.other, ref("d"), "and again"))
    assert both.fake.calls["gettoken"] == 2


async def test_what_one_gateway_sent_the_other_does_not_show_twice(both: Two) -> None:
    await show(both.one, ref("r1"), "an answer")
    await show(both.other, ref("r1"), "an answer")  # its worker died before that was written down
    assert both.fake.texts("ZhangSan") == ["an answer"]
    await show(both.other, ref("r2"), "an answer")  # another one that says the same
    assert len(both.fake.texts("ZhangSan")) == 2


async def test_a_pressed_card_is_told_once_and_settled_by_the_other_gateway(both: Two) -> None:
    asked = await both.one.ask(ref("q1"), "运行?", YES_NO)
    await both.fake.press("ZhangSan", "ok:1", CreateTime=1700000000)
    await both.fake.press("ZhangSan", "ok:1", CreateTime=1700000000)  # delivered again
    assert both.balancer.served[-2:] == [0, 1]
    assert [press.message_id for press in both.bridge.presses] == [asked]
    await both.other.settle(ref("q1"), asked, "已允许")
    await both.one.settle(ref("q1"), asked, "已允许")
    assert [update["button"]["replace_name"] for update in both.fake.updates] == ["已允许"]


async def test_a_press_is_known_again_in_the_store_of_one_process(tmp_path: Path, both: Two) -> None:
    store = open_store("sqlite:///store.db", tmp_path)
    await store.open()
    try:
        for channel in (both.one, both.other):
            object.__setattr__(channel.env, "state", store.channel_state("wecom"))
        await both.one.ask(ref("q1"), "运行?", YES_NO)
        for _ in range(2):
            await both.fake.press("ZhangSan", "ok:1", CreateTime=1700000000)
        assert len(both.bridge.presses) == 1
    finally:
        await store.close()


async def test_a_press_that_was_not_taken_is_taken_when_it_comes_again(both: Two) -> None:
    await both.one.ask(ref("q1"), "运行?", YES_NO)
    take, failing = both.bridge.press, [True]

    async def refuse_once(press: object) -> str:
        if failing.pop() if failing else False:
            raise RuntimeError("the store is full")
        return await take(press)  # type: ignore[arg-type]

    for channel in (both.one, both.other):
        object.__setattr__(channel.env, "press", refuse_once)
    await both.fake.press("ZhangSan", "ok:1")
    assert both.fake.deliveries[-2:] == [503, 200]
    assert len(both.bridge.presses) == 1


async def test_a_members_limits_are_counted_over_both_gateways(both: Two) -> None:
    async def send(number: int) -> bool:
        channel = (both.one, both.other)[number % 2]
        try:
            await show(channel, ref(f"r{number}"), f"text {number}")
        except (Flooded, NotSent):
            return False
        return True

    sent = await asyncio.gather(*(send(number) for number in range(40)))
    assert sum(sent) == 30
    assert both.fake.dropped["ZhangSan"] == 0
    assert len(both.fake.texts("ZhangSan")) == 30
