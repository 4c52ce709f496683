"""The judge of the storms says what is wrong, and takes nothing amiss that is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.chaos.story import Asked, Chat, Kill, Said, Verdict, answer

ONE, TWO = answer(1, "plain", (1,)), answer(2, "plain", (2,))
ASKED = (Asked(1, "plain"), Asked(2, "plain"))
HALF = ONE.partition("line 3")[0]
REST = "line 3" + ONE.partition("line 3")[2]


def judged(*texts: str, kills: Sequence[float] = (), stops: bool = False, **commands: int) -> Verdict:
    """The verdict on messages that came a tenth of a second apart, to two questions."""
    said = [Said(text, n / 10) for n, text in enumerate(texts)]
    return Chat("c", ASKED, Counter(commands), said, [Kill(at) for at in kills], stops=stops).judge()


def faults(verdict: Verdict) -> set[str]:
    return {kind for kind in ("lost", "doubled", "disorder", "odd") if getattr(verdict, kind)}


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ((ONE, TWO), set()),
        ((HALF, REST, TWO), set()),
        ((ONE,), {"lost"}),
        ((HALF, TWO), {"lost"}),
        ((ONE, HALF, TWO), {"doubled"}),
        ((ONE, ONE, TWO), {"doubled"}),
        ((TWO, ONE), {"disorder"}),
        ((HALF, TWO, REST), {"lost", "disorder", "doubled"}),
        ((REST, TWO), {"disorder", "lost"}),
        ((HALF, REST, HALF, TWO), {"disorder"}),
        ((ONE, TWO, "Something went wrong"), {"odd"}),
    ],
)
def test_what_is_lost_doubled_or_out_of_order_is_told(texts: tuple[str, ...], found: set[str]) -> None:
    assert faults(judged(*texts)) == found


def test_the_one_call_in_flight_may_be_repeated_once_for_a_kill() -> None:
    assert faults(judged(ONE, ONE, TWO, kills=[0.05])) == set()
    assert judged(ONE, ONE, TWO, kills=[0.05]).repeated == 1
    assert faults(judged(HALF, ONE, TWO, kills=[0.05])) == set()
    assert faults(judged(ONE, ONE, ONE, TWO, kills=[0.05])) == {"doubled"}
    assert faults(judged(HALF, REST, HALF, TWO, kills=[0.15])) == {"disorder"}, "it was confirmed long ago"


def test_what_was_sent_long_before_a_kill_may_not_be_repeated() -> None:
    said = [Said(ONE, 0.0), Said(ONE, 9.0), Said(TWO, 9.1)]
    assert Chat("c", ASKED, Counter(), said, [Kill(8.0)]).judge().doubled


def test_a_stop_counts_as_the_answer_where_answers_may_be_stopped() -> None:
    assert faults(judged("(stopped)", TWO, stops=True)) == set()
    assert faults(judged(f"{HALF}\n\n(stopped)", TWO, stops=True)) == set()
    assert faults(judged("(stopped)", "(stopped)", TWO, stops=True)) == {"doubled"}
    assert faults(judged("(stopped)", TWO)) >= {"odd"}


def test_each_command_has_one_answer() -> None:
    new = "Done. This is a new conversation."
    assert faults(judged(ONE, new, TWO, new=1)) == set()
    assert faults(judged(ONE, TWO, new=1)) == {"lost"}
    assert faults(judged(ONE, new, new, TWO, new=1)) == {"doubled"}
    assert faults(judged(ONE, new, new, TWO, new=1, kills=[0.15])) == set()
