"""Markdown as people read it where nothing is formatted, and pieces counted in bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.wechat.plain import MAX_BYTES, plain, split_bytes


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("plain words", "plain words"),
        ("**注意：**后面 *斜体* `code`", "注意：后面 斜体 code"),
        ("# 标题\n正文", "【标题】\n正文"),
        ("a\n\nb\nc", "a\n\nb\nc"),
        ("- 一\n- 二\n  - 三", "• 一\n• 二\n  ◦ 三"),
        ("3. 三\n4. 四", "3. 三\n4. 四"),
        ("- [x] done\n- [ ] open", "☑ done\n☐ open"),
        ("[文档](https://a.cn/x?a=1&b=(2))", "文档 (https://a.cn/x?a=1&b=(2))"),
        ("<https://a.cn/x>", "https://a.cn/x"),
        ("[https://a.cn](https://a.cn/)", "https://a.cn"),
        ("[mail](mailto:a@b.cn) <a@b.cn>", "mail (a@b.cn) a@b.cn"),
        ("![图](https://a.cn/x.png)", "图 (https://a.cn/x.png)"),
        ("![](data:image/png;base64,AAAA)", "🖼"),
        ("```py\nif m[i[0]]>1:\n    x\n```", "if m[i[0]]>1:\n    x"),
        ("> 引用\n> 二\n\n后", "│ 引用\n│ 二\n\n后"),
        ("上\n\n---\n\n下", "上\n\n──────────\n\n下"),
        ("~~旧价~~ 新价", "~旧价~ 新价"),
        ("a_b_c 2*3*4 <b>x</b> $x^2$", "a_b_c 2*3*4 <b>x</b> $x^2$"),
        ("```\n```", "```\n```"),
        ("a\x00b\x1bc\u202ed &#x202e;e", "abcd e"),
        ("", ""),
    ],
)
def test_markdown_becomes_readable_plain_text(markdown: str, shown: str) -> None:
    assert plain(markdown) == shown


def test_a_small_table_stays_a_table_and_a_wide_one_becomes_lines() -> None:
    assert plain("| a | b |\n|---|---|\n| 1 | 2 |") == "a | b\n1 | 2"
    wide = "| 名称 | 价格 | 说明 |\n|--|--|--|\n| 苹果 | 3 | 又甜又脆的红苹果又甜又脆 |\n| 梨 | 5 | |"
    assert plain(wide) == "• 名称: 苹果\n  价格: 3\n  说明: 又甜又脆的红苹果又甜又脆\n• 名称: 梨\n  价格: 5"
    two = "| 词 | 意思 |\n|--|--|\n| 一个比较长的词语 | 一个更长更长更长的解释 |"
    assert plain(two) == "词 | 意思\n• 一个比较长的词语: 一个更长更长更长的解释"


def test_wx_04_chinese_text_is_cut_by_bytes_and_nothing_is_lost() -> None:
    text = "汉" * 700 + "😀" * 10
    assert len(text.encode()) == 2140
    pieces = split_bytes(text)
    assert len(pieces) == 2
    assert all(len(piece.encode()) <= MAX_BYTES for piece in pieces)
    assert "".join(pieces) == text


def test_pieces_end_where_a_reader_would_pause() -> None:
    text = "第一段。" * 100 + "\n\n" + "第二段。" * 100
    assert split_bytes(text, 2000)[0] == "第一段。" * 100 + "\n\n"


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=400), st.integers(min_value=4, max_value=200))
def test_any_text_is_cut_into_valid_pieces_that_make_it_up(text: str, limit: int) -> None:
    pieces = split_bytes(text, limit)
    assert "".join(pieces) == text
    assert all(0 < len(piece.encode()) <= limit for piece in pieces)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab汉 \n*_`#>-|[]()!~1.&<:", max_size=200))
def test_rendering_never_fails_and_shows_every_letter(text: str) -> None:
    shown = plain(text)
    assert (
        [ch for ch in shown if ch == "汉"] == [ch for ch in text if ch == "汉"]
        or "](" in text
        or "]:" in text
    )
