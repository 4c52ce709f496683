"""Questions in the chat: who may answer, what counts as an answer, and what happens without one."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from agent.tools.base import Answer, Question
from bridge.questions import Questions, read_value
from channels.base import Address, Inbound, ReplyRef, Sender
from tests.fakes.channel import Room, RoomConfig, message

REF = ReplyRef("r1", Address("room", "c1"), "m1", "en")


class Table:
    def __init__(self) -> None:
        self.room = Room("room", RoomConfig(), None)
        numbers = itertools.count()
        self.questions = Questions({"room": self.room}, lambda: str(next(numbers)))

    def ask(self, question: Question) -> asyncio.Task[Answer]:
        return asyncio.create_task(self.questions.ask("s1", REF, "u1", question))

    async def shown(self, count: int) -> str:
        await self.room.until(lambda: len(self.room.seen.get("c1", [])) >= count)
        return self.room.seen["c1"][-1]

    def say(self, text: str, who: str = "u1") -> bool:
        one = message(text)
        inbound = Inbound(one.id, one.address, Sender(who), text)
        return self.questions.waits_for("s1", inbound) and self.questions.hear("s1", inbound)


FORM = Question(
    "shop",
    "How shall it be sent?",
    {
        "type": "object",
        "properties": {
            "speed": {"type": "string", "enum": ["slow", "fast"], "description": "how quick"},
            "boxes": {"type": "integer", "minimum": 1, "default": 1},
            "note": {"type": "string"},
        },
        "required": ["speed"],
    },
)


async def test_yes_and_no_are_understood_in_both_languages() -> None:
    table = Table()
    for said, action in (
        ("yes", "accept"),
        ("好", "accept"),
        ("NO", "decline"),
        ("不", "decline"),
        ("?", "cancel"),
    ):
        task = table.ask(Question("shop", "Buy it?"))
        count = len(table.room.seen.get("c1", [])) + 1
        assert "**shop** asks: Buy it?" in await table.shown(count)
        assert table.say(said)
        assert (await task).action == action


async def test_a_form_is_asked_field_by_field_and_wrong_values_are_asked_again() -> None:
    table = Table()
    task = table.ask(FORM)
    assert "(1/3) **speed** how quick" in await table.shown(1)
    assert table.say("sideways")
    assert "does not fit" in await table.shown(2)
    assert table.say("FAST")
    assert "“-” for 1" in await table.shown(3)
    assert table.say("-")
    assert "leaves it out" in await table.shown(4)
    assert table.say("-")
    assert await task == Answer("accept", {"speed": "fast", "boxes": 1})


async def test_only_the_person_who_was_asked_can_answer() -> None:
    table = Table()
    task = table.ask(Question("shop", "Buy it?"))
    await table.shown(1)
    assert not table.say("yes", who="somebody else")
    assert table.say("no")
    assert (await task).action == "decline"
    assert not table.say("yes")  # nothing is asked any more


async def test_silence_and_a_stopped_run_close_the_question() -> None:
    table = Table()
    assert await table.ask(Question("shop", "Buy it?", deadline=0.01)) == Answer("cancel")
    task = table.ask(Question("shop", "Buy it?"))
    await table.shown(2)
    task.cancel()
    await asyncio.wait({task})
    assert not table.say("yes")


async def test_a_channel_where_nobody_can_answer_is_not_asked() -> None:
    table = Table()
    Room.asks = False
    try:
        assert await table.ask(Question("shop", "Buy it?")) == Answer("cancel")
    finally:
        Room.asks = True
    assert table.room.seen == {}


async def test_three_wrong_values_end_the_form() -> None:
    table = Table()
    task = table.ask(FORM)
    for count in (1, 2, 3):
        await table.shown(count)
        assert table.say("sideways")
    assert (await task).action == "cancel"


@pytest.mark.parametrize(
    ("said", "schema", "required", "expected"),
    [
        ("3", {"type": "integer", "maximum": 3}, True, (True, 3)),
        ("4", {"type": "integer", "maximum": 3}, True, (False, 4)),
        ("3.5", {"type": "integer"}, True, (False, None)),
        ("3.5", {"type": "number"}, True, (True, 3.5)),
        ("yes", {"type": "boolean"}, True, (True, True)),
        ("否", {"type": "boolean"}, True, (True, False)),
        ("perhaps", {"type": "boolean"}, True, (False, False)),
        ("", {"type": "string"}, True, (False, "")),
        ("ab", {"type": "string", "minLength": 3}, True, (False, "ab")),
        ("-", {"type": "string"}, True, (False, None)),
        ("-", {"type": "string"}, False, (True, None)),
        ("-", {"type": "string", "default": "x"}, True, (True, "x")),
        ("b", {"oneOf": [{"const": "B", "title": "Bee"}]}, True, (True, "B")),
    ],
)
def test_values_are_read_by_the_field_s_schema(
    said: str, schema: dict[str, Any], required: bool, expected: tuple[bool, Any]
) -> None:
    assert read_value(said, schema, required=required) == expected
