"""Stands where the bridge does: takes the messages of a WeChat channel and answers them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from aiohttp import web

from channels.base import Env, Inbound, NotSent, Outbound, OutFile, ReplyRef, Unknown
from channels.wechat.channel import WechatChannel
from channels.wechat.config import WechatConfig
from channels.wechat.texts import TEXTS
from tests.fakes.channel_env import MemoryState
from tests.fakes.wechat import FakeWechat, IdleLoop, settings_for

Answer = Callable[[Inbound], Awaitable[str | Outbound | None]]


def words(key: str, language: str = "", /, **values: object) -> str:
    return TEXTS[key][1 if language.startswith("zh") else 0].format(**values)


async def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait, in the loop's time, until `condition()` is true."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


class Opener:
    """For `paced` tests: `await opened(service=True, mode="safe", settings={...})` gives (fake, house)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.stack = AsyncExitStack()

    async def __call__(
        self, *, settings: dict[str, Any] | None = None, **fake_settings: Any
    ) -> tuple[FakeWechat, House]:
        fake = await self.stack.enter_async_context(FakeWechat(**fake_settings))
        house = await self.stack.enter_async_context(House(self._folder, fake, **(settings or {})))
        if fake.service and house.settings.get("mode", "auto") != "passive":
            await until(lambda: "rights" in house.state.values)
        return fake, house


def paced(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in an `IdleLoop`; what its `opened` opened is closed at the end."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        async def whole() -> None:
            opened = fixtures.get("opened")
            if not isinstance(opened, Opener):
                await test(**fixtures)
                return
            async with opened.stack:
                await test(**fixtures)

        with asyncio.Runner(loop_factory=IdleLoop) as runner:
            runner.run(whole())

    return run


class House:
    """One process at a time: `open`, then `close` or `restart`. `answer` is what a run would say."""

    def __init__(self, folder: Path, fake: FakeWechat, **settings: Any) -> None:
        self.folder, self.fake, self.settings = folder, fake, settings
        self.state = MemoryState()
        self.got: list[Inbound] = []
        self.answer: Answer = self._echo
        self.refuse: Callable[[Inbound], bool] = lambda _: False
        self.public_url = ""
        self.shared = False
        self.channel = self._make()
        self.tasks: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner | None = None

    def _make(self) -> WechatChannel:
        config = WechatConfig(**settings_for(self.fake, **self.settings))
        env = Env(
            self.state, words, self.folder, self.fake.now, public_url=self.public_url, shared=self.shared
        )
        return WechatChannel("wx", config, env)

    async def open(self) -> WechatChannel:
        self.channel = self._make()
        app = web.Application()
        app.router.add_routes(self.channel.routes())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=1024).start()
        self.fake.callback = f"http://127.0.0.1:{self._runner.addresses[0][1]}{self.channel.path}"
        await self.channel.start(self.receive)
        return self.channel

    async def close(self) -> None:
        await self.channel.pause()
        for task in self.tasks:
            task.cancel()
        await self.channel.stop()
        if self._runner is not None:
            await self._runner.cleanup()

    async def crash(self) -> None:
        """The process is gone: nothing is tidied up, connections break."""
        for task in (*self.tasks, self.channel._upkeep):
            if task is not None:
                task.cancel()
        assert self._runner is not None
        for connection in self._runner.server.connections if self._runner.server else ():
            if connection.transport is not None:
                connection.transport.abort()
        await self._runner.cleanup()

    async def __aenter__(self) -> House:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- the bridge's part --------------------------------------------------------------------------------

    async def receive(self, inbound: Inbound) -> None:
        if self.refuse(inbound):
            raise RuntimeError("the store is full")
        if any(known.id == inbound.id for known in self.got):
            return
        self.got.append(inbound)
        task = asyncio.create_task(self._run(inbound))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _echo(self, inbound: Inbound) -> str:
        return f"answer to {inbound.text}"

    async def _run(self, inbound: Inbound) -> None:
        said = await self.answer(inbound)
        ref = self.ref(inbound)
        if said is not None:
            await self.show(ref, said)
        await self.channel.end(ref)

    def ref(self, inbound: Inbound) -> ReplyRef:
        return ReplyRef(f"r-{inbound.id}", inbound.address, inbound.id, "zh", inbound.sender.id)

    async def show(self, ref: ReplyRef, said: str | Outbound, *files: OutFile) -> None:
        """Post every chunk; what is not taken is tried again, what may have been taken is not."""
        outbound = Outbound(said, files) if isinstance(said, str) else said
        for n, chunk in enumerate(self.channel.render(outbound)):
            while True:
                try:
                    await self.channel.post(ref, n, chunk, final=True)
                except NotSent:
                    await asyncio.sleep(0.02)
                    continue
                except Unknown:
                    pass
                break

    def after(self, seconds: float) -> Answer:
        """An answer that takes so long on the platform's clock."""

        async def answer(inbound: Inbound) -> str:
            await asyncio.sleep(seconds)
            return f"answer to {inbound.text}"

        return answer
