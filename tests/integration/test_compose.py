"""What docker-compose.yml starts, without the containers: its commands, its configuration, its secrets."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from scripts.check_tree import ROOT
from tests.fakes.llm import free_port
from tests.fakes.redis_server import RedisServer
from tests.harness import Process

SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


class Stack:
    """The processes of the compose file, with this test's folders, hosts and ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secrets = folder / "secrets"
        (folder / "docker").mkdir()
        (folder / "docker" / "make-secrets").write_text((ROOT / "docker" / "make-secrets").read_text())
        subprocess.run(["sh", str(folder / "docker" / "make-secrets")], check=True, timeout=20)
        self.password, self.key = (
            (self.secrets / name).read_text() for name in ("redis_password", "causeway_key")
        )
        durable = ("--appendonly", "yes", "--appendfsync", "always", "--requirepass", self.password)
        self.redis = RedisServer(folder / "redis", *durable).start()
        text = (ROOT / "docker" / "config.scaled.yaml").read_text()
        for there, here in (
            ("workspace: /data", f"workspace: {folder / 'data'}"),
            ("@redis:6379/0", f"@127.0.0.1:{self.redis.port}/0"),
            ("host: 0.0.0.0", "host: 127.0.0.1"),
            ("port: 8765", f"port: {free_port()}"),
        ):
            assert there in text
            text = text.replace(there, here)
        (folder / "config.yaml").write_text(text)  # found in the working directory
        self.gateway = self.process("gateway")
        self.workers = [self.process("worker"), self.process("worker")]

    def process(self, service: str, *command: str) -> Process:
        program, *words = command or SERVICES[service]["command"]
        assert program == "causeway"
        environ = {
            name: value.replace("/run/secrets", str(self.secrets))
            for name, value in SERVICES[service]["environment"].items()
        }
        words = [word.replace("8765", str(free_port())) for word in words]
        return Process(None, self.folder, *words, environ=environ, dev=False)

    async def ready(self, process: Process) -> None:
        async with aiohttp.ClientSession() as client, asyncio.timeout(30):
            while True:
                async with client.get(f"{process.url}/readyz") as answer:
                    if answer.status == 200:
                        return
                await asyncio.sleep(0.05)

    async def ask(self, words: str) -> str:
        url = f"{self.gateway.url}/v1/chat/completions"
        body = {"model": "causeway", "user": "ann", "messages": [{"role": "user", "content": words}]}
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {self.key}"}) as client:
            async with client.post(url, json=body, timeout=aiohttp.ClientTimeout(30)) as answer:
                assert answer.status == 200, await answer.text()
                return str((await answer.json())["choices"][0]["message"]["content"])


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    """Redis is up, the others are not."""
    made = Stack(tmp_path)
    try:
        yield made
    finally:
        for one in (made.gateway, *made.workers):
            await one.close()
        made.redis.stop()


async def test_the_compose_files_processes_answer_also_while_workers_are_replaced(stack: Stack) -> None:
    processes = (stack.gateway, *stack.workers)
    await asyncio.gather(*(one.start() for one in processes))
    await asyncio.gather(*(stack.ready(one) for one in processes))
    said = ""
    for worker in stack.workers:
        assert "demo model" in await stack.ask("hello")
        assert await worker.terminate() == 0
        assert "demo model" in await stack.ask("hello again")
        said += worker.output
        await worker.start()
        await stack.ready(worker)
    for one in processes:
        assert await one.terminate() == 0
        said += one.output
    assert stack.password not in said
    assert said.count(stack.key) == 1  # in the page's address


async def test_the_doctor_finds_that_the_compose_files_redis_keeps_what_it_is_given(stack: Stack) -> None:
    doctor = stack.process("worker", "causeway", "doctor", "--language", "en")
    await doctor.start(ready=False)
    assert doctor.process is not None
    async with asyncio.timeout(60):
        code = await doctor.process.wait()
        await doctor.until(lambda: "keeps what it is given" in doctor.output)
    await doctor.close()
    assert code == 0, doctor.output
