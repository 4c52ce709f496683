"""What `init` and `doctor` find out about a Telegram bot."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from channels.base import Env, Finding
from channels.telegram.channel import TelegramChannel, TelegramConfig
from channels.telegram.check import check_groups
from channels.telegram.texts import TEXTS
from tests.fakes.channel_env import MemoryState
from tests.fakes.telegram import TOKEN, FakeTelegram


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram() as server:
        yield server


def say(key: str, language: str = "", /, **values: object) -> str:
    english, chinese = TEXTS[key]
    return (chinese if language.startswith("zh") else english).format(**values)


def channel(url: str, folder: Path, public_url: str = "", **settings: Any) -> TelegramChannel:
    config = TelegramConfig.model_validate({"token": TOKEN, "base_url": url, **settings})
    env = Env(MemoryState(), say, folder, time.time, public_url=public_url)
    return TelegramChannel("tg", config, env)


def levels(findings: list[Finding]) -> list[str]:
    return [finding.level for finding in findings]


async def test_a_bot_with_privacy_mode_is_well_and_told_how_to_change_it(
    fake: FakeTelegram, tmp_path: Path
) -> None:
    fake.say(5, "waiting")
    found = await channel(fake.url, tmp_path).check()
    assert levels(found) == ["ok", "warning", "ok"]
    token, privacy, polling = found
    assert "@TheBot" in token.what
    assert "/setprivacy" in privacy.cure
    assert "add it again" in privacy.cure
    assert "1 message" in polling.what
    assert {c.method for c in fake.calls} == {"getMe", "getWebhookInfo"}  # it only asks
    assert len(fake.updates) == 1


async def test_the_findings_are_in_chinese_when_asked(fake: FakeTelegram, tmp_path: Path) -> None:
    found = await channel(fake.url, tmp_path).check("zh-CN")
    assert "机器人是 @TheBot" in found[0].what
    assert "/setprivacy" in found[1].cure


async def test_rights_of_the_account_are_told(fake: FakeTelegram, tmp_path: Path) -> None:
    fake.me |= {"can_read_all_group_messages": True, "has_topics_enabled": True}
    found = await channel(fake.url, tmp_path).check()
    assert levels(found) == ["ok"] * 4
    fake.me["can_join_groups"] = False
    found = await channel(fake.url, tmp_path).check()
    assert "/setjoingroups" in found[1].cure


@pytest.mark.parametrize(("token", "code"), [("123:unknown", 401), (TOKEN, 404)])
async def test_a_wrong_token_is_an_error_with_its_cure(
    fake: FakeTelegram, tmp_path: Path, token: str, code: int
) -> None:
    if code == 404:
        fake.fail("getMe", 404, "Not Found")
    (found,) = await channel(fake.url, tmp_path, token=token).check()
    assert found.level == "error"
    assert "@BotFather" in found.cure
    assert "channels.tg.token" in found.cure
    assert token not in found.what + found.cure


async def test_settings_that_cannot_work_and_a_server_out_of_reach_are_findings(
    fake: FakeTelegram, tmp_path: Path
) -> None:
    (found,) = await channel(fake.url, tmp_path, token="nonsense").check()
    assert (found.level, "channels.tg.token" in found.what) == ("error", True)
    await fake.stop()
    (found,) = await channel(fake.url, tmp_path).check()
    assert found.level == "error"
    assert fake.url in found.what
    assert "channels.tg.proxy" in found.cure


async def test_a_webhook_in_the_way_of_polling_is_an_error(fake: FakeTelegram, tmp_path: Path) -> None:
    fake.webhook = "https://example.org/old"
    found = await channel(fake.url, tmp_path).check()
    assert found[-1].level == "error"
    assert "https://example.org/old" in found[-1].what
    assert "deleteWebhook" in found[-1].cure


async def test_the_state_of_the_webhook_is_told(fake: FakeTelegram, tmp_path: Path) -> None:
    settings = {"mode": "webhook", "webhook_secret": "s3cret"}

    async def last(public_url: str = "https://bot.example.org") -> Finding:
        return (await channel(fake.url, tmp_path, public_url, **settings).check())[-1]

    assert (await last()).level == "warning"  # none is set yet
    fake.webhook = "https://elsewhere.example.org/x"
    other = await channel(fake.url, tmp_path, "https://bot.example.org", **settings).check()
    assert [f.level for f in other[-2:]] == ["error", "ok"]
    assert "https://bot.example.org/channels/tg/webhook" in other[-2].what
    fake.webhook = "https://bot.example.org/channels/tg/webhook"
    assert (await last()).level == "ok"
    assert fake.hook is not None
    fake.hook.error, fake.hook.error_date = "Connection refused", int(time.time()) - 300
    fake.push({"message": {}})
    failing = await last()
    assert failing.level == "error"
    assert "5 minute" in failing.what
    assert "Connection refused" in failing.what
    local = await channel(fake.url, tmp_path, "http://127.0.0.1:8765", **settings).check()
    assert any("server.public_url" in finding.cure for finding in local)


async def test_the_rights_in_groups_are_told(fake: FakeTelegram, tmp_path: Path) -> None:
    fake.chat(-1001, title="Fine", member={"status": "administrator"})
    fake.chat(-1002, title="Blind")
    fake.chat(-1003, title="Mute", permissions={"can_send_messages": False})
    fake.chat(-1004, title="Gagged", member={"status": "restricted", "can_send_messages": False})
    fake.chat(-1005, title="Plain", permissions={"can_send_messages": True, "can_send_photos": False})
    fake.chat(-1006, title="Left", member={"status": "left"})
    fake.chat(-1007, gone="Forbidden: bot was kicked from the supergroup chat")
    fake.chat(-8, "group", migrated_to=-1008)
    asked = [*(f"-100{n}" for n in range(1, 8)), "-8", "-9999"]
    me = channel(fake.url, tmp_path)
    found = await check_groups("tg", me.config, me.env, asked)
    assert levels(found) == ["ok", "warning", "error", "error", "warning", "error", "error", "error", "error"]
    assert "Fine (-1001)" in found[0].what
    assert "/setprivacy" in found[1].cure
    assert "Permissions" in found[2].cure
    assert "files" in found[4].what
    assert "-1008" in found[7].cure
    assert "-9999" in found[8].cure


def test_each_text_has_both_languages_with_the_same_values() -> None:
    import string

    for key, (english, chinese) in TEXTS.items():
        assert key.startswith("telegram."), key
        names = [{f for _, f, _, _ in string.Formatter().parse(text) if f} for text in (english, chinese)]
        assert names[0] == names[1], key
