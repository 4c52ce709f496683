"""Updates of the Bot API read into messages."""

from __future__ import annotations

from typing import Any

import pytest

from channels.base import Inbound
from channels.telegram.callbacks import read_press
from channels.telegram.chats import split_chat
from channels.telegram.inbound import Me, Wanted, read_move, read_update
from tests.fakes.telegram_judge import found_entities

ME = Me(42, "TheBot")
PRIVATE = {"id": 7, "type": "private", "first_name": "Ann"}
GROUP = {"id": -100, "type": "supergroup", "title": "Team"}
ANN = {"id": 7, "is_bot": False, "first_name": "Ann", "last_name": "Lee", "language_code": "de"}
OURS: dict[str, Any] = {
    "message_id": 5,
    "from": {"id": 42, "is_bot": True, "first_name": "The Bot"},
    "chat": GROUP,
    "date": 1,
    "text": "hi",
}


def message(text: str = "", chat: dict[str, Any] = GROUP, **extra: Any) -> dict[str, Any]:
    base: dict[str, Any] = {"message_id": 9, "date": 1000, "chat": chat, "from": ANN}
    if text:
        base |= {"text": text, "entities": found_entities(text)}
    return {"update_id": 1, "message": base | extra}


def media(kind: str, **extra: Any) -> dict[str, Any]:
    return {kind: {"file_id": "F", **extra}}


def read(update: dict[str, Any], me: Me = ME, **wanted: bool) -> Inbound:
    inbound = read_update(update, "tg", me, Wanted(**wanted))
    assert inbound is not None
    return inbound


def test_a_private_message_is_always_meant_for_the_bot() -> None:
    inbound = read(message("hello", PRIVATE))
    assert inbound.id == "9"
    assert (inbound.address.channel, inbound.address.chat, inbound.address.kind) == ("tg", "7", "direct")
    assert (inbound.sender.id, inbound.sender.name, inbound.sender.language) == ("7", "Ann Lee", "de")
    assert (inbound.text, inbound.addressed, inbound.sent_at) == ("hello", True, 1000.0)


@pytest.mark.parametrize(
    ("text", "read_as", "addressed"),
    [
        ("just talk", "just talk", False),
        ("@TheBot, what now?", "what now?", True),
        ("hey @thebot what now?", "hey what now?", True),
        ("😀😀 @THEBOT 😀", "😀😀 😀", True),
        ("@OtherBot hello", "@OtherBot hello", False),
        ("mail me@thebot.org", "mail me@thebot.org", False),
        ("@TheBotany hello", "@TheBotany hello", False),
        ("@TheBot", "@TheBot", True),
        ("你好 @TheBot，现在几点？", "你好 ，现在几点？", True),
        ("@TheBot /status", "/status", True),
        ("@TheBot @OtherBot hi", "@OtherBot hi", True),
        ("run /reset@TheBot please", "run /reset please", True),
        ("they said /reset@OtherBot", "they said /reset@OtherBot", False),
    ],
)
def test_a_mention_is_found_by_its_utf16_place_and_taken_out(
    text: str, read_as: str, addressed: bool
) -> None:
    inbound = read(message(text))
    assert (inbound.text, inbound.addressed) == (read_as, addressed)


@pytest.mark.parametrize(
    ("text", "read_as"),
    [("/reset@TheBot now", "/reset now"), ("/reset@thebot", "/reset"), ("/reset", "/reset")],
)
def test_tg_16_a_command_with_our_name_is_ours(text: str, read_as: str) -> None:
    inbound = read(message(text))
    assert (inbound.text, inbound.addressed) == (read_as, True)


def test_tg_16_another_bots_command_is_ignored() -> None:
    assert read_update(message("/reset@OtherBot"), "tg", ME) is None


def test_a_mention_without_a_name_is_found_by_the_user() -> None:
    entity = {"type": "text_mention", "offset": 3, "length": 7, "user": {"id": 42, "is_bot": True}}
    inbound = read(message(text="hi The Bot go", entities=[entity]))
    assert (inbound.text, inbound.addressed) == ("hi go", True)


def test_a_caption_can_mention_too() -> None:
    photo = [
        {"file_id": "s", "width": 1, "height": 1},
        {"file_id": "L", "width": 9, "height": 9, "file_size": 4},
    ]
    caption = "@TheBot look"
    inbound = read(message(photo=photo, caption=caption, caption_entities=found_entities(caption)))
    assert (inbound.text, inbound.addressed) == ("look", True)
    assert [(a.kind, a.ref, a.size) for a in inbound.attachments] == [("image", "L", 4)]


