"""Buttons, the slash command and the message shortcut, from Slack's event to what people see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from channels.base import Address, Choice, Inbound, Outbound, Press, ReplyRef
from channels.slack.channel import SlackChannel
from channels.slack.config import SlackConfig
from tests.fakes.channel_env import MemoryState, memory_env, until
from tests.fakes.slack import FakeSlack

CHOICES = (Choice("a1:yes", "Approve", "primary"), Choice("a1:no", "Deny", "danger"))


class Bridge:
    """Stands where the bridge does."""

    def __init__(self, fake: FakeSlack, folder: Path) -> None:
        self.fake = fake
        self.got: list[Inbound] = []
        self.presses: list[Press] = []
        self.words = ""
        env = replace(memory_env(folder, MemoryState()), press=self.press)
        settings = {"bot_token": fake.bot_token, "app_token": fake.app_token, "base_url": fake.url}
        self.channel = SlackChannel("slack", SlackConfig.model_validate(settings), env)

    async def press(self, press: Press) -> str:
        self.presses.append(press)
        return self.words

    async def receive(self, inbound: Inbound) -> None:
        self.got.append(inbound)

    async def answer(self, inbound: Inbound, text: str, **more: Any) -> None:
        ref = ReplyRef(f"r-{inbound.id}", inbound.address, inbound.id, person=inbound.sender.id, **more)
        for n, chunk in enumerate(self.channel.render(Outbound(text))):
            await self.channel.post(ref, n, chunk, final=True)


@pytest.fixture
async def fake() -> AsyncIterator[FakeSlack]:
    async with FakeSlack() as server:
        server.user("U1", "Ann")
        server.user("U2", "Bo", locale="zh-CN")
        server.place("C1", members=["U1", "U2"])
        yield server


@pytest.fixture
async def bridge(fake: FakeSlack, tmp_path: Path) -> AsyncIterator[Bridge]:
    bridge = Bridge(fake, tmp_path)
    await bridge.channel.start(bridge.receive)
    await until(lambda: bridge.channel.health().ok)
    yield bridge
    await bridge.channel.stop()


def ref(thread: str | None = None) -> ReplyRef:
    return ReplyRef("q1", Address("slack", "C1", "group", thread), thread or "", person="U1")


# -- buttons ---------------------------------------------------------------------------------------------


async def test_a_question_has_buttons_and_a_press_reaches_the_bridge(fake: FakeSlack, bridge: Bridge) -> None:
    root = fake.write("C1", "hi")["ts"]
    ts = await bridge.channel.ask(ref(root), "Run `rm`? **Really**", CHOICES)
    (message,) = fake.thread("C1", root).messages
    buttons = message["blocks"][-1]["elements"]
    assert [(b["text"]["text"], b["value"], b["style"]) for b in buttons] == [
        ("Approve", "a1:yes", "primary"),
        ("Deny", "a1:no", "danger"),
    ]
    bridge.words = "Not for you & <others>."
    delivery = fake.press("C1", ts, "Approve", "U2")
    await until(lambda: bridge.presses)
    (press,) = bridge.presses
    assert press.address == Address("slack", "C1", "group", root)
    assert (press.choice, press.message_id, press.sender.id) == ("a1:yes", ts, "U2")
    assert press.sender.language.startswith("zh")
    await fake.wait_for(lambda: fake.place("C1").ephemeral)
    (words,) = fake.place("C1").ephemeral
    assert (words["user"], words["text"]) == ("U2", "Not for you &amp; &lt;others&gt;.")
    assert words["thread_ts"] == root
    await until(lambda: delivery.done)


async def test_a_settled_question_shows_its_outcome_without_buttons(fake: FakeSlack, bridge: Bridge) -> None:
    ts = await bridge.channel.ask(ref(), "Run?", CHOICES)
    await bridge.channel.settle(ref(), ts, "**Approved** by Ann")
    (message,) = fake.shown("C1").messages
    assert fake.shown("C1").texts == ["**Approved** by Ann"]
    assert all(block["type"] != "actions" for block in message["blocks"])


async def test_many_and_long_choices_are_taken_by_slack(fake: FakeSlack, bridge: Bridge) -> None:
    choices = [Choice(f"c{n}", f"Choice {n} " + "long " * 30) for n in range(30)]
    await bridge.channel.ask(ref(), "Which? " + "words " * 500, choices)
    message = fake.shown("C1").messages[-1]
    actions = [block for block in message["blocks"] if block["type"] == "actions"]
    assert [len(block["elements"]) for block in actions] == [25, 5]
    assert "Choice 7 long long" in fake.shown("C1").text


async def test_a_slow_press_is_acknowledged_in_time(fake: FakeSlack, bridge: Bridge) -> None:
    ts = await bridge.channel.ask(ref(), "Run?", CHOICES)
    held, free = asyncio.Event(), asyncio.Event()

    async def press(_press: Press) -> str:
        held.set()
        await free.wait()
        return "late words"

    object.__setattr__(bridge.channel.env, "press", press)
    delivery = fake.press("C1", ts, "Deny")
    await held.wait()
    await fake.wait_for(lambda: delivery.done, 3.0)
    free.set()
    await fake.wait_for(lambda: fake.place("C1").ephemeral)


# -- /causeway -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("help", "/help"),
        ("  /status now", "/status now"),
        ("", "/help"),
        ("tell <@U2> &lt;b&gt;", "/tell @Bo <b>"),
    ],
)
async def test_the_slash_command_mirrors_the_chats_commands(
    fake: FakeSlack, bridge: Bridge, typed: str, text: str
) -> None:
    fake.command("C1", typed)
    await until(lambda: bridge.got)
    (inbound,) = bridge.got
    assert (inbound.text, inbound.cue, inbound.addressed) == (text, "command", True)
    assert inbound.address == Address("slack", "C1", "group", None)
    assert inbound.sender.name == "Ann"


async def test_the_answer_to_a_command_is_for_the_one_who_gave_it(fake: FakeSlack, bridge: Bridge) -> None:
    fake.command("C1", "help")
    await until(lambda: bridge.got)
    await bridge.answer(bridge.got[0], "These are **all**.")
    (message,) = fake.place("C1").ephemeral
    assert (message["user"], message["text"]) == ("U1", "These are *all*.")
    assert fake.shown("C1").texts == []


async def test_where_the_bot_is_not_a_command_is_answered_by_its_response_url(
    fake: FakeSlack, bridge: Bridge
) -> None:
    place = fake.place("C9", members=["U1"])
    place.members.discard(fake.bot_user)
    fake.command("C9", "help")
    await until(lambda: bridge.got)
    await bridge.answer(bridge.got[0], "Here you are.")
    (used,) = fake.responses[0]["used"]
    assert (used["response_type"], used["text"]) == ("ephemeral", "Here you are.")


async def test_two_commands_are_two_messages(fake: FakeSlack, bridge: Bridge) -> None:
    fake.command("C1", "help")
    fake.command("C1", "help")
    await until(lambda: len(bridge.got) == 2)
    assert len({inbound.id for inbound in bridge.got}) == 2


# -- Ask about this --------------------------------------------------------------------------------------


async def test_the_shortcut_asks_in_the_messages_thread_with_the_message_quoted(
    fake: FakeSlack, bridge: Bridge
) -> None:
    ts = fake.write("C1", "The build is red &amp; nobody knows <@U2>")["ts"]
    fake.shortcut("C1", ts, "ask_about_this", "U2")
    await fake.wait_for(lambda: fake.modals)
    (view,) = fake.modals
    fake.submit(view, {"question": {"question": {"type": "plain_text_input", "value": "Why <red>?"}}}, "U2")
    await until(lambda: bridge.got)
    (inbound,) = bridge.got
    assert inbound.text == "Why <red>?"
    assert inbound.quote is not None
    assert inbound.quote.text == "The build is red & nobody knows @Bo"
    assert (inbound.quote.sender, inbound.quote.message_id) == ("Ann", ts)
    assert inbound.address == Address("slack", "C1", "group", ts)
    (asked,) = fake.thread("C1", ts).messages
    assert asked["ts"] == inbound.id
    assert "Why &lt;red&gt;?" in asked["text"]


async def test_the_shortcut_says_when_the_bot_is_not_there(fake: FakeSlack, bridge: Bridge) -> None:
    ts = fake.write("C1", "words")["ts"]
    fake.shortcut("C1", ts, "ask_about_this")
    await fake.wait_for(lambda: fake.modals)
    fake.place("C1").members.discard(fake.bot_user)
    delivery = fake.submit(fake.modals[0], {"question": {"question": {"value": "Why?"}}})
    await until(lambda: delivery.done)
    assert delivery.response == {"response_action": "errors", "errors": {"question": "slack.not_here"}}
    assert bridge.got == []
