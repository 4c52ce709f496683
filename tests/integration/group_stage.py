"""Four platforms as stages for one scripted conversation: how people write, press and read on each of them.

A stage only knows its platform's fake. What it hands back is the same everywhere: names instead of ids, text
without markup, cards by what became of them.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import aiohttp
import pytest

from bridge.app import App
from channels.telegram import pacing as telegram
from channels.wecom_bot.channel import WecomBotChannel
from channels.wecom_bot.config import Times
from channels.wecom_bot.exchanges import Pace
from channels.wecom_bot.texts import TEXTS as WECOM_TEXTS
from tests.fakes.slack import FakeSlack
from tests.fakes.slack_judge import visible
from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.fakes.wecom_bot import BOT_ID, SECRET, FakeWecomSocket

_MARKS = re.compile(r"[*_`~\\]")
_SPEAKER = re.compile(r"\[[^\]\n]*?\(id ([^)\s]+)\)( writes)?\]")
_DECIDED = re.compile(r"(allowed by|denied) (?:User )?(\S+)$")
_SIGNS = ("🔐", "✅", "🚫", "⌛")


@dataclass(frozen=True, slots=True)
class Shown:
    """One message of the bot. `card` is the question's state: "" for a plain message, "open", or what became
    of it. `press` are its buttons: label -> how to press it."""

    text: str
    card: str = ""


class Stage(ABC):
    """`has`: what this platform can do, of "group" (several people in a chat), "overhear" (the bot is shown
    what is not said to it), "told" (it is not), "direct" (a person alone), "words" (a busy bot says what it
    does with a message; a page shows that itself)."""

    name: ClassVar[str]
    has: ClassVar[frozenset[str]]
    sign = "/"

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}

    @abstractmethod
    def channel(self) -> dict[str, Any]: ...

    @abstractmethod
    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """The platform itself."""
        yield

    async def connected(self, app: App) -> None:
        """Wait until messages arrive."""
        return

    @abstractmethod
    async def say(self, who: str, text: str, *, to_bot: bool = True) -> None: ...

    @abstractmethod
    async def shown(self) -> list[Shown]: ...

    @abstractmethod
    async def press(self, who: str, label: str) -> None:
        """Press a button of the newest card."""

    @abstractmethod
    async def private(self) -> list[str]:
        """The words that were shown to one person alone."""

    def plain(self, text: str) -> str:
        """Text as it reads: no markup, one line, names instead of ids."""
        names = {id: who for who, id in self.ids.items()}
        text = _SPEAKER.sub(lambda m: f"[{names.get(m[1], m[1])}{m[2] or ''}]", text)
        if len(set(names.values())) < len(self.ids):  # one person in several parts
            names = {id: next(iter(self.ids)) for id in names}
        text = _DECIDED.sub(lambda m: f"{m[1]} {names.get(m[2], m[2])}", text)
        return " ".join(_MARKS.sub("", text).split())

    def read(self, text: str) -> Shown:
        text = self.plain(text)
        if not text.startswith(_SIGNS):
            return Shown(text)
        return Shown(text, "open" if text.startswith("🔐") else text[1:].strip())


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 15.0) -> bool:
    """Whether the condition came true in time."""
    end = time.monotonic() + seconds
    while not await condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.02)
    return True


def quicken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation of an hour is played in seconds: what platforms allow a minute is no matter here."""
    monkeypatch.setattr("channels.telegram.sending.GROUP", telegram.Pace(0.02, 10_000, 60.0, 4))
    monkeypatch.setattr("channels.slack.pacing.POST_BURST", 10_000)
    monkeypatch.setattr("channels.slack.sending.UPDATES", 10_000.0)
    times = Times(first_pause=0.05, longest_pause=0.3, ack=1.0, resend=2.0, poll_wait=0.6)
    monkeypatch.setattr(WecomBotChannel, "times", times)
    limits = replace(WecomBotChannel.limits, update_interval=0.05, typing_interval=0.2)
    monkeypatch.setattr(WecomBotChannel, "limits", limits)
    for name, value in (("GAPS", (0.02, 0.02, 0.05)), ("MINUTE", 10_000), ("GROWING", 10_000)):
        monkeypatch.setattr(Pace, name, value)


