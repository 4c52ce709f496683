"""The Telegram channel: its life, and what comes in. What goes out is `Sending`'s."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import ClassVar

from aiohttp import web

from channels.base import (
    Attachment,
    Channel,
    ChannelError,
    Choice,
    Chunk,
    Env,
    Finding,
    Health,
    Inbound,
    Limits,
    MenuEntry,
    NotSent,
    Outbound,
    Receive,
    ReplyRef,
)
from channels.telegram.api import Api
from channels.telegram.callbacks import read_press, take_press
from channels.telegram.check import SETUP, check
from channels.telegram.chunks import MAX_TEXT
from channels.telegram.config import Account, TelegramConfig, account, webhook_secret
from channels.telegram.fetching import fetch
from channels.telegram.inbound import Me, Wanted, is_forum, read_move, read_update
from channels.telegram.lease import Lease
from channels.telegram.polling import Data, Poller
from channels.telegram.sending import Sending
from channels.telegram.texts import TEXTS
from channels.telegram.webhook import Webhook, path

__all__ = ["TelegramChannel", "TelegramConfig"]

log = logging.getLogger("causeway.telegram")

#: What reading an update that is not as documented can raise.
_READING_FAULTS = (KeyError, TypeError, ValueError, AttributeError, IndexError)


class TelegramChannel(Channel):
    type = "telegram"
    Config = TelegramConfig
    limits = Limits(max_text=MAX_TEXT, unit="utf16", streams=True, update_interval=1.0, typing_interval=4.0)
    buttons = True
    setup = SETUP
    texts = TEXTS
    config: TelegramConfig
    #: (server, token, instance) of what runs in this process: two instances must not share a bot, since each
    #: message reaches only one of them. It is the one fact that no instance can know by itself.
    _running: ClassVar[list[tuple[str, str, str]]] = []

    def __init__(self, name: str, config: TelegramConfig, env: Env) -> None:
        super().__init__(name, config, env)
        self._api: Api | None = None
        self._source: Poller | Webhook | None = None
        self._task: asyncio.Task[None] | None = None
        self._receive: Receive | None = None
        self._me: Me | None = None
        self._mark: tuple[str, str, str] | None = None
        self._wanted = Wanted(config.edits == "correct", config.channel_posts, config.business)
        self._sending = Sending(name, config, env)

    # -- life --------------------------------------------------------------------------------------------

    async def start(self, receive: Receive) -> None:
        mine = account(self.name, self.config)
        secret = webhook_secret(self.name, self.config) if self.config.mode == "webhook" else ""
        self._receive = receive
        mark = self._refuse_twin(mine)
        self._api = self._sending.api = await Api.connect(mine.token, mine.root, mine.proxy)
        self._mark = mark
        self._running.append(mark)
        self._source = self._webhook(self._api, secret) if secret else self._poller(self._api)
        self._task = asyncio.create_task(self._source.run(), name=f"receive {self.name}")

    def _refuse_twin(self, mine: Account) -> tuple[str, str, str]:
        for root, token, name in self._running:
            if (root, token) == (mine.root, mine.token) and name != self.name:
                raise ChannelError(
                    f"channels.{self.name}.token is the token of channels.{name} as well; "
                    "make a bot of its own with @BotFather, or remove one of the two"
                )
        return mine.root, mine.token, self.name

    def _poller(self, api: Api) -> Poller:
        lease = Lease(self.env.state, self.env.folder)
        return Poller(
            self.name,
            api,
            self.env.state,
            self.env.clock,
            lease,
            self._wanted.updates(),
            self._prepare,
            self._handle,
        )

    def _webhook(self, api: Api, secret: str) -> Webhook:
        return Webhook(
            self.name,
            api,
            self.env.state,
            self.env.clock,
            self.env.public_url,
            secret,
            self._wanted.updates(),
            self._prepare,
            self._handle,
        )

    async def _prepare(self) -> None:
        """Learn who the bot is. Called by the source until it succeeds."""
        me = await self._client().call("getMe")
        self._me = Me(int(me["id"]), str(me.get("username", "")), bool(me.get("has_topics_enabled")))
        log.info("Telegram: signed in as @%s", self._me.username)

    async def pause(self) -> None:
        if isinstance(self._source, Webhook):
            self._source.close()
        task, self._task = self._task, None
        if task:
            task.cancel()
            await asyncio.wait({task})

    async def stop(self) -> None:
        await self.pause()
        api, self._api = self._api, None
        self._sending.api = None
        if self._mark is not None:
            self._running.remove(self._mark)
            self._mark = None
        if api:
            await api.close()

    def health(self) -> Health:
        if self._source is None:
            return Health(False, "not started", "")
        if self._task is not None and self._task.done():
            return Health(False, "receiving ended unexpectedly", "restart the bridge and report the log")
        return self._source.health

    def _client(self) -> Api:
        if self._api is None:
            raise NotSent(f"channel {self.name} is not running")
        return self._api

    # -- receiving ---------------------------------------------------------------------------------------

    def routes(self) -> list[web.RouteDef]:
        return [web.post(path(self.name), self._deliver)] if self.config.mode == "webhook" else []

    async def _deliver(self, request: web.Request) -> web.Response:
        if not isinstance(self._source, Webhook):
            return web.Response(status=503)
        return await self._source.take(request)

    async def _handle(self, update: Data) -> None:
        """Take one update in; when it returns, the update is safe. Raises what the bridge raises."""
        if self._me is None or self._receive is None:
            raise RuntimeError("an update came before the channel was prepared")
        try:
            take = self._read(update, self._me, self._receive)
        except _READING_FAULTS:
            # One odd update must not stop those behind it for ever.
            log.exception("update %s could not be read; it is skipped", update.get("update_id"))
            return
        if take is not None:
            await take()

    def _read(self, update: Data, me: Me, receive: Receive) -> Callable[[], Awaitable[None]] | None:
        """What is to be done for an update; None: nothing. Raises for one that is not as documented."""
        query = update.get("callback_query")
        if query:
            press = read_press(query, self.name, me)
            return lambda: take_press(str(query["id"]), press, self._client(), self.env.press)
        moved = read_move(update)
        if moved:
            return lambda: self._sending.note_moved(*moved)
        _log_standing(update, self.name)
        inbound = read_update(update, self.name, me, self._wanted)
        if inbound is None:
            return None
        return lambda: self._hand_on(inbound, receive, forum=is_forum(update))

    async def _hand_on(self, inbound: Inbound, receive: Receive, *, forum: bool) -> None:
        if forum:
            await self._sending.note_forum(inbound.address.chat)
        await receive(inbound)

    async def fetch(self, attachment: Attachment, target: Path, max_bytes: int) -> None:
        await fetch(self._client(), attachment, target, max_bytes, local=self.config.local_server)

    # -- showing (all of it is `Sending`'s) ---------------------------------------------------------------

    def render(self, outbound: Outbound) -> list[Chunk]:
        return self._sending.render(outbound)

    async def post(self, ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        return await self._sending.post(ref, n, chunk, final=final)

    async def edit(self, ref: ReplyRef, n: int, message_id: str, chunk: Chunk, *, final: bool) -> None:
        await self._sending.edit(ref, n, message_id, chunk, final=final)

    async def end(self, ref: ReplyRef) -> None:
        await self._sending.end(ref)

    async def typing(self, ref: ReplyRef) -> None:
        await self._sending.typing(ref)

    async def acknowledge(self, ref: ReplyRef) -> None:
        await self._sending.acknowledge(ref)

    async def ask(self, ref: ReplyRef, question: str, choices: Sequence[Choice]) -> str:
        return await self._sending.ask(ref, question, choices)

    async def settle(self, ref: ReplyRef, message_id: str, outcome: str) -> None:
        await self._sending.settle(ref, message_id, outcome)

    async def menu(self, entries: Sequence[MenuEntry]) -> None:
        await self._sending.menu(entries)

    async def check(self, language: str = "") -> list[Finding]:
        return await check(self.name, self.config, self.env, language)


def _log_standing(update: Data, name: str) -> None:
    """The bot was added, removed, connected: only said in the log."""
    member, connection = update.get("my_chat_member"), update.get("business_connection")
    if member:
        log.info(
            "%s: in chat %s the bot is %s now",
            name,
            member["chat"]["id"],
            member["new_chat_member"]["status"],
        )
    elif connection:
        state = "connected" if connection.get("is_enabled") else "disconnected"
        log.info("%s: business account %s %s", name, connection["user"]["id"], state)
