"""The WeCom AI bot channel behind a callback URL, against the fake platform that calls it."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from channels.base import Address, Choice, Env, Inbound, Lost, NotSent, Outbound, OutFile, Press, ReplyRef
from channels.wecom_bot.channel import WecomBotChannel
from channels.wecom_bot.config import Times, WecomBotConfig
from channels.wecom_bot.texts import TEXTS
from tests.fakes.channel_env import MemoryState, until
from tests.fakes.wecom_bot import AES_KEY, TOKEN, FakeWecomCallback, seal, signature

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 200
FAST = Times(poll_wait=0.4, press=0.5, settle=0.2)
YES_NO = [Choice("run:1:yes", "Allow", "primary"), Choice("run:1:no", "Deny", "danger")]


def words(key: str, language: str = "", /, **values: object) -> str:
    return TEXTS[key][1 if language.startswith("zh") else 0].format(**values)


class Bridge:
    """Stands where the bridge does, with its HTTP server."""

    def __init__(self, folder: Path, fake: FakeWecomCallback) -> None:
        self.folder, self.fake = folder, fake
        self.state = MemoryState()
        self.got: list[Inbound] = []
        self.failing = 0
        self.presses: list[Press] = []
        self.later = 0.0
        self.shared = False
        self.channel: WecomBotChannel | None = None
        self.runner: web.AppRunner | None = None
        self.port = 0
        fake.clock = self.clock

    def clock(self) -> float:
        return time.time() + self.later

    async def receive(self, inbound: Inbound) -> None:
        if self.failing:
            self.failing -= 1
            raise RuntimeError("the store is full")
        if inbound.id not in [i.id for i in self.got]:
            self.got.append(inbound)

    async def press(self, press: Press) -> str:
        self.presses.append(press)
        assert self.channel is not None
        await self.channel.settle(ReplyRef("q", press.address), press.message_id, "Allowed")
        return ""

    async def start(self, times: Times = FAST, **settings: Any) -> WecomBotChannel:
        config = {"mode": "webhook", "token": TOKEN, "aes_key": AES_KEY, **settings}
        url = f"http://127.0.0.1:{self.port}"
        more: dict[str, Any] = {"press": self.press, "public_url": url, "shared": self.shared}
        env = Env(self.state, words, self.folder, self.clock, **more)
        channel = WecomBotChannel("bot", WecomBotConfig.model_validate(config), env)
        channel.times = times  # type: ignore[misc]
        app = web.Application()
        app.add_routes(channel.routes())
        self.runner = web.AppRunner(app, shutdown_timeout=0.2)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port).start()
        self.port = self.runner.addresses[0][1]
        self.fake.target = f"http://127.0.0.1:{self.port}/channels/bot/callback"
        await channel.start(self.receive)
        self.channel = channel
        return channel

    async def stop(self) -> None:
        if self.channel is not None:
            await self.channel.stop()
        if self.runner is not None:
            await self.runner.cleanup()
        self.channel = self.runner = None

    async def hear(self, user: str = "anna", text: str = "hi", **more: Any) -> ReplyRef:
        msgid = await self.fake.say(user, text, **more)
        inbound = next(i for i in self.got if i.id == msgid)
        return ReplyRef(f"r-{msgid}", inbound.address, msgid, "en", inbound.sender.id)


@pytest.fixture
async def fake() -> AsyncIterator[FakeWecomCallback]:
    async with FakeWecomCallback(tick=0.02) as platform:
        yield platform


@pytest.fixture
async def bridge(tmp_path: Path, fake: FakeWecomCallback) -> AsyncIterator[Bridge]:
    bridge = Bridge(tmp_path, fake)
    yield bridge
    await bridge.stop()


async def show(channel: WecomBotChannel, ref: ReplyRef, text: str, *files: OutFile) -> list[str]:
    chunks = channel.render(Outbound(text, files))
    return [await channel.post(ref, n, chunk, final=True) for n, chunk in enumerate(chunks)]


# -- the envelope --------------------------------------------------------------------------------------


async def test_the_console_accepts_the_url(fake: FakeWecomCallback, bridge: Bridge) -> None:
    await bridge.start()
    assert await fake.verify() == (200, "echo-1234567890")


async def test_wx_08_what_is_not_from_wecom_is_refused_and_never_handled(
    fake: FakeWecomCallback, bridge: Bridge
) -> None:
    await bridge.start()
    body = json.dumps({"msgid": "1", "from": {"userid": "x"}, "msgtype": "text", "text": {"content": "x"}})
    good = seal(body.encode(), AES_KEY)

    def signed(encrypted: str, token: str = TOKEN, at: float = 0.0) -> dict[str, str]:
        timestamp, nonce = str(int(at or time.time())), secrets.token_hex(4)
        return {
            "msg_signature": signature(token, timestamp, nonce, encrypted),
            "timestamp": timestamp,
            "nonce": nonce,
        }

    foreign = seal(body.encode(), AES_KEY, "wx-another-corp")
    other_key = seal(body.encode(), AES_KEY[::-1])
    broken = good[:-8] + "AAAAAAA="
    cases: list[tuple[dict[str, str], Any]] = [
        ({}, {"encrypt": good}),
        (signed(good, "guessed"), {"encrypt": good}),
        (signed(good, at=time.time() - 3600), {"encrypt": good}),
        (signed(foreign), {"encrypt": foreign}),
        (signed(other_key), {"encrypt": other_key}),
        (signed(good), {"encrypt": broken}),
        (signed(broken), {"encrypt": broken}),
        (signed("..."), {"encrypt": "..."}),
        (signed(good), {}),
        (signed(good), {"encrypt": 7}),
        (signed(good), []),
    ]
    async with aiohttp.ClientSession() as http:
        for query, sealed in cases:
            async with http.post(fake.target, params=query, json=sealed) as response:
                assert response.status == 403, (query, await response.text())
        for raw in (b"", b"{", b"\xff\xfe", b"[" * 100_000, seal(b"no json", AES_KEY).encode()):
            async with http.post(fake.target, params=signed(good), data=raw) as response:
                assert response.status == 403
        for inside in (b"no json", b"[]", b"\xff\xff", b'"x"', b"[" * 100_000):
            encrypted = seal(inside, AES_KEY)
            async with http.post(fake.target, params=signed(encrypted), json={"encrypt": encrypted}) as r:
                assert r.status == 403
        async with http.post(fake.target, params=signed(good), data=b"x" * (2 * 2**20)) as response:
            assert response.status == 413
        async with http.get(fake.target) as response:
            assert response.status == 403
        async with http.get(fake.target, params={**signed(foreign), "echostr": foreign}) as response:
            assert response.status == 403
    assert bridge.got == []


async def test_odd_bodies_from_wecom_are_never_a_500(fake: FakeWecomCallback, bridge: Bridge) -> None:
    await bridge.start()
    for body in (
        {},
        {"msgtype": "text"},
        {"msgtype": 7, "from": 7},
        {"msgtype": "stream"},
        {"msgtype": "stream", "stream": 7},
        {"msgtype": "stream", "stream": {"id": "unknown"}},
        {"msgtype": "event"},
        {"msgtype": "event", "event": {"eventtype": "feedback_event"}},
        {"msgtype": "event", "event": 7, "msgid": "e"},
        {"msgtype": "hologram", "msgid": "1", "from": {"userid": "x"}},
    ):
        await fake.post(body)
    assert set(fake.statuses) <= {200, 503}
    assert bridge.got == []


async def test_a_replayed_request_is_handled_once(fake: FakeWecomCallback, bridge: Bridge) -> None:
    channel = await bridge.start()
    ref = await bridge.hear()
    again = await fake.repeat(*fake.requests[0])
    assert again is not None
    assert again["stream"]["id"] == fake.chats["anna"][0].stream
    await show(channel, ref, "once")
    task = await channel.ask(await bridge.hear("ben"), "Go?", YES_NO)
    await fake.until(lambda: task in fake.tasks)
    await fake.press("ben", "ben", task, "run:1:yes")
    await fake.repeat(*fake.requests[-1])
    assert len(bridge.presses) == 1
    assert len(bridge.got) == 2


async def test_a_raw_control_character_is_let_through(fake: FakeWecomCallback, bridge: Bridge) -> None:
    await bridge.start()
    body = '{"msgid": "1", "from": {"userid": "x"}, "msgtype": "text", "text": {"content": "a\x01\nb"}}'
    await fake.post(body.encode())
    assert bridge.got[0].text == "a\x01\nb"


async def test_the_previous_key_still_opens_and_seals(fake: FakeWecomCallback, bridge: Bridge) -> None:
    fresh = AES_KEY[::-1][1:] + "A"
    await bridge.start(aes_key=fresh, previous_aes_key=AES_KEY)
    await bridge.hear()
    fake.aes_key = fresh
    await bridge.hear(user="ben")
    assert len(bridge.got) == 2


async def test_what_could_not_be_stored_is_not_acknowledged(fake: FakeWecomCallback, bridge: Bridge) -> None:
    await bridge.start()
    bridge.failing = 1
    await bridge.hear()
    assert fake.statuses[:2] == [503, 200]
    assert len(bridge.got) == 1


# -- streams -------------------------------------------------------------------------------------------


async def test_a_stream_is_polled_while_it_grows_and_ends(fake: FakeWecomCallback, bridge: Bridge) -> None:
    channel = await bridge.start()
    ref = await bridge.hear()
    (shown,) = fake.chats["anna"]
    assert shown.text == TEXTS["wecom_bot.thinking"][0]
    message_id = ""
    for text in ("One", "One two", "One two three"):
        (chunk,) = channel.render(Outbound(text))
        if message_id:
            await channel.edit(ref, 0, message_id, chunk, final=False)
        else:
            message_id = await channel.post(ref, 0, chunk, final=False)
        await fake.until(lambda: shown.text == text)  # noqa: B023
    (chunk,) = channel.render(Outbound("One two three."))
    await channel.edit(ref, 0, message_id, chunk, final=True)
    await fake.until(lambda: (shown.text, shown.finished) == ("One two three.", True))
    await channel.end(ref)
    await fake.until(lambda: fake.open["anna"] == 0)


async def test_two_people_in_one_group_have_a_stream_each(fake: FakeWecomCallback, bridge: Bridge) -> None:
    channel = await bridge.start()
    anna = await bridge.hear("anna", "@Bot first", group="g1")
    ben = await bridge.hear("ben", "@Bot second", group="g1")
    await show(channel, anna, "to anna")
    await show(channel, ben, "to ben")
    await fake.until(lambda: all(shown.finished for shown in fake.chats["g1"]))
    assert {(s.text, s.answers) for s in fake.chats["g1"]} == {("to anna", anna.to), ("to ben", ben.to)}


async def test_what_does_not_fit_goes_by_response_url_and_then_with_the_next_message(
    fake: FakeWecomCallback, bridge: Bridge
) -> None:
    channel = await bridge.start()
    ref = await bridge.hear()
    text = "".join(f"第 {number} 段：这里有一些文字。\n\n" for number in range(1200))
    await show(channel, ref, text)
    assert [s.kind for s in fake.chats["anna"]] == ["stream", "markdown"]
    await bridge.stop()
    await bridge.start()
    await fake.say("anna", "and?")
    await fake.until(lambda: len([s for s in fake.chats["anna"] if s.kind == "markdown"]) == 2)
    pieces = [s.text for s in fake.chats["anna"] if s.kind == "markdown" or s.finished]
    assert "".join(pieces) == text
    assert await bridge.state.read("kept") == []


async def test_a_stream_is_handed_over_before_wecom_stops_asking(
    fake: FakeWecomCallback, bridge: Bridge
) -> None:
    channel = await bridge.start()
    ref = await bridge.hear()
    (shown,) = fake.chats["anna"]
    (chunk,) = channel.render(Outbound("line one\nline t"))
    message_id = await channel.post(ref, 0, chunk, final=False)
    await fake.until(lambda: shown.text == chunk.text)
    bridge.later = 301
    await fake.until(lambda: shown.finished)
    assert shown.text == f"line one\n\n{TEXTS['wecom_bot.continued'][0]}"
    (chunk,) = channel.render(Outbound("line one\nline two\nline three"))
    with pytest.raises(Lost):
        await channel.edit(ref, 0, message_id, chunk, final=False)
    assert await channel.post(ref, 0, chunk, final=False) == ""
    bridge.later = 2000
    await channel.post(ref, 0, chunk, final=True)
    assert fake.texts("anna")[1:] == ["line two\nline three"]


async def test_a_message_without_an_answer_in_time_is_told_so(
    fake: FakeWecomCallback, bridge: Bridge
) -> None:
    channel = await bridge.start()
    ref = await bridge.hear()
    bridge.later = 301
    await fake.until(lambda: fake.chats["anna"][0].finished)
    assert fake.texts("anna") == [TEXTS["wecom_bot.later"][0]]
    await show(channel, ref, "the answer")
    assert fake.texts("anna")[1:] == ["the answer"]


async def test_after_an_hour_the_answer_waits_for_the_next_message(
    fake: FakeWecomCallback, bridge: Bridge
) -> None:
    channel = await bridge.start()
    ref = await bridge.hear()
    bridge.later = 301
    await fake.until(lambda: fake.chats["anna"][0].finished)
    bridge.later = 3700
    await show(channel, ref, "very late")
    assert len(fake.chats["anna"]) == 1
    await fake.say("ben", "another chat")
    await fake.say("anna", "hello?")
    await fake.until(lambda: "very late" in fake.texts("anna"))
    assert "very late" not in fake.texts("ben")


async def test_a_platform_that_stopped_asking_gets_the_end_by_response_url(
    fake: FakeWecomCallback, bridge: Bridge
) -> None:
    channel = await bridge.start()
    fake.polling = False
    ref = await bridge.hear()
    await show(channel, ref, "the answer")
    assert fake.texts("anna")[1:] == ["the answer"]


async def test_a_refused_response_url_keeps_the_text(fake: FakeWecomCallback, bridge: Bridge) -> None:
    channel = await bridge.start()
    fake.polling, fake.refuse_urls = False, True
    ref = await bridge.hear()
    await show(channel, ref, "the answer")
    assert fake.texts("anna")[1:] == []
    fake.refuse_urls = False
    await fake.say("anna", "well?")
    await fake.until(lambda: "the answer" in fake.texts("anna"))


async def test_after_a_restart_the_stream_goes_on(fake: FakeWecomCallback, bridge: Bridge) -> None:
    channel = await bridge.start()
    ref = await bridge.hear()
    (chunk,) = channel.render(Outbound("half an"))
    message_id = await channel.post(ref, 0, chunk, final=False)
    (shown,) = fake.chats["anna"]
    await fake.until(lambda: shown.text == "half an")
    await bridge.stop()
    channel = await bridge.start()
    (chunk,) = channel.render(Outbound("half an answer, and the rest"))
    await channel.edit(ref, 0, message_id, chunk, final=True)
    await fake.until(lambda: (shown.text, shown.finished) == ("half an answer, and the rest", True))
    await channel.edit(ref, 0, message_id, chunk, final=True)
    assert len(fake.chats["anna"]) == 1


async def test_a_message_that_gets_no_answer_of_its_own_is_closed(
    fake: FakeWecomCallback, bridge: Bridge
) -> None:
    channel = await bridge.start()
    for user in ("anna", "ben"):
        ref = await bridge.hear(user)
        await channel.end(ref)
        await channel.end(ref)
    await fake.until(lambda: fake.open["anna"] == fake.open["ben"] == 0)
    assert fake.texts("anna") == [TEXTS["wecom_bot.noted"][0]]


async def test_three_questions_in_a_row_each_get_their_answer(
    fake: FakeWecomCallback, bridge: Bridge
) -> None:
    channel = await bridge.start()
    refs = [await bridge.hear(text=f"q{number}") for number in range(3)]
    with pytest.raises(AssertionError, match="three open exchanges"):
        await fake.say("anna", "a fourth")
    for number, ref in enumerate(refs):
        await show(channel, ref, f"a{number}")
        await channel.end(ref)
    await fake.until(lambda: fake.open["anna"] == 0)
    assert fake.texts("anna") == ["a0", "a1", "a2"]
    await bridge.hear(text="a fourth")


async def test_without_a_running_channel_nothing_is_shown(bridge: Bridge, fake: FakeWecomCallback) -> None:
    channel = await bridge.start()
    await bridge.stop()
    fresh = WecomBotChannel("bot", channel.config, channel.env)
    with pytest.raises(NotSent):
        await show(fresh, ReplyRef("r", Address("bot", "anna")), "x")
    assert not fresh.health().ok


# -- pictures, files, cards ------------------------------------------------------------------------------


async def test_pictures_go_with_the_last_packet_and_other_files_are_named(
    fake: FakeWecomCallback, bridge: Bridge, tmp_path: Path
) -> None:
    channel = await bridge.start()
    ref = await bridge.hear()
    (tmp_path / "a.png").write_bytes(PNG)
    files = [
        OutFile(str(tmp_path / "a.png"), "a.png", "image/png", "a caption"),
        OutFile(str(tmp_path / "gone.jpg"), "gone.jpg", "image/jpeg"),
        OutFile(str(tmp_path / "b.pdf"), "b.pdf", "application/pdf"),
    ]
    await show(channel, ref, "See:", *files)
    (shown,) = fake.chats["anna"]
    await fake.until(lambda: shown.pictures == [PNG])
    assert shown.text.startswith("See:\n\na caption")
    assert "b.pdf" in shown.text
    assert "gone.jpg" in shown.text
    ref = await bridge.hear("ben")
    await show(channel, ref, "", files[0])
    await channel.end(ref)
    await fake.until(lambda: fake.chats["ben"][0].pictures == [PNG])


async def test_a_picture_that_comes_too_late_for_its_stream_is_named(
    fake: FakeWecomCallback, bridge: Bridge, tmp_path: Path
) -> None:
    channel = await bridge.start()
    fake.polling = False
    ref = await bridge.hear()
    (tmp_path / "a.png").write_bytes(PNG)
    await show(channel, ref, "See:", OutFile(str(tmp_path / "a.png"), "a.png", "image/png"))
    assert fake.texts("anna")[1:] == [f"See:\n\n{words('wecom_bot.unsent', name='a.png')}"]


async def test_attachments_are_opened_with_the_encoding_aes_key(
    fake: FakeWecomCallback, bridge: Bridge, tmp_path: Path
) -> None:
    channel = await bridge.start(aes_key=AES_KEY[::-1][1:] + "A", previous_aes_key=AES_KEY)
    await fake.say("anna", msgtype="image", image=fake.file(PNG))
    (attachment,) = bridge.got[0].attachments
    await channel.fetch(attachment, tmp_path / "in.png", 1000)
    assert (tmp_path / "in.png").read_bytes() == PNG


async def test_a_question_comes_as_a_card_beside_the_stream(fake: FakeWecomCallback, bridge: Bridge) -> None:
    channel = await bridge.start()
    ref = await bridge.hear("anna", "@Bot go", group="g1")
    task = await channel.ask(ref, "Go on?", YES_NO)
    await fake.until(lambda: len(fake.chats["g1"]) == 2)
    stream, card = fake.chats["g1"]
    assert [b["key"] for b in card.card["button_list"]] == ["run:1:yes", "run:1:no"]
    await fake.press("g1", "ben", task, "run:1:yes")
    assert card.card["sub_title_text"].startswith("Allowed")
    assert len(card.card["button_list"]) == 1
    (press,) = bridge.presses
    assert (press.address, press.sender.id) == (Address("bot", "g1", "group"), "ben")
    await show(channel, ref, "done")
    await fake.until(lambda: (stream.text, stream.finished) == ("done", True))


async def test_a_second_question_goes_by_response_url(fake: FakeWecomCallback, bridge: Bridge) -> None:
    channel = await bridge.start()
    ref = await bridge.hear()
    await channel.ask(ref, "First?", YES_NO)
    await channel.ask(ref, "Second?", YES_NO)
    await fake.until(lambda: len(fake.chats["anna"]) == 3)
    assert [s.text for s in fake.chats["anna"] if s.kind == "card"] == ["First?", "Second?"]
    with pytest.raises(NotSent):
        await channel.ask(ref, "Third?", YES_NO)


async def test_a_pressed_buttons_response_url_carries_a_late_answer(
    fake: FakeWecomCallback, bridge: Bridge
) -> None:
    channel = await bridge.start()
    ref = await bridge.hear(url=False)
    task = await channel.ask(ref, "Go on?", YES_NO)
    await fake.until(lambda: task in fake.tasks)
    bridge.later = 301
    await fake.until(lambda: fake.chats["anna"][0].finished)
    await fake.press("anna", "anna", task, "run:1:yes")
    await show(channel, ref, "done after all")
    assert fake.texts("anna")[-1] == "done after all"


async def test_the_first_chat_of_a_day_is_greeted(fake: FakeWecomCallback, bridge: Bridge) -> None:
    await bridge.start()
    await fake.enter("anna")
    assert fake.texts("anna") == [TEXTS["wecom_bot.welcome"][0]]


# -- secrets, check ------------------------------------------------------------------------------------


async def test_sc_05_secrets_texts_and_response_urls_are_in_no_log(
    fake: FakeWecomCallback, bridge: Bridge, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="causeway")
    channel = await bridge.start()
    ref = await bridge.hear(text="CANARY-TEXT")
    fake.polling = False
    ref = await bridge.hear("ben", "CANARY-TEXT", url=False, response_url="http://127.0.0.1:9/CANARY-URL")
    with pytest.raises(NotSent) as caught:
        await show(channel, ref, "CANARY-ANSWER")
    told = [caplog.text, repr(caught.value), repr(channel.config)]
    assert all("CANARY" not in text and TOKEN not in text and AES_KEY not in text for text in told)


async def test_check_knocks_at_the_callback_url(fake: FakeWecomCallback, bridge: Bridge) -> None:
    channel = await bridge.start()
    await bridge.stop()
    channel = await bridge.start()  # now its port, and so its public address, is known
    url, answers = await channel.check("en")
    assert f"http://127.0.0.1:{bridge.port}/channels/bot/callback" in url.what
    assert (answers.level, answers.what) == ("ok", TEXTS["wecom_bot.check.answers"][0])
    await bridge.stop()
    _, answers = await channel.check("zh")
    assert answers.level == "warning"
    env = Env(bridge.state, words, bridge.folder, bridge.clock)
    (finding,) = await WecomBotChannel("bot", channel.config, env).check("en")
    assert "server.public_url" in finding.cure
    config = WecomBotConfig.model_validate({"mode": "webhook", "token": "t", "aes_key": "short"})
    (finding,) = await WecomBotChannel("bot", config, env).check("en")
    assert "EncodingAESKey" in finding.what


async def test_stopping_leaves_no_task(fake: FakeWecomCallback, bridge: Bridge) -> None:
    channel = await bridge.start()
    ref = await bridge.hear()
    await show(channel, ref, "x")
    await channel.stop()
    await until(lambda: not [t for t in asyncio.all_tasks() if t.get_name().startswith("wecom_bot")])
