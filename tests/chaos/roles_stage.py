"""Gateways, workers and a Redis server as processes of their own, behind a load balancer; a fake Telegram
that notes when each message was shown; a model whose answers follow from the question."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from aiohttp import web

from bridge.keys import session_key
from bridge.store.redis import RedisStore
from channels.base import Address
from tests.fakes.llm import Call, Say, ScriptedModel, Seen
from tests.fakes.redis_server import RedisServer
from tests.fakes.telegram import TOKEN, Chat, FakeTelegram, Json
from tests.fakes.transcript import check_openai
from tests.harness import ROOT, Process, openai_at, write_config

#: Seconds that a claim lasts where a test cannot wait for the product's 15.
SHORT_LEASE = 3.0
NEW, QUEUE = "Done. This is a new conversation.", "While I work, messages are handled by"
STOPPED = ("Stopped.", "There is nothing to stop.", "I was restarted while I carried out /stop")
NOTE = "(stopped)"
COMPLAINTS = ("was destroyed", "Unclosed", "unclosed", "never awaited", "never retrieved", "Traceback")
_SHORTEN = f"""
from bridge.cluster.worker import Worker
Worker.__init__.__kwdefaults__.update(lease={SHORT_LEASE})
"""


def answer_to(task: str, kind: str) -> str:
    """The whole answer; each word names its task, so that no piece of it can be taken for another's."""
    count = 1300 if kind == "long" else 12
    return f"answer {task} " + " ".join(f"{task}w{n}" for n in range(count)) + f" end {task}"


def command_of(text: str) -> str:
    """The command that a message answers; `NOTE` for what is left of a stopped run, empty for neither."""
    if text.startswith(NEW):
        return "/new"
    if text.startswith(QUEUE):
        return "/queue"
    if text.startswith(STOPPED):
        return "/stop"
    return NOTE if text.strip("_ \n") == NOTE else ""


class Telegram(FakeTelegram):
    """Notes when each message of the bot came, and what is answered: tasks by number, commands by chat."""

    def __init__(self) -> None:
        super().__init__()
        self.local = True
        self.came: dict[int, float] = {}
        self.answered: set[str] = set()

    def _show(self, chat: Chat, message: Json) -> Json:
        shown = super()._show(chat, message)
        self.came[shown["message_id"]] = time.monotonic()
        self._look(shown)
        self.answered.add(f"{chat.id} {command_of(str(shown.get('text', '')))}")
        return shown

    def _do_editmessagetext(self, params: Json) -> Json:
        message = super()._do_editmessagetext(params)
        self._look(message)
        return message

    def _look(self, message: Json) -> None:
        self.answered.update(re.findall(r"\bend (\d+)", str(message.get("text", ""))))


class Front:
    """A load balancer: requests go round; a gateway that does not answer at all is passed over."""

    def __init__(self) -> None:
        self.gateways: dict[int, str] = {}
        self._turn = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Front]:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._forward)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        timeout = aiohttp.ClientTimeout(total=55)  # about what Telegram waits
        async with aiohttp.ClientSession(timeout=timeout) as self._client:
            try:
                yield self
            finally:
                await runner.cleanup()

    async def _forward(self, request: web.Request) -> web.Response:
        body = await request.read()
        headers = {
            name: value for name, value in request.headers.items() if name.startswith(("X-", "Content-Type"))
        }
        for _ in range(len(self.gateways)):
            self._turn += 1
            url = list(self.gateways.values())[self._turn % len(self.gateways)]
            try:
                async with self._client.post(url + request.raw_path, data=body, headers=headers) as answer:
                    return web.Response(status=answer.status, body=await answer.read())
            except aiohttp.ClientConnectorError:
                continue  # nobody listens there
            except (aiohttp.ClientError, TimeoutError):
                return web.Response(status=502)  # it may have been taken: the platform has to decide
        return web.Response(status=503)


