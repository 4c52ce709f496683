"""What the tests of the Slack channel share: a bridge that stores messages, and its channels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from channels.base import Inbound, ReplyRef
from channels.slack.channel import SlackChannel
from channels.slack.config import SlackConfig
from channels.slack.socket import Timing
from tests.fakes.channel_env import MemoryState, memory_env
from tests.fakes.slack import FakeSlack

#: The channel's patience, shortened.
QUICK = Timing(
    ping=0.05,
    pong=0.8,
    silence=1.2,
    hello=2.0,
    drain=1.0,
    first_pause=0.02,
    longest_pause=0.1,
    refused_pause=0.1,
)


class House:
    """Stands where the bridge does: keeps what it is given, once for each (chat, id), as the inbox does."""

    def __init__(self, folder: Path, fake: FakeSlack) -> None:
        self.folder, self.fake = folder, fake
        self.state = MemoryState()
        self.deliveries: list[Inbound] = []
        self.got: list[Inbound] = []
        self.refuse: Callable[[Inbound], bool] = lambda _: False
        self.channels: list[SlackChannel] = []
        self.shared = False

    async def receive(self, inbound: Inbound) -> None:
        self.deliveries.append(inbound)
        if self.refuse(inbound):
            raise RuntimeError("the store is full")
        if (inbound.address.chat, inbound.id) not in {(i.address.chat, i.id) for i in self.got}:
            self.got.append(inbound)

    def make(self, **settings: Any) -> SlackChannel:
        fake = self.fake
        secrets = {
            "bot_token": fake.bot_token,
            "app_token": fake.app_token,
            "signing_secret": fake.signing_secret,
        }
        config = SlackConfig.model_validate({**secrets, "base_url": fake.url, **settings})
        env = memory_env(self.folder, self.state, shared=self.shared)
        channel = SlackChannel("slack", config, env)
        self.channels.append(channel)
        return channel

    async def open(self, **settings: Any) -> SlackChannel:
        """A started channel that is connected."""
        channel = self.make(**settings)
        await channel.start(self.receive)
        await self.fake.wait_for(lambda: channel.health().ok)
        return channel

    async def close(self) -> None:
        for channel in self.channels:
            await channel.stop()

    async def say(self, channel: SlackChannel, inbound: Inbound, text: str) -> str:
        """The bot answers a message."""
        from channels.base import Outbound

        ref = ReplyRef(f"r{inbound.id}", inbound.address, inbound.id, person=inbound.sender.id)
        chunk = channel.render(Outbound(text))[0]
        return await channel.post(ref, 0, chunk, final=True)

    @property
    def texts(self) -> list[str]:
        return [inbound.text for inbound in self.got]
