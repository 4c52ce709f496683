"""The WeCom AI bot channel on its long connection, against the fake server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from channels.base import (
    Address,
    ChannelError,
    Choice,
    Env,
    Flooded,
    Gone,
    Inbound,
    Lost,
    NotSent,
    Outbound,
    OutFile,
    Press,
    Rejected,
    ReplyRef,
    TooLarge,
    Unknown,
)
from channels.wecom_bot.channel import WecomBotChannel
from channels.wecom_bot.config import Times, WecomBotConfig
from channels.wecom_bot.lease import place
from channels.wecom_bot.texts import TEXTS
from tests.fakes.channel_env import MemoryState, until
from tests.fakes.wecom_bot import BOT_ID, SECRET, FakeWecomSocket

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 200
FAST = Times(
    ping=0.1,
    ack=0.3,
    connect=2.0,
    first_pause=0.02,
    longest_pause=0.1,
    refused_pause=0.1,
    kicked_pause=0.3,
    longest_rest=5.0,
    lease=2.0,
    resend=2.0,
    settle=0.2,
)


def words(key: str, language: str = "", /, **values: object) -> str:
    return TEXTS[key][1 if language.startswith("zh") else 0].format(**values)


class Bridge:
    """Stands where the bridge does; `now` moves the clock of the channels and of the fake."""

    def __init__(self, folder: Path, fake: FakeWecomSocket) -> None:
        self.folder, self.fake = folder, fake
        self.state = MemoryState()
        self.got: list[Inbound] = []
        self.failing = 0
        self.presses: list[Press] = []
        self.say_to_press = ""
        self.channels: list[WecomBotChannel] = []
        self.later = 0.0
        fake.clock = self.clock

    def clock(self) -> float:
        return time.time() + self.later

    async def receive(self, inbound: Inbound) -> None:
        if self.failing:
            self.failing -= 1
            raise RuntimeError("the store is full")
        self.got.append(inbound)

    async def press(self, press: Press) -> str:
        self.presses.append(press)
        return self.say_to_press

    async def open(self, times: Times = FAST, **settings: Any) -> WecomBotChannel:
        config = {"bot_id": BOT_ID, "secret": SECRET, "ws_url": self.fake.url, **settings}
        env = Env(self.state, words, self.folder, self.clock, press=self.press)
        channel = WecomBotChannel("bot", WecomBotConfig.model_validate(config), env)
        channel.times = times  # type: ignore[misc]
        await channel.start(self.receive)
        self.channels.append(channel)
        return channel

    async def connected(self, **settings: Any) -> WecomBotChannel:
        channel = await self.open(**settings)
        await self.fake.until(lambda: channel.health().ok and self.fake.connected)
        return channel

    async def hear(self, user: str = "anna", text: str = "hi", **more: Any) -> ReplyRef:
        """A person writes; returns where to answer."""
        msgid = await self.fake.say(user, text, **more)
        await until(lambda: any(inbound.id == msgid for inbound in self.got))
        inbound = next(i for i in self.got if i.id == msgid)
        return ReplyRef(f"r-{msgid}", inbound.address, msgid, "en", inbound.sender.id)


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


async def show(channel: WecomBotChannel, ref: ReplyRef, text: str, *files: OutFile) -> list[str]:
    chunks = channel.render(Outbound(text, files))
    return [await channel.post(ref, n, chunk, final=True) for n, chunk in enumerate(chunks)]


async def grow(channel: WecomBotChannel, bridge: Bridge, ref: ReplyRef, *texts: str) -> str:
    """Show a growing text, far enough apart for the pace."""
    message_id = ""
    for text in texts:
        bridge.later += 10
        (chunk,) = channel.render(Outbound(text))
        if message_id:
            await channel.edit(ref, 0, message_id, chunk, final=False)
        else:
            message_id = await channel.post(ref, 0, chunk, final=False)
    return message_id


# -- receiving ---------------------------------------------------------------------------------------


async def test_a_message_is_answered_by_a_stream_that_grows_and_ends(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear(text="你好")
    message_id = await grow(channel, bridge, ref, "One", "One two")
    (chunk,) = channel.render(Outbound("One two **three**"))
    await channel.edit(ref, 0, message_id, chunk, final=True)
    await channel.end(ref)
    (shown,) = fake.chats["anna"]
    assert (shown.text, shown.finished, shown.answers) == ("One two **three**", True, ref.to)
    assert shown.packets == ["One", "One two", "One two **three**"]


async def test_messages_arrive_in_order_and_one_that_could_not_be_stored_is_tried_again(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    await bridge.connected()
    bridge.failing = 3
    for number in range(20):
        await fake.say("anna", f"m{number}")
    await fake.until(lambda: len(bridge.got) == 20)
    assert [inbound.text for inbound in bridge.got] == [f"m{number}" for number in range(20)]


async def test_raw_control_characters_in_a_frame_do_not_lose_the_message(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    await bridge.connected()
    await fake.say("anna", "line\none\x01two", raw=True)
    await fake.until(lambda: bridge.got)
    assert bridge.got[0].text == "line\none\x01two"


async def test_odd_frames_harm_nothing(fake: FakeWecomSocket, bridge: Bridge) -> None:
    channel = await bridge.connected()
    assert fake._subscribed is not None
    for frame in (
        *("{", "[]", '"x"', "{}", "[" * 100_000, '{"cmd": 7}', '{"headers": 7}'),
        *('{"cmd": "aibot_msg_callback"}', '{"cmd": "aibot_msg_callback", "body": 7, "headers": 7}'),
        *('{"cmd": "aibot_event_callback"}', '{"cmd": "aibot_event_callback", "body": [1]}'),
    ):
        await fake._subscribed.send_str(frame)
    await fake.say("anna", msgtype="image", image=7, quote=7)
    await fake.say("anna", "after all that")
    await fake.until(lambda: bridge.got)
    assert bridge.got[0].text == "after all that"
    assert channel.health().ok
    assert fake.subscribes == 1


async def test_the_first_chat_of_a_day_is_greeted(fake: FakeWecomSocket, bridge: Bridge) -> None:
    await bridge.connected()
    await fake.enter("anna")
    await fake.until(lambda: fake.chats["anna"])
    assert fake.texts("anna") == [TEXTS["wecom_bot.welcome"][0]]


async def test_the_greeting_is_a_setting(fake: FakeWecomSocket, bridge: Bridge) -> None:
    channel = await bridge.connected(welcome="欢迎！")
    await fake.enter("anna")
    await fake.until(lambda: fake.chats["anna"])
    assert fake.texts("anna") == ["欢迎！"]
    await channel.stop()
    await bridge.connected(welcome="")
    await fake.enter("ben")
    await bridge.hear("ben")
    assert fake.texts("ben") == []


# -- the connection ----------------------------------------------------------------------------------


async def test_a_dropped_connection_comes_back(fake: FakeWecomSocket, bridge: Bridge) -> None:
    channel = await bridge.connected()
    fake.down = True
    await fake.drop()
    await until(lambda: not channel.health().ok)
    fake.down = False
    await fake.until(lambda: channel.health().ok and fake.connected)
    await bridge.hear(text="still there?")
    assert bridge.got[0].text == "still there?"


async def test_a_server_that_answers_no_ping_is_left(fake: FakeWecomSocket, bridge: Bridge) -> None:
    await bridge.connected()
    fake.deaf.add("ping")
    await fake.until(lambda: fake.subscribes >= 2)
    fake.deaf.clear()
    await bridge.hear()


async def test_pings_keep_the_connection(fake: FakeWecomSocket, bridge: Bridge) -> None:
    await bridge.connected()
    await fake.until(lambda: len(fake.called("ping")) >= 4)
    assert fake.subscribes == 1


async def test_a_kicked_connection_raises_the_alarm_and_does_not_fight(
    fake: FakeWecomSocket, bridge: Bridge, caplog: pytest.LogCaptureFixture
) -> None:
    channel = await bridge.connected()
    began = time.monotonic()
    await fake.kick()
    await until(lambda: not channel.health().ok)
    health = channel.health()
    assert "another program" in health.reason
    assert "stop the other program" in health.cure
    alarms = [r for r in caplog.records if r.levelno == logging.ERROR and "another program" in r.message]
    assert len(alarms) == 1
    await fake.until(lambda: fake.subscribes == 2)
    assert time.monotonic() - began >= FAST.kicked_pause
    await fake.until(lambda: channel.health().ok)


async def test_bad_credentials_are_named_and_tried_again_slowly(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    fake.secret = "rolled"
    channel = await bridge.open()
    await until(lambda: "refused the bot ID or the secret" in channel.health().reason)
    assert not channel.health().ok
    fake.secret = SECRET
    await fake.until(lambda: channel.health().ok)
    assert fake.subscribes <= 4


async def test_846609_reconnects_and_sends_again(fake: FakeWecomSocket, bridge: Bridge) -> None:
    channel = await bridge.connected()
    await bridge.hear()
    fake.forgotten = True
    await show(channel, ReplyRef("r9", Address("bot", "anna")), "here all the same")
    assert fake.texts("anna") == ["here all the same"]
    assert fake.subscribes == 2


async def test_846605_after_a_reconnect_becomes_a_message_of_its_own(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    await fake.drop()
    await fake.until(lambda: channel.health().ok and fake.subscribes == 2 and fake.connected)
    await show(channel, ref, "the answer")
    assert [(s.kind, s.text) for s in fake.chats["anna"]] == [("markdown", "the answer")]


async def test_a_stream_cut_by_a_reconnect_goes_on_in_a_new_message(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    message_id = await grow(channel, bridge, ref, "line one\nline t")
    await fake.drop()
    await fake.until(lambda: channel.health().ok and fake.subscribes == 2 and fake.connected)
    (chunk,) = channel.render(Outbound("line one\nline two\nline three"))
    with pytest.raises(Lost):
        await channel.edit(ref, 0, message_id, chunk, final=True)
    await channel.post(ref, 0, chunk, final=True)
    assert fake.texts("anna") == ["line one\nline t", "line two\nline three"]


async def test_a_last_packet_lost_with_its_connection_is_not_taken_for_shown(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    message_id = await grow(channel, bridge, ref, "one\ntwo\n")
    (chunk,) = channel.render(Outbound("one\ntwo\nthree"))
    fake.deaf.add("aibot_respond_msg")
    with pytest.raises(NotSent):
        await channel.edit(ref, 0, message_id, chunk, final=True)
    fake.deaf.clear()
    await fake.drop()
    await fake.until(lambda: channel.health().ok and fake.subscribes == 2 and fake.connected)
    with pytest.raises(Lost):
        await channel.edit(ref, 0, message_id, chunk, final=True)
    await channel.post(ref, 0, chunk, final=True)
    assert fake.texts("anna") == ["one\ntwo\n", "three"]


async def test_only_one_gateway_connects_and_the_next_takes_over(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    first = await bridge.connected()
    second = await bridge.open()
    await until(lambda: "another gateway" in second.health().reason)
    assert second.health().ok
    with pytest.raises(NotSent):
        async with asyncio.timeout(5):
            await show(second, ReplyRef("r", Address("bot", "anna")), "x")
    await first.stop()
    await fake.until(lambda: fake.subscribes == 2 and fake.connected)
    assert fake.called("aibot_send_msg") == []
    ref = await bridge.hear()
    await show(second, ref, "from the second")
    assert fake.texts("anna") == ["from the second"]


async def test_the_lease_of_a_dead_process_is_taken_over_at_once(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    import subprocess

    gone = subprocess.Popen(["true"])
    gone.wait()
    holder = f"{place()}:{gone.pid}:other:1"
    await bridge.state.claim("connection", holder, 600)
    await bridge.state.put("holder", holder)
    await bridge.connected()


async def test_settings_that_cannot_work_are_named(bridge: Bridge) -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"secret": ""}, "channels.bot.secret"),
        ({"bot_id": " "}, "channels.bot.bot_id"),
        ({"ws_url": "http://x"}, "channels.bot.ws_url"),
        ({"mode": "webhook"}, "channels.bot.token"),
        ({"mode": "webhook", "token": "t", "aes_key": "short"}, "channels.bot.aes_key"),
    )
    for settings, named in cases:
        with pytest.raises(ChannelError, match=named):
            await bridge.open(**settings)


async def test_stopping_leaves_no_task_and_stores_what_had_arrived(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    before = asyncio.all_tasks()
    channel = await bridge.connected()
    for number in range(5):
        await fake.say("anna", f"m{number}")
    await until(lambda: bridge.got)
    await channel.stop()
    await until(lambda: asyncio.all_tasks() - before <= {asyncio.current_task()} or not fake._sockets)
    names = {task.get_name() for task in asyncio.all_tasks() - before}
    assert not {name for name in names if name.startswith("wecom_bot")}
    assert [inbound.text for inbound in bridge.got] == [f"m{n}" for n in range(len(bridge.got))]


# -- N17: each reply to its own message ----------------------------------------------------------------


async def test_n17_two_people_in_one_group_each_get_the_reply_to_their_own_message(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    channel = await bridge.connected()
    anna = await bridge.hear("anna", "@Bot first", group="g1")
    ben = await bridge.hear("ben", "@Bot second", group="g1")
    first = await grow(channel, bridge, anna, "to an")
    await show(channel, ben, "to ben")
    (chunk,) = channel.render(Outbound("to anna"))
    await channel.edit(anna, 0, first, chunk, final=True)
    assert {(s.text, s.answers) for s in fake.chats["g1"]} == {("to anna", anna.to), ("to ben", ben.to)}


# -- limits of a stream --------------------------------------------------------------------------------


async def test_a_long_answer_comes_in_several_streams_each_within_the_limit(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    text = "".join(f"第 {number} 段：这里有一些文字。\n\n" for number in range(1200))
    assert len(text.encode()) > 40_000
    await show(channel, ref, text)
    shown = fake.chats["anna"]
    assert len(shown) == 3
    assert "".join(s.text for s in shown) == text
    assert all(s.finished for s in shown)


async def test_a_stream_is_handed_over_before_its_end_and_the_text_is_read_once(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    message_id = await grow(channel, bridge, ref, "line one\nline two\nline th")
    bridge.later += 301
    (chunk,) = channel.render(Outbound("line one\nline two\nline three\nline f"))
    with pytest.raises(Lost):
        await channel.edit(ref, 0, message_id, chunk, final=False)
    assert await channel.post(ref, 0, chunk, final=False) == ""  # the rest is shown when it is whole
    (shown,) = fake.chats["anna"]
    note = TEXTS["wecom_bot.continued"][0]
    assert (shown.text, shown.finished) == (f"line one\nline two\n\n{note}", True)
    bridge.later += 1000
    (chunk,) = channel.render(Outbound("line one\nline two\nline three\nline four"))
    await channel.post(ref, 0, chunk, final=True)
    assert fake.texts("anna")[1:] == ["line three\nline four"]


async def test_a_silent_run_still_closes_its_stream_in_time(fake: FakeWecomSocket, bridge: Bridge) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    await channel.typing(ref)
    assert fake.texts("anna") == [TEXTS["wecom_bot.thinking"][0]]
    bridge.later += 200
    await channel.typing(ref)
    assert not fake.chats["anna"][0].finished
    bridge.later += 101
    await channel.typing(ref)
    assert [(s.text, s.finished) for s in fake.chats["anna"]] == [(TEXTS["wecom_bot.later"][0], True)]
    bridge.later += 1000
    await show(channel, ref, "done at last")
    assert fake.texts("anna")[1:] == ["done at last"]


async def test_a_stream_that_the_platform_ended_early_goes_on_in_a_new_message(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    message_id = await grow(channel, bridge, ref, "one\ntwo\n")
    fake.stream_life = 1
    bridge.later += 60
    (chunk,) = channel.render(Outbound("one\ntwo\nthree"))
    with pytest.raises(Lost):
        await channel.edit(ref, 0, message_id, chunk, final=True)
    await channel.post(ref, 0, chunk, final=True)
    assert fake.texts("anna") == ["one\ntwo\n", "three"]


async def test_after_a_restart_the_same_stream_is_finished(fake: FakeWecomSocket, bridge: Bridge) -> None:
    fake.stale_after_reconnect = False
    channel = await bridge.connected()
    ref = await bridge.hear()
    message_id = await grow(channel, bridge, ref, "half an an")
    await channel.stop()
    channel = await bridge.connected()
    (chunk,) = channel.render(Outbound("half an answer, and the rest"))
    await channel.edit(ref, 0, message_id, chunk, final=True)
    assert [(s.text, s.finished) for s in fake.chats["anna"]] == [("half an answer, and the rest", True)]
    # The process dies before the bridge has noted the end; the next one shows nothing twice.
    await channel.stop()
    channel = await bridge.connected()
    await channel.edit(ref, 0, message_id, chunk, final=True)
    await channel.post(ref, 0, chunk, final=True)
    assert len(fake.chats["anna"]) == 1


async def test_a_reply_whose_message_is_forgotten_goes_as_a_message_of_its_own(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear("anna", "@Bot x", group="g1")
    bridge.later += 25 * 3600
    await show(channel, ref, "a day later")
    await show(channel, ReplyRef("r2", ref.address, "never seen"), "unknown")
    assert [(s.kind, s.text) for s in fake.chats["g1"]] == [
        ("markdown", "a day later"),
        ("markdown", "unknown"),
    ]
    assert {f["body"]["chat_type"] for f in fake.called("aibot_send_msg")} == {2}


async def test_the_end_of_a_reply_closes_its_stream(fake: FakeWecomSocket, bridge: Bridge) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    await channel.typing(ref)
    await channel.end(ref)
    await channel.end(ref)
    assert [(s.text, s.finished) for s in fake.chats["anna"]] == [(TEXTS["wecom_bot.noted"][0], True)]
    await show(channel, replace(ref, id="another"), "a second reply to the same message")
    assert fake.chats["anna"][1].answers == ref.to


# -- refusals ----------------------------------------------------------------------------------------


async def test_the_thirty_a_minute_are_kept_by_us_and_obeyed_when_refused(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    ref = ReplyRef("r", ref.address)
    sent = 0

    async def flood() -> None:
        nonlocal sent
        for sent in range(40):
            await show(channel, ref, f"m{sent}")

    with pytest.raises(Flooded) as own:
        await flood()
    assert 20 <= sent <= 30
    assert 0 < own.value.retry_after <= 60
    assert len(fake.chats["anna"]) == sent
    bridge.later += 61
    fake.rate = 0  # others write with this bot, too
    with pytest.raises(Flooded):
        await show(channel, ref, "refused")
    fake.rate = 30
    with pytest.raises(Flooded):
        await show(channel, ref, "held back")
    assert len(fake.called("aibot_send_msg")) == sent + 1
    bridge.later += 16
    await show(channel, ref, "taken")
    assert fake.texts("anna")[-1] == "taken"


async def test_growing_text_is_paced_and_its_end_is_not(fake: FakeWecomSocket, bridge: Bridge) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    message_id = await grow(channel, bridge, ref, "a")
    (chunk,) = channel.render(Outbound("a b"))
    with pytest.raises(Flooded) as caught:
        await channel.edit(ref, 0, message_id, chunk, final=False)
    assert 0 < caught.value.retry_after <= 5
    await channel.edit(ref, 0, message_id, chunk, final=True)
    assert fake.texts("anna") == ["a b"]


async def test_a_conflict_is_tried_again(fake: FakeWecomSocket, bridge: Bridge) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    fake.fail += [("aibot_respond_msg", 6000)] * 2
    await show(channel, ref, "through")
    assert fake.texts("anna") == ["through"]


async def test_what_other_codes_mean_for_the_reply(fake: FakeWecomSocket, bridge: Bridge) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    nowhere = ReplyRef("r", Address("bot", "nobody"))
    with pytest.raises(Gone):
        await show(channel, nowhere, "x")
    fake.fail.append(("aibot_respond_msg", -1))
    with pytest.raises(NotSent):
        await show(channel, ref, "x")
    fake.fail += [("aibot_respond_msg", 40058), ("aibot_send_msg", 40058)]
    with pytest.raises(Rejected):
        await show(channel, ref, "x")


async def test_wx_10_a_packet_without_an_answer_is_repeated_and_a_message_is_not(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    fake.mute = {"aibot_respond_msg", "aibot_send_msg"}
    with pytest.raises(NotSent):  # the same stream again: nobody sees it twice
        await show(channel, ref, "the answer")
    with pytest.raises(Unknown):
        await show(channel, ReplyRef("r2", ref.address), "a message")
    fake.mute.clear()
    await show(channel, ref, "the answer")  # it had arrived: the stream takes no more, and none is needed
    assert fake.texts("anna") == ["the answer", "a message"]


# -- questions -----------------------------------------------------------------------------------------

YES_NO = [Choice("run:1:yes", "Allow", "primary"), Choice("run:1:no", "Deny", "danger")]


async def test_a_question_is_a_card_and_its_outcome_replaces_the_buttons(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear("anna", "@Bot x", group="g1")
    task = await channel.ask(ref, "Run **rm -rf**?", YES_NO)
    (card,) = fake.chats["g1"]
    assert [b["text"] for b in card.card["button_list"]] == ["Allow", "Deny"]
    assert card.card["sub_title_text"] == "Run rm -rf?"

    async def settle(press: Press) -> str:
        await channel.settle(ref, press.message_id, "Allowed by anna")
        return ""

    object.__setattr__(channel.env, "press", settle)
    await fake.press("g1", "anna", task, "run:1:yes")
    await fake.until(lambda: "Allowed by anna" in card.card["sub_title_text"])
    (button,) = card.card["button_list"]
    assert (button["text"], button["style"]) == ("✓ Allow", 4)
    assert len(fake.chats["g1"]) == 1


async def test_a_press_names_who_pressed_what_where(fake: FakeWecomSocket, bridge: Bridge) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear("anna", "@Bot x", group="g1")
    task = await channel.ask(ref, "Go on?", YES_NO)
    bridge.say_to_press = "Only admins may decide this."
    await fake.press("g1", "ben", task, "run:1:no")
    (card,) = fake.chats["g1"]
    await fake.until(lambda: card.seen_by)
    (press,) = bridge.presses
    assert (press.address.chat, press.address.kind) == ("g1", "group")
    assert (press.sender.id, press.choice, press.message_id) == ("ben", "run:1:no", task)
    # Only ben sees the refusal, and the question stays open for the others.
    assert set(card.seen_by) == {"ben"}
    assert "Only admins" in card.seen_by["ben"]["sub_title_text"]
    assert len(card.card["button_list"]) == 2


async def test_a_press_that_decides_later_shows_what_was_pressed(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    task = await channel.ask(ref, "Go on?", YES_NO)
    await fake.press("anna", "anna", task, "run:1:yes")
    (card,) = fake.chats["anna"]
    await fake.until(lambda: len(card.card["button_list"]) == 1)
    assert card.card["sub_title_text"].startswith("Received: Allow")
    await channel.settle(ref, task, "Allowed by anna")
    assert len(fake.chats["anna"]) == 1  # the card has said it already


async def test_a_question_decided_without_a_press_is_said(fake: FakeWecomSocket, bridge: Bridge) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    task = await channel.ask(ref, "Go on?", YES_NO)
    await channel.settle(ref, task, "Nobody answered: denied.")
    await channel.settle(ref, task, "Nobody answered: denied.")
    assert [s.text for s in fake.chats["anna"] if s.kind == "markdown"] == ["Nobody answered: denied."]


async def test_a_button_pressed_after_a_restart_still_counts(fake: FakeWecomSocket, bridge: Bridge) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    task = await channel.ask(ref, "Go on?", YES_NO)
    await channel.stop()
    await bridge.connected()
    await fake.press("anna", "anna", task, "run:1:yes")
    await fake.until(lambda: len(fake.chats["anna"][0].card["button_list"]) == 1)
    assert [press.choice for press in bridge.presses] == ["run:1:yes"]


async def test_a_long_question_is_written_out_before_its_card(fake: FakeWecomSocket, bridge: Bridge) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    question = "May I run this?\n\n```\n" + "echo hello\n" * 40 + "```"
    await channel.ask(ref, question, YES_NO)
    words, card = fake.chats["anna"]
    assert words.text == question
    assert len(card.card["sub_title_text"]) <= 112


async def test_more_choices_than_buttons_are_put_in_words(fake: FakeWecomSocket, bridge: Bridge) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    await channel.ask(ref, "Which?", [Choice(str(n), f"city {n}") for n in range(9)])
    assert fake.texts("anna")[0].count("- city") == 9


# -- files -------------------------------------------------------------------------------------------


async def test_files_are_uploaded_in_parts_and_shown_by_kind(
    fake: FakeWecomSocket, bridge: Bridge, tmp_path: Path
) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    big = bytes(range(256)) * 5000  # 1.2 MB: three parts
    contents = {"a.png": PNG, "b.pdf": big, "c.mp4": PNG, "d.amr": PNG}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    mimes = {"a.png": "image/png", "b.pdf": "application/pdf", "c.mp4": "video/mp4", "d.amr": "audio/amr"}
    files = [OutFile(str(tmp_path / n), n, mimes[n], "a caption" if n == "a.png" else "") for n in contents]
    await show(channel, ref, "See:", *files)
    shown = fake.chats["anna"]
    assert [s.kind for s in shown] == ["stream", "image", "stream", "file", "video", "voice"]
    assert shown[2].text == "a caption"
    assert [s.pictures[0] for s in shown if s.pictures] == list(contents.values())
    assert len(fake.called("aibot_upload_media_chunk")) == 6


async def test_a_file_that_wecom_does_not_take_is_named(
    fake: FakeWecomSocket, bridge: Bridge, tmp_path: Path
) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    (tmp_path / "tiny").write_bytes(b"abc")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(21 * 2**20)
    for name in ("tiny", "huge"):
        await show(channel, ref, "", OutFile(str(tmp_path / name), name))
    assert len(fake.texts("anna")) == 2
    assert "huge" in fake.texts("anna")[1]
    with pytest.raises(Rejected, match="cannot be read"):
        await show(channel, ref, "", OutFile(str(tmp_path / "none"), "none"))


async def test_an_upload_without_an_answer_is_repeated(
    fake: FakeWecomSocket, bridge: Bridge, tmp_path: Path
) -> None:
    channel = await bridge.connected()
    ref = await bridge.hear()
    (tmp_path / "a.txt").write_bytes(b"content")
    fake.mute.add("aibot_upload_media_finish")
    with pytest.raises(NotSent):
        await show(channel, ref, "", OutFile(str(tmp_path / "a.txt"), "a.txt"))


async def test_attachments_are_fetched_and_decrypted(
    fake: FakeWecomSocket, bridge: Bridge, tmp_path: Path
) -> None:
    channel = await bridge.connected()
    for size in (0, 1, 31, 32, 300_000, 256 * 1024 - 7):
        data = bytes(range(256)) * (size // 256 + 1)
        await fake.say("anna", msgtype="file", file=fake.file(data[:size]))
        await fake.until(lambda: bridge.got)
        (attachment,) = bridge.got.pop().attachments
        await channel.fetch(attachment, tmp_path / "in", 400_000)
        assert (tmp_path / "in").read_bytes() == data[:size]
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


async def test_a_file_that_cannot_be_had_says_why(
    fake: FakeWecomSocket, bridge: Bridge, tmp_path: Path
) -> None:
    channel = await bridge.connected()
    part = fake.file(b"x" * 5000)
    other = fake.file(b"y" * 5000)
    await fake.say("anna", msgtype="file", file=part)
    await fake.say("anna", msgtype="file", file={**part, "aeskey": other["aeskey"]})
    await fake.until(lambda: len(bridge.got) == 2)
    good, bad = (inbound.attachments[0] for inbound in bridge.got)
    with pytest.raises(TooLarge):
        await channel.fetch(good, tmp_path / "in", 1000)
    with pytest.raises(Rejected, match="decrypted"):
        await channel.fetch(bad, tmp_path / "in", 10_000)
    fake.files.clear()
    with pytest.raises(Rejected, match="5 minutes"):
        await channel.fetch(good, tmp_path / "in", 10_000)
    assert list(tmp_path.iterdir()) == []


# -- secrets, check ------------------------------------------------------------------------------------


async def test_sc_05_secrets_and_texts_are_in_no_log_and_no_error(
    fake: FakeWecomSocket, bridge: Bridge, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    fake.secret = "other"
    channel = await bridge.open(secret="CANARY-SECRET")
    await until(lambda: "refused" in channel.health().reason)
    fake.secret = "CANARY-SECRET"
    await fake.until(lambda: channel.health().ok and fake.connected)
    ref = await bridge.hear(text="CANARY-TEXT")
    await fake.say("anna", msgtype="file", file={"url": "http://127.0.0.1:9/CANARY-LINK", "aeskey": "k"})
    await fake.until(lambda: len(bridge.got) == 2)
    with pytest.raises(NotSent) as caught:
        await channel.fetch(bridge.got[1].attachments[0], tmp_path / "x", 100)
    fake.fail += [("aibot_respond_msg", 40058), ("aibot_send_msg", 40058)]
    with pytest.raises(Rejected) as refused:
        await show(channel, ref, "CANARY-ANSWER")
    told = [caplog.text, repr(channel.config), str(channel.health()), repr(caught.value), repr(refused.value)]
    assert all("CANARY" not in text for text in told)


async def test_check_tries_the_secret_only_while_nobody_is_connected(
    fake: FakeWecomSocket, bridge: Bridge
) -> None:
    channel = await bridge.connected()
    (finding,) = await channel.check("en")
    assert finding.level == "ok"
    assert "holds the bot's one connection" in finding.what
    assert fake.subscribes == 1
    assert fake.connected
    await channel.stop()
    (finding,) = await channel.check("zh")
    assert (finding.level, finding.what) == ("ok", TEXTS["wecom_bot.check.subscribed"][1])
    fake.secret = "rolled"
    (finding,) = await channel.check("en")
    assert finding.level == "error"
    assert "600041" in finding.what
    assert finding.cure
    bridge.fake.url = "ws://127.0.0.1:9/ws"
    env = channel.env
    config = WecomBotConfig.model_validate({"bot_id": "b", "secret": "s", "ws_url": "ws://127.0.0.1:9"})
    (finding,) = await WecomBotChannel("bot", config, env).check("en")
    assert "cannot be reached" in finding.what
    missing = await WecomBotChannel("bot", WecomBotConfig(), env).check("en")
    assert [finding.level for finding in missing] == ["error", "error"]
