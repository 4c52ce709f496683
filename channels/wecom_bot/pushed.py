"""Replies over the long connection: every packet of a stream is pushed by us.

All packets of a stream go with the req_id of the very message that is answered (two people may write in one
group at once). A stream's id follows from reply and chunk, so that a packet that is repeated, also after a
restart, shows nothing twice; what goes as a message of its own (`aibot_send_msg`) is not repeated when its
outcome is unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from channels.base import (
    Address,
    Choice,
    Chunk,
    Gone,
    Lost,
    NotSent,
    OutFile,
    ReplyRef,
    SendError,
    Translate,
    Unknown,
)
from channels.wecom_bot import api, media
from channels.wecom_bot.api import BotError, Data
from channels.wecom_bot.cards import MOST_TEXT, Card, asked
from channels.wecom_bot.config import Times
from channels.wecom_bot.exchanges import Exchange, Exchanges, Pace
from channels.wecom_bot.socket import Connection
from channels.wecom_bot.streams import Shown, closed, hand_over, rest, stream_id

log = logging.getLogger("causeway.wecom_bot")

_MOST_OPEN = 3000


@dataclass(slots=True)
class _Stream:
    """A stream that is being written. `shown`: the text that WeCom has acknowledged. `closing`: a last packet
    was sent and its answer did not come."""

    id: str
    key: str
    req_id: str
    started: float
    shown: str = ""
    closing: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def message_id(self) -> str:
        return f"s|{self.req_id}|{self.id}|{self.started:.0f}"


class Pushed:
    """Shows replies of one bot that is connected."""

    def __init__(
        self,
        connection: Connection,
        exchanges: Exchanges,
        text: Translate,
        clock: Callable[[], float],
        times: Times,
    ) -> None:
        self._connection = connection
        self._exchanges = exchanges
        self._text = text
        self._clock = clock
        self._times = times
        self._pace = Pace(clock)
        self._open: OrderedDict[str, dict[int, _Stream]] = OrderedDict()  # by reply, then chunk

    # -- text --------------------------------------------------------------------------------------------

    async def post(self, ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        exchange, key = self._exchanges.of(ref), f"{ref.id}/{n}"
        if chunk.file is not None:
            await self._file(ref, exchange, chunk.file)
            return "f"
        seen = exchange.shown.get(key)
        if seen is None and self._can_reply(exchange):
            stream = self._stream(ref, n, exchange)
            async with stream.lock:
                try:
                    await self._write(ref, exchange, stream, chunk.text, final=final)
                except Lost:
                    seen = exchange.shown[key]
                else:
                    return stream.message_id
        return await self._later(ref, chunk.text, seen or Shown(), final=final)

    async def edit(self, ref: ReplyRef, n: int, message_id: str, chunk: Chunk, *, final: bool) -> None:
        if not message_id.startswith("s|"):
            return  # a message of its own is whole when it is posted
        exchange, key = self._exchanges.of(ref), f"{ref.id}/{n}"
        stream = self._stream(ref, n, exchange, message_id)
        async with stream.lock:
            seen = exchange.shown.get(key)
            if seen is not None and seen.complete:
                if not stream.shown or stream.shown == chunk.text:
                    return
                exchange.shown[key] = Shown()
                await self._exchanges.save(exchange)
                raise Lost("the stream is closed with another text")
            if seen is not None:
                raise Lost("the stream has ended")
            age = self._clock() - stream.started
            if age >= (self._times.last_finish if final else self._times.hand_over):
                await self._hand_over(ref, exchange, stream)
                raise Lost("the stream is at the end of its life")
            await self._write(ref, exchange, stream, chunk.text, final=final)

    def _can_reply(self, exchange: Exchange) -> bool:
        return bool(exchange.req_id) and self._clock() - exchange.at < self._times.reply_life

    def _stream(self, ref: ReplyRef, n: int, exchange: Exchange, message_id: str = "") -> _Stream:
        streams = self._open.setdefault(ref.id, {})
        self._open.move_to_end(ref.id)
        while len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        if n not in streams:
            req_id, id, started = exchange.req_id, stream_id(ref.id, n), self._clock()
            if message_id:  # of an earlier process
                _, req_id, id, begun = message_id.split("|")
                started = float(begun)
            streams[n] = _Stream(id, f"{ref.id}/{n}", req_id, started)
        return streams[n]

    async def _write(
        self, ref: ReplyRef, exchange: Exchange, stream: _Stream, text: str, *, final: bool
    ) -> None:
        """One packet. Raises Lost, with how much was shown written down, when the stream takes no more."""
        if not final and text == stream.shown:
            return
        self._pace.take(ref.address.chat, growing=not final)
        closing, stream.closing = stream.closing, stream.closing or final
        try:
            await self._connection.call(api.RESPOND, api.stream(stream.id, text, finish=final), stream.req_id)
        except Unknown as error:
            raise NotSent(f"{error}; the same packet again shows nothing twice") from None
        except NotSent:
            stream.closing = closing
            raise
        except BotError as error:
            stream.closing = closing
            if api.temporary(error) or error.code == api.BAD_CHAT:
                raise self._failed(ref.address, error) from None
            young = self._clock() - stream.started < self._times.last_finish
            if not (final and closing and young and error.code == api.STREAM_EXPIRED):
                await self._over(exchange, stream, hand_over(stream.shown))
                raise Lost(str(error)) from None
            # Over before its time: the last packet, whose answer never came, had arrived.
        stream.shown = text
        if final:
            await self._over(exchange, stream, Shown(complete=True))

    async def _over(self, exchange: Exchange, stream: _Stream, shown: Shown) -> None:
        exchange.shown[stream.key] = shown
        await self._exchanges.save(exchange)

    async def _hand_over(self, ref: ReplyRef, exchange: Exchange, stream: _Stream) -> None:
        """Close a stream before WeCom does, at a line's end; what is missing follows in a new message."""
        shown = hand_over(stream.shown) if stream.shown.strip() else Shown()
        await self._over(exchange, stream, shown)
        note = "wecom_bot.continued" if shown.length else "wecom_bot.later"
        parts = [closed(stream.shown[: shown.length]).rstrip(), self._text(note, ref.language)]
        body = api.stream(stream.id, "\n\n".join(part for part in parts if part), finish=True)
        await self._try(api.RESPOND, body, stream.req_id)

    async def _later(self, ref: ReplyRef, text: str, seen: Shown, *, final: bool) -> str:
        """What no stream can show goes as a message of its own, once it is whole."""
        if not final:
            return ""
        left = "" if seen.complete else rest(text, seen)
        if left.strip():
            await self._push(ref.address, api.markdown(left))
        return "p"

    async def say(self, ref: ReplyRef, text: str) -> None:
        await self._push(ref.address, api.markdown(text))

    async def _push(self, address: Address, body: Data) -> None:
        self._pace.take(address.chat)
        kind = 2 if address.kind == "group" else 1  # 0 would look for a group first
        try:
            await self._connection.call(api.SEND, {"chatid": address.chat, "chat_type": kind, **body})
        except BotError as error:
            raise self._failed(address, error) from None

    def _failed(self, address: Address, error: BotError) -> SendError:
        if error.code == api.FLOODED:
            self._pace.hold(address.chat, api.FLOOD_PAUSE)
        return api.send_error(error)

    async def _try(self, cmd: str, body: Data, req_id: str) -> bool:
        try:
            await self._connection.call(cmd, body, req_id)
        except (BotError, SendError) as error:
            log.info("WeCom AI bot: %s", error)
            return False
        return True

    # -- signs of life -----------------------------------------------------------------------------------

    async def typing(self, ref: ReplyRef) -> None:
        """Open the reply's stream at once, and close those whose life ends while no text comes."""
        exchange = self._exchanges.of(ref)
        streams = self._open.get(ref.id)
        if streams is None:
            if self._can_reply(exchange) and f"{ref.id}/0" not in exchange.shown:
                await self._open_empty(ref, exchange)
            return
        for stream in list(streams.values()):
            if stream.key not in exchange.shown and self._clock() - stream.started >= self._times.hand_over:
                async with stream.lock:
                    if stream.key not in exchange.shown:
                        await self._hand_over(ref, exchange, stream)

    async def _open_empty(self, ref: ReplyRef, exchange: Exchange) -> None:
        self._pace.take(ref.address.chat)  # not as growing text: the first words are not to wait for its pace
        stream = self._stream(ref, 0, exchange)
        async with stream.lock:
            words = self._text("wecom_bot.thinking", ref.language)
            await self._try(api.RESPOND, api.stream(stream.id, words, finish=False), stream.req_id)

    async def end(self, ref: ReplyRef) -> None:
        exchange = self._exchanges.of(ref)
        for stream in self._open.pop(ref.id, {}).values():
            if stream.key not in exchange.shown:
                words = stream.shown or self._text("wecom_bot.noted", ref.language)
                async with stream.lock:
                    await self._try(api.RESPOND, api.stream(stream.id, words, finish=True), stream.req_id)

    # -- files and cards ---------------------------------------------------------------------------------

    async def _file(self, ref: ReplyRef, exchange: Exchange, file: OutFile) -> None:
        found = await asyncio.to_thread(media.read, file)
        if found is None:
            most = media.size_in_mb("file")
            await self.say(ref, self._text("wecom_bot.too_large", ref.language, name=file.name, most=most))
            return
        kind, data = found
        try:
            media_id = await media.upload(self._connection.call, kind, file.name, data)
        except BotError as error:
            raise self._failed(ref.address, error) from None
        except Unknown as error:
            raise NotSent(f"{error}; an upload shows nothing, so it is repeated") from None
        body: Data = {"msgtype": kind, kind: {"media_id": media_id}}
        if self._can_reply(exchange):
            self._pace.take(ref.address.chat)
            try:
                await self._connection.call(api.RESPOND, body, exchange.req_id)
            except BotError as error:
                failed = self._failed(ref.address, error)
                if isinstance(failed, NotSent | Gone):
                    raise failed from None
                log.info("WeCom AI bot: %s; the file goes as a message of its own", error)
            else:
                return
        await self._push(ref.address, body)

    async def ask(self, ref: ReplyRef, question: str, card: Card, choices: Sequence[Choice]) -> None:
        if len(card.text) > MOST_TEXT:
            await self.say(ref, question)  # the card shows its beginning only
        await self._push(ref.address, {"msgtype": "template_card", "template_card": asked(card)})
