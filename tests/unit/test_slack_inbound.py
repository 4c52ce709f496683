"""Which Slack events are messages for the bridge, and what they become."""

from __future__ import annotations

import json
from typing import Any

import pytest

from channels.base import Inbound
from channels.slack.config import SlackConfig
from channels.slack.inbound import Identity, build, read, sender_of
from channels.slack.mrkdwn_in import Names

ME = Identity("U0BOT", "B0BOT", "T0")


def config(**settings: Any) -> SlackConfig:
    return SlackConfig.model_validate({"bot_token": "xoxb-1", "app_token": "xapp-1", **settings})


def event(**fields: Any) -> dict[str, Any]:
    base = {
        "type": "message",
        "channel": "C1",
        "channel_type": "channel",
        "user": "U1",
        "text": "hello",
        "ts": "1700000000.000100",
        "client_msg_id": "x",
    }
    return {**base, **fields}


def inbound(fields: dict[str, Any], **settings: Any) -> Inbound | None:
    found = read(fields, ME, config(**settings))
    return None if found is None else build(found, "slack", Names(), sender_of(found.data), ME)


def taken(fields: dict[str, Any], **settings: Any) -> Inbound:
    found = inbound(fields, **settings)
    assert found is not None
    return found


def test_sl_01_both_events_of_one_mention_give_the_same_message() -> None:
    text = "<@U0BOT> what is new?"
    message = event(text=text)
    mention = {
        "type": "app_mention",
        **{k: message[k] for k in ("channel", "user", "text", "ts", "client_msg_id")},
    }
    assert taken(message) == taken(mention)
    first = taken(message)
    assert (first.address.chat, first.id) == ("C1", "1700000000.000100")
    assert (first.text, first.addressed, first.cue) == ("what is new?", True, "mention")


@pytest.mark.parametrize(
    ("fields", "settings", "cue", "thread"),
    [
        ({"channel": "D1", "channel_type": "im"}, {}, "direct", None),
        (
            {"channel": "D1", "channel_type": "im"},
            {"direct_sessions": "thread"},
            "direct",
            "1700000000.000100",
        ),
        ({"channel": "D1", "channel_type": "im", "thread_ts": "1.000001"}, {}, "direct", None),
        (
            {"channel": "D1", "channel_type": "im", "thread_ts": "1.000001"},
            {"direct_sessions": "thread"},
            "direct",
            "1.000001",
        ),
        (
            {"channel": "D1", "channel_type": "im", "thread_ts": "1.000001", "assistant_thread": {}},
            {},
            "direct",
            "1.000001",
        ),
        ({}, {}, "", "1700000000.000100"),
        ({"text": "<@U0BOT> hi"}, {}, "mention", "1700000000.000100"),
        ({"text": "<@U0BOT> hi"}, {"reply_in": "channel"}, "mention", None),
        ({"text": "<@U0BOT> hi", "thread_ts": "1.000001"}, {"reply_in": "channel"}, "mention", "1.000001"),
        ({"thread_ts": "1.000001", "parent_user_id": "U2"}, {}, "", "1.000001"),
        ({"thread_ts": "1.000001", "parent_user_id": "U0BOT"}, {}, "reply", "1.000001"),
        ({"thread_ts": "1.000001", "parent_user_id": "U0BOT"}, {"threads": "mention"}, "", "1.000001"),
        ({"thread_ts": "1.000001", "parent_user_id": "U0BOT", "text": "<@U2> you?"}, {}, "", "1.000001"),
        ({"channel": "G1", "channel_type": "mpim"}, {}, "direct", None),
        ({"channel": "G1", "channel_type": "mpim"}, {"group_dms": "mention"}, "", None),
        ({"channel": "G1", "channel_type": "mpim", "text": "<@U2> you?"}, {}, "", None),
        ({"channel": "G1", "channel_type": "mpim", "text": "<@U0BOT> you?"}, {}, "mention", None),
        ({"channel_type": "group", "text": "<@U0BOT> hi"}, {}, "mention", "1700000000.000100"),
    ],
)
def test_where_the_bot_is_meant_and_where_the_answer_belongs(
    fields: dict[str, Any], settings: dict[str, Any], cue: str, thread: str | None
) -> None:
    found = taken(event(**fields), **settings)
    assert (found.cue, found.addressed, found.address.thread) == (cue, cue != "", thread)
    assert found.address.kind == ("direct" if fields.get("channel_type") == "im" else "group")