class Telegram(Stage):
    name = "telegram"
    has = frozenset({"group", "overhear", "words"})
    chat = -1001

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTelegram()
        self.ids = {who: str(11 + n) for n, who in enumerate(("Ada", "Ben", "Cid", "Dee", "Gus"))}

    def channel(self) -> dict[str, Any]:
        return {"token": TOKEN, "base_url": self.fake.url}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with self.fake:
            yield

    async def say(self, who: str, text: str, *, to_bot: bool = True) -> None:
        named = f"@TheBot {text}" if to_bot and not text.startswith("/") else text
        self.fake.say(self.chat, named, user=int(self.ids[who]))

    async def shown(self) -> list[Shown]:
        return [self.read(text) for text in self.fake.chat(self.chat).texts]

    async def press(self, who: str, label: str) -> None:
        card = next(m for m in reversed(self.fake.chat(self.chat).shown) if "reply_markup" in m)
        buttons = [b for row in card["reply_markup"]["inline_keyboard"] for b in row]
        data = next(b["callback_data"] for b in buttons if b["text"] == label)
        self.fake.press(self.chat, card["message_id"], data, user=int(self.ids[who]))

    async def private(self) -> list[str]:
        return [str(answer.get("text", "")) for answer in self.fake.answers]


class Slack(Stage):
    """Talk at a channel's top level, answered there: one conversation, as in the other groups."""

    name = "slack"
    has = frozenset({"group", "overhear", "words"})
    sign = "!"

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeSlack()
        self.ids = {who: f"U{n}" for n, who in enumerate(("ADA", "BEN", "CID", "DEE", "GUS"))}
        self.ids = {who.title(): id for who, id in self.ids.items()}
        for who, id in self.ids.items():
            self.fake.user(id, who)
        self.fake.place("C1", members=list(self.ids.values()))

    def channel(self) -> dict[str, Any]:
        fake = self.fake
        tokens = {"bot_token": fake.bot_token, "app_token": fake.app_token}
        return {**tokens, "base_url": fake.url, "reply_in": "channel"}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with self.fake:
            yield

    async def connected(self, app: App) -> None:
        await self.fake.wait_for(lambda: app.channels["slack"].health().ok)

    async def say(self, who: str, text: str, *, to_bot: bool = True) -> None:
        named = f"<@{self.fake.bot_user}> {text}" if to_bot else text
        self.fake.say("C1", named, user=self.ids[who])

    async def shown(self) -> list[Shown]:
        found = []
        for message in self.fake.shown("C1").messages:
            read = self.read(visible(message).partition("\nYes, once\n")[0])
            found.append(read)
        return found

    async def press(self, who: str, label: str) -> None:
        def has_button(message: dict[str, Any]) -> bool:
            elements = [e for block in message.get("blocks") or () for e in block.get("elements") or ()]
            return any(e.get("type") == "button" for e in elements)

        card = next(m for m in reversed(self.fake.shown("C1").messages) if has_button(m))
        self.fake.press("C1", card["ts"], label, user=self.ids[who])

    async def private(self) -> list[str]:
        return [str(one.get("text", "")) for one in self.fake.place("C1").ephemeral]


