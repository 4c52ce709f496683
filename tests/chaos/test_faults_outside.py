"""What the bridge talks to is away for a while: the model, the platforms. People are told honestly, or are
answered late, each message once and in order; nothing piles up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.models.failures import retry_after
from bridge.texts import text
from tests.chaos.faults_support import echo, page, ready, running, telegram
from tests.fakes.llm import Say, ScriptedModel, free_port
from tests.fakes.telegram import FakeTelegram
from tests.harness import bridge, openai_at

SORRY = text("failure.connection", "en")


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram() as made:
        yield made


@asynccontextmanager
async def silent() -> AsyncIterator[tuple[str, list[float]]]:
    """A server that takes connections and never says anything: its base url, and when it was asked."""
    asked: list[float] = []

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(1):
            asked.append(time.monotonic())
        while await reader.read(65536):
            pass
        writer.close()

    server = await asyncio.start_server(never, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", asked
    finally:
        server.close()


# -- the model -----------------------------------------------------------------------------------------------


async def test_a_model_that_is_away_is_said_and_the_next_message_after_it_is_back_is_answered(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    port = free_port()
    settings = telegram(fake, f"http://127.0.0.1:{port}/v1")
    settings["model"]["retry_budget"] = 2
    async with bridge(tmp_path, settings) as app:
        for chat in (1, 2, 3):
            fake.say(chat, "one")
            fake.say(chat, "two")
        await fake.wait_for(lambda: all(len(fake.chat(chat).texts) == 2 for chat in (1, 2, 3)), 30)
        assert all(fake.chat(chat).texts == [SORRY, SORRY] for chat in (1, 2, 3))
        async with asyncio.timeout(10):
            for session in await app.store.sessions():  # nothing piles up behind the outage
                while await app.store.waiting_count(session.key):
                    await asyncio.sleep(0.01)
        async with ScriptedModel(echo).running(port) as model:
            fake.say(1, "three")
            await fake.wait_for(lambda: len(fake.chat(1).texts) == 3)
            # Nobody else is answered behind their backs; and this answer knows what had been asked in vain.
            assert [seen.last_user for seen in model.seen] == ["one\n\ntwo\n\nthree"]


async def test_an_outage_shorter_than_the_retries_is_not_noticed(tmp_path: Path, fake: FakeTelegram) -> None:
    port = free_port()
    async with bridge(tmp_path, telegram(fake, f"http://127.0.0.1:{port}/v1")):
        fake.say(1, "hello")
        await fake.wait_for(lambda: fake.chat(1).actions)  # it is being answered, and the model is not there
        async with ScriptedModel(echo).running(port):
            await fake.wait_for(lambda: fake.chat(1).texts, 20)
    assert fake.chat(1).texts == ["re hello"]


async def test_a_silent_model_is_given_up_after_two_tries_however_many_are_allowed(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    async with silent() as (url, asked):
        settings = telegram(fake, url)
        settings["model"] |= {"timeout": 1, "retry_budget": 1, "max_attempts": 10}
        async with bridge(tmp_path, settings):
            fake.say(1, "hello")
            await fake.wait_for(lambda: fake.chat(1).texts, 20)
    assert fake.chat(1).texts == [SORRY]
    assert len(asked) == 2


async def test_with_a_fallback_a_silent_model_costs_the_first_message_time_and_the_next_none(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    async with silent() as (url, asked), ScriptedModel(echo).running() as model:
        settings = telegram(fake, url)
        more: dict[str, Any] = {"fallbacks": [openai_at(model.openai_url)]}
        settings["model"] |= {"timeout": 0.5, "retry_budget": 0.5, **more}
        async with bridge(tmp_path, settings):
            fake.say(1, "one")
            await fake.wait_for(lambda: fake.chat(1).texts, 20)
            fake.say(1, "two")
            fake.say(2, "three")
            await fake.wait_for(lambda: len(fake.chat(1).texts) == 2 and fake.chat(2).texts, 20)
    assert fake.chat(1).texts == ["re one", "re two"]
    assert fake.chat(2).texts == ["re three"]
    assert len(asked) == 2


def test_a_date_to_come_back_at_is_read_by_the_servers_own_clock() -> None:
    headers = {"retry-after": "Wed, 01 Jul 2026 12:00:30 GMT", "date": "Wed, 01 Jul 2026 12:00:00 GMT"}
    assert retry_after(headers, now=lambda: 0.0) == 30.0
    del headers["date"]
    assert retry_after(headers, now=lambda: 1_782_907_220.0) == 10.0


# -- a platform ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outage", ["refused", "502"])
async def test_replies_wait_for_a_platform_that_is_away_and_go_out_once_and_in_order(
    outage: str, tmp_path: Path, fake: FakeTelegram
) -> None:
    gate = asyncio.Event()
    port = int(fake.url.rpartition(":")[2])
    async with ScriptedModel(lambda seen: Say(echo(seen).text, gate=gate)).running() as model:
        async with running(tmp_path, telegram(fake, model)) as process:
            for chat in (1, 2):
                fake.say(chat, "one")
                fake.say(chat, "two")
            await model.until(lambda: len(model.seen) == 2, 20)
            await fake.wait_for(lambda: not fake.updates, 20)
            if outage == "refused":
                await fake.stop()
            else:
                fault = fake.fail("*", 502, times=10_000)
            gate.set()
            await process.until(lambda: process.output.count("not taken yet") >= 4)
            fake.say(3, "later")  # ends the poll that began before the outage
            await ready(
                process, lambda status, said: status == 503 and not said["channels"]["telegram"]["ok"]
            )
            assert (await page(process, "/healthz"))[0] == 200
            assert "two" not in [seen.last_user for seen in model.seen], "it overtook the reply before it"
            if outage == "refused":
                await fake.start(port)
            else:
                fault.times = 0
            await fake.wait_for(lambda: all(len(fake.chat(chat).texts) == 2 for chat in (1, 2)), 60)
            fake.say(1, "three")
            await fake.wait_for(lambda: len(fake.chat(1).texts) == 3, 30)
            assert fake.chat(1).texts == ["re one", "re two", "re three"]
            assert fake.chat(2).texts == ["re one", "re two"]
            await fake.wait_for(lambda: fake.chat(3).texts == ["re later"], 30)
            assert process.output.count("Traceback") == 0


async def test_the_program_starts_while_its_platform_is_away_and_finds_it_later(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    port = int(fake.url.rpartition(":")[2])
    async with ScriptedModel(echo).running() as model:
        settings = telegram(fake, model)
        await fake.stop()
        async with running(tmp_path, settings) as process:
            await process.until(lambda: "cannot be reached" in process.output)
            status, said = await page(process, "/readyz")
            assert (status, said["channels"]["telegram"]["ok"]) == (503, False)
            fake.say(1, "hello")
            await fake.start(port)
            await fake.wait_for(lambda: fake.chat(1).texts, 30)
            assert fake.chat(1).texts == ["re hello"]
