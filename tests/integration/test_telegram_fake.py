"""The fake Bot API is driven by python-telegram-bot, whose own parser judges each of its answers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

import httpx
import pytest
from telegram import (
    Bot,
    BotCommand,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    InputFile,
    LinkPreviewOptions,
    MessageEntity,
)
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    Forbidden,
    InvalidToken,
    NetworkError,
    RetryAfter,
)

from tests.fakes.telegram import TOKEN, FakeTelegram

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 20


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram() as server:
        yield server


@contextlib.asynccontextmanager
async def library(fake: FakeTelegram, token: str = TOKEN) -> AsyncIterator[Bot]:
    async with Bot(token, base_url=f"{fake.url}/bot", base_file_url=f"{fake.url}/file/bot") as bot:
        yield bot


async def test_a_whole_conversation_is_understood_by_the_library(fake: FakeTelegram) -> None:
    async with library(fake) as bot:
        assert bot.username == "TheBot"
        fake.say(5, "hello /start @TheBot")
        fake.say(-100, "in a topic", thread=7)
        file_id = fake.file(b"data", "a.txt")
        document = {"file_id": file_id, "file_unique_id": "u", "file_name": "a.txt"}
        fake.say(5, "look", document=document)
        updates = await bot.get_updates(timeout=1)
        assert [u.message and u.message.text for u in updates] == ["hello /start @TheBot", "in a topic", None]
        first, second, third = (u.message for u in updates)
        assert first is not None
        assert second is not None
        assert third is not None
        assert third.document is not None
        assert [e.type for e in first.entities] == ["bot_command", "mention"]
        assert (second.message_thread_id, second.is_topic_message) == (7, True)
        downloaded = await (await bot.get_file(third.document.file_id)).download_as_bytearray()
        assert bytes(downloaded) == b"data"

        bold = MessageEntity("bold", 0, 2)
        sent = await bot.send_message(
            5, "😀 hi", entities=[bold], link_preview_options=LinkPreviewOptions(True)
        )
        assert (sent.text, sent.entities) == ("😀 hi", (bold,))
        edited = await bot.edit_message_text("bye", 5, sent.message_id)
        assert not isinstance(edited, bool)
        assert edited.edit_date is not None
        assert await bot.send_chat_action(5, "typing")
        assert (await bot.send_document(5, InputFile(b"x", "x.txt"), caption="c")).document
        assert (await bot.send_photo(5, InputFile(PNG, "x.png"))).photo
        assert (await bot.send_voice(5, InputFile(b"x", "x.ogg"))).voice
        assert await bot.set_my_commands([BotCommand("new", "Start anew")])
        assert (await bot.get_webhook_info()).url == ""
        assert await bot.send_message_draft(5, 1, "thinking")
        assert await bot.delete_message(5, sent.message_id)
        assert fake.chats[5].texts == ["c", "", ""]


async def test_an_update_is_given_out_until_a_larger_offset_confirms_it(fake: FakeTelegram) -> None:
    async with library(fake) as bot:
        for text in ("a", "b", "c"):
            fake.say(5, text)
        ids = [u.update_id for u in await bot.get_updates()]
        assert [u.update_id for u in await bot.get_updates()] == ids
        assert [u.update_id for u in await bot.get_updates(offset=ids[1])] == ids[1:]
        assert [u.update_id for u in await bot.get_updates(offset=-1)] == ids[2:]
        assert [u.update_id for u in await bot.get_updates(offset=ids[2] + 1)] == []


async def test_a_long_poll_ends_when_something_comes(fake: FakeTelegram) -> None:
    async with library(fake) as bot, asyncio.TaskGroup() as group:
        poll = group.create_task(bot.get_updates(timeout=20))
        await fake.wait_for(lambda: fake.called("getUpdates"))
        fake.say(5, "now")
        assert len(await asyncio.wait_for(poll, 5)) == 1


async def test_a_second_poll_ends_the_first_with_a_conflict(fake: FakeTelegram) -> None:
    async with library(fake) as one, library(fake) as two:
        first = asyncio.create_task(one.get_updates(timeout=20))
        await fake.wait_for(lambda: fake.called("getUpdates"))
        await two.get_updates(timeout=0)
        with pytest.raises(Conflict, match="terminated by other getUpdates request"):
            await asyncio.wait_for(first, 5)
        await two.set_webhook("https://example.org/hook")
        with pytest.raises(Conflict, match="webhook is active"):
            await two.get_updates(timeout=0)


@pytest.mark.parametrize(
    ("text", "entities", "words"),
    [
        ("a" * 4097, [], "message is too long"),
        ("😀" * 2049, [], "message is too long"),
        (" \n ", [], "text must be non-empty"),
        ("\u200b", [], "text must be non-empty"),
        ("😀", [MessageEntity("bold", 1, 1)], "middle of a UTF-16 symbol"),
        ("abc", [MessageEntity("bold", 1, 9)], "ends after the end of the text"),
        ("abcd", [MessageEntity("bold", 0, 3), MessageEntity("italic", 2, 2)], "overlap"),
        ("abcd", [MessageEntity("bold", 0, 4), MessageEntity("code", 1, 2)], "code nests"),
        ("abcd", [MessageEntity("text_link", 0, 4, url="/etc/passwd")], "drop the link"),
        ("a\rb", [], "silently"),
    ],
)
async def test_texts_that_the_server_would_refuse_or_spoil_are_refused(
    fake: FakeTelegram, text: str, entities: list[MessageEntity], words: str
) -> None:
    fake.chat(5)
    async with library(fake) as bot:
        with pytest.raises(BadRequest, match=f"(?i){words}"):
            await bot.send_message(5, text, entities=entities)
        with pytest.raises(BadRequest, match='end tag corresponding to start tag "b"'):
            await bot.send_message(5, "<b>x", parse_mode="HTML")


async def test_places_that_do_not_exist_are_refused_in_the_servers_words(fake: FakeTelegram) -> None:
    fake.chat(5)
    fake.chat(6, gone="Forbidden: bot was blocked by the user")
    fake.chat(-1, migrated_to=-2)
    fake.chat(-100, is_forum=True, topics={7})
    async with library(fake) as bot:
        with pytest.raises(BadRequest, match=r"(?i)chat not found"):
            await bot.send_message(99, "x")
        with pytest.raises(Forbidden, match="blocked"):
            await bot.send_message(6, "x")
        with pytest.raises(ChatMigrated):
            await bot.send_message(-1, "x")
        for thread in (1, 8):
            with pytest.raises(BadRequest, match=r"(?i)message thread not found"):
                await bot.send_message(-100, "x", message_thread_id=thread)
        assert await bot.send_chat_action(-100, "typing", message_thread_id=1)
        message = await bot.send_message(-100, "x", message_thread_id=7)
        with pytest.raises(BadRequest, match=r"(?i)message is not modified"):
            await bot.edit_message_text("x", -100, message.message_id)
        with pytest.raises(BadRequest, match=r"(?i)message to edit not found"):
            await bot.edit_message_text("y", -100, 1)


async def test_buttons_are_refused_over_64_bytes_and_answered_only_in_time(fake: FakeTelegram) -> None:
    fake.chat(5)
    async with library(fake) as bot:
        with pytest.raises(BadRequest, match=r"(?i)button_data_invalid"):
            await bot.send_message(5, "?", reply_markup=buttons("é" * 33))
        message = await bot.send_message(5, "?", reply_markup=buttons("é" * 32))
        query = fake.press(5, message.message_id, "é" * 32)
        (update,) = await bot.get_updates()
        assert update.callback_query is not None
        assert update.callback_query.data == "é" * 32
        with pytest.raises(BadRequest, match=r"(?i)message_too_long"):
            await bot.answer_callback_query(query, "x" * 201)
        query = fake.press(5, message.message_id, "é" * 32)
        assert await bot.answer_callback_query(query, "x" * 200)
        with pytest.raises(BadRequest, match=r"(?i)query is too old"):
            await bot.answer_callback_query(query)
        fake.query_life = 0
        with pytest.raises(BadRequest, match=r"(?i)query is too old"):
            await bot.answer_callback_query(fake.press(5, message.message_id, "é" * 32))
        edited = await bot.edit_message_text("Done", 5, message.message_id)
        assert not isinstance(edited, bool)
        assert edited.reply_markup is None  # an edit without buttons takes them away


def buttons(data: str) -> InlineKeyboardMarkup:
    return InlineKeyboardMarkup([[InlineKeyboardButton("Yes", callback_data=data)]])


async def test_a_webhook_is_refused_as_the_real_server_refuses_it(fake: FakeTelegram) -> None:
    async with library(fake) as bot:
        for url, secret, words in (
            ("http://example.org/x", "a", "(?i)an https url must be provided"),
            ("https://example.org/x", "a b", "unallowed characters"),
            ("https://example.org/x", "a" * 257, "too long"),
        ):
            with pytest.raises(BadRequest, match=words):
                await bot.set_webhook(url, secret_token=secret)
        await bot.set_webhook("https://example.org/x", max_connections=500, allowed_updates=["message"])
        info = await bot.get_webhook_info()
        assert (info.url, info.max_connections, info.allowed_updates) == (
            "https://example.org/x",
            100,
            ("message",),
        )
        assert await bot.delete_webhook()
        assert (await bot.get_webhook_info()).url == ""


async def test_a_business_chat_is_written_to_only_through_a_connection_in_force(fake: FakeTelegram) -> None:
    fake.chat(5)
    fake.connections.add("BC")
    async with library(fake) as bot:
        sent = await bot.send_message(5, "hi", business_connection_id="BC")
        assert sent.business_connection_id == "BC"
        with pytest.raises(BadRequest, match=r"(?i)business connection not found"):
            await bot.send_message(5, "hi", business_connection_id="other")


@pytest.mark.filterwarnings("ignore::telegram.warnings.PTBDeprecationWarning")
async def test_faults_can_be_scripted(fake: FakeTelegram) -> None:
    fake.chat(5)
    fake.chat(6)
    async with library(fake) as bot:
        fake.fail("sendMessage", 429, retry_after=30, chat=5, after=1)
        await bot.send_message(5, "a")
        with pytest.raises(RetryAfter):
            await bot.send_message(5, "b")
        with pytest.raises(RetryAfter):  # still within the 30 s
            await bot.send_message(5, "b")
        await bot.send_message(6, "others are not concerned")
        fake.cut("sendMessage", "after", chat=6)
        with pytest.raises(NetworkError):
            await bot.send_message(6, "shown all the same")
        fake.cut("sendMessage", "before", chat=6)
        with pytest.raises(NetworkError):
            await bot.send_message(6, "never shown")
        assert fake.chats[5].texts == ["a"]
        assert fake.chats[6].texts == ["others are not concerned", "shown all the same"]


async def test_it_runs_as_a_program_that_other_processes_drive() -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fakes.telegram", "--port", "0", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert program.stdout is not None
        url = (await asyncio.wait_for(program.stdout.readline(), 20)).decode().strip()
        async with httpx.AsyncClient(base_url=url) as client:
            await client.post("/_fake/say", json={"chat": 5, "text": "hi"})
            await client.post("/_fake/fault", json={"method": "sendMessage", "code": 429, "retry_after": 0})
            updates = await client.get(f"/bot{TOKEN}/getUpdates")
            assert updates.json()["result"][0]["message"]["text"] == "hi"
            refused = await client.post(f"/bot{TOKEN}/sendMessage", json={"chat_id": 5, "text": "yo"})
            assert refused.status_code == 429
            await client.post(f"/bot{TOKEN}/sendMessage", json={"chat_id": 5, "text": "yo"})
            state = (await client.get("/_fake/state")).json()
            assert state["chats"]["5"]["texts"] == ["yo"]
            assert [call["status"] for call in state["calls"]] == [200, 429, 200]
    finally:
        program.terminate()
        await program.wait()


async def test_an_unknown_token_is_refused(fake: FakeTelegram) -> None:
    with pytest.raises(InvalidToken):
        async with library(fake, "1:wrong"):
            pass
