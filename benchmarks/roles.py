"""`python -m benchmarks roles`: messages a second of one process (SQLite, then Redis) and of a gateway with
1, 2 and 4 workers, in one run, and what a message costs each kind of process.

All of it shares this machine with the model mock, the Redis server and the client: with two cores the sum of
the last columns is the limit, not the number of workers. What a message costs a worker tells how many more
machines would carry.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from tests.fakes.llm import free_port
from tests.fakes.redis_server import RedisServer
from tests.harness import Process, openai_at, write_config

CLIENTS = 48


async def load(url: str, messages: int) -> float:
    """Seconds that so many messages take, of `CLIENTS` conversations at once."""
    queue = iter(range(messages))

    async def talk(client: aiohttp.ClientSession, number: int) -> None:
        for n in queue:
            said = [{"role": "user", "content": f"hello {n}"}]
            body = {"model": "causeway", "user": f"u{number}-{n % 5}", "messages": said}
            async with client.post(f"{url}/v1/chat/completions", json=body) as response:
                answer = await response.json()
                assert answer["choices"][0]["message"]["content"].startswith("word0 word1"), answer

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CLIENTS)) as client:
        began = time.perf_counter()
        await asyncio.gather(*(talk(client, number) for number in range(CLIENTS)))
        return time.perf_counter() - began


def cpu(pids: Sequence[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(one.user + one.system for one in times)


async def measure(
    name: str, folder: Path, settings: Mapping[str, Any], roles: Sequence[str], server: int, messages: int
) -> float:
    """Start the processes, load them, print a line; messages a second."""
    processes = [
        Process(write_config(folder, settings), folder, "run", "--role", role, dev=False) for role in roles
    ]
    try:
        for process in processes:
            await process.start()
        front, back = processes[0], processes[1:]
        await load(front.url, CLIENTS * 3)  # caches, imports, claims
        groups = {
            "front": [front.pid],
            "workers": [p.pid for p in back],
            "server": [server] if server else [],
        }
        before = {what: cpu(pids) for what, pids in groups.items()}
        seconds = await load(front.url, messages)
        cost = {what: (cpu(pids) - before[what]) / messages * 1000 for what, pids in groups.items()}
        rate = messages / seconds
        print(
            f"{name:28} {rate:7.0f} messages/s   CPU a message: {cost['front']:5.2f} ms "
            f"{'gateway' if back else 'bridge '}, {cost['workers']:5.2f} ms worker, {cost['server']:5.2f} ms "
            "Redis"
        )
        return rate
    finally:
        for process in reversed(processes):
            await process.close()


async def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks roles")
    parser.add_argument("--messages", type=int, default=1500)
    options = parser.parse_args(list(arguments))
    port = free_port()
    mock = subprocess.Popen([sys.executable, "-m", "tests.fakes.llm", "--port", str(port), "--pieces", "20"])
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        server = RedisServer(folder / "redis", "--appendonly", "yes", "--appendfsync", "always").start()
        try:
            assert server.process is not None
            base = {"model": openai_at(f"http://127.0.0.1:{port}/v1"), "channels": {"api": {}}}
            rates = [
                await measure("one process, SQLite", folder / "sqlite", base, ["all"], 0, options.messages)
            ]
            for name, roles in (
                ("one process, Redis", ["all"]),
                *(
                    (f"gateway, {n} worker{'s' if n > 1 else ''}", ["gateway", *["worker"] * n])
                    for n in (1, 2, 4)
                ),
            ):
                settings = {**base, "store": {"url": f"{server.url}?prefix=b{len(rates)}"}}
                where = folder / f"r{len(rates)}"
                rates.append(
                    await measure(name, where, settings, roles, server.process.pid, options.messages)
                )
            print(
                f"ratios to one process on SQLite: Redis {rates[1] / rates[0]:.2f}; 1, 2 and 4 workers "
                + ", ".join(f"{rate / rates[0]:.2f}" for rate in rates[2:])
                + f" (on {psutil.cpu_count()} cores, which the mock, the client and Redis use too)"
            )
        finally:
            server.stop()
            mock.kill()
            mock.wait()
