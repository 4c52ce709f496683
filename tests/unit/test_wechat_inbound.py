"""What callbacks mean."""

from __future__ import annotations

from typing import Any

import pytest

from channels.wechat.inbound import language_in, only_fetches, read_callback, read_media_ref
from channels.wechat.xml import parse
from tests.fakes.wechat import as_xml


def read(kind: str, **fields: Any) -> Any:
    base = {"ToUserName": "gh_1", "FromUserName": "user", "CreateTime": 1_700_000_000, "MsgType": kind}
    if kind != "event":
        base["MsgId"] = 6_000_000_000_000_000_001
    return read_callback(parse(as_xml({**base, **fields}).encode()), "wx")


def test_a_text_message_carries_who_where_and_when() -> None:
    found = read("text", Content=" 你好 ")
    assert (found.kind, found.user, found.account) == ("message", "user", "gh_1")
    inbound = found.inbound
    assert (inbound.id, inbound.text, inbound.cue, inbound.addressed) == (
        "6000000000000000001",
        "你好",
        "direct",
        True,
    )
    assert (inbound.address.channel, inbound.address.chat, inbound.sender.id) == ("wx", "user", "user")
    assert inbound.sent_at == 1_700_000_000


def test_pictures_voices_and_videos_are_attachments() -> None:
    (picture,) = read("image", PicUrl="http://mmbiz.qpic.cn/x/0", MediaId="m1").inbound.attachments
    assert (picture.kind, picture.mime, read_media_ref(picture.ref)) == (
        "image",
        "image/jpeg",
        ("m1", "http://mmbiz.qpic.cn/x/0"),
    )
    voice = read("voice", MediaId="m2", Format="amr").inbound
    assert (voice.text, voice.attachments[0].kind, voice.attachments[0].mime) == ("", "audio", "audio/amr")
    for kind in ("video", "shortvideo"):
        assert read(kind, MediaId="m3", ThumbMediaId="t").inbound.attachments[0].kind == "video"


def test_a_recognised_voice_is_its_words() -> None:
    voice = read("voice", MediaId="m", Format="amr", Recognition="今天天气").inbound
    assert (voice.text, voice.attachments) == ("今天天气", ())


def test_places_links_and_files_are_told_in_words() -> None:
    place = read("location", Location_X="23.13", Location_Y="113.3", Scale="20", Label="广州塔").inbound
    assert place.text == "[位置] 广州塔 (23.13, 113.3)"
    link = read("link", Title="题", Description="文", Url="https://a.cn/").inbound
    assert link.text == "题\n文\nhttps://a.cn/"
    file = read("file", Title="a.pdf", FileKey="k", FileTotalLen=3).inbound
    assert file.text == "[文件] a.pdf"


@pytest.mark.parametrize("event", ["unsubscribe", "VIEW", "LOCATION", "SCAN", "TEMPLATESENDJOBFINISH", ""])
def test_events_that_say_nothing_are_ignored(event: str) -> None:
    assert read("event", Event=event, EventKey="scene").kind == "ignored"


@pytest.mark.parametrize("kind", ["hologram", "music"])
def test_kinds_that_nobody_knows_are_ignored(kind: str) -> None:
    assert read(kind, Content="x").kind == "ignored"


@pytest.mark.parametrize("fields", [{}, {"MsgType": ""}, {"FromUserName": ""}])
def test_a_body_without_sender_or_kind_is_told(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="FromUserName"):
        read_callback(
            {"Content": "x", **({"MsgType": "text", "FromUserName": "u"} if fields else {}), **fields}, "wx"
        )


def test_following_with_and_without_a_scene_is_a_follow() -> None:
    assert read("event", Event="subscribe").kind == "subscribe"
    assert read("event", Event="subscribe", EventKey="qrscene_1").kind == "subscribe"


def test_wx_07_two_clicks_of_one_second_are_two_turns_and_a_repeat_is_one() -> None:
    first = read("event", Event="CLICK", EventKey="MENU_A")
    second = read("event", Event="CLICK", EventKey="MENU_B")
    again = read("event", Event="CLICK", EventKey="MENU_A")
    assert (first.kind, first.inbound.text, second.inbound.text) == ("click", "MENU_A", "MENU_B")
    assert first.id == again.id != second.id
    assert first.inbound.id != "0"


def test_a_code_scanned_from_the_menu_is_what_was_scanned() -> None:
    scanned = {"ScanType": "qrcode", "ScanResult": "https://a.cn/x"}
    found = read("event", Event="scancode_waitmsg", EventKey="K", ScanCodeInfo=scanned)
    assert found.inbound.text == "https://a.cn/x"


@pytest.mark.parametrize(
    "text",
    "继续 继续。 继续吧 好 好的！ ok OK 1 ? ？ 。 …… 嗯嗯 more continue [OK] 👌 看看 结果呢 在吗".replace(
        "继续吧", "接着说"
    ).split(),
)
def test_short_words_of_going_on_only_fetch(text: str) -> None:
    assert only_fetches(text)


@pytest.mark.parametrize(
    "text",
    [
        "继续讲第二点",
        "好的，那明天呢",
        "你好",
        "谢谢",
        "2",
        "yes",
        "是",
        "不",
        "/new",
        "ok google",
        "为什么？",
        "天气",
    ],
)
def test_words_that_say_something_are_messages(text: str) -> None:
    assert not only_fetches(text)


@pytest.mark.parametrize(
    ("text", "before", "language"),
    [
        ("你好", "en", "zh"),
        ("hello there", "zh", "en"),
        ("ok", "zh", "zh"),
        ("123", "en", "en"),
        ("more", "en", "en"),
    ],
)
def test_our_hints_follow_the_language_of_the_person(text: str, before: str, language: str) -> None:
    assert language_in(text, before) == language
