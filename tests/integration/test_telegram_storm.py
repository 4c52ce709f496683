"""A hundred chats in bad weather: floods, cut connections, an ill server, doubled and shuffled deliveries,
and the bridge started anew again and again. Each message is answered once, in order, complete.

A call that was read by the server and never answered may have been carried out: nobody can tell, and what
may have been shown is not said twice (promise 1). So a message that is final loses the server's answer only
after it took effect here; what is repeated without harm (drafts, edits, polls) loses it before or after. The
first sight of growing text in a group keeps its answer: it would leave half an answer behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.app import App
from bridge.config import load_config
from tests.fakes import telegram
from tests.fakes.llm import Say, ScriptedModel, Seen, free_port
from tests.fakes.telegram import Call, FakeTelegram, Fault
from tests.harness import clean_environ, openai_at, write_config

MESSAGES, RESTARTS = 2, 3
SENDS = ("sendmessage", "editmessagetext", "sendmessagedraft", "sendchataction")


class Weather(list[Fault]):
    """The fake's faults: one more chance of a fault for each call, of a kind that the call's text allows."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.calm = False
        self.struck: dict[str, int] = {}

    def __iter__(self) -> Iterator[Fault]:
        yield Gust(self)


class Gust(Fault):
    def __init__(self, weather: Weather) -> None:
        super().__init__("*")
        self.weather = weather

    def hits(self, call: Call) -> bool:
        rng, method = self.weather.rng, call.method.lower()
        if self.weather.calm or rng.random() > 0.1 or method not in (*SENDS, "getupdates"):
            return False
        kinds = ["502"]
        if method in SENDS:
            kinds.append("flood")
        if method != "sendmessage":
            kinds += ["cut before", "cut after"]
        elif sent_once(call):
            kinds.append("cut after")
        kind = rng.choice(kinds)
        if kind == "flood":
            self.error = telegram.ApiError(429, "Too Many Requests: retry after 1", retry_after=1)
        elif kind == "502":
            self.error, self.html = telegram.ApiError(502, "Bad Gateway"), True
        else:
            self.cut = kind.removeprefix("cut ")
        self.weather.struck[kind] = self.weather.struck.get(kind, 0) + 1
        return True


def sent_once(call: Call) -> bool:
    """Whether a message is final at its first sight for sure: in a private chat, and a piece that is full."""
    return call.chat > 0 or len(str(call.params.get("text", ""))) > 3000


def answer_to(marker: str) -> str:
    rng = random.Random(marker)
    count = rng.choice([3, 20, 40, 60, 80, 900])
    words = " ".join(f"**w{n}**" if n % 50 == 7 else f"word{n}" for n in range(count))
    return f"<{marker} begins, {words}, {marker} ends>"


def answer(seen: Seen) -> Say:
    """Answers every message since the last answer."""
    waiting: list[str] = []
    for message in reversed(seen.body["messages"]):
        if message["role"] == "assistant":
            break
        if message["role"] == "user":
            waiting = re.findall(r"m-\d+-\d+", str(message["content"])) + waiting
    text = "\n\n".join(answer_to(marker) for marker in dict.fromkeys(waiting))
    return Say(text or "nothing was asked", pieces=4, between=0.02)


async def talk(fake: FakeTelegram, rng: random.Random, chats: list[int]) -> None:
    """All messages, each chat's in order, chats in any order."""
    turns = [chat for chat in chats for _ in range(MESSAGES)]
    rng.shuffle(turns)
    said = dict.fromkeys(chats, 0)
    for chat in turns:
        fake.say(chat, f"m-{abs(chat)}-{said[chat]}" if chat > 0 else f"@TheBot m-{abs(chat)}-{said[chat]}")
        said[chat] += 1
        if rng.random() < 0.3:
            await asyncio.sleep(0.02)


def history(fake: FakeTelegram, chat: int) -> str:
    """What went on in a chat, for the person who reads the failure."""
    lines = [f"chat {chat}:"]
    for call in fake.calls:
        if call.chat == chat and call.method != "sendChatAction":
            text = str(call.params.get("text", ""))
            lines.append(f"{call.at:.2f} {call.method} {call.status} {text[:20]!r}…{text[-20:]!r}")
    return "\n".join(lines)


def words_of(text: str) -> list[str]:
    return text.replace("**", "").split()


@pytest.mark.parametrize(("mode", "count"), [("webhook", 100), ("polling", 25)])
async def test_chats_in_a_storm_are_each_answered_once_in_order_and_complete(
    tmp_path: Path, mode: str, count: int
) -> None:
    seed = int(os.environ.get("STORM_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    print(f"STORM_SEED={seed}")
    rng = random.Random(seed)
    chats = [n if n % 2 else -1000 - n for n in range(1, count + 1)]
    port = free_port()
    async with FakeTelegram() as fake, ScriptedModel(answer).running() as model:
        fake.local = True
        weather = fake.faults = Weather(rng)
        channel: dict[str, Any] = {"token": telegram.TOKEN, "base_url": fake.url, "rate": 500, "mode": mode}
        channel |= {"webhook_secret": "s3cret"} if mode == "webhook" else {}
        settings = {
            "model": openai_at(model.openai_url),
            "channels": {"telegram": channel},
            "access": {"telegram": {"direct": "open", "groups": "open"}},
            "server": {"port": port, "public_url": f"http://127.0.0.1:{port}"},
            "log": {"level": "error"},
        }
        config = load_config(write_config(tmp_path, settings), clean_environ(tmp_path))
        talking = asyncio.create_task(talk(fake, rng, chats))

        def complete() -> bool:
            if fake.deliveries:
                fake.deliveries.noise = rng  # each delivery may come twice, chats in any order
            return all(answered(fake, chat) for chat in chats)

        def answered(fake: FakeTelegram, chat: int) -> bool:
            return chat in fake.chats and fake.chats[chat].text.count(" ends>") >= MESSAGES

        for life in range(RESTARTS + 1):
            weather.calm = life == RESTARTS
            app = App(config)
            await app.start()
            try:
                if life < RESTARTS:
                    with contextlib.suppress(AssertionError):  # as a rule it is not complete yet
                        await fake.wait_for(complete, timeout=rng.uniform(0.8, 1.5))
                else:
                    await talking
                    await fake.wait_for(complete, timeout=60)
            finally:
                await app.stop(grace=0.3)
        assert sum(weather.struck.values()) >= 5, weather.struck
        for chat in chats:
            wanted = [answer_to(f"m-{abs(chat)}-{n}") for n in range(MESSAGES)]
            assert words_of(fake.chats[chat].text) == words_of("\n".join(wanted)), history(fake, chat)
