"""Slack's text made readable: escapes once, references named, the bot's mention removed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.slack.mrkdwn_in import (
    Names,
    calls_another,
    channels_in,
    escape,
    full_text,
    mentions,
    readable,
    shared,
    unescape,
    users_in,
)

NAMES = Names({"U1": "Ann", "U2": "王小明"}, {"C9": "general"})


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ("a &lt;b&gt; &amp; c", "a <b> & c"),
        ("&amp;lt; stays an entity", "&lt; stays an entity"),
        ("&amp;amp;", "&amp;"),
        ("hi <@U1>", "hi @Ann"),
        ("hi <@U2>，你好", "hi @王小明，你好"),
        ("hi <@U7>", "hi @U7"),
        ("hi <@U7|old.label>", "hi @old.label"),
        ("see <#C1|random>", "see #random"),
        ("see <#C9> and <#C9|>", "see #general and #general"),
        ("see <#C8>", "see #C8"),
        ("<!here> <!channel> <!everyone>", "@here @channel @everyone"),
        ("<!subteam^S12|@devs> hello", "@devs hello"),
        ("<!subteam^S12>", "@S12"),
        ("at <!date^1392734382^{date_num} {time}|2014-02-18 06:39>", "at 2014-02-18 06:39"),
        ("at <!date^1392734382^{date_num}>", "at 1392734382"),
        ("<https://example.org/a?b=1&amp;c=2>", "https://example.org/a?b=1&c=2"),
        ("<https://example.org|the &amp; site>", "[the & site](https://example.org)"),
        ("<http://example.org|example.org>", "http://example.org"),
        ("<mailto:a@b.org|a@b.org>", "a@b.org"),
        ("<mailto:a@b.org|Ann>", "Ann (a@b.org)"),
        ("<tel:+4912|+49 12>", "+49 12 (+4912)"),
        ("x &lt;@U1&gt; y", "x <@U1> y"),
        ("`a &lt; b`", "`a < b`"),
        ("", ""),
    ],
)
def test_what_slack_sends_reads_as_people_wrote_it(sent: str, read: str) -> None:
    assert readable(sent, NAMES) == read


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ("<@U0BOT> hello", "hello"),
        ("<@U0BOT>: hello", "hello"),
        ("<@U0BOT>, hello", "hello"),
        ("<@U0BOT>，你好", "你好"),
        ("<@U0BOT>你好", "你好"),
        ("  <@U0BOT|causeway>   hello", "hello"),
        ("hello <@U0BOT>", "hello"),
        ("hello <@U0BOT> and <@U1>", "hello and @Ann"),
        ("<@U0BOT>", ""),
        ("<@U0BOT>\n  keep  this", "keep  this"),
        ("one\n    two  three <@U0BOT>\nfour", "one\n    two  three\nfour"),
    ],
)
def test_the_bots_mention_is_removed_and_nothing_else(sent: str, read: str) -> None:
    assert readable(sent, NAMES, "U0BOT") == read


@given(st.text())
def test_any_text_that_slack_escaped_comes_out_as_it_was(text: str) -> None:
    assert unescape(escape(text)) == text
    assert readable(escape(text), Names()) == text.strip()


@given(st.text(alphabet="<>@!#|^&;ltgampUCS019 \n", max_size=80))
def test_no_text_however_broken_is_an_error(text: str) -> None:
    readable(text, Names(), "U0")
    full_text({"text": text})


def test_ids_in_a_text_are_found_for_naming() -> None:
    text = "<@U1> <@W2|x> <#C9> <#C8|named> &lt;@U3&gt;"
    assert users_in(text) == {"U1", "W2"}
    assert channels_in(text) == {"C9"}
    assert mentions(text, "U1")
    assert not mentions(text, "U3")
    assert not mentions(text, "")


def test_a_message_that_begins_with_somebody_elses_name_is_for_them() -> None:
    assert calls_another(" <@U1> what do you think?", "U0BOT")
    assert not calls_another("<@U0BOT> <@U1> knows", "U0BOT")
    assert not calls_another("ask <@U1>", "U0BOT")


def test_words_that_stand_in_blocks_alone_are_read() -> None:
    rich = {
        "type": "rich_text",
        "elements": [
            {
                "type": "rich_text_section",
                "elements": [
                    {"type": "user", "user_id": "U1"},
                    {"type": "text", "text": " says a < b & "},
                    {"type": "link", "url": "https://example.org/?a=1&b=2", "text": "look"},
                    {"type": "emoji", "name": "tada"},
                    {"type": "broadcast", "range": "here"},
                ],
            },
            {
                "type": "rich_text_list",
                "style": "ordered",
                "elements": [
                    {"type": "rich_text_section", "elements": [{"type": "text", "text": "one"}]},
                    {"type": "rich_text_section", "elements": [{"type": "text", "text": "two"}]},
                ],
            },
            {"type": "rich_text_quote", "elements": [{"type": "text", "text": "q1\nq2"}]},
            {"type": "rich_text_preformatted", "elements": [{"type": "text", "text": "if a > b:"}]},
        ],
    }
    assert readable(full_text({"text": "", "blocks": [rich]}), NAMES) == (
        "@Ann says a < b & [look](https://example.org/?a=1&b=2):tada:@here\n"
        "1. one\n2. two\n> q1\n> q2\n```\nif a > b:\n```"
    )


def test_an_alert_of_an_app_without_text_is_read() -> None:
    blocks = [
        {"type": "header", "text": {"type": "plain_text", "text": "Disk <full>"}},
        {"type": "section", "fields": [{"type": "mrkdwn", "text": "*Host*: a &amp; b"}]},
        {"type": "context", "elements": [{"type": "mrkdwn", "text": "since 10:00"}]},
        {"type": "divider"},
        {"type": "table", "rows": [[{"type": "raw_text", "text": "x"}, {"type": "raw_text", "text": "y"}]]},
    ]
    read = readable(full_text({"blocks": blocks}), NAMES)
    assert read == "Disk <full>\n*Host*: a & b\nsince 10:00\nx | y"
    old = {
        "attachments": [{"pretext": "Build", "title": "failed", "fields": [{"title": "by", "value": "CI"}]}]
    }
    assert full_text(old) == "Build\nfailed\nby: CI"
    assert full_text({"attachments": [{"fallback": "only this"}]}) == "only this"


def test_a_links_preview_is_not_what_the_person_said() -> None:
    preview = {"from_url": "https://example.org", "title": "Example", "text": "a long page"}
    message = {"text": "see <https://example.org>", "attachments": [preview]}
    assert full_text(message) == "see <https://example.org>"


def test_forwarded_messages_are_told_apart_from_what_was_said() -> None:
    forward = {"is_share": True, "author_name": "Ann", "text": "the plan", "ts": "1.000001"}
    message = {"text": "look", "attachments": [forward, {"text": "other"}]}
    assert shared(message) == [forward]
    assert full_text(message) == "look\nother"
