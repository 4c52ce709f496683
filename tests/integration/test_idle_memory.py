"""What was woken and went idle leaves memory: no object of a session stays, and next to no bytes."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agent.agent import Agent
from agent.conversation import Conversation
from agent.history import Assistant, User
from agent.tools.base import Question
from bridge.app import App
from bridge.delivery import LiveReply
from bridge.questions import Questions
from bridge.runner import Runner
from bridge.store.base import StoredReply, Waiting
from channels.base import Address, Inbound, ReplyRef, Sender
from tests.harness import bridge

SETTINGS: dict[str, Any] = {
    "channels": {"api": {}},
    "sessions": {"idle_seconds": 1},
    "log": {"level": "warning"},
}
#: Bytes of Python's that a session may leave, with some room for what else happens in the process.
MOST_BYTES = 250
WAVE = 200
OF_SESSIONS = (Runner, Agent, Conversation, LiveReply, Waiting, StoredReply, Inbound, User, Assistant)


async def wake(app: App, first: int, count: int) -> None:
    """Give so many sessions a message each, and wait until all of them are idle again."""
    room = asyncio.Semaphore(100)

    async def one(n: int) -> None:
        async with room:
            address = Address("api", f"user-{n}")
            await app.receive(Inbound(f"m{n}", address, Sender(f"p{n}"), "hello"))

    await asyncio.gather(*(one(n) for n in range(first, first + count)))
    async with asyncio.timeout(60):
        while app.sessions.count:
            await asyncio.sleep(0.02)


def of_sessions() -> Counter[str]:
    gc.collect()
    return Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, OF_SESSIONS))


async def test_sessions_that_went_idle_leave_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.tools.manager._MOST_OFFERS", 50)  # it has a bound; a wave must reach it
    others = of_sessions()  # of other tests in this process
    async with bridge(tmp_path, SETTINGS) as app:
        tracemalloc.start()
        waves, grown = 0, MOST_BYTES * WAVE
        try:
            # The first waves fill what has a bound, and others of the process load what they need. A session
            # that left something would leave it in each wave.
            while waves < 5 and (waves < 2 or grown >= MOST_BYTES * WAVE):
                gc.collect()
                before, _ = tracemalloc.get_traced_memory()
                await wake(app, waves * WAVE, WAVE)
                gc.collect()
                grown = tracemalloc.get_traced_memory()[0] - before
                waves += 1
        finally:
            tracemalloc.stop()
        assert grown < MOST_BYTES * WAVE
        assert len(await app.store.sessions(2000)) == waves * WAVE  # they all had their turn
        assert of_sessions() - others == {}
        assert app.sessions.slots.running == 0


async def test_a_question_that_nobody_could_be_asked_leaves_nothing(tmp_path: Path) -> None:
    questions = Questions({}, lambda: "1")
    for n in range(100):
        ref = ReplyRef(f"r{n}", Address("gone", str(n)), "m")
        assert (await questions.ask(f"s{n}", ref, "p", Question("shop", "Sure?"))).action == "cancel"
    assert not questions._open
