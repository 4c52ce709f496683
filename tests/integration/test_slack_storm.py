"""A hundred threads while nearly everything goes wrong: each message is answered once, in order, whole."""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.app import App
from bridge.config import load_config
from tests.fakes.channel_env import until
from tests.fakes.llm import Say, ScriptedModel, Seen
from tests.fakes.slack import FakeSlack
from tests.harness import bridge, clean_environ, openai_at, write_config

THREADS, MESSAGES, CHANNELS = 100, 2, 10
_TAG = re.compile(r"m-\d+-\d+")
_FILLER = 30


def answer(seen: Seen) -> Say:
    """Names what was asked since the last answer; streamed in pieces."""
    asked: list[str] = []
    for message in seen.body["messages"]:
        if message["role"] == "assistant":
            asked = []
        elif message["role"] == "user":
            asked += _TAG.findall(str(message["content"]))
    words = " ".join(f"filler{n}" for n in range(_FILLER))
    return Say(f"Answer to {', '.join(dict.fromkeys(asked))}: **{words}** end.", pieces=6, between=0.002)


@pytest.fixture
async def fake() -> AsyncIterator[FakeSlack]:
    async with FakeSlack() as server:
        server.user("U1", "Ann")
        for n in range(CHANNELS):
            server.place(f"C{n}", members=["U1"])
        yield server


def make_it_storm(fake: FakeSlack, dice: random.Random) -> None:
    sockets = fake.sockets
    sockets.random = random.Random(dice.random())
    sockets.duplicates, sockets.lost_acks = 0.3, 0.15
    sockets.ack_timeout, sockets.retry_pauses = 1.0, (0.0, 0.1, 0.2, 0.4, 0.8, 1.6)
    for method, share in (
        ("chat.postMessage", 15),
        ("chat.startStream", 15),
        ("chat.appendStream", 10),
        ("chat.stopStream", 10),
        ("chat.update", 10),
    ):
        for _ in range(share):
            where = {"channel": f"C{dice.randrange(CHANNELS)}", "after": dice.randrange(12)}
            fake.fail(method, "ratelimited", retry_after=1, **where)
            when, after = dice.choice(["before", "after"]), dice.randrange(20)
            fake.cut(method, when, channel=where["channel"], after=after, times=dice.randrange(2))


@asynccontextmanager
async def short_lived(folder: Path, settings: dict[str, Any]) -> AsyncIterator[App]:
    """A bridge that is stopped with hardly any grace: what runs is parked, what is said is half said."""
    app = App(load_config(write_config(folder, settings), clean_environ(folder)))
    await app.start()
    try:
        yield app
    finally:
        await app.stop(grace=0.05)


class Storm:
    def __init__(self, fake: FakeSlack, dice: random.Random) -> None:
        self.fake, self.dice = fake, dice
        self.roots: dict[int, tuple[str, str]] = {}
        self.said = self.drops = 0

    async def speak(self) -> None:
        """People write in all threads; meanwhile sockets break and are replaced."""
        for number in range(MESSAGES):
            for thread in range(THREADS):
                channel, text = f"C{thread % CHANNELS}", f"<@{self.fake.bot_user}> m-{thread}-{number}"
                if number == 0:
                    self.roots[thread] = (channel, self.fake.say(channel, text))
                else:
                    # Slack keeps no order between a message that it has to repeat and the ones behind it.
                    await until(lambda thread=thread: self.taken(thread), 60)  # type: ignore[misc]
                    self.fake.say(channel, text, thread_ts=self.roots[thread][1])
                self.said += 1
                await asyncio.sleep(self.dice.random() * 0.03)
                if self.said % 23 == 0 and self.fake.sockets.live:
                    if self.dice.random() < 0.5:
                        self.fake.sockets.drop()
                        self.drops += 1
                    else:
                        await self.fake.sockets.disconnect("warning", grace=0.1)

    def taken(self, thread: int) -> bool:
        """Whether the app has acknowledged the last message of a person in a thread."""
        ts = self.roots[thread][1]
        events = [(d, d.payload["event"]) for d in self.fake.sockets.deliveries]
        return any(
            d.done for d, e in events if ts in (e.get("ts"), e.get("thread_ts")) and e.get("user") == "U1"
        )

    def told(self, thread: int) -> list[str]:
        return [tag for text in self.fake.thread(*self.roots[thread]).texts for tag in _TAG.findall(text)]

    def settled(self) -> bool:
        """All is answered and nothing is half said any more (what is told twice shows afterwards)."""
        for thread, place in self.roots.items():
            view = self.fake.thread(*place)
            if f"m-{thread}-{MESSAGES - 1}" not in self.told(thread):
                return False
            if any(
                not text.endswith("end.") or m.get("_streaming")
                for text, m in zip(view.texts, view.messages, strict=True)
            ):
                return False
        return len(self.roots) == THREADS


async def test_a_storm_of_threads_is_answered_once_each_in_order_and_whole(
    fake: FakeSlack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int(os.environ.get("STORM_SEED", random.randrange(10**6)))
    print(f"STORM_SEED={seed}")
    dice = random.Random(seed)
    # Slack's own paces would make this a matter of minutes; the fake's refusals take their place.
    monkeypatch.setattr("channels.slack.sending.Sender.__init__.__defaults__", (time.monotonic, 50.0))
    for name in ("UPDATES", "APPENDS", "STARTS"):
        monkeypatch.setattr(f"channels.slack.sending.{name}", 200.0)
    monkeypatch.setattr("channels.slack.posting.LOOKS", (0.05, 0.2))
    make_it_storm(fake, dice)
    storm = Storm(fake, dice)
    async with ScriptedModel(answer).running() as model:
        settings: dict[str, Any] = {
            "model": openai_at(model.openai_url),
            "channels": {
                "slack": {"bot_token": fake.bot_token, "app_token": fake.app_token, "base_url": fake.url}
            },
            "access": {"slack": {"groups": "open", "allow": ["U1"]}},
        }
        speaking = asyncio.create_task(storm.speak())
        for said in (70, 140):
            async with short_lived(tmp_path, settings):
                await until(lambda said=said: storm.said >= said, 60)  # type: ignore[misc]
        async with bridge(tmp_path, settings):
            await speaking
            await fake.wait_for(storm.settled, 60)
    for thread, place in storm.roots.items():
        texts = fake.thread(*place).texts
        assert storm.told(thread) == [f"m-{thread}-{n}" for n in range(MESSAGES)], (seed, thread, texts)
        for text in texts:
            words = text.replace("*", "").split()
            assert [w for w in words if w.startswith("filler")] == [f"filler{n}" for n in range(_FILLER)], (
                seed
            )
    assert fake.sockets.opened > 3 or not storm.drops
    assert {"ratelimited", ""} <= {call.error for call in fake.calls}
