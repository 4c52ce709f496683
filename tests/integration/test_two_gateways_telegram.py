"""One Telegram bot in two gateways that share their notes and their folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from channels.base import Address, Choice, Chunk, ReplyRef
from channels.telegram.channel import TelegramChannel
from tests.fakes.telegram import FakeTelegram
from tests.integration.balanced import Balancer
from tests.integration.telegram_support import Bridge, shorten_pauses

GROUP = ReplyRef("r1", Address("tg", "-100", "group"), "1")


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram() as fake:
        yield fake


@pytest.fixture
async def bridge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bridge]:
    shorten_pauses(monkeypatch)
    bridge = Bridge(tmp_path)
    yield bridge
    await bridge.close()


async def two(fake: FakeTelegram, bridge: Bridge) -> tuple[TelegramChannel, TelegramChannel]:
    """The one that polls, and the other."""
    one = await bridge.open(fake.url)
    await fake.wait_for(lambda: one.health().ok)
    other = await bridge.open(fake.url)
    await fake.wait_for(lambda: "another gateway" in other.health().reason)
    return one, other


@contextmanager
def on_machine(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("channels.telegram.lease.socket.gethostname", lambda: name)
        yield


async def test_the_gateway_that_does_not_poll_shows_changes_and_settles(
    fake: FakeTelegram, bridge: Bridge
) -> None:
    poller, other = await two(fake, bridge)
    fake.say(-100, "@TheBot hello")
    await fake.wait_for(lambda: bridge.texts == ["hello"])
    assert other.holds
    posted = await other.post(GROUP, 0, Chunk("half"), final=False)
    await poller.edit(GROUP, 0, posted, Chunk("half and half"), final=True)
    card = await poller.ask(replace(GROUP, id="q"), "Sure?", [Choice("y", "Yes")])
    await other.settle(GROUP, card, "Allowed.")
    assert fake.chats[-100].texts == ["half and half", "Allowed."]
    assert "reply_markup" not in fake.chats[-100].shown[-1]


async def test_what_one_gateway_confirmed_the_next_does_not_take_again(
    fake: FakeTelegram, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.telegram.lease._LOOK", 0.1)
    one, _ = await two(fake, bridge)
    for number in range(20):
        fake.say(number % 3 + 1, str(number))
    await fake.wait_for(lambda: len(bridge.got) == 20)
    await one.pause()  # the bridge drains; replies still go out
    fake.say(5, "after")
    await fake.wait_for(lambda: "after" in bridge.texts)
    assert len(bridge.got) == 21
    assert await one.post(ReplyRef("r2", Address("tg", "1"), "1"), 0, Chunk("last words"), final=True)


async def test_a_killed_gateways_polling_goes_on_at_once_on_the_same_machine(
    fake: FakeTelegram, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.telegram.lease._LOOK", 0.05)
    one, _ = await two(fake, bridge)
    await killed(one)
    fake.say(5, "still there?")
    await fake.wait_for(lambda: bridge.texts == ["still there?"])


async def test_a_folder_shared_with_another_machine_hands_over_no_lease(
    fake: FakeTelegram, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.telegram.lease._LOOK", 0.05)
    one = await bridge.open(fake.url)
    await fake.wait_for(lambda: one.health().ok)
    holder = bridge.state.leases["poll"][0]
    # Its lock is not seen from there: the file looks as if nobody had it.
    monkeypatch.setattr("channels.telegram.lease.fcntl.flock", lambda *_: None)
    with on_machine("elsewhere"):
        other = await bridge.open(fake.url)
        await fake.wait_for(lambda: "another gateway" in other.health().reason)
    assert bridge.state.leases["poll"][0] == holder
    assert one.health().ok


async def test_a_gateway_whose_machine_is_lost_is_followed_when_its_lease_ends(
    fake: FakeTelegram, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.telegram.lease.SECONDS", 0.6)
    one = await bridge.open(fake.url, gateway="there")
    await fake.wait_for(lambda: one.health().ok)
    other = await bridge.open(fake.url, gateway="here")
    await fake.wait_for(lambda: "another gateway" in other.health().reason)
    await killed(one)
    fake.say(5, "still there?")
    await fake.wait_for(lambda: bridge.texts == ["still there?"])


async def killed(channel: TelegramChannel) -> None:
    """The process is gone: nothing is given back, and its locks end."""
    source, task = channel._source, channel._task
    assert source is not None
    assert task is not None
    lease = source._lease  # type: ignore[union-attr]

    async def nothing() -> None:
        return

    lease.release = nothing  # type: ignore[method-assign]
    task.cancel()
    await asyncio.wait({task})


async def test_a_forum_that_one_gateway_saw_is_known_to_the_other(fake: FakeTelegram, bridge: Bridge) -> None:
    _, other = await two(fake, bridge)
    fake.chat(-200, is_forum=True)
    fake.say(-200, "@TheBot hello")
    await fake.wait_for(lambda: bridge.texts == ["hello"])
    await other.typing(ReplyRef("r2", Address("tg", "-200", "group"), "1"))
    assert fake.called("sendChatAction")[-1].params["message_thread_id"] in (1, "1")


async def test_deliveries_to_either_gateway_are_taken_once_and_in_order(
    fake: FakeTelegram, bridge: Bridge
) -> None:
    async with Balancer() as balancer:
        fake.local = True  # it takes an http address
        bridge.public_url = balancer.url
        gateways = []
        for _ in range(2):
            settings = {"mode": "webhook", "webhook_secret": "secret"}
            channel = bridge.make(fake.url, **settings)
            await balancer.add(channel)
            await channel.start(bridge.receive)
            bridge.channels.append(channel)
            gateways.append(channel)
        await fake.wait_for(lambda: all(channel.health().ok for channel in gateways))
        for number in range(6):
            fake.say(5, str(number))
        await fake.wait_for(lambda: len(bridge.got) == 6)
        assert bridge.texts == [str(number) for number in range(6)]
        assert set(balancer.served) == {0, 1}
        await gateways[0].pause()  # its 503 makes Telegram try again, which reaches the other
        fake.say(5, "after")
        await fake.wait_for(lambda: bridge.texts[-1] == "after")
        assert len(bridge.got) == 7
        posted = await gateways[0].post(ReplyRef("r", Address("tg", "5"), "1"), 0, Chunk("a"), final=True)
        await gateways[1].edit(ReplyRef("r", Address("tg", "5"), "1"), 0, posted, Chunk("ab"), final=True)
        assert fake.chats[5].texts == ["ab"]
