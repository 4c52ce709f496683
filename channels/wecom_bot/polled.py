"""Replies with a callback URL: WeCom asks for the stream about once a second and gets the whole text so far.

It asks for six minutes from the person's message at most. A last text counts as shown when WeCom has fetched
it; what comes later goes once to the message's `response_url` (one hour), and if none is left, waits in the
notes until somebody writes in that chat again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp

from channels.base import Choice, Chunk, Lost, NotSent, OutFile, ReplyRef, SendError, Translate, Unknown
from channels.wecom_bot import api, media
from channels.wecom_bot.api import BotError, Data
from channels.wecom_bot.cards import MOST_TEXT, Card, asked
from channels.wecom_bot.config import MAX_CONTENT, MAX_PICTURES, MIB, Times
from channels.wecom_bot.exchanges import Exchange, Exchanges, Kept
from channels.wecom_bot.streams import Shown, closed, hand_over, rest, stream_id

log = logging.getLogger("causeway.wecom_bot")

_MOST_OPEN = 3000
_MOST_FLUSHES = 100
#: All pictures of one answer together.
_MOST_BYTES = 20 * MIB
_URL_TIMEOUT = aiohttp.ClientTimeout(total=15, sock_connect=5)
#: The owner of a stream that belongs to no reply any more.
_NOBODY = "*"


@dataclass(slots=True)
class _Stream:
    """A stream that WeCom polls. `shown` is the chunk's text that it fetched last; `last` the packet with
    which the stream was closed, given again whenever it is asked for."""

    id: str
    exchange: Exchange
    content: str = ""
    note: str = ""
    pictures: list[Data] = field(default_factory=list)
    final: bool = False
    shown: str = ""
    last: Data | None = None
    card: Data | None = None
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    carded: asyncio.Event = field(default_factory=asyncio.Event)


class Polled:
    """Shows replies of one bot with a callback URL."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        exchanges: Exchanges,
        kept: Kept,
        text: Translate,
        clock: Callable[[], float],
        times: Times,
    ) -> None:
        self._http = http
        self._exchanges = exchanges
        self._kept = kept
        self._text = text
        self._clock = clock
        self._times = times
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._flushes: set[asyncio.Task[None]] = set()
        self._flushing = asyncio.Lock()

    # -- what WeCom fetches ------------------------------------------------------------------------------

    async def packet(self, exchange: Exchange) -> Data:
        """The state of a message's stream, for the answer to a callback."""
        stream = self._stream(exchange)
        if stream.last is not None:
            return stream.last
        if stream.final:
            body = api.stream(stream.id, stream.content, finish=True)
            if stream.pictures:
                body["stream"]["msg_item"], stream.pictures = stream.pictures, []
            stream.last = body
            stream.taken.set()
        elif self._age(exchange) >= self._times.hand_over:
            return await self._hand_over(stream)
        else:
            words = stream.content or self._text("wecom_bot.thinking")
            content = f"{words}\n\n{stream.note}" if stream.note else words
            body = api.stream(stream.id, content, finish=False)
            stream.shown = stream.content
        if stream.card is not None:
            body = {**body, "msgtype": "stream_with_template_card", "template_card": stream.card}
            stream.card = None
            stream.carded.set()
        return body

    async def poll(self, id: str) -> Data | None:
        """None for a stream that is not known, or known to be over."""
        stream = self._streams.get(id)
        if stream is not None:
            return await self.packet(stream.exchange)
        exchange = self._exchanges.find(lambda e: stream_id(e.id) == id)
        if exchange is None or exchange.shown:
            return None
        return await self.packet(exchange)

    def _stream(self, exchange: Exchange) -> _Stream:
        id = stream_id(exchange.id)
        stream = self._streams.get(id)
        if stream is None:
            stream = self._streams[id] = _Stream(id, exchange)
            while len(self._streams) > _MOST_OPEN:
                self._streams.popitem(last=False)
        return stream

    def _age(self, exchange: Exchange) -> float:
        return self._clock() - exchange.at

    async def _hand_over(self, stream: _Stream) -> Data:
        """Close a stream before WeCom stops asking; what is missing follows another way."""
        exchange = stream.exchange
        shown = hand_over(stream.shown) if stream.shown.strip() else Shown()
        kept = closed(stream.shown[: shown.length]).rstrip()
        key = "wecom_bot.continued" if kept else "wecom_bot.later" if exchange.url else "wecom_bot.later_kept"
        words = self._text(key)
        stream.last = api.stream(stream.id, f"{kept}\n\n{words}" if kept else words, finish=True)
        exchange.shown[f"{exchange.owner or _NOBODY}/0"] = shown
        exchange.owner = exchange.owner or _NOBODY
        await self._exchanges.save(exchange)
        return stream.last

    # -- what the bridge shows ---------------------------------------------------------------------------

    async def post(self, ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        exchange, key = self._exchanges.of(ref), f"{ref.id}/{n}"
        if chunk.file is not None:
            raise NotSent("files go inside the text here")  # `render` makes no such chunk in this mode
        seen = exchange.shown.get(key)
        if n == 0 and seen is None and self._may_stream(ref, exchange):
            stream = self._stream(exchange)
            exchange.owner, stream.content, stream.note = ref.id, chunk.text, ""
            if not final:
                return f"w|{stream.id}"
            if await self._finish(ref, key, stream, chunk):
                return f"w|{stream.id}"
            seen = exchange.shown[key]
        if not final:
            return ""
        if seen is None or not seen.complete:
            names = [str(file["name"]) for file in chunk.data.get("files", ())]
            await self._late(ref, key, self._noting(ref, rest(chunk.text, seen or Shown()), names))
        return "u"

    async def edit(self, ref: ReplyRef, n: int, message_id: str, chunk: Chunk, *, final: bool) -> None:
        if not message_id.startswith("w|"):
            return  # what went another way was whole
        exchange, key = self._exchanges.of(ref), f"{ref.id}/{n}"
        seen = exchange.shown.get(key)
        if seen is not None and seen.complete:
            return
        if seen is not None or not self._may_stream(ref, exchange):
            raise Lost("WeCom asks for this stream no longer")
        stream = self._stream(exchange)
        exchange.owner, stream.content, stream.note = ref.id, chunk.text, ""
        if final and not await self._finish(ref, key, stream, chunk):
            raise Lost("WeCom did not fetch the end of the stream")

    def _may_stream(self, ref: ReplyRef, exchange: Exchange) -> bool:
        known = self._exchanges.get(exchange.id) is exchange
        return known and exchange.owner in ("", ref.id) and self._age(exchange) < self._times.stream_life

    async def _finish(self, ref: ReplyRef, key: str, stream: _Stream, chunk: Chunk) -> bool:
        """Give the last text out, and wait until WeCom has fetched it. Else the stream is closed with what
        was shown, and False."""
        pictures, missing = await asyncio.to_thread(_pictures, chunk)
        if stream.last is None:
            stream.content = self._noting(ref, chunk.text, missing)
            stream.pictures, stream.final = pictures, True
            try:
                async with asyncio.timeout(self._times.poll_wait):
                    await stream.taken.wait()
            except TimeoutError:
                stream.final = False
                await self._hand_over(stream)
        if not stream.taken.is_set():
            return False
        stream.exchange.shown[key] = Shown(complete=True)
        await self._exchanges.save(stream.exchange)
        return True

    def _noting(self, ref: ReplyRef, text: str, missing: Sequence[str]) -> str:
        """`text`, and which pictures could not be shown, as far as there is room."""
        for name in missing:
            note = self._text("wecom_bot.unsent", ref.language, name=name)
            longer = f"{text}\n\n{note}".lstrip()
            text = longer if len(longer.encode()) <= MAX_CONTENT else text
        return text

    async def end(self, ref: ReplyRef) -> None:
        exchange = self._exchanges.get(ref.to)
        stream = self._streams.get(stream_id(ref.to))
        if exchange is None or stream is None:
            return
        if stream.last is not None or stream.final:
            if stream.last is not None:  # shown; its pictures need no memory any more
                stream.last = api.stream(stream.id, stream.last["stream"]["content"], finish=True)
            return
        if exchange.owner in ("", ref.id):
            exchange.owner = exchange.owner or _NOBODY
            stream.content = stream.content or self._text("wecom_bot.noted", ref.language)
            stream.final = True

    # -- other ways --------------------------------------------------------------------------------------

    async def say(self, ref: ReplyRef, text: str) -> None:
        await self._by_url(ref.address.chat, ref.to, api.markdown(text))

    async def _late(self, ref: ReplyRef, key: str, text: str) -> None:
        if not text.strip() or await self._by_url(ref.address.chat, ref.to, api.markdown(text)):
            return
        if not await self._kept.put(key, ref.address.chat, text):
            raise NotSent("too many texts wait for their persons to write again")
        log.info("reply %s waits until somebody writes in its chat again", ref.id)

    async def _by_url(self, chat: str, first: str, body: Data) -> bool:
        """Send by a response_url of this chat; False when none is left. Raises NotSent or Unknown."""
        while True:
            exchange, url = await self._exchanges.take_url(chat, first, self._times.url_life)
            if exchange is None:
                return False
            try:
                await self._send(url, body)
            except NotSent:
                exchange.url = url
                await self._exchanges.save(exchange)
                raise
            except BotError as error:
                log.info("WeCom AI bot: a response_url was refused (%s); the next is tried", error)
            else:
                return True

    async def _send(self, url: str, body: Data) -> None:
        try:
            async with self._http.post(url, json=body, timeout=_URL_TIMEOUT) as response:
                answer = api.read_json(await response.content.read(64 * 1024))
        except aiohttp.ClientConnectorError as error:
            raise NotSent(f"WeCom cannot be reached ({type(error).__name__})") from None
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            # Never the address: it is all that it takes to write into the chat.
            raise Unknown(
                f"WeCom did not say whether it took a late answer ({type(error).__name__})"
            ) from None
        api.result("response_url", answer)

    def flush(self, exchange: Exchange) -> None:
        """Somebody wrote: what waited for this chat goes out by the new message's response_url."""
        if len(self._flushes) < _MOST_FLUSHES:
            task = asyncio.create_task(self._flush(exchange), name="wecom_bot kept texts")
            self._flushes.add(task)
            task.add_done_callback(self._flushes.discard)

    async def _flush(self, exchange: Exchange) -> None:
        async with self._flushing:
            waiting = await self._kept.of(exchange.chat)
            taken: list[tuple[str, str]] = []
            for id, text in waiting:
                joined = "\n\n".join([*(t for _, t in taken), text])
                if len(joined.encode()) > MAX_CONTENT or not await self._kept.take(id):
                    break
                taken.append((id, text))
            if not taken:
                return
            sent = False
            try:
                sent = await self._by_url(
                    exchange.chat, exchange.id, api.markdown("\n\n".join(text for _, text in taken))
                )
            except Unknown as error:
                sent = True
                log.warning("WeCom AI bot: %s", error)
            except SendError as error:
                log.info("WeCom AI bot: kept texts go on waiting: %s", error)
            if not sent:
                for id, text in taken:
                    await self._kept.put(id, exchange.chat, text)

    async def ask(self, ref: ReplyRef, question: str, card: Card, choices: Sequence[Choice]) -> None:
        exchange = self._exchanges.of(ref)
        known = self._exchanges.get(exchange.id) is exchange
        if known and not exchange.carded and self._age(exchange) < self._times.hand_over:
            stream = self._stream(exchange)
            if stream.last is None and not stream.final:
                exchange.carded, stream.card = True, asked(card)
                stream.note = question if len(card.text) > MOST_TEXT else ""
                try:
                    async with asyncio.timeout(self._times.poll_wait):
                        await stream.carded.wait()
                except TimeoutError:
                    stream.card, stream.note = None, ""
                else:
                    return
        body: Data = {"msgtype": "template_card", "template_card": asked(card)}
        if not await self._by_url(ref.address.chat, ref.to, body):
            raise NotSent("there is no way left to show a question in this chat")

    async def stop(self) -> None:
        for task in self._flushes:
            task.cancel()
        if self._flushes:
            await asyncio.wait(set(self._flushes))


def _pictures(chunk: Chunk) -> tuple[list[Data], list[str]]:
    """(pictures for the last packet, names of files that cannot go). Blocks."""
    found: list[Data] = []
    missing: list[str] = []
    total = 0
    for entry in chunk.data.get("files", ()):
        file = OutFile(**entry)
        item = media.picture(file) if media.is_picture(file) and len(found) < MAX_PICTURES else None
        total += len(item["image"]["base64"]) if item else 0
        if item is None or total > _MOST_BYTES * 4 // 3:
            missing.append(file.name)
        else:
            found.append(item)
    return found, missing
