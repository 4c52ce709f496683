"""Delivery: what the chat shows after floods, lost answers, restarts and growing text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.events import TextDelta, TextReset
from bridge.delivery import Delivery, LiveReply, body_to_json, ref_to_json
from bridge.store.base import StoredChunk, StoredReply
from bridge.store.sqlite import SqliteStore
from channels.base import (
    Address,
    Chunk,
    Flooded,
    Gone,
    Limits,
    NotSent,
    Outbound,
    Rejected,
    ReplyRef,
    SendError,
    Unknown,
)
from tests.fakes.channel import Room, RoomConfig

REF = ReplyRef("r1", Address("room", "c1"), "m1")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    made = SqliteStore(tmp_path / "test.db")
    await made.open()
    yield made
    await made.close()


class Desk:
    def __init__(self, store: SqliteStore, limits: Limits) -> None:
        self.store = store
        self.room = Room("room", RoomConfig(), None, limits)
        self.now = 0.0
        self.slept: list[float] = []
        self.delivery = Delivery(store, {"room": self.room}, clock=lambda: self.now, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    async def open(self, ref: ReplyRef = REF) -> LiveReply:
        return self.delivery.open(ref, "s1", await self.store.reply(ref.id))

    @property
    def visible(self) -> list[str]:
        return self.room.seen.get("c1", [])


def once(*faults: SendError):  # type: ignore[no-untyped-def]
    waiting = list(faults)

    def fail(ref: ReplyRef, n: int, chunk: Chunk) -> None:
        if waiting:
            raise waiting.pop(0)

    return fail


async def test_a_reply_goes_out_in_chunks_and_each_is_written_down(store: SqliteStore) -> None:
    desk = Desk(store, Limits(max_text=3))
    assert await (await desk.open()).finish(Outbound("abcdefgh"), [])
    assert desk.visible == ["abc", "def", "gh"]
    stored = await store.reply("r1")
    assert stored is not None
    assert stored.state == "delivered"
    assert stored.chunks == tuple(StoredChunk(n, "sent", str(n)) for n in range(3))


async def test_the_intent_is_on_disk_before_the_platform_is_called(store: SqliteStore) -> None:
    desk = Desk(store, Limits(max_text=3))
    seen: list[tuple[StoredChunk, ...]] = []
    real = desk.room.post

    async def post(ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        stored = await store.reply("r1")
        assert stored is not None
        seen.append(stored.chunks)
        return await real(ref, n, chunk, final=final)

    desk.room.post = post  # type: ignore[method-assign]
    await (await desk.open()).finish(Outbound("abcdef"), [])
    assert seen == [
        (StoredChunk(0, "intent"),),
        (StoredChunk(0, "sent", "0"), StoredChunk(1, "intent")),
    ]


async def test_after_a_crash_a_reply_goes_on_at_the_next_chunk(store: SqliteStore) -> None:
    whole = Outbound("abcdefghi")
    await store.open_reply(StoredReply("r1", "s1", ref_to_json(REF), body_to_json(whole), "complete"))
    await store.put_chunk("r1", StoredChunk(0, "sent", "0"))
    desk = Desk(store, Limits(max_text=3))
    desk.room.seen["c1"] = ["abc"]
    assert await (await desk.open()).finish(whole, [])
    assert desk.visible == ["abc", "def", "ghi"]
    assert [call[0] for call in desk.room.calls if call[2] > 0] == ["post", "post"]


async def test_a_flood_wait_is_kept_and_only_the_refused_chunk_is_sent_again(store: SqliteStore) -> None:
    desk = Desk(store, Limits(max_text=3))
    faults: list[SendError] = [Flooded("slow down", 30)]

    def fail(ref: ReplyRef, n: int, chunk: Chunk) -> None:
        if n == 1 and faults:
            raise faults.pop()

    desk.room.before_post = fail
    assert await (await desk.open()).finish(Outbound("abcdef"), [])
    assert desk.visible == ["abc", "def"]
    assert desk.slept == [30]


async def test_a_lost_answer_is_not_repeated_and_the_rest_still_comes(store: SqliteStore) -> None:
    desk = Desk(store, Limits(max_text=3))

    def lose(ref: ReplyRef, n: int, chunk: Chunk) -> None:
        if n == 0:
            raise Unknown("timed out")

    desk.room.after_post = lose
    assert await (await desk.open()).finish(Outbound("abcdef"), [])
    assert desk.visible == ["abc", "def"]
    stored = await store.reply("r1")
    assert stored is not None
    assert [chunk.state for chunk in stored.chunks] == ["unknown", "sent"]


async def test_an_unreachable_platform_is_tried_until_it_answers(store: SqliteStore) -> None:
    desk = Desk(store, Limits())
    desk.room.before_post = once(*[NotSent("refused")] * 10)
    assert await (await desk.open()).finish(Outbound("hello"), [])
    assert desk.visible == ["hello"]
    assert len(desk.slept) == 10
    assert max(desk.slept) <= 60 * 1.25


async def test_a_chat_that_is_gone_ends_the_reply_as_failed(store: SqliteStore) -> None:
    desk = Desk(store, Limits(max_text=3))
    desk.room.before_post = once(Gone("blocked"))
    assert not await (await desk.open()).finish(Outbound("abcdef"), [])
    stored = await store.reply("r1")
    assert stored is not None
    assert stored.state == "failed"


async def test_a_day_without_the_platform_gives_the_reply_up(store: SqliteStore) -> None:
    desk = Desk(store, Limits())
    desk.room.before_post = once(*[Flooded("later", 3600)] * 30)
    assert not await (await desk.open()).finish(Outbound("hello"), [])
    assert 24 <= len(desk.slept) <= 26


async def test_a_refused_chunk_does_not_hold_back_the_others(store: SqliteStore) -> None:
    desk = Desk(store, Limits(max_text=3))
    desk.room.before_post = once(Rejected("bad request"))
    assert await (await desk.open()).finish(Outbound("abcdef"), [])
    assert desk.visible == ["def"]


async def test_growing_text_is_edited_in_place_and_ends_whole(store: SqliteStore) -> None:
    desk = Desk(store, Limits(max_text=4, streams=True, update_interval=0.0))
    live = await desk.open()
    live.start()
    live.emit(TextDelta("ab"))
    await desk.room.until(lambda: desk.visible == ["ab"])
    live.emit(TextDelta("cdef"))
    await desk.room.until(lambda: desk.visible == ["abcd", "ef"])
    live.emit(TextReset(2))
    live.emit(TextDelta("xy"))
    assert await live.finish(Outbound("abxy"), [])
    assert desk.visible == ["abxy", "…"]
    assert sum(1 for call in desk.room.calls if call[0] == "post") == 2


async def test_a_restarted_run_edits_the_message_that_is_already_there(store: SqliteStore) -> None:
    desk = Desk(store, Limits(streams=True, update_interval=0.0))
    live = await desk.open()
    live.start()
    live.emit(TextDelta("Let me lo"))
    await desk.room.until(lambda: desk.visible == ["Let me lo"])
    await live.park()
    later = Desk(store, Limits(streams=True, update_interval=0.0))
    later.room.seen = desk.room.seen
    assert await (await later.open()).finish(Outbound("The answer"), [])
    assert later.visible == ["The answer"]


async def test_updates_keep_the_pace_and_show_the_newest_state_only(store: SqliteStore) -> None:
    desk = Desk(store, Limits(streams=True, update_interval=3600.0))
    live = await desk.open()
    live.start()
    live.emit(TextDelta("a"))
    await desk.room.until(lambda: desk.visible == ["a"])
    for letter in "bcdefgh":
        live.emit(TextDelta(letter))
        await asyncio.sleep(0)
    assert desk.visible == ["a"]
    assert await live.finish(Outbound("abcdefgh"), [])
    assert desk.visible == ["abcdefgh"]
    assert len(desk.room.calls) == 2


async def test_a_half_text_whose_fate_is_unknown_is_shown_whole_in_the_end(store: SqliteStore) -> None:
    desk = Desk(store, Limits(streams=True, update_interval=0.0))
    lost = asyncio.Event()

    def lose(ref: ReplyRef, n: int, chunk: Chunk) -> None:
        if not lost.is_set():
            lost.set()
            raise Unknown("timed out")

    desk.room.before_post = lose
    live = await desk.open()
    live.start()
    live.emit(TextDelta("half"))
    await lost.wait()
    assert await live.finish(Outbound("half and whole"), [])
    assert desk.visible == ["half and whole"]


async def test_a_channel_that_recognises_repeats_needs_no_record(store: SqliteStore) -> None:
    desk = Desk(store, Limits(streams=True, update_interval=0.0, idempotent=True))
    assert await (await desk.open()).finish(Outbound("hi"), [])
    assert desk.visible == ["hi"]
    assert await store.reply("r1") is None


async def test_commands_answers_survive_a_stop_before_they_are_sent(store: SqliteStore) -> None:
    desk = Desk(store, Limits())
    reply = desk.delivery.command_reply(ReplyRef("c1", REF.address), "s1", Outbound("help text"))
    await store.open_reply(reply)
    gate = asyncio.Event()
    entered = asyncio.Event()

    async def hang(ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        entered.set()
        await gate.wait()
        return "0"

    desk.room.post = hang  # type: ignore[method-assign]
    desk.delivery.deliver(reply)
    await entered.wait()
    await desk.delivery.stop(0.01)
    (left,) = await store.pending_replies(["room"])
    assert left.id == "c1"


async def test_a_stop_lets_the_platform_call_under_way_end_and_writes_it_down(store: SqliteStore) -> None:
    desk = Desk(store, Limits(max_text=3))
    entered, leave = asyncio.Event(), asyncio.Event()
    real = desk.room.post

    async def slow(ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        shown = await real(ref, n, chunk, final=final)
        entered.set()
        await leave.wait()
        return shown

    desk.room.post = slow  # type: ignore[method-assign]
    live = await desk.open()
    finishing = asyncio.create_task(live.finish(Outbound("abcdef"), []))
    await entered.wait()
    finishing.cancel()
    await asyncio.sleep(0)
    leave.set()
    await asyncio.wait({finishing})
    assert finishing.cancelled()
    desk.room.post = real  # type: ignore[method-assign]
    assert await (await desk.open()).finish(Outbound("abcdef"), [])
    assert desk.visible == ["abc", "def"]
