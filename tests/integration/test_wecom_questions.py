"""Questions as cards, and what a check of the settings finds."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from channels.base import (
    Address,
    ChannelError,
    Choice,
    Press,
)
from channels.wecom.channel import WecomChannel
from channels.wecom.config import WecomConfig
from channels.wecom.texts import TEXTS
from tests.fakes.channel_env import MemoryState, memory_env, until
from tests.fakes.wecom import OTHER_KEY, FakeWecom
from tests.integration.wecom_house import Bridge, ref, text

YES_NO = [Choice("ok:1", "允许", "primary"), Choice("no:1", "拒绝", "danger")]


@pytest.fixture
async def fake() -> AsyncIterator[FakeWecom]:
    async with FakeWecom() as server:
        yield server


@pytest.fixture
async def bridge(tmp_path: Path, fake: FakeWecom) -> AsyncIterator[Bridge]:
    async with AsyncExitStack() as stack:
        yield Bridge(tmp_path, fake, stack)


# -- questions -----------------------------------------------------------------------------------------------


async def test_a_question_is_a_card_whose_button_is_told_once_and_then_settled(
    fake: FakeWecom, bridge: Bridge
) -> None:
    channel = await bridge.open()
    assert channel.buttons
    asked = await channel.ask(ref("q1"), "**运行命令?**\n\n`rm -r build`", YES_NO)
    (card,) = fake.shown["ZhangSan"]
    assert card.text == "运行命令?\nrm -r build"
    await fake.press("ZhangSan", "ok:1", CreateTime=1700000000)
    await fake.press("ZhangSan", "ok:1", CreateTime=1700000000)  # delivered again
    (press,) = bridge.presses
    assert (press.choice, press.message_id, press.sender.name) == ("ok:1", asked, "张三")
    assert press.address == Address("wecom", "ZhangSan")
    await channel.settle(ref("q1"), asked, "已允许")
    await channel.settle(ref("q1"), asked, "已允许")
    assert [update["button"]["replace_name"] for update in fake.updates] == ["已允许"]
    assert len(fake.shown["ZhangSan"]) == 1


async def test_a_question_that_nobody_pressed_is_settled_after_a_restart(
    fake: FakeWecom, bridge: Bridge
) -> None:
    channel = await bridge.open()
    asked = await channel.ask(ref("q1"), "运行?", YES_NO)
    await channel.stop()
    await (await bridge.open()).settle(ref("q1"), asked, "已超时")
    assert [update["task"] for update in fake.updates] == [asked]


async def test_the_words_of_a_press_are_shown_to_who_pressed(fake: FakeWecom, bridge: Bridge) -> None:
    channel = await bridge.open()
    bridge.answer_to_press = "这个问题已经有结果了"
    await channel.ask(ref("q1"), "运行?", YES_NO)
    await fake.press("ZhangSan", "no:1")
    await fake.wait_for(lambda: "这个问题已经有结果了" in fake.texts("ZhangSan"))


async def test_a_long_question_is_shown_whole_before_its_card(fake: FakeWecom, bridge: Bridge) -> None:
    channel = await bridge.open()
    await channel.ask(ref("q1"), "运行这个脚本?\n\n" + "很长的命令 " * 500, YES_NO)
    *words, card = fake.shown["ZhangSan"]
    assert "".join(message.text for message in words).count("很长的命令") == 500
    assert card.kind == "template_card"


async def test_a_card_that_can_no_longer_be_changed_is_settled_in_words(
    fake: FakeWecom, bridge: Bridge
) -> None:
    channel = await bridge.open()
    asked = await channel.ask(ref("q1"), "运行?", YES_NO)
    fake.faults["message/update_template_card"].append(42015)
    await channel.settle(ref("q1"), asked, "已允许")
    assert fake.texts("ZhangSan")[-1] == "已允许"


async def test_without_cards_and_with_a_refused_card_the_question_goes_in_words(
    fake: FakeWecom, bridge: Bridge
) -> None:
    channel = await bridge.open(cards=False)
    assert not channel.buttons
    asked = await channel.ask(ref("q1"), "运行?", YES_NO)
    await channel.settle(ref("q1"), asked, "已允许")
    channel = await bridge.open()
    fake.faults["message/send"].append(40058)
    await channel.ask(ref("q2"), "运行?", YES_NO)
    assert not channel.buttons
    assert fake.texts("ZhangSan") == ["运行?\n\n• 允许\n• 拒绝"] * 2


async def test_a_press_that_the_bridge_cannot_take_comes_again(
    fake: FakeWecom, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    async def failing(press: Press) -> str:
        tries.append(press)
        if len(tries) < 2:
            raise RuntimeError("the store is full")
        return ""

    monkeypatch.setattr(bridge, "press", failing)
    channel = await bridge.open()
    await channel.ask(ref("q1"), "运行?", YES_NO)
    await fake.press("ZhangSan", "ok:1")
    assert fake.deliveries == [503, 200]


# -- setting up ----------------------------------------------------------------------------------------------


async def findings(bridge: Bridge, language: str = "en", **settings: Any) -> dict[str, list[str]]:
    config = WecomConfig.model_validate(bridge.fake.settings(**settings))
    env = replace(
        memory_env(bridge.folder, MemoryState(), text), public_url=bridge.public_url, clock=bridge.fake.clock
    )
    found: dict[str, list[str]] = {"ok": [], "warning": [], "error": []}
    for finding in await WecomChannel("wecom", config, env).check(language):
        found[finding.level].append(f"{finding.what} | {finding.cure}")
    return found


async def test_a_check_of_a_good_application_says_so_and_names_the_callback_url(
    fake: FakeWecom, bridge: Bridge
) -> None:
    await bridge.open()
    bridge.public_url = fake.target.partition("/channels")[0]
    found = await findings(bridge, "zh")
    assert not found["error"]
    assert not found["warning"]
    said = "\n".join(found["ok"])
    assert fake.target in said
    assert "助手" in said
    assert "设置API接收" in said


@pytest.mark.parametrize(
    ("settings", "named", "where"),
    [
        ({"corp_id": "ww-wrong"}, "corp_id is wrong", "企业ID"),
        ({"secret": "wrong"}, "secret is wrong", "Secret"),
        ({"agent_id": 1}, "agent_id 1", "AgentId"),
        ({"aes_key": "short"}, "aes_key", ""),
        ({"base_url": "http://127.0.0.1:9"}, "cannot be reached", "base_url"),
    ],
)
async def test_a_check_names_the_wrong_setting_and_where_the_right_one_is(
    bridge: Bridge, settings: dict[str, Any], named: str, where: str
) -> None:
    found = await findings(bridge, **settings)
    assert len(found["error"]) == 1
    assert named in found["error"][0]
    assert where in found["error"][0]


async def test_a_check_explains_the_trusted_address_a_closed_and_an_unseen_application(
    fake: FakeWecom, bridge: Bridge
) -> None:
    fake.trusted = False
    (error,) = (await findings(bridge))["error"]
    assert "203.0.113.9" in error
    assert "企业可信IP" in error
    fake.trusted = True
    fake.agent.closed = 1
    assert "已停用" in (await findings(bridge))["error"][0]
    fake.agent.closed = 0
    fake.members.clear()
    assert "可见范围" in (await findings(bridge))["error"][0]


async def test_a_check_says_when_the_way_in_is_unknown_or_shut(fake: FakeWecom, bridge: Bridge) -> None:
    (warning,) = (await findings(bridge))["warning"]
    assert "/channels/wecom/callback" in warning
    assert "public_url" in warning
    bridge.public_url = "http://127.0.0.1:9"
    (warning,) = (await findings(bridge))["warning"]
    assert "reverse proxy" in warning
    await bridge.open(aes_key=OTHER_KEY)
    bridge.public_url = fake.target.partition("/channels")[0]
    assert "HTTP 403" in (await findings(bridge))["warning"][0]


async def test_what_stops_all_sending_shows_in_the_health_before_anything_is_sent_and_heals(
    fake: FakeWecom, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.wecom.channel._SIGN_IN_PAUSE", 0.05)
    fake.trusted = False
    channel = await bridge.open()
    await until(lambda: not channel.health().ok)
    assert "企业可信IP" in channel.health().cure
    fake.trusted = True
    await until(lambda: channel.health().ok)
    wrong = await bridge.open("wrong", secret="wrong")
    await until(lambda: not wrong.health().ok)
    assert "Secret" in wrong.health().cure


async def test_settings_that_cannot_work_stop_the_start(fake: FakeWecom, bridge: Bridge) -> None:
    with pytest.raises(ChannelError, match="aes_key"):
        await bridge.open(aes_key="short")


async def test_every_text_is_in_both_languages_with_the_same_values() -> None:
    for key, (english, chinese) in TEXTS.items():
        assert key.startswith("wecom.")
        fields = [sorted(set(re.findall(r"\{(\w+)\}", words))) for words in (english, chinese)]
        assert fields[0] == fields[1], key


async def test_stopping_waits_for_hints_and_leaves_nothing_behind(fake: FakeWecom, bridge: Bridge) -> None:
    channel = await bridge.open()
    fake.delay = 0.2
    await fake.event("ZhangSan", "enter_agent")
    await channel.stop()
    assert fake.texts("ZhangSan") == [TEXTS["wecom.greeting"][1]]
    await until(lambda: not [t for t in asyncio.all_tasks() if "wecom" in t.get_name()], 2)