def test_a_hidden_link_is_read_with_its_target() -> None:
    entity = {"type": "text_link", "offset": 4, "length": 4, "url": "https://example.org/"}
    assert (
        read(message("see this now", PRIVATE, entities=[entity])).text
        == "see this (https://example.org/) now"
    )


def test_a_reply_to_the_bot_is_meant_for_it_and_quotes() -> None:
    inbound = read(message("and then?", reply_to_message=OURS))
    assert inbound.addressed
    assert inbound.quote is not None
    assert (inbound.quote.text, inbound.quote.message_id) == ("hi", "5")


def test_the_quoted_part_wins_over_the_whole_message() -> None:
    inbound = read(message("why?", reply_to_message=OURS | {"text": "long text"}, quote={"text": "long"}))
    assert inbound.quote is not None
    assert inbound.quote.text == "long"


def test_a_quote_from_another_chat_is_kept() -> None:
    origin = {"type": "user", "sender_user": {"id": 3, "first_name": "Bo"}, "date": 1}
    inbound = read(message("why?", PRIVATE, external_reply={"origin": origin}, quote={"text": "said"}))
    assert inbound.quote is not None
    assert (inbound.quote.text, inbound.quote.sender) == ("said", "Bo")


def test_tg_13_a_topic_is_a_thread_and_a_reply_thread_is_not() -> None:
    forum = GROUP | {"is_forum": True}
    assert read(message("x", forum, message_thread_id=7, is_topic_message=True)).address.thread == "7"
    assert read(message("x", forum, message_thread_id=8, is_topic_message=True)).address.thread == "8"
    assert read(message("x", forum)).address.thread is None  # General
    assert read(message("x", message_thread_id=7)).address.thread is None  # a plain reply thread


def test_the_first_message_of_a_topic_is_no_quote() -> None:
    root = OURS | {"message_id": 7, "forum_topic_created": {"name": "T", "icon_color": 1}}
    inbound = read(message("x", message_thread_id=7, is_topic_message=True, reply_to_message=root))
    assert inbound.quote is None
    assert not inbound.addressed


def test_a_private_topic_counts_only_where_the_bot_has_topics() -> None:
    update = message("x", PRIVATE, message_thread_id=3, is_topic_message=True)
    assert read(update).address.thread is None
    assert read(update, Me(42, "TheBot", private_topics=True)).address.thread == "3"


def test_an_anonymous_admin_and_a_channel_speak_for_themselves() -> None:
    stand_in = {"id": 1087968824, "is_bot": True, "first_name": "Group"}
    inbound = read(message("x", **{"from": stand_in}, sender_chat=GROUP))
    assert (inbound.sender.id, inbound.sender.name, inbound.sender.is_bot) == ("-100", "Team", False)


@pytest.mark.parametrize(
    "update",
    [
        message("x", **{"from": {"id": 42, "is_bot": True, "first_name": "us"}}),
        message("x", sender_chat={"id": -5, "type": "channel", "title": "C"}, is_automatic_forward=True),
        message(new_chat_members=[ANN]),
        message(pinned_message=OURS),
        message(poll={"id": "1", "question": "?"}),
        message(new_chat_title="x"),
        message(
            forum_topic_created={"name": "T", "icon_color": 1}, message_thread_id=7, is_topic_message=True
        ),
        message(successful_payment={"currency": "XTR", "total_amount": 1}),
        message(giveaway_created={}),
        message(migrate_to_chat_id=-1001),
        message("x", GROUP | {"is_direct_messages": True}),
        {"update_id": 5, "business_message": message("x", PRIVATE, business_connection_id="B")["message"]},
        {"update_id": 6, "message_reaction": {"chat": GROUP, "message_id": 1}},
        message("x", {"id": -9, "type": "channel", "title": "C"}),
        {"update_id": 2, "edited_message": message("x")["message"]},
        {"update_id": 3, "my_chat_member": {}},
        {"update_id": 4},
    ],
)
def test_what_is_no_persons_message_is_ignored(update: dict[str, Any]) -> None:
    assert read_update(update, "tg", ME) is None


