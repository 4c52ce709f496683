"""The Telegram channel against the fake Bot API, over HTTP."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from channels.base import (
    Address,
    ChannelError,
    ChatKind,
    Chunk,
    Env,
    Flooded,
    Gone,
    Inbound,
    Json,
    LogEntry,
    NotSent,
    Outbound,
    OutFile,
    Rejected,
    ReplyRef,
    SendError,
    TooLarge,
    Unknown,
)
from channels.telegram.channel import TelegramChannel, TelegramConfig
from channels.telegram.format import markdown
from tests.fakes.telegram import CONFLICT, TOKEN, FakeTelegram

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 20


class Notes:
    """The channel's durable notes, in memory."""

    def __init__(self) -> None:
        self.values: dict[str, Json] = {}

    async def get(self, key: str) -> Json:
        return self.values.get(key)

    async def put(self, key: str, value: Json) -> None:
        self.values[key] = value

    async def append(self, log: str, entry: str, value: dict[str, Any]) -> int:
        raise NotImplementedError

    async def read(self, log: str, after: int = 0, limit: int = 500) -> list[LogEntry]:
        raise NotImplementedError


class Bridge:
    """Stands where the bridge does: takes messages in, makes channels that share the notes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = Notes()
        self.got: list[Inbound] = []
        self.refuse: Callable[[Inbound], bool] = lambda _: False
        self.channels: list[TelegramChannel] = []

    def text(self, key: str, language: str = "", /, **values: object) -> str:
        return key

    async def receive(self, inbound: Inbound) -> None:
        if self.refuse(inbound):
            raise RuntimeError("the store is full")
        self.got.append(inbound)

    async def open(self, url: str, token: str = TOKEN, **settings: Any) -> TelegramChannel:
        config = TelegramConfig.model_validate({"token": token, "base_url": url, **settings})
        channel = TelegramChannel("tg", config, Env(self.notes, self.text, self.folder, time.time))
        await channel.start(self.receive)
        self.channels.append(channel)
        return channel

    @property
    def texts(self) -> list[str]:
        return [inbound.text for inbound in self.got]


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram() as server:
        yield server


@pytest.fixture
async def bridge(tmp_path: Path, fake: FakeTelegram) -> AsyncIterator[Bridge]:
    bridge = Bridge(tmp_path)
    yield bridge
    for channel in bridge.channels:
        await channel.stop()


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses between failed polls."""
    monkeypatch.setattr("channels.telegram.polling._FIRST_PAUSE", 0.02)
    monkeypatch.setattr("channels.telegram.polling._LONGEST_PAUSE", 0.1)
    monkeypatch.setattr("channels.telegram.polling._REFUSED_PAUSE", 0.05)


def ref(chat: int = 5, thread: str | None = None, to: str = "") -> ReplyRef:
    kind: ChatKind = "direct" if chat > 0 else "group"
    return ReplyRef("r1", Address("tg", str(chat), kind, thread), to)


async def show(channel: TelegramChannel, to: ReplyRef, text: str, *files: OutFile) -> list[str]:
    chunks = channel.render(Outbound(text, files))
    return [await channel.post(to, n, chunk, final=True) for n, chunk in enumerate(chunks)]


# -- receiving ---------------------------------------------------------------------------------------


async def test_a_message_comes_in_and_a_formatted_reply_goes_out(fake: FakeTelegram, bridge: Bridge) -> None:
    channel = await bridge.open(fake.url)
    fake.say(5, "hello 😀")
    await fake.wait_for(lambda: bridge.got)
    assert bridge.got[0].text == "hello 😀"
    await show(channel, ref(), "**Hi** _there_")
    (message,) = fake.chats[5].shown
    assert message["text"] == "Hi there"
    assert [e["type"] for e in message["entities"]] == ["bold", "italic"]
    assert fake.called("sendMessage")[0].params["link_preview_options"] == {"is_disabled": True}


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
    await fake.wait_for(lambda: "offset" in bridge.notes.values)
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
    bridge.notes.values["offset"] = {"next": 10**9, "at": time.time() - 7 * 86400}
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


async def test_a_webhook_left_behind_is_removed_and_waiting_updates_are_kept(
    fake: FakeTelegram, bridge: Bridge, fast: None
) -> None:
    fake.webhook = "https://example.org/old"
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
        ({"token": TOKEN, "mode": "webhook", "webhook_secret": "s"}, "channels.tg.mode"),
        ({"token": TOKEN, "base_url": "localhost:1"}, "channels.tg.base_url"),
    ],
)
async def test_settings_that_cannot_work_are_named(
    bridge: Bridge, settings: dict[str, Any], words: str
) -> None:
    config = TelegramConfig.model_validate(settings)
    channel = TelegramChannel("tg", config, Env(bridge.notes, bridge.text, bridge.folder, time.time))
    with pytest.raises(ChannelError, match=words):
        await channel.start(bridge.receive)
    await channel.stop()


