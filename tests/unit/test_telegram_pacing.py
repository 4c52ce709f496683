"""How fast a chat, and all chats together, are written to."""

from __future__ import annotations

import itertools

from channels.telegram.pacing import GROUP, LONGEST_WAIT, PRIVATE, RATE, Pace, Pacer, Urgency


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def calls(
    pacer: Pacer, clock: Clock, pace: Pace, urgency: Urgency, seconds: float, step: float = 0.1
) -> list[float]:
    """Tries again and again for so long; when calls went through."""
    made = []
    end = clock.now + seconds
    while clock.now < end:
        if pacer.hold("c", pace, urgency) == 0 and pacer.take("c") == 0:
            made.append(clock.now)
        clock.now += step
    return made


def busiest(made: list[float], seconds: float) -> int:
    return max(sum(1 for at in made if start <= at < start + seconds) for start in made)


def gaps(made: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(made)]


def test_growing_text_in_a_private_chat_comes_once_a_second() -> None:
    clock = Clock()
    made = calls(Pacer(clock), clock, PRIVATE, "growing", 30)
    assert min(gaps(made)) >= 0.999
    assert len(made) >= 27


def test_growing_text_in_a_group_keeps_three_seconds_and_leaves_room_in_the_minute() -> None:
    clock = Clock()
    made = calls(Pacer(clock), clock, GROUP, "growing", 300)
    assert min(gaps(made)) >= 2.999
    assert busiest(made, 60) == GROUP.most - GROUP.kept
    assert len(made) >= 70


def test_whole_text_goes_at_once_also_right_after_growing_text() -> None:
    clock = Clock()
    pacer = Pacer(clock)
    calls(pacer, clock, GROUP, "growing", 120)
    burst = [pacer.hold("c", GROUP, "final") or pacer.take("c") for _ in range(GROUP.kept)]
    assert burst == [0.0] * GROUP.kept


def test_whole_texts_in_a_group_are_twenty_a_minute_at_most() -> None:
    clock = Clock()
    made = calls(Pacer(clock), clock, GROUP, "final", 200)
    assert busiest(made, 60) == 20


def test_a_first_sight_does_not_wait_for_the_gap() -> None:
    clock = Clock()
    pacer = Pacer(clock)
    pacer.take("c")
    assert pacer.hold("c", GROUP, "growing") == 3.0
    assert pacer.hold("c", GROUP, "new") == 0.0


def test_a_flood_pauses_its_chat_alone_for_as_long_as_the_server_says() -> None:
    clock = Clock()
    pacer = Pacer(clock)
    pacer.take("c")
    pacer.flooded("c", 30)
    clock.now += 10
    assert pacer.hold("c", PRIVATE, "final") == 20
    assert pacer.paused("c")
    assert pacer.hold("other", PRIVATE, "final") == 0
    assert not pacer.paused("other")
    clock.now += 20
    assert pacer.hold("c", PRIVATE, "final") == 0


def test_after_floods_growing_text_comes_more_slowly_and_recovers() -> None:
    clock = Clock()
    pacer = Pacer(clock)
    wanted = []
    for _ in range(5):
        pacer.flooded("c", 1)
        clock.now += 2
        pacer.take("c")
        wanted.append(pacer.hold("c", PRIVATE, "growing"))
        assert pacer.hold("c", PRIVATE, "final") == 0  # the whole text does not wait for that
    assert wanted == [2.0, 4.0, 8.0, 8.0, 8.0]
    clock.now += 301
    pacer.take("c")
    assert pacer.hold("c", PRIVATE, "growing") == 1.0


def test_all_chats_together_keep_thirty_a_second() -> None:
    clock = Clock()
    pacer = Pacer(clock)
    starts = []
    for number in range(300):
        assert pacer.hold(str(number), PRIVATE, "final") == 0
        starts.append(pacer.take(str(number)))
    taken = [at for at in starts if at <= LONGEST_WAIT]
    assert starts[: int(RATE)] == [0.0] * int(RATE)
    for second in range(1, 10):
        assert sum(1 for at in taken if second <= at < second + 1) <= RATE + 1
    assert len(taken) >= RATE * LONGEST_WAIT
    assert max(starts) > LONGEST_WAIT or len(taken) == 300


def test_no_place_is_taken_beyond_the_longest_wait() -> None:
    clock = Clock()
    pacer = Pacer(clock, rate=1)
    waits = [pacer.take(str(number)) for number in range(30)]
    assert [wait for wait in waits if wait <= LONGEST_WAIT] == [float(n) for n in range(11)]
    clock.now += 11
    assert pacer.take("late") == 0.0


def test_edits_wait_while_first_sends_need_the_room() -> None:
    clock = Clock()
    pacer = Pacer(clock)
    pacer.take("c")
    clock.now += 5
    for number in range(20):
        pacer.take(str(number))
    assert pacer.hold("c", PRIVATE, "growing") > 0
    assert pacer.paused("c")  # a typing sign can be spared, too
    assert pacer.hold("c", PRIVATE, "final") == 0
    clock.now += 1
    assert pacer.hold("c", PRIVATE, "growing") == 0


def test_a_server_of_ones_own_is_limited_only_after_it_flooded() -> None:
    clock = Clock()
    pacer = Pacer(clock, rate=None)
    assert {pacer.take(str(number)) for number in range(500)} == {0.0}
    pacer.flooded("1", 1)
    assert max(pacer.take(str(number)) for number in range(500, 600)) > 1
    clock.now += 301
    assert {pacer.take(str(number)) for number in range(600, 1100)} == {0.0}


def test_a_clock_that_is_set_back_does_not_stretch_a_pause() -> None:
    clock = Clock()
    pacer = Pacer(clock)
    for _ in range(20):
        pacer.take("c")
    pacer.flooded("c", 30)
    clock.now -= 500
    assert pacer.hold("c", GROUP, "final") == 0
    assert pacer.hold("c", GROUP, "growing") <= 0.5
    clock.now += 1
    assert pacer.hold("c", GROUP, "growing") == 0
