"""Bodies of callbacks and replies, however odd."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.wechat.inbound import read_callback
from channels.wechat.xml import Malformed, encrypted_part, json_reply, parse, text_of, text_reply

BOMB = (
    "<?xml version='1.0'?><!DOCTYPE x [<!ENTITY a 'ha'><!ENTITY b '&a;&a;&a;&a;&a;&a;&a;&a;&a;'>]>"
    "<xml><MsgType>text</MsgType><Content>&b;</Content></xml>"
)


@pytest.mark.parametrize(
    "text",
    [
        "if m[i[0]]>1 then </xml>",
        "]]>",
        "]]]]>>",
        "<![CDATA[x]]>",
        "a & b < c",
        "你好 😀",
        "]]>" * 50,
        "x\n\ny ",
    ],
)
def test_wx_02_a_reply_parses_and_its_content_equals_the_text(text: str) -> None:
    found = ET.fromstring(text_reply("user", "gh_1", text, 1_700_000_000.5))
    assert found.findtext("Content") == text
    assert (found.findtext("ToUserName"), found.findtext("FromUserName")) == ("user", "gh_1")
    assert (found.findtext("MsgType"), found.findtext("CreateTime")) == ("text", "1700000000")
    assert json.loads(json_reply("user", "gh_1", text, 1.0))["Content"] == text


def test_characters_that_xml_cannot_carry_are_left_out_of_a_reply() -> None:
    found = ET.fromstring(text_reply("u", "g", "a\x00b\x0bc\ud800d\uffffe", 1))
    assert found.findtext("Content") == "abcde"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"<xml><Content>",
        b"<xml></xml>",
        b"<other/>",
        b"<xml>&unknown;</xml>",
        b"\xff\xfe\x00",
        BOMB.encode(),
        b"{",
        b'{"a":' * 50_000,
        b"[1]",
    ],
    ids=range(11),
)
def test_what_is_no_message_is_malformed_and_nothing_else(body: bytes) -> None:
    with pytest.raises(Malformed):
        parse(body)


def test_nothing_outside_is_read_for_a_body_and_its_own_text_may_look_like_that() -> None:
    outside = b"<!DOCTYPE x SYSTEM 'file:///etc/passwd'><xml><a>&x;</a></xml>"
    assert text_of(parse(outside), "a") == ""
    text = "<!DOCTYPE html><!ENTITY a 'x'>"
    assert parse(f"<xml><Content><![CDATA[{text}]]></Content></xml>".encode())["Content"] == text


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200), st.text(alphabet="<>/![]CDATxml&;{}:\"'a1 ", max_size=120).map(str.encode)
    )
)
def test_whatever_bytes_come_they_are_read_or_malformed(body: bytes) -> None:
    encrypted_part(body)
    try:
        found = parse(body)
    except Malformed:
        return
    try:
        read_callback(found, "wx")
    except ValueError:
        return


def test_control_characters_that_people_type_do_not_hide_their_message() -> None:
    body = "<xml><MsgType>text</MsgType><Content><![CDATA[a\x08b\x1f]]></Content></xml>"
    assert parse(body.encode())["Content"] == "ab"
    assert parse(b'{"MsgType": "text", "Content": "a\x01b"}')["Content"] == "a\x01b"


def test_fields_that_come_twice_or_nested_are_no_text() -> None:
    found = parse(b"<xml><A>1</A><A>2</A><B><C>3</C></B><D/></xml>")
    assert [text_of(found, name) for name in "ABDE"] == ["", "", "", ""]


def test_the_cipher_text_is_found_without_a_parser() -> None:
    assert encrypted_part(b"<xml><Encrypt><![CDATA[ab+/=]]></Encrypt></xml>") == "ab+/="
    assert encrypted_part(b'{"ToUserName":"x","Encrypt":"ab+\\/="}') == "ab+/="
    assert encrypted_part(b"<xml>" + b"<a>" * 80_000) == ""
