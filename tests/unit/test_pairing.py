"""Letting people in, limits of use, usage, and forgetting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bridge.access import AccessRule
from bridge.approvals import CLEAR
from bridge.ledger import UseLimits
from bridge.pairing import INVITE_SECONDS, LENGTH, MOST_WAITING, SECONDS
from channels.base import Address, Press, Sender
from tests.fakes.channel import message
from tests.fakes.hall import Hall, echo
from tests.unit.test_approvals import ButtonRoom

Halls = Callable[..., Hall]


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def rules(**values: Any) -> dict[str, AccessRule]:
    return {"room": AccessRule.model_validate({"admins": ["root"], **values})}


async def by(hall: Hall, who: str, text: str) -> None:
    inbound = message(text, who)
    sent = replace(inbound, sender=Sender(who, who.title(), language="en"))
    await hall.router.receive(sent)


def code_in(text: str) -> str:
    (code,) = [
        word.strip("*.`")
        for word in text.split()
        if len(word.strip("*.`")) == LENGTH and word.strip("*.`").isupper()
    ][:1]
    return code


async def test_a_stranger_gets_a_code_and_an_admin_lets_them_in(halls: Halls) -> None:
    hall = await halls(echo, rules=rules()).start()
    await by(hall, "ann", "what is my balance")
    await hall.room.until(lambda: bool(hall.seen("ann")))
    code = code_in(hall.seen("ann")[0])
    assert set(code) <= set(CLEAR)
    assert hall.model.requests == []
    await by(hall, "ann", "hello?")  # told a moment ago: nothing more is said
    await by(hall, "root", "/pair")
    await hall.room.until(lambda: bool(hall.seen("root")))
    assert code in hall.seen("root")[0]
    await by(hall, "root", f"/approve {code[:4].lower()}-{code[4:]}")
    await hall.room.until(lambda: len(hall.seen("root")) == 2)
    assert "Ann is let in as member" in hall.seen("root")[1]
    await by(hall, "ann", "again then")
    await hall.room.until(lambda: "re: again then" in hall.seen("ann"))
    assert len(hall.model.requests) == 1  # the message that asked was not run
    await hall.stop()
    again = await halls(echo, rules=rules()).start()
    await by(again, "ann", "still in?")
    await again.room.until(lambda: "re: still in?" in again.seen("ann"))


async def test_only_admins_let_people_in_and_a_refused_code_is_gone(halls: Halls) -> None:
    hall = await halls(echo, rules=rules(allow=["bob"])).start()
    await by(hall, "ann", "hi")
    await hall.room.until(lambda: bool(hall.seen("ann")))
    code = code_in(hall.seen("ann")[0])
    await by(hall, "bob", f"/approve {code}")
    await by(hall, "bob", f"/pair approve {code}")
    await hall.room.until(lambda: len(hall.seen("bob")) == 2)
    assert all("Only an admin" in text for text in hall.seen("bob"))
    await by(hall, "root", f"/deny {code}")
    await by(hall, "root", f"/approve {code}")
    await hall.room.until(lambda: len(hall.seen("root")) == 2)
    assert "refused" in hall.seen("root")[0]
    assert "no request" in hall.seen("root")[1]


async def test_at_most_three_wait_and_a_code_lasts_an_hour(halls: Halls) -> None:
    clock = Clock()
    hall = await halls(echo, rules=rules(), clock=clock).start()
    for number in range(MOST_WAITING + 1):
        await by(hall, f"p{number}", "hi")
    await hall.room.until(lambda: bool(hall.seen(f"p{MOST_WAITING}")))
    assert "too many people wait" in hall.seen(f"p{MOST_WAITING}")[0]
    code = code_in(hall.seen("p0")[0])
    clock.now += SECONDS + 1
    await by(hall, "root", f"/approve {code}")
    await hall.room.until(lambda: bool(hall.seen("root")))
    assert "no request" in hall.seen("root")[0]
    await by(hall, "p0", "hi again")
    await hall.room.until(lambda: len(hall.seen("p0")) == 2)
    assert code_in(hall.seen("p0")[1]) != code


async def test_an_invitation_lets_one_person_in_once(halls: Halls) -> None:
    clock = Clock()
    hall = await halls(echo, rules=rules(), clock=clock).start()
    code = await hall.pairing.invite("room", "admin")
    await by(hall, "ann", f"/start {code}")
    await hall.room.until(lambda: bool(hall.seen("ann")))
    assert "let in (as admin)" in hall.seen("ann")[0]
    await by(hall, "bob", f"/start {code}")
    await hall.room.until(lambda: bool(hall.seen("bob")))
    assert "do not know you" in hall.seen("bob")[0]
    late = await hall.pairing.invite("room", "member")
    clock.now += INVITE_SECONDS + 1
    await by(hall, "cid", f"/start {late}")
    await hall.room.until(lambda: bool(hall.seen("cid")))
    assert "do not know you" in hall.seen("cid")[0]


async def test_an_invitation_makes_more_of_somebody_who_is_in_already(halls: Halls) -> None:
    hall = await halls(echo, rules=rules(direct="open")).start()
    code = await hall.pairing.invite("room", "admin")
    await by(hall, "ann", f"/start {code}")
    await hall.room.until(lambda: bool(hall.seen("ann")))
    assert "as admin" in hall.seen("ann")[0]
    assert hall.grants.role("room", "ann") == "admin"
    await by(hall, "ann", "/start")
    await hall.room.until(lambda: len(hall.seen("ann")) == 2)
    assert "Commands" in hall.seen("ann")[1]


async def test_limits_by_the_minute_are_told_once_and_end(halls: Halls) -> None:
    clock = Clock()
    limits = UseLimits(person_messages=2)
    hall = await halls(echo, clock=clock, limits=limits).start()
    for number in range(5):
        await hall.say(str(number))
    await hall.room.until(lambda: len(hall.seen()) == 3)
    assert sum("messages a minute" in text for text in hall.seen()) == 1
    assert len(hall.model.requests) == 2
    await by(hall, "bob", "me")  # somebody else is not held back
    await hall.room.until(lambda: hall.seen("bob") == ["re: me"])
    clock.now += 61
    await hall.say("later")
    await hall.room.until(lambda: "re: later" in hall.seen())


async def test_tokens_of_the_day_end_and_a_restart_gives_no_second_day(halls: Halls) -> None:
    clock = Clock()
    limits = UseLimits(person_tokens=50)
    hall = await halls(_costly, clock=clock, limits=limits).start()
    await hall.say("one")
    await hall.room.until(lambda: "cost" in hall.seen())
    await hall.emptied()
    await hall.stop()
    again = await halls(_costly, clock=clock, limits=limits).start()
    await again.say("two")
    await again.room.until(lambda: bool(again.seen()))
    assert "tokens of today are used up" in again.seen()[0]
    clock.now += 86_400
    await again.say("three")
    await again.room.until(lambda: "cost" in again.seen())
    await again.emptied()
    await again.say("/usage")
    await again.room.until(lambda: "Use in the last" in again.seen()[-1])
    assert "2 answers, 200 + 20 tokens" in again.seen()[-1]


def _costly(request: object) -> Any:
    from agent.events import Usage
    from tests.fakes.scripted import says

    return replace(says("cost"), usage=Usage(100, 10, 50))


async def test_forget_deletes_history_and_files_after_a_yes(halls: Halls) -> None:
    hall = await halls(echo).start()
    await hall.say("my secret")
    await hall.room.until(lambda: bool(hall.seen()))
    folder = hall.folder / "sessions" / "room:direct:c1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "note.txt").write_text("secret")
    await hall.say("/forget")
    await hall.room.until(lambda: len(hall.seen()) == 2)
    assert (folder / "note.txt").exists()
    await hall.say("/forget yes")
    await hall.room.until(lambda: len(hall.seen()) == 3)
    assert not folder.exists()
    assert not await hall.store.history.exists("room:direct:c1")
    await hall.say("what did I say?")
    await hall.room.until(lambda: len(hall.seen()) == 4)
    assert len(hall.model.requests[-1].entries) == 1


async def test_a_mistyped_command_is_named_and_a_path_is_not_one(halls: Halls) -> None:
    hall = await halls(echo).start()
    for text in ("/statsu", "/usr", "/etc/hosts", "/x", "/sto", "/stat"):
        await hall.say(text)
    await hall.room.until(lambda: len(hall.seen()) == 6)
    assert "`/status`" in hall.seen()[0]
    assert "re: /etc/hosts" in hall.seen()
    assert "re: /x" in hall.seen()
    assert any("`/stop`" in text for text in hall.seen())  # what does something is named, not done
    assert any("**Model:**" in text for text in hall.seen())  # what only tells is completed


async def test_a_group_gets_no_pairing_code(halls: Halls) -> None:
    hall = await halls(echo, rules=rules()).start()
    await hall.write("hello", "ann")
    await hall.room.until(lambda: bool(hall.seen("g1")))
    assert "ask the person" in hall.seen("g1")[0].lower()
    assert await hall.pairing.waiting() == []
    await hall.write("hello", "ann", addressed=False)
    inbound = replace(message("x", "g1"), address=Address("room", "g1", "group"), addressed=False)
    await hall.router.receive(inbound)
    assert len(hall.seen("g1")) == 1


async def test_admins_are_told_in_their_chat_and_let_people_in_with_a_button(halls: Halls) -> None:
    room = ButtonRoom()
    hall = await halls(echo, rules=rules(), room=room).start()
    await by(hall, "root", "hello")
    await room.until(lambda: "re: hello" in hall.seen("root"))
    await hall.stop()
    room = ButtonRoom()
    hall = await halls(echo, rules=rules(), room=room).start()
    await by(hall, "ann", "hi")
    await room.until(lambda: bool(room.cards))
    ref, question, choices = room.cards[0]
    assert ref.address.chat == "root"
    assert "Ann (id ann)" in question
    assert all(len(choice.id) <= 40 for choice in choices)
    for who, said in (("ann", "Only an admin"), ("root", "Ann is let in as member"), ("root", "no request")):
        press = Press(Address("room", who), Sender(who, who, language="en"), choices[0].id, "card1")
        assert said in str(await hall.doorbell.press(press))
    assert "no request" in room.settled["card1"]  # pressed once more, after it was decided
    assert hall.grants.role("room", "ann") == "member"
