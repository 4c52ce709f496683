"""Replies as the bridge delivers them through the Telegram channel: floods, cuts, pacing, files, topics."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.events import TextDelta
from bridge.delivery import Delivery, LiveReply
from bridge.store.sqlite import SqliteStore
from channels.base import Address, ChatKind, Flooded, Lost, Outbound, OutFile, ReplyRef, SendError
from channels.telegram.channel import TelegramChannel
from channels.telegram.chats import business_chat
from channels.telegram.format import markdown
from channels.telegram.pacing import Pacer
from tests.fakes.telegram import FakeTelegram, Fault
from tests.integration.telegram_support import Bridge

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 20


class House:
    """The bridge's own delivery over a Telegram channel, with a clock that only `sleep` moves on."""

    def __init__(self, fake: FakeTelegram, bridge: Bridge, store: SqliteStore) -> None:
        self.fake = fake
        self.bridge = bridge
        self.store = store
        self.now = 1000.0
        self.slept: list[float] = []
        self._ids = itertools.count(1)

    async def open(self, **settings: Any) -> TelegramChannel:
        self.channel = await self.bridge.open(self.fake.url, **settings)
        self.channel._sending.pacer = Pacer(lambda: self.now)
        self.delivery = Delivery(self.store, {"tg": self.channel}, clock=lambda: self.now, sleep=self.sleep)
        return self.channel

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        for chat in self.fake.chats.values():
            chat.flood_until -= seconds

    def reply(self, chat: int, thread: str | None = None, to: str = "") -> LiveReply:
        kind: ChatKind = "direct" if chat > 0 else "group"
        ref = ReplyRef(f"r{next(self._ids)}", Address("tg", str(chat), kind, thread), to, language="en")
        return self.delivery.open(ref, "s1")

    def shown(self, chat: int) -> str:
        return "".join("".join(self.fake.chats[chat].texts).split())


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram() as server:
        yield server


@pytest.fixture
async def house(tmp_path: Path, fake: FakeTelegram) -> AsyncIterator[House]:
    store = SqliteStore(tmp_path / "test.db")
    await store.open()
    bridge = Bridge(tmp_path)
    yield House(fake, bridge, store)
    await bridge.close()
    await store.close()


def visible(text: str) -> str:
    return "".join("".join(run for run, _ in markdown(text)).split())


# -- floods --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chat", [5, -100])
async def test_tg_10_after_a_flood_only_the_refused_piece_is_sent_again_after_the_wait(
    house: House, fake: FakeTelegram, chat: int
) -> None:
    channel = await house.open(drafts="off")
    fake.chat(chat)
    text = " ".join(f"**word{n}**" if n % 40 == 0 else f"word{n}" for n in range(1200))[:9000]
    pieces = [chunk.text for chunk in channel.render(Outbound(text))]
    assert len(pieces) == 3
    fake.fail("sendMessage", 429, retry_after=30, chat=chat, after=1)
    reply = house.reply(chat)
    reply.start()
    at = 0
    while at < len(text):
        reply.emit(TextDelta(text[at : at + 1500]))
        at += 1500
        await asyncio.sleep(0)
    assert await reply.finish(Outbound(text), [])
    assert sum(house.slept) >= 29.9
    assert fake.chats[chat].texts == pieces
    sends = fake.called("sendMessage", chat)
    assert [c.status for c in sends] == [200, 429, 200, 200]
    assert sends[2].params["text"] == pieces[1]
    assert all("entities" in message for message in fake.chats[chat].shown)
    # Between the refusal and the end of the wait nothing at all went to that chat, no edit, no typing sign.
    between = fake.calls[fake.calls.index(sends[1]) + 1 : fake.calls.index(sends[2])]
    assert [c.method for c in between if c.chat == chat] == []


async def test_while_one_chat_is_flooded_others_are_written_to(house: House, fake: FakeTelegram) -> None:
    channel = await house.open(drafts="off")
    fake.chat(5)
    fake.chat(6)
    fake.fail("sendMessage", 429, retry_after=30, chat=5)
    with pytest.raises(Flooded):
        await channel.post(house.reply(5).ref, 0, channel.render(Outbound("a"))[0], final=True)
    before = len(fake.calls)
    with pytest.raises(Flooded) as again:
        await channel.post(house.reply(5).ref, 0, channel.render(Outbound("a"))[0], final=True)
    await channel.typing(house.reply(5).ref)
    assert again.value.retry_after == 30
    assert len(fake.calls) == before
    assert await house.reply(6).finish(Outbound("hello"), [])
    assert fake.chats[6].texts == ["hello"]