class Stage:
    """The whole house. Gateways and workers are numbered places; who is there changes."""

    def __init__(
        self, folder: Path, telegram: Telegram, model: ScriptedModel, front: Front, redis: RedisServer
    ) -> None:
        self.folder = folder
        self.telegram = telegram
        self.model = model
        self.front = front
        self.redis = redis
        self.runs = folder / "runs.log"
        self.file = folder / "config.yaml"
        self.gateways: dict[int, Process] = {}
        self.workers: dict[int, Process] = {}
        self.faults: list[str] = []  # what is wrong with requests to the model
        self.unknown: set[str] = set()  # tasks whose tool's outcome was told to be unknown
        self.gates: dict[str, asyncio.Event] = {}
        self.dice = random.Random(0)
        self.environ: dict[str, str] = {}
        self.dev = False
        self.ended: list[str] = []  # what processes printed that are gone

    # -- the model -------------------------------------------------------------------------------------

    def answer(self, seen: Seen) -> Say:
        found = re.findall(r"task (\d+) (\w+)", seen.last_user)
        if not found:
            self.faults.append(f"no task in {seen.last_user[:80]!r}")
            return Say("?")
        task, kind = found[-1]
        self.faults += check_openai(seen.body)
        if kind == "tool" and not seen.results:
            return Say(calls=(Call("bash", {"command": f"echo {task} >> {self.runs}"}, id=f"call_{task}"),))
        if any("outcome is unknown" in result for result in seen.results):
            self.unknown.add(task)
        if kind == "held" and task not in self.gates:  # the first who asks waits in the middle
            gate = self.gates[task] = asyncio.Event()
            return Say(answer_to(task, kind), pieces=6, between=0.02, after=3, gate=gate, gate_at="after")
        pauses = {"slow": 0.25, "long": 0.05}
        delay = self.dice.random() * 0.2
        return Say(answer_to(task, kind), pieces=6, delay=delay, between=pauses.get(kind, 0.04))

    # -- processes -------------------------------------------------------------------------------------

    def settings(self, **telegram: Any) -> dict[str, Any]:
        channel: dict[str, Any] = {"token": TOKEN, "base_url": self.telegram.url, "mode": "webhook"}
        channel |= {"webhook_secret": "s3cret", **telegram}
        return {
            "model": openai_at(self.model.openai_url),
            "channels": {"telegram": channel, "api": {}},
            "access": {"telegram": {"direct": "open", "groups": "open"}},
            "tools": {"bash": {"enabled": True}, "policy": [{"effect": "allow", "tools": ["bash"]}]},
            "server": {"port": 0, "public_url": self.front.url},
            "store": {"url": self.redis.url},
            "log": {"level": "info"},
        }

    def write(self, **telegram: Any) -> None:
        write_config(self.folder, self.settings(**telegram))

    def add_server(self) -> None:
        """Each worker has an MCP server of its own."""
        arguments = ["-m", "tests.fakes.mcp_plain", "--log", str(self.folder / "server.log")]
        server = {"command": sys.executable, "args": arguments, "cwd": str(ROOT)}
        (self.folder / "workspace").mkdir()
        (self.folder / "workspace" / "mcp.json").write_text(json.dumps({"mcpServers": {"plain": server}}))

    def shorten_leases(self) -> None:
        """Workers of this stage hold their claims for `SHORT_LEASE` seconds."""
        place = self.folder / "at_start"
        place.mkdir()
        (place / "sitecustomize.py").write_text(_SHORTEN)
        self.environ["PYTHONPATH"] = f"{place}{os.pathsep}{ROOT}"

    def _process(self, role: str) -> Process:
        return Process(self.file, self.folder, "run", "--role", role, dev=self.dev, environ=self.environ)

    async def start_gateway(self, place: int) -> Process:
        made = self._process("gateway")
        await made.start()
        self.gateways[place] = made
        self.front.gateways[place] = made.url
        return made

    async def start_worker(self, place: int) -> Process:
        made = self._process("worker")
        await made.start()
        self.workers[place] = made
        return made

    async def start(self, gateways: int, workers: int) -> None:
        await self.start_gateway(0)
        starts = [*map(self.start_worker, range(workers)), *map(self.start_gateway, range(1, gateways))]
        await asyncio.gather(*starts)
        await until(lambda: self.telegram.hook is not None or self.telegram.called("getUpdates"), 30)

    async def terminate(self, places: dict[int, Process], place: int) -> None:
        """SIGTERM; it must leave with 0 and without a complaint."""
        process = places.pop(place)
        code = await process.terminate(timeout=60)
        self.ended.append(process.output)
        assert code == 0, process.output
        complaints = [line for line in process.output.splitlines() if any(c in line for c in COMPLAINTS)]
        assert not complaints, process.output

    async def kill(self, places: dict[int, Process], place: int) -> None:
        process = places.pop(place)
        await process.kill()
        self.ended.append(process.output)

    async def close(self) -> None:
        for process in (*self.workers.values(), *self.gateways.values()):
            self.ended.append(process.output)
            await process.close()
        for pid in self.ours():
            os.kill(pid, signal.SIGKILL)

    def _is_ours(self, process: psutil.Process) -> bool:
        """A bridge, or a server of its mcp.json: both name the folder."""
        if self.redis.process is not None and process.pid == self.redis.process.pid:
            return False
        try:
            words = process.cmdline()
            return (
                any(str(self.folder) in word for word in words) and process.status() != psutil.STATUS_ZOMBIE
            )
        except psutil.Error:
            return False

    def ours(self) -> list[int]:
        """The processes that run."""
        return [process.pid for process in psutil.process_iter() if self._is_ours(process)]

    def logs(self) -> str:
        return "\n".join(
            [*self.ended, *(p.output for p in (*self.workers.values(), *self.gateways.values()))]
        )

    # -- what is asked ---------------------------------------------------------------------------------

    def say(self, chat: int, words: str) -> None:
        self.telegram.say(chat, words if chat > 0 else f"@TheBot {words}")

    def tool_runs(self) -> Counter[str]:
        return Counter(self.runs.read_text().split() if self.runs.exists() else ())

    @asynccontextmanager
    async def store(self) -> AsyncIterator[RedisStore]:
        store = RedisStore(self.redis.url)
        await store.open()
        try:
            yield store
        finally:
            await store.close()


def session_of(chat: int) -> str:
    return session_key(Address("telegram", str(chat), "direct" if chat > 0 else "group"))


def name_of(process: Process) -> str:
    found = re.search(r"is running as (\S+)\.", process.output)
    assert found, process.output
    return found.group(1)


async def until(look: Callable[[], object], timeout: float, pause: float = 0.05) -> None:
    """Wait for something that nobody tells of."""
    end = time.monotonic() + timeout
    while not look():
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout:.0f} s")
        await asyncio.sleep(pause)


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    server = RedisServer(folder / "redis", "--appendonly", "yes", "--appendfsync", "always")
    await asyncio.to_thread(server.start)
    try:
        telegram = Telegram()
        async with telegram, ScriptedModel().running() as model, Front().running() as front:
            model._most_kept = 0
            made = Stage(folder, telegram, model, front, server)
            model.script = made.answer
            made.write()
            try:
                yield made
            finally:
                await made.close()
    finally:
        await asyncio.to_thread(server.stop)
