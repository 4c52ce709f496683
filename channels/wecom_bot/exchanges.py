"""What the channel must remember of each message to answer it, also after a restart; and the pace of each
chat."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from channels.alone import alone
from channels.base import ChannelState, Flooded, ReplyRef
from channels.wecom_bot.streams import Shown

_LOG = "exchanges"
_KEPT = "kept"
#: Messages remembered; the oldest are forgotten first (their answers go as messages of their own then).
MOST = 3000
#: Texts that wait for their person's next message, in all chats.
MOST_KEPT = 500


@dataclass(slots=True)
class Exchange:
    """One message of a person and how it can be answered: by `req_id` on a long connection, by the stream
    that WeCom polls or once by `url` (response_url) otherwise. `shown` tells of streams that are over, by
    reply and chunk; `owner` is the reply that has the polled stream."""

    id: str
    chat: str
    at: float
    req_id: str = ""
    url: str = ""
    owner: str = ""
    carded: bool = False
    shown: dict[str, Shown] = field(default_factory=dict)


class Exchanges:
    """The exchanges of one bot, newest last, in memory and in the channel's notes. `shared`: other gateways
    write there as well."""

    def __init__(
        self, state: ChannelState, clock: Callable[[], float], life: float, *, shared: bool = False
    ) -> None:
        self._state = state
        self._clock = clock
        self._life = life
        self._shared = shared
        self._seq = 0
        self._all: OrderedDict[str, Exchange] = OrderedDict()

    async def load(self) -> None:
        self._all.clear()
        self._seq = 0
        await self.sync()

    async def sync(self) -> None:
        """Take up what was noted since the last look, by whatever process."""
        for entry in await self._state.read(_LOG, self._seq, MOST):
            self._seq = max(self._seq, entry.seq)
            value = dict(entry.value)
            shown = {key: Shown(**data) for key, data in value.pop("shown").items()}
            exchange = Exchange(**value, shown=shown)
            if self._clock() - exchange.at > self._life:
                await self._state.remove(_LOG, entry.id)
            else:
                self._all[exchange.id] = exchange

    async def open(self, id: str, chat: str, *, req_id: str = "", url: str = "") -> Exchange:
        """Write down a message before the bridge gets it. A second delivery brings a newer way to answer."""
        if self._shared:
            await self.sync()
        exchange = self._all.get(id)
        if exchange is None:
            exchange = Exchange(id, chat, self._clock(), req_id, url)
        elif exchange.req_id == req_id:
            return exchange
        exchange.req_id = req_id
        await self.save(exchange)
        return exchange

    def of(self, ref: ReplyRef) -> Exchange:
        """The exchange that a reply belongs to; an empty one, without a way to answer, when it is
        forgotten."""
        return self._all.get(ref.to) or Exchange(ref.to, ref.address.chat, self._clock())

    def get(self, id: str) -> Exchange | None:
        return self._all.get(id)

    async def save(self, exchange: Exchange) -> None:
        self._all[exchange.id] = exchange
        await self._state.append(_LOG, exchange.id, asdict(exchange))
        while len(self._all) > MOST:
            oldest, _ = self._all.popitem(last=False)
            await self._state.remove(_LOG, oldest)

    def find(self, matches: Callable[[Exchange], bool]) -> Exchange | None:
        return next((exchange for exchange in reversed(self._all.values()) if matches(exchange)), None)

    async def take_url(self, chat: str, first: str, life: float) -> tuple[Exchange | None, str]:
        """A response_url of this chat that was not used, and whose it was: that of exchange `first`, else the
        newest. It is spent with this, since it works once. (None, "") when there is none."""
        if not self._shared:
            return await self._take_url(chat, first, life)
        async with alone(self._state, f"urls:{chat}"):
            await self.sync()
            return await self._take_url(chat, first, life)

    async def _take_url(self, chat: str, first: str, life: float) -> tuple[Exchange | None, str]:
        since = self._clock() - life
        own = self._all.get(first)
        others = (e for e in reversed(self._all.values()) if e.chat == chat)
        for exchange in ([own] if own is not None else []) + list(others):
            if exchange.url and exchange.at > since:
                url, exchange.url = exchange.url, ""
                await self.save(exchange)
                return exchange, url
        return None, ""


class Kept:
    """Text that no way was left to show; it goes out with the chat's next message."""

    def __init__(self, state: ChannelState) -> None:
        self._state = state

    async def put(self, id: str, chat: str, text: str) -> bool:
        """Whether there was room."""
        if len(await self._state.read(_KEPT, limit=MOST_KEPT)) >= MOST_KEPT:
            return False
        await self._state.append(_KEPT, id, {"chat": chat, "text": text})
        return True

    async def of(self, chat: str) -> list[tuple[str, str]]:
        """(id, text) of all that waits for `chat`, oldest first."""
        entries = await self._state.read(_KEPT, limit=MOST_KEPT)
        return [(e.id, str(e.value["text"])) for e in entries if e.value["chat"] == chat]

    async def take(self, id: str) -> bool:
        """True for the one caller that may show it."""
        return await self._state.remove(_KEPT, id)


class Pace:
    """Keeps each chat within WeCom's 30 messages a minute and 1000 an hour, growing text included.

    Growing text gets sparser the more was sent in the last minute, so that the end always has room.
    """

    MINUTE, HOUR = 28, 980
    #: Most packets of growing text a minute, and the seconds between two of them while few, more, many were
    #: sent.
    GROWING = 18
    GAPS = (1.0, 2.5, 5.0)
    _CHATS = 2000

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sent: OrderedDict[str, deque[float]] = OrderedDict()
        self._until: dict[str, float] = {}
        self._grew: dict[str, float] = {}
        self._latest = 0.0

    def take(self, chat: str, *, growing: bool = False) -> None:
        """Count one message to `chat`. Raises Flooded when it would be one too many now."""
        now = self._clock()
        if now < self._latest - 60.0:  # set back: what was counted would be waited for as long again
            self._sent.clear()
            self._until.clear()
            self._grew.clear()
        self._latest = now
        sent = self._sent.setdefault(chat, deque(maxlen=self.HOUR))
        self._sent.move_to_end(chat)
        if len(self._sent) > self._CHATS:
            oldest, _ = self._sent.popitem(last=False)
            self._grew.pop(oldest, None)
            self._until.pop(oldest, None)
        if (closed := self._until.get(chat, 0.0)) > now:
            raise Flooded("this chat has had too many messages", closed - now)
        minute = [at for at in sent if at > now - 60.0]
        most = self.GROWING if growing else self.MINUTE
        if len(minute) >= most:
            raise Flooded("WeCom takes 30 messages a minute in a chat", minute[-most] + 60.0 - now)
        if len(sent) == self.HOUR and sent[0] > now - 3600.0:
            raise Flooded("WeCom takes 1000 messages an hour in a chat", sent[0] + 3600.0 - now)
        if growing:
            gap = self.GAPS[0 if len(minute) < 6 else 1 if len(minute) < 12 else 2]
            if (wait := self._grew.get(chat, -gap) + gap - now) > 0:
                raise Flooded("the chat's own pace", wait)
            self._grew[chat] = now
        sent.append(now)

    def hold(self, chat: str, seconds: float) -> None:
        """The platform said that it was too much."""
        self._until[chat] = self._clock() + seconds
