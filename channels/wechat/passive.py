"""The one passive reply that each request may carry, and what waits until a request can carry it.

The platform cuts a request after 5 s without an answer and sends the same message again, three requests in
all. A request is therefore a slot that is open for a few seconds; a part of an answer goes into the slot of
its own message, or into any other slot of the same person, or waits in the store until that person writes
again.

A part put into a slot is marked as given to that message and kept a while: if the request was cut at that
very moment the platform sends the message again, and that request gets the same words.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from channels.alone import alone
from channels.base import ChannelState
from channels.wechat.inbound import language_in
from channels.wechat.plain import MAX_BYTES

log = logging.getLogger("causeway.wechat")

#: Bytes kept free in every piece for a hint of ours.
HINT_ROOM = 120
MAX_PIECE = MAX_BYTES - HINT_ROOM
#: A run that has said nothing for so long (seconds) is no longer waited for.
TURN_LIFE = 1800.0
#: Customer-service messages that one message of a person allows (48 h), and one menu click or follow (1 min).
QUOTA, EVENT_QUOTA = 5, 3
_REMEMBERED = 30
_MOST_RUNNING = 100
_REQUESTS = 3
_IDLE = 60.0
#: Seconds for which the requests are held that the platform will repeat, and the one that it will not.
HOLD, HOLD_LAST = 4.8, 4.5
#: From so many seconds after the message on, a request is the last one.
_LAST_FROM = 9.0
#: How often the store is looked at for parts that another process put there.
_PEEK = 1.0
#: Between a passive reply and the next customer-service message, so that they do not overtake each other.
_SETTLE = 0.3
#: How long after its first request a message may be repeated; so long is a given part kept for it.
_KEPT = 18.0
_MOST_PARTS = 500
Hint = Literal["wait", "more", "working"]


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of an answer, as the store keeps it. `to`: the message answered; `more`: pieces of the same
    reply behind it; `given`: the message whose request carried it, at the time `at`."""

    id: str
    reply: str
    to: str
    text: str
    more: int = 0
    order: int = 0
    given: str = ""
    at: float = 0.0


@dataclass(slots=True)
class Seen:
    """A message and its requests. `first` is our time of the first one, `n` their number so far."""

    first: float
    n: int = 0
    state: Literal["running", "fetch", "done"] = "running"
    last: bool = False
    accepted: bool = False
    replayed: bool = False  # not by the platform: it asks three times within about 15 s
    told: bool = False  # its requests are used up and the person was told to wait


