"""`make bench`: what a message costs through the API channel, beside a bare aiohttp echo, in one run.

Both ask the same mock model, which answers at once in 20 pieces. Ratios are what counts: the absolute figures
are those of this machine at this moment.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import psutil

from benchmarks import first_answer, large, mcp, memory, retrieval, roles, skills, store
from tests.fakes.llm import free_port
from tests.harness import Process, openai_at, write_config

ONE_BY_ONE = 300
AT_ONCE = 1000
CLIENTS = 32


class Subject:
    """A server under load: how long its answers take and what they cost it."""

    def __init__(self, name: str, url: str, process: psutil.Process) -> None:
        self.name = name
        self.url = url
        self.process = process
        self.p50 = self.p95 = self.cpu = self.rate = 0.0

    async def ask(self, client: aiohttp.ClientSession, session: str) -> None:
        body = {"model": "causeway", "user": session, "messages": [{"role": "user", "content": "hello"}]}
        async with client.post(f"{self.url}/v1/chat/completions", json=body) as response:
            answer = await response.json()
            assert answer["choices"][0]["message"]["content"].startswith("word0 word1"), answer

    def _cpu(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    async def measure(self) -> None:
        connector = aiohttp.TCPConnector(limit=CLIENTS)
        async with aiohttp.ClientSession(connector=connector) as client:
            for n in range(50):
                await self.ask(client, f"warm-{n}")
            taken = []
            cpu = self._cpu()
            for n in range(ONE_BY_ONE):
                began = time.perf_counter()
                await self.ask(client, f"single-{n % 50}")
                taken.append(time.perf_counter() - began)
            self.cpu = (self._cpu() - cpu) / ONE_BY_ONE * 1000
            self.p50 = statistics.median(taken) * 1000
            self.p95 = statistics.quantiles(taken, n=20)[18] * 1000
            queue = iter(range(AT_ONCE))
            began = time.perf_counter()

            async def worker(number: int) -> None:
                for n in queue:
                    await self.ask(client, f"crowd-{number}-{n % 5}")

            await asyncio.gather(*(worker(number) for number in range(CLIENTS)))
            self.rate = AT_ONCE / (time.perf_counter() - began)


async def _until_up(url: str) -> None:
    async with aiohttp.ClientSession() as client, asyncio.timeout(20):
        while True:
            try:
                async with client.get(url):
                    return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)


async def main() -> None:
    model_port, echo_port = free_port(), free_port()
    model_url = f"http://127.0.0.1:{model_port}/v1"
    with tempfile.TemporaryDirectory() as folder:
        model = subprocess.Popen([sys.executable, "-m", "tests.fakes.llm", "--port", str(model_port)],
                                 stdout=subprocess.DEVNULL)  # fmt: skip
        echo = subprocess.Popen([sys.executable, "-m", "benchmarks.echo", str(echo_port), model_url])
        settings = {"model": openai_at(model_url), "channels": {"api": {}}, "log": {"level": "warning"}}
        bridge = Process(write_config(Path(folder), settings), Path(folder), dev=False)
        try:
            began = time.perf_counter()
            await bridge.start()
            start = time.perf_counter() - began
            await _until_up(f"http://127.0.0.1:{echo_port}/")
            await _until_up(model_url)
            floor = Subject("bare aiohttp echo", f"http://127.0.0.1:{echo_port}", psutil.Process(echo.pid))
            ours = Subject("bridge, API channel", bridge.url, psutil.Process(bridge.pid))
            for subject in (floor, ours):
                await subject.measure()
            print(f"{'':22} {'p50 ms':>8} {'p95 ms':>8} {'CPU ms':>8} {'msg/s':>8}")
            for subject in (floor, ours):
                figures = f"{subject.p50:8.2f} {subject.p95:8.2f} {subject.cpu:8.2f} {subject.rate:8.0f}"
                print(f"{subject.name:22} {figures}")
            print(f"{'ratio':22} {ours.p50 / floor.p50:8.2f} {ours.p95 / floor.p95:8.2f} "
                  f"{ours.cpu / floor.cpu:8.2f} {ours.rate / floor.rate:8.2f}")  # fmt: skip
            memory = psutil.Process(bridge.pid).memory_info().rss / 2**20
            print(f"start to ready {start:.2f} s; memory after the run {memory:.0f} MiB")
        finally:
            await bridge.close()
            for process in (echo, model):
                process.terminate()
                process.wait(10)


async def everything() -> None:
    for title, part in (
        ("Messages", main),
        ("First answer", first_answer.main),
        ("MCP", mcp.main),
        ("Skills", skills.main),
        ("Retrieval", retrieval.main),
        ("Store", store.main),
        ("Roles", roles.main),
    ):
        print(f"\n{title}")
        await part()


#: Parts that take words of their own; the first two take long and are not among `everything`.
APART = {"large": large.main, "memory": memory.main, "roles": roles.main, "store": store.main}

if __name__ == "__main__":
    name, *words = sys.argv[1:] or [""]
    asyncio.run(APART[name](words) if name in APART else everything())