class WecomBot(Stage):
    """A group's messages reach an AI bot only when they name it (document 100719): nothing is overheard, and
    people tell the bot what it is to know."""

    name = "wecom_bot"
    has = frozenset({"group", "told", "words"})
    chat = "g1"
    _NOTES = tuple(words for key in ("thinking", "noted") for words in WECOM_TEXTS[f"wecom_bot.{key}"])

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeWecomSocket()
        self.fake.rate = 10_000
        self.ids = {who: who.lower() for who in ("Ada", "Ben", "Cid", "Dee", "Gus")}

    def channel(self) -> dict[str, Any]:
        return {"bot_id": BOT_ID, "secret": SECRET, "ws_url": self.fake.url}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with self.fake:
            yield

    async def connected(self, app: App) -> None:
        await self.fake.until(lambda: app.channels["wecom_bot"].health().ok and self.fake.connected)

    async def say(self, who: str, text: str, *, to_bot: bool = True) -> None:
        assert to_bot, "WeCom shows an AI bot only messages that name it"
        await self.fake.say(self.ids[who], f"@Bot {text}", group=self.chat)

    async def shown(self) -> list[Shown]:
        found = []
        for message in self.fake.chats[self.chat]:
            if message.kind == "card":
                done = len(message.card["button_list"]) == 1
                words = self.plain(message.card["sub_title_text"].split("\n")[0])
                found.append(Shown(words, words.lstrip("✅🚫⌛ ") if done else "open"))
            elif message.text not in self._NOTES and not message.text.startswith("🔐"):
                found.append(self.read(message.text))  # what a card has no room for is said before it
        return found

    async def press(self, who: str, label: str) -> None:
        task, card = list(self.fake.tasks.items())[-1]
        buttons = card.card["button_list"]
        key = next(b["key"] for b in buttons if label.startswith(b["text"].rstrip("…")))  # ten letters fit
        await self.fake.press(self.chat, self.ids[who], task, key)

    async def private(self) -> list[str]:
        cards = [card for shown in self.fake.tasks.values() for card in shown.seen_by.values()]
        return [card["sub_title_text"].split("\n")[0] for card in cards]


class Web(Stage):
    """The page has one person, the one at this machine. Groups, several people, bystanders and a wrong person
    do not exist there: the rest of the conversation is held in that direct chat."""

    name = "web"
    has = frozenset({"direct"})

    def __init__(self) -> None:
        super().__init__()
        self.ids = {"Ada": "local", "Ben": "local"}
        self.app: App | None = None
        self.http: aiohttp.ClientSession | None = None
        self.said: list[str] = []

    def channel(self) -> dict[str, Any]:
        return {}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as self.http:
            yield

    async def _post(self, path: str, body: Mapping[str, str]) -> dict[str, Any]:
        assert self.app is not None
        assert self.http is not None
        async with self.http.post(self.app.url + path, json=body) as response:
            assert response.status == 200, await response.text()
            answer: dict[str, Any] = await response.json()
            return answer

    async def connected(self, app: App) -> None:
        self.app = app
        await self._post("/web/session", {})

    async def say(self, who: str, text: str, *, to_bot: bool = True) -> None:
        await self._post("/web/send", {"id": secrets.token_hex(8), "text": text})

    async def _entries(self) -> list[tuple[str, dict[str, Any]]]:
        """What the page shows, from the log that it shows."""
        assert self.app is not None
        sessions = [key.split(":")[2] for key in self.app.sessions._runners if key.startswith("web:")]
        state = self.app.store.channel_state("web")
        entries = [e for chat in sessions for e in await state.read(f"chat:{chat}")]
        return [(e.id, e.value) for e in entries if e.value.get("role") == "bot"]

    async def shown(self) -> list[Shown]:
        found = []
        for _, value in await self._entries():
            if "choices" in value:
                outcome = self.plain(value.get("outcome", ""))
                found.append(Shown(self.plain(value["text"]), outcome.lstrip("✅🚫⌛ ") or "open"))
            else:
                found.append(self.read(value["text"]))
        return found

    async def press(self, who: str, label: str) -> None:
        cards = [(id, value) for id, value in await self._entries() if value.get("choices")]
        id, value = cards[-1]
        choice = next(one["id"] for one in value["choices"] if one["label"] == label)
        self.said.append(str((await self._post("/web/press", {"card": id, "choice": choice}))["said"]))

    async def private(self) -> list[str]:
        return self.said


STAGES: tuple[type[Stage], ...] = (Telegram, Slack, WecomBot, Web)
