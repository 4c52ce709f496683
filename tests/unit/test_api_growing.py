"""What is appended of a growing text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.growing import BREAK, Growing


def play(*texts: str) -> list[str]:
    growing = Growing()
    return [growing.more(text, final=i == len(texts) - 1) for i, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (("a", "ab", "abc"), ["a", "b", "c"]),
        (("abc", "abc"), ["abc", ""]),
        (("abc", "a", "abcd"), ["abc", "", "d"]),
        (("abc", "ax", "axy"), ["abc", "", BREAK + "axy"]),
        (("one\ntwo", "one\n", "one\nthree"), ["one\ntwo", "", BREAK + "three"]),
        (("abc", "ab"), ["abc", ""]),
        (("",), [""]),
    ],
)
def test_what_follows_what_was_shown(texts: tuple[str, ...], shown: list[str]) -> None:
    assert play(*texts) == shown


@given(st.text(), st.lists(st.integers(0, 50)))
def test_a_text_that_only_grows_joins_to_itself(text: str, cuts: list[int]) -> None:
    parts = [text[:cut] for cut in sorted(cuts)]
    assert "".join(play(*parts, text)) == text


@given(st.text("ab\n"), st.text("ab\n"))
def test_the_end_of_what_was_shown_is_the_end_of_the_final_text(first: str, final: str) -> None:
    shown = "".join(play(first, final))
    assert shown.endswith(final.rsplit("\n", 1)[-1]) or first.startswith(final)
