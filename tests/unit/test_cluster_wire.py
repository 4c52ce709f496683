"""Requests between processes: done once and answered, whatever the line loses, doubles or delays."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bridge.cluster import wire as module
from bridge.cluster.wire import Refused, Unreached, Wire, ranked
from bridge.store.base import StoreError

BEAT = 0.02


class Hub:
    """A relay for several processes, with the faults of a real one. `drop` says what gets lost."""

    def __init__(self) -> None:
        self.lines: dict[str, asyncio.Queue[str | None]] = {}
        self.alive: dict[str, str] = {}
        self.drop: Callable[[dict[str, Any]], bool] = lambda message: False
        self.away = False
        self.sent: list[dict[str, Any]] = []

    def relay(self) -> Line:
        return Line(self)


class Line:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    async def publish(self, channel: str, text: str) -> int:
        await asyncio.sleep(0)
        if self.hub.away:
            raise StoreError("away")
        message = json.loads(text)
        self.hub.sent.append(message)
        heard = [name for name in self.hub.lines if channel in (name, "all")]
        if not self.hub.drop(message):
            for name in heard:
                self.hub.lines[name].put_nowait(text)
        return len(heard)

    async def listen(self, channels: Sequence[str]) -> AsyncIterator[str | None]:
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        self.hub.lines[channels[0]] = queue
        yield None
        while True:
            yield await queue.get()

    async def keep_alive(self, member: str, record: str, seconds: float) -> dict[str, str]:
        if self.hub.away:
            raise StoreError("away")
        self.hub.alive[member] = record
        return dict(self.hub.alive)

    async def leave(self, member: str) -> None:
        self.hub.alive.pop(member, None)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setattr(module, "AGAIN", 0.05)
    return Hub()


@asynccontextmanager
async def two(hub: Hub) -> AsyncIterator[tuple[Wire, Wire]]:
    one, other = Wire(hub.relay(), "one", "worker", beat=BEAT), Wire(hub.relay(), "two", "gateway", beat=BEAT)
    await other.start()
    await one.start()
    await until(lambda: one.alive("two") and other.alive("one"))
    try:
        yield one, other
    finally:
        await one.stop()
        await other.stop()


async def until(look: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not look():
            await asyncio.sleep(0.005)


async def test_a_request_is_answered_and_a_fault_comes_back_as_what_it_was(hub: Hub) -> None:
    async def double(args: list[Any]) -> Any:
        if args[0] < 0:
            raise Refused("Flooded", "too much", 7)
        return args[0] * 2

    async with two(hub) as (one, other):
        other.on("double", double)
        assert await one.call("two", "double", [21], seconds=5) == 42
        with pytest.raises(Refused, match="too much") as caught:
            await one.call("two", "double", [-1], seconds=5)
        assert (caught.value.kind, caught.value.extra) == ("Flooded", 7)
        with pytest.raises(Refused, match="TypeError in two"):
            await one.call("two", "double", [None], seconds=5)
        with pytest.raises(Refused, match="does not know"):
            await one.call("two", "nonsense", [], seconds=5)


async def test_what_the_line_loses_or_doubles_is_done_once(hub: Hub) -> None:
    dice, done = random.Random(3), list[int]()
    hub.drop = lambda message: ("id" in message) and dice.random() < 0.5

    async def work(args: list[Any]) -> Any:
        done.append(args[0])
        await asyncio.sleep(dice.random() * 0.1)  # longer than a request waits until it is sent again
        return args[0]

    async with two(hub) as (one, other):
        other.on("work", work)
        answers = await asyncio.gather(*(one.call("two", "work", [n], seconds=20) for n in range(40)))
        assert answers == list(range(40))
        assert sorted(done) == list(range(40))
        assert len([m for m in hub.sent if m.get("what") == "work"]) > 40, "some were sent again"


async def test_an_outage_of_the_server_makes_nobody_dead(hub: Hub) -> None:
    release = asyncio.Event()

    async def work(args: list[Any]) -> Any:
        await release.wait()
        return "done"

    async with two(hub) as (one, other):
        other.on("work", work)
        asked = asyncio.create_task(one.call("two", "work", [], seconds=20))
        await until(lambda: other._at_work)
        hub.away = True
        release.set()
        await until(lambda: not other._at_work)  # its answer is lost
        await asyncio.sleep(BEAT * module.MISSED * 3)
        hub.alive.clear()  # all have run out meanwhile
        hub.away = False
        assert await asked == "done"


async def test_a_process_that_is_gone_is_told_from_one_that_is_slow(hub: Hub) -> None:
    async def never(args: list[Any]) -> Any:
        await asyncio.Event().wait()

    async with two(hub) as (one, other):
        other.on("never", never)
        with pytest.raises(Unreached, match="did not answer") as slow:
            await one.call("two", "never", [], seconds=0.1)
        assert slow.value.sent
        assert one.alive("two")
        asked = asyncio.create_task(one.call("two", "never", [], seconds=20))
        await until(lambda: len(other._at_work) == 2)
        for task in other._tasks:  # as by kill -9: it says nothing any more
            task.cancel()
        hub.alive.pop("two")
        with pytest.raises(Unreached, match="gone") as dead:
            await asked
        assert dead.value.sent
        assert not one.alive("two")
        with pytest.raises(Unreached) as later:
            await one.call("two", "never", [], seconds=5)
        assert not later.value.sent, "nothing was asked of a process that is not there"


async def test_one_that_stood_still_for_long_is_asked_again_when_it_goes_on(hub: Hub) -> None:
    done: list[str] = []

    async def hello(args: list[Any]) -> Any:
        done.append("hello")
        return "here again"

    async with two(hub) as (one, other):
        other.on("hello", hello)
        other._tasks[1].cancel()  # its heartbeat: the process is stopped, or its machine sleeps
        asked = asyncio.create_task(one.call("two", "hello", [], seconds=5))
        hub.lines["two"], line = asyncio.Queue(), hub.lines["two"]
        hub.alive.pop("two")
        await until(lambda: not one.alive("two"))
        with pytest.raises(Unreached):
            await asked
        hub.lines["two"] = line
        line.put_nowait(json.dumps(next(m for m in hub.sent if m.get("what") == "hello")))
        await until(lambda: any("not heard of" in str(m.get("error")) for m in hub.sent))
        assert not done, "the one who asked has gone to somebody else"
        await other._look()
        await until(lambda: one.alive("two"))
        assert await one.call("two", "hello", [], seconds=5) == "here again"


async def test_one_that_leaves_is_known_at_once_and_ends_what_it_does_for_others(hub: Hub) -> None:
    async def slow(args: list[Any]) -> Any:
        await asyncio.sleep(0.1)
        return "ended"

    async with two(hub) as (one, other):
        other.on("slow", slow)
        asked = asyncio.create_task(one.call("two", "slow", [], seconds=5))
        await until(lambda: other._at_work)
        await other.stop()
        assert await asked == "ended"
        await until(lambda: not one.alive("two"))


async def test_the_first_who_knows_answers_for_all(hub: Hub) -> None:
    wires = [Wire(hub.relay(), f"w{n}", "worker", beat=BEAT) for n in range(4)]
    asker = Wire(hub.relay(), "asker", "gateway", beat=BEAT)
    for n, one in enumerate(wires):

        async def know(args: list[Any], n: int = n) -> Any:
            if n == 1:
                raise RuntimeError("a fault of one stops nobody")
            return f"from {n}" if args[0] == n else None

        one.on("who", know)
        await one.start()
    await asker.start()
    try:
        assert await asker.ask_all("worker", "who", [2], seconds=5) == "from 2"
        assert await asker.ask_all("worker", "who", [9], seconds=5) is None
        assert await asker.ask_all("gateway", "who", [2], seconds=5) is None
        await wires[0].tell_all("draining", ["w0"])
        await until(lambda: asker.workers() == ["w1", "w2", "w3"])
        assert len(asker.members("worker")) == 4
    finally:
        for one in (asker, *wires):
            await one.stop()


async def test_news_come_in_the_order_in_which_they_were_told_and_nonsense_ends_nothing(hub: Hub) -> None:
    heard: list[int] = []
    async with two(hub) as (one, other):
        other.hear("news", lambda args: heard.append(args[0]))
        hub.lines["two"].put_nowait('{"what": "news"')
        hub.lines["two"].put_nowait('{"args": 1}')
        for n in range(100):
            one.tell("two", "news", [n])
        await until(lambda: len(heard) == 100)
        assert heard == list(range(100))


def test_a_sessions_worker_stays_the_same_when_others_come_and_go() -> None:
    names = [f"w{n}" for n in range(5)]
    before = {s: ranked(names, s)[0] for s in map(str, range(1000))}
    after = {s: ranked(names[:-1], s)[0] for s in before}
    assert all(after[s] == before[s] for s in before if before[s] != "w4")
    share = [sum(one == name for one in before.values()) for name in names]
    assert min(share) > 120
