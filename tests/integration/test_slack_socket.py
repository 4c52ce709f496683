"""Socket Mode against the fake: connected, replaced in time, never silent for long, nothing leaked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from channels.base import ChannelError
from tests.fakes.slack import FakeSlack
from tests.integration.slack_house import QUICK, House


@pytest.fixture
async def fake() -> AsyncIterator[FakeSlack]:
    async with FakeSlack() as server:
        server.sockets.ping_every = 0.05
        yield server


@pytest.fixture
async def house(tmp_path: Path, fake: FakeSlack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    monkeypatch.setattr("channels.slack.socket.Timing", lambda: QUICK)
    monkeypatch.setattr("channels.slack.socket._GOODBYE", 0.2)
    monkeypatch.setattr("channels.slack.receiving._FIRST_PAUSE", 0.02)
    found = House(tmp_path, fake)
    yield found
    await found.close()


async def test_a_mention_arrives_twice_and_is_one_message(fake: FakeSlack, house: House) -> None:
    await house.open()
    fake.say("C1", f"<@{fake.bot_user}> hello")
    await fake.wait_for(lambda: len(house.deliveries) == 2 and all(d.done for d in fake.sockets.deliveries))
    assert house.texts == ["hello"]
    assert house.deliveries[0] == house.deliveries[1]


async def test_an_event_is_acknowledged_only_after_it_was_stored(fake: FakeSlack, house: House) -> None:
    gate, stored = asyncio.Event(), []

    async def receive(inbound: object) -> None:
        await gate.wait()
        stored.append(inbound)

    channel = house.make()
    await channel.start(receive)
    await fake.wait_for(lambda: channel.health().ok)
    fake.say("DU1", "hello")
    await fake.wait_for(lambda: fake.sockets.live[0].sent)
    delivery = fake.sockets.deliveries[0]
    assert not delivery.done
    gate.set()
    await fake.wait_for(lambda: delivery.done)
    assert len(stored) == 1


async def test_what_the_store_refuses_comes_again_until_it_is_taken(fake: FakeSlack, house: House) -> None:
    fake.sockets.ack_timeout = 0.1
    house.refuse = lambda _: len(house.deliveries) < 3
    await house.open()
    fake.say("DU1", "hello")
    await fake.wait_for(lambda: house.got)
    assert house.texts == ["hello"]
    assert fake.sockets.deliveries[0].attempts == 3


async def test_lost_acknowledgements_bring_no_second_message(fake: FakeSlack, house: House) -> None:
    fake.sockets.ack_timeout, fake.sockets.lost_acks = 0.1, 1.0
    await house.open()
    fake.say("DU1", "hello")
    await fake.wait_for(lambda: len(house.deliveries) >= 3)
    fake.sockets.lost_acks = 0.0
    assert house.texts == ["hello"]


async def test_the_order_within_a_thread_holds_while_threads_go_side_by_side(
    fake: FakeSlack, house: House
) -> None:
    slow = asyncio.Event()
    order: list[str] = []

    async def receive(inbound: object) -> None:
        text = inbound.text  # type: ignore[attr-defined]
        if text == "a0":
            await slow.wait()
        order.append(text)

    channel = house.make()
    await channel.start(receive)
    roots = {name: fake.write("C1", name)["ts"] for name in "ab"}
    for n in range(5):
        for name, root in roots.items():
            fake.say("C1", f"<@{fake.bot_user}> {name}{n}", thread_ts=root)
    await fake.wait_for(lambda: len([t for t in order if t[0] == "b"]) == 10)
    assert not [text for text in order if text[0] == "a"]
    slow.set()
    await fake.wait_for(lambda: len(order) == 20)
    for name in "ab":
        seen = list(dict.fromkeys(text for text in order if text[0] == name))
        assert seen == [f"{name}{n}" for n in range(5)]


@pytest.mark.parametrize("reason", ["warning", "refresh_requested"])
async def test_a_socket_that_will_end_is_replaced_before_it_does(
    fake: FakeSlack, house: House, reason: str
) -> None:
    channel = await house.open()
    await fake.sockets.disconnect(reason, grace=5.0)
    await fake.wait_for(lambda: fake.sockets.opened == 2 and len(fake.sockets.connections) == 1)
    assert fake.sockets.most == 2  # the new one stood before the old one went
    assert channel.health().ok
    fake.say("DU1", "still there?")
    await fake.wait_for(lambda: house.texts == ["still there?"])


async def test_an_event_on_the_old_socket_is_acknowledged_there(fake: FakeSlack, house: House) -> None:
    gate = asyncio.Event()

    async def receive(inbound: object) -> None:
        await gate.wait()

    channel = house.make()
    await channel.start(receive)
    await fake.wait_for(lambda: channel.health().ok)
    fake.say("DU1", "hello")
    await fake.wait_for(lambda: fake.sockets.live and fake.sockets.live[0].sent)
    await fake.sockets.disconnect("refresh_requested", grace=5.0)
    await fake.wait_for(lambda: fake.sockets.opened == 2)
    gate.set()
    await fake.wait_for(lambda: fake.sockets.deliveries[0].done)
    assert fake.sockets.deliveries[0].attempts == 1


async def test_a_dropped_socket_is_opened_again_and_what_waited_is_taken_once(
    fake: FakeSlack, house: House
) -> None:
    channel = await house.open()
    for round in range(3):
        fake.sockets.drop()
        fake.say("DU1", f"message {round}")
        await fake.wait_for(lambda n=round: len(house.got) == n + 1)  # type: ignore[misc]
    assert house.texts == ["message 0", "message 1", "message 2"]
    await fake.wait_for(lambda: channel.health().ok)
    assert len(fake.sockets.connections) == 1


async def test_sl_07_a_silent_socket_is_replaced_and_health_is_bad_in_between(
    fake: FakeSlack, house: House
) -> None:
    fake.sockets.ack_timeout, fake.sockets.retry_pauses = 0.2, (0.1,) * 30
    channel = await house.open()
    (silent,) = fake.sockets.live
    fake.socket_mode = False  # no new connection for now
    silent.silent = True
    fake.say("DU1", "lost in the silence")
    await fake.wait_for(lambda: not channel.health().ok)
    assert not silent.ws.closed  # TCP says all is well
    fake.socket_mode = True
    await fake.wait_for(lambda: channel.health().ok and house.got)
    fake.say("DU1", "queued")
    await fake.wait_for(lambda: len(house.got) == 2)
    assert house.texts == ["lost in the silence", "queued"]
    await fake.wait_for(lambda: len(fake.sockets.connections) == 1)


async def test_sl_07_a_socket_that_answers_pings_but_brings_nothing_is_replaced_too(
    fake: FakeSlack, house: House
) -> None:
    fake.sockets.ping_every = 60.0  # pongs come, Slack's own pings do not
    await house.open()
    await fake.wait_for(lambda: fake.sockets.opened >= 2)
    await fake.wait_for(lambda: len(fake.sockets.live) == 1)


async def test_an_event_that_comes_before_the_hello_is_not_lost(fake: FakeSlack, house: House) -> None:
    fake.sockets.hello = False
    fake.say("DU1", "early")
    await house.open()
    await fake.wait_for(lambda: fake.sockets.deliveries[0].done)
    assert house.texts == ["early"]
    assert fake.sockets.deliveries[0].attempts == 1


async def test_a_healthy_quiet_socket_is_left_alone(fake: FakeSlack, house: House) -> None:
    channel = await house.open()
    await fake.wait_for(lambda: fake.sockets.pings >= 40)  # more than the channel's patience
    assert (fake.sockets.opened, channel.health().ok) == (1, True)


async def test_socket_mode_switched_off_is_said_with_its_cure(fake: FakeSlack, house: House) -> None:
    channel = await house.open()
    fake.socket_mode = False
    await fake.sockets.disconnect("link_disabled", grace=0.1)
    await fake.wait_for(lambda: not channel.health().ok)
    assert "Socket Mode" in channel.health().reason + channel.health().cure
    assert "switch Socket Mode on" in channel.health().cure
    fake.socket_mode = True
    await fake.wait_for(lambda: channel.health().ok)


async def test_too_many_sockets_are_explained(fake: FakeSlack, house: House) -> None:
    others = [await house.open() for _ in range(10)]
    late = house.make()
    await late.start(house.receive)
    await fake.wait_for(lambda: "10 are allowed" in late.health().reason)
    assert "same app token" in late.health().cure
    await others[0].stop()
    await fake.wait_for(lambda: late.health().ok)


async def test_several_gateways_share_the_events_of_one_app(fake: FakeSlack, house: House) -> None:
    await house.open()
    await house.open()
    for n in range(20):
        fake.say("DU1", f"m{n}")
    await fake.wait_for(lambda: len(house.got) == 20)
    assert all(connection.sent for connection in fake.sockets.connections)
    assert sorted(house.texts) == sorted(f"m{n}" for n in range(20))


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        ("invalid_auth", "copy it again"),
        ("missing_scope", "connections:write"),
        ("token_revoked", "install it again"),
    ],
)
async def test_a_refused_app_token_is_a_state_with_a_cure_and_recovers(
    fake: FakeSlack, house: House, error: str, cure: str
) -> None:
    fake.fail("apps.connections.open", error, times=2, needed="connections:write", provided="")
    channel = house.make()
    await channel.start(house.receive)
    await fake.wait_for(lambda: error in channel.health().reason)
    assert cure in channel.health().cure
    await fake.wait_for(lambda: channel.health().ok)


async def test_a_server_that_is_not_there_does_not_keep_the_start_waiting(
    fake: FakeSlack, house: House
) -> None:
    fake.cut("auth.test", times=2)
    fake.fail("auth.test", status=502, times=1)
    channel = house.make()
    await channel.start(house.receive)
    assert not channel.health().ok
    await fake.wait_for(lambda: channel.health().ok)


async def test_stopping_leaves_no_socket_and_no_task(fake: FakeSlack, house: House) -> None:
    before = asyncio.all_tasks()
    channel = await house.open()
    fake.say("DU1", "hello")
    await fake.wait_for(lambda: house.got)
    await channel.pause()
    await fake.wait_for(lambda: not fake.sockets.connections)
    await channel.stop()
    left = [t.get_name() for t in asyncio.all_tasks() - before if "slack" in t.get_name()]
    assert left == []


async def test_what_was_taken_before_a_stop_is_acknowledged(fake: FakeSlack, house: House) -> None:
    gate = asyncio.Event()

    async def receive(inbound: object) -> None:
        await gate.wait()

    channel = house.make()
    await channel.start(receive)
    await fake.wait_for(lambda: channel.health().ok)
    fake.say("DU1", "hello")
    await fake.wait_for(lambda: fake.sockets.live[0].sent)
    stopping = asyncio.create_task(channel.pause())
    await asyncio.sleep(0)
    gate.set()
    await stopping
    assert fake.sockets.deliveries[0].done


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bot_token": "xoxp-1"}, "bot_token"),
        ({"app_token": None}, "app_token"),
        ({"app_token": "xoxb-1"}, "app_token"),
        ({"mode": "http", "signing_secret": ""}, "signing_secret is empty"),
        ({"mode": "http", "signing_secret": "  "}, "signing_secret is empty"),
        ({"base_url": "slack.com"}, "base_url"),
    ],
)
async def test_settings_that_cannot_work_are_refused_with_their_name(
    house: House, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(ChannelError, match=words):
        await house.make(**settings).start(house.receive)


async def test_no_token_and_no_words_of_people_are_in_the_log(
    fake: FakeSlack, house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    fake.fail("auth.test", "invalid_auth", times=1)
    house.refuse = lambda _: len(house.deliveries) < 2
    fake.sockets.ack_timeout = 0.1
    channel = await house.open()
    fake.say("DU1", "CANARY-WORDS")
    await fake.wait_for(lambda: house.got)
    fake.sockets.drop()
    await fake.wait_for(lambda: fake.sockets.opened == 2 and channel.health().ok)
    for secret in (fake.bot_token, fake.app_token, "CANARY-WORDS", "ticket="):
        assert secret not in caplog.text
