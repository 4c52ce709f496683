"""The home tab and an assistant thread's suggestions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from channels.base import Inbound
from channels.slack.channel import SlackChannel
from channels.slack.config import SlackConfig
from channels.slack.texts import TEXTS
from tests.fakes.channel_env import MemoryState, memory_env, until
from tests.fakes.slack import FakeSlack


def words(key: str, language: str = "", /, **values: object) -> str:
    return TEXTS[key][language.startswith("zh")].format(**values)


async def nobody(_inbound: Inbound) -> None:
    raise AssertionError("nothing is said to the bridge here")


@pytest.fixture
async def fake() -> AsyncIterator[FakeSlack]:
    async with FakeSlack() as server:
        server.user("U1", "Ann")
        server.user("U2", "Bo", locale="zh-CN")
        yield server


@pytest.fixture
async def channel(
    fake: FakeSlack, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[SlackChannel]:
    more: dict[str, Any] = getattr(request, "param", {})
    settings = {"bot_token": fake.bot_token, "app_token": fake.app_token, "base_url": fake.url, **more}
    env = memory_env(tmp_path, MemoryState(), words)
    channel = SlackChannel("slack", SlackConfig.model_validate(settings), env)
    await channel.start(nobody)
    await until(lambda: channel.health().ok)
    yield channel
    await channel.stop()


def shown(fake: FakeSlack, user: str) -> str:
    texts = (block.get("text") or {} for block in fake.homes[user]["blocks"])
    return "\n".join(text.get("text", "") for text in texts)


@pytest.mark.parametrize(("user", "said"), [("U1", "Connected"), ("U2", "已连接")])
async def test_the_home_tab_says_how_it_stands_and_how_to_talk(
    fake: FakeSlack, channel: SlackChannel, user: str, said: str
) -> None:
    fake.open_home(user)
    await fake.wait_for(lambda: user in fake.homes)
    assert said in shown(fake, user)
    assert f"<@{fake.bot_user}>" in shown(fake, user)
    assert "/causeway help" in shown(fake, user)


async def test_the_home_tab_names_trouble_with_the_account(fake: FakeSlack, channel: SlackChannel) -> None:
    sender = channel._out()
    fake.fail("chat.postMessage", "missing_scope", needed="chat:write")
    with pytest.raises(Exception, match="missing_scope"):
        await sender.poster.call("chat.postMessage", "C1", text="x")
    fake.open_home("U1")
    await fake.wait_for(lambda: "U1" in fake.homes)
    assert "chat:write" in shown(fake, "U1")


async def test_a_new_assistant_thread_has_suggestions_in_the_persons_language(
    fake: FakeSlack, channel: SlackChannel
) -> None:
    ts = fake.start_assistant("U2")
    place = fake.direct("U2")
    await fake.wait_for(lambda: ts in place.prompts)
    assert "你能做什么？" in [prompt["message"] for prompt in place.prompts[ts]]


@pytest.mark.parametrize("channel", [{"prompts": ["Who is on call?", "x" * 200]}], indirect=True)
async def test_suggestions_can_be_set(fake: FakeSlack, channel: SlackChannel) -> None:
    ts = fake.start_assistant("U1")
    place = fake.direct("U1")
    await fake.wait_for(lambda: ts in place.prompts)
    assert [len(prompt["title"]) for prompt in place.prompts[ts]] == [15, 75]
    assert place.prompts[ts][1]["message"] == "x" * 200


async def test_a_refused_home_tab_disturbs_nothing(fake: FakeSlack, channel: SlackChannel) -> None:
    fake.fail("views.publish", "not_enabled")
    fake.open_home("U1")
    await fake.wait_for(lambda: fake.called("views.publish"))
    fake.open_home("U1")
    await fake.wait_for(lambda: "U1" in fake.homes)
    assert channel.health().ok
