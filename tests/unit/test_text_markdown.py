"""The shared Markdown parser."""

from __future__ import annotations

import pytest

from channels.text import markdown_parser


def html(text: str) -> str:
    return str(markdown_parser().render(text)).strip().removeprefix("<p>").removesuffix("</p>")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("**注意：**后面**粗**吧", "<strong>注意：</strong>后面<strong>粗</strong>吧"),
        ("他说**“你好”**然后", "他说<strong>“你好”</strong>然后"),
        ("这是*斜体*字", "这是<em>斜体</em>字"),
        ("***粗斜***字", "<em><strong>粗斜</strong></em>字"),
        ("~~删除。~~后", "<s>删除。</s>后"),
        ("用`x`**（重要）**做", "用<code>x</code><strong>（重要）</strong>做"),
        ("a * b * c", "a * b * c"),
        ("**a** 字", "<strong>a</strong> 字"),
    ],
)
def test_emphasis_works_without_spaces_around_chinese(text: str, expected: str) -> None:
    assert html(text) == expected


def test_tg_08_an_underscore_inside_a_word_is_no_emphasis() -> None:
    text = "call user_id_field, then MAX_RETRY_COUNT, then _really_ stop"
    assert html(text) == "call user_id_field, then MAX_RETRY_COUNT, then <em>really</em> stop"


def test_tags_are_text() -> None:
    assert html("<b>x</b> <script>") == "&lt;b&gt;x&lt;/b&gt; &lt;script&gt;"


def test_parsers_do_not_share_rules() -> None:
    changed = markdown_parser().disable("strikethrough")
    assert str(changed.render("~~x~~")) == "<p>~~x~~</p>\n"
    assert html("~~x~~") == "<s>x</s>"
