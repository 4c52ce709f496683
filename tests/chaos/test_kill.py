"""kill -9 at chosen moments of one answer. At random ones: test_random_kills.py; at each commit of the store:
test_commit_points.py."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.llm import Call, Say, ScriptedModel, Seen
from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.fakes.transcript import Gate
from tests.harness import Process, openai_at, write_config

FILLER = "".join(f"line {n} of a long answer\n\n" for n in range(240))  # three Telegram messages


def number(text: str) -> str:
    found = re.findall(r"task (\d+)", text)
    return found[-1] if found else "?"


class Stage:
    """A bridge process, a fake Telegram, a model whose answers follow from the question, and a shell."""

    def __init__(self, folder: Path, fake: FakeTelegram, model: ScriptedModel, gate: Gate) -> None:
        self.fake = fake
        self.model = model
        self.gate = gate
        self.runs = folder / "runs.log"
        self.bridge = Process(
            write_config(
                folder,
                {
                    "model": openai_at(gate.openai_url),
                    "channels": {"telegram": {"token": TOKEN, "base_url": fake.url}},
                    "access": {"telegram": {"admins": [str(chat) for chat in (1, 2, 3)]}},
                    "tools": {"bash": {"enabled": True}, "policy": [{"effect": "allow", "tools": ["bash"]}]},
                },
            ),
            folder,
            dev=False,
        )
        self.tool_delay = 0.0

    def answer(self, seen: Seen) -> Say:
        task = number(seen.last_user)
        if task == "?":
            return Say("?")
        if seen.results:
            return Say(f"answer {task}\n\n{FILLER}end {task}", pieces=5)
        command = f"echo run {task} >> {self.runs}; sleep {self.tool_delay}; echo ended {task} >> {self.runs}"
        return Say(f"working on {task}", calls=(Call("bash", {"command": command}, id=f"call_{task}"),))

    def logged(self, what: str) -> Counter[str]:
        text = self.runs.read_text() if self.runs.exists() else ""
        return Counter(re.findall(rf"^{what} (\d+)$", text, re.MULTILINE))

    def answered(self) -> bool:
        """Everything that was asked has its whole answer."""
        asked, ended = [], []
        for chat in self.fake.chats.values():
            asked += [number(m["text"]) for m in chat.history if not m["from"]["is_bot"]]
            ended += re.findall(r"end (\d+)$", chat.text, re.MULTILINE)
        return Counter(asked) <= Counter(ended)

    async def settled(self, timeout: float = 60) -> None:
        """Everything is answered and nothing is left to recover: a later message of each chat is answered."""
        for number_of_chat, chat in enumerate(list(self.fake.chats)):
            self.tool_delay = 0
            self.fake.say(chat, f"task {9000 + number_of_chat}")
        await self.fake.wait_for(self.answered, timeout)

    def check(self, kills: int) -> None:
        """Each chat shows its answers whole, once and in order; a kill may repeat the one call in flight."""
        repeats = 0
        for chat in self.fake.chats.values():
            asked = [number(m["text"]) for m in chat.history if not m["from"]["is_bot"]]
            kept: list[str] = []
            for text in chat.texts:
                if kept and (text == kept[-1] or text in kept):
                    repeats += 1
                elif kept and kept[-1] and text.startswith(kept[-1][:4000]) and len(kept[-1]) < len(text):
                    kept[-1] = text  # a streamed beginning whose id was lost at the kill, then the whole
                    repeats += 1
                else:
                    kept.append(text)
            whole = "\n\n".join(kept)
            assert re.findall(r"^answer (\d+)$", whole, re.MULTILINE) == asked
            assert re.findall(r"^end (\d+)$", whole, re.MULTILINE) == asked
            assert whole.count("line 100 of a long answer") == len(asked)
        assert repeats <= kills
        assert all(count == 1 for count in self.logged("run").values()), "a tool ran twice"
        assert self.gate.refusals == []


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with FakeTelegram() as fake, ScriptedModel().running() as model:
        async with Gate(openai=model.openai_url).running() as gate:
            made = Stage(tmp_path, fake, model, gate)
            model.script = made.answer
            try:
                yield made
            finally:
                await made.bridge.close()


async def test_killed_while_the_model_is_asked(stage: Stage) -> None:
    waiting = asyncio.Event()

    async def hang(seen: Seen) -> Say:
        if not waiting.is_set():
            waiting.set()
            await asyncio.Event().wait()
        return stage.answer(seen)

    stage.model.script = hang
    await stage.bridge.start()
    stage.fake.say(1, "task 1")
    await asyncio.wait_for(waiting.wait(), 20)
    await stage.bridge.kill()
    await stage.bridge.start()
    await stage.settled()
    stage.check(kills=1)
    assert stage.logged("ended")["1"] == 1


async def test_killed_while_a_tool_runs(stage: Stage) -> None:
    stage.tool_delay = 30
    await stage.bridge.start()
    stage.fake.say(1, "task 1")
    await stage.fake.wait_for(lambda: stage.logged("run"), 20)
    await stage.bridge.kill()
    await stage.bridge.start()
    await stage.settled()
    stage.check(kills=1)
    results = [m for b in stage.gate.bodies for m in b["messages"] if m["role"] == "tool"]
    assert any("outcome is unknown" in result["content"] for result in results)


async def test_killed_after_a_tool_finished(stage: Stage) -> None:
    asked_again = asyncio.Event()

    async def hang(seen: Seen) -> Say:
        if seen.results and not asked_again.is_set():
            asked_again.set()
            await asyncio.Event().wait()
        return stage.answer(seen)

    stage.model.script = hang
    await stage.bridge.start()
    stage.fake.say(1, "task 1")
    await asyncio.wait_for(asked_again.wait(), 20)
    await stage.bridge.kill()
    await stage.bridge.start()
    await stage.settled()
    stage.check(kills=1)
    assert stage.logged("run")["1"] == stage.logged("ended")["1"] == 1


async def test_killed_between_two_chunks_of_a_reply(stage: Stage) -> None:
    await stage.bridge.start()
    stage.fake.delay("sendMessage", 30, after=1)
    stage.fake.say(1, "task 1")
    await stage.fake.wait_for(lambda: len(stage.fake.chats[1].shown) == 2, 20)
    await stage.bridge.kill()
    shown = stage.fake.chats[1].texts[0]
    stage.fake.faults.clear()
    await stage.bridge.start()
    await stage.settled()
    stage.check(kills=1)
    begins = [text for text in stage.fake.chats[1].texts if text.startswith(shown[:20])]
    assert len(begins) == 1, "the chunk that was confirmed before the kill was sent again"
