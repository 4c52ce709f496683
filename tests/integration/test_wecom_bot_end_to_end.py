"""The WeCom AI bot on the whole bridge, on a long connection and behind a callback URL."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bridge.app import App
from channels.wecom_bot.channel import WecomBotChannel
from channels.wecom_bot.config import Times
from channels.wecom_bot.exchanges import Pace
from channels.wecom_bot.texts import TEXTS
from tests.fakes.llm import Call, Say, ScriptedModel, Seen, free_port
from tests.fakes.wecom_bot import AES_KEY, BOT_ID, SECRET, TOKEN, FakeWecomCallback, FakeWecomSocket, Shown
from tests.harness import Process, bridge, openai_at, write_config

ACCESS = {"wecom_bot": {"direct": "open", "groups": "open"}}
QUICK = Times(first_pause=0.05, longest_pause=0.3, ack=1.0, resend=2.0, poll_wait=0.6)
#: Six minutes of the platform are 2.4 seconds here.
SHORT_LIVED = replace(QUICK, hand_over=2.0, last_finish=2.2, stream_life=2.4)
NOTES = [
    text for key in ("thinking", "continued", "later", "later_kept") for text in TEXTS[f"wecom_bot.{key}"]
]
Fake = FakeWecomSocket | FakeWecomCallback


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WecomBotChannel, "times", QUICK)
    limits = replace(WecomBotChannel.limits, update_interval=0.1, typing_interval=0.2)
    monkeypatch.setattr(WecomBotChannel, "limits", limits)
    monkeypatch.setattr(Pace, "GAPS", (0.1, 0.1, 0.2))


@pytest.fixture
def short_lived(monkeypatch: pytest.MonkeyPatch, fake: Fake) -> None:
    monkeypatch.setattr(WecomBotChannel, "times", SHORT_LIVED)
    fake.stream_life = 2.4


@asynccontextmanager
async def running(folder: Path, fake: Fake, model: ScriptedModel, **more: Any) -> AsyncIterator[App]:
    """The bridge with this fake's kind of channel, connected."""
    if isinstance(fake, FakeWecomSocket):
        channel = {"bot_id": BOT_ID, "secret": SECRET, "ws_url": fake.url}
        port = 0
    else:
        channel = {"mode": "webhook", "token": TOKEN, "aes_key": AES_KEY}
        port = int(fake.target.split(":")[2].split("/")[0]) if fake.target else free_port()
        fake.target = f"http://127.0.0.1:{port}/channels/wecom_bot/callback"
    settings = {
        "model": openai_at(model.openai_url),
        "channels": {"wecom_bot": channel},
        "access": ACCESS,
        "server": {"port": port},
        **more,
    }
    async with bridge(folder, settings) as app:
        if isinstance(fake, FakeWecomSocket):
            await fake.until(lambda: app.channels["wecom_bot"].health().ok and fake.connected)
        yield app


@pytest.fixture(params=["socket", "webhook"])
async def fake(request: pytest.FixtureRequest) -> AsyncIterator[Fake]:
    made: Callable[[], Fake] = FakeWecomSocket if request.param == "socket" else FakeWecomCallback
    async with made() as platform:
        yield platform


def read(shown: list[Shown]) -> str:
    """What a person reads in a chat, the channel's own notes left out."""
    text = "\n".join(message.text for message in shown)
    for note in NOTES:
        text = text.replace(note, "")
    return re.sub(r"\n+", "\n", text).strip()


def whole(fake: Fake, chat: str, text: str) -> Callable[[], bool]:
    return lambda: read(fake.chats[chat]) == text and all(s.finished for s in fake.chats[chat])


async def test_an_answer_streams_and_is_complete(fake: Fake, tmp_path: Path) -> None:
    answer = "你好，**Anna**！\n\n" + "\n".join(f"- item {n}" for n in range(40))
    async with ScriptedModel([Say(answer, pieces=20, between=0.03)]).running() as model:
        async with running(tmp_path, fake, model):
            await fake.say("anna", "hello")
            await fake.until(whole(fake, "anna", answer.replace("\n\n", "\n")))
    (shown,) = fake.chats["anna"]
    assert shown.packets[0] in TEXTS["wecom_bot.thinking"]  # a sign of life before the first words
    assert len(model.seen) == 1