@pytest.mark.parametrize(
    ("extra", "kind", "name", "mime"),
    [
        (
            media("document", file_name="a.pdf", mime_type="application/pdf"),
            "file",
            "a.pdf",
            "application/pdf",
        ),
        (media("document", file_name="a.png", mime_type="image/png"), "image", "a.png", "image/png"),
        (media("voice"), "audio", "voice_9.ogg", "audio/ogg"),
        (media("audio", file_name="s.mp3"), "audio", "s.mp3", "audio/mpeg"),
        (media("video"), "video", "video_9.mp4", "video/mp4"),
        (media("video_note"), "video", "video_note_9.mp4", "video/mp4"),
        (media("animation") | media("document"), "video", "animation_9.mp4", "video/mp4"),
        (media("sticker", emoji="😀"), "image", "sticker_9.webp", "image/webp"),
        (media("document", file_name="a.svg", mime_type="image/svg+xml"), "file", "a.svg", "image/svg+xml"),
        (media("document", file_name="a.flac", mime_type="audio/flac"), "audio", "a.flac", "audio/flac"),
        (media("document"), "file", "document_9", ""),
    ],
)
def test_files_become_attachments(extra: dict[str, Any], kind: str, name: str, mime: str) -> None:
    inbound = read(message(chat=PRIVATE, **extra))
    assert [(a.kind, a.name, a.mime, a.ref) for a in inbound.attachments] == [(kind, name, mime, "F")]


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"location": {"latitude": 1.5, "longitude": 2, "live_period": 60}}, "[live location: 1.5, 2]"),
        (
            {
                "venue": {
                    "title": "Café",
                    "address": "Main St 1",
                    "location": {"latitude": 1, "longitude": 2},
                },
                "location": {"latitude": 1, "longitude": 2},
            },
            "[place: Café, Main St 1 (1, 2)]",
        ),
        ({"dice": {"emoji": "🎲", "value": 4}}, "[dice 🎲: 4]"),
        ({"game": {"title": "Chess", "description": "d", "photo": []}}, "[game: Chess]"),
        ({"story": {"chat": ANN | {"type": "private"}, "id": 1}}, "[story of Ann Lee]"),
        (media("sticker", emoji="😀", is_animated=True), "[sticker 😀]"),
        (
            {
                "checklist": {
                    "title": "Shop",
                    "tasks": [{"text": "tea", "completion_date": 1}, {"text": "milk"}],
                }
            },
            "[checklist: Shop]\n[x] tea\n[ ] milk",
        ),
    ],
)
def test_what_has_no_text_is_put_into_words(extra: dict[str, Any], text: str) -> None:
    inbound = read(message(chat=PRIVATE, **extra))
    assert (inbound.text, inbound.attachments) == (text, ())


def test_places_and_people_are_put_into_words() -> None:
    assert (
        read(message(chat=PRIVATE, location={"latitude": 1.5, "longitude": 2})).text == "[location: 1.5, 2]"
    )
    contact = {"first_name": "Bo", "phone_number": "+1"}
    assert read(message(chat=PRIVATE, contact=contact)).text == "[contact: Bo, +1]"


def test_a_message_survives_storing() -> None:
    inbound = read(message("why?", reply_to_message=OURS, document={"file_id": "F"}))
    assert Inbound.from_json(inbound.to_json()) == inbound


# -- how it is meant ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("update", "cue"),
    [
        (message("hi", PRIVATE), "direct"),
        (message("/new", PRIVATE), "direct"),
        (message("hi"), ""),
        (message("hi @TheBot"), "mention"),
        (message("/new"), "command"),
        (message("/new@TheBot", reply_to_message=OURS), "command"),
        (message("hi @TheBot", reply_to_message=OURS), "mention"),
        (message("hi", reply_to_message=OURS), "reply"),
        (message("hi", reply_to_message=OURS | {"from": ANN}), ""),
    ],
)
def test_the_cue_says_by_what_the_bot_is_meant(update: dict[str, Any], cue: str) -> None:
    inbound = read(update)
    assert (inbound.cue, inbound.addressed) == (cue, cue != "")


def test_a_start_link_keeps_its_payload() -> None:
    assert read(message("/start pair-7F3a", PRIVATE)).text == "/start pair-7F3a"
    assert read(message("/start@TheBot pair-7F3a")).text == "/start pair-7F3a"


def test_tg_16_a_command_in_a_caption_counts_too() -> None:
    def captioned(caption: str) -> dict[str, Any]:
        return message(document={"file_id": "F"}, caption=caption, caption_entities=found_entities(caption))

    inbound = read(captioned("/read@TheBot now"))
    assert (inbound.text, inbound.cue) == ("/read now", "command")
    assert read_update(captioned("/read@OtherBot now"), "tg", ME) is None


# -- who ---------------------------------------------------------------------------------------------------


