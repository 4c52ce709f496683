"""Replies with a callback URL: WeCom asks for the stream about once a second and gets the whole text so far.

It asks for six minutes from the person's message at most. A last text counts as shown when WeCom has fetched
it; what comes later goes once to the message's `response_url` (one hour), and if none is left, waits in the
notes until somebody writes in that chat again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import aiohttp

from channels.base import Choice, Chunk, Lost, NotSent, OutFile, ReplyRef, SendError, Translate, Unknown
from channels.wecom_bot import api, media
from channels.wecom_bot.api import BotError, Data
from channels.wecom_bot.board import Board, Stream
from channels.wecom_bot.cards import MOST_TEXT, Card, asked
from channels.wecom_bot.config import MAX_CONTENT, MAX_PICTURES, MIB, Times
from channels.wecom_bot.exchanges import Exchange, Exchanges, Kept
from channels.wecom_bot.streams import Shown, closed, hand_over, rest, stream_id

log = logging.getLogger("causeway.wecom_bot")

_MOST_FLUSHES = 100
#: All pictures of one answer together.
_MOST_BYTES = 20 * MIB
_URL_TIMEOUT = aiohttp.ClientTimeout(total=15, sock_connect=5)
#: The owner of a stream that belongs to no reply any more.
_NOBODY = "*"


class Polled:
    """Shows replies of one bot with a callback URL."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        exchanges: Exchanges,
        kept: Kept,
        board: Board,
        text: Translate,
        clock: Callable[[], float],
        times: Times,
    ) -> None:
        self._http = http
        self._exchanges = exchanges
        self._kept = kept
        self._board = board
        self._text = text
        self._clock = clock
        self._times = times
        self._flushes: set[asyncio.Task[None]] = set()
        self._flushing = asyncio.Lock()

    # -- what WeCom fetches ------------------------------------------------------------------------------

    async def packet(self, message: str) -> Data:
        """The state of a message's stream, for the answer to a callback."""
        async with self._board.at(message) as stream:
            exchange = self._exchange(stream)
            if stream.last is None and not stream.final and self._age(exchange) >= self._times.hand_over:
                await self._hand_over(stream, exchange)
            if stream.last is not None:
                return await _with_pictures(stream.last, stream.files)
            if stream.final:
                body = stream.last = api.stream(stream.id, stream.content, finish=True)
                stream.taken = True
            else:
                words = stream.content or self._text("wecom_bot.thinking")
                content = f"{words}\n\n{stream.note}" if stream.note else words
                body = api.stream(stream.id, content, finish=False)
                stream.shown = stream.content
            if stream.card is not None:
                body = {**body, "msgtype": "stream_with_template_card", "template_card": stream.card}
                stream.card, stream.carded = None, True
            return await _with_pictures(body, stream.files if stream.taken else ())

    async def poll(self, id: str) -> Data | None:
        """None for a stream that is not known, or known to be over."""
        message = await self._board.message_of(id)
        if not message:
            exchange = self._exchanges.find(lambda e: stream_id(e.id) == id)
            message = "" if exchange is None or exchange.shown else exchange.id
        return await self.packet(message) if message else None

    def _exchange(self, stream: Stream) -> Exchange:
        return self._exchanges.get(stream.message) or Exchange(stream.message, "", stream.at)

    def _age(self, exchange: Exchange) -> float:
        return self._clock() - exchange.at

    async def _hand_over(self, stream: Stream, exchange: Exchange) -> None:
        """Close a stream before WeCom stops asking; what is missing follows another way."""
        shown = hand_over(stream.shown) if stream.shown.strip() else Shown()
        kept = closed(stream.shown[: shown.length]).rstrip()
        key = "wecom_bot.continued" if kept else "wecom_bot.later" if exchange.url else "wecom_bot.later_kept"
        words = self._text(key)
        stream.last = api.stream(stream.id, f"{kept}\n\n{words}" if kept else words, finish=True)
        stream.files = []
        exchange.shown[f"{exchange.owner or _NOBODY}/0"] = shown
        exchange.owner = exchange.owner or _NOBODY
        await self._exchanges.save(exchange)

    # -- what the bridge shows ---------------------------------------------------------------------------

    async def post(self, ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        if chunk.file is not None:
            raise NotSent("files go inside the text here")  # `render` makes no such chunk in this mode
        key, message_id = f"{ref.id}/{n}", f"w|{stream_id(ref.to)}"
        seen, streams = await self._put(ref, key, chunk) if n == 0 else (await self._seen(ref, key), False)
        if streams:
            if not final or await self._finish(ref, key, chunk):
                return message_id
            seen = await self._seen(ref, key)
        if not final:
            return ""
        if seen is None or not seen.complete:
            names = [str(file["name"]) for file in chunk.data.get("files", ())]
            await self._late(ref, key, self._noting(ref, rest(chunk.text, seen or Shown()), names))
        return "u"

    async def edit(self, ref: ReplyRef, n: int, message_id: str, chunk: Chunk, *, final: bool) -> None:
        if not message_id.startswith("w|"):
            return  # what went another way was whole
        key = f"{ref.id}/{n}"
        seen, streams = await self._put(ref, key, chunk)
        if seen is not None and seen.complete:
            return
        if not streams:
            raise Lost("WeCom asks for this stream no longer")
        if final and not await self._finish(ref, key, chunk):
            raise Lost("WeCom did not fetch the end of the stream")

    async def _put(self, ref: ReplyRef, key: str, chunk: Chunk) -> tuple[Shown | None, bool]:
        """Let the stream of the message that is answered show this text. Returns (what was shown of it before
        its stream was over, whether the stream takes it)."""
        async with self._board.at(ref.to) as stream:
            exchange = self._exchanges.of(ref)
            known = self._exchanges.get(exchange.id) is exchange
            mine = known and exchange.owner in ("", ref.id)
            seen = exchange.shown.get(key)
            if seen is not None or not mine or self._age(exchange) >= self._times.stream_life:
                return seen, False
            stream.content, stream.note = chunk.text, ""
            if exchange.owner != ref.id:
                exchange.owner = ref.id
                await self._exchanges.save(exchange)
            return None, True

    async def _seen(self, ref: ReplyRef, key: str) -> Shown | None:
        async with self._board.at(ref.to):
            return self._exchanges.of(ref).shown.get(key)

    async def _finish(self, ref: ReplyRef, key: str, chunk: Chunk) -> bool:
        """Give the last text out, and wait until WeCom has fetched it. Else the stream is closed with what
        was shown, and False."""
        files = list(chunk.data.get("files", ()))
        missing = (await asyncio.to_thread(_pictures, files))[1]
        async with self._board.at(ref.to) as stream:
            if stream.last is None:
                stream.content = self._noting(ref, chunk.text, missing)
                stream.files, stream.final = files, True
        await self._board.wait(ref.to, lambda stream: stream.last is not None, self._times.poll_wait)
        async with self._board.at(ref.to) as stream:
            exchange = self._exchange(stream)
            if stream.last is None:
                stream.final = False
                await self._hand_over(stream, exchange)
            if stream.taken:
                exchange.shown[key] = Shown(complete=True)
                await self._exchanges.save(exchange)
            return stream.taken

    def _noting(self, ref: ReplyRef, text: str, missing: Sequence[str]) -> str:
        """`text`, and which pictures could not be shown, as far as there is room."""
        for name in missing:
            note = self._text("wecom_bot.unsent", ref.language, name=name)
            longer = f"{text}\n\n{note}".lstrip()
            text = longer if len(longer.encode()) <= MAX_CONTENT else text
        return text

    async def end(self, ref: ReplyRef) -> None:
        async with self._board.at(ref.to) as stream:
            exchange = self._exchanges.get(ref.to)
            if exchange is None:
                return
            if stream.last is not None:
                stream.files = []  # shown: nobody asks for them again
            elif not stream.final and exchange.owner in ("", ref.id):
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
        if await self._offer(ref, question, card):
            await self._board.wait(ref.to, lambda stream: stream.carded, self._times.poll_wait)
            async with self._board.at(ref.to) as stream:
                if stream.carded:
                    return
                stream.card, stream.note = None, ""
        body: Data = {"msgtype": "template_card", "template_card": asked(card)}
        if not await self._by_url(ref.address.chat, ref.to, body):
            raise NotSent("there is no way left to show a question in this chat")

    async def _offer(self, ref: ReplyRef, question: str, card: Card) -> bool:
        """Put a card into the message's stream, which takes one. False: it has no place for it."""
        async with self._board.at(ref.to) as stream:
            exchange = self._exchanges.get(ref.to)
            if exchange is None or exchange.carded or self._age(exchange) >= self._times.hand_over:
                return False
            if stream.last is not None or stream.final:
                return False
            exchange.carded, stream.card, stream.carded = True, asked(card), False
            stream.note = question if len(card.text) > MOST_TEXT else ""
            await self._exchanges.save(exchange)
            return True

    async def stop(self) -> None:
        for task in self._flushes:
            task.cancel()
        if self._flushes:
            await asyncio.wait(set(self._flushes))


async def _with_pictures(body: Data, files: Sequence[Data]) -> Data:
    items = (await asyncio.to_thread(_pictures, files))[0] if files else []
    return {**body, "stream": {**body["stream"], "msg_item": items}} if items else body


def _pictures(files: Sequence[Data]) -> tuple[list[Data], list[str]]:
    """(pictures for the last packet, names of files that cannot go). Blocks."""
    found: list[Data] = []
    missing: list[str] = []
    total = 0
    for entry in files:
        file = OutFile(**entry)
        item = media.picture(file) if media.is_picture(file) and len(found) < MAX_PICTURES else None
        total += len(item["image"]["base64"]) if item else 0
        if item is None or total > _MOST_BYTES * 4 // 3:
            missing.append(file.name)
        else:
            found.append(item)
    return found, missing
