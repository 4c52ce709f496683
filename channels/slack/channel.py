"""The Slack channel: `receiving` brings messages in, `sending` shows replies."""

from __future__ import annotations

from collections.abc import Sequence
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
    MenuEntry,
    NotSent,
    Outbound,
    Receive,
    ReplyRef,
)
from channels.slack.api import Api
from channels.slack.check import SETUP, check
from channels.slack.config import SlackConfig, secret
from channels.slack.earlier import earlier
from channels.slack.files_in import fetch
from channels.slack.inbound import Identity
from channels.slack.people import People
from channels.slack.receiving import Receiver
from channels.slack.sending import LIMITS, Sender, render
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
        self._me = Identity()
        self._api: Api | None = None
        self._people: People | None = None
        self._receiver: Receiver | None = None
        self._sender: Sender | None = None

    # -- life --------------------------------------------------------------------------------------------

    async def start(self, receive: Receive) -> None:
        self.config.require(self.name)
        try:
            api = self._api = await Api.connect(secret(self.config.bot_token), self.config.root)
            people = self._people = People(api, self.env.clock)
            self._sender = Sender(api, self.config, self.env, self.name, self._me)
            self._receiver = Receiver(self.name, self.config, self.env, api, self._me, people)
            await self._receiver.start(receive, self._sender.cards(receive, people))
        except BaseException:
            await self.stop()
            raise

    async def pause(self) -> None:
        if self._receiver is not None:
            await self._receiver.pause()

    async def stop(self) -> None:
        if self._receiver is not None:
            await self._receiver.stop()
        if self._sender is not None:
            await self._sender.close()
        if self._people is not None:
            await self._people.close()
        api, self._api = self._api, None
        if api is not None:
            await api.close()

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
        if self._receiver is None:
            return web.Response(status=503)
        return await self._receiver.serve(request)

    async def check(self, language: str = "") -> list[Finding]:
        return await check(self.name, self.config, self.env, language)

    # -- receiving ---------------------------------------------------------------------------------------

    async def fetch(self, attachment: Attachment, target: Path, max_bytes: int) -> None:
        await fetch(self._running(), attachment, target, max_bytes)

    async def earlier(self, inbound: Inbound, limit: int) -> tuple[ContextMessage, ...]:
        if self._people is None:
            return ()
        return await earlier(self._running(), self._people, self._me, inbound, limit)

    def _running(self) -> Api:
        if self._api is None:
            raise NotSent(f"channel {self.name} is not running")
        return self._api

    # -- sending -----------------------------------------------------------------------------------------

    def _out(self) -> Sender:
        if self._sender is None or self._api is None:
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

    async def menu(self, entries: Sequence[MenuEntry]) -> None:
        await self._out().menu(entries)
