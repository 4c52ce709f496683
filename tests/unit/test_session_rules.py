"""Which messages share a conversation, and when one begins anew by itself."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from agent.history import User
from tests.fakes.hall import Hall, echo
from tests.unit.test_pairing import Clock

Halls = Callable[..., Hall]


def turns(hall: Hall) -> int:
    """How many of people's messages the last request showed."""
    return sum(isinstance(entry, User) for entry in hall.model.requests[-1].entries)


async def say(hall: Hall, text: str) -> int:
    before = len(hall.seen())
    await hall.say(text)
    await hall.room.until(lambda: len(hall.seen()) > before)
    return turns(hall)


def at(hour: int, day: int = 15) -> float:
    return time.mktime((2026, 6, day, hour, 0, 0, 0, 0, -1))


async def test_an_idle_conversation_begins_anew_after_its_time(halls: Halls) -> None:
    clock = Clock()
    hall = await halls(echo, clock=clock, reset="idle").start()
    assert await say(hall, "one") == 1
    clock.now += 23 * 3600
    assert await say(hall, "two") == 2
    clock.now += 25 * 3600
    assert await say(hall, "three") == 1


async def test_a_daily_conversation_begins_anew_at_its_hour_also_after_a_restart(halls: Halls) -> None:
    clock = Clock()
    clock.now = at(3)
    hall = await halls(echo, clock=clock, reset="daily").start()
    assert await say(hall, "late at night") == 1
    clock.now = at(3) + 1800
    assert await say(hall, "still the same day") == 2
    await hall.stop()
    again = await halls(echo, clock=clock, reset="daily").start()
    clock.now = at(5)
    assert await say(again, "good morning") == 1
    clock.now = at(23)
    assert await say(again, "good night") == 2


@pytest.mark.parametrize(
    ("scope", "shared"), [("thread", 2), ("chat", 3), ("person", 1), ("person_in_chat", 1)]
)
async def test_the_scope_decides_what_a_group_shares(halls: Halls, scope: str, shared: int) -> None:
    hall = await halls(echo, scopes={"direct": "thread", "group": scope, "channel": "thread"}).start()
    for who, thread in (("ann", "t2"), ("ann", "t1"), ("bob", "t1")):
        before = len(hall.seen("g1"))
        await hall.write(f"from {who}", who, thread=thread)
        await hall.room.until(lambda n=before: len(hall.seen("g1")) > n)
    assert turns(hall) == shared
