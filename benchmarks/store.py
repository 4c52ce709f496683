"""`python -m benchmarks store`: what a message costs in SQLite and in Redis, and how both bear many sessions.

A message is what the bridge writes for one plain answer: accept, next, two entries of history, the whole
reply, a chunk before and after its platform call, and the settlement. Both are measured in one run.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from agent.history import Assistant, Entry, User
from bridge.store.base import Store, StoredChunk, StoredReply
from bridge.store.redis import RedisStore
from bridge.store.sqlite import SqliteStore
from channels.base import Address, Inbound, ReplyRef, Sender
from tests.fakes.redis_server import RedisServer

ONE_BY_ONE = 300
CHATS = 100
EACH = 20
_MIB = 2**20


def message(number: int, chat: str) -> Inbound:
    return Inbound(str(number), Address("telegram", chat), Sender("42", "Ann"), "How is the weather today?")


def reply(id: str, session: str) -> StoredReply:
    ref = asdict(ReplyRef(id, Address("telegram", session), "1"))
    return StoredReply(id, session, ref, {"v": 1, "text": "Fine. " * 40, "files": []}, "complete")


class Steps:
    """How long each step took, in milliseconds."""

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = {}

    async def time(self, name: str, work: Awaitable[object]) -> object:
        began = time.perf_counter()
        result = await work
        self.taken.setdefault(name, []).append((time.perf_counter() - began) * 1000)
        return result

    def __str__(self) -> str:
        return ", ".join(f"{name} {statistics.median(taken):.2f}" for name, taken in self.taken.items())


async def go_through(store: Store, session: str, number: int, steps: Steps) -> None:
    incoming = message(number, session)
    await steps.time("accept", store.accept(incoming, session, 1000))
    [waiting] = await store.next(session)
    run = f"r{waiting.seq}"
    await store.history.append(session, [User(run, incoming.text)])
    await steps.time("append", store.history.append(session, [Assistant(run, "Fine. " * 40)]))
    await store.complete_reply(reply(run, session))
    await steps.time("chunk", store.put_chunk(run, StoredChunk(0, "intent")))
    await store.put_chunk(run, StoredChunk(0, "sent", "m"))
    await steps.time("settle", store.settle_reply(run, "delivered", [waiting.seq]))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True, slots=True)
class Cost:
    """What a message costs: milliseconds alone; in a crowd its CPU (a server's as well), and their rate."""

    alone: float
    cpu: float
    rate: float


async def cost(name: str, store: Store, server: Callable[[], float]) -> Cost:
    """What a message costs, alone and in a crowd. `server`: seconds of CPU that a server beside us had."""
    steps = Steps()
    for number in range(20):
        await go_through(store, "warm", number, Steps())
    whole, cpu, beside = Steps(), _cpu(), server()
    for number in range(ONE_BY_ONE):
        await whole.time("a message", go_through(store, f"one{number % 10}", number, steps))
    used, used_beside = (one / ONE_BY_ONE * 1000 for one in (_cpu() - cpu, server() - beside))
    print(f"{name:7} alone: {whole} ms, CPU {used:.2f} + server {used_beside:.2f} ms ({steps})")

    async def chat(n: int) -> None:
        for number in range(EACH):
            await go_through(store, f"crowd{n}", number, Steps())

    began, cpu, beside = time.perf_counter(), _cpu(), server()
    await asyncio.gather(*(chat(n) for n in range(CHATS)))
    count, taken = CHATS * EACH, time.perf_counter() - began
    used, used_beside = (one / count * 1000 for one in (_cpu() - cpu, server() - beside))
    print(f"{'':7} {CHATS} chats at once: {count / taken:.0f} messages/s, "
          f"CPU {used:.2f} + server {used_beside:.2f} ms a message")  # fmt: skip
    return Cost(statistics.median(whole.taken["a message"]), used + used_beside, count / taken)


async def many(store: Store, sessions: int, messages: int, size: Callable[[], int]) -> None:
    """Fill a store with histories, then use a few of them."""
    each, began = max(1, messages // sessions), time.perf_counter()
    pair: list[Entry] = [User("r", "How is the weather today?"), Assistant("r", "Fine. " * 10)]
    entries = pair * (each // 2 + 1)

    async def fill(first: int) -> None:
        for n in range(first, sessions, 50):
            await store.history.append(f"telegram:direct:{n}", entries[:each])

    await asyncio.gather(*(fill(first) for first in range(50)))
    rate = sessions * each / (time.perf_counter() - began)
    steps = Steps()
    for n in range(0, sessions, max(1, sessions // 200)):
        key = f"telegram:direct:{n}"
        await go_through(store, key, 10**9 + n, steps)
        await steps.time("wake", store.history.tail(key, 200))
        await steps.time("next of none", store.next(key))
    await steps.time("list 1000", store.sessions(1000))
    await steps.time("forget none", store.forget_sessions(0.0))
    memory = psutil.Process().memory_info().rss / _MIB
    print(f"{'':7} {sessions} sessions, {sessions * each} entries: filled at {rate:.0f} entries/s; "
          f"{size() / _MIB:.0f} MiB kept, this process {memory:.0f} MiB")  # fmt: skip
    print(f"{'':7} then ({steps})")


async def main(words: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks store")
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--messages", type=int, default=40_000, help="entries of history, over all sessions")
    parser.add_argument("--only", choices=("sqlite", "redis"))
    parser.add_argument("--appendfsync", choices=("always", "everysec"), default="always", help="of Redis")
    options = parser.parse_args(words)
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory() as folder:
        if options.only != "redis":
            path = Path(folder) / "store.db"
            sqlite = SqliteStore(path)
            await sqlite.open()
            costs.append(await cost("SQLite", sqlite, lambda: 0.0))
            await many(sqlite, options.sessions, options.messages, lambda: path.stat().st_size)
            await sqlite.close()
        if options.only != "sqlite":
            durable = ("--appendonly", "yes", "--appendfsync", options.appendfsync)
            server = RedisServer(Path(folder) / "redis", *durable).start()
            assert server.process is not None
            beside = psutil.Process(server.process.pid)
            redis = RedisStore(server.url)
            await redis.open()
            costs.append(await cost("Redis", redis, lambda: sum(beside.cpu_times()[:2])))
            await many(redis, options.sessions, options.messages, lambda: beside.memory_info().rss)
            await redis.close()
            server.stop()
    if len(costs) == 2:
        ours, theirs = costs
        print(f"{'ratio':7} Redis to SQLite: alone {theirs.alone / ours.alone:.1f}, CPU with the server's "
              f"{theirs.cpu / ours.cpu:.1f}, messages/s {theirs.rate / ours.rate:.2f}")  # fmt: skip
