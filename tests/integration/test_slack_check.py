"""What `doctor` and `init` find out about a Slack app, and that the manifest asks for what is used."""

from __future__ import annotations

import ast
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from channels.slack.channel import SlackChannel
from channels.slack.check import SCOPES, check
from channels.slack.config import SlackConfig
from channels.slack.texts import TEXTS
from tests.fakes import slack_api
from tests.fakes.channel_env import memory_env
from tests.fakes.slack import FakeSlack
from tests.harness import ROOT

#: Methods and the scope that Slack wants for each (docs.slack.dev/reference/methods); none: any token.
NEEDS = {
    **slack_api.SCOPES,
    "auth.test": (),
    "apps.connections.open": (),
    "views.publish": (),
    "views.open": (),
    "views.update": (),
    "assistant.threads.setSuggestedPrompts": ("assistant:write",),
    "usergroups.list": ("usergroups:read",),
}


@pytest.fixture
async def fake() -> AsyncIterator[FakeSlack]:
    async with FakeSlack() as server:
        server.scopes = set(SCOPES)
        server.place("C1")
        yield server


def words(key: str, language: str = "", /, **values: object) -> str:
    return TEXTS[key][language.startswith("zh")].format(**values)


async def found(
    fake: FakeSlack, folder: Path, language: str = "", url: str = "", **settings: Any
) -> dict[str, str]:
    """what -> level and cure"""
    base = {"bot_token": fake.bot_token, "app_token": fake.app_token, "base_url": fake.url}
    config = SlackConfig.model_validate({**base, **settings})
    env = replace(memory_env(folder, text=words), public_url=url)
    return {f.what: f"{f.level} {f.cure}".strip() for f in await check("slack", config, env, language)}


async def test_a_working_app_is_found_so(fake: FakeSlack, tmp_path: Path) -> None:
    findings = await found(fake, tmp_path)
    assert set(findings.values()) == {"ok"}
    assert len(findings) == 4
    assert fake.sockets.opened == 0


async def test_findings_are_in_the_language_asked_for(fake: FakeSlack, tmp_path: Path) -> None:
    assert "bot_token 有效：Fake 中的 causeway。" in await found(fake, tmp_path, "zh-CN")


async def test_missing_scopes_are_named_with_their_cure(fake: FakeSlack, tmp_path: Path) -> None:
    fake.scopes -= {"chat:write", "files:read"}
    findings = await found(fake, tmp_path)
    text = findings["The app lacks scopes: chat:write, files:read."]
    assert text.startswith("error")
    assert "slack-manifest.yaml" in text


@pytest.mark.parametrize(
    ("settings", "what", "cure"),
    [
        ({"bot_token": "xoxp-1"}, "is no bot token", ""),
        ({"bot_token": "xoxb-wrong"}, "Slack refuses bot_token: invalid_auth", "Bot User OAuth Token"),
        ({"app_token": "xoxb-1"}, "is no app-level token", ""),
        ({"app_token": "xapp-wrong"}, "Socket Mode cannot be used", "connections:write"),
        ({"mode": "http"}, "signing_secret is empty", ""),
        ({"mode": "http", "signing_secret": "s"}, "server.public_url is not set", "/channels/slack/events"),
        ({"base_url": "http://127.0.0.1:9"}, "Slack cannot be reached", "HTTPS_PROXY"),
    ],
)
async def test_faults_are_named_with_what_to_change(
    fake: FakeSlack, tmp_path: Path, settings: dict[str, Any], what: str, cure: str
) -> None:
    findings = await found(fake, tmp_path, **settings)
    bad = [(text, rest) for text, rest in findings.items() if not rest.startswith("ok")]
    assert len(bad) == 1
    assert what in bad[0][0]
    assert cure in bad[0][1]
    assert not any(
        token in f"{bad}" for token in (fake.bot_token, fake.app_token, "xoxb-wrong", "xapp-wrong")
    )


