"""One WeCom AI bot with a callback URL in two gateways that share their notes; its requests reach either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from channels.base import Chunk, Lost, Outbound, OutFile, ReplyRef
from channels.wecom_bot.channel import WecomBotChannel
from channels.wecom_bot.config import Times
from tests.fakes.channel_env import until
from tests.fakes.wecom_bot import FakeWecomCallback
from tests.integration.balanced import Balancer
from tests.integration.test_wecom_bot_webhook import PNG, YES_NO, Bridge, show

FAST = Times(poll_wait=1.0, press=0.5, settle=0.2)


@dataclass
class Two:
    fake: FakeWecomCallback
    bridge: Bridge
    balancer: Balancer
    one: WecomBotChannel
    other: WecomBotChannel

    async def hear(self, user: str = "anna", text: str = "hi") -> ReplyRef:
        return await self.bridge.hear(user, text)

    async def silence(self) -> None:
        """WeCom fetches nothing more."""
        self.fake.polling = False
        await self.fake.until(lambda: not any(self.fake.open.values()))

    def only(self, *gateways: int) -> None:
        """Where requests go from now on."""
        self.balancer.to = list(gateways)


@pytest.fixture
async def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Two]:
    monkeypatch.setattr("channels.wecom_bot.board._PEEK", 0.02)
    async with FakeWecomCallback(tick=0.02) as fake, Balancer() as balancer:
        bridges = [Bridge(tmp_path, fake) for _ in range(2)]
        for bridge in bridges:
            bridge.shared, bridge.state, bridge.got = True, bridges[0].state, bridges[0].got
            bridge.presses = bridges[0].presses
            await balancer.add(await bridge.start(FAST))
        fake.clock = bridges[0].clock
        fake.target = f"{balancer.url}/channels/bot/callback"
        one, other = (bridge.channel for bridge in bridges)
        assert one is not None
        assert other is not None
        yield Two(fake, bridges[0], balancer, one, other)
        for bridge in bridges:
            await bridge.stop()


async def test_a_stream_is_fetched_from_either_gateway(both: Two) -> None:
    ref = await both.hear()
    posted = await both.one.post(ref, 0, Chunk("half"), final=False)
    shown = both.fake.chats["anna"][0]
    both.only(1)
    await both.fake.until(lambda: shown.text == "half")  # at the gateway that did not write it
    both.only(0, 1)
    await both.one.edit(ref, 0, posted, Chunk("half and half"), final=True)
    await both.one.end(ref)
    await both.fake.until(lambda: shown.finished)
    assert both.fake.texts("anna") == ["half and half"]
    assert {0, 1} == set(both.balancer.served)
    assert not [status for status in both.fake.statuses if status != 200]


async def test_either_gateway_may_finish_a_reply(both: Two, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    ref = await both.hear()
    posted = await both.one.post(ref, 0, Chunk("half"), final=False)
    both.only(0)
    (whole,) = both.other.render(
        Outbound("half and half", (OutFile(str(tmp_path / "a.png"), "a.png", "image/png"),))
    )
    await both.other.edit(ref, 0, posted, whole, final=True)
    await both.other.end(ref)
    shown = both.fake.chats["anna"][0]
    await both.fake.until(lambda: shown.finished)
    assert (shown.text, shown.pictures) == ("half and half", [PNG])


async def test_many_streams_at_once_are_each_shown_once(both: Two) -> None:
    people = [f"p{number}" for number in range(8)]
    refs = await asyncio.gather(*(both.hear(person, person) for person in people))

    async def answer(number: int, ref: ReplyRef) -> None:
        channel = (both.one, both.other)[number % 2]
        posted = await channel.post(ref, 0, Chunk("so"), final=False)
        await channel.edit(ref, 0, posted, Chunk(f"so: {ref.person}"), final=True)
        await channel.end(ref)

    await asyncio.gather(*(answer(number, ref) for number, ref in enumerate(refs)))
    assert [both.fake.texts(person) for person in people] == [[f"so: {person}"] for person in people]


async def test_what_was_not_fetched_in_time_follows_by_the_address_once(both: Two) -> None:
    ref = await both.hear()
    posted = await both.one.post(ref, 0, Chunk("half\n"), final=False)
    shown = both.fake.chats["anna"][0]
    both.only(1)
    await both.fake.until(lambda: shown.text == "half\n")
    await both.silence()
    whole = Chunk("half\nand the rest")
    with pytest.raises(Lost):
        await both.one.edit(ref, 0, posted, whole, final=True)
    await both.other.post(ref, 0, whole, final=True)
    assert both.fake.texts("anna")[1:] == ["and the rest"]
    await both.one.post(ref, 1, Chunk("a second part"), final=True)  # the address is spent: it waits
    assert len(both.fake.texts("anna")) == 2
    both.fake.polling = True
    await both.hear(text="more?")
    await until(lambda: "a second part" in both.fake.texts("anna"))
    assert both.fake.texts("anna").count("a second part") == 1


async def test_a_card_of_one_gateway_is_pressed_at_the_other_once(both: Two) -> None:
    ref = await both.hear()
    task = await both.one.ask(ref, "Sure?", YES_NO)
    await both.silence()
    both.only(1)
    await both.fake.press("anna", "anna", task, "run:1:yes")
    both.only(0)
    await both.fake.repeat(*both.fake.requests[-1])  # delivered again, to the other
    assert [(p.message_id, p.choice) for p in both.bridge.presses] == [(task, "run:1:yes")]


async def test_a_message_that_comes_again_to_the_other_gateway_keeps_its_stream(both: Two) -> None:
    both.only(0)
    ref = await both.hear()
    await both.one.post(ref, 0, Chunk("half"), final=False)
    first = both.fake.requests[0]
    both.only(1)
    answer = await both.fake.repeat(*first)
    assert answer is not None
    assert answer["stream"]["content"] == "half"
    await show(both.one, ref, "half and half")
    assert both.fake.texts("anna") == ["half and half"]