@dataclass(slots=True)
class Person:
    """One person's slots. Everything that outlives a process is in the store: the parts in a log, the rest in
    one note. `shared`: other gateways answer requests of the same person, so the note is read again before it
    is gone by, and changed by one of them at a time."""

    user: str
    state: ChannelState
    clock: Callable[[], float]
    words: Callable[[Hint, str], str]
    shared: bool = False
    seen: dict[str, Seen] = field(default_factory=dict)
    invited: bool = False
    language: str = "zh"
    left: int = QUOTA
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    open: Counter[str] = field(default_factory=Counter)
    revoked: set[str] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    not_before: float = 0.0  # loop time from which customer-service messages do not overtake a passive reply
    touched: float = 0.0
    closed: asyncio.Event = field(default_factory=asyncio.Event)  # of the whole desk: hold nothing any longer
    _order: int = 0

    # -- what outlives the process ----------------------------------------------------------------------

    @property
    def _note(self) -> str:
        return f"person:{self.user}"

    @property
    def _log(self) -> str:
        return f"parts:{self.user}"

    async def load(self) -> None:
        note = await self.state.get(self._note)
        if not isinstance(note, dict):
            return
        known, self.seen = self.seen, {}
        for id, (first, n, state, *told) in note["seen"].items():
            seen = self.seen[id] = known.get(id) or Seen(first)
            seen.first, seen.n, seen.state, seen.told = first, n, state, bool(told and told[0])
        self.invited, self.language, self.left = note["invited"], note["language"], note["left"]

    async def refresh(self) -> None:
        """Learn what other gateways did."""
        if self.shared:
            async with self.lock:
                await self.load()

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Hold `lock`, and keep other gateways from changing the note meanwhile; `save` inside."""
        async with self.lock:
            if not self.shared:
                yield
                return
            async with alone(self.state, f"lock:{self.user}"):
                await self.load()
                yield

    async def save(self) -> None:
        seen = {id: (s.first, s.n, s.state, s.told) for id, s in self.seen.items()}
        note = {"seen": seen, "invited": self.invited, "language": self.language, "left": self.left}
        await self.state.put(self._note, note)

    async def parts(self) -> list[Part]:
        """What waits and what was given a moment ago, in order; older given parts are removed."""
        found = []
        for entry in await self.state.read(self._log, limit=_MOST_PARTS):
            part = Part(**entry.value)
            if part.given in self.revoked:
                part = replace(part, given="")
            if part.given and self.clock() - part.at > _KEPT:
                await self.state.remove(self._log, part.id)
            else:
                found.append(part)
        return sorted(found, key=lambda part: part.order)

    async def waiting(self) -> list[Part]:
        return [part for part in await self.parts() if not part.given]

    async def put(self, part: Part) -> None:
        """Keep a part until a request can carry it; hold `lock`. The same part again changes nothing."""
        known = await self.parts()
        if all(one.id != part.id for one in known):
            # Behind what waits already, also after a restart with the clock set back.
            newest = max((one.order for one in known), default=0)
            self._order = max(self._order + 1, newest + 1, int(self.clock() * 1e6))
            await self.state.append(self._log, part.id, asdict(replace(part, order=self._order)))
        self.wake()

    async def reserve(self, part: Part, holder: str) -> bool:
        """Whether `holder` (a message, or the customer service) may show a part now, and nobody else."""
        return await self.state.claim(f"give:{part.id}", holder, _KEPT)

    async def release(self, part: Part, holder: str) -> None:
        await self.state.release(f"give:{part.id}", holder)

    async def drop(self, part: Part) -> None:
        await self.state.remove(self._log, part.id)

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    # -- messages ---------------------------------------------------------------------------------------

    async def arrive(self, id: str, elapsed: float, *, event: bool, said: str = "") -> Seen:
        """Count a request for message `id`, which says `said`. `elapsed`: seconds since it was sent, by the
        platform's clock. A new one brings the customer-service messages that the platform allows for it."""
        async with self.changing():
            now = self.clock()
            self.language = language_in(said, self.language)
            seen = self.seen.get(id)
            if seen is None:
                seen = self.seen[id] = Seen(now)
                self.left = max(self.left, EVENT_QUOTA) if event else QUOTA
            seen.n += 1
            known = now - seen.first
            seen.last = seen.n >= 3 or max(known, elapsed) >= _LAST_FROM
            seen.replayed = seen.n > _REQUESTS or known > _KEPT
            self._forget_old(id)
            await self.save()
            return seen

    def _forget_old(self, newest: str) -> None:
        """Keep the note small: over messages first, and of somebody who floods us the oldest of all."""
        over = [id for id, s in self.seen.items() if s.state != "running" or self._expired(s)]
        for id in [*over, *self.seen]:
            if len(self.seen) <= (_REMEMBERED if id in over else _MOST_RUNNING):
                break
            if id != newest:
                self.seen.pop(id, None)

    async def mark(self, id: str, state: Literal["fetch", "done"]) -> None:
        async with self.changing():
            seen = self.seen.get(id)
            if seen is not None and seen.state != state:
                seen.state = state
                await self.save()
        self.wake()

    def _expired(self, seen: Seen) -> bool:
        return self.clock() - seen.first > TURN_LIFE

    @property
    def working(self) -> bool:
        """Whether an answer of a run is still to come."""
        return any(s.state == "running" and not self._expired(s) for s in self.seen.values())

    @property
    def idle(self) -> bool:
        return not self.open and not self.working and self.clock() - self.touched > _IDLE

    # -- slots ------------------------------------------------------------------------------------------

    @contextmanager
    def slot(self, id: str) -> Iterator[None]:
        """A request of message `id` can carry something meanwhile."""
        self.open[id] += 1
        try:
            yield
        finally:
            self.open[id] -= 1
            if self.open[id] <= 0:
                del self.open[id]
            self.wake()

    async def hold(self, id: str, until: float, last: bool, served: Callable[[], bool]) -> str | None:
        """Keep a request (a slot) until something can be said in it, at most until the loop time `until`.

        Returns the text to reply with, "" for the bare `success`, or None: say nothing, the platform asks
        again. `served`: what comes later can go by customer-service messages.
        """
        try:
            async with asyncio.timeout_at(until + 0.25):
                return await self._hold(id, until, last, served)
        except TimeoutError:
            log.warning("the store took too long for a held request")
            self.revoked.add(id)
            return self.words("wait", self.language) if last and not served() else "" if served() else None

    async def _hold(self, id: str, until: float, last: bool, served: Callable[[], bool]) -> str | None:
        loop = asyncio.get_running_loop()
        while True:
            changed = self.changed
            late = loop.time() >= until or self.closed.is_set()
            if late or not self.shared or await self._news():
                async with self.changing():
                    text = await self._take(id, served())
                    if text is not None:
                        return text
                    if not self.working:
                        return ""
                    if late:
                        return await self._too_late(id, last, served())
            await wait_for(changed, min(until - loop.time(), _PEEK))

    async def _news(self) -> bool:
        """Whether there may be something to say, as far as a look without others being held up shows."""
        await self.refresh()
        return not self.working or bool(await self.parts())

    async def _too_late(self, id: str, last: bool, served: bool) -> str | None:
        if served:
            return ""
        if not last:
            return None
        if id in self.seen:
            self.seen[id].told = True
        self.invited = True
        await self.save()
        return self.words("wait", self.language)

    async def _take(self, id: str, served: bool) -> str | None:
        """The words for a request of message `id`, marked as given to it; None when there are none."""
        parts = await self.parts()
        if repeated := [part for part in parts if part.given == id]:
            return "".join(_joined(repeated))
        ready = [part for part in parts if not part.given]
        if not ready or (ready[0].to != id and self.open[ready[0].to] > 0):
            return None
        chosen: list[Part] = []
        for part in ready:
            size = len("".join(_joined([*chosen, part])).encode())
            if chosen and (size > MAX_PIECE or (part.to != id and self.open[part.to] > 0)):
                break
            if not await self.reserve(part, id):
                break  # it is on its way by another process, or by a customer-service message
            chosen.append(part)
        if not chosen:
            return None
        now = self.clock()
        for part in chosen:
            await self.state.append(self._log, part.id, asdict(replace(part, given=id, at=now)))
        rest = len(ready) > len(chosen) or chosen[-1].more > 0
        hint = None if served else self._hint(id, chosen, rest)
        self.invited = hint is not None
        await self.save()
        self.revoked.discard(id)
        self.not_before = asyncio.get_running_loop().time() + _SETTLE
        return "".join(_joined(chosen)) + (self.words(hint, self.language) if hint else "")

    def _hint(self, id: str, chosen: list[Part], rest: bool) -> Hint | None:
        if rest:
            return "more"
        answered = {part.to for part in chosen}
        # This message's slot is used up now; another one whose slots are used up waits likewise.
        for other, seen in self.seen.items():
            running = seen.state == "running" and not self._expired(seen)
            used_up = other == id or ((seen.told or seen.n >= 3) and not self.open[other])
            if running and used_up and other not in answered:
                return "working"
        return None