def test_l2_members_of_a_group_are_told_apart() -> None:
    ids = {read(message("x", **{"from": ANN | {"id": n}})).sender.id for n in (7, 8, 9)}
    assert ids == {"7", "8", "9"}


def test_another_bot_is_passed_on_as_a_bot_and_we_ourselves_are_not() -> None:
    other: dict[str, Any] = {"from": {"id": 43, "is_bot": True, "first_name": "Other"}}
    assert read(message("x", **other)).sender.is_bot
    assert read_update(message("x", **{"from": OURS["from"]}), "tg", ME) is None


def test_a_channel_that_writes_in_a_group_is_the_sender() -> None:
    stand_in: dict[str, Any] = {"id": 136817688, "is_bot": True, "first_name": "Channel"}
    channel = {"id": -200, "type": "channel", "title": "News"}
    inbound = read(message("x", **{"from": stand_in}, sender_chat=channel))
    assert (inbound.sender.id, inbound.sender.name) == ("-200", "News")


def test_a_post_of_a_channel_is_read_only_when_wanted() -> None:
    channel = {"id": -200, "type": "channel", "title": "News"}
    post = {
        "message_id": 3,
        "date": 1,
        "chat": channel,
        "sender_chat": channel,
        "author_signature": "Bo",
        "text": "@TheBot sum it up",
        "entities": found_entities("@TheBot sum it up"),
    }
    update = {"update_id": 1, "channel_post": post}
    assert read_update(update, "tg", ME) is None
    inbound = read(update, channel_posts=True)
    assert (inbound.address.chat, inbound.address.kind) == ("-200", "channel")
    assert (inbound.sender.id, inbound.sender.name, inbound.text) == ("-200", "Bo", "sum it up")
    assert inbound.addressed
    assert not read({"update_id": 1, "channel_post": post | {"entities": []}}, channel_posts=True).addressed


def test_a_business_chat_is_not_the_private_chat_and_its_owner_is_not_answered() -> None:
    def business(**changes: Any) -> dict[str, Any]:
        said = message("hi", PRIVATE, business_connection_id="BC:1", **changes)["message"]
        return {"update_id": 1, "business_message": said}

    inbound = read(business(), business=True)
    assert inbound.address.chat == "business:BC:1:7"
    assert split_chat(inbound.address.chat) == ("7", "BC:1")
    assert (inbound.cue, inbound.addressed) == ("direct", True)
    owner = read(business(**{"from": ANN | {"id": 99}}), business=True)
    assert (owner.cue, owner.addressed, owner.sender.id) == ("", False, "99")
    by_us = business(**{"from": ANN | {"id": 99}}, sender_business_bot=OURS["from"])
    assert read_update(by_us, "tg", ME, Wanted(business=True)) is None
    assert split_chat("7") == ("7", "")


# -- albums, edits, forwards, quotes -----------------------------------------------------------------------


def test_n11_each_part_of_an_album_names_it() -> None:
    photo = [{"file_id": "L", "width": 9, "height": 9}]
    parts = [read(message(chat=PRIVATE, photo=photo, media_group_id="77")) for _ in range(2)]
    assert [(part.album, len(part.attachments), part.text) for part in parts] == [("77", 1, "")] * 2


def test_an_edit_corrects_an_earlier_message_or_is_ignored() -> None:
    edited = message("better", PRIVATE, edit_date=1234)["message"]
    update = {"update_id": 1, "edited_message": edited}
    assert read_update(update, "tg", ME) is None
    inbound = read(update, edits=True)
    assert (inbound.id, inbound.replaces, inbound.text, inbound.sent_at) == ("9:e1234", "9", "better", 1234.0)
    moving = message(chat=PRIVATE, edit_date=5, location={"latitude": 1, "longitude": 2})["message"]
    assert read_update({"update_id": 2, "edited_message": moving}, "tg", ME, Wanted(edits=True)) is None


@pytest.mark.parametrize(
    ("wanted", "updates"),
    [
        (Wanted(), {"message", "callback_query", "my_chat_member"}),
        (
            Wanted(edits=True, channel_posts=True),
            {
                "message",
                "callback_query",
                "my_chat_member",
                "edited_message",
                "channel_post",
                "edited_channel_post",
            },
        ),
        (
            Wanted(business=True),
            {"message", "callback_query", "my_chat_member", "business_message", "business_connection"},
        ),
    ],
)
def test_only_what_is_wanted_is_asked_for(wanted: Wanted, updates: set[str]) -> None:
    assert set(wanted.updates()) == updates


