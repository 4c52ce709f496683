"""How replies look in WeCom: plain text and the client's own Markdown, in pieces of 2,048 bytes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.base import Choice, Outbound, OutFile
from channels.wecom.cards import MOST_BUTTONS, card, card_texts
from channels.wecom.format import LIMIT, render


def shown(text: str) -> list[str]:
    return [chunk.text for chunk in render(Outbound(text), markdown=True)]


def plain_pieces(text: str) -> list[str]:
    return [chunk.text for chunk in render(Outbound(text), markdown=False)]


def test_wx_04_a_long_chinese_answer_is_cut_by_bytes_and_joins_to_the_whole() -> None:
    text = "汉" * 700 + "😀" * 10
    pieces = plain_pieces(text)
    assert len(pieces) == 2
    assert all(len(piece.encode()) <= 2048 for piece in pieces)
    assert "".join(pieces) == text


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.sampled_from("汉字a😀é\n 。*`#>[]()|-"), max_size=4000))
def test_wx_04_no_message_is_larger_than_wecom_takes_in_either_form(text: str) -> None:
    for pieces in (shown(text), plain_pieces(text)):
        assert all(0 < len(piece.encode()) <= LIMIT for piece in pieces)
        assert all(piece.strip() for piece in pieces)


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("# Title", "# Title"),
        ("###### deep", "###### deep"),
        ("**bold** and *slanted*", "**bold** and slanted"),
        ("**注意：**后面", "**注意：**后面"),
        ("[text](https://e.com/a?b=1)", "[text](https://e.com/a?b=1)"),
        ("<https://e.com/a>", "https://e.com/a"),
        ("[mail](mailto:a@b.c)", "mail (a@b.c)"),
        ("[x](https://e.com/a(b))", "x (https://e.com/a(b))"),
        ("`code` here", "`code` here"),
        ("`` a`b ``", "a`b"),
        ("> quoted\n> twice", "> quoted\n> twice"),
        ("- one\n- two\n  - deep", "• one\n• two\n\u3000◦ deep"),
        ("3. three\n4. four", "3. three\n4. four"),
        ("```py\nx = 1\n\nif x:\n    y()\n```", "`x = 1`\n\n`if x:`\n`    y()`"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "**a** | **b**\n1 | 2"),
        ("~~no~~", "~no~"),
        ("one\n\ntwo", "one\n\ntwo"),
        ("a **b\nc** d", "a **b**\n**c** d"),
        ("![plan](https://e.com/p.png)", "[plan](https://e.com/p.png)"),
        ("---\n\nend", "──────────\n\nend"),
        ("<font color='red'>x</font>", "<font color='red'>x</font>"),
    ],
)
def test_standard_markdown_becomes_what_the_client_knows(markdown: str, expected: str) -> None:
    assert shown(markdown) == [expected]


def test_bold_and_links_that_are_cut_are_whole_on_both_sides() -> None:
    pieces = shown(f"**{'很长的句子。' * 300}** [名字](https://e.com/{'a' * 300}) 之后")
    assert len(pieces) == 3
    for piece in pieces:
        assert piece.count("**") % 2 == 0
        assert re.sub(r"\[名字\]\(https://e\.com/a{300}\)", "", piece).count("https") == 0
    words = re.sub(r"\*\*|\[|\]\(https[^)]*\)", "", "".join(pieces))
    assert words == "很长的句子。" * 300 + " 名字 之后"


def test_a_cut_falls_between_paragraphs_where_it_can() -> None:
    paragraphs = [f"{number} " + "字" * 200 for number in range(8)]
    pieces = shown("\n\n".join(paragraphs))
    assert "\n\n".join(pieces) == "\n\n".join(paragraphs)
    assert len(pieces) == 3


def test_a_quote_that_is_cut_stays_a_quote() -> None:
    pieces = shown("> " + "引用的话。" * 300)
    assert len(pieces) == 3
    assert all(piece.startswith("> ") for piece in pieces)


def test_a_file_follows_its_caption_and_text_stands_before_it() -> None:
    file = OutFile("/tmp/a.pdf", "a.pdf", caption="**the** plan")
    chunks = render(Outbound("Here:", (file,)), markdown=False)
    assert [(chunk.text, chunk.file) for chunk in chunks] == [("Here:", None), ("the plan", None), ("", file)]


def test_a_card_shows_a_short_question_whole_and_refuses_to_cut_a_long_one() -> None:
    assert card_texts("**Run it?**\n\n`rm -r build`") == ("Run it?", "rm -r build")
    assert card_texts("短问题") == ("短问题", "")
    assert card_texts("长" * 37) is None
    assert card_texts("Run?\n" + "x" * 161) is None


def test_a_card_has_a_button_a_choice() -> None:
    choices = [Choice("a:1", "是", "primary"), Choice("a:2", "否", "danger")]
    made = card("q1", "标题", "", choices)
    assert [button["key"] for button in made["button_list"]] == ["a:1", "a:2"]
    assert "sub_title_text" not in made
    assert len(choices) <= MOST_BUTTONS
