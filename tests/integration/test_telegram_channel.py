"""What the Telegram channel shows, against the fake Bot API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from channels.base import (
    Address,
    ChatKind,
    Chunk,
    Flooded,
    Gone,
    NotSent,
    Outbound,
    OutFile,
    Rejected,
    ReplyRef,
    SendError,
    Unknown,
)
from channels.telegram.channel import TelegramChannel
from channels.telegram.format import markdown
from tests.fakes.telegram import FakeTelegram
from tests.integration.telegram_support import Bridge

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 20


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram() as server:
        yield server


@pytest.fixture
async def bridge(tmp_path: Path, fake: FakeTelegram) -> AsyncIterator[Bridge]:
    bridge = Bridge(tmp_path)
    yield bridge
    await bridge.close()


def ref(chat: int = 5, thread: str | None = None, to: str = "") -> ReplyRef:
    kind: ChatKind = "direct" if chat > 0 else "group"
    return ReplyRef("r1", Address("tg", str(chat), kind, thread), to)


async def show(channel: TelegramChannel, to: ReplyRef, text: str, *files: OutFile) -> list[str]:
    chunks = channel.render(Outbound(text, files))
    return [await channel.post(to, n, chunk, final=True) for n, chunk in enumerate(chunks)]


# -- showing -----------------------------------------------------------------------------------------


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
    for _ in range(2):
        (chunk,) = channel.render(Outbound("half and **whole**"))
        await channel.edit(ref(), 0, message_id, chunk, final=True)
    assert fake.chats[5].texts == ["half and whole"]
    assert [call.status for call in fake.called("editMessageText")] == [200, 400]


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
    fake.chat(7)
    await fake.stop()
    assert type(await failure(7)) is NotSent


async def test_no_answer_in_time_is_an_unknown_outcome(
    fake: FakeTelegram, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = await bridge.open(fake.url)
    fake.chat(5)
    monkeypatch.setattr("channels.telegram.sending.CALL_TIMEOUT", 0.3)
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
        file("missing.txt", "text/plain"),
    ]
    await show(channel, ref(), "See:", *files)
    text, photo, document, plain, missing = fake.chats[5].shown
    assert text["text"] == "See:"
    assert (photo["caption"], photo["caption_entities"][0]["type"]) == ("bold", "bold")
    assert document["document"]["file_name"] == "broken.png"
    assert fake.files[plain["document"]["file_id"]] == b"text"
    assert "file_unreadable" in missing["text"]


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
