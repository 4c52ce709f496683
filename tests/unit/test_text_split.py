"""Cutting plain text: nothing lost, nothing halved, always an end."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.text import Unit, display_width, length, split_plain

UNITS: tuple[Unit, ...] = ("chars", "utf16", "bytes")
TEXTS = st.text(
    st.one_of(
        st.sampled_from("ab .\n，。！😀\u200d\ufe0f\u0301👩🏽🇩🇪가\u1100\u1161\t"),
        st.characters(exclude_categories=()),
    ),
    max_size=200,
)


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.integers(4, 40), st.sampled_from(UNITS))
def test_pieces_joined_are_the_text_and_none_is_too_long(text: str, limit: int, unit: Unit) -> None:
    pieces = split_plain(text, limit, unit)
    assert "".join(pieces) == text
    assert all(0 < length(piece, unit) <= limit for piece in pieces)


@pytest.mark.parametrize(
    ("unit", "limit"), [("chars", 0), ("utf16", 1), ("utf16", 0), ("bytes", 3), ("chars", -5)]
)
def test_tg_05_a_nonsense_limit_is_refused(unit: Unit, limit: int) -> None:
    with pytest.raises(ValueError, match="larger"):
        split_plain("text", limit, unit)


def test_tg_05_nine_thousand_letters_without_a_place_to_cut_are_cut_at_once() -> None:
    began = time.perf_counter()
    pieces = split_plain("a" * 9000, 4000, "utf16")
    assert [len(piece) for piece in pieces] == [4000, 4000, 1000]
    assert time.perf_counter() - began < 1


def test_a_million_characters_take_linear_time() -> None:
    def seconds(count: int) -> float:
        began = time.process_time()
        split_plain("字😀" * count, 4096, "utf16")
        return time.process_time() - began

    seconds(10_000)
    small = min(seconds(25_000) for _ in range(3))
    assert seconds(250_000) < 40 * small  # quadratic would be 100 times


def test_tg_02_emoji_are_counted_as_two_units_and_never_halved() -> None:
    text = "\U0001f600" * 5000
    pieces = split_plain(text, 4096, "utf16")
    assert "".join(pieces) == text
    assert [length(piece, "utf16") for piece in pieces] == [4096, 4096, 1808]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("one two\n\nthree four", "one two\n\n"),
        ("one two three\nfour five", "one two three\n"),
        ("One is. Two is here", "One is. "),
        ("第一句话说完了。第二句话也很长很长", "第一句话说完了。"),
        ("one two three four", "one two three "),
        ("他说：“好的。”然后他就走了走了走了", "他说：“好的。”"),
    ],
)
def test_a_cut_prefers_paragraph_then_line_then_sentence_then_word(text: str, first: str) -> None:
    assert split_plain(text, 15, "chars")[0] == first


@pytest.mark.parametrize(
    "grapheme",
    [
        "👩\u200d👩\u200d👧",  # family, joined by ZWJ
        "👍🏽",  # skin tone
        "e\u0301",  # combining accent
        "❤\ufe0f",  # variation selector
        "🇩🇪",  # flag of two letters
        "1\ufe0f\u20e3",  # keycap
        "\u1112\u1161\u11ab",  # Hangul in separate letters
        "\r\n",
    ],
)
@pytest.mark.parametrize("unit", UNITS)
def test_no_cut_goes_through_what_is_shown_as_one(grapheme: str, unit: Unit) -> None:
    for before in range(1, 12):
        text = "x" * before + grapheme * 6
        for piece in split_plain(text, 30, unit):
            assert piece.lstrip("x").replace(grapheme, "") == ""


def test_a_pile_of_accents_is_cut_all_the_same() -> None:
    text = "e" + "\u0301" * 500
    pieces = split_plain(text, 100, "chars")
    assert "".join(pieces) == text
    assert all(len(piece) <= 100 for piece in pieces)


def test_width_counts_columns() -> None:
    assert [display_width(text) for text in ("ab", "数字", "e\u0301", "😀", "é")] == [2, 4, 1, 2, 1]