def test_a_direct_message_with_the_bots_name_is_a_direct_message() -> None:
    found = taken(event(channel="D1", channel_type="im", text="<@U0BOT> hi"))
    assert (found.text, found.cue, found.addressed) == ("hi", "direct", True)


@pytest.mark.parametrize("subtype", ["file_share", "thread_broadcast", "me_message"])
def test_subtypes_in_which_people_speak_are_messages(subtype: str) -> None:
    assert taken(event(subtype=subtype)).text == "hello"


@pytest.mark.parametrize(
    "subtype",
    [
        "channel_join",
        "channel_leave",
        "channel_topic",
        "channel_name",
        "pinned_item",
        "reminder_add",
        "tombstone",
    ],
)
def test_sl_04_notices_of_slack_are_no_messages(subtype: str) -> None:
    assert inbound(event(subtype=subtype), edits="correct") is None


def changed(message: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "message",
        "subtype": "message_changed",
        "hidden": True,
        "channel": "C1",
        "channel_type": "channel",
        "ts": "1700000009.000900",
        "message": message,
        "previous_message": before,
    }


@pytest.mark.parametrize("edits", ["ignore", "correct"])
def test_sl_04_a_preview_of_a_link_is_no_message(edits: str) -> None:
    own = {"user": "U0BOT", "bot_id": "B0BOT", "text": "see <https://example.org>", "ts": "1700000000.000100"}
    unfurled = {**own, "attachments": [{"from_url": "https://example.org", "title": "Example"}]}
    assert inbound(changed(unfurled, own), edits=edits) is None
    persons = {"user": "U1", "text": "see <https://example.org>", "ts": "1700000000.000100"}
    unfurled = {**persons, "attachments": unfurled["attachments"]}
    assert inbound(changed(unfurled, persons), edits=edits) is None
    edited = {**unfurled, "edited": {"user": "U1", "ts": "1700000005.000000"}}
    assert inbound(changed(edited, persons), edits=edits) is None


@pytest.mark.parametrize("edits", ["ignore", "correct"])
def test_sl_04_deletions_never_start_a_turn(edits: str) -> None:
    deleted = {
        "type": "message",
        "subtype": "message_deleted",
        "hidden": True,
        "channel": "C1",
        "ts": "1700000009.000900",
        "deleted_ts": "1700000000.000100",
        "previous_message": event(),
    }
    assert inbound(deleted, edits=edits) is None


def test_an_edit_corrects_the_earlier_message_where_that_is_set() -> None:
    before = {"user": "U1", "text": "<@U0BOT> helo", "ts": "1700000000.000100", "client_msg_id": "x"}
    after = {**before, "text": "<@U0BOT> hello", "edited": {"user": "U1", "ts": "1700000005.000000"}}
    assert inbound(changed(after, before)) is None
    found = taken(changed(after, before), edits="correct")
    assert (found.replaces, found.text) == ("1700000000.000100", "hello")
    assert found.id not in ("1700000000.000100", "1700000009.000900")
    assert found.sent_at == 1700000005.0


