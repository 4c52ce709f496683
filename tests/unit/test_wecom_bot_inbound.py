"""Callbacks of a WeCom AI bot as messages for the bridge."""

from __future__ import annotations

import json
from typing import Any

import pytest

from channels.base import Inbound
from channels.wecom_bot.api import read_json
from channels.wecom_bot.inbound import Mentions, pressed, read_message

NAMES = {"image": "[图片]", "file": "[文件]", "video": "[视频]", "voice": "[语音]"}


def read(body: dict[str, Any], name: str = "") -> Inbound | None:
    body = {"msgid": "m1", "chattype": "single", "from": {"userid": "anna"}, **body}
    return read_message(body, "bot", 1000.0, Mentions(name).strip, NAMES.__getitem__)


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"msgtype": "text", "text": {"content": content}, **more}


GROUP = {"chattype": "group", "chatid": "g1"}


def test_a_direct_message_is_addressed_and_its_chat_is_the_person() -> None:
    inbound = read(text("你好"))
    assert inbound is not None
    assert (inbound.id, inbound.text, inbound.cue, inbound.addressed) == ("m1", "你好", "direct", True)
    assert (inbound.address.chat, inbound.address.kind, inbound.sender.id) == ("anna", "direct", "anna")
    assert inbound.sent_at == 1000.0


@pytest.mark.parametrize(
    ("said", "name", "meant"),
    [
        ("@RobotA hello robot", "", "hello robot"),
        ("@RobotA\u2005hello", "", "hello"),
        ("hello @RobotA", "", "hello"),
        ("@My Bot  hello", "My Bot", "hello"),
        ("@anna 和 @RobotA 你们好", "RobotA", "@anna 和 你们好"),
        ("@RobotA @anna 是谁？", "", "@anna 是谁？"),
        ("@RobotA，帮我看看", "RobotA", "，帮我看看"),
        ("mail me at a@b.com", "RobotA", "mail me at a@b.com"),
        ("@RobotAB hi", "RobotA", "@RobotAB hi"),
    ],
)
def test_the_mention_of_the_bot_is_taken_out_of_a_groups_text(said: str, name: str, meant: str) -> None:
    inbound = read({**text(said), **GROUP}, name)
    assert inbound is not None
    assert inbound.text == meant
    assert (inbound.cue, inbound.address.chat, inbound.address.kind) == ("mention", "g1", "group")


def test_the_bots_name_is_learned_from_a_message_that_mentions_only_it() -> None:
    unmention = Mentions("").strip
    assert unmention("@小助手 在吗") == "在吗"
    assert unmention("@张三 问问 @小助手 吧") == "@张三 问问 吧"


def test_an_at_sign_in_a_direct_chat_stays() -> None:
    inbound = read(text("@anna is here"))
    assert inbound is not None
    assert inbound.text == "@anna is here"


def test_every_kind_comes_with_its_content_and_its_key() -> None:
    part = {"url": "https://f/1?sign=x", "aeskey": "K"}
    for kind in ("image", "file", "video"):
        inbound = read({"msgtype": kind, kind: part})
        assert inbound is not None
        (attachment,) = inbound.attachments
        assert attachment.kind == kind
        assert json.loads(attachment.ref) == {"url": "https://f/1?sign=x", "key": "K"}
    voice = read({"msgtype": "voice", "voice": {"content": "今天天气"}})
    assert voice is not None
    assert voice.text == "今天天气"
    items = [text("@RobotA 看图"), {"msgtype": "image", "image": part}, text("谢谢")]
    mixed = read({"msgtype": "mixed", "mixed": {"msg_item": items}, **GROUP})
    assert mixed is not None
    assert (mixed.text, len(mixed.attachments)) == ("看图\n谢谢", 1)


def test_a_quote_comes_with_its_words_and_its_files() -> None:
    inbound = read(text("这是什么", quote=text("昨天的结果")))
    assert inbound is not None
    assert inbound.quote is not None
    assert inbound.quote.text == "昨天的结果"
    quote = {"msgtype": "image", "image": {"url": "https://f/2", "aeskey": "K"}}
    inbound = read(text("这是什么", quote=quote))
    assert inbound is not None
    assert inbound.quote is not None
    assert (inbound.quote.text, len(inbound.attachments)) == ("[图片]", 1)


@pytest.mark.parametrize(
    "body",
    [
        {"msgtype": "hologram", "hologram": {}},
        {"msgtype": "text", "text": {"content": ""}},
        {"msgtype": "image", "image": {"url": "file:///etc/passwd"}},
        {"msgtype": "mixed", "mixed": {"msg_item": [{"msgtype": "mixed", "mixed": {"msg_item": []}}]}},
        {"msgtype": "text", "text": {"content": "who"}, "from": {}},
        {"msgtype": "text", "text": {"content": "which"}, "msgid": ""},
        {},
    ],
)
def test_what_has_no_meaning_is_no_message(body: dict[str, Any]) -> None:
    assert read(body) is None


def test_raw_control_characters_inside_json_are_let_through() -> None:
    assert read_json('{"a": "x\x01y\nz\t"}') == {"a": "x\x01y\nz\t"}
    for bad in ("[1]", "{", '"x"', "{'a': 1}"):
        with pytest.raises(ValueError, match=r".+"):
            read_json(bad)


def test_a_pressed_button_is_read_nested_or_flat() -> None:
    card = {"task_id": "t", "event_key": "yes"}
    nested = {"event": {"eventtype": "template_card_event", "template_card_event": card}}
    assert pressed(nested) == pressed({"event": card}) == ("t", "yes")
    assert pressed({}) == ("", "")