@pytest.mark.parametrize(
    ("origin", "name"),
    [
        ({"type": "user", "sender_user": {"id": 3, "first_name": "Bo"}}, "Bo"),
        ({"type": "hidden_user", "sender_user_name": "Secret Cy"}, "Secret Cy"),
        ({"type": "chat", "sender_chat": {"id": -3, "type": "group", "title": "Team"}}, "Team"),
        (
            {
                "type": "channel",
                "chat": {"id": -4, "type": "channel", "title": "News"},
                "author_signature": "Di",
            },
            "News (Di)",
        ),
        ({"type": "new"}, "somebody"),
    ],
)
def test_a_forwarded_message_says_from_whom(origin: dict[str, Any], name: str) -> None:
    inbound = read(message("/stop now", PRIVATE, forward_origin={"date": 1, **origin}))
    assert inbound.text == f"[forwarded from {name}]\n/stop now"  # and it is no command


def test_a_quoted_picture_comes_along() -> None:
    picture = {
        "message_id": 5,
        "date": 1,
        "chat": GROUP,
        "from": ANN,
        "photo": [{"file_id": "L", "width": 9, "height": 9}],
    }
    inbound = read(message("@TheBot what is this?", reply_to_message=picture))
    assert inbound.quote is not None
    assert (inbound.quote.text, inbound.quote.sender) == ("[photo]", "Ann Lee")
    assert [(a.kind, a.ref, a.name) for a in inbound.attachments] == [("image", "L", "photo_5.jpg")]
    ours = read(message("why?", reply_to_message=picture | {"from": OURS["from"]}))
    assert (ours.attachments, ours.cue) == ((), "reply")  # the agent has what it sent


def test_a_file_quoted_from_another_chat_comes_along_with_its_origin() -> None:
    other = {
        "origin": {"type": "channel", "chat": {"id": -4, "type": "channel", "title": "News"}, "date": 1},
        "message_id": 33,
        "document": {"file_id": "D", "file_name": "a.pdf", "mime_type": "application/pdf"},
    }
    inbound = read(message("sum it up", PRIVATE, external_reply=other))
    assert inbound.quote is not None
    assert (inbound.quote.text, inbound.quote.sender) == ("[document]", "News")
    assert [(a.ref, a.name) for a in inbound.attachments] == [("D", "a.pdf")]


@pytest.mark.parametrize(
    ("original", "text"),
    [
        (
            {"poll": {"question": "Tea?", "options": [{"text": "yes"}, {"text": "no"}]}},
            "[poll: Tea? (yes, no)]",
        ),
        ({"voice": {"file_id": "V"}}, "[voice]"),
        ({"sticker": {"file_id": "S", "emoji": "😀", "is_video": True}}, "[sticker 😀]"),
    ],
)
def test_a_quoted_message_without_text_is_named(original: dict[str, Any], text: str) -> None:
    quoted = {"message_id": 5, "date": 1, "chat": GROUP, "from": ANN, **original}
    inbound = read(message("?", reply_to_message=quoted))
    assert inbound.quote is not None
    assert inbound.quote.text == text


def test_a_reply_to_a_story_says_so() -> None:
    inbound = read(message("nice", PRIVATE, reply_to_story={"chat": PRIVATE, "id": 1}))
    assert inbound.quote is not None
    assert (inbound.quote.text, inbound.quote.sender) == ("[story]", "Ann")


# -- other updates -----------------------------------------------------------------------------------------


def test_a_migration_is_read_in_both_chats() -> None:
    old, new = {"id": -1, "type": "group", "title": "T"}, {"id": -1001, "type": "supergroup", "title": "T"}
    assert read_move(message(chat=old, migrate_to_chat_id=-1001)) == ("-1", "-1001")
    assert read_move(message(chat=new, migrate_from_chat_id=-1)) == ("-1", "-1001")
    assert read_move(message("x")) is None


def test_a_press_without_a_message_of_a_chat_or_without_data_is_none() -> None:
    query = {"id": "1", "from": ANN, "chat_instance": "1", "data": "yes", "message": OURS}
    press = read_press(query, "tg", ME)
    assert press is not None
    assert (press.address.chat, press.message_id, press.sender.name) == ("-100", "5", "Ann Lee")
    assert read_press(query | {"message": None, "inline_message_id": "x"}, "tg", ME) is None
    assert read_press(query | {"data": None}, "tg", ME) is None
    in_business = OURS | {"chat": PRIVATE, "business_connection_id": "BC"}
    pressed = read_press(query | {"message": in_business}, "tg", ME)
    assert pressed is not None
    assert pressed.address.chat == "business:BC:7"