async def test_the_address_for_events_is_told(fake: FakeSlack, tmp_path: Path) -> None:
    http = {"mode": "http", "signing_secret": "s"}
    findings = await found(fake, tmp_path, url="https://bot.example.org", **http)
    assert "Request URL in the app's settings: https://bot.example.org/channels/slack/events" in findings
    findings = await found(fake, tmp_path, url="http://bot.example.org", **http)
    assert "warning Slack sends events to https addresses only." in findings.values()


async def test_a_bot_in_no_channel_is_told_how_to_be_invited(fake: FakeSlack, tmp_path: Path) -> None:
    fake.places.clear()
    findings = await found(fake, tmp_path)
    assert findings["The bot is in no channel yet."].startswith(
        "warning In a channel write: /invite @causeway"
    )


# -- the manifest ----------------------------------------------------------------------------------------


def manifest() -> dict[str, Any]:
    text = (ROOT / "docs" / "slack-manifest.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.safe_load(text)
    return data


def methods_called() -> set[str]:
    """Every literal in channels/slack that is the name of a method."""
    name = re.compile(
        r"(?:api|apps|assistant|auth|bots|chat|conversations|files|reactions|usergroups|users|views)(?:\.\w+)+"
    )
    found = set()
    for path in (ROOT / "channels" / "slack").glob("*.py"):
        if path.name == "check.py":
            tree = ast.parse(path.read_text(encoding="utf-8"))
            calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
            literals = [a for call in calls for a in call.args if isinstance(a, ast.Constant)]
        else:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            literals = [n for n in ast.walk(tree) if isinstance(n, ast.Constant)]
        found |= {n.value for n in literals if isinstance(n.value, str) and name.fullmatch(n.value)}
    return found


def test_the_manifest_asks_for_exactly_the_scopes_that_are_used() -> None:
    asked = set(manifest()["oauth_config"]["scopes"]["bot"])
    assert asked == set(SCOPES)
    called = methods_called()
    assert "chat.startStream" in called
    assert called <= set(NEEDS), f"name the scopes of {called - set(NEEDS)}"
    for method in sorted(called):
        assert not NEEDS[method] or asked & set(NEEDS[method]), f"{method} needs one of {NEEDS[method]}"
    events = set(manifest()["settings"]["event_subscriptions"]["bot_events"])
    used = {event.replace("message.", "") + ":history" for event in events if event.startswith("message.")}
    used |= {"app_mentions:read"} if "app_mention" in events else set()
    used |= {"commands"} if manifest()["features"]["slash_commands"] else set()
    used |= {scope for method in called for scope in NEEDS[method][-1:]}
    for scope in asked:
        method = SCOPES[scope]
        assert scope in used or method in called or method in events, f"nothing needs {scope}"


def test_the_manifest_subscribes_to_what_the_channel_listens_to() -> None:
    settings, features = manifest()["settings"], manifest()["features"]
    assert set(settings["event_subscriptions"]["bot_events"]) == {
        "app_home_opened",
        "app_mention",
        "assistant_thread_context_changed",
        "assistant_thread_started",
        "channel_rename",
        "group_rename",
        "message.channels",
        "message.groups",
        "message.im",
        "message.mpim",
        "user_change",
    }
    assert settings["interactivity"]["is_enabled"] is True
    assert settings["socket_mode_enabled"] is True
    assert features["slash_commands"][0]["command"] == "/causeway"
    assert features["shortcuts"][0]["callback_id"] == "ask_about_this"
    assert features["app_home"]["messages_tab_enabled"] is True
    assert features["app_home"]["messages_tab_read_only_enabled"] is False


def test_the_setup_asks_for_every_secret_of_the_settings() -> None:
    assert [field.name for field in SlackChannel.setup] == ["bot_token", "app_token", "signing_secret"]
    assert all(field.secret and {"en", "zh"} <= set(field.about) for field in SlackChannel.setup)


def test_every_text_is_there_in_both_languages_with_the_same_values() -> None:
    for key, (english, chinese) in TEXTS.items():
        assert key.startswith("slack.")
        assert set(re.findall(r"\{(\w+)\}", english)) == set(re.findall(r"\{(\w+)\}", chinese)), key
