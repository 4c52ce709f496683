"""`make bench-large`: SQLite with 100,000 sessions and 10 million entries, and the real bridge on it.

While one part does its work, chats go on: what a message waits for is measured beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from benchmarks.store import Steps, go_through
from benchmarks.years import ONE_LONG_IN, build, key
from bridge.store.base import UsageField
from bridge.store.pace import unhurried
from bridge.store.sqlite import SqliteStore
from tests.harness import Process, clean_environ, write_config

_MIB = 2**20
_LONG_KEY = 1  # of the sessions that `years` makes long
_YEAR = 365 * 86_400.0


def say(what: str, figures: str) -> None:
    print(f"{what:34} {figures}", flush=True)


class Talk:
    """Chats that go on beside something else: how long their messages and the event loop had to wait."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.messages: list[float] = []
        self.stalls: list[float] = []

    async def _chat(self, n: int) -> None:
        number = time.monotonic_ns()
        while True:
            began = time.perf_counter()
            await go_through(self._store, key(n * 997), number := number + 1, Steps())
            self.messages.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(0.02)

    async def _watch(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            self.stalls.append((time.perf_counter() - began - 0.005) * 1000)

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[Talk]:
        tasks = [asyncio.create_task(self._chat(n)) for n in range(10)]
        tasks.append(asyncio.create_task(self._watch()))
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def __str__(self) -> str:
        if not self.messages:
            return "no message came through"
        p99 = (
            statistics.quantiles(self.messages, n=100)[98] if len(self.messages) > 100 else max(self.messages)
        )
        return (
            f"a message beside it: median {statistics.median(self.messages):.1f}, 99 % {p99:.0f}, "
            f"longest {max(self.messages):.0f} ms; the loop stood still {max(self.stalls):.0f} ms at most"
        )


async def taken(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def beside(store: SqliteStore, what: str, work: Callable[[], Awaitable[object]]) -> None:
    async with Talk(store).going_on() as talk:
        await asyncio.sleep(0.5)
        talk.messages.clear()
        seconds = await taken(work())
    say(what, f"{seconds:.1f} s; {talk}")


async def using(store: SqliteStore, sessions: int) -> None:
    steps = Steps()
    for n in range(0, sessions, max(1, sessions // 200)):
        await go_through(store, key(n), 10**15 + n, steps)
        await steps.time("wake (the newest 200 entries)", store.history.tail(key(n), 200))
    await steps.time("sessions, a page of 1000", store.sessions(1000, key(sessions // 2)))
    say("a message, in ms", str(steps))
    for what, work in (("whole", store.history.load), ("newest 200", lambda k: store.history.tail(k, 200))):
        whole = [await taken(work(key(n))) * 1000 for n in range(_LONG_KEY, sessions, ONE_LONG_IN)]
        if whole:
            say(f"a session of 10,000 entries, {what}", f"{statistics.median(whole):.1f} ms")


async def upkeep(store: SqliteStore, path: Path) -> None:
    before, now = path.stat().st_size, time.time()
    gone = 0

    async def forget() -> None:
        nonlocal gone
        while part := await store.forget_sessions(now - _YEAR, 20):
            gone += len(part)

    await beside(store, "retention", forget)

    async def marks() -> None:
        while await unhurried(store.forget_before(now + 60, now + 60, 200)) >= 200:
            pass

    await beside(store, "marks and replies of the past", marks)
    await beside(store, "giving room back", store.tidy)
    shrunk = before - path.stat().st_size
    say("", f"{gone} sessions are gone; the file is {shrunk / _MIB:.0f} MiB smaller")
    per: tuple[UsageField, ...] = ("channel", "person")
    await beside(store, "100 days of use, the largest persons", lambda: store.usage("", per, most=1000))


async def command(config: Path, home: Path, *words: str) -> tuple[float, float]:
    """Run `causeway`: seconds, and its memory at most, MiB."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bridge.cli", *words, "--config", str(config),
        stdout=asyncio.subprocess.DEVNULL, env=clean_environ(home), cwd=home,
    )  # fmt: skip
    watched, most, began = psutil.Process(process.pid), 0, time.perf_counter()
    ended = asyncio.create_task(process.wait())
    while not ended.done():
        try:
            most = max(most, watched.memory_info().rss)
        except psutil.NoSuchProcess:
            break
        await asyncio.wait({ended}, timeout=0.02)
    if code := await ended:
        raise SystemExit(f"causeway {' '.join(words)} failed ({code})")
    return time.perf_counter() - began, most / _MIB


async def commands(config: Path, home: Path, store: SqliteStore) -> None:
    for words in (
        ("sessions", "list"),
        ("sessions", "list", "-n", "50"),
        ("usage",),
        ("usage", "--by", "session"),
    ):
        seconds, most = await command(config, home, *words)
        say(f"causeway {' '.join(words)}", f"{seconds:.1f} s, {most:.0f} MiB")
    target = home / "copy.db"
    await beside(store, "causeway backup", lambda: command(config, home, "backup", str(target)))
    say("", f"{target.stat().st_size / _MIB:.0f} MiB written")
    target.unlink()


async def start(config: Path, home: Path) -> None:
    bridge = Process(config, home, dev=False)
    began = time.perf_counter()
    await bridge.start()
    ready = time.perf_counter() - began
    memory = psutil.Process(bridge.pid).memory_full_info().pss / _MIB
    seconds = await taken(bridge.terminate())
    say("the bridge, start to ready", f"{ready:.2f} s, {memory:.0f} MiB (PSS); stop {seconds:.2f} s")


async def main(words: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks large")
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument(
        "--messages", type=int, default=10_000_000, help="entries of history, over all sessions"
    )
    parser.add_argument("--folder", type=Path, help="where the file (3 GB) is written for a while")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        home = Path(folder)
        settings = {"channels": {"api": {}}, "log": {"level": "warning"}}
        empty = write_config(home / "empty", settings)
        await start(empty, home)  # everything read once
        await start(empty, home)
        config, path = write_config(home, settings), home / "workspace" / "causeway.db"
        path.parent.mkdir()
        began = time.perf_counter()
        count = await asyncio.to_thread(build, path, options.sessions, options.messages)
        size = path.stat().st_size / _MIB
        os.sync()
        say(
            f"{options.sessions} sessions, {count} entries",
            f"{size:.0f} MiB; made in {time.perf_counter() - began:.0f} s",
        )
        await start(config, home)
        store = SqliteStore(path)
        say("opening the file", f"{await taken(store.open()) * 1000:.1f} ms without looking through it")
        try:
            await using(store, options.sessions)
            await commands(config, home, store)
            await upkeep(store, path)
        finally:
            say("closing the file", f"{await taken(store.close()) * 1000:.0f} ms")
