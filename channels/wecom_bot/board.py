"""The streams that WeCom polls, as all gateways have them: any of them may be asked for the state of a stream
that another one writes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field

from channels.alone import Busy, alone
from channels.base import ChannelState, NotSent
from channels.wecom_bot.api import Data
from channels.wecom_bot.exchanges import Exchanges
from channels.wecom_bot.streams import stream_id

_LOG = "streams"
_MOST_OPEN = 3000
#: Seconds for which a stream is kept, from its beginning on: WeCom asks for it for six minutes.
_LIFE = 900.0
#: Seconds between two looks for what other gateways did with a stream that is waited for.
_PEEK = 0.4


@dataclass(slots=True)
class Stream:
    """The stream of one message. `shown` is the text that WeCom fetched last; `last` the packet with which it
    was closed, given again whenever it is asked for; `taken`: that was the whole of the final text."""

    id: str
    message: str
    at: float
    content: str = ""
    note: str = ""
    files: list[Data] = field(default_factory=list)
    final: bool = False
    shown: str = ""
    last: Data | None = None
    card: Data | None = None
    taken: bool = False
    carded: bool = False


class Board:
    """`shared`: other gateways work on the same streams, which then lie in the channel's notes and are
    changed by one gateway at a time. Of streams that nobody changes the oldest are forgotten."""

    def __init__(
        self, state: ChannelState, exchanges: Exchanges, clock: Callable[[], float], *, shared: bool
    ) -> None:
        self._state = state
        self._exchanges = exchanges
        self._clock = clock
        self._shared = shared
        self._seq = 0
        self._all: OrderedDict[str, Stream] = OrderedDict()
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def at(self, message: str) -> AsyncIterator[Stream]:
        """The stream of a message (its exchange is up to date as well), to read and to change. Raises
        NotSent when another gateway is at it for too long."""
        if not self._shared:
            async with self._changing(message):
                yield self._stream(message)
            return
        try:
            async with alone(self._state, f"stream:{message}"):
                await self._exchanges.sync()
                await self._sync()
                async with self._changing(message):
                    yield self._stream(message)
        except Busy as error:
            raise NotSent(str(error)) from None

    @asynccontextmanager
    async def _changing(self, message: str) -> AsyncIterator[None]:
        stream = self._stream(message)
        before = asdict(stream)
        try:
            yield
        finally:
            if (now := asdict(stream)) != before:
                if self._shared:
                    await self._state.append(_LOG, stream.id, now)
                self._changed.set()
                self._changed = asyncio.Event()

    async def message_of(self, id: str) -> str:
        """The message whose stream this is, or ""."""
        if id not in self._all and self._shared:
            await self._exchanges.sync()
            await self._sync()
        return self._all[id].message if id in self._all else ""

    async def wait(self, message: str, done: Callable[[Stream], bool], seconds: float) -> None:
        """Wait until this is so, or for so long."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            changed = self._changed
            async with self.at(message) as stream:
                if done(stream):
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, _PEEK) if self._shared else left):
                    await changed.wait()

    def _stream(self, message: str) -> Stream:
        id = stream_id(message)
        stream = self._all.get(id)
        if stream is None:
            stream = self._all[id] = Stream(id, message, self._clock())
        self._all.move_to_end(id)
        while len(self._all) > _MOST_OPEN:
            self._all.popitem(last=False)
        return stream

    async def _sync(self) -> None:
        for entry in await self._state.read(_LOG, self._seq, _MOST_OPEN):
            self._seq = max(self._seq, entry.seq)
            self._all[entry.id] = Stream(**entry.value)
        old = [id for id, stream in self._all.items() if self._clock() - stream.at > _LIFE]
        for id in old:
            del self._all[id]
            await self._state.remove(_LOG, id)
