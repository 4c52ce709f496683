"""`python -m benchmarks memory`: what the real process keeps in memory with few and with many known sessions.

Memory is PSS: pages that processes share count for each in part. What was woken leaves it again.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import psutil

from agent.history import Assistant, User
from benchmarks.years import build, key
from bridge.store.redis import RedisStore
from tests.fakes.redis_server import RedisServer
from tests.harness import Process, write_config

_MIB = 2**20
_CLIENTS = 32
_IDLE = 1
#: So many times other sessions are woken: the first waves fill caches that have a bound.
_WAVES = 4


def memory(pid: int) -> float:
    return float(psutil.Process(pid).memory_full_info().pss) / _MIB


async def fill_redis(url: str, sessions: int) -> None:
    store = RedisStore(url)
    await store.open()

    async def some(first: int) -> None:
        for n in range(first, sessions, 200):
            await store.history.append(key(n), [User("r", "How are you?"), Assistant("r", "Fine. " * 30)])

    await asyncio.gather(*(some(first) for first in range(200)))
    await store.close()


async def talk(url: str, first: int, count: int) -> None:
    """One message in each of so many sessions."""
    numbers = iter(range(first, first + count))

    async def client(session: aiohttp.ClientSession) -> None:
        for n in numbers:
            body = {
                "model": "causeway",
                "user": f"user-{n}",
                "messages": [{"role": "user", "content": "hello"}],
            }
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                assert response.status == 200, await response.text()

    connector = aiohttp.TCPConnector(limit=_CLIENTS)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(client(session) for _ in range(_CLIENTS)))


async def measure(name: str, folder: Path, store: dict[str, str], known: int, awake: int) -> float:
    """Print a line; returns the memory at the start, MiB."""
    settings = {
        "channels": {"api": {}},
        "sessions": {"idle_seconds": _IDLE},
        "store": store,
        "log": {"level": "warning"},
    }
    bridge = Process(write_config(folder, settings), folder, dev=False)
    await bridge.start()
    try:
        start, rested, most = memory(bridge.pid), [], 0.0
        for wave in range(_WAVES):
            await talk(bridge.url, wave * awake, awake)
            most = memory(bridge.pid)
            await asyncio.sleep(_IDLE + 2)
            rested.append(memory(bridge.pid))
        each = (rested[-1] - rested[-2]) * 2**20 / awake
        waves = ", ".join(f"{one:.1f}" for one in rested)
        print(
            f"{name:7} {known:>8} known: at start {start:.1f} MiB; idle again after each {awake} sessions: "
            f"{waves} (at most {most:.1f}); each of the last left {each:.0f} bytes",
            flush=True,
        )
        return start
    finally:
        await bridge.close()


async def main(words: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory")
    parser.add_argument("--known", type=int, nargs="+", default=[0, 10_000, 100_000], metavar="N")
    parser.add_argument(
        "--awake", type=int, default=1500, metavar="N", help="sessions that are woken at a time"
    )
    parser.add_argument("--only", choices=("sqlite", "redis"))
    options = parser.parse_args(words)
    for name in ("sqlite", "redis"):
        if options.only not in (None, name):
            continue
        found: list[tuple[int, float]] = []
        for known in options.known:
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place)
                if name == "sqlite":
                    (folder / "workspace").mkdir()
                    if known:
                        path = folder / "workspace" / "causeway.db"
                        await asyncio.to_thread(build, path, known, 2 * known)
                    kept = await measure("SQLite", folder, {}, known, options.awake)
                else:
                    server = RedisServer(folder / "redis", "--appendonly", "no").start()
                    try:
                        await fill_redis(server.url, known)
                        kept = await measure("Redis", folder, {"url": server.url}, known, options.awake)
                    finally:
                        server.stop()
                found.append((known, kept))
        (few, less), (many, more) = found[0], found[-1]
        if many > few:
            each = (more - less) * 2**20 / (many - few)
            print(f"{'':7} a known, idle session costs the process {each:.0f} bytes", flush=True)
