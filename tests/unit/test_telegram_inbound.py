"""Updates of the Bot API read into messages."""

from __future__ import annotations

from typing import Any

import pytest

from channels.base import Inbound
from channels.telegram.inbound import Me, read_update
from tests.fakes.telegram_judge import found_entities

ME = Me(42, "TheBot")
PRIVATE = {"id": 7, "type": "private", "first_name": "Ann"}
GROUP = {"id": -100, "type": "supergroup", "title": "Team"}
ANN = {"id": 7, "is_bot": False, "first_name": "Ann", "last_name": "Lee", "language_code": "de"}
OURS = {
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


def media(kind: str, **extra: str) -> dict[str, Any]:
    return {kind: {"file_id": "F", **extra}}


def read(update: dict[str, Any], me: Me = ME) -> Inbound:
    inbound = read_update(update, "tg", me)
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
        message("x", **{"from": {"id": 43, "is_bot": True, "first_name": "other"}}),
        message("x", sender_chat={"id": -5, "type": "channel", "title": "C"}, is_automatic_forward=True),
        message(new_chat_members=[ANN]),
        message(pinned_message=OURS),
        message(poll={"id": "1", "question": "?"}),
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
    ],
)
def test_files_become_attachments(extra: dict[str, Any], kind: str, name: str, mime: str) -> None:
    inbound = read(message(chat=PRIVATE, **extra))
    assert [(a.kind, a.name, a.mime, a.ref) for a in inbound.attachments] == [(kind, name, mime, "F")]


def test_places_and_people_are_put_into_words() -> None:
    assert (
        read(message(chat=PRIVATE, location={"latitude": 1.5, "longitude": 2})).text == "[location: 1.5, 2]"
    )
    contact = {"first_name": "Bo", "phone_number": "+1"}
    assert read(message(chat=PRIVATE, contact=contact)).text == "[contact: Bo, +1]"


def test_a_message_survives_storing() -> None:
    inbound = read(message("why?", reply_to_message=OURS, document={"file_id": "F"}))
    assert Inbound.from_json(inbound.to_json()) == inbound
