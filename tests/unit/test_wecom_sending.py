"""How many messages a member gets, and which failure means what."""

from __future__ import annotations

import asyncio

import pytest

from channels.base import Flooded, Gone, NotSent, Rejected, Unknown
from channels.wecom.api import ApiError
from channels.wecom.sending import ENDING, Ledger, send_error
from tests.fakes.channel_env import MemoryState


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def state() -> MemoryState:
    return MemoryState()


async def test_the_thirty_first_message_of_a_minute_waits_for_its_turn(
    state: MemoryState, clock: Clock
) -> None:
    ledger = Ledger(state, clock)
    for number in range(30):
        await ledger.book("a", f"r:{number}", f"text {number}")
        clock.now += 1
    with pytest.raises(Flooded) as caught:
        await ledger.book("a", "r:30", "one more")
    assert 30 < caught.value.retry_after < 36
    await ledger.book("b", "r:30", "another member is not held up")
    clock.now += caught.value.retry_after
    await ledger.book("a", "r:30", "one more")


async def test_a_restart_does_not_forget_what_was_sent(state: MemoryState, clock: Clock) -> None:
    for number in range(30):
        await Ledger(state, clock).book("a", f"r:{number}", f"text {number}")
    with pytest.raises(Flooded):
        await Ledger(state, clock).book("a", "r:30", "one more")


async def test_the_thousand_and_first_message_of_an_hour_waits(state: MemoryState, clock: Clock) -> None:
    ledger = Ledger(state, clock)
    for number in range(1000):
        await ledger.book("a", f"r:{number}", f"text {number}")
        clock.now += 3
    with pytest.raises(Flooded) as caught:
        await ledger.book("a", "last", "x")
    assert 600 < caught.value.retry_after < 700


async def test_a_send_that_was_refused_does_not_count(state: MemoryState, clock: Clock) -> None:
    ledger = Ledger(state, clock)
    for _ in range(40):
        await ledger.cancel("a", await ledger.book("a", "r:0", "again"))
    await ledger.book("a", "r:0", "again")


async def test_many_at_once_are_counted_one_by_one(state: MemoryState, clock: Clock) -> None:
    ledger = Ledger(state, clock)
    results = await asyncio.gather(
        *(ledger.book("a", f"r:{number}", "x") for number in range(50)), return_exceptions=True
    )
    assert sum(isinstance(result, Flooded) for result in results) == 20


async def test_the_same_words_in_another_message_get_an_ending_of_their_own(
    state: MemoryState, clock: Clock
) -> None:
    ledger = Ledger(state, clock)
    endings = []
    for number in range(300):
        booking = await ledger.book("a", f"r{number}:0", "好的")
        endings.append(booking.ending)
        clock.now += 3.0
    assert endings[0] == ""
    assert len(set(endings)) == len(endings)
    assert all(len(ending.encode()) <= ENDING and not ending.strip("\u200b\u200c") for ending in endings)
    assert (await ledger.book("b", "x", "好的")).ending == "", "another member's messages are their own"


async def test_another_try_of_one_message_is_word_for_word_the_same_also_after_a_restart(
    state: MemoryState, clock: Clock
) -> None:
    await Ledger(state, clock).book("a", "r1:0", "好的")
    first = await Ledger(state, clock).book("a", "r2:0", "好的")
    clock.now += 600
    again = await Ledger(state, clock).book("a", "r2:0", "好的")
    assert first.ending
    assert (again.ending, again.first) == (first.ending, first.first)


async def test_a_try_that_is_too_old_to_be_known_again_is_not_repeated(
    state: MemoryState, clock: Clock
) -> None:
    ledger = Ledger(state, clock)
    await ledger.book("a", "r1:0", "x")
    clock.now += 1750
    with pytest.raises(Unknown):
        await ledger.book("a", "r1:0", "x")


@pytest.mark.parametrize(
    ("code", "taken", "kind"),
    [
        (0, "no", NotSent),
        (0, "maybe", Unknown),
        (-1, "refused", NotSent),
        (40014, "refused", NotSent),
        (42001, "refused", NotSent),
        (45009, "refused", Flooded),
        (45033, "refused", Flooded),
        (60020, "refused", NotSent),
        (301002, "refused", NotSent),
        (81013, "refused", Gone),
        (60111, "refused", Gone),
        (44004, "refused", Rejected),
        (40007, "refused", Rejected),
    ],
)
def test_each_failure_says_what_to_do_next(code: int, taken: str, kind: type[Exception]) -> None:
    assert type(send_error(ApiError("message/send", code, "because", taken))) is kind  # type: ignore[arg-type]


def test_a_refused_address_is_named_with_the_menu_where_it_is_let_in() -> None:
    reason = (
        "not allow to access from your ip, hint: [165588], from ip: 203.0.113.9, "
        "more info at https://open.work.weixin.qq.com/devtool/query?e=60020"
    )
    error = send_error(ApiError("message/send", 60020, reason, "refused"))
    assert "203.0.113.9" in str(error)
    assert "企业可信IP" in str(error)
    assert "hint" not in str(error)
    assert "https" not in str(error)


def test_a_wrong_secret_keeps_a_message_waiting_whatever_the_code() -> None:
    assert type(send_error(ApiError("gettoken", 41004, "no secret", "refused"))) is NotSent