async def test_an_answer_of_more_than_20_kb_is_complete(fake: Fake, tmp_path: Path) -> None:
    answer = "\n".join(f"第 {number} 行：这一行有一些文字。" for number in range(700))
    assert 20_480 < len(answer.encode()) < 40_000
    async with ScriptedModel([Say(answer, pieces=10)]).running() as model:
        async with running(tmp_path, fake, model):
            await fake.say("anna", "write a lot")
            await fake.until(whole(fake, "anna", answer))
    assert len(fake.chats["anna"]) == 2


async def test_an_answer_that_outlives_its_stream_is_read_once(
    fake: Fake, tmp_path: Path, short_lived: None
) -> None:
    answer = "\n".join(f"line {number} of a slow answer" for number in range(30))
    async with ScriptedModel([Say(answer, pieces=30, between=0.1)]).running() as model:
        async with running(tmp_path, fake, model):
            await fake.say("anna", "take your time")
            await fake.until(whole(fake, "anna", answer))
    first, *others = fake.chats["anna"]
    assert first.text.split("\n")[-1] in TEXTS["wecom_bot.continued"]
    assert [message.kind for message in others] == ["markdown"]


async def test_an_answer_after_a_long_silence_comes_as_a_new_message(
    fake: Fake, tmp_path: Path, short_lived: None
) -> None:
    async with ScriptedModel([Say("at last", delay=3.0)]).running() as model:
        async with running(tmp_path, fake, model):
            await fake.say("anna", "think hard")
            await fake.until(whole(fake, "anna", "at last"))
    assert [message.kind for message in fake.chats["anna"]] == ["stream", "markdown"]
    assert fake.chats["anna"][0].text in [*TEXTS["wecom_bot.later"], *TEXTS["wecom_bot.later_kept"]]


