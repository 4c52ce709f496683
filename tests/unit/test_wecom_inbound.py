"""What callbacks of a WeCom application say, read from their fields."""

from __future__ import annotations

from typing import Any

import pytest

from channels.base import ChannelError, Inbound
from channels.wecom.config import WecomConfig, verify
from channels.wecom.inbound import CardPress, Entered, Nothing, event_id, read
from tests.fakes.channel_env import key_text
from tests.fakes.wecom import CORP, KEY, OTHER_KEY

BASE = {"ToUserName": CORP, "FromUserName": "ZhangSan", "CreateTime": "1700000000", "AgentID": "1000002"}


def took(**fields: Any) -> Any:
    return read({**BASE, **fields}, "wecom", "zh", key_text)


def message(**fields: Any) -> Inbound:
    found = took(MsgId="42", **fields)
    assert isinstance(found, Inbound)
    return found


def test_a_text_message_keeps_who_when_and_what() -> None:
    inbound = message(MsgType="text", Content="你好 ]]> <b>")
    assert (inbound.id, inbound.text, inbound.sent_at) == ("42", "你好 ]]> <b>", 1700000000.0)
    assert (inbound.address.chat, inbound.address.kind) == ("ZhangSan", "direct")
    assert (inbound.sender.id, inbound.sender.language) == ("ZhangSan", "zh")
    assert (inbound.addressed, inbound.cue) == (True, "direct")


@pytest.mark.parametrize(
    ("fields", "kind", "mime", "name"),
    [
        ({"MsgType": "image", "PicUrl": "https://p", "MediaId": "m1"}, "image", "image/jpeg", "42.jpg"),
        ({"MsgType": "voice", "Format": "amr", "MediaId": "m1"}, "audio", "audio/amr", "42.amr"),
        ({"MsgType": "voice", "Format": "speex", "MediaId": "m1"}, "audio", "audio/speex", "42.speex"),
        ({"MsgType": "video", "ThumbMediaId": "t", "MediaId": "m1"}, "video", "video/mp4", "42.mp4"),
        ({"MsgType": "file", "FileName": "报告.pdf", "MediaId": "m1"}, "file", "", "报告.pdf"),
    ],
)
def test_media_become_attachments(fields: dict[str, str], kind: str, mime: str, name: str) -> None:
    (attachment,) = message(**fields).attachments
    assert (attachment.kind, attachment.ref, attachment.mime, attachment.name) == (kind, "m1", mime, name)


def test_a_location_and_a_link_become_words() -> None:
    place = message(MsgType="location", Location_X="23.1", Location_Y="113.3", Label="广州", Scale="20")
    assert place.text == "wecom.location 广州 23.1 113.3"
    link = message(MsgType="link", Title="标题", Description="", Url="https://e.com", PicUrl="https://p")
    assert link.text == "标题\nhttps://e.com"


def test_a_menu_click_is_what_the_member_would_have_typed() -> None:
    found = took(MsgType="event", Event="click", EventKey="/new")
    assert isinstance(found, Inbound)
    assert (found.text, found.id) == ("/new", "ZhangSan:1700000000:click:/new")


def test_wx_07_two_clicks_of_one_second_are_two_and_a_repeated_one_is_one() -> None:
    click = {**BASE, "MsgType": "event", "Event": "click"}
    assert event_id({**click, "EventKey": "a"}) != event_id({**click, "EventKey": "b"})
    assert event_id({**click, "EventKey": "a"}) == event_id({**click, "EventKey": "a"})


def test_a_pressed_button_names_card_choice_and_code() -> None:
    fields = {"EventKey": "yes:1", "TaskId": "q1", "ResponseCode": "c", "CardType": "button_interaction"}
    found = took(MsgType="event", Event="template_card_event", **fields)
    assert found == CardPress(
        "ZhangSan:1700000000:template_card_event:yes:1:q1", "ZhangSan", "q1", "yes:1", "c"
    )


def test_entering_is_told_and_other_events_ask_for_nothing() -> None:
    assert took(MsgType="event", Event="enter_agent", EventKey="") == Entered("ZhangSan")
    for event in ("subscribe", "unsubscribe", "view", "LOCATION", "batch_job_result", "change_contact"):
        assert isinstance(took(MsgType="event", Event=event, EventKey="https://e.com"), Nothing), event
    assert isinstance(took(MsgType="sticker", MsgId="1"), Nothing)
    assert isinstance(took(MsgType="text", MsgId="1", Content="  \n"), Nothing)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"MsgType": "text", "Content": "no id"},
        {"MsgType": "image", "MsgId": "1"},
        {"MsgType": "text", "MsgId": "1", "FromUserName": None, "Content": "x"},
        {"MsgType": "event", "Event": "template_card_event", "EventKey": "k"},
    ],
)
def test_a_message_without_what_it_must_have_is_told_apart(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"without|no MsgType"):
        took(**fields)


def settings(**more: Any) -> WecomConfig:
    given = {"corp_id": CORP, "agent_id": 1000002, "secret": "s", "token": "t", "aes_key": KEY}
    return WecomConfig.model_validate({**given, **more})


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"aes_key": "short"}, "aes_key"),
        ({"previous_aes_key": KEY[:-1] + "!"}, "previous_aes_key"),
        ({"token": " "}, "token"),
        ({"secret": ""}, "secret"),
        ({"corp_id": ""}, "corp_id"),
        ({"base_url": "qyapi.weixin.qq.com"}, "base_url"),
    ],
)
def test_settings_that_cannot_work_are_named_with_the_place_to_look(more: dict[str, Any], named: str) -> None:
    with pytest.raises(ChannelError, match=rf"channels\.wecom\.{named}"):
        verify(settings(**more), "channels.wecom")


def test_settings_that_can_work_pass_and_base_url_is_the_part_before_cgi_bin() -> None:
    config = settings(previous_aes_key=OTHER_KEY, base_url="https://proxy.example/cgi-bin/")
    verify(config, "channels.wecom")
    assert config.root == "https://proxy.example"
    assert config.keys == [KEY, OTHER_KEY]
