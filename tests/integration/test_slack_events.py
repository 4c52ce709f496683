"""The HTTP Events API: signed deliveries of the fake to the channel's route."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from channels.slack.channel import SlackChannel
from tests.fakes.slack import FakeSlack
from tests.integration.slack_house import House


@pytest.fixture
async def fake() -> AsyncIterator[FakeSlack]:
    async with FakeSlack() as server:
        yield server


class Site:
    """A server with the routes of channels."""

    def __init__(self, house: House, fake: FakeSlack) -> None:
        self.house, self.fake = house, fake
        self.runners: list[web.AppRunner] = []

    async def open(self, **settings: Any) -> SlackChannel:
        channel = self.house.make(mode="http", **settings)
        app = web.Application()
        app.add_routes(channel.routes())
        runner = web.AppRunner(app)
        self.runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/channels/slack/events"
        await channel.start(self.house.receive)
        await self.fake.wait_for(lambda: channel.health().ok)
        self.fake.sockets.http_url = url
        return channel


@pytest.fixture
async def site(tmp_path: Path, fake: FakeSlack) -> AsyncIterator[Site]:
    house = House(tmp_path, fake)
    found = Site(house, fake)
    yield found
    await house.close()
    for runner in found.runners:
        await runner.cleanup()


async def test_a_mention_comes_in_and_its_answer_opens_a_thread(fake: FakeSlack, site: Site) -> None:
    channel = await site.open()
    ts = fake.say("C1", f"<@{fake.bot_user}> hello")
    await fake.wait_for(lambda: site.house.got)
    (inbound,) = site.house.got
    assert (inbound.id, inbound.address.thread, inbound.text) == (ts, ts, "hello")
    await site.house.say(channel, inbound, "hi")
    assert fake.thread("C1", ts).texts == ["hi"]
    assert not fake.called("apps.connections.open")


async def test_a_socket_channel_has_no_public_route(tmp_path: Path, fake: FakeSlack) -> None:
    assert House(tmp_path, fake).make().routes() == []


async def test_what_the_store_refuses_is_retried_by_slack_and_taken_once(fake: FakeSlack, site: Site) -> None:
    await site.open()
    site.house.refuse = lambda _: len(site.house.deliveries) < 3
    fake.say("DU1", "hello")
    delivery = await fake.wait_for(lambda: next((d for d in fake.sockets.deliveries if d.done), None))
    assert delivery.statuses == [500, 500, 200]
    assert site.house.texts == ["hello"]


async def test_a_burst_of_duplicates_and_lost_answers_is_one_message_each(
    fake: FakeSlack, site: Site
) -> None:
    await site.open()
    fake.sockets.duplicates, fake.sockets.lost_acks = 0.5, 0.3
    sent = [f"message {n}" for n in range(30)]
    for n, text in enumerate(sent):
        fake.say(f"DU{n % 5}", text, f"U{n % 5}")
    await fake.wait_for(lambda: len(site.house.got) == 30)
    assert sorted(site.house.texts) == sorted(sent)


@pytest.mark.parametrize("how", ["unsigned", "stale", "replayed"])
async def test_unsigned_stale_and_replayed_requests_never_reach_the_inbox(
    fake: FakeSlack, site: Site, how: str
) -> None:
    await site.open()
    fake.say("DU1", "hello")
    await fake.wait_for(lambda: fake.sockets.deliveries[0].done)
    before = len(site.house.deliveries)
    delivery = fake.sockets.deliveries[0]
    forged = {**delivery.payload, "event": {**delivery.payload["event"], "ts": "1800000000.000001"}}
    delivery.payload = forged
    body, kind = fake.sockets.encode(delivery)
    headers = {"Content-Type": kind}
    if how == "stale":
        headers |= fake.sockets.sign(body, time.time() - 600)
    if how == "replayed":
        headers |= fake.sockets.sign(body)
    async with ClientSession() as client:
        answers = []
        for _ in range(2):
            async with client.post(fake.sockets.http_url, data=body, headers=headers) as response:
                answers.append(response.status)
    assert answers == ([200, 401] if how == "replayed" else [401, 401])
    assert len(site.house.deliveries) - before == (1 if how == "replayed" else 0)


async def test_a_replay_to_another_gateway_is_recognised_there(fake: FakeSlack, site: Site) -> None:
    await site.open()
    first = fake.sockets.http_url
    await site.open()
    second = fake.sockets.http_url
    body = b"command=%2Fcauseway&text=help&team_id=" + fake.team.encode() + b"&channel_id=DU1&user_id=U1"
    headers = {"Content-Type": "application/x-www-form-urlencoded", **fake.sockets.sign(body)}
    async with ClientSession() as client:
        statuses = []
        for url in (first, second):
            async with client.post(url, data=body, headers=headers) as response:
                statuses.append(response.status)
    assert statuses == [200, 401]


async def test_a_slow_store_does_not_lose_and_does_not_double(fake: FakeSlack, site: Site) -> None:
    """Slack gives up waiting and asks again while the first request is still being stored."""
    import asyncio

    gate = asyncio.Event()
    real = site.house.receive

    async def slow(inbound: Any) -> None:
        await gate.wait()
        await real(inbound)

    site.house.receive = slow  # type: ignore[method-assign]
    await site.open()
    fake.sockets.ack_timeout = 0.1
    fake.say("DU1", "hello")
    await fake.wait_for(lambda: len(fake.sockets.deliveries[0].statuses) >= 2)
    gate.set()
    await fake.wait_for(lambda: site.house.got)
    assert site.house.texts == ["hello"]


async def test_the_answer_to_a_button_does_not_wait_for_slow_work(
    fake: FakeSlack, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.slack.events._ANSWER_IN", 0.1)
    await site.open()
    fake.delay("views.open", 1.0)
    ts = fake.say("C1", "a message")
    await fake.wait_for(lambda: fake.sockets.deliveries[0].done)
    began = time.monotonic()
    delivery = fake.shortcut("C1", ts, "ask_about_this")
    await fake.wait_for(lambda: delivery.done)
    assert time.monotonic() - began < 0.9
    await fake.wait_for(lambda: fake.modals)