# -- showing -----------------------------------------------------------------------------------------


async def test_long_text_arrives_complete_in_order(fake: FakeTelegram, bridge: Bridge) -> None:
    channel = await bridge.open(fake.url + "/bot/")
    fake.chat(5)
    text = "\n\n".join(f"Paragraph **{n}** 😀 " + "word " * 40 for n in range(80))
    ids = await show(channel, ref(), text)
    assert ids == [str(message["message_id"]) for message in fake.chats[5].shown]
    shown = " ".join(fake.chats[5].texts)
    assert shown.split() == "".join(run for run, _ in markdown(text)).split()


async def test_an_edit_replaces_and_the_same_text_again_is_success(
    fake: FakeTelegram, bridge: Bridge
) -> None:
    channel = await bridge.open(fake.url)
    fake.chat(5)
    (message_id,) = await show(channel, ref(), "half")
    for final in (False, True, True):
        (chunk,) = channel.render(Outbound("half and **whole**"))
        await channel.edit(ref(), 0, message_id, chunk, final=final)
    assert fake.chats[5].texts == ["half and whole"]
    assert [call.status for call in fake.called("editMessageText")] == [200, 400, 400]


async def test_refused_formatting_goes_plain_at_once(fake: FakeTelegram, bridge: Bridge) -> None:
    channel = await bridge.open(fake.url)
    fake.chat(5)
    broken = Chunk("text", {"entities": [{"type": "bold", "offset": 2, "length": 9}]})
    await channel.post(ref(), 0, broken, final=True)
    assert fake.chats[5].texts == ["text"]
    assert [call.status for call in fake.called("sendMessage")] == [400, 200]


async def test_each_failure_of_a_send_is_told_apart(fake: FakeTelegram, bridge: Bridge) -> None:
    channel = await bridge.open(fake.url)
    fake.chat(5)
    fake.chat(6, gone="Forbidden: bot was blocked by the user")

    async def failure(chat: int = 5) -> SendError:
        with pytest.raises(SendError) as caught:
            await show(channel, ref(chat), "x")
        return caught.value

    assert type(await failure(6)) is Gone
    assert type(await failure(99)) is Gone
    fake.fail("sendMessage", 502, html=True)
    assert type(await failure()) is NotSent
    fake.fail("sendMessage", 504, html=True)
    assert type(await failure()) is Unknown
    fake.cut("sendMessage", "after")
    assert type(await failure()) is Unknown
    assert fake.chats[5].texts == ["x"]
    fake.fail("sendMessage", 400, "Bad Request: something new")
    assert type(await failure()) is Rejected
    fake.fail("sendMessage", 429, retry_after=7, chat=5)
    flooded = await failure()
    assert isinstance(flooded, Flooded)
    assert flooded.retry_after == 7
    fake.chats[5].flood_until = 0
    await fake.stop()
    assert type(await failure()) is NotSent