def test_a_mention_that_an_edit_brings_in_starts_no_turn_of_its_own() -> None:
    edited = {"user": "U1", "ts": "1700000005.000000"}
    late = event(type="app_mention", text="<@U0BOT> hi", edited=edited)
    assert inbound(late) is None
    assert taken(late, edits="correct").replaces == "1700000000.000100"


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "U0BOT"},
        {"bot_id": "B0BOT", "subtype": "bot_message", "user": None},
        {"user": "U0BOT", "bot_id": "B0BOT", "subtype": "assistant_app_thread"},
        {"hidden": True},
        {"user": None},
    ],
)
def test_what_the_bot_said_itself_is_not_passed_on(fields: dict[str, Any]) -> None:
    assert inbound(event(**fields)) is None


@pytest.mark.parametrize(
    ("fields", "id", "name"),
    [
        ({"bot_id": "B9", "bot_profile": {"name": "Jira"}}, "U1", "Jira"),
        ({"bot_id": "B9", "user": None, "subtype": "bot_message", "username": "cron"}, "B9", "cron"),
        ({"user": "USLACKBOT"}, "USLACKBOT", ""),
        ({"app_id": "A9", "client_msg_id": None}, "U1", ""),  # an app with a person's token
    ],
)
def test_other_programs_are_passed_on_as_bots(fields: dict[str, Any], id: str, name: str) -> None:
    sender = taken(event(**fields)).sender
    assert (sender.id, sender.name, sender.is_bot) == (id, name, True)
    assert not taken(event(app_id="A9")).sender.is_bot  # a client that an app's dialog opened


def test_files_become_attachments_with_what_fetching_needs() -> None:
    hosted = {
        "id": "F1",
        "name": "a.png",
        "mimetype": "image/png",
        "size": 7,
        "mode": "hosted",
        "url_private": "https://files.slack.com/p/a.png",
        "url_private_download": "https://files.slack.com/d/a.png",
    }
    files = [
        hosted,
        {"id": "F2", "mode": "file_access", "file_access": "check_file_info"},
        {"id": "F3", "mode": "tombstone"},
        {
            "id": "F4",
            "name": "voice.webm",
            "mimetype": "audio/webm",
            "url_private": "https://files.slack.com/v",
        },
    ]
    found = taken(event(subtype="file_share", files=files, text="")).attachments
    assert [(a.kind, a.mime, a.name, a.size) for a in found] == [
        ("image", "image/png", "a.png", 7),
        ("file", "", "F2", -1),
        ("file", "", "F3", -1),
        ("audio", "audio/webm", "voice.webm", -1),
    ]
    refs = [json.loads(a.ref) for a in found]
    assert refs == [
        {"id": "F1", "url": "https://files.slack.com/d/a.png"},
        {"id": "F2"},
        {"id": "F3", "fault": "tombstone"},
        {"id": "F4", "url": "https://files.slack.com/v"},
    ]


def test_a_forwarded_message_becomes_the_quote_and_further_ones_stand_in_the_text() -> None:
    first = {"is_share": True, "author_name": "Ann", "text": "a &lt; b", "ts": "1.000001"}
    second = {"is_share": True, "author_name": "Bob", "text": "one\ntwo"}
    found = taken(event(text="<@U0BOT> see", attachments=[first, second]))
    assert found.quote is not None
    assert (found.quote.text, found.quote.sender, found.quote.message_id) == ("a < b", "Ann", "1.000001")
    assert found.text == "see\n\n> Bob:\n> one\n> two"


def test_a_message_survives_being_stored() -> None:
    found = taken(event(text="<@U0BOT> hi", files=[{"id": "F1"}]))
    assert Inbound.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(
    "fields",
    [{"channel": None}, {"ts": None}, {"files": "x"}, {"attachments": [1]}, {"blocks": {}, "text": None}],
)
def test_an_odd_event_raises_nothing_but_what_the_reader_expects(fields: dict[str, Any]) -> None:
    odd = {k: v for k, v in event(**fields).items() if v is not None}
    try:
        read(odd, ME, config())
    except (KeyError, TypeError, ValueError, AttributeError):
        assert "channel" not in odd or "ts" not in odd
