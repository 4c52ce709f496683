"""Whatever a model writes: Slack takes it, it pings nobody, and nothing of it is lost."""

from __future__ import annotations

import html
import re

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from channels.base import Chunk
from channels.slack.blocks import MAX_TEXT, payload, text_chunks
from channels.slack.dialects import escape
from channels.slack.format import Block, parse, visible
from channels.slack.mrkdwn_in import Names, readable
from channels.slack.streaming import joint
from tests.fakes.slack_judge import MAX_UPDATE, judge_blocks, pings

_READER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
_WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Cf", "Co", "Cn"]), max_size=12)
_PIECES = st.one_of(
    _WORDS,
    st.sampled_from(
        [
            " ",
            "\n",
            "\n\n",
            "word",
            "**",
            "*",
            "***",
            "_",
            "~~",
            "`",
            "```",
            "\n```py\n",
            "\n```\n",
            "- ",
            "1. ",
            "\n  - ",
            "> ",
            "# ",
            "\n---\n",
            "[a](https://e.com/x?a=1&b=2)",
            "![p](https://e.com/p.png)",
            "<https://e.com>",
            "<!channel>",
            "<!here|here>",
            "<@U123ABC>",
            "<!subteam^S12345>",
            "<#C123|general>",
            "@channel",
            "@here",
            "&lt;",
            "&amp;",
            "&",
            "<",
            ">",
            "|",
            "\\",
            "\n| a | b |\n|---|:-:|\n| 1 | x \\| y |\n",
            "注意：",
            "👩‍👩‍👧",
            "x" * 300,
            "a b " * 200,
            "line\n" * 120,
        ]
    ),
)
_MARKDOWN = st.lists(_PIECES, max_size=40).map("".join)
_QUICK = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _letters(text: str) -> str:
    return "".join(ch for ch in text if ch.isalnum())


def _of(block: Block) -> str:
    cells = (cell for row in block.rows for cell in row)
    numbers = "".join(mark.marker for mark in block.lead if mark.first)
    return numbers + visible(block.atoms) + block.code + "".join(visible(cell) for cell in cells)


def _meant(text: str) -> str:
    """The letters and digits that people are meant to see."""
    blocks = parse(text)
    return _letters("".join(_of(block) for block in blocks) if blocks else text)


def _read(markdown: str) -> str:
    """The letters and digits that a reader of standard Markdown sees."""
    shown = []
    for token in _READER.parse(markdown):
        if token.type in ("fence", "code_block"):
            shown.append(token.content)
        if token.type == "list_item_open":
            shown.append(token.info)
        shown += [c.content for c in token.children or () if c.type in ("text", "code_inline")]
    return _letters("".join(shown))


def _plain(mrkdwn: str) -> str:
    return _letters(html.unescape(re.sub(r"<[^|>]*\|([^>]*)>", r"\1", mrkdwn)))


def _messages(chunk: Chunk) -> list[dict[str, object]]:
    return [dict(payload(chunk)), dict(payload(chunk, plain=True))]


@_QUICK
@given(_MARKDOWN)
def test_slack_takes_every_message_and_nobody_is_pinged(text: str) -> None:
    for chunk in text_chunks(text):
        assert len(chunk.text) + len(chunk.data["close"]) <= MAX_TEXT + 20
        for message in _messages(chunk):
            assert 0 < len(str(message["text"])) <= MAX_UPDATE
            if message["blocks"]:
                judge_blocks(message["blocks"])
            assert pings(message) == []


@_QUICK
@given(_MARKDOWN)
def test_nothing_of_a_text_is_lost_in_either_dialect(text: str) -> None:
    chunks = text_chunks(text)
    meant = _meant(text)
    rows = [len(block.rows) for block in parse(text) if block.kind == "table"]
    assume(not rows or (len(chunks) == 1 and max(rows) <= 100))  # else heads are repeated
    assert "".join(_read(c.text + c.data["close"]) for c in chunks) == meant
    plain = "".join(_plain(str(c.data["mrkdwn"])) for c in chunks)
    if rows:  # aligned columns show a link's target besides its words
        letters = iter(plain)
        assert all(ch in letters for ch in meant)
    else:
        assert plain == meant


@_QUICK
@given(_MARKDOWN)
def test_a_stream_never_begins_a_piece_with_a_blank(text: str) -> None:
    for chunk in text_chunks(text):
        end = joint(chunk.text, int(chunk.data["steady"]))
        assert 0 <= end <= len(chunk.text)
        assert end == 0 or not chunk.text[end].isspace()


@_QUICK
@given(_MARKDOWN)
def test_our_own_mrkdwn_reads_back_with_the_same_words(text: str) -> None:
    for chunk in text_chunks(text):
        mrkdwn = str(chunk.data["mrkdwn"])
        assume("](" not in mrkdwn)  # a link that is literal text
        back = re.sub(r"\[([^\]]*)\]\(https?:[^)]*\)", r"\1", readable(mrkdwn, Names()))
        assert _letters(back) == _plain(mrkdwn)


@_QUICK
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=200))
def test_what_people_type_survives_slacks_escaping_and_ours(text: str) -> None:
    assert readable(escape(text), Names()) == text.strip()
    assert pings({"text": escape(text)}) == []
