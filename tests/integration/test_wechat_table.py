"""Every question is answered once and whole, whatever the account may do and however long it takes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from bridge.app import App
from bridge.config import load_config
from bridge.store.sqlite_thread import SqliteThread, SqliteWriter
from tests.fakes.llm import Say, ScriptedModel, Seen
from tests.fakes.wechat import NOTICE, Chat, FakeWechat, IdleLoop, settings_for
from tests.harness import clean_environ, openai_at, write_config

SECONDS = (0.5, 3, 8, 14, 40)
MEANWHILE = ("nothing", "a second question", "a restart")
HINT = "还在处理中，请稍后回复“继续”查看答案。"


@dataclass(frozen=True)
class Case:
    """`seconds`: how long the model takes."""

    seconds: float
    service: bool
    aes: bool
    meanwhile: str

    @property
    def user(self) -> str:
        kind = f"{self.seconds}_{MEANWHILE.index(self.meanwhile)}".replace(".", "-")
        return f"user_{kind}"

    @property
    def account(self) -> str:
        return f"{'service' if self.service else 'passive'}_{'aes' if self.aes else 'plain'}"

    def __str__(self) -> str:
        return f"{self.seconds}s-{self.account}-{self.meanwhile.replace(' ', '_')}"


CASES = [Case(*case) for case in product(SECONDS, (True, False), (True, False), MEANWHILE)]


def model(seen: Seen) -> Say:
    """A question names how long its answer takes."""
    asked = re.search(r"问题(\d) (\S+) ([\d.]+)", seen.last_user)
    assert asked is not None, seen.last_user
    number, user, seconds = asked.groups()
    return Say(f"答{number}给{user}：完整的回答。", delay=float(seconds))


async def talk(case: Case, fake: FakeWechat, start: float) -> Chat:
    """What the person reads in the end: they ask, are patient, and say 继续 while they are told to."""
    await asyncio.sleep(start)
    questions = [f"问题1 {case.user} {case.seconds}"]
    async with asyncio.TaskGroup() as group:
        group.create_task(fake.say(case.user, questions[0]))
        if case.meanwhile == "a second question":
            await asyncio.sleep(min(case.seconds / 2, 2))
            questions.append(f"问题2 {case.user} 1")
            group.create_task(fake.say(case.user, questions[1]))
    answers = [f"答{n + 1}给{case.user}：完整的回答。" for n in range(len(questions))]
    chat = fake.chat(case.user)

    def missing() -> bool:
        return any(answer not in "\n".join(chat.shown) for answer in answers)

    for _ in range(12):
        if not missing():
            break
        if chat.shown and chat.shown[-1] != NOTICE and "继续" in chat.shown[-1]:
            await fake.say(case.user, "继续")
        else:
            await asyncio.sleep(5)
    return chat


class Run:
    """All cases in two goes of the whole program, many people at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chats: dict[Case, Chat] = {}
        self.asked: list[str] = []

    async def everything(self) -> None:
        async with AsyncExitStack() as stack:
            fakes = {
                account: await stack.enter_async_context(
                    FakeWechat(mode="safe" if "aes" in account else "plain", service="service" in account)
                )
                for account in dict.fromkeys(case.account for case in CASES)
            }
            server = await stack.enter_async_context(ScriptedModel(self._model).running())
            settings = {
                "model": openai_at(server.openai_url),
                "channels": {name: settings_for(fake, type="wechat") for name, fake in fakes.items()},
                "access": {"default": {"direct": "open"}},
                "sessions": {"grace_seconds": 0},
            }
            for restart in (False, True):
                await self._go(restart, fakes, settings)

    def _model(self, seen: Seen) -> Say:
        self.asked.append(seen.last_user)
        return model(seen)

    async def _go(self, restart: bool, fakes: dict[str, FakeWechat], settings: dict[str, object]) -> None:
        cases = [case for case in CASES if (case.meanwhile == "a restart") is restart]
        spread = 8.0
        app = await self._start(fakes, settings)
        async with asyncio.TaskGroup() as group:
            tasks = {
                case: group.create_task(talk(case, fakes[case.account], n * spread / len(cases)))
                for n, case in enumerate(cases)
            }
            if restart:
                await asyncio.sleep(spread + 1.5)
                await app.stop(grace=0)  # runs under way are cut off and taken up by the next process
                app = await self._start(fakes, settings)
        await app.stop(grace=0)
        self.chats |= {case: task.result() for case, task in tasks.items()}

    async def _start(self, fakes: dict[str, FakeWechat], settings: dict[str, object]) -> App:
        config = load_config(write_config(self.folder, settings), clean_environ(self.folder))
        app = App(config, clock=next(iter(fakes.values())).now)
        await app.start()
        for name, fake in fakes.items():
            fake.callback = f"{app.url}/channels/{name}/callback"
        return app


def _counted(work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The store works in a thread of its own, which the loop has to know of."""

    async def run(*args: Any, **more: Any) -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, IdleLoop)
        loop.busy += 1
        try:
            return await work(*args, **more)
        finally:
            loop.busy -= 1

    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("table"))
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=IdleLoop) as runner:
        for kind in (SqliteThread, SqliteWriter):
            for name in ("start", "run", "stop"):
                if name in vars(kind):
                    patch.setattr(kind, name, _counted(getattr(kind, name)))
        runner.run(run.everything())
    return run


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_each_question_is_answered_once_and_whole(case: Case, run: Run) -> None:
    chat = run.chats[case]
    shown = chat.shown
    text = "\n".join(shown)
    assert NOTICE not in shown, shown
    assert text.count(f"答1给{case.user}：完整的回答。") == 1, shown
    assert text.count(f"答2给{case.user}：完整的回答。") == (case.meanwhile == "a second question"), shown
    if case.service:
        assert HINT not in shown, shown
        if case.seconds > 5:
            assert chat.sent >= 1, "a late answer was not sent by itself"
        elif case.seconds < 1 and case.meanwhile == "nothing":
            assert (chat.passive, chat.sent) == (1, 0), "an early answer is the passive reply"
    elif case.seconds < 10 and case.meanwhile == "nothing":
        assert HINT not in shown, shown
