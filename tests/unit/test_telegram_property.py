"""Whatever Markdown a model writes, streamed or not: Telegram takes it, and what people see in the end is the
whole answer. The texts are judged by TDLib's own parser inside the fake; there is no network in between."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.delivery import Delivery
from channels.base import Address, Flooded, Outbound, ReplyRef
from channels.telegram.api import ApiError
from channels.telegram.channel import TelegramChannel, TelegramConfig
from channels.telegram.format import markdown
from channels.telegram.pacing import Pacer
from tests.fakes import telegram
from tests.fakes.channel_env import memory_env
from tests.unit.test_telegram_format import PIECES, accepted_and_complete

CORPUS = sorted((Path(__file__).parent.parent / "data" / "telegram").glob("*.txt"))


class Direct:
    """The fake server's methods, called without HTTP."""

    def __init__(self, fake: telegram.FakeTelegram) -> None:
        self.fake = fake

    async def call(self, method: str, _timeout: float = 0, /, **params: Any) -> Any:
        given_params = {key: value for key, value in params.items() if value is not None}
        call = telegram.Call(method, given_params, 0.0)
        self.fake.calls.append(call)
        try:
            return await self.fake._dispatch(call)
        except telegram.ApiError as error:
            call.status, call.description = error.code, error.description
            raise ApiError(method, error.code, error.description, "refused", error.parameters) from None


class NoStore:
    """An outbox that keeps nothing: a crash is not what is tested here."""

    async def open_reply(self, _: object) -> None: ...

    async def put_chunk(self, *_: object) -> None: ...

    async def complete_reply(self, _: object) -> None: ...

    async def settle_reply(self, *_: object) -> None: ...


class Desk:
    """A channel and the bridge's delivery over it, with a clock that passes five seconds a look."""

    def __init__(self, drafts: str = "auto") -> None:
        self.fake = telegram.FakeTelegram()
        config = TelegramConfig.model_validate({"token": telegram.TOKEN, "drafts": drafts})
        self.channel = TelegramChannel("tg", config, memory_env(Path("/nowhere")))
        self.channel._sending.api = Direct(self.fake)  # type: ignore[assignment]
        self.now = 0.0
        self.channel._sending.pacer = Pacer(self.clock)
        self.delivery = Delivery(NoStore(), {"tg": self.channel}, clock=self.clock, sleep=self.sleep)  # type: ignore[arg-type]

    def clock(self) -> float:
        self.now += 5
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def stream(self, text: str, chat: int, cuts: list[int]) -> None:
        """Show the text as it grows, then whole."""
        self.fake.chat(chat)
        kind = "direct" if chat > 0 else "group"
        reply = self.delivery.open(ReplyRef("r1", Address("tg", str(chat), kind)), "s1")  # type: ignore[arg-type]
        for cut in sorted(cuts):
            try:
                if text[:cut].strip():
                    await reply._show(Outbound(text[:cut]), final=False)
            except Flooded:
                continue  # the pump comes again with a later state
        assert await reply.finish(Outbound(text), [])

    def assert_whole(self, text: str, chat: int) -> None:
        refused = [c for c in self.fake.calls if c.status and "not modified" not in c.description]
        assert refused == []
        wanted = [(chunk.text, chunk.data.get("entities")) for chunk in self.channel.render(Outbound(text))]
        shown = [(m["text"], m.get("entities")) for m in self.fake.chats[chat].shown]
        assert shown == wanted


def streamed(text: str, cuts: list[int], chat: int, drafts: str = "auto") -> Desk:
    desk = Desk(drafts)
    asyncio.run(desk.stream(text, chat, cuts))
    desk.assert_whole(text, chat)
    return desk


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=50),
    st.sampled_from([1, 1, 3, 40]),
    st.lists(st.floats(0, 1), max_size=6),
    st.sampled_from([(5, "auto"), (5, "off"), (-100, "auto")]),
)
def test_any_markdown_streamed_ends_as_the_whole_answer(
    parts: list[str], times: int, places: list[float], where: tuple[int, str]
) -> None:
    text = "".join(parts) * times
    streamed(text, [int(place * len(text)) for place in places], *where)


def test_the_corpus_is_there_and_mixed() -> None:
    texts = [path.read_text("utf-8") for path in CORPUS]
    assert len(texts) >= 25
    assert sum(len(text) > 4096 for text in texts) >= 3
    assert sum(any("\u4e00" <= ch <= "\u9fff" for ch in text) for text in texts) >= 5


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
@pytest.mark.parametrize("limit", [100, 4096])
def test_each_answer_of_the_corpus_is_accepted_and_complete(path: Path, limit: int) -> None:
    accepted_and_complete(path.read_text("utf-8"), limit)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
@pytest.mark.parametrize(("chat", "drafts"), [(5, "auto"), (5, "off"), (-100, "auto")])
def test_each_answer_of_the_corpus_streamed_ends_as_the_whole_answer(
    path: Path, chat: int, drafts: str
) -> None:
    text = path.read_text("utf-8")
    rng = random.Random(path.name)
    cuts = [rng.randrange(1, len(text)) for _ in range(12)]
    desk = streamed(text, cuts, chat, drafts)
    methods = {call.method for call in desk.fake.calls}
    assert ("sendMessageDraft" in methods) == (chat > 0 and drafts == "auto")
    assert ("editMessageText" in methods) or "sendMessageDraft" in methods


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_is_seen_of_an_answer_has_all_its_words(path: Path) -> None:
    """The renderer is compared with the source here, not with itself: every word longer than two letters."""
    text = path.read_text("utf-8")
    rendered = "".join(run for run, _ in markdown(text))
    words = {word for word in "".join(ch if ch.isalnum() else " " for ch in text).split() if len(word) > 2}
    missing = {word for word in words if word not in rendered}
    # Link targets, languages of code and character references are not text; all else is.
    assert {word for word in missing if not _hidden(word, text)} == set()


def _hidden(word: str, text: str) -> bool:
    hidden = ("](", "]:", "```", "~~~", "&", "x1F600", "<http", 'example.org/docs "')
    return all(any(mark in line for mark in hidden) for line in text.splitlines() if word in line)


async def test_a_chunk_that_the_final_text_lacks_vanishes() -> None:
    desk = Desk("off")
    desk.fake.chat(5)
    reply = desk.delivery.open(ReplyRef("r1", Address("tg", "5", "direct")), "s1")
    await reply._show(Outbound("word " * 1500), final=False)
    assert len(desk.fake.chats[5].texts) == 2
    assert await reply.finish(Outbound("short"), [])
    assert desk.fake.chats[5].texts == ["short"]
