"""Confirmations: who may say yes, to what exactly, how often, and what a restart does to a question."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from agent.models.base import Request
from agent.tools.base import Annotations, FunctionTool, ToolContext, ToolResult
from agent.tools.policy import PolicyRule
from bridge.access import AccessRule
from channels.base import Address, Choice, Limits, Press, ReplyRef, Sender
from tests.fakes.channel import Room, RoomConfig
from tests.fakes.hall import Hall
from tests.fakes.scripted import Answer, calls, results, says

Halls = Callable[..., Hall]


class ButtonRoom(Room):
    """A room with buttons: cards as they are shown, and what they became."""

    buttons = True

    def __init__(self) -> None:
        super().__init__("room", RoomConfig(), None, Limits(max_text=0))
        self.cards: list[tuple[ReplyRef, str, Sequence[Choice]]] = []
        self.settled: dict[str, str] = {}

    async def ask(self, ref: ReplyRef, question: str, choices: Sequence[Choice]) -> str:
        self.cards.append((ref, question, choices))
        self.changed.set()
        return f"card{len(self.cards)}"

    async def settle(self, ref: ReplyRef, message_id: str, outcome: str) -> None:
        self.settled[message_id] = outcome
        self.changed.set()


class Shop:
    """A tool that sells things, so it asks first."""

    def __init__(self) -> None:
        self.sold: list[Any] = []
        self.tool = FunctionTool(
            "shop__sell",
            "sells",
            {"type": "object", "properties": {"what": {"type": "string"}}},
            self.sell,
            Annotations(False, True, True),
            source="shop",
        )

    async def sell(self, params: dict[str, Any], context: ToolContext) -> ToolResult:
        self.sold.append(params["what"])
        return ToolResult(f"sold {params['what']}")


def sells(request: Request) -> Answer:
    """Sells what the last message names; says what came of it."""
    text = [
        entry.text for entry in request.entries if hasattr(entry, "images") and not hasattr(entry, "call")
    ][-1]
    done = results(request)
    mine = [one for one in done if text.split()[-1] in one.call]
    if not mine:
        what = text.split()[-1]
        return says("") if not what else _call(what)
    return says(f"so: {mine[-1].text}")


def _call(what: str) -> Answer:
    made = calls(("shop__sell", {"what": what}))
    return replace(made, calls=(replace(made.calls[0], id=f"call-{what}"),))


def press(card: int, state: str, room: ButtonRoom, who: str, chat: str = "c1", kind: Any = "direct") -> Press:
    choice = next(one for one in room.cards[card][2] if one.id.endswith(state))
    return Press(Address("room", chat, kind), Sender(who, who, language="en"), choice.id, f"card{card + 1}")


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def start(halls: Halls, shop: Shop, **values: Any) -> tuple[Hall, ButtonRoom]:
    rule = AccessRule.model_validate(
        {"direct": "open", "groups": "open", "allow": ["u1"], "admins": ["root"]}
    )
    room = ButtonRoom()
    values = {"rules": {"room": rule}, "more_tools": (shop.tool,), "room": room, **values}
    return await halls(sells, **values).start(), room


async def test_a_call_waits_for_a_yes_and_runs_once(halls: Halls, shop: Shop) -> None:
    hall, room = await start(halls, shop)
    await hall.say("sell apples")
    await room.until(lambda: bool(room.cards))
    _, question, choices = room.cards[0]
    assert "shop__sell" in question
    assert '"what": "apples"' in question
    assert [len(one.id) <= 40 for one in choices] == [True] * 4
    assert shop.sold == []
    assert "Allowed" in str(await hall.approvals.press(press(0, "once", room, "u1")))
    await room.until(lambda: any("so: sold apples" in text for text in hall.seen()))
    assert shop.sold == ["apples"]
    assert "allowed by u1" in room.settled["card1"]
    # Pressed again, or by somebody late: nothing runs.
    assert await hall.approvals.press(press(0, "once", room, "u1")) == "This question is no longer open."
    assert shop.sold == ["apples"]


async def test_a_no_with_a_word_reaches_the_model(halls: Halls, shop: Shop) -> None:
    hall, room = await start(halls, shop)
    await hall.say("sell pears")
    await room.until(lambda: bool(room.cards))
    code = hall.approvals.waiting("room:direct:c1")[0].code
    await hall.say(f"/deny {code} they are not ripe")
    await room.until(lambda: any("not ripe" in text for text in hall.seen()))
    assert shop.sold == []
    assert "denied" in room.settled["card1"]


async def test_only_permitted_people_decide_and_the_first_answer_wins(halls: Halls, shop: Shop) -> None:
    policy = (PolicyRule(effect="ask", sources=("shop",)),)
    hall, room = await start(halls, shop, policy=policy)
    await hall.write("sell figs", "ann")
    await room.until(lambda: bool(room.cards))
    assert "An admin has to say yes" in room.cards[0][1]
    for who in ("ann", "bob", "u1"):
        refused = await hall.approvals.press(press(0, "once", room, who, "g1", "group"))
        assert refused == "You may not decide this."
    # The id of a card is worth nothing in another chat.
    assert "no longer" in str(await hall.approvals.press(press(0, "once", room, "root", "g2", "group")))
    assert shop.sold == []
    answers = await asyncio.gather(
        hall.approvals.press(press(0, "denied", room, "root", "g1", "group")),
        hall.approvals.press(press(0, "once", room, "root", "g1", "group")),
    )
    assert answers == ["Denied: shop__sell.", "This was decided already."]
    await room.until(lambda: bool(hall.seen("g1")))
    assert shop.sold == []
    log = await hall.store.channel_state("~audit").read("approvals")
    assert [entry.value["what"] for entry in log] == ["refused", "refused", "refused", "denied"]
    assert all(entry.value["arguments"] == '{"what": "figs"}' for entry in log)


async def test_a_yes_for_the_session_covers_the_tool_here_and_ends_with_new(halls: Halls, shop: Shop) -> None:
    hall, room = await start(halls, shop)
    await hall.say("sell apples")
    await room.until(lambda: bool(room.cards))
    await hall.approvals.press(press(0, "session", room, "u1"))
    await hall.say("sell nuts")
    await room.until(lambda: any("sold nuts" in text for text in hall.seen()))
    assert len(room.cards) == 1
    await hall.say("/new")
    await hall.say("sell dates")
    await room.until(lambda: len(room.cards) == 2)
    assert shop.sold == ["apples", "nuts"]


async def test_always_is_an_admins_word_and_outlives_a_restart(halls: Halls, shop: Shop) -> None:
    hall, room = await start(halls, shop)
    await hall.say("sell apples")
    await room.until(lambda: bool(room.cards))
    assert "Only an admin" in str(await hall.approvals.press(press(0, "always", room, "u1")))
    assert "Allowed" in str(await hall.approvals.press(press(0, "always", room, "root")))
    await room.until(lambda: any("sold apples" in text for text in hall.seen()))
    await hall.stop()
    again, second = await start(halls, shop)
    await again.say("sell nuts")
    await second.until(lambda: any("sold nuts" in text for text in again.seen()))
    assert second.cards == []
    await again.say("sell figs", "c2")  # a yes for always is a yes in that chat
    await second.until(lambda: len(second.cards) == 1)
    assert "figs" not in shop.sold


async def test_a_waiting_question_survives_a_restart_with_one_card(halls: Halls, shop: Shop) -> None:
    hall, room = await start(halls, shop)
    await hall.say("sell plums")
    await room.until(lambda: bool(room.cards))
    await hall.stop(grace=0)
    again, second = await start(halls, shop)
    async with asyncio.timeout(5):
        while not again.approvals.waiting("room:direct:c1"):
            await asyncio.sleep(0.005)
    # The card of before is answered, and the run that came back goes on with it.
    pressed = press(0, "once", room, "u1")
    assert "Allowed" in str(await again.approvals.press(pressed))
    await second.until(lambda: any("sold plums" in text for text in again.seen()))
    assert second.cards == []
    assert shop.sold == ["plums"]
    assert "allowed" in second.settled["card1"]


async def test_silence_is_no(halls: Halls, shop: Shop) -> None:
    hall, room = await start(halls, shop, wait=0.05)
    await hall.say("sell plums")
    await room.until(lambda: any("nobody answered in time" in text for text in hall.seen()))
    assert shop.sold == []
    assert "nobody answered" in room.settled["card1"]


async def test_several_questions_stay_apart(halls: Halls, shop: Shop) -> None:
    hall, room = await start(halls, shop)
    await hall.say("sell apples", "c1")
    await hall.say("sell pears", "c2")
    await room.until(lambda: len(room.cards) == 2)
    first, second = (hall.approvals.waiting(f"room:direct:{chat}")[0] for chat in ("c1", "c2"))
    assert first.code != second.code
    await hall.say(f"/approve {second.code.lower()}", "c2")
    await room.until(lambda: any("sold pears" in text for text in hall.seen("c2")))
    assert shop.sold == ["pears"]
    await hall.say("/approve", "c1")
    await room.until(lambda: any("sold apples" in text for text in hall.seen("c1")))


async def test_stop_settles_a_waiting_question_as_no(halls: Halls, shop: Shop) -> None:
    hall, room = await start(halls, shop)
    await hall.say("sell apples")
    await room.until(lambda: bool(room.cards))
    await hall.say("/stop")
    await room.until(lambda: bool(room.settled))
    assert "denied" in room.settled["card1"]
    assert hall.approvals.waiting("room:direct:c1") == []
    assert shop.sold == []


async def test_a_yes_holds_for_the_arguments_that_were_shown(halls: Halls, shop: Shop) -> None:
    """The same call, come back from a restart with other arguments, is not covered by the old card."""
    from agent.tools.base import Caller
    from agent.turn import Approval

    hall, room = await start(halls, shop)
    ref = ReplyRef("r1", Address("room", "c1"), "m1", "en", "u1")
    caller = Caller("u1", channel="room", chat="c1")
    one = Approval("r1", "call1", "shop__sell", "shop", {"what": "apples"}, caller)
    waiting = asyncio.create_task(hall.approvals.ask("room:direct:c1", ref, one))
    await room.until(lambda: bool(room.cards))
    changed = await hall.approvals.ask("room:direct:c1", ref, replace(one, arguments={"what": "the house"}))
    assert not changed.yes
    await hall.approvals.press(press(0, "once", room, "u1"))
    assert (await waiting).yes
