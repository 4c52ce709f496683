"""One chat page served by two gateways that share their notes and their folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from channels.base import LogEntry, OutFile
from tests.integration.web_house import Reply, Visitor, WebHouse

Event = tuple[str, str, dict[str, Any]]


@dataclass
class Two:
    """The same visitor at both gateways."""

    one: WebHouse
    other: WebHouse
    at_one: Visitor
    at_other: Visitor


@pytest.fixture
async def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Two]:
    monkeypatch.setattr("channels.web.channel._LOOK", 0.03)
    async with AsyncExitStack() as stack:
        houses = [WebHouse(tmp_path) for _ in range(2)]
        for house in houses:
            house.shared, house.state, house.received = True, houses[0].state, houses[0].received
            await house.start()
            stack.push_async_callback(house.stop)
        visitors = [await stack.enter_async_context(Visitor(house)) for house in houses]
        (cookie,) = visitors[0].http.cookie_jar
        visitors[1].http.cookie_jar.update_cookies({cookie.key: cookie.value}, URL(houses[1].url))
        yield Two(houses[0], houses[1], visitors[0], visitors[1])


class Page:
    """An open page: everything it is told."""

    def __init__(self, visitor: Visitor, after: str = "") -> None:
        self.told: list[Event] = []
        self._visitor, self._after = visitor, after

    async def __aenter__(self) -> Page:
        self._task = asyncio.create_task(self._listen())
        await self.until(lambda: any(event[0] == "ready" for event in self.told))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _listen(self) -> None:
        async for event in self._visitor.events(self._after):
            self.told.append(event)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        """The newest state of each entry."""
        return {data["id"]: data for kind, _, data in self.told if kind == "entry"}

    def shows(self, words: str) -> bool:
        return any(words in str(data.get("blocks", data.get("text", ""))) for data in self.entries.values())


async def test_a_page_sees_what_the_other_gateway_writes(both: Two) -> None:
    async with Page(both.at_other) as page, Page(both.at_one) as own:
        assert await both.at_one.send("message-1", "hello") == 200
        await page.until(lambda: page.shows("hello"))
        reply = Reply(both.one, both.one.received[0])
        await reply.show("half an")
        await reply.finish("half an answer")
        await page.until(lambda: page.shows("half an answer"))
        await own.until(lambda: own.shows("half an answer"))
    numbers = [int(id) for kind, id, _ in page.told if kind == "entry"]
    assert numbers == sorted(numbers)  # a page that connects again misses nothing
    places = [data["pos"] for data in page.entries.values()]
    assert places == sorted(places)


async def test_a_page_that_changes_the_gateway_goes_on_where_it_was(both: Two) -> None:
    async with Page(both.at_one) as page:
        await both.at_one.send("message-1", "hello")
        await page.until(lambda: page.shows("hello"))
        last = page.told[-1][1] or page.told[-2][1]
    await Reply(both.one, both.one.received[0]).finish("an answer")
    async with Page(both.at_other, last) as page:
        await page.until(lambda: page.shows("an answer"))
        assert not page.shows("hello")


async def test_a_message_that_is_sent_again_to_the_other_gateway_is_one(both: Two) -> None:
    async with Page(both.at_other) as page:
        await both.at_other.send("message-0", "before")  # so it knows the log already
        await both.at_one.send("message-1", "hello")
        await both.at_other.send("message-1", "hello")
        await both.at_one.send("message-2", "after")
        await page.until(lambda: page.shows("after"))
    shown = [data["text"] for data in sorted(page.entries.values(), key=lambda data: data["pos"])]
    assert shown == ["before", "hello", "after"]
    assert [inbound.id for inbound in both.one.received] == ["message-0", "message-1", "message-2"]


async def test_a_card_of_one_gateway_is_pressed_and_settled_at_the_other(both: Two) -> None:
    await both.at_one.send("message-1", "hello")
    reply = Reply(both.one, both.one.received[0])
    card = await reply.ask("Sure?")
    async with Page(both.at_other) as page:
        choice, place = page.entries[card]["choices"][0]["id"], page.entries[card]["pos"]
        assert await both.at_other.press(card, choice) == (200, {"said": "noted"})
        assert both.other.presses[0].message_id == card
        elsewhere = Reply(both.other, both.one.received[0])
        await elsewhere.settle(card, "Allowed.")
        await page.until(lambda: "outcome" in page.entries[card])
    assert page.entries[card]["pos"] == place


async def test_a_reply_that_another_gateway_finishes_stays_whole(both: Two, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a file")
    await both.at_one.send("message-1", "hello")
    reply, rest = Reply(both.one, both.one.received[0]), Reply(both.other, both.one.received[0])
    await reply.show("half")
    await rest.finish("half and half", (OutFile(str(tmp_path / "a.txt"), "a.txt"),))
    await both.one.channel.end(reply.ref)  # it still has the half of it
    async with Page(both.at_one) as page:
        assert page.shows("half and half")
        bot = [data for data in page.entries.values() if data["role"] == "bot"]
        assert len({data["pos"] for data in bot}) == 1
        (file,) = [data["file"] for data in bot if "file" in data]
        async with both.at_one.http.get(f"{both.one.url}/web/file/{file['id']}") as response:
            assert await response.text() == "a file"


async def test_a_look_that_fails_is_made_again(both: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    state, refused = both.one.state, list[int]()

    async def fail(*_: object) -> list[LogEntry]:
        refused.append(1)
        raise RuntimeError("the store is away")

    async with Page(both.at_other) as page:
        with monkeypatch.context() as away:
            away.setattr(state, "read", fail)
            await page.until(lambda: len(refused) > 2)
        await both.at_one.send("message-1", "hello")
        await page.until(lambda: page.shows("hello"))
