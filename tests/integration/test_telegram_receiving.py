"""What the Telegram channel receives by polling, against the fake Bot API."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from channels.base import (
    Address,
    Attachment,
    ChannelError,
    ChatKind,
    Inbound,
    NotSent,
    Outbound,
    OutFile,
    Press,
    Rejected,
    ReplyRef,
    TooLarge,
)
from channels.telegram.channel import TelegramChannel
from tests.fakes.channel_env import MemoryState
from tests.fakes.telegram import CONFLICT, FakeTelegram
from tests.integration.telegram_support import Bridge, shorten_pauses


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram() as server:
        yield server


@pytest.fixture
async def bridge(tmp_path: Path, fake: FakeTelegram) -> AsyncIterator[Bridge]:
    bridge = Bridge(tmp_path)
    yield bridge
    await bridge.close()


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)


def ref(chat: int = 5) -> ReplyRef:
    kind: ChatKind = "direct" if chat > 0 else "group"
    return ReplyRef("r1", Address("tg", str(chat), kind))


async def show(channel: TelegramChannel, to: ReplyRef, text: str, *files: OutFile) -> list[str]:
    chunks = channel.render(Outbound(text, files))
    return [await channel.post(to, n, chunk, final=True) for n, chunk in enumerate(chunks)]


# -- receiving ---------------------------------------------------------------------------------------


async def test_an_update_is_confirmed_only_after_it_was_stored(
    fake: FakeTelegram, bridge: Bridge, fast: None
) -> None:
    for text in ("one", "two", "three"):
        fake.say(5, text)
    times = 0

    def refuse(inbound: Inbound) -> bool:
        nonlocal times
        times += inbound.text == "two"
        return inbound.text == "two" and times <= 3

    bridge.refuse = refuse
    channel = await bridge.open(fake.url)
    await fake.wait_for(lambda: times >= 2)
    assert "stored" in channel.health().reason
    await fake.wait_for(lambda: len(bridge.got) == 3)
    assert bridge.texts == ["one", "two", "three"]  # in order, each once
    await fake.wait_for(lambda: channel.health().ok)


async def test_a_message_that_cannot_be_stored_holds_back_its_chat_only(
    fake: FakeTelegram, bridge: Bridge, fast: None, caplog: pytest.LogCaptureFixture
) -> None:
    bridge.refuse = lambda inbound: inbound.text == "poison"
    for chat, text in ((5, "poison"), (5, "behind it"), (6, "one"), (6, "two")):
        fake.say(chat, text)
    await bridge.open(fake.url)
    await fake.wait_for(lambda: bridge.texts == ["one", "two"])
    # Others keep being taken, so the fault is the message's own: in the end it is skipped, and said so.
    for n in range(10):
        fake.say(7, str(n))
        await fake.wait_for(lambda: len(bridge.got) >= 3 + n)  # noqa: B023 - called within this pass
    await fake.wait_for(lambda: len(bridge.got) == 13)
    assert len(set(bridge.texts)) == 13
    assert "behind it" in bridge.texts
    assert "skipped" in caplog.text


async def test_a_full_store_loses_nothing_however_long_it_lasts(
    fake: FakeTelegram, bridge: Bridge, fast: None
) -> None:
    full = True
    bridge.refuse = lambda inbound: full
    fake.say(5, "one")
    fake.say(6, "two")
    await bridge.open(fake.url)
    await fake.wait_for(lambda: len(fake.called("getUpdates")) > 7)
    full = False
    await fake.wait_for(lambda: bridge.texts == ["one", "two"])


async def test_after_a_restart_polling_goes_on_where_it_was(fake: FakeTelegram, bridge: Bridge) -> None:
    channel = await bridge.open(fake.url)
    fake.say(5, "one")
    await fake.wait_for(lambda: "offset" in bridge.state.values)
    await channel.stop()
    fake.say(5, "two")
    before = len(fake.calls)
    await bridge.open(fake.url)
    await fake.wait_for(lambda: len(bridge.got) == 2)
    assert bridge.texts == ["one", "two"]
    assert fake.calls[before:][1].params["offset"] == "1001"


async def test_an_old_offset_is_forgotten_since_ids_start_anew_after_a_week(
    fake: FakeTelegram, bridge: Bridge
) -> None:
    await bridge.state.put("offset", {"next": 10**9, "at": time.time() - 7 * 86400})
    fake.say(5, "hello again")
    await bridge.open(fake.url)
    await fake.wait_for(lambda: bridge.texts == ["hello again"])


async def test_one_odd_update_does_not_stop_those_behind_it(fake: FakeTelegram, bridge: Bridge) -> None:
    fake.push({"message": {"message_id": 1, "chat": {}, "from": None}})
    fake.push({"message": {"message_id": 2}})
    fake.push({"something_new": {}, "message": None})
    fake.say(5, "fine")
    await bridge.open(fake.url)
    await fake.wait_for(lambda: bridge.texts == ["fine"])


async def test_start_does_not_wait_for_a_server_that_cannot_be_reached(
    bridge: Bridge, fake: FakeTelegram, fast: None
) -> None:
    port = int(fake.url.rpartition(":")[2])
    await fake.stop()
    began = time.monotonic()
    channel = await bridge.open(fake.url)
    assert time.monotonic() - began < 5
    await fake.wait_for(lambda: "cannot be reached" in channel.health().reason)
    assert "network" in channel.health().cure
    fake.say(5, "waiting")
    await fake.start(port)
    await fake.wait_for(lambda: bridge.texts == ["waiting"])
    await fake.wait_for(lambda: channel.health().ok)


async def test_tg_11_after_three_conflicts_polling_goes_on_by_itself(
    fake: FakeTelegram, bridge: Bridge, fast: None
) -> None:
    fake.fail("getUpdates", 409, CONFLICT, times=3)
    fake.say(5, "still here")
    channel = await bridge.open(fake.url)
    await fake.wait_for(lambda: bridge.texts == ["still here"])
    await fake.wait_for(lambda: channel.health().ok)
    assert [call.status for call in fake.called("getUpdates")[:4]] == [409, 409, 409, 200]
    assert bridge.texts == ["still here"]


async def test_tg_11_a_conflict_for_ever_makes_the_channel_unhealthy_and_says_why(
    fake: FakeTelegram, bridge: Bridge, fast: None
) -> None:
    fake.fail("getUpdates", 409, CONFLICT, times=10**6)
    channel = await bridge.open(fake.url)
    await fake.wait_for(lambda: "another program" in channel.health().reason)
    assert not channel.health().ok
    assert "stop the other program" in channel.health().cure
    fake.chat(5)
    await show(channel, ref(), "sending works all the while")
    assert not channel.health().ok  # a send does not clear it, only a poll that succeeded


async def test_a_webhook_of_somebody_else_is_left_alone_and_reported_with_its_cure(
    fake: FakeTelegram, bridge: Bridge, fast: None
) -> None:
    fake.webhook = "https://example.org/other"
    fake.say(5, "waiting")
    channel = await bridge.open(fake.url)
    await fake.wait_for(lambda: "webhook" in channel.health().reason)
    assert "deleteWebhook" in channel.health().cure
    assert fake.webhook == "https://example.org/other"
    fake.webhook = ""  # a person removes it
    await fake.wait_for(lambda: bridge.texts == ["waiting"])


async def test_a_webhook_that_the_bridge_set_itself_is_removed_and_waiting_updates_are_kept(
    fake: FakeTelegram, bridge: Bridge, fast: None
) -> None:
    fake.webhook = "https://example.org/channels/tg/webhook"
    await bridge.state.put("webhook", fake.webhook)
    fake.say(5, "waiting")
    await bridge.open(fake.url)
    await fake.wait_for(lambda: bridge.texts == ["waiting"])
    assert fake.webhook == ""


async def test_a_rejected_token_is_told_with_its_cure_and_mended_without_restart(
    fake: FakeTelegram, bridge: Bridge, fast: None
) -> None:
    fake.fail("getMe", 401, times=3)
    channel = await bridge.open(fake.url)
    await fake.wait_for(lambda: "does not know this bot token" in channel.health().reason)
    assert "@BotFather" in channel.health().cure
    fake.say(5, "hello")
    await fake.wait_for(lambda: bridge.texts == ["hello"])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"token": "nonsense"}, "channels.tg.token"),
        ({"mode": "webhook"}, "channels.tg.webhook_secret"),
        ({"mode": "webhook", "webhook_secret": "not good!"}, "channels.tg.webhook_secret"),
        ({"base_url": "localhost:1"}, "channels.tg.base_url"),
        ({"proxy": "localhost:1080"}, "channels.tg.proxy"),
        ({"proxy": "http://"}, "channels.tg.proxy"),
        ({"proxy": "http://user:pass@host:port"}, "channels.tg.proxy"),
    ],
)
async def test_settings_that_cannot_work_are_named(
    bridge: Bridge, settings: dict[str, Any], words: str
) -> None:
    channel = bridge.make("https://example.org", **settings)
    with pytest.raises(ChannelError, match=words):
        await channel.start(bridge.receive)
    await channel.stop()


# -- attachments -------------------------------------------------------------------------------------


async def test_an_attachment_is_fetched(fake: FakeTelegram, bridge: Bridge, tmp_path: Path) -> None:
    channel = await bridge.open(fake.url)
    file_id = fake.file(b"content" * 1000, "a.txt")
    fake.say(5, "look", document={"file_id": file_id, "file_unique_id": "u", "file_name": "a.txt"})
    await fake.wait_for(lambda: bridge.got)
    (attachment,) = bridge.got[0].attachments
    target = tmp_path / "in.txt"
    await channel.fetch(attachment, target, 10_000)
    assert target.read_bytes() == b"content" * 1000
    with pytest.raises(TooLarge):
        await channel.fetch(attachment, tmp_path / "no.txt", 6_999)
    fake.cut("download")
    with pytest.raises(NotSent):
        await channel.fetch(attachment, tmp_path / "no.txt", 10_000)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["in.txt"]


async def test_a_file_beyond_20_mb_is_too_large(fake: FakeTelegram, bridge: Bridge, tmp_path: Path) -> None:
    channel = await bridge.open(fake.url)
    file_id = fake.file(b"0" * (20 * 2**20 + 1), "big.bin")
    fake.say(5, "", document={"file_id": file_id, "file_unique_id": "u"})
    await fake.wait_for(lambda: bridge.got)
    with pytest.raises(TooLarge, match="20 MB"):
        await channel.fetch(bridge.got[0].attachments[0], tmp_path / "x", 10**9)


# -- secrets, stopping ---------------------------------------------------------------------------------


async def test_sc_05_the_token_is_in_no_log_and_no_error(
    bridge: Bridge, fake: FakeTelegram, fast: None, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    token = "123:CANARY"
    caplog.set_level(logging.DEBUG)
    file_id = fake.file(b"data", "a.txt")
    errors: list[str] = []
    channel = await bridge.open(fake.url, token)  # the server does not know it
    await fake.wait_for(lambda: not channel.health().ok and "token" in channel.health().reason)
    errors.append(str(channel.health()))
    fake.token = token
    fake.say(5, "hello", document={"file_id": file_id, "file_unique_id": "u"})
    await fake.wait_for(lambda: bridge.got)
    await channel.fetch(bridge.got[0].attachments[0], tmp_path / "a", 100)
    await show(channel, ref(), "fine")
    fake.fail("sendMessage", 400, f"Bad Request: bad url http://x/bot{token}/sendMessage")
    with pytest.raises(Rejected) as refused:
        await show(channel, ref(), "x")
    await fake.stop()
    with pytest.raises(NotSent) as unreached:
        await show(channel, ref(), "x")
    errors += [repr(error.value) + str(error.value.__cause__) for error in (refused, unreached)]
    errors += [repr(channel.config), repr(bridge.got)]
    assert "CANARY" not in caplog.text
    assert all("CANARY" not in text for text in errors)


async def test_pausing_stops_receiving_while_replies_still_go_out(fake: FakeTelegram, bridge: Bridge) -> None:
    channel = await bridge.open(fake.url)
    await fake.wait_for(lambda: channel.health().ok)
    await channel.pause()
    fake.say(5, "later")
    await show(channel, ref(), "still writing")
    assert fake.chats[5].texts == ["still writing"]
    assert bridge.got == []
    before = asyncio.all_tasks()
    await channel.stop()
    assert asyncio.all_tasks() <= before


# -- lanes -------------------------------------------------------------------------------------------------


async def test_a_chat_that_is_slow_to_be_stored_holds_no_other_back_and_is_not_confirmed(
    fake: FakeTelegram, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.telegram.polling._MOST_PATIENCE", 0.05)
    go, take = asyncio.Event(), bridge.receive

    async def receive(inbound: Inbound) -> None:
        if inbound.text == "slow":
            await go.wait()
        await take(inbound)

    bridge.receive = receive  # type: ignore[method-assign]
    for chat, text in ((6, "before"), (5, "slow"), (5, "behind it")):
        fake.say(chat, text)
    channel = await bridge.open(fake.url)
    for n in range(5):
        fake.say(6, str(n))
        await fake.wait_for(lambda: len(bridge.got) == 2 + n)  # noqa: B023 - called within this pass
    assert channel.health().ok
    assert {u["message"]["text"] for u in fake.updates} >= {"slow", "behind it"}
    stored = await bridge.state.get("offset")
    assert isinstance(stored, dict)
    assert stored["next"] == 1001  # "slow" has this id
    go.set()
    await fake.wait_for(lambda: len(bridge.got) == 8)
    assert bridge.texts[-2:] == ["slow", "behind it"]
    await fake.wait_for(lambda: not fake.updates)
    assert len({(i.address.chat, i.id) for i in bridge.got}) == 8  # none twice


async def test_b4_a_crash_before_storing_brings_the_update_once_more(
    fake: FakeTelegram, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.telegram.polling._LAST_MOMENT", 0.05)
    arrived, take = asyncio.Event(), bridge.receive

    async def never(_: Inbound) -> None:
        arrived.set()
        await asyncio.Event().wait()

    bridge.receive = never  # type: ignore[method-assign,assignment]
    channel = await bridge.open(fake.url)
    fake.say(5, "precious")
    await asyncio.wait_for(arrived.wait(), 5)
    await channel.stop()
    bridge.receive = take  # type: ignore[method-assign]
    await bridge.open(fake.url)
    await fake.wait_for(lambda: bridge.texts == ["precious"])


async def test_many_chats_are_taken_side_by_side_and_each_in_order(
    fake: FakeTelegram, bridge: Bridge
) -> None:
    busy = most = 0
    take = bridge.receive

    async def receive(inbound: Inbound) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0)
        await take(inbound)
        busy -= 1

    bridge.receive = receive  # type: ignore[method-assign]
    for n in range(4):
        for chat in range(1, 26):
            fake.say(chat, str(n))
    await bridge.open(fake.url)
    await fake.wait_for(lambda: len(bridge.got) == 100)
    assert most == 25
    for chat in range(1, 26):
        assert [i.text for i in bridge.got if i.address.chat == str(chat)] == ["0", "1", "2", "3"]


async def test_a_message_that_is_never_stored_in_time_counts_as_failed(
    fake: FakeTelegram, bridge: Bridge, fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.telegram.polling.HANDLE_DEADLINE", 0.1)
    stuck = True
    take = bridge.receive

    async def receive(inbound: Inbound) -> None:
        if stuck:
            await asyncio.Event().wait()
        await take(inbound)

    bridge.receive = receive  # type: ignore[method-assign]
    fake.say(5, "hello")
    channel = await bridge.open(fake.url)
    await fake.wait_for(lambda: not channel.health().ok and "TimeoutError" in channel.health().reason)
    stuck = False
    await fake.wait_for(lambda: bridge.texts == ["hello"])


# -- watching over it ----------------------------------------------------------------------------------


async def test_a_poll_that_hangs_makes_the_channel_unhealthy(
    fake: FakeTelegram, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = await bridge.open(fake.url)
    await fake.wait_for(lambda: channel.health().ok)
    monkeypatch.setattr("channels.telegram.condition.WATCHDOG", 0.2)
    await fake.wait_for(lambda: not channel.health().ok)  # the long poll is still open
    assert "no poll has succeeded" in channel.health().reason
    fake.say(5, "there")
    await fake.wait_for(lambda: channel.health().ok)


async def test_tg_11_polls_that_succeed_between_conflicts_do_not_hide_the_rival(
    fake: FakeTelegram, bridge: Bridge, fast: None
) -> None:
    channel = await bridge.open(fake.url)
    await fake.wait_for(lambda: channel.health().ok)
    async with httpx.AsyncClient() as rival:
        for n in range(8):  # each of its polls ends ours
            await rival.get(f"{fake.url}/bot{fake.token}/getUpdates", params={"timeout": 0})
            fake.say(5, str(n))
            await fake.wait_for(lambda: len(bridge.got) == n + 1)  # noqa: B023 - called within this pass
    assert not channel.health().ok
    assert "another program polls" in channel.health().reason
    await fake.wait_for(lambda: channel.health().ok)  # left in peace, it is well again
    assert bridge.texts == [str(n) for n in range(8)]


# -- several gateways, several bots ----------------------------------------------------------------------


async def test_of_several_gateways_one_polls_and_another_takes_over(
    fake: FakeTelegram, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.telegram.lease.SECONDS", 0.6)
    one = await bridge.open(fake.url, gateway="one")
    await fake.wait_for(lambda: one.health().ok)
    two = await bridge.open(fake.url, gateway="two")
    await fake.wait_for(lambda: "another gateway" in two.health().reason)
    assert two.health().ok
    fake.say(5, "first")
    await fake.wait_for(lambda: bridge.texts == ["first"])
    await one.stop()
    fake.say(5, "second")
    await fake.wait_for(lambda: bridge.texts == ["first", "second"])
    assert two.health().reason == ""
    assert [c.status for c in fake.called("getUpdates") if c.status not in (0, 200)] == []  # no 409 ever


async def test_a_gateway_that_lost_its_lease_stops_polling(
    fake: FakeTelegram, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.telegram.lease.SECONDS", 0.3)
    channel = await bridge.open(fake.url)
    await fake.wait_for(lambda: channel.health().ok)
    bridge.state.leases["poll"] = ("somebody else", time.time() + 60)
    await fake.wait_for(lambda: "another gateway" in channel.health().reason)
    polls = len(fake.called("getUpdates"))
    fake.say(5, "not for us")
    await fake.wait_for(lambda: channel.health().ok)
    assert (len(fake.called("getUpdates")), bridge.got) == (polls, [])
    del bridge.state.leases["poll"]
    await fake.wait_for(lambda: bridge.texts == ["not for us"])


async def test_two_bots_in_one_process_do_not_mix(fake: FakeTelegram, bridge: Bridge) -> None:
    other = "987654321:AAOtherTokenForTests"
    async with FakeTelegram(other, "OtherBot", 987654321) as second:
        bridge.state.values.clear()
        here = await bridge.open(fake.url, name="tg")
        notes, bridge.state = bridge.state, MemoryState()
        there = await bridge.open(second.url, other, name="tg2", gateway="two")
        fake.say(-100, "/help@TheBot")
        fake.say(-100, "/help@OtherBot")
        second.say(-100, "/help@TheBot")
        second.say(-100, "/help@OtherBot")
        await fake.wait_for(lambda: len(bridge.got) == 2)
        assert sorted((i.address.channel, i.text) for i in bridge.got) == [("tg", "/help"), ("tg2", "/help")]
        await show(here, ref(-100), "from one")
        await show(there, ref(-100), "from two")
        assert (fake.chats[-100].texts, second.chats[-100].texts) == (["from one"], ["from two"])
        assert notes.values.keys() & {"offset"} == bridge.state.values.keys() & {"offset"} == {"offset"}


async def test_the_same_bot_twice_is_refused(fake: FakeTelegram, bridge: Bridge) -> None:
    first = await bridge.open(fake.url, name="tg")
    twin = bridge.make(fake.url + "/bot", name="twin")
    with pytest.raises(ChannelError, match=r"channels\.twin\.token is the token of channels\.tg as well"):
        await twin.start(bridge.receive)
    await twin.stop()
    await first.stop()
    await bridge.open(fake.url, name="twin")  # free again


# -- buttons, moves ----------------------------------------------------------------------------------------


def with_button(fake: FakeTelegram, chat: int, data: str = "yes:1", **extra: Any) -> int:
    """A message of the bot with a button, as `ask` shows it."""
    place = fake.chat(chat)
    message = {
        "message_id": 50 + len(place.history),
        "from": {k: fake.me[k] for k in ("id", "is_bot", "first_name", "username")},
        "chat": place.to_json(),
        "date": int(time.time()),
        "text": "Sure?",
        "reply_markup": {"inline_keyboard": [[{"text": "Yes", "callback_data": data}]]},
        **extra,
    }
    place.history.append(message)
    return int(message["message_id"])


async def test_n12_a_pressed_button_comes_with_its_topic_and_is_answered(
    fake: FakeTelegram, bridge: Bridge
) -> None:
    bridge.answer = "Done. " * 50
    await bridge.open(fake.url)
    fake.chat(-100, is_forum=True, topics={7})
    number = with_button(fake, -100, message_thread_id=7, is_topic_message=True)
    fake.press(-100, number, "yes:1", user=7)
    await fake.wait_for(lambda: fake.answers)
    (press,) = bridge.presses
    assert press.address == Address("tg", "-100", "group", "7")
    assert (press.sender.id, press.choice, press.message_id) == ("7", "yes:1", str(number))
    assert fake.answers[0]["text"] == (bridge.answer[:199] + "…")
    await fake.wait_for(lambda: not fake.updates)


async def test_a_press_is_taken_while_its_own_chat_waits(fake: FakeTelegram, bridge: Bridge) -> None:
    take = bridge.receive

    async def receive(inbound: Inbound) -> None:
        await fake.wait_for(lambda: bridge.presses)
        await take(inbound)

    bridge.receive = receive  # type: ignore[method-assign]
    number = with_button(fake, 5)
    fake.say(5, "before")
    fake.press(5, number, "yes:1")
    await bridge.open(fake.url)
    await fake.wait_for(lambda: bridge.texts == ["before"])


async def test_a_press_that_was_not_taken_comes_again_and_a_late_answer_harms_nothing(
    fake: FakeTelegram, bridge: Bridge, fast: None
) -> None:
    taken, times = bridge.press, 0

    async def press(press: Press) -> str:
        nonlocal times
        times += 1
        if times < 3:
            raise RuntimeError("the store is full")
        return await taken(press)

    bridge.press = press  # type: ignore[method-assign]
    fake.query_life = 0
    fake.press(5, with_button(fake, 5), "yes:1")
    await bridge.open(fake.url)
    await fake.wait_for(lambda: not fake.updates)
    assert (times, len(bridge.presses)) == (3, 1)
    assert "query is too old" in fake.called("answerCallbackQuery")[0].description


async def test_a_press_on_a_message_that_is_too_old_to_see_is_taken(
    fake: FakeTelegram, bridge: Bridge
) -> None:
    await bridge.open(fake.url)
    fake.press(5, 4711, "yes:1")
    await fake.wait_for(lambda: bridge.presses and not fake.updates)
    assert (bridge.presses[0].message_id, bridge.presses[0].address.chat) == ("4711", "5")


async def test_a_group_that_becomes_a_supergroup_moves_once(fake: FakeTelegram, bridge: Bridge) -> None:
    channel = await bridge.open(fake.url)
    fake.say(-1, "", migrate_to_chat_id=-1001)
    fake.say(-1001, "", migrate_from_chat_id=-1)
    fake.say(-1001, "after")
    fake.chat(-1, migrated_to=-1001)
    await fake.wait_for(lambda: bridge.texts == ["after"])
    await show(channel, ref(-1), "an answer to an earlier message")
    assert fake.chats[-1001].texts == ["an answer to an earlier message"]
    assert bridge.moves == [("-1", "-1001")]


# -- ways to the server ------------------------------------------------------------------------------------


async def test_a_local_server_hands_out_large_files_from_its_disk(
    fake: FakeTelegram, bridge: Bridge, tmp_path: Path
) -> None:
    fake.local, fake.disk = True, tmp_path / "server"
    data = b"0" * (20 * 2**20 + 1)
    fake.say(5, "", document={"file_id": fake.file(data, "big.bin"), "file_unique_id": "u"})
    channel = await bridge.open(fake.url, local_server=True)
    await fake.wait_for(lambda: bridge.got)
    (attachment,) = bridge.got[0].attachments
    target = tmp_path / "big.bin"
    await channel.fetch(attachment, target, 10**9)
    assert target.stat().st_size == len(data)
    with pytest.raises(TooLarge):
        await channel.fetch(attachment, target, 1000)
    assert not fake.called("download")
    plain = bridge.make(fake.url)
    plain._api = channel._api
    with pytest.raises(TooLarge, match="20 MB"):
        await plain.fetch(attachment, target, 10**9)

    small = fake.file(b"data", "small.txt")
    with pytest.raises(Rejected, match="local_server"):
        await plain.fetch(Attachment("file", small), target, 10**9)
    fake.disk = None
    await channel.fetch(Attachment("file", small), target, 100)  # a local server without --local
    assert target.read_bytes() == b"data"


@pytest.mark.parametrize("kind", ["http", "socks5"])
async def test_everything_goes_through_the_proxy(
    fake: FakeTelegram, bridge: Bridge, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with small_proxy(kind) as (address, targets):
        channel = await bridge.open("http://telegram.invalid:81", proxy=address)
        targets["telegram.invalid:81"] = int(fake.url.rpartition(":")[2])
        fake.say(5, "hello", document={"file_id": fake.file(b"data", "a.txt"), "file_unique_id": "u"})
        await fake.wait_for(lambda: bridge.texts == ["hello"])
        await show(channel, ref(), "hi")
        await channel.fetch(bridge.got[0].attachments[0], tmp_path / "a.txt", 100)
        assert (tmp_path / "a.txt").read_bytes() == b"data"
        assert fake.chats[5].texts == ["hi"]


async def test_a_proxy_that_is_down_is_named_in_the_cure_without_its_password(
    bridge: Bridge, fake: FakeTelegram, fast: None, caplog: pytest.LogCaptureFixture
) -> None:
    channel = await bridge.open(fake.url, proxy="socks5://user:hunter2@127.0.0.1:9")
    await fake.wait_for(lambda: "cannot be reached" in channel.health().reason)
    assert "channels.tg.proxy" in channel.health().cure
    assert "hunter2" not in caplog.text + str(channel.health()) + repr(channel.config)
    await channel.stop()


@asynccontextmanager
async def small_proxy(kind: str) -> AsyncIterator[tuple[str, dict[str, int]]]:
    """A proxy for plain HTTP that resolves names from a table: "host:port" -> a local port."""
    targets: dict[str, int] = {}
    pipes: set[asyncio.Task[None]] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def socks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        _, methods = await reader.readexactly(2)
        await reader.readexactly(methods)
        writer.write(b"\x05\x00")
        head = await reader.readexactly(5)
        name = (await reader.readexactly(head[4])).decode()
        port = int.from_bytes(await reader.readexactly(2))
        writer.write(b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x00")
        return f"{name}:{port}"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = b""
        if kind == "socks5":
            name = await socks(reader, writer)
        else:  # a request line with the whole address
            first = await reader.readuntil(b"\r\n")
            name = first.split()[1].decode().removeprefix("http://").partition("/")[0]
        if name not in targets:
            writer.close()
            return
        there, out = await asyncio.open_connection("127.0.0.1", targets[name])
        if first:
            method, address, version = first.split()
            path = b"/" + address.split(b"/", 3)[3]
            out.write(b" ".join((method, path, version)) + b"\r\n")
        pipes.update(asyncio.create_task(pipe(a, b)) for a, b in ((reader, out), (there, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"{kind}://127.0.0.1:{server.sockets[0].getsockname()[1]}", targets
    finally:
        server.close()
        for task in pipes:
            task.cancel()
        await asyncio.gather(*pipes, return_exceptions=True)
