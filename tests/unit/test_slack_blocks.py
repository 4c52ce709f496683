"""The Block Kit payloads of messages and questions, and pages of blocks."""

from __future__ import annotations

import pytest

from channels.base import Choice, Chunk, Flooded
from channels.slack.blocks import MAX_TEXT, pages, payload, question, text_chunks
from channels.slack.format import parse
from channels.slack.pacing import Bucket
from tests.fakes.slack_judge import judge_blocks


def test_a_chunk_is_a_markdown_block_with_mrkdwn_beside_it() -> None:
    (chunk,) = text_chunks("**a** < b")
    assert payload(chunk) == {"text": "*a* &lt; b", "blocks": [{"type": "markdown", "text": "**a** &lt; b"}]}
    assert payload(chunk, plain=True) == {"text": "*a* &lt; b", "blocks": []}


def test_a_chunk_of_the_bridge_itself_is_shown_as_it_is() -> None:
    assert payload(Chunk("…")) == {"text": "…", "blocks": [{"type": "markdown", "text": "…"}]}


def test_a_fence_that_still_grows_is_closed_in_what_is_shown() -> None:
    (chunk,) = text_chunks("Look:\n\n```py\nx = 1")
    assert chunk.text.endswith("x = 1")
    assert payload(chunk)["blocks"][0]["text"].endswith("x = 1\n```")
    assert payload(chunk)["text"].endswith("x = 1\n```")


def test_buttons_carry_the_choices_ids_and_short_labels() -> None:
    choices = [Choice("k:1", "Yes", "primary"), Choice("k:2", "N" * 90)]
    shown = question(text_chunks("Sure?")[0], choices)
    judge_blocks(shown["blocks"])
    *_, listed, actions = shown["blocks"]
    assert [button["value"] for button in actions["elements"]] == ["k:1", "k:2"]
    assert len(actions["elements"][1]["text"]["text"]) == 75
    assert "N" * 90 in listed["text"]["text"]


def test_a_long_question_in_mrkdwn_is_cut_into_sections() -> None:
    (chunk,) = text_chunks("`<!channel>` " + "words " * 580)
    assert chunk.data["form"] == "mrkdwn"
    shown = question(chunk, [Choice("a", "A")])
    judge_blocks(shown["blocks"])
    assert "".join(block["text"]["text"] for block in shown["blocks"][:-1]) == shown["text"]


def test_a_heading_is_not_left_alone_at_the_end_of_a_message() -> None:
    text = "word " * 745 + "\n\n## Next\n\n" + "more " * 100
    first, second = pages(parse(text), MAX_TEXT)
    assert [block.kind for block in first] == ["text"]
    assert [block.kind for block in second] == ["heading", "text"]


def test_a_page_that_ends_with_its_only_heading_keeps_it() -> None:
    assert [[b.kind for b in page] for page in pages(parse("a\n\n# b"), MAX_TEXT)] == [["text", "heading"]]


def test_tokens_refill_and_a_forced_take_is_owed() -> None:
    now = [0.0]
    bucket = Bucket(2.0, 2, lambda: now[0])
    bucket.need()
    bucket.need()
    with pytest.raises(Flooded) as caught:
        bucket.need()
    assert caught.value.retry_after == 0.5
    bucket.take()
    assert bucket.wait() == 1.0
    now[0] = 10.0
    bucket.drain(3.0)
    assert bucket.wait() == 3.0
