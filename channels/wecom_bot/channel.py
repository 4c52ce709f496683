"""The channel of a WeCom AI bot: receives over a long connection or a callback URL, streams its replies."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

import aiohttp
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
    NotSent,
    Outbound,
    OutFile,
    Press,
    Receive,
    ReplyRef,
)
from channels.wechat.crypto import Envelope, key_fault
from channels.wecom_bot import api, cards, media
from channels.wecom_bot.api import BotError, Data
from channels.wecom_bot.board import Board
from channels.wecom_bot.check import Check
from channels.wecom_bot.config import MAX_PICTURES, SETUP, Times, WecomBotConfig
from channels.wecom_bot.exchanges import Exchanges, Kept
from channels.wecom_bot.inbound import Mentions, pressed, read_message, where
from channels.wecom_bot.lease import Lease
from channels.wecom_bot.polled import Polled
from channels.wecom_bot.pushed import Pushed
from channels.wecom_bot.socket import Connection
from channels.wecom_bot.streams import MAX_CHUNK, split
from channels.wecom_bot.texts import TEXTS
from channels.wecom_bot.webhook import Callback

log = logging.getLogger("causeway.wecom_bot")

_MOST_SEEN = 2000
#: Seconds for which gateways tell each other that an event was handled.
_KNOWN = 600.0


class WecomBotChannel(Channel):
    type = "wecom_bot"
    Config = WecomBotConfig
    limits = Limits(max_text=MAX_CHUNK, unit="bytes", streams=True, update_interval=1.0, typing_interval=4.0)
    buttons = True
    setup = SETUP
    texts = TEXTS
    times: ClassVar[Times] = Times()
    config: WecomBotConfig

    def __init__(self, name: str, config: WecomBotConfig, env: Env) -> None:
        super().__init__(name, config, env)
        self._receive: Receive | None = None
        self._http: aiohttp.ClientSession | None = None
        self._connection: Connection | None = None
        self._callback: Callback | None = None
        self._side: Pushed | Polled | None = None
        life = self.times.reply_life
        self._exchanges = Exchanges(env.state, env.clock, life, shared=env.shared)
        self._cards = cards.Cards(env.state)
        self._mentions = Mentions(config.bot_name)
        self._seen: OrderedDict[str, None] = OrderedDict()  # events that were handled
        self._arriving = asyncio.Lock()

    # -- life --------------------------------------------------------------------------------------------

    async def start(self, receive: Receive) -> None:
        self._settings()
        self._receive = receive
        await self._learn()
        self._http = aiohttp.ClientSession(trust_env=True)
        if self.config.mode == "socket":
            secret = self.config.secret.get_secret_value().strip()
            self._connection = Connection(
                self.config.ws_url,
                self.config.bot_id,
                secret,
                Lease(self.env.state, self.times.lease),
                self._from_socket,
                self._socket_event,
                self._learn,
                self.times,
            )
            self._side = Pushed(self._connection, self._exchanges, self.env.text, self.env.clock, self.times)
            self._connection.start()
            return
        polled = Polled(
            self._http,
            self._exchanges,
            Kept(self.env.state),
            Board(self.env.state, self._exchanges, self.env.clock, shared=self.env.shared),
            self.env.text,
            self.env.clock,
            self.times,
        )
        envelope = await asyncio.to_thread(Envelope, *self._envelope(), clock=self.env.clock)
        self._side = polled
        self._callback = Callback(envelope, self._posted_message, self._posted_event, self._posted_poll)

    async def _learn(self) -> None:
        """What an earlier process, or another gateway, noted."""
        await self._exchanges.load()
        await self._cards.load()

    def _settings(self) -> None:
        where = f"channels.{self.name}"
        wanted = ("bot_id", "secret") if self.config.mode == "socket" else ("token", "aes_key")
        for name in wanted:
            value = getattr(self.config, name)
            if not (value if isinstance(value, str) else value.get_secret_value()).strip():
                raise ChannelError(
                    f"{where}.{name} is missing; mode {self.config.mode} needs {' and '.join(wanted)}: take "
                    "them from the bot's page in the admin console (管理工具 > 智能机器人 > API 模式)"
                )
        if self.config.mode == "socket" and not self.config.ws_url.startswith(("wss://", "ws://")):
            raise ChannelError(f"{where}.ws_url must begin with wss:// (or ws:// for a server of your own)")
        if self.config.mode == "webhook":
            for key in self._envelope()[1]:
                if fault := key_fault(key):
                    raise ChannelError(f"{where}.aes_key: {fault}; copy the EncodingAESKey again")

    def _envelope(self) -> tuple[str, tuple[str, ...], str]:
        """(token, keys, receive id); the receive id of an AI bot is empty (101033)."""
        keys = (self.config.aes_key, self.config.previous_aes_key)
        known = tuple(key.get_secret_value().strip() for key in keys if key.get_secret_value().strip())
        return self.config.token.get_secret_value().strip(), known, ""

    async def stop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.stop()
        if isinstance(self._side, Polled):
            await self._side.stop()
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    # `pause` has nothing to do: WeCom delivers each message once, so what comes while the bridge drains is
    # put into the inbox like any other and answered after the next start.

    @property
    def holds(self) -> bool:
        return self._connection is None or self._connection.held

    def health(self) -> Health:
        if self._connection is not None:
            return self._connection.health
        if self._callback is None:
            return Health(False, "not started", "")
        return Health(True)

    async def check(self, language: str = "") -> list[Finding]:
        return await Check(self.name, self.config, self.env, language).findings()

    # -- receiving ---------------------------------------------------------------------------------------

    def _read(self, body: Data) -> Inbound | None:
        try:
            return read_message(
                body,
                self.name,
                self.env.clock(),
                self._mentions.strip,
                lambda kind: self.env.text(f"wecom_bot.quoted_{kind}"),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            # One odd message must not stop those behind it for ever.
            log.exception("WeCom AI bot: a message could not be read; it is skipped")
            return None

    async def _take(self, inbound: Inbound, *, req_id: str = "", url: str = "") -> None:
        """Write down how to answer, then let the bridge store it: in the order of arrival."""
        if self._receive is None:
            raise NotSent("the channel has not been started")
        async with self._arriving:
            await self._exchanges.open(inbound.id, inbound.address.chat, req_id=req_id, url=url)
            await self._receive(inbound)

    async def _from_socket(self, frame: Data) -> None:
        inbound = self._read(frame.get("body") or {})
        if inbound is not None:
            await self._take(inbound, req_id=str((frame.get("headers") or {}).get("req_id") or ""))

    async def _posted_message(self, body: Data) -> Data | None:
        inbound, side = self._read(body), self._side
        if inbound is None or not isinstance(side, Polled):
            return None
        await self._take(inbound, url=str(body.get("response_url") or ""))
        exchange = self._exchanges.get(inbound.id)
        if exchange is None:
            return None
        side.flush(exchange)
        return await side.packet(exchange.id)

    async def _posted_poll(self, body: Data) -> Data | None:
        side = self._side
        return (
            await side.poll(str((body.get("stream") or {}).get("id"))) if isinstance(side, Polled) else None
        )

    # -- events ------------------------------------------------------------------------------------------

    async def _first_time(self, body: Data) -> bool:
        id = str(body.get("msgid") or "")
        if not id or id in self._seen:
            return not id
        if self.env.shared and not await self.env.state.claim(f"event:{id}", secrets.token_hex(8), _KNOWN):
            return False
        self._seen[id] = None
        if len(self._seen) > _MOST_SEEN:
            self._seen.popitem(last=False)
        return True

    async def _socket_event(self, frame: Data) -> None:
        body = frame.get("body") or {}
        req_id = str((frame.get("headers") or {}).get("req_id") or "")
        connection = self._connection
        if connection is None or not await self._first_time(body):
            return
        kind = (body.get("event") or {}).get("eventtype")
        answer = await self._answer_event(str(kind), body)
        if answer is None:
            return
        cmd = api.WELCOME if kind == "enter_chat" else api.UPDATE_CARD
        try:
            await connection.call(cmd, answer, req_id)
        except BotError as error:
            log.info("WeCom AI bot: an event could not be answered: %s", error)

    async def _posted_event(self, body: Data) -> Data | None:
        if not await self._first_time(body):
            return None
        place, url = where(body, self.name), str(body.get("response_url") or "")
        if place is not None and url:
            await self._exchanges.open(f"event {body.get('msgid')}", place.address.chat, url=url)
        return await self._answer_event(str((body.get("event") or {}).get("eventtype")), body)

    async def _answer_event(self, kind: str, body: Data) -> Data | None:
        if kind == "enter_chat":
            words = self.config.welcome
            words = self.env.text("wecom_bot.welcome") if words is None else words.strip()
            return {"msgtype": "text", "text": {"content": words}} if words else None
        return await self._pressed(body) if kind == "template_card_event" else None

    async def _pressed(self, body: Data) -> Data | None:
        """Somebody pressed a button: what the card is to show now. It must be said within five seconds."""
        if self.env.shared:
            await self._cards.sync()  # another gateway may have asked
        place, (task, choice) = where(body, self.name), pressed(body)
        card = self._cards.get(task)
        if place is None or card is None or choice == cards.DONE:
            return None
        card.pressing += 1
        words = ""
        try:
            async with asyncio.timeout(self.times.press):
                words = await self.env.press(Press(place.address, place.sender, choice, task))
            # Who may decide gets words, too; the outcome itself follows from whoever waits for it.
            async with asyncio.timeout(self.times.settle):
                await card.settled.wait()
        except TimeoutError:
            log.debug("WeCom AI bot: a pressed button has decided nothing yet")
        finally:
            card.pressing -= 1
        label = card.label(choice)
        if card.settled.is_set():
            card.marked = True
            await self._cards.drop(task)
            return cards.update(cards.decided(card, card.outcome, label))
        if words:
            only = place.sender.id if place.group else ""
            return cards.update(cards.asked(card, words), only)
        card.marked = True
        outcome = self.env.text("wecom_bot.received", card.language, label=label)
        return cards.update(cards.decided(card, outcome, label))

    # -- showing -----------------------------------------------------------------------------------------

    def render(self, outbound: Outbound) -> list[Chunk]:
        text = outbound.text.encode("utf-8", "replace").decode()
        if self.config.mode == "socket":
            chunks = [Chunk(piece) for piece in split(text) if piece.strip()]
            for file in outbound.files:
                chunks.append(Chunk("", {}, file))
                chunks += [Chunk(piece) for piece in split(file.caption) if piece.strip()]
            return chunks
        pictures, notes = self._sorted(outbound.files)
        words = "\n\n".join(part for part in (text, *notes) if part.strip())
        pieces = [piece for piece in split(words) if piece.strip()]
        if not pictures:
            return [Chunk(piece) for piece in pieces]
        # Pictures can only go with the last packet of the stream, and the stream is the first chunk.
        first = Chunk(pieces[0] if pieces else "", {"files": [asdict(file) for file in pictures]})
        return [first, *(Chunk(piece) for piece in pieces[1:])]

    def _sorted(self, files: Sequence[OutFile]) -> tuple[list[OutFile], list[str]]:
        """(pictures, what to say of the rest and of captions)."""
        pictures = [file for file in files if media.is_picture(file)][:MAX_PICTURES]
        notes = []
        for file in files:
            if file.caption:
                notes.append(file.caption.encode("utf-8", "replace").decode())
            if file not in pictures:
                notes.append(self.env.text("wecom_bot.no_files", name=file.name))
        return pictures, notes

    def _shows(self) -> Pushed | Polled:
        if self._side is None:
            raise NotSent(f"channel {self.name} is not running")
        return self._side

    async def post(self, ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        return await self._shows().post(ref, n, chunk, final=final)

    async def edit(self, ref: ReplyRef, n: int, message_id: str, chunk: Chunk, *, final: bool) -> None:
        await self._shows().edit(ref, n, message_id, chunk, final=final)

    async def end(self, ref: ReplyRef) -> None:
        if self._side is not None:
            await self._side.end(ref)

    async def typing(self, ref: ReplyRef) -> None:
        if isinstance(self._side, Pushed):
            await self._side.typing(ref)

    async def ask(self, ref: ReplyRef, question: str, choices: Sequence[Choice]) -> str:
        if not choices or len(choices) > cards.MOST_BUTTONS:
            return await super().ask(ref, question, choices)
        title = self.env.text("wecom_bot.question", ref.language)
        card = cards.new_card(title, question, choices, ref.language)
        await self._cards.add(card)
        try:
            await self._shows().ask(ref, question, card, choices)
        except Exception:
            # Nobody can have seen its buttons, or the bridge will not know this card: it is forgotten either
            # way.
            await self._cards.drop(card.task)
            raise
        return card.task

    async def settle(self, ref: ReplyRef, message_id: str, outcome: str) -> None:
        """A pressed card shows it in its answer; else a card can no longer be changed, so it is said."""
        if self._connection is not None:
            self._connection.require()  # only where presses arrive the card is known
        if self.env.shared:
            await self._cards.sync()
        card = self._cards.get(message_id)
        if card is None or card.settled.is_set():
            return
        card.outcome = outcome
        card.settled.set()
        if card.pressing:
            return
        await self._cards.drop(message_id)
        if not card.marked:
            await self._shows().say(ref, outcome)

    # -- attachments -------------------------------------------------------------------------------------

    async def fetch(self, attachment: Attachment, target: Path, max_bytes: int) -> None:
        if self._http is None:
            raise NotSent(f"channel {self.name} is not running")
        await media.fetch(self._http, attachment, self._envelope()[1], target, max_bytes)

    # -- HTTP --------------------------------------------------------------------------------------------

    def routes(self) -> list[web.RouteDef]:
        if self.config.mode != "webhook":
            return []
        path = f"/channels/{self.name}/callback"
        return [web.get(path, self._handle("verify")), web.post(path, self._handle("receive"))]

    def _handle(self, what: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            if self._callback is None:
                return web.Response(status=503, text="the channel is not running yet\n")
            answer: web.Response = await getattr(self._callback, what)(request)
            return answer

        return handle
