"""What happens to messages that come while an answer is made: modes, stops, albums, corrections, slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from agent.history import User
from agent.models.base import Request
from agent.tools.base import Annotations, FunctionTool, ToolContext, ToolResult
from bridge.slots import Slots
from channels.base import Attachment
from tests.fakes.channel import message
from tests.fakes.hall import Hall, echo
from tests.fakes.scripted import Answer, calls, last_user, results, says

Halls = Callable[..., Hall]


def users(request: Request) -> list[str]:
    return [entry.text for entry in request.entries if isinstance(entry, User)]


class Slow:
    """A tool that lasts until it is told to end."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.end = asyncio.Event()
        self.tool = FunctionTool(
            "slow", "waits", {"type": "object"}, self.run, Annotations(True, False, False), timeout=30
        )

    async def run(self, params: dict[str, object], context: ToolContext) -> ToolResult:
        self.begun.set()
        await self.end.wait()
        return ToolResult("done")


def works_then_answers(request: Request) -> Answer:
    if not results(request):
        return calls(("slow", {}))
    return says(f"heard: {' | '.join(users(request))}")


async def test_steer_takes_a_message_into_the_run_at_the_next_safe_point(halls: Halls) -> None:
    slow = Slow()
    hall = await halls(works_then_answers, busy="steer", more_tools=(slow.tool,)).start()
    await hall.say("make a cake")
    await slow.begun.wait()
    await hall.say("with cherries")
    await hall.room.until(lambda: any("take this into" in text for text in hall.seen()))
    slow.end.set()
    await hall.room.until(lambda: "heard: make a cake | with cherries" in hall.seen())
    await hall.emptied()


async def test_a_steered_message_survives_a_restart_in_its_run(halls: Halls) -> None:
    slow = Slow()
    hall = await halls(works_then_answers, busy="steer", more_tools=(slow.tool,)).start()
    await hall.say("make a cake")
    await slow.begun.wait()
    await hall.say("with cherries")
    await hall.stop(grace=0)
    slow.end.set()
    again = await halls(works_then_answers, busy="steer", more_tools=(slow.tool,)).start()
    await again.room.until(lambda: any("heard" in text for text in again.seen()))
    said = " ".join(again.seen())
    assert said.count("make a cake") == 1
    assert said.count("with cherries") == 1
    await again.emptied()


async def test_collect_makes_one_turn_of_all_that_waits_and_keeps_the_speakers_apart(halls: Halls) -> None:
    gate = asyncio.Event()

    def answer(request: Request) -> Answer:
        if "first" in last_user(request):
            return [gate.wait, says("one")]  # type: ignore[list-item]
        return says(f"all: {last_user(request)}")

    hall = await halls(answer, busy="collect").start()
    await hall.write("first", "ann")
    await asyncio.wait_for(_until(lambda: bool(hall.model.requests)), 5)
    await hall.write("second", "bob")
    await hall.write("third", "cid")
    gate.set()
    await hall.room.until(lambda: any("all:" in text for text in hall.seen("g1")))
    (whole,) = [text for text in hall.seen("g1") if "all:" in text]
    assert "[Bob (id bob) writes]\nsecond" in whole
    assert "[Cid (id cid) writes]\nthird" in whole
    assert len(hall.model.requests) == 2
    assert sum("together" in text for text in hall.seen("g1")) == 2  # each of them was told


async def test_interrupt_stops_the_answer_and_turns_to_the_new_message(halls: Halls) -> None:
    def answer(request: Request) -> Answer:
        if last_user(request) == "long":
            return [asyncio.Event().wait, says("never")]  # type: ignore[list-item]
        return says(f"re: {last_user(request)}")

    hall = await halls(answer, busy="interrupt").start()
    await hall.say("long")
    await asyncio.wait_for(_until(lambda: bool(hall.model.requests)), 5)
    await hall.say("short")
    await hall.room.until(lambda: "re: short" in hall.seen())
    assert any("stopped" in text for text in hall.seen())
    assert "never" not in " ".join(hall.seen())


async def test_queue_answers_one_by_one_without_a_word_about_it(halls: Halls) -> None:
    hall = await halls(echo).start()
    for number in range(5):
        await hall.say(str(number))
    await hall.room.until(lambda: len(hall.seen()) == 5)
    assert hall.seen() == [f"re: {number}" for number in range(5)]


async def test_queue_mode_is_set_by_a_command_and_kept_over_a_restart(halls: Halls) -> None:
    hall = await halls(echo).start()
    await hall.say("/queue stear")
    await hall.say("/queue steer")
    await hall.room.until(lambda: len(hall.seen()) == 2)
    assert "no way 'stear'" in hall.seen()[0]
    await hall.stop()
    again = await halls(echo).start()
    await again.say("/queue")
    await again.room.until(lambda: len(again.seen()) == 1)
    assert "**steer**" in again.seen()[0]


