"""One official account in two gateways that share their notes; its requests reach either."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from channels.base import Inbound, ReplyRef
from channels.wechat.texts import TEXTS
from tests.fakes.wechat import FakeWechat
from tests.integration.balanced import Balancer
from tests.integration.wechat_support import House, Opener, paced, until

WAIT, WORKING = TEXTS["wechat.wait"][1], TEXTS["wechat.working"][1]


class Two:
    """Two gateways behind one address. A message is answered by way of the one that took it first."""

    def __init__(self, fake: FakeWechat, houses: list[House], balancer: Balancer) -> None:
        self.fake, self.houses, self.balancer = fake, houses, balancer

    @property
    def got(self) -> list[Inbound]:
        return self.houses[0].got

    def send_to(self, *numbers: int) -> None:
        """Where the next requests go."""
        self.balancer.to = list(numbers)


@pytest.fixture
def opened(tmp_path: Path) -> Opener:
    return Opener(tmp_path)


async def two(opened: Opener, *, service: bool = False, **settings: Any) -> Two:
    fake = await opened.stack.enter_async_context(FakeWechat(service=service))
    balancer = await opened.stack.enter_async_context(Balancer())
    houses = [House(opened._folder, fake, **settings) for _ in range(2)]
    for house in houses:
        house.state, house.got, house.shared = houses[0].state, houses[0].got, True
        await opened.stack.enter_async_context(house)
        await balancer.add(house.channel)
    fake.callback = f"{balancer.url}{houses[0].channel.path}"
    if service:
        await until(lambda: "rights" in houses[0].state.values)
    return Two(fake, houses, balancer)


@paced
async def test_a_repeated_request_at_the_other_gateway_carries_the_answer(opened: Opener) -> None:
    both = await two(opened, mode="passive")
    for house in both.houses:
        house.answer = house.after(7.0)
    chat = await both.fake.say("ann", "你好")
    assert chat.shown == ["answer to 你好"]
    assert [attempt.end for attempt in chat.attempts] == ["cut", "200"]
    assert both.balancer.served == [0, 1]
    assert len(both.got) == 1
    again = await both.fake.say("ann", "还有")  # nothing is left over at either
    assert again.shown[1:] == ["answer to 还有"]


@paced
async def test_who_was_told_to_wait_is_answered_by_either_gateway(opened: Opener) -> None:
    both = await two(opened, mode="passive")
    for house in both.houses:
        house.answer = house.after(20.0)
    chat = await both.fake.say("ann", "你好")
    assert chat.shown == [WAIT]
    both.send_to(1)
    await both.fake.say("ann", "1")
    while len(chat.shown) == 2 and chat.shown[-1] == WAIT:
        await both.fake.say("ann", "1")
    assert chat.shown[-1] == "answer to 你好"
    assert len(both.got) == 1  # what asks for an answer is no question, wherever it arrives
    began = both.fake.now()
    await both.fake.say("ann", "1")
    assert both.fake.now() - began < 40


@paced
async def test_an_answer_that_one_gateway_gave_in_vain_the_other_gives_again(opened: Opener) -> None:
    both = await two(opened, mode="passive")
    fields = both.fake.message("ann", "你好")
    first = await both.fake.attempt(fields)
    assert (first.end, first.text) == ("200", "answer to 你好")
    second = await both.fake.attempt(fields)  # that answer never arrived: WeChat asks again
    assert both.balancer.served == [0, 1]
    assert (second.end, second.text) == ("200", "answer to 你好")
    later = await both.fake.attempt(both.fake.message("ann", "还有"))
    assert later.text == "answer to 还有"


@paced
async def test_a_gateway_hears_that_the_others_answer_has_ended(opened: Opener) -> None:
    both = await two(opened, mode="passive")

    async def nothing(_: Inbound) -> None:
        await asyncio.sleep(6.0)

    for house in both.houses:
        house.answer = nothing
    chat = await both.fake.say("ann", "你好")
    assert chat.shown == []
    assert [attempt.end for attempt in chat.attempts] == ["cut", "200"]
    assert chat.attempts[-1].seconds < 3.0


@paced
async def test_both_gateways_use_one_token(opened: Opener) -> None:
    both = await two(opened, service=True)
    for house in both.houses:
        house.answer = house.after(6.0)
    await asyncio.gather(*(both.fake.say(user, "hi") for user in ("ann", "bob", "eve", "dan")))
    await until(lambda: all(chat.sent == 1 for chat in both.fake.chats.values()))
    assert set(both.balancer.served) == {0, 1}
    assert len(both.fake.called("stable_token")) == 1
    both.fake.expire_tokens()
    await asyncio.gather(*(both.fake.say(user, "hi") for user in ("ann", "bob", "eve", "dan")))
    await until(lambda: all(chat.sent == 2 for chat in both.fake.chats.values()))
    assert len(both.fake.called("stable_token")) == 2


@paced
async def test_what_waits_is_sent_by_one_gateway_and_the_quota_is_shared(opened: Opener) -> None:
    both = await two(opened, service=True)
    one, other = both.houses
    for house in both.houses:
        house.answer = _silence
    await both.fake.say("ann", "hi")
    ref = one.ref(both.got[0])
    for number in range(4):
        await one.show(_named(ref, number), f"part {number}")
    chat = both.fake.chat("ann")
    await until(lambda: chat.sent == 4)
    await other.show(_named(ref, 4), "part 4")
    await until(lambda: chat.sent == 5)
    tries = len(both.fake.called("message/custom/send"))
    for number in range(5, 8):
        await both.houses[number % 2].show(_named(ref, number), f"part {number}")
    assert len(both.fake.called("message/custom/send")) == tries  # neither tries what is not allowed
    both.send_to(0, 1)
    await asyncio.gather(*(both.fake.say("ann", f"more {number}") for number in range(2)))
    await until(lambda: sum(text.count("part") for text in chat.shown) >= 8)
    said = "".join(chat.shown)
    assert [said.count(f"part {number}") for number in range(8)] == [1] * 8


async def _silence(_: Inbound) -> None:
    return None


def _named(ref: ReplyRef, number: int) -> ReplyRef:
    return replace(ref, id=f"r{number}")
