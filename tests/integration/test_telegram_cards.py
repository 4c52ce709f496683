"""Questions with buttons, their outcomes, reactions and the command menu in Telegram."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from channels.base import Address, Choice, Flooded, MenuEntry, Rejected, ReplyRef, SendError
from channels.telegram.cards import commands, keyboard
from channels.telegram.chats import business_chat
from tests.fakes.telegram import FakeTelegram
from tests.integration.telegram_support import Bridge

YES, NO = Choice("q1:yes", "Yes, do it", "primary"), Choice("q1:no", "No", "danger")


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram() as server:
        yield server


@pytest.fixture
async def bridge(tmp_path: Path) -> AsyncIterator[Bridge]:
    bridge = Bridge(tmp_path)
    yield bridge
    await bridge.close()


def ref(chat: int | str = 5, to: str = "", thread: str | None = None) -> ReplyRef:
    kind = "group" if str(chat).startswith("-") else "direct"
    return ReplyRef("r1", Address("tg", str(chat), kind, thread), to)  # type: ignore[arg-type]


def rows(message: dict[str, Any]) -> list[list[str]]:
    return [[b["text"] for b in row] for row in message["reply_markup"]["inline_keyboard"]]


async def test_a_question_has_buttons_whose_press_comes_back_and_an_outcome_without_them(
    fake: FakeTelegram, bridge: Bridge
) -> None:
    channel = await bridge.open(fake.url)
    assert channel.buttons
    said = fake.say(-100, "@TheBot delete it")
    question = await channel.ask(ref(-100, str(said["message_id"])), "Delete **all** files?", [YES, NO])
    (message,) = fake.chats[-100].shown
    assert question == str(message["message_id"])
    assert message["text"] == "Delete all files?"
    assert message["entities"][0]["type"] == "bold"
    assert rows(message) == [["Yes, do it", "No"]]
    assert [b["style"] for b in message["reply_markup"]["inline_keyboard"][0]] == ["primary", "danger"]
    assert message["reply_to_message"]["message_id"] == said["message_id"]

    fake.press(-100, message["message_id"], "q1:yes", user=77)
    await fake.wait_for(lambda: bridge.presses)
    assert (bridge.presses[0].choice, bridge.presses[0].message_id) == ("q1:yes", question)

    for _ in range(2):  # told twice: the second time nothing is left to do
        await channel.settle(ref(-100), question, "✅ *Deleted*, by User 77")
    (message,) = fake.chats[-100].shown
    assert message["text"] == "✅ Deleted, by User 77"
    assert "reply_markup" not in message


async def test_the_outcome_of_a_question_that_was_deleted_harms_nothing(
    fake: FakeTelegram, bridge: Bridge
) -> None:
    channel = await bridge.open(fake.url)
    fake.chat(5)
    await channel.settle(ref(), "4711", "too late")
    assert fake.chats[5].shown == []
    fake.fail("editMessageText", 429, retry_after=9, chat=5)
    with pytest.raises(Flooded):
        await channel.settle(ref(), "4711", "later")


async def test_a_long_question_is_whole_and_its_last_message_has_the_buttons(
    fake: FakeTelegram, bridge: Bridge
) -> None:
    channel = await bridge.open(fake.url)
    fake.chat(5)
    text = "word " * 1500
    question = await channel.ask(ref(), text, [YES, NO])
    first, last = fake.chats[5].shown
    assert " ".join(fake.chats[5].texts).split() == text.split()
    assert "reply_markup" not in first
    assert (str(last["message_id"]), rows(last)) == (question, [["Yes, do it", "No"]])


async def test_a_question_in_a_topic_and_in_a_business_chat_is_asked_there(
    fake: FakeTelegram, bridge: Bridge
) -> None:
    channel = await bridge.open(fake.url)
    fake.chat(-100, topics={7}, is_forum=True)
    fake.chat(5)
    fake.connections.add("c1")
    await channel.ask(ref(-100, thread="7"), "Sure?", [YES, NO])
    business = ref(business_chat("c1", 5))
    question = await channel.ask(business, "Sure?", [YES, NO])
    await channel.settle(business, question, "yes")
    assert fake.chats[-100].shown[0]["message_thread_id"] == 7
    assert fake.chats[5].texts == ["yes"]
    assert {c.params["business_connection_id"] for c in fake.calls if c.chat == 5} == {"c1"}


def test_buttons_stand_side_by_side_while_their_labels_are_readable() -> None:
    def laid(*labels: str) -> list[list[str]]:
        board = keyboard([Choice(f"c{n}", label) for n, label in enumerate(labels)])
        return [[b["text"] for b in row] for row in board["inline_keyboard"]]

    assert laid("Yes", "No") == [["Yes", "No"]]
    assert laid("允许这一次操作", "始终允许这个工具", "拒绝") == [
        ["允许这一次操作"],
        ["始终允许这个工具", "拒绝"],
    ]
    assert [len(row) for row in laid(*"abcdefghijkl")] == [7, 5]
    long = "Allow this very long thing for ever and a day and then some more"
    assert laid(long, "No") == [[long], ["No"]]
    assert len(laid("x" * 200)[0][0]) == 64


def test_what_no_keyboard_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="64 bytes"):
        keyboard([Choice("长" * 22, "x")])
    with pytest.raises(ValueError, match="64 bytes"):
        keyboard([Choice("", "x")])
    with pytest.raises(ValueError, match="100"):
        keyboard([Choice(str(n), "x") for n in range(101)])
    assert len(keyboard([Choice("x" * 64, "x")])["inline_keyboard"]) == 1


async def test_choices_that_cannot_be_buttons_are_refused_before_anything_is_sent(
    fake: FakeTelegram, bridge: Bridge
) -> None:
    channel = await bridge.open(fake.url)
    fake.chat(5)
    with pytest.raises(Rejected):
        await channel.ask(ref(), "Sure?", [Choice("x" * 65, "Yes")])
    assert fake.chats[5].shown == []


# -- reactions -------------------------------------------------------------------------------------------


async def test_a_message_taken_up_gets_the_reaction_of_the_settings(
    fake: FakeTelegram, bridge: Bridge, caplog: pytest.LogCaptureFixture
) -> None:
    said = fake.say(-100, "@TheBot hi")
    to = ref(-100, str(said["message_id"]))
    quiet = await bridge.open(fake.url)
    await quiet.acknowledge(to)
    assert not fake.called("setMessageReaction")
    await quiet.stop()
    eyes = await bridge.open(fake.url, reaction="👀")
    for _ in range(2):
        await eyes.acknowledge(to)
    original = fake.chats[-100].find(said["message_id"])
    assert original is not None
    assert original["reactions"] == ["👀"]
    await eyes.acknowledge(ref(-100, "4711"))  # deleted meanwhile
    await eyes.acknowledge(ref(-100, "no-number"))
    await eyes.stop()
    odd = await bridge.open(fake.url, reaction="🦖")
    await odd.acknowledge(to)
    assert "channels.tg.reaction" in caplog.text


# -- menu ------------------------------------------------------------------------------------------------


def entry(name: str, en: str = "a thing", zh: str = "") -> MenuEntry:
    return MenuEntry(name, {"en": en} | ({"zh": zh} if zh else {}))


async def test_the_menu_is_set_in_both_languages_and_again_only_when_it_changed(
    fake: FakeTelegram, bridge: Bridge
) -> None:
    channel = await bridge.open(fake.url)
    entries = [entry("help", "what I understand", "查看可用命令"), entry("new", "start afresh", "重新开始")]
    await channel.menu(entries)
    assert fake.menus[""][0] == {"command": "help", "description": "what I understand"}
    assert [c["description"] for c in fake.menus["zh"]] == ["查看可用命令", "重新开始"]
    await channel.menu(entries)
    assert len(fake.called("setMyCommands")) == 2
    await channel.stop()
    restarted = await bridge.open(fake.url)
    await restarted.menu(entries)
    assert len(fake.called("setMyCommands")) == 2
    await restarted.menu([*entries, entry("stop", "stop it", "停止")])
    assert len(fake.menus["zh"]) == 3


async def test_a_menu_that_is_too_much_is_shortened(fake: FakeTelegram, bridge: Bridge) -> None:
    channel = await bridge.open(fake.url)
    fake.fail("setMyCommands", 400, "Bad Request: BOT_COMMANDS_TOO_MUCH", times=2)
    await channel.menu([entry(f"c{n}") for n in range(100)])
    assert [c["command"] for c in fake.menus[""]] == [f"c{n}" for n in range(56)]
    assert len(fake.menus["zh"]) == 100


async def test_a_menu_that_could_not_be_set_is_told_and_tried_again(
    fake: FakeTelegram, bridge: Bridge
) -> None:
    channel = await bridge.open(fake.url)
    fake.fail("setMyCommands", 502, html=True)
    with pytest.raises(SendError):
        await channel.menu([entry("help")])
    await channel.menu([entry("help")])
    assert len(fake.menus[""]) == 1


def test_only_what_telegram_takes_is_in_the_menu() -> None:
    names = ["help", "Help", "two words", "x" * 33, "ok_2", "中文", "empty"]
    entries = [entry(name) for name in names[:-1]] + [MenuEntry("empty", {"en": " "})]
    entries += [entry(f"n{n}", "y" * 300) for n in range(120)]
    shown = commands(entries, "zh")
    assert [c["command"] for c in shown[:3]] == ["help", "ok_2", "n0"]
    assert len(shown) == 100
    assert max(len(c["description"]) for c in shown) == 256
