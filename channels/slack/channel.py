"""The Slack channel: `receiving` brings messages in, `sending` shows replies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from aiohttp import web

from channels.base import (
    Activity,
    Attachment,
    Channel,
    Choice,
    Chunk,
    ContextMessage,
    Env,
    Finding,
    Health,
    Inbound,
    NotSent,
    Outbound,
    Receive,
    ReplyRef,
)
from channels.slack.api import Api
from channels.slack.blocks import render
from channels.slack.check import SETUP, check
from channels.slack.config import SlackConfig, secret
from channels.slack.earlier import earlier
from channels.slack.events import Events
from channels.slack.files import fetch
from channels.slack.inbound import Identity
from channels.slack.people import People
from channels.slack.receiving import Receiver
from channels.slack.sending import LIMITS, Sender
from channels.slack.texts import TEXTS


class SlackChannel(Channel):
    type = "slack"
    Config = SlackConfig
    limits = LIMITS
    buttons = True
    setup = SETUP
    texts = TEXTS
    config: SlackConfig

    def __init__(self, name: str, config: SlackConfig, env: Env) -> None:
        super().__init__(name, config, env)
        self._closing = AsyncExitStack()
        self._people: People | None = None
        self._sender: Sender | None = None
        self._events: Events | None = None
        self._receiver: Receiver | None = None

    # -- life --------------------------------------------------------------------------------------------

    async def start(self, receive: Receive) -> None:
        name, config, env, me = self.name, self.config, self.env, Identity()
        config.require(name)
        try:
            api = await Api.connect(secret(config.bot_token), config.root)
            self._closing.push_async_callback(api.close)
            people = self._people = People(api, env.clock)
            self._closing.push_async_callback(people.close)
            sender = self._sender = Sender(api, config, env, name, me)
            sender.receive = receive
            self._closing.push_async_callback(sender.close)
            events = self._events = await Events.connect(api, env, me, secret(config.signing_secret), name)
            self._receiver = Receiver(sender, people, events, receive)
            self._closing.push_async_callback(self._receiver.stop)
        except BaseException:
            await self.stop()
            raise

    async def pause(self) -> None:
        if self._receiver is not None:
            await self._receiver.pause()

    async def stop(self) -> None:
        await self._closing.aclose()
        self._sender = None

    def health(self) -> Health:
        if self._receiver is None or self._sender is None:
            return Health(False, "not started", "")
        health = self._receiver.health()
        return (self._sender.health() or health) if health.ok else health

    def routes(self) -> list[web.RouteDef]:
        if self.config.mode != "http":
            return []
        return [web.post(f"/channels/{self.name}/events", self._serve)]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if self._events is None:
            return web.Response(status=503)
        return await self._events.serve(request)

    async def check(self, language: str = "") -> list[Finding]:
        return await check(self.name, self.config, self.env, language)

    # -- receiving ---------------------------------------------------------------------------------------

    async def fetch(self, attachment: Attachment, target: Path, max_bytes: int) -> None:
        await fetch(self._out().api, attachment, target, max_bytes)

    async def earlier(self, inbound: Inbound, limit: int) -> tuple[ContextMessage, ...]:
        if self._people is None:
            return ()
        sender = self._out()
        return await earlier(sender.api, self._people, sender.me, inbound, limit)

    # -- sending -----------------------------------------------------------------------------------------

    def _out(self) -> Sender:
        if self._sender is None:
            raise NotSent(f"channel {self.name} is not running")
        return self._sender

    def render(self, outbound: Outbound) -> list[Chunk]:
        return render(outbound)

    async def post(self, ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        sender = self._out()
        if self._receiver is not None and not ref.private:
            # The bot takes part in this thread from now on; noted first, since an answer may come at once.
            await self._receiver.note("joined", ref.address.chat, ref.address.thread)
        return await sender.post(ref, n, chunk, final=final)

    async def edit(self, ref: ReplyRef, n: int, message_id: str, chunk: Chunk, *, final: bool) -> None:
        await self._out().edit(ref, n, message_id, chunk, final=final)

    async def end(self, ref: ReplyRef) -> None:
        await self._out().end(ref)

    def activity(self, ref: ReplyRef, activity: Activity) -> None:
        self._out().activity(ref, activity)

    async def typing(self, ref: ReplyRef) -> None:
        await self._out().typing(ref)

    async def acknowledge(self, ref: ReplyRef) -> None:
        await self._out().acknowledge(ref)

    async def ask(self, ref: ReplyRef, question: str, choices: Sequence[Choice]) -> str:
        return await self._out().ask(ref, question, choices)

    async def settle(self, ref: ReplyRef, message_id: str, outcome: str) -> None:
        await self._out().settle(ref, message_id, outcome)
