"""Every kind of message: made by the fake, judged by python-telegram-bot's parser, read by the channel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from telegram import TelegramObject, Update

from channels.base import Address, Inbound, Outbound, ReplyRef
from tests.fakes.telegram import FakeTelegram
from tests.integration.telegram_support import Bridge

CHANNEL = {"id": -200, "type": "channel", "title": "News"}
BO = {"id": 3, "is_bot": False, "first_name": "Bo"}


def file(**more: Any) -> dict[str, Any]:
    return {"file_id": "F", "file_unique_id": "U", **more}


def picture(name: str = "L") -> dict[str, Any]:
    return {"photo": [{"file_id": name, "file_unique_id": name, "width": 9, "height": 9}]}


VIDEO = {"width": 1, "height": 1, "duration": 1}
#: Parameters of `say`, and what the agent gets: text, kinds of the files.
KINDS: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"text": "hello"}, "hello", []),
    ({"text": "look", **picture()}, "look", ["image"]),
    ({"document": file(file_name="a.pdf", mime_type="application/pdf")}, "", ["file"]),
    ({"voice": file(duration=1)}, "", ["audio"]),
    ({"audio": file(duration=1, title="Song")}, "", ["audio"]),
    ({"video": file(**VIDEO)}, "", ["video"]),
    ({"video_note": file(length=1, duration=1)}, "", ["video"]),
    ({"animation": file(**VIDEO), "document": file()}, "", ["video"]),
    (
        {"sticker": file(width=1, height=1, is_animated=False, is_video=False, type="regular", emoji="😀")},
        "[sticker 😀]",
        ["image"],
    ),
    ({"location": {"latitude": 1.5, "longitude": 2.5}}, "[location: 1.5, 2.5]", []),
    ({"contact": {"phone_number": "+1", "first_name": "Bo"}}, "[contact: Bo, +1]", []),
    ({"dice": {"emoji": "🎲", "value": 4}}, "[dice 🎲: 4]", []),
    (
        {
            "text": "old news",
            "forward_origin": {"type": "channel", "date": 1, "chat": CHANNEL, "message_id": 4},
        },
        "[forwarded from News]\nold news",
        [],
    ),
    (
        {
            "text": "why?",
            "external_reply": {"origin": {"type": "user", "date": 1, "sender_user": BO}, **picture("Q")},
            "quote": {"text": "because", "position": 0, "is_manual": True},
        },
        "why?",
        ["image"],
    ),
]
#: Nothing that the agent should hear of.
SILENT: list[dict[str, Any]] = [
    {
        "poll": {
            "id": "1",
            "question": "Tea?",
            "options": [],
            "total_voter_count": 0,
            "is_closed": False,
            "is_anonymous": True,
            "type": "regular",
            "allows_multiple_answers": False,
            "members_only": False,
            "allows_revoting": False,
        }
    },
    {"new_chat_members": [BO]},
    {"left_chat_member": BO},
    {"new_chat_title": "Other"},
    {"delete_chat_photo": True},
    {"forum_topic_closed": {}},
    {"video_chat_started": {}},
    {"message_auto_delete_timer_changed": {"message_auto_delete_time": 60}},
]


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram() as server:
        yield server


@pytest.fixture
async def bridge(tmp_path: Path) -> AsyncIterator[Bridge]:
    bridge = Bridge(tmp_path)
    yield bridge
    await bridge.close()


def judge(updates: Iterable[dict[str, Any]]) -> None:
    """The library reads each update, and knows each field of it."""
    for raw in updates:
        update = Update.de_json(raw, None)
        assert unknown(update) == [], raw
        assert any(getattr(update, name) for name in Update.__slots__ if name != "update_id"), raw


def unknown(thing: Any) -> list[str]:
    if isinstance(thing, (list, tuple)):
        return [name for item in thing for name in unknown(item)]
    if not isinstance(thing, TelegramObject):
        return []
    slots = [slot for cls in type(thing).__mro__ for slot in getattr(cls, "__slots__", ())]
    parts = [
        getattr(thing, slot, None) for slot in slots if not slot.startswith("_") and slot != "api_kwargs"
    ]
    return [*thing.api_kwargs, *(name for part in parts for name in unknown(part))]


def test_the_judge_finds_what_the_library_does_not_know(fake: FakeTelegram) -> None:
    fake.say(5, "x", nonsense=1)
    with pytest.raises(AssertionError, match="nonsense"):
        judge(fake.updates)


@pytest.mark.filterwarnings("ignore::telegram.warnings.PTBDeprecationWarning")
async def test_every_kind_of_message_is_read(fake: FakeTelegram, bridge: Bridge) -> None:
    for extra, _, _ in KINDS:
        fake.say(5, **{"text": "", **extra})
    for extra in SILENT:
        fake.say(5, "", **extra)
    judge(fake.updates)
    await bridge.open(fake.url)
    await fake.wait_for(lambda: not fake.updates)
    assert [(i.text, [a.kind for a in i.attachments]) for i in bridge.got] == [
        (text, kinds) for _, text, kinds in KINDS
    ]
    assert all(i.addressed and Inbound.from_json(i.to_json()) == i for i in bridge.got)
    assert bridge.got[-1].quote is not None
    assert (bridge.got[-1].quote.text, bridge.got[-1].quote.sender) == ("because", "Bo")


async def test_n11_the_parts_of_an_album_arrive_one_by_one_before_any_download(
    fake: FakeTelegram, bridge: Bridge
) -> None:
    fake.album(5, "77", *(picture(f"P{n}") for n in range(4)), text="compare these")
    fake.say(5, "and?")
    judge(fake.updates)
    await bridge.open(fake.url)
    await fake.wait_for(lambda: not fake.updates)
    assert [(i.album, i.text, [a.ref for a in i.attachments]) for i in bridge.got] == [
        ("77", "compare these", ["P0"]),
        ("77", "", ["P1"]),
        ("77", "", ["P2"]),
        ("77", "", ["P3"]),
        ("", "and?", []),
    ]
    assert not fake.called("getFile")


async def test_edits_are_asked_for_only_when_they_count(fake: FakeTelegram, bridge: Bridge) -> None:
    said = fake.say(5, "wrong")
    fake.rewrite(5, said["message_id"], "right")
    judge(fake.updates)
    await bridge.open(fake.url, edits="correct")
    await fake.wait_for(lambda: not fake.updates)
    first, second = bridge.got
    assert (first.id, first.replaces) == (str(said["message_id"]), "")
    assert (second.text, second.replaces) == ("right", first.id)
    assert second.id.startswith(f"{first.id}:e")
    assert "edited_message" in fake.called("getUpdates")[0].params["allowed_updates"]


async def test_posts_of_a_channel_come_when_they_are_wanted(fake: FakeTelegram, bridge: Bridge) -> None:
    fake.chat(-200, "channel", title="News")
    post: dict[str, Any] = {"sender_chat": CHANNEL, "kind": "channel_post"}
    message = fake.say(-200, "@TheBot what is new?", **post)
    message.pop("from")
    judge(fake.updates)
    await bridge.open(fake.url, channel_posts=True)
    await fake.wait_for(lambda: bridge.got)
    (inbound,) = bridge.got
    assert inbound.address == Address("tg", "-200", "channel")
    assert (inbound.sender.id, inbound.text, inbound.cue) == ("-200", "what is new?", "mention")


async def test_business_messages_have_a_chat_of_their_own(fake: FakeTelegram, bridge: Bridge) -> None:
    fake.connections.add("BC")
    fake.say(5, "to the bot")
    business: dict[str, Any] = {"kind": "business_message", "business_connection_id": "BC"}
    fake.say(5, "to the shop", **business)
    fake.say(5, "the owner himself", user=99, **business)
    rights = {"can_reply": True}
    connection = {"id": "BC", "user": BO, "user_chat_id": 3, "date": 1, "is_enabled": True, "rights": rights}
    fake.push({"business_connection": connection})
    judge(fake.updates)
    channel = await bridge.open(fake.url, business=True)
    await fake.wait_for(lambda: not fake.updates and len(bridge.got) == 3)
    assert sorted((i.address.chat, i.text, i.addressed) for i in bridge.got) == [
        ("5", "to the bot", True),
        ("business:BC:5", "the owner himself", False),
        ("business:BC:5", "to the shop", True),
    ]
    customer = next(i.address for i in bridge.got if i.text == "to the shop")
    (chunk,) = channel.render(Outbound("welcome"))
    await channel.post(ReplyRef("r1", customer), 0, chunk, final=True)
    assert fake.chats[5].shown[-1]["business_connection_id"] == "BC"


async def test_presses_and_memberships_are_as_the_library_knows_them(
    fake: FakeTelegram, bridge: Bridge
) -> None:
    fake.press(5, 4711, "yes:1")
    member = {"user": fake.me, "status": "member"}
    fake.push(
        {
            "my_chat_member": {
                "chat": fake.chat(-100).to_json(),
                "from": BO,
                "date": 1,
                "old_chat_member": {"user": fake.me, "status": "left"},
                "new_chat_member": member,
            }
        }
    )
    judge(fake.updates)
    await bridge.open(fake.url)
    await fake.wait_for(lambda: not fake.updates)
    assert [press.choice for press in bridge.presses] == ["yes:1"]
    assert bridge.got == []