def _joined(parts: list[Part]) -> list[str]:
    """The texts, with an empty line between two replies."""
    out: list[str] = []
    for before, part in zip([None, *parts], parts, strict=False):
        if before is not None and before.reply != part.reply:
            out.append("\n\n")
        out.append(part.text)
    return out


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(max(seconds, 0)):
            await event.wait()
    except TimeoutError:
        return  # the caller looks at the clock


class Desk:
    """All persons. Those with nothing open and nothing running leave memory after a minute."""

    def __init__(
        self,
        state: ChannelState,
        clock: Callable[[], float],
        words: Callable[[Hint, str], str],
        *,
        shared: bool = False,
    ) -> None:
        self._state = state
        self._clock = clock
        self._words = words
        self._shared = shared
        self._people: dict[str, Person] = {}
        self._closed = asyncio.Event()

    async def person(self, user: str) -> Person:
        person = self._people.get(user)
        if person is None:
            fresh = Person(user, self._state, self._clock, self._words, self._shared)
            fresh.closed = self._closed
            await fresh.load()
            # Another task may have loaded the same person meanwhile: there must be one.
            person = self._people.setdefault(user, fresh)
        person.touched = self._clock()
        return person

    def close(self) -> None:
        """Let every held request end now."""
        self._closed.set()
        for person in self._people.values():
            person.wake()

    async def sweep(self) -> None:
        """Remove given parts whose repetition is no longer to be expected, and forget idle persons."""
        for user, person in list(self._people.items()):
            await person.refresh()
            async with person.lock:
                await person.parts()
            if person.idle and self._people.get(user) is person:
                del self._people[user]

    def __len__(self) -> int:
        return len(self._people)