async def test_a_whole_answer_goes_out_though_edits_are_held_back(house: House, fake: FakeTelegram) -> None:
    channel = await house.open(drafts="off")
    fake.chat(-100)
    ref = house.reply(-100).ref
    message = await channel.post(ref, 0, channel.render(Outbound("a"))[0], final=False)
    with pytest.raises(Flooded):
        await channel.edit(ref, 0, message, channel.render(Outbound("a b"))[0], final=False)
    await channel.edit(ref, 0, message, channel.render(Outbound("a b c"))[0], final=True)
    assert fake.chats[-100].texts == ["a b c"]


async def test_calls_of_one_chat_never_overlap_and_keep_their_order(house: House, fake: FakeTelegram) -> None:
    channel = await house.open()
    fake.chat(5)
    fake.delay("sendMessage", 0.05, times=10)
    chunks = [channel.render(Outbound(str(n)))[0] for n in range(8)]
    refs = [house.reply(5).ref for _ in chunks]
    began = time.monotonic()
    await asyncio.gather(
        *(channel.post(ref, 0, chunk, final=True) for ref, chunk in zip(refs, chunks, strict=True))
    )
    assert fake.chats[5].texts == [str(n) for n in range(8)]
    assert time.monotonic() - began >= 0.4


async def test_a_chat_that_is_busy_for_long_makes_others_come_again(
    house: House, fake: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = await house.open()
    fake.chat(5)
    monkeypatch.setattr("channels.telegram.sending._TURN", 0.05)
    fake.delay("sendMessage", 0.5)
    (chunk,) = channel.render(Outbound("x"))
    first = asyncio.create_task(channel.post(house.reply(5).ref, 0, chunk, final=True))
    await fake.wait_for(lambda: fake.chats[5].texts)
    with pytest.raises(Flooded):
        await channel.post(house.reply(5).ref, 0, chunk, final=True)
    await first


async def test_the_calls_of_all_chats_keep_the_rate_together(house: House, fake: FakeTelegram) -> None:
    channel = await house.open()
    channel._sending.pacer = Pacer(time.monotonic, rate=20)
    for chat in range(1, 31):
        fake.chat(chat)
    (chunk,) = channel.render(Outbound("x"))
    began = time.monotonic()
    await asyncio.gather(*(channel.post(house.reply(n).ref, 0, chunk, final=True) for n in range(1, 31)))
    assert 0.4 <= time.monotonic() - began < 3
    assert all(fake.chats[n].texts == ["x"] for n in range(1, 31))


async def test_a6_a_flood_at_the_very_first_send_ends_no_turn(house: House, fake: FakeTelegram) -> None:
    await house.open(drafts="off")
    fake.chat(-100)
    fake.fail("sendMessage", 429, retry_after=5, chat=-100)
    reply = house.reply(-100)
    reply.start()
    reply.emit(TextDelta("Hello"))
    await fake.wait_for(lambda: fake.called("sendMessage", -100))
    assert await reply.finish(Outbound("Hello there"), [])
    assert fake.chats[-100].texts == ["Hello there"]


async def test_a5_a_stream_of_6000_characters_in_a_group_is_whole_without_one_refusal(
    house: House, fake: FakeTelegram
) -> None:
    await house.open()
    fake.chat(-100)
    text = " ".join(f"word{n}" for n in range(760))[:6000]
    reply = house.reply(-100)
    for end in range(100, len(text), 500):
        house.now += 4
        await reply._show(Outbound(text[:end]), final=False)
    assert await reply.finish(Outbound(text), [])
    assert " ".join(fake.chats[-100].texts).split() == text.split()
    assert len(fake.chats[-100].texts) == 2
    assert {c.status for c in fake.calls if c.chat == -100} == {200}


# -- what a failure means --------------------------------------------------------------------------------


async def test_a_message_that_was_deleted_is_posted_anew(house: House, fake: FakeTelegram) -> None:
    channel = await house.open(drafts="off")
    fake.chat(5)
    reply = house.reply(5)
    reply.start()
    reply.emit(TextDelta("half"))
    await fake.wait_for(lambda: fake.chats[5].texts == ["half"])
    fake.chats[5].history.clear()
    assert await reply.finish(Outbound("half and whole"), [])
    assert fake.chats[5].texts == ["half and whole"]
    with pytest.raises(Lost):
        await channel.edit(reply.ref, 0, "99999", channel.render(Outbound("x"))[0], final=True)


async def test_a_blocked_bot_ends_a_reply_cleanly(house: House, fake: FakeTelegram) -> None:
    await house.open()
    fake.chat(5, gone="Forbidden: bot was blocked by the user")
    fake.chat(-100, gone="Forbidden: bot was kicked from the supergroup chat")
    for chat in (5, -100):
        reply = house.reply(chat)
        reply.start()
        reply.emit(TextDelta("some"))
        assert not await reply.finish(Outbound("some text"), [])
        stored = await house.store.reply(reply.ref.id)
        assert stored is not None
        assert stored.state == "failed"
        assert fake.chats[chat].texts == []


async def test_a_send_without_an_answer_is_not_repeated(house: House, fake: FakeTelegram) -> None:
    await house.open()
    fake.chat(5)
    fake.cut("sendMessage", "after", after=1)
    text = "word " * 2500
    assert await house.reply(5).finish(Outbound(text), [])
    assert house.shown(5) == "".join(text.split())


async def test_a_send_that_never_reached_the_server_is_tried_again(house: House, fake: FakeTelegram) -> None:
    await house.open()
    fake.chat(5)
    fake.fail("sendMessage", 502, html=True, times=3)
    assert await house.reply(5).finish(Outbound("hello"), [])
    assert fake.chats[5].texts == ["hello"]


@pytest.mark.parametrize(("growing", "cut", "state"), [(False, "after", "unknown"), (True, "", "sent")])
async def test_a_stop_during_a_send_waits_for_it_and_writes_its_outcome_down(
    house: House, fake: FakeTelegram, growing: bool, cut: str, state: str
) -> None:
    await house.open()
    fake.chat(-100)
    fake.faults.append(Fault("sendMessage", delay=0.3, cut=cut))
    reply = house.reply(-100)
    reply.start()
    if growing:
        reply.emit(TextDelta("Hello"))
        await fake.wait_for(lambda: fake.chats[-100].texts)
    finishing = asyncio.create_task(reply.finish(Outbound("Hello"), []))
    await fake.wait_for(lambda: fake.chats[-100].texts)
    await asyncio.sleep(0)
    finishing.cancel()
    await asyncio.wait({finishing})
    assert finishing.cancelled()
    stored = await house.store.reply(reply.ref.id)
    assert stored is not None
    assert [chunk.state for chunk in stored.chunks] == [state]


async def test_a_move_during_a_reply_is_followed_and_told_to_the_bridge(
    house: House, fake: FakeTelegram
) -> None:
    await house.open()
    fake.chat(-1, "group")
    reply = house.reply(-1)
    reply.start()
    reply.emit(TextDelta("first"))
    await fake.wait_for(lambda: fake.chats[-1].texts)
    fake.chat(-1, migrated_to=-1002)
    fake.chat(-1002)
    assert await reply.finish(Outbound("first and last"), [])
    assert house.bridge.moves == [("-1", "-1002")]
    assert fake.chats[-1002].texts == ["first and last"]


async def test_an_answer_of_three_dots_is_not_taken_for_a_message_taken_back(
    house: House, fake: FakeTelegram
) -> None:
    await house.open(drafts="off")
    fake.chat(5)
    reply = house.reply(5)
    await reply._show(Outbound("…"), final=False)
    assert await reply.finish(Outbound("…"), [])
    assert fake.chats[5].texts == ["…"]


# -- places ----------------------------------------------------------------------------------------------


async def test_tg_13_every_call_of_a_streamed_turn_names_its_topic(
    house: House, fake: FakeTelegram, tmp_path: Path
) -> None:
    channel = await house.open()
    fake.chat(-100, is_forum=True, topics={7, 8})
    (tmp_path / "p.png").write_bytes(PNG)
    reply = house.reply(-100, "7")
    reply.start()
    reply.emit(TextDelta("word " * 1000))
    await fake.wait_for(lambda: len(fake.chats[-100].texts) == 2)
    picture = OutFile(str(tmp_path / "p.png"), "p.png", "image/png")
    missing = OutFile(str(tmp_path / "no.txt"), "no.txt", "text/plain")
    assert await reply.finish(Outbound("word " * 1100, (picture, missing)), [])
    question = await channel.ask(reply.ref, "Sure?", [])
    await channel.settle(reply.ref, question, "yes")
    calls = [c for c in fake.calls if c.chat == -100]
    assert {"sendMessage", "editMessageText", "sendPhoto", "sendChatAction"} <= {c.method for c in calls}
    for call in calls:
        if call.method != "editMessageText":
            assert call.params.get("message_thread_id") == "7", call.method
        assert call.status == 200, call.description
    assert "no.txt" in fake.chats[-100].texts[3] or "file_unreadable" in fake.chats[-100].texts[3]


async def test_general_is_named_in_the_typing_sign_alone(house: House, fake: FakeTelegram) -> None:
    channel = await house.open()
    fake.chat(-100, is_forum=True)
    fake.say(-100, "@TheBot hi")
    await fake.wait_for(lambda: house.bridge.got)
    reply = house.reply(-100)
    await channel.typing(reply.ref)
    assert await reply.finish(Outbound("in General"), [])
    assert fake.called("sendChatAction")[0].params["message_thread_id"] == "1"
    assert "message_thread_id" not in fake.called("sendMessage")[0].params
    assert fake.chats[-100].texts == ["in General"]


async def test_only_the_first_piece_in_a_group_replies_to_the_question(
    house: House, fake: FakeTelegram
) -> None:
    await house.open()
    said = fake.say(-100, "@TheBot hi")
    direct = fake.say(5, "hi")
    assert await house.reply(-100, to=str(said["message_id"])).finish(Outbound("word " * 1500), [])
    assert await house.reply(5, to=str(direct["message_id"])).finish(Outbound("hello"), [])
    first, second = fake.called("sendMessage", -100)
    assert first.params["reply_parameters"] == {
        "message_id": said["message_id"],
        "allow_sending_without_reply": True,
    }
    assert "reply_parameters" not in second.params
    assert "reply_parameters" not in fake.called("sendMessage", 5)[0].params
    assert all(c.params["link_preview_options"] == {"is_disabled": True} for c in (first, second))


async def test_a_business_chat_is_written_to_through_its_connection(house: House, fake: FakeTelegram) -> None:
    channel = await house.open()
    fake.chat(5)
    fake.connections.add("conn1")
    address = Address("tg", business_chat("conn1", 5), "direct")
    ref = ReplyRef("b1", address, "17", language="en")
    message = await channel.post(ref, 0, channel.render(Outbound("hal"))[0], final=False)
    assert message  # drafts are not for business chats
    await channel.edit(ref, 0, message, channel.render(Outbound("hallo"))[0], final=True)
    await channel.typing(ref)
    for method in ("sendMessage", "editMessageText", "sendChatAction"):
        (call,) = fake.called(method)
        assert call.params["business_connection_id"] == "conn1"
        assert call.params["chat_id"] == "5"
    assert not fake.called("sendMessageDraft")


# -- files -----------------------------------------------------------------------------------------------


def files(folder: Path, *names: str, size: int = 0) -> list[OutFile]:
    mimes = {".png": "image/png", ".mp4": "video/mp4", ".ogg": "audio/ogg", ".mp3": "audio/mpeg"}
    mimes |= {".gif": "image/gif", ".txt": "text/plain"}
    made = []
    for name in names:
        data = {".png": PNG, ".gif": b"GIF89a00"}.get(Path(name).suffix, b"data of " + name.encode())
        (folder / name).write_bytes(data + b"0" * size)
        made.append(OutFile(str(folder / name), name, mimes[Path(name).suffix], f"*{name}*"))
    return made


async def test_pictures_and_videos_of_one_reply_are_an_album_and_documents_another(
    house: House, fake: FakeTelegram, tmp_path: Path
) -> None:
    await house.open()
    fake.chat(5)
    sent = files(tmp_path, "a.png", "b.png", "c.mp4", "d.txt", "e.txt", "f.gif", "g.png")
    assert await house.reply(5).finish(Outbound("See:", tuple(sent)), [])
    calls = [c.method for c in fake.calls if c.chat == 5]
    assert calls == ["sendMessage", "sendMediaGroup", "sendMediaGroup", "sendAnimation", "sendPhoto"]
    _, *media = fake.chats[5].shown
    assert [m["caption"] for m in media] == [file.name for file in sent]
    assert {m["caption_entities"][0]["type"] for m in media} == {"italic"}
    kinds = [next(k for k in ("photo", "video", "animation", "document") if k in m) for m in media]
    assert kinds == ["photo", "photo", "video", "document", "document", "animation", "photo"]
    groups = [m.get("media_group_id") for m in media]
    assert groups[0] == groups[1] == groups[2] != groups[3] == groups[4]
    assert fake.files[media[3]["document"]["file_id"]] == b"data of d.txt"


async def test_l3_a_reply_of_one_picture_alone_is_shown(
    house: House, fake: FakeTelegram, tmp_path: Path
) -> None:
    await house.open()
    fake.chat(5)
    (picture,) = files(tmp_path, "a.png")
    unknown = OutFile(picture.path, "b.png")  # nobody said what it is; its name does
    assert await house.reply(5).finish(Outbound("", (OutFile(picture.path, "a.png", "image/png"),)), [])
    assert await house.reply(5).finish(Outbound("", (unknown,)), [])
    assert ["photo" in message for message in fake.chats[5].shown] == [True, True]


async def test_eleven_documents_are_two_albums_or_one_and_a_single(
    house: House, fake: FakeTelegram, tmp_path: Path
) -> None:
    await house.open()
    fake.chat(5)
    sent = files(tmp_path, *(f"{n}.txt" for n in range(11)))
    assert await house.reply(5).finish(Outbound("", tuple(sent)), [])
    assert fake.chats[5].texts == [file.name for file in sent]


async def test_voice_goes_as_voice_when_small_and_as_a_document_when_large(
    house: House, fake: FakeTelegram, tmp_path: Path
) -> None:
    await house.open()
    fake.chat(5)
    sent = files(tmp_path, "a.ogg", "b.mp3") + files(tmp_path, "c.ogg", size=1024 * 1024)
    assert await house.reply(5).finish(Outbound("", tuple(sent)), [])
    assert [c.method for c in fake.calls if c.chat == 5] == ["sendVoice", "sendAudio", "sendDocument"]


async def test_an_album_that_is_refused_goes_one_by_one_and_nothing_is_lost(
    house: House, fake: FakeTelegram, tmp_path: Path
) -> None:
    await house.open()
    fake.chat(-100)
    said = fake.say(-100, "@TheBot files")
    sent = files(tmp_path, "a.png", "b.png", "c.png")
    (tmp_path / "b.png").write_bytes(b"no picture at all")
    fake.fail("sendPhoto", 429, retry_after=3, chat=-100, after=2)
    assert await house.reply(-100, to=str(said["message_id"])).finish(Outbound("", tuple(sent)), [])
    assert fake.chats[-100].texts == ["a.png", "b.png", "c.png"]
    assert ["document" in m for m in fake.chats[-100].shown] == [False, True, False]
    assert ["reply_to_message" in m for m in fake.chats[-100].shown] == [True, False, False]


async def test_a_file_that_cannot_be_sent_is_explained_where_it_would_stand(
    house: House, fake: FakeTelegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = await house.open()
    fake.chat(5)
    channel._sending._files._limit = 1024 * 1024
    large, small, empty = (
        *files(tmp_path, "large.txt", size=2 * 1024 * 1024),
        *files(tmp_path, "small.txt"),
        *files(tmp_path, "empty.txt"),
    )
    Path(empty.path).write_bytes(b"")
    assert await house.reply(5).finish(Outbound("Here:", (large, small, empty)), [])
    here, first, second, third = fake.chats[5].texts
    assert here == "Here:"
    assert "telegram.file_too_large" in first
    assert first.startswith("large.txt\n\n")  # its caption
    assert second == "small.txt"
    assert "telegram.file_refused" in third


async def test_a_failed_file_of_several_does_not_repeat_the_others(
    house: House, fake: FakeTelegram, tmp_path: Path
) -> None:
    await house.open()
    fake.chat(5)
    sent = files(tmp_path, "a.txt", "b.txt", "c.txt")
    fake.fail("sendMediaGroup", 413, "Request Entity Too Large")
    fake.fail("sendDocument", 502, after=1, html=True)
    assert await house.reply(5).finish(Outbound("", tuple(sent)), [])
    assert fake.chats[5].texts == ["a.txt", "b.txt", "c.txt"]


async def test_a_large_file_arrives_whole(house: House, fake: FakeTelegram, tmp_path: Path) -> None:
    await house.open()
    fake.chat(5)
    (large,) = files(tmp_path, "large.txt", size=30 * 1024 * 1024)
    assert await house.reply(5).finish(Outbound("", (large,)), [])
    assert fake.files[fake.chats[5].shown[0]["document"]["file_id"]] == Path(large.path).read_bytes()


async def test_a_channel_that_does_not_run_says_so_and_loses_nothing(house: House) -> None:
    channel = await house.open()
    await channel.stop()
    with pytest.raises(SendError, match="not running"):
        await channel.post(house.reply(5).ref, 0, channel.render(Outbound("x"))[0], final=True)