async def test_an_album_is_one_turn_however_its_parts_come(halls: Halls) -> None:
    hall = await halls(echo).start()
    hall.room.files.update({f"p{n}": b"\x89PNG" for n in range(4)})
    for number in range(4):
        picture = Attachment("image", f"p{number}", "image/png", f"p{number}.png")
        await hall.say("look" if number == 0 else "", album="a1", attachments=(picture,))
    await hall.say("and this?")
    await hall.room.until(lambda: len(hall.seen()) == 2)
    assert hall.seen() == ["re: look", "re: and this?"]
    (first,) = [entry for entry in hall.model.requests[0].entries if isinstance(entry, User)]
    assert len(first.images) == 4


async def test_a_correction_changes_a_waiting_message_and_never_starts_a_turn(halls: Halls) -> None:
    gate = asyncio.Event()

    def answer(request: Request) -> Answer:
        return [gate.wait, says(f"re: {last_user(request)}")]  # type: ignore[list-item]

    hall = await halls(answer).start()
    first, second = message("one"), message("tow")
    await hall.router.receive(first)
    await asyncio.wait_for(_until(lambda: bool(hall.model.requests)), 5)
    await hall.router.receive(second)
    await hall.router.receive(replace(second, id="e1", text="two", replaces=second.id))
    await hall.router.receive(replace(first, id="e2", text="zzz", replaces="unknown"))
    gate.set()
    await hall.room.until(lambda: len(hall.seen()) == 2)
    assert hall.seen() == ["re: one", "re: two"]
    assert len(hall.model.requests) == 2


async def test_stop_in_a_group_is_for_the_asker_or_an_admin_and_drops_only_their_own_ag_07(
    halls: Halls,
) -> None:
    hall = await halls(lambda request: [asyncio.Event().wait, says("never")]).start()
    hall.rules["room"].admins.append("root")
    await hall.write("work", "ann")
    await asyncio.wait_for(_until(lambda: bool(hall.model.requests)), 5)
    await hall.write("me too", "bob")
    await hall.write("and me", "cid")
    await hall.write("/stop", "bob", cue="command")
    await hall.room.until(lambda: any("somebody else" in text for text in hall.seen("g1")))
    assert "Your 1 waiting" in hall.seen("g1")[-1]
    assert hall.sessions.busy("room:group:g1")
    await hall.write("/stop", "ann", cue="command")
    await hall.room.until(lambda: any(text == "Stopped." for text in hall.seen("g1")))
    # What Cid had sent is still answered, with a run of its own that an admin may stop.
    await asyncio.wait_for(_until(lambda: "and me" in last_user(hall.model.requests[-1])), 5)
    await hall.write("/stop", "root", cue="command")
    await hall.room.until(lambda: hall.seen("g1").count("Stopped.") == 2)
    await asyncio.wait_for(_until(lambda: not hall.sessions.busy("room:group:g1")), 5)
    await hall.write("/stop", "ann", cue="command")
    await hall.room.until(lambda: "nothing to stop" in hall.seen("g1")[-1])


async def test_new_takes_effect_between_turns_ag_02(halls: Halls) -> None:
    gate = asyncio.Event()

    def answer(request: Request) -> Answer:
        if last_user(request) == "one":
            return [gate.wait, says("re: one")]  # type: ignore[list-item]
        return echo(request)

    hall = await halls(answer).start()
    await hall.say("one")
    await hall.say("two")
    await hall.say("/new")
    await hall.say("b", "c2")  # another chat is answered at once
    await hall.room.until(lambda: hall.seen("c2") == ["re: b"])
    gate.set()
    await hall.say("three")
    await hall.room.until(lambda: len(hall.seen()) == 4)
    assert [hall.seen()[0], hall.seen()[1], hall.seen()[3]] == ["re: one", "re: two", "re: three"]
    asked = {last_user(request): users(request) for request in hall.model.requests}
    assert asked["two"] == ["one", "two"]
    assert asked["three"] == ["three"]


async def test_slots_are_fair_between_people_and_bounded_for_each() -> None:
    slots, order, gate = Slots(2, person=1), list[str](), asyncio.Event()

    async def run(person: str, name: str) -> None:
        async with slots.hold(person, f"chat {name}"):
            order.append(name)
            await gate.wait()

    tasks = [asyncio.create_task(run("ann", f"a{n}")) for n in range(5)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(run("bob", "b0")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order == ["a0", "b0"]  # Bob does not wait behind Ann's five
    assert slots.running == 2
    tasks[1].cancel()
    gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(order) == ["a0", "a2", "a3", "a4", "b0"]
    assert slots.running == 0
    async with slots.hold("ann", "x"):
        assert slots.running == 1


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)
