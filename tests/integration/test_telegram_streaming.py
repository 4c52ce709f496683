"""Growing answers in Telegram: drafts in private chats, edits elsewhere, at the pace of each."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agent.events import TextDelta
from bridge.delivery import Delivery, LiveReply
from bridge.store.sqlite import SqliteStore
from channels.base import Address, NotSent, Outbound, ReplyRef
from channels.telegram.channel import TelegramChannel
from channels.telegram.pacing import Pacer
from tests.fakes.telegram import Call, FakeTelegram
from tests.integration.telegram_support import Bridge


class Stream:
    """Replies that grow, over the real delivery. A test may hold the channel's clock."""

    def __init__(self, fake: FakeTelegram, bridge: Bridge, store: SqliteStore) -> None:
        self.fake = fake
        self.bridge = bridge
        self.store = store

    async def open(self, clock: Callable[[], float] = time.time, **settings: str) -> TelegramChannel:
        self.channel = await self.bridge.open(self.fake.url, **settings)
        self.channel._sending.pacer = Pacer(clock)
        self.channel._sending._drafts._clock = clock
        self.delivery = Delivery(self.store, {"tg": self.channel}, clock=time.monotonic)
        return self.channel

    def reply(self, chat: int, id: str = "r1") -> LiveReply:
        self.fake.chat(chat)
        address = Address("tg", str(chat), "direct" if chat > 0 else "group")
        return self.delivery.open(ReplyRef(id, address), "s1")


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram() as server:
        yield server


@pytest.fixture
async def stream(tmp_path: Path, fake: FakeTelegram) -> AsyncIterator[Stream]:
    store = SqliteStore(tmp_path / "test.db")
    await store.open()
    bridge = Bridge(tmp_path)
    yield Stream(fake, bridge, store)
    await bridge.close()
    await store.close()


async def test_a_private_chat_sees_a_draft_that_grows_and_one_message_in_the_end(
    stream: Stream, fake: FakeTelegram
) -> None:
    ticks = iter(range(0, 10_000, 2))
    await stream.open(lambda: float(next(ticks)))
    reply = stream.reply(5)
    reply.start()
    reply.emit(TextDelta("**Hel"))
    await fake.wait_for(lambda: fake.chats[5].drafts)
    reply.emit(TextDelta("lo** there"))
    await fake.wait_for(lambda: "Hello there" in fake.chats[5].drafts.values())
    assert fake.chats[5].texts == []
    assert await reply.finish(Outbound("**Hello** there."), [])
    assert fake.chats[5].texts == ["Hello there."]
    assert len(fake.chats[5].drafts) == 1
    assert 0 not in fake.chats[5].drafts
    assert not fake.called("editMessageText")


async def test_a_long_stream_goes_on_in_a_next_message_with_a_draft_of_its_own(
    stream: Stream, fake: FakeTelegram
) -> None:
    ticks = iter(range(0, 10_000, 2))
    await stream.open(lambda: float(next(ticks)))
    reply = stream.reply(5)
    text = "".join(f"word{n} " for n in range(900))
    await reply._show(Outbound(text[:2000]), final=False)
    await reply._show(Outbound(text[:5000]), final=False)
    assert len(fake.chats[5].texts) == 1
    assert len(fake.chats[5].drafts) == 2
    assert await reply.finish(Outbound(text), [])
    assert " ".join(fake.chats[5].texts).split() == text.split()
    assert len(fake.chats[5].texts) == 2


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (404, "Not Found: method not found"),
        (400, "Bad Request: method is available only to bots with topics"),
    ],
)
async def test_a_server_without_drafts_gets_edits_for_good(
    stream: Stream, fake: FakeTelegram, code: int, words: str
) -> None:
    ticks = iter(range(0, 10_000, 2))
    await stream.open(lambda: float(next(ticks)))
    fake.fail("sendMessageDraft", code, words, times=100)
    for chat in (5, 6):
        reply = stream.reply(chat, f"r{chat}")
        await reply._show(Outbound("hal"), final=False)
        assert fake.chats[chat].texts == ["hal"]
        await reply._show(Outbound("hallo"), final=False)
        assert await reply.finish(Outbound("hallo!"), [])
        assert fake.chats[chat].texts == ["hallo!"]
    assert len(fake.called("sendMessageDraft")) == 1


async def test_a_chat_that_takes_no_drafts_gets_edits_and_others_keep_theirs(
    stream: Stream, fake: FakeTelegram
) -> None:
    await stream.open()
    fake.fail("sendMessageDraft", 400, "Bad Request: TEXTDRAFT_PEER_INVALID", chat=5)
    for chat in (5, 6, 5):
        await stream.reply(chat, f"r{chat}{len(fake.calls)}")._show(Outbound("hal"), final=False)
    assert [c.chat for c in fake.called("sendMessageDraft")] == [5, 6]
    assert fake.chats[5].texts == ["hal", "hal"]
    assert fake.chats[6].texts == []


async def test_drafts_can_be_switched_off(stream: Stream, fake: FakeTelegram) -> None:
    await stream.open(drafts="off")
    await stream.reply(5)._show(Outbound("hal"), final=False)
    assert fake.chats[5].texts == ["hal"]
    assert not fake.called("sendMessageDraft")


