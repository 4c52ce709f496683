"""Gateways and workers in this process, on a real Redis server, with short leases: for tests of the roles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from bridge.cluster.gateway import Gateway
from bridge.cluster.worker import Worker
from bridge.config import Config, load_config
from tests.fakes.redis_server import RedisServer
from tests.harness import clean_environ, write_config

LEASE, BEAT = 3.0, 0.3


class Fleet:
    def __init__(self, folder: Path, server: RedisServer, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self.server = server
        self.settings = {"store": {"url": server.url}, **settings}
        self.change()
        self.gateways: list[Gateway] = []
        self.workers: list[Worker] = []

    def change(self, **settings: Any) -> None:
        """Write the configuration with other settings; for what is started after that."""
        self.settings.update(settings)
        self.file = write_config(self.folder, self.settings)

    def config(self) -> Config:
        return load_config(self.file, clean_environ(self.folder))

    async def gateway(self) -> Gateway:
        made = Gateway(self.config(), beat=BEAT)
        self.gateways.append(made)
        await made.start()
        return made

    async def worker(self) -> Worker:
        made = Worker(self.config(), lease=LEASE, beat=BEAT)
        self.workers.append(made)
        await made.start()
        return made

    async def stop(self) -> None:
        for worker in self.workers:
            await worker.stop(grace=1)
        for gateway in self.gateways:
            await gateway.stop(grace=1)


@asynccontextmanager
async def fleet(folder: Path, settings: Mapping[str, Any]) -> AsyncIterator[Fleet]:
    """A server and nothing else; what is started on it is stopped at the end."""
    server = RedisServer(folder / "redis", "--appendonly", "yes", "--appendfsync", "always")
    await asyncio.to_thread(server.start)
    made = Fleet(folder, server, settings)
    try:
        yield made
    finally:
        try:
            await made.stop()
        finally:
            await asyncio.to_thread(server.stop)


async def ask(gateway: Gateway, words: str, user: str = "u") -> str:
    """What the API of a gateway answers; the error's message when it does not."""
    body = {"model": "causeway", "user": user, "messages": [{"role": "user", "content": words}]}
    async with aiohttp.ClientSession() as client:
        async with client.post(f"{gateway.url}/v1/chat/completions", json=body) as response:
            said = await response.json()
    if response.status != 200:
        return str(said["error"]["message"])
    return str(said["choices"][0]["message"]["content"])
