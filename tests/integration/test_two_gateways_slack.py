"""One Slack app in two gateways that share their notes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession
from slack_sdk.signature import SignatureVerifier

from channels.base import Activity, Choice, NotSent, Unknown
from channels.slack.sending import Sender
from tests.fakes.slack import FakeSlack
from tests.integration.balanced import Balancer
from tests.integration.slack_house import QUICK, House
from tests.integration.test_slack_sending import Desk, chunk, ref
from tests.integration.test_slack_streaming import question

YES_NO = [Choice("y", "Yes"), Choice("n", "No")]


@pytest.fixture
async def fake() -> AsyncIterator[FakeSlack]:
    async with FakeSlack() as server:
        server.user("U1")
        server.place("C1", members=["U1"])
        server.sockets.ping_every = 0.05
        yield server


@pytest.fixture
async def house(tmp_path: Path, fake: FakeSlack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    monkeypatch.setattr("channels.slack.socket.Timing", lambda: QUICK)
    monkeypatch.setattr("channels.slack.socket._GOODBYE", 0.2)
    found = House(tmp_path, fake)
    found.shared = True
    yield found
    await found.close()


@pytest.fixture
async def desk(fake: FakeSlack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    monkeypatch.setattr("channels.slack.posting.LOOKS", (0.0,))
    monkeypatch.setattr("channels.slack.sending._CARDS_APART", 0.0)
    desk = Desk(fake, tmp_path)
    desk.shared = True
    yield desk
    await desk.close()


async def two(desk: Desk) -> tuple[Sender, Sender]:
    return await desk.sender(), await desk.sender()


# -- receiving -------------------------------------------------------------------------------------------


async def test_each_gateway_has_a_socket_and_either_takes_what_comes(fake: FakeSlack, house: House) -> None:
    one, other = await house.open(), await house.open()
    assert len(fake.sockets.live) == 2
    for number in range(20):
        fake.say("DU1", str(number))
    await fake.wait_for(lambda: len(house.got) == 20)
    used = {connection.number for connection in fake.sockets.live if connection.sent}
    assert len(used) == 2
    await one.stop()
    assert other.health().ok
    fake.say("DU1", "after")
    await fake.wait_for(lambda: "after" in house.texts)
    assert len(house.got) == 21


async def test_a_thread_that_one_gateway_joined_is_joined_for_the_other(
    fake: FakeSlack, house: House
) -> None:
    one, other = await house.open(), await house.open()
    root = fake.say("C1", f"<@{fake.bot_user}> hello")
    await fake.wait_for(lambda: house.got)
    await house.say(one, house.got[0], "hi")
    await one.stop()
    fake.say("C1", "and this?", thread_ts=root)
    await fake.wait_for(lambda: "and this?" in house.texts)
    assert other.health().ok
    assert house.got[-1].cue == "reply"


async def test_requests_reach_either_gateway_and_none_is_taken_twice(fake: FakeSlack, house: House) -> None:
    async with Balancer() as balancer:
        for _ in range(2):
            await balancer.add(await house.open(mode="http"))
        fake.sockets.http_url = f"{balancer.url}/channels/slack/events"
        for number in range(6):
            fake.say("DU1", str(number))
        await fake.wait_for(lambda: len(house.got) == 6)
        assert set(balancer.served) == {0, 1}
        body, at = '{"type": "url_verification", "challenge": "c"}', str(int(time.time()))
        signature = SignatureVerifier(fake.signing_secret).generate_signature(timestamp=at, body=body)
        headers = {"X-Slack-Request-Timestamp": at, "X-Slack-Signature": str(signature)}
        async with ClientSession(headers={**headers, "Content-Type": "application/json"}) as client:
            for expected in (200, 401):  # the second gateway has not seen it, and refuses it all the same
                async with client.post(fake.sockets.http_url, data=body) as answer:
                    assert answer.status == expected


# -- showing ---------------------------------------------------------------------------------------------


async def test_what_one_gateway_streams_the_other_finishes_and_settles(fake: FakeSlack, desk: Desk) -> None:
    one, other = await two(desk)
    to = question(fake)
    ts = await one.post(to, 0, chunk("The first words are here"), final=False)
    await other.edit(to, 0, ts, chunk("The first words are here. End."), final=True)
    await other.end(to)
    asked = await one.ask(ref(thread=to.to, to=to.to, id="q"), "Sure?", YES_NO)
    await other.settle(to, asked, "Allowed.")
    assert fake.thread("C1", to.to).texts == ["The first words are here. End.", "Allowed."]


async def test_a_message_whose_worker_died_is_found_by_either_gateway(fake: FakeSlack, desk: Desk) -> None:
    one, other = await two(desk)
    to = question(fake)
    first = await one.post(to, 0, chunk("An answer."), final=True)
    assert await other.post(to, 0, chunk("An answer."), final=True) == first
    assert await one.post(to, 0, chunk("An answer."), final=True) == first
    question_to = ref(thread=to.to, to=to.to, id="q")
    asked = await one.ask(question_to, "Sure?", YES_NO)
    assert await other.ask(question_to, "Sure?", YES_NO) == asked
    assert fake.thread("C1", to.to).texts[0] == "An answer."
    assert len(fake.thread("C1", to.to).messages) == 2


async def test_a_message_that_was_refused_is_posted_without_a_look(fake: FakeSlack, desk: Desk) -> None:
    one, other = await two(desk)
    to = question(fake)
    fake.cut("chat.postMessage", "before")
    fake.fail("chat.postMessage", "ratelimited", retry_after=1.0)
    with pytest.raises(NotSent):
        await one.ask(to, "Sure?", YES_NO)
    looks = len(fake.called("conversations.replies"))
    with pytest.raises(NotSent):
        await other.post(ref(id="r2"), 0, chunk("x"), final=True)
    desk.clock.now += 60
    await one.post(ref(id="r2"), 0, chunk("x"), final=True)
    assert fake.shown("C1").texts == ["x"]
    assert len(fake.called("conversations.replies")) == looks
    assert not fake.called("conversations.history")


async def test_an_unknown_outcome_is_settled_by_the_other_gateway(fake: FakeSlack, desk: Desk) -> None:
    one, other = await two(desk)
    to = question(fake)
    fake.cut("chat.postMessage", "after")
    fake.cut("conversations.replies", "before", times=9)
    with pytest.raises((NotSent, Unknown)):
        await one.post(to, 0, chunk("An answer."), final=True)
    fake.faults.clear()
    await other.post(to, 0, chunk("An answer."), final=True)
    assert fake.thread("C1", to.to).texts == ["An answer."]


async def test_steps_at_one_gateway_become_the_answers_message_at_the_other(
    fake: FakeSlack, desk: Desk
) -> None:
    one, other = await two(desk)
    early, to = question(fake, id="r0"), question(fake)
    await other.post(early, 0, chunk("before"), final=True)  # it has looked for steps once already
    one.activity(to, Activity("c1", "web_search", "running"))
    await fake.wait_for(lambda: desk.state.logs.get("streams"))
    await other.post(to, 0, chunk("Done."), final=True)
    await other.end(to)
    assert fake.thread("C1", to.to).texts == ["Done."]
    assert desk.state.logs["streams"] == {}


async def test_steps_at_one_gateway_end_with_a_reply_without_words_at_the_other(
    fake: FakeSlack, desk: Desk
) -> None:
    one, other = await two(desk)
    to = question(fake)
    one.activity(to, Activity("c1", "web_search", "running"))
    await fake.wait_for(lambda: desk.state.logs.get("streams"))
    await other.end(to)
    (message,) = fake.thread("C1", to.to).messages
    assert not message["_streaming"]
    assert desk.state.logs["streams"] == {}