async def test_a_draft_that_stands_still_is_kept_alive_until_its_reply_ends(
    stream: Stream, fake: FakeTelegram
) -> None:
    now = 1000.0
    channel = await stream.open(lambda: now)
    reply = stream.reply(5)
    await reply._show(Outbound("Looking it up …"), final=False)
    await channel.typing(reply.ref)
    assert len(fake.called("sendMessageDraft")) == 1
    now += 21  # a tool works; Telegram forgets a draft after 30 s
    await channel.typing(reply.ref)
    first, second = fake.called("sendMessageDraft")
    assert first.params == second.params
    assert await reply.finish(Outbound("Found it."), [])
    now += 60
    await channel.typing(reply.ref)
    assert len(fake.called("sendMessageDraft")) == 2


async def test_the_same_chunk_of_the_same_reply_has_the_same_draft_after_a_restart(
    stream: Stream, fake: FakeTelegram, tmp_path: Path
) -> None:
    await stream.open()
    await stream.reply(5)._show(Outbound("hal"), final=False)
    await stream.bridge.close()
    stream.bridge.channels.clear()
    await stream.open()
    reply = stream.reply(5)
    await reply._show(Outbound("hallo"), final=False)
    assert list(fake.chats[5].drafts.values()) == ["hallo"]


async def test_a_flood_of_drafts_slows_the_stream_and_the_answer_is_whole(
    stream: Stream, fake: FakeTelegram
) -> None:
    await stream.open()
    fake.fail("sendMessageDraft", 429, retry_after=1, chat=5)
    reply = stream.reply(5)
    reply.start()
    for n in range(22):
        reply.emit(TextDelta(f"word{n} "))
        await asyncio.sleep(0.1)
    assert await reply.finish(Outbound("".join(f"word{n} " for n in range(22))), [])
    assert fake.chats[5].texts == [" ".join(f"word{n}" for n in range(22))]
    refused, *later = fake.called("sendMessageDraft")
    assert later[0].at - refused.at >= 0.9
    assert len(later) <= 2  # 2 s are left, and the gap has doubled


@pytest.mark.parametrize("chat", [5, -100])
async def test_n1_text_is_not_doubled_by_a_network_fault_in_the_stream(
    stream: Stream, fake: FakeTelegram, chat: int
) -> None:
    ticks = iter(range(0, 100_000, 5))
    await stream.open(lambda: float(next(ticks)))
    reply = stream.reply(chat)
    await reply._show(Outbound("Hello world."), final=False)
    for method in ("sendMessageDraft", "editMessageText"):
        fake.cut(method, "after")
    with pytest.raises(NotSent):
        await reply._show(Outbound("Hello world. Bye"), final=False)
    assert await reply.finish(Outbound("Hello world. Bye."), [])
    assert fake.chats[chat].texts == ["Hello world. Bye."]


async def test_twenty_chats_streaming_at_once_keep_their_pace_and_show_text_at_once(
    stream: Stream, fake: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = await stream.open()
    assert channel._sending.pacer._rate == 30
    assert channel._sending.api is not None
    private, groups = list(range(1, 11)), [-100 - n for n in range(10)]
    replies = {chat: stream.reply(chat, f"r{chat}") for chat in (*private, *groups)}
    first_token: dict[int, float] = {}
    made: dict[int, list[float]] = {chat: [] for chat in replies}  # when the channel made each call
    send = channel._sending.api.call

    async def call(method: str, timeout: float, /, **params: Any) -> Any:
        if method != "sendChatAction":
            made[int(params["chat_id"])].append(time.monotonic())
        return await send(method, timeout, **params)

    monkeypatch.setattr(channel._sending.api, "call", call)
    said = dict.fromkeys(replies, "")

    async def talk(chat: int) -> None:
        reply = replies[chat]
        reply.start()
        for n in range(45):
            first_token.setdefault(chat, time.monotonic())
            said[chat] += f"word{n} "
            reply.emit(TextDelta(f"word{n} "))
            await asyncio.sleep(0.1)
        assert await reply.finish(Outbound(said[chat]), [])

    await asyncio.gather(*(talk(chat) for chat in replies))
    for chat in replies:
        assert " ".join(fake.chats[chat].texts).split() == said[chat].split()
        calls = [c for c in fake.calls if c.chat == chat and c.method != "sendChatAction"]
        assert {c.status for c in calls} == {200}
        *growing, _ = made[chat]
        gap = 1.0 if chat > 0 else 3.0
        assert calls[0].at - first_token[chat] < gap, "the first text is seen within one interval"
        assert min(b - a for a, b in itertools.pairwise(growing)) >= gap - 0.01
        assert len(growing) >= (4 if chat > 0 else 2), "it does stream"
        assert calls[-1].params["text"].endswith("word44")
    assert busiest_second([c for c in fake.calls if c.chat]) <= 60  # a burst, then 30 a second


def busiest_second(calls: list[Call]) -> int:
    return max(sum(1 for c in calls if start.at <= c.at < start.at + 1) for start in calls)
