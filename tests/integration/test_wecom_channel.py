"""Callbacks of a WeCom application: proved, read, in order, answered when stored; members' names."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from channels.base import Inbound
from channels.wecom.texts import TEXTS
from tests.fakes.wecom import KEY, OTHER_KEY, Agent, FakeWecom
from tests.integration.wecom_house import Bridge, ref, show


@pytest.fixture
async def fake() -> AsyncIterator[FakeWecom]:
    async with FakeWecom() as server:
        yield server


@pytest.fixture
async def bridge(tmp_path: Path, fake: FakeWecom) -> AsyncIterator[Bridge]:
    async with AsyncExitStack() as stack:
        yield Bridge(tmp_path, fake, stack)


# -- callbacks -----------------------------------------------------------------------------------------------


async def test_the_console_can_save_the_url(fake: FakeWecom, bridge: Bridge) -> None:
    await bridge.open()
    assert await fake.verify_url() == (200, b"echo-1234")


async def test_wx_08_a_url_check_for_another_company_is_refused(
    fake: FakeWecom, bridge: Bridge, caplog: pytest.LogCaptureFixture
) -> None:
    await bridge.open()
    assert (await fake.verify_url(corp="ww-another-corp"))[0] == 403
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_wx_08_of_two_signatures_the_one_over_the_cipher_text_decides(
    fake: FakeWecom, bridge: Bridge
) -> None:
    await bridge.open()
    query, body = fake.seal(fake.fields("ZhangSan", "text", Content="hi"))
    assert await fake.request("POST", {**query, "signature": "0" * 40}, body) == 200
    assert [inbound.text for inbound in bridge.got] == ["hi"]
    right = query.pop("msg_signature")
    assert await fake.request("POST", {**query, "signature": right}, body) == 403


async def test_wx_08_foreign_ids_and_altered_bodies_are_refused_and_never_handled(
    fake: FakeWecom, bridge: Bridge, caplog: pytest.LogCaptureFixture
) -> None:
    await bridge.open()
    xml = fake.fields("ZhangSan", "text", Content="hi")
    query, body = fake.seal(xml, corp="ww-another-corp")
    assert await fake.request("POST", query, body) == 403
    query, body = fake.seal(xml)
    place = body.index("<Encrypt><![CDATA[") + 40
    altered = body[:place] + ("A" if body[place] != "A" else "B") + body[place + 1 :]
    assert await fake.request("POST", query, altered) == 403
    query, body = fake.seal(xml, key=OTHER_KEY)
    assert await fake.request("POST", query, body) == 403
    query, body = fake.seal(xml, at=int(fake.clock()) - 7200)
    assert await fake.request("POST", query, body) == 403
    query, body = fake.seal(xml)
    assert await fake.request("POST", {**query, "timestamp": "x"}, body) == 403
    assert bridge.got == []
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("", 400),
        ("not xml", 400),
        ("<xml><Encrypt>", 400),
        ("<xml></xml>", 400),
        ("<xml><Encrypt>QUJD</Encrypt></xml>", 403),
        ('<!DOCTYPE x [<!ENTITY a "b"><!ENTITY c "&a;&a;">]><xml><Encrypt>&c;</Encrypt></xml>', 400),
        ("<a>" * 5000 + "</a>" * 5000, 400),
        ("<xml><Encrypt>" + "A" * 300_000 + "</Encrypt></xml>", 413),
    ],
)
async def test_bad_bodies_are_refused_and_never_an_error_of_ours(
    fake: FakeWecom, bridge: Bridge, body: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    await bridge.open()
    query, _ = fake.seal(fake.fields("ZhangSan", "text", Content="hi"))
    assert await fake.request("POST", query, body) == status
    assert bridge.got == []
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    "inside",
    [
        "no xml",
        "<xml><MsgType>",
        '<!DOCTYPE x [<!ENTITY a "b">]><xml><MsgType>&a;</MsgType></xml>',
    ],
)
async def test_bad_xml_inside_a_good_seal_is_a_400(fake: FakeWecom, bridge: Bridge, inside: str) -> None:
    await bridge.open()
    query, body = fake.seal(inside)
    assert await fake.request("POST", query, body) == 400
    assert bridge.got == []


@pytest.mark.parametrize(
    "inside",
    [
        "<xml><MsgType>text</MsgType></xml>",
        "<xml><MsgType><b>text</b></MsgType></xml>",
        "<xml><MsgType>event</MsgType><Event>template_card_event</Event></xml>",
        "<xml><MsgType>text</MsgType><MsgId>1</MsgId><MsgId>2</MsgId><FromUserName>a</FromUserName></xml>",
    ],
)
async def test_a_callback_that_lacks_what_it_needs_is_taken_and_dropped(
    fake: FakeWecom, bridge: Bridge, inside: str
) -> None:
    await bridge.open()
    assert await fake.deliver(inside)
    assert bridge.got == []


async def test_control_characters_in_a_message_are_cleaned(fake: FakeWecom, bridge: Bridge) -> None:
    await bridge.open()
    assert await fake.say("ZhangSan", "a\x00b\x08c\ud83d😀".encode("utf-8", "replace").decode())
    assert bridge.got[0].text == "abc?😀"


async def test_a_replayed_callback_is_the_same_message(fake: FakeWecom, bridge: Bridge) -> None:
    await bridge.open()
    query, body = fake.seal(fake.fields("ZhangSan", "text", Content="hi"))
    for _ in range(3):
        assert await fake.request("POST", query, body) == 200
    assert len(bridge.got) == 1


async def test_a_message_that_cannot_be_stored_is_not_acknowledged_and_comes_again(
    fake: FakeWecom, bridge: Bridge
) -> None:
    await bridge.open()
    left = [True, True]
    bridge.refuse = lambda _: bool(left and left.pop())
    assert await fake.say("ZhangSan", "hello")
    assert fake.deliveries == [503, 503, 200]
    assert [inbound.text for inbound in bridge.got] == ["hello"]


async def test_a_message_whose_storing_takes_longer_than_wecom_waits_is_known_when_it_comes_again(
    fake: FakeWecom, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.pace = 0.06  # WeCom waits for 0.3 s
    stored = bridge.receive
    slow = [True]

    async def receive(inbound: Inbound) -> None:
        await stored(inbound)
        if slow and slow.pop():
            await asyncio.sleep(0.6)

    monkeypatch.setattr(bridge, "receive", receive)
    await bridge.open()
    assert await fake.say("ZhangSan", "hello")
    assert fake.deliveries[0] == "timeout"
    assert fake.deliveries[-1] == 200
    assert [inbound.text for inbound in bridge.got] == ["hello"]


async def test_a_paused_channel_takes_nothing_but_still_sends(fake: FakeWecom, bridge: Bridge) -> None:
    channel = await bridge.open()
    await channel.pause()
    assert not await fake.say("ZhangSan", "hello")
    assert fake.deliveries == [503, 503, 503]
    await show(channel, ref(), "still here")
    assert fake.texts("ZhangSan") == ["still here"]


async def test_after_a_key_change_the_previous_key_still_opens(fake: FakeWecom, bridge: Bridge) -> None:
    await bridge.open(aes_key=OTHER_KEY, previous_aes_key=KEY)
    assert await fake.say("ZhangSan", "old key")
    assert await fake.verify_url() == (200, b"echo-1234")
    query, body = fake.seal(fake.fields("ZhangSan", "text", Content="new key"), key=OTHER_KEY)
    assert await fake.request("POST", query, body) == 200
    assert [inbound.text for inbound in bridge.got] == ["old key", "new key"]


async def test_a_callback_for_another_application_is_refused_and_said(
    fake: FakeWecom, bridge: Bridge
) -> None:
    channel = await bridge.open()
    assert not await fake.say("ZhangSan", "hello", AgentID=1000009)
    assert bridge.got == []
    assert not channel.health().ok
    assert "1000009" in channel.health().reason
    assert await fake.say("ZhangSan", "hello")
    assert channel.health().ok


async def test_several_applications_of_one_company_run_side_by_side(fake: FakeWecom, bridge: Bridge) -> None:
    fake.agents[1000003] = Agent(1000003, "other-secret", "otherToken", OTHER_KEY, "二号")
    first = await bridge.open()
    one = fake.target
    second = await bridge.open("wecom2", fake.agents[1000003])
    two = fake.target
    assert await fake.deliver(fake.fields("LiSi", "text", Content="a"), target=one)
    other = fake.agents[1000003]
    assert await fake.deliver(fake.fields("LiSi", "text", other, Content="b"), other, target=two)
    assert [(inbound.address.channel, inbound.text) for inbound in bridge.got] == [
        ("wecom", "a"),
        ("wecom2", "b"),
    ]
    await show(first, ref("r1", "LiSi"), "one")
    await show(second, ref("r2", "LiSi"), "two")
    assert [(message.agent, message.text) for message in fake.shown["LiSi"]] == [
        (1000002, "one"),
        (1000003, "two"),
    ]
    assert fake.calls["gettoken"] == 2


async def test_events_are_taken_and_ask_for_nothing(fake: FakeWecom, bridge: Bridge) -> None:
    await bridge.open()
    for event in ("subscribe", "unsubscribe", "LOCATION", "view"):
        assert await fake.event("ZhangSan", event)
    assert bridge.got == []
    assert fake.deliveries == [200] * 4


async def test_wx_07_two_menu_clicks_of_one_second_are_two_messages_and_a_repeat_is_none(
    fake: FakeWecom, bridge: Bridge
) -> None:
    await bridge.open()
    for key in ("/new", "/status", "/new"):
        assert await fake.event("ZhangSan", "click", EventKey=key, CreateTime=1700000000)
    assert [inbound.text for inbound in bridge.got] == ["/new", "/status"]


async def test_who_opens_the_application_is_greeted_once(fake: FakeWecom, bridge: Bridge) -> None:
    channel = await bridge.open()
    for _ in range(3):
        assert await fake.event("ZhangSan", "enter_agent")
    await fake.wait_for(lambda: fake.texts("ZhangSan"))
    await channel.stop()
    await bridge.open()
    assert await fake.event("ZhangSan", "enter_agent")
    assert await fake.event("LiSi", "enter_agent")
    await fake.wait_for(lambda: fake.texts("LiSi"))
    assert fake.texts("ZhangSan") == [TEXTS["wecom.greeting"][1]]


async def test_greetings_can_be_switched_off(fake: FakeWecom, bridge: Bridge) -> None:
    channel = await bridge.open(greeting=False)
    assert await fake.event("ZhangSan", "enter_agent")
    await channel.stop()
    assert fake.calls["message/send"] == 0


# -- names ---------------------------------------------------------------------------------------------------


async def test_a_member_is_called_by_name_and_asked_for_once(fake: FakeWecom, bridge: Bridge) -> None:
    await bridge.open()
    for words in ("one", "two"):
        await fake.say("ZhangSan", words)
    assert [inbound.sender.name for inbound in bridge.got] == ["张三", "张三"]
    assert fake.calls["user/get"] == 1


async def test_without_the_right_to_read_members_the_id_serves_and_nobody_asks_again(
    fake: FakeWecom, bridge: Bridge
) -> None:
    fake.hidden = {"ZhangSan", "LiSi"}
    await bridge.open()
    for member in ("ZhangSan", "LiSi", "ZhangSan"):
        assert await fake.say(member, "hello")
    assert [inbound.sender.id for inbound in bridge.got] == ["ZhangSan", "LiSi", "ZhangSan"]
    assert {inbound.sender.name for inbound in bridge.got} == {""}
    assert fake.calls["user/get"] == 1


async def test_a_slow_directory_holds_messages_back_no_longer_than_one_would_wait(
    fake: FakeWecom, bridge: Bridge
) -> None:
    channel = await bridge.open()
    assert channel._people is not None
    channel._people._patience = 0.4
    fake.delay = 30
    fake.pace = 0.2  # WeCom waits for one second
    assert all(await asyncio.gather(*(fake.say("ZhangSan", str(number)) for number in range(5))))
    assert fake.deliveries == [200] * 5
    assert sorted(inbound.text for inbound in bridge.got) == [str(number) for number in range(5)]
    assert {inbound.sender.name for inbound in bridge.got} == {""}


async def test_messages_behind_one_that_waits_for_a_name_keep_their_order(
    fake: FakeWecom, bridge: Bridge
) -> None:
    await bridge.open()
    fake.delay = 0.3
    first = asyncio.create_task(fake.say("ZhangSan", "first"))
    await fake.wait_for(lambda: fake.calls["gettoken"])
    await asyncio.gather(first, fake.say("ZhangSan", "second"))
    assert [(inbound.text, inbound.sender.name) for inbound in bridge.got] == [
        ("first", "张三"),
        ("second", "张三"),
    ]
