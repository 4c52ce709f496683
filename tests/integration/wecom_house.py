"""What the tests of the WeCom application share: a stand-in for the bridge, and ways to send."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from bridge.texts import language_of
from channels.base import Address, Inbound, Outbound, OutFile, Press, ReplyRef
from channels.wecom.channel import WecomChannel
from channels.wecom.config import WecomConfig
from channels.wecom.texts import TEXTS
from tests.fakes.channel_env import MemoryState, memory_env
from tests.fakes.wecom import Agent, FakeWecom, served


def text(key: str, language: str = "", /, **values: object) -> str:
    english, chinese = TEXTS[key]
    return (chinese if language_of(language) == "zh" else english).format(**values)


class Bridge:
    """Stands where the bridge does: takes messages in, makes channels that share the notes."""

    def __init__(self, folder: Path, fake: FakeWecom, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.fake = fake
        self.stack = stack
        self.state = MemoryState()
        self.got: list[Inbound] = []
        self.presses: list[Press] = []
        self.answer_to_press = ""
        self.refuse: Callable[[Inbound], bool] = lambda _: False
        self.public_url = ""
        self.shared = False

    async def receive(self, inbound: Inbound) -> None:
        if self.refuse(inbound):
            raise RuntimeError("the store is full")
        if inbound.id not in [known.id for known in self.got]:
            self.got.append(inbound)

    async def press(self, press: Press) -> str:
        self.presses.append(press)
        return self.answer_to_press

    async def open(
        self, name: str = "wecom", agent: Agent | None = None, timeout: float = 5.0, **settings: Any
    ) -> WecomChannel:
        config = WecomConfig.model_validate(self.fake.settings(agent, **settings))
        env = replace(
            memory_env(self.folder, self.state, text, shared=self.shared),
            press=self.press,
            public_url=self.public_url,
            clock=self.fake.clock,
        )
        channel = WecomChannel(name, config, env)
        await channel.start(self.receive)
        self.stack.push_async_callback(channel.stop)
        assert channel._api is not None
        channel._api._timeout = timeout
        self.fake.target = await self.stack.enter_async_context(served(channel))
        return channel


def ref(id: str = "r1", member: str = "ZhangSan") -> ReplyRef:
    return ReplyRef(id, Address("wecom", member), to="1", language="zh", person=member)


async def show(channel: WecomChannel, to: ReplyRef, words: str, *files: OutFile) -> list[str]:
    chunks = channel.render(Outbound(words, files))
    return [await channel.post(to, n, chunk, final=True) for n, chunk in enumerate(chunks)]