async def test_a_restart_in_the_middle_of_an_answer_loses_and_repeats_nothing(
    fake: Fake, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    answer = "the first half\nand the second half"

    def script(seen: Seen) -> Say:
        if seen.number == 0:
            return Say(answer, pieces=2, gate=gate, gate_at="after")
        return Say(answer)

    async with ScriptedModel(script).running() as model:
        async with running(tmp_path, fake, model) as app:
            await fake.say("anna", "tell me")
            await fake.until(lambda: fake.chats["anna"] and "first" in fake.chats["anna"][0].text)
            await app.stop(grace=0)
        async with running(tmp_path, fake, model):
            await fake.until(lambda: "second half" in read(fake.chats["anna"]), 20)
            await fake.say("anna", "thanks")
            await fake.until(lambda: len(model.seen) >= 3)
    text = read(fake.chats["anna"])
    assert text.count("the second half") == 2  # of the two answers
    assert len({s.answers for s in fake.chats["anna"] if s.answers}) == 2


async def test_n17_two_people_at_once_in_one_group(fake: Fake, tmp_path: Path) -> None:
    def script(seen: Seen) -> Say:
        return Say(f"about {seen.last_user.rsplit(' ', 1)[-1]}", pieces=2, between=0.2)

    async with ScriptedModel(script).running() as model:
        async with running(tmp_path, fake, model):
            one = await fake.say("anna", "@Bot tell me of apples", group="g1")
            two = await fake.say("ben", "@Bot tell me of pears", group="g1")
            await fake.until(lambda: len(fake.chats["g1"]) >= 2 and all(s.finished for s in fake.chats["g1"]))
            await fake.until(lambda: {"about apples", "about pears"} <= set(fake.texts("g1")))
    answers = {shown.answers: shown.text for shown in fake.chats["g1"]}
    assert (answers[one], answers[two]) == ("about apples", "about pears")


async def test_wx_01_a_message_that_comes_again_is_answered_once(fake: Fake, tmp_path: Path) -> None:
    async with ScriptedModel([Say("only once", delay=0.3)]).running() as model:
        async with running(tmp_path, fake, model):
            msgid = await fake.say("anna", "hi")
            await fake.say("anna", "hi", msgid=msgid)
            await fake.until(whole(fake, "anna", "only once"))
            await fake.say("anna", "hi", msgid=msgid)
            await fake.say("ben", "another")
            await fake.until(lambda: "only once" in fake.texts("ben"))
    assert fake.texts("anna") == ["only once"]
    assert len(model.seen) == 2


async def test_messages_are_answered_in_the_order_in_which_they_came(fake: Fake, tmp_path: Path) -> None:
    def script(seen: Seen) -> Say:
        return Say(f"re {seen.last_user.split()[-1]}", delay=0.15 if seen.number == 0 else 0.0)

    async with ScriptedModel(script).running() as model:
        async with running(tmp_path, fake, model):
            for number in range(3):
                await fake.say("anna", f"question q{number}")
            await fake.until(lambda: len(model.seen) == 3)
            await fake.until(lambda: [s.text for s in fake.chats["anna"] if s.finished][-1:] == ["re q2"])
    assert sorted(fake.texts("anna")) == ["re q0", "re q1", "re q2"]
    assert [seen.last_user.split()[-1] for seen in model.seen] == ["q0", "q1", "q2"]


async def test_a_dangerous_tool_waits_for_a_button(fake: Fake, tmp_path: Path) -> None:
    script = [Say(calls=(Call("bash", {"command": "echo from the shell"}),)), Say("It said so.")]
    async with ScriptedModel(script).running() as model:
        more: dict[str, Any] = {
            "access": {"wecom_bot": {"admins": ["anna"]}},
            "tools": {"bash": {"enabled": True}},
        }
        async with running(tmp_path, fake, model, **more):
            await fake.say("anna", "run it")
            await fake.until(lambda: fake.tasks)
            ((task, card),) = fake.tasks.items()
            assert len(card.card["button_list"]) == 4
            await fake.press("anna", "anna", task, card.card["button_list"][0]["key"])
            await fake.until(lambda: "It said so." in read(fake.chats["anna"]))
            await fake.until(lambda: len(card.card["button_list"]) == 1)
    assert "from the shell" in model.seen[1].results[0]
    assert len([s for s in fake.chats["anna"] if s.kind == "card"]) == 1


async def test_a_connection_that_drops_in_the_middle_costs_nothing(tmp_path: Path) -> None:
    answer = "\n".join(f"line {number}" for number in range(20))
    async with (
        FakeWecomSocket() as fake,
        ScriptedModel([Say(answer, pieces=20, between=0.06)]).running() as m,
    ):
        async with running(tmp_path, fake, m):
            await fake.say("anna", "go")
            await fake.until(lambda: fake.chats["anna"] and "line 0" in fake.chats["anna"][0].text)
            await fake.drop()
            await fake.until(lambda: "line 19" in read(fake.chats["anna"]))
    lines = read(fake.chats["anna"]).split("\n")
    whole_lines = [a for a, b in pairwise([*lines, ""]) if not b.startswith(a)]
    assert whole_lines == [f"line {number}" for number in range(20)]  # the cut line stands again, whole


async def test_a_kicked_bot_says_so_where_people_look(tmp_path: Path) -> None:
    async with FakeWecomSocket() as fake, ScriptedModel().running() as model:
        async with running(tmp_path, fake, model) as app:
            await fake.kick()
            await fake.until(lambda: not app.channels["wecom_bot"].health().ok)
            assert "another program" in app.channels["wecom_bot"].health().reason


async def test_a_killed_process_is_followed_by_one_that_answers(tmp_path: Path) -> None:
    """kill -9 while the answer is being made: the next process takes the lease at once and answers once."""
    gate = asyncio.Event()

    def script(seen: Seen) -> Say:
        return Say("never", gate=gate) if seen.number == 0 else Say("the answer")

    async with FakeWecomSocket() as fake, ScriptedModel(script).running() as model:
        settings = {
            "model": openai_at(model.openai_url),
            "channels": {"wecom_bot": {"bot_id": BOT_ID, "secret": SECRET, "ws_url": fake.url}},
            "access": ACCESS,
        }
        process = Process(write_config(tmp_path, settings), tmp_path)
        try:
            await process.start()
            await fake.until(lambda: fake.connected)
            await fake.say("anna", "question")
            await model.until(lambda: len(model.seen) == 1)
            await process.kill()
            await process.start()
            await fake.until(lambda: "the answer" in fake.texts("anna"), 25)
            assert await process.terminate() == 0
        finally:
            gate.set()
            await process.close()
    assert read(fake.chats["anna"]) == "the answer"