async def test_no_answer_in_time_is_an_unknown_outcome(
    fake: FakeTelegram, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = await bridge.open(fake.url)
    fake.chat(5)
    monkeypatch.setattr("channels.telegram.channel.CALL_TIMEOUT", 0.3)
    fake.delay("sendMessage", 1.0)
    with pytest.raises(Unknown):
        await show(channel, ref(), "late")
    assert fake.chats[5].texts == ["late"]


async def test_a_group_that_became_a_supergroup_is_followed(fake: FakeTelegram, bridge: Bridge) -> None:
    channel = await bridge.open(fake.url)
    fake.chat(-1, migrated_to=-1002)
    fake.chat(-1002)
    await show(channel, ref(-1), "one")
    await show(channel, ref(-1), "two")
    assert fake.chats[-1002].texts == ["one", "two"]
    assert len(fake.called("sendMessage")) == 3  # the new id is remembered


async def test_growing_text_in_a_group_is_edited_no_faster_than_a_group_allows(
    fake: FakeTelegram, bridge: Bridge
) -> None:
    channel = await bridge.open(fake.url)
    fake.chat(-100)
    (message_id,) = await show(channel, ref(-100), "a")
    (chunk,) = channel.render(Outbound("a b"))
    with pytest.raises(Flooded) as caught:
        await channel.edit(ref(-100), 0, message_id, chunk, final=False)
    assert 0 < caught.value.retry_after <= 3
    assert not fake.called("editMessageText")
    await channel.edit(ref(-100), 0, message_id, chunk, final=True)  # the end waits for nothing
    assert fake.chats[-100].texts == ["a b"]


async def test_tg_13_every_call_for_a_topic_names_it(
    fake: FakeTelegram, bridge: Bridge, tmp_path: Path
) -> None:
    channel = await bridge.open(fake.url)
    fake.chat(-100, is_forum=True)
    said = fake.say(-100, "@TheBot hi", thread=7)
    fake.say(-100, "@TheBot hi", thread=8)
    fake.say(-100, "@TheBot hi")
    await fake.wait_for(lambda: len(bridge.got) == 3)
    assert [inbound.address.thread for inbound in bridge.got] == ["7", "8", None]
    picture = tmp_path / "p.png"
    picture.write_bytes(PNG)
    topic = ref(-100, "7", str(said["message_id"]))
    await channel.typing(topic)
    await show(channel, topic, "word " * 2000, OutFile(str(picture), "p.png", "image/png", "a **picture**"))
    calls = [c for c in fake.calls if c.chat == -100]
    assert [c.method for c in calls] == ["sendChatAction", *["sendMessage"] * 3, "sendPhoto"]
    assert {c.params.get("message_thread_id") for c in calls} == {"7"}
    assert fake.chats[-100].shown[0]["reply_to_message"]["message_id"] == said["message_id"]

    general = ref(-100)
    await channel.typing(general)
    await show(channel, general, "in General")
    assert fake.calls[-2].params["message_thread_id"] == "1"  # typing wants it
    assert "message_thread_id" not in fake.calls[-1].params  # sending does not
    with pytest.raises(Gone):
        await show(channel, ref(-100, "99"), "in a topic that was deleted")


async def test_a_reply_to_a_message_that_was_deleted_is_shown_all_the_same(
    fake: FakeTelegram, bridge: Bridge
) -> None:
    channel = await bridge.open(fake.url)
    fake.chat(-100)
    await show(channel, ref(-100, to="4711"), "answer")
    assert fake.chats[-100].texts == ["answer"]


async def test_typing_is_shown_and_its_failure_harms_nothing(fake: FakeTelegram, bridge: Bridge) -> None:
    channel = await bridge.open(fake.url)
    fake.chat(5)
    await channel.typing(ref())
    assert [action["action"] for action in fake.chats[5].actions] == ["typing"]
    await channel.typing(ref(99))


async def test_files_go_as_photo_or_document_with_their_caption(
    fake: FakeTelegram, bridge: Bridge, tmp_path: Path
) -> None:
    channel = await bridge.open(fake.url)
    fake.chat(5)
    for name, data in (("a.png", PNG), ("broken.png", b"not a picture"), ("b.txt", b"text")):
        (tmp_path / name).write_bytes(data)

    def file(name: str, mime: str, caption: str = "") -> OutFile:
        return OutFile(str(tmp_path / name), name, mime, caption)

    files = [
        file("a.png", "image/png", "**bold**"),
        file("broken.png", "image/png"),
        file("b.txt", "text/plain"),
    ]
    await show(channel, ref(), "See:", *files)
    text, photo, document, plain = fake.chats[5].shown
    assert text["text"] == "See:"
    assert (photo["caption"], photo["caption_entities"][0]["type"]) == ("bold", "bold")
    assert document["document"]["file_name"] == "broken.png"
    assert fake.files[plain["document"]["file_id"]] == b"text"
    with pytest.raises(Rejected, match="cannot be read"):
        await show(channel, ref(), "", file("missing.txt", "text/plain"))


async def test_a_caption_that_is_too_long_goes_on_as_text(
    fake: FakeTelegram, bridge: Bridge, tmp_path: Path
) -> None:
    channel = await bridge.open(fake.url)
    fake.chat(5)
    (tmp_path / "b.txt").write_bytes(b"text")
    caption = "word " * 300
    await show(channel, ref(), "", OutFile(str(tmp_path / "b.txt"), "b.txt", "text/plain", caption))
    assert " ".join(fake.chats[5].texts).split() == caption.split()


async def test_source_that_renders_to_nothing_is_shown_as_it_is(bridge: Bridge, fake: FakeTelegram) -> None:
    channel = await bridge.open(fake.url)
    assert [chunk.text for chunk in channel.render(Outbound("```py\n```"))] == ["```py\n```"]
    assert channel.render(Outbound(" \n")) == []


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
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


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
