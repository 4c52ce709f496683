"""Markdown as Slack shows it, in both dialects, and cut into messages."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt

from channels.base import Outbound, OutFile
from channels.slack.blocks import MAX_TEXT, render, text_chunks
from channels.slack.streaming import joint


def md(text: str) -> str:
    (chunk,) = text_chunks(text)
    return chunk.text + str(chunk.data["close"])


def mrkdwn(text: str) -> str:
    (chunk,) = text_chunks(text)
    return str(chunk.data["mrkdwn"])


def seen(markdown: str) -> str:
    """The words that a CommonMark reader sees, without markup."""
    return "".join(
        child.content if child.type in ("text", "code_inline") else "\n"
        for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown)
        for child in (token.children or ([token] if token.type == "fence" else []))
        if child.type in ("text", "code_inline", "softbreak", "hardbreak")
    )


SL_05 = "**Status:**OK\n\n**CPU:**45%\n\n***both***\n\n## Title\n"
SL_05_CODE = "```\n**Status:**OK\n**CPU:**45%\n***both***\n## Title\n```"


def test_sl_05_no_asterisks_or_hashes_are_left_and_code_is_unchanged() -> None:
    shown = md(SL_05 + "\n" + SL_05_CODE)
    assert SL_05_CODE in shown
    words = seen(shown.replace(SL_05_CODE, ""))
    assert "*" not in words
    assert "#" not in words
    plain = mrkdwn(SL_05 + "\n" + SL_05_CODE)
    assert SL_05_CODE in plain
    outside = plain.replace(SL_05_CODE, "")
    assert "**" not in outside
    assert "#" not in outside
    lines = [line.replace("\u200b", "") for line in outside.split("\n") if line]
    assert lines == ["*Status:*OK", "*CPU:*45%", "*_both_*", "*Title*"] or lines[2] == "_*both*_"


@pytest.mark.parametrize(
    "text",
    [
        "**注意：**后面",
        "这是**“术语”**的意思",
        "**「重点」**内容",
        "~~删除的（括号）。~~后面",
        'text**"quoted"**text',
        "**`code`**next",
        "**[link](https://e.com)**next",
        "~~**a**~~b",
        "前**a**后",
    ],
)
def test_emphasis_shows_no_markers_to_a_plain_commonmark_reader(text: str) -> None:
    words = seen(md(text))
    assert "*" not in words
    assert "~" not in words


@pytest.mark.parametrize(
    "text", ["2*(3+4)*5", "foo(**kwargs) and bar(**kw)", "a ** b ** c", "2**(3+4)**5", "*args"]
)
def test_asterisks_that_mean_themselves_stay(text: str) -> None:
    assert seen(md(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "<!channel> look",
        "<!here|here> and <!everyone>",
        "<!subteam^S123|@team>",
        "<@U123ABC> <@W1|x>",
        "@channel @here @everyone",
        "[x](https://a.com|b><!channel>)",
        "[<!channel>](https://a.com)",
        "| a |\n|---|\n| <!here> |",
        "# <!channel>",
        "&lt;!channel&gt;",
        "`<!channel>`",
        "```\n<!here> <@U12345>\n```",
    ],
)
def test_what_a_model_writes_pings_nobody(text: str) -> None:
    (chunk,) = text_chunks(text)
    plain = str(chunk.data["mrkdwn"])
    live = re.compile(r"<(?:!|@|#)|(?<![\w/.])@(?:channel|here|everyone)\b")
    assert not live.search(plain)
    if chunk.data["form"] == "markdown":
        assert not live.search(chunk.text)


def test_code_that_looks_like_a_mention_goes_as_mrkdwn_where_it_can_be_escaped() -> None:
    (chunk,) = text_chunks("Write `<!channel>` to call all.")
    assert chunk.data["form"] == "mrkdwn"
    assert chunk.data["mrkdwn"] == "Write `&lt;!channel&gt;` to call all."


def test_the_three_characters_are_escaped_once() -> None:
    assert mrkdwn("a < b & c > d &amp; e") == "a &lt; b &amp; c &gt; d &amp; e"
    assert md("a < b & c") == "a &lt; b & c"
    assert mrkdwn("[a&b](https://e.com/?x=1&y=2)") == "<https://e.com/?x=1&amp;y=2|a&amp;b>"


def test_links_keep_their_targets_and_cannot_break_out() -> None:
    assert md("[x](<https://e.com/a b(c)>)") == "[x](https://e.com/a%20b%28c%29)"
    assert mrkdwn("[x](https://e.com/a|b>c)") == "<https://e.com/a%7Cb%3Ec|x>"
    assert md("[x](javascript:alert1)") == "[x](javascript:alert1)" or "javascript" in md(
        "[x](javascript:alert1)"
    )
    assert md("![chart](https://e.com/c.png)") == "[chart](https://e.com/c.png)"


def test_lists_quotes_and_tasks() -> None:
    text = "- one\n  1. two\n- [x] done\n\n> quoted\n> - item"
    assert md(text) == text
    assert mrkdwn(text) == "• one\n  1. two\n• ☑ done\n\n> quoted\n> • item"


def test_a_table_is_a_table_in_markdown_and_aligned_in_mrkdwn() -> None:
    text = "| name | n |\n|:--|--:|\n| 苹果 | 1 |\n| a \\| b | 20 |"
    assert md(text) == "| name | n |\n| :--- | ---: |\n| 苹果 | 1 |\n| a \\| b | 20 |"
    assert mrkdwn(text) == "```\nname  │  n\n──────┼───\n苹果  │  1\na | b │ 20\n```"


def test_fences_are_closed_in_every_message_and_code_is_whole() -> None:
    code = "\n".join(f"line {n}: value < {n} & more" for n in range(600))
    chunks = text_chunks(f"Here:\n\n```python\n{code}\n```\n\nDone.")
    assert len(chunks) > 3
    parts = []
    for chunk in chunks:
        assert len(chunk.text) <= MAX_TEXT
        assert len(chunk.data["mrkdwn"]) <= MAX_TEXT
        assert chunk.text.count("```") % 2 == 0
        parts += re.findall(r"```python\n(.*?)\n```", chunk.text, re.DOTALL)
    assert "\n".join(parts) == code


def test_a_code_line_longer_than_a_message_loses_nothing() -> None:
    line = "x" * 9000
    parts = [re.findall(r"```\n(.*?)\n```", c.text, re.DOTALL)[0] for c in text_chunks(f"```\n{line}\n```")]
    assert "".join(parts) == line


def test_a_table_continues_with_its_head() -> None:
    rows = "\n".join(f"| row {n} | {'v' * 40} |" for n in range(250))
    chunks = text_chunks(f"| a | b |\n|---|---|\n{rows}")
    assert len(chunks) > 2
    assert all(chunk.text.startswith("| a | b |\n| --- | --- |\n") for chunk in chunks)
    assert sum(chunk.text.count("| row ") for chunk in chunks) == 250
    assert all(chunk.text.count("\n") <= 100 for chunk in chunks)


def test_emphasis_is_closed_and_opened_again_at_a_cut() -> None:
    text = "**" + "word " * 1500 + "end**"
    chunks = text_chunks(text)
    assert len(chunks) > 1
    for chunk in chunks:
        assert chunk.text.startswith("**")
        assert chunk.text.endswith("**")
    assert " ".join(seen(c.text) for c in chunks).split() == (["word"] * 1500 + ["end"])


def test_a_list_item_cut_in_two_is_no_code_in_the_next_message() -> None:
    chunks = text_chunks("- a\n  - b\n    - " + "deep words " * 500)
    assert len(chunks) == 2
    assert chunks[1].text.startswith(("deep", "words"))


def test_a_line_at_a_cut_does_not_become_a_list() -> None:
    text = "text\n" + "\n".join(f"    - {n}" for n in range(3))
    assert seen(md(text)) == "text\n- 0\n- 1\n- 2"


def test_many_headings_do_not_pass_slacks_number_of_blocks() -> None:
    chunks = text_chunks("\n\n".join(f"## h{n}\n\ntext" for n in range(60)))
    assert all(chunk.text.count("## ") <= 20 for chunk in chunks)
    assert sum(chunk.text.count("## ") for chunk in chunks) == 60


def test_what_markdown_shows_nothing_of_is_still_said() -> None:
    assert text_chunks("[x]: https://e.com")[0].data["mrkdwn"] == "[x]: https://e.com"
    assert text_chunks("  \n ") == []


def test_files_follow_the_text_with_their_captions() -> None:
    file = OutFile("/tmp/a.png", "a.png", "image/png", "The **chart**")
    text, shown = render(Outbound("Look", (file,)))
    assert (text.text, text.file) == ("Look", None)
    assert shown.file == file
    assert shown.data["mrkdwn"] == "The *chart*"


GROWING = """## Plan

Some **bold** text, `code` and [a link](https://e.com/x) in a sentence. **注意：**后面 *soft* end.

1. first
2. second

```py
a = 1
b = "```"
```

| a | b |
|---|---|
| 1 | 2 |

Last words ~~gone~~ here.
"""


def test_what_is_steady_in_growing_text_stays() -> None:
    """A stream may append up to `steady`, and the end is the whole text, without a replacement."""
    (whole,) = text_chunks(GROWING)
    sent, jumps = "", 0
    for end in range(1, len(GROWING)):
        chunks = text_chunks(GROWING[:end])
        if not chunks:
            continue
        (chunk,) = chunks
        now = chunk.text[: joint(chunk.text, int(chunk.data["steady"]))]
        if len(now) > len(sent) and chunk.text.startswith(sent):
            assert not now[len(sent)].isspace()
            sent, jumps = now, jumps + 1
        assert whole.text.startswith(sent), (GROWING[:end], sent)
    assert jumps > 60
    assert len(sent) > len(whole.text) * 0.8
