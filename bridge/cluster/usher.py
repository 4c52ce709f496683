"""Which sessions a worker has: it claims those that call, takes in what has arrived for them, and gives them
back when nothing more happens there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from bridge.cluster.remote import current_session
from bridge.cluster.wire import Wire, ranked
from bridge.delivery import Delivery
from bridge.sessions import Sessions
from bridge.store.base import SessionLost, StoredReply, StoreError
from bridge.store.redis import RedisStore
from channels.base import Inbound

log = logging.getLogger("causeway.cluster")

#: Seconds that a claim lasts without being renewed, and thus until a dead worker's sessions are taken over.
LEASE = 15.0
#: Sessions of which one look takes charge at most, and how many it looks at.
_MOST_NEW, _LOOK = 500, 2000
_TOGETHER = 250
#: What has arrived is taken in so many items at a time.
_ITEMS = 50
#: A session in which nothing happens is kept for so many seconds.
_LINGER = 5.0
#: A call that got lost is found after so many seconds.
_LOOK_AGAIN = 15.0
_STOP_LOOK = 0.1
_MOST_FAULTS = 3
#: After so many looks a session is taken charge of even when it is another worker's turn.
_PATIENCE = 3


@dataclass(slots=True, eq=False)
class _Held:
    """A session that is claimed, or about to be."""

    session: str
    called: asyncio.Event = field(default_factory=asyncio.Event)
    claimed: asyncio.Event = field(default_factory=asyncio.Event)
    pins: int = 0
    task: asyncio.Task[None] | None = None


class Usher:
    """Implements `bridge.sessions.Having`. `receive` takes a message in as `Router.receive` does."""

    def __init__(
        self,
        store: RedisStore,
        wire: Wire,
        sessions: Sessions,
        delivery: Delivery,
        receive: Callable[[Inbound], Awaitable[None]],
        *,
        lease: float = LEASE,
        linger: float = _LINGER,
    ) -> None:
        self._store = store
        self._wire = wire
        self._sessions = sessions
        self._delivery = delivery
        self._receive = receive
        self._lease = lease
        self._linger = linger
        self._held: dict[str, _Held] = {}
        self._seen_free: Counter[str] = Counter()
        self._quiet_until = 0.0
        self._stopping = False
        self._keeper: asyncio.Task[None] | None = None

    # -- what others ask for ---------------------------------------------------------------------------

    def has(self, session: str) -> bool:
        held = self._held.get(session)
        return held is not None and held.claimed.is_set()

    def call(self, session: str) -> None:
        """Something is there for a session: see to it, if it can be had."""
        if self._stopping:
            return
        held = self._held.get(session)
        if held is None:
            held = self._held[session] = _Held(session)
            held.task = asyncio.create_task(self._serve(held), name=f"usher {session}")
        held.called.set()

    @property
    def sessions(self) -> list[str]:
        """The sessions that this worker has."""
        return [session for session, held in self._held.items() if held.claimed.is_set()]

    @asynccontextmanager
    async def borrow(self, session: str) -> AsyncIterator[bool]:
        """Have a session for a while; False when another worker has it."""
        self.call(session)
        held = self._held.get(session)
        if held is None or held.task is None:
            yield False
            return
        held.pins += 1
        try:
            claimed = asyncio.create_task(held.claimed.wait())
            await asyncio.wait({claimed, held.task}, return_when=asyncio.FIRST_COMPLETED)
            claimed.cancel()
            yield held.claimed.is_set()
        finally:
            held.pins -= 1
            held.called.set()

    # -- life ------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._keeper = asyncio.create_task(self._keep(), name="usher")

    def pause(self) -> None:
        """Take no more in: what arrives waits for other workers. What this one has it keeps for now."""
        self._stopping = True
        for held in self._held.values():
            held.called.set()

    @property
    def stopping(self) -> bool:
        return self._stopping

    async def stop(self) -> None:
        """Give all sessions back, and call others to those in which something waits."""
        self._stopping = True
        tasks = [held.task for held in self._held.values() if held.task is not None]
        sessions = list(self._held)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        for start in range(0, len(sessions), _TOGETHER):
            part = sessions[start : start + _TOGETHER]
            done = await asyncio.gather(*map(self._store.release_session, part), return_exceptions=True)
            if fault := next((one for one in done if isinstance(one, BaseException)), None):
                log.warning("claims end by themselves: %s", fault)
        for session in sessions:
            self._hand_over(session)

    def _hand_over(self, session: str) -> None:
        if others := self._wire.workers():
            self._wire.tell(ranked(others, session)[0], "call", [session])

    # -- one session -----------------------------------------------------------------------------------

    async def _serve(self, held: _Held) -> None:
        session = held.session
        current_session.set(session)
        pause = 0.2
        try:
            while True:
                try:
                    if not held.claimed.is_set() and not await self._claim(held):
                        return
                    if await self._visit(held):
                        return
                except SessionLost as error:
                    log.info("%s", error)
                    await self._sessions.abandon(session)
                    return
                except StoreError as error:
                    log.warning("session %s waits for the store: %s", session, error)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 10.0)
        finally:
            held.claimed.clear()
            if self._held.get(session) is held:
                del self._held[session]

    async def _claim(self, held: _Held) -> bool:
        session = held.session
        if await self._store.claim_session(session, self._lease) is None:
            return False
        held.claimed.set()
        if await self._store.waiting_count(session):
            self._sessions.wake(session, recovering=True)
        return True

    async def _visit(self, held: _Held) -> bool:
        """Take in what has arrived; whether the session was given back after that."""
        held.called.clear()
        await self._take_in(held)
        waited = 0.0
        while not held.called.is_set() and waited < _LOOK_AGAIN:
            waited += self._linger
            try:
                async with asyncio.timeout(self._linger):
                    await held.called.wait()
            except TimeoutError:
                if not self._needed(held):
                    break
        while self._stopping and self._needed(held):  # noqa: ASYNC110 - nobody tells us when all is done
            await asyncio.sleep(_STOP_LOOK)
        if self._needed(held) or (held.called.is_set() and not self._stopping):
            return False
        held.claimed.clear()
        await self._store.release_session(held.session)
        if self._stopping:
            self._hand_over(held.session)
        return not held.called.is_set() or self._stopping  # else it came back in that moment

    def _needed(self, held: _Held) -> bool:
        session = held.session
        working = self._sessions.works_on(session) or self._delivery.delivers(session=session)
        return held.pins > 0 or working

    async def _take_in(self, held: _Held) -> None:
        """All that has arrived, in its order."""
        while not self._stopping:
            items = await self._store.arrivals.read(held.session, _ITEMS)
            if not items:
                return
            done, empty = 0, False
            try:
                for item in items:
                    await self._take(item)
                    done += 1
            finally:
                if done:
                    empty = await self._store.arrivals.consume(held.session, done)
            if empty:
                return  # what comes now calls again

    async def _take(self, item: Any) -> None:
        """One item that has arrived. A fault of ours must not hold up what comes behind it."""
        for tried in range(1, _MOST_FAULTS + 1):
            try:
                if "reply" in item:
                    await self._send(StoredReply(**item["reply"]))
                else:
                    await self._receive(Inbound.from_json(item["inbound"]))
                return
            except StoreError:
                raise
            except Exception:
                log.exception("a message could not be taken in (try %d of %d)", tried, _MOST_FAULTS)
        log.error("a message is given up after %d faults", _MOST_FAULTS)

    async def _send(self, reply: StoredReply) -> None:
        kept = await self._store.reply(reply.id)
        if kept is None:
            await self._store.open_reply(reply)
        if kept is None or kept.state == "complete":
            self._delivery.deliver(kept or reply)

    # -- all sessions ----------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Renew the claims, and look for sessions that nobody has."""
        while True:
            await asyncio.sleep(self._lease / 3)
            try:
                await self._renew()
                if not self._stopping and time.monotonic() >= self._quiet_until:
                    await self._look()
            except StoreError as error:
                # While the store was away nobody could renew: give the others time to do it.
                self._quiet_until = time.monotonic() + self._lease
                log.warning("sessions cannot be looked after: %s", error)
            except Exception:
                # Whatever it is, claims must go on being renewed.
                log.exception("looking after sessions failed")

    async def _renew(self) -> None:
        held = [one for one in self._held.values() if one.claimed.is_set()]
        for start in range(0, len(held), _TOGETHER):
            part = held[start : start + _TOGETHER]
            renewals = (self._store.renew_session(one.session, self._lease) for one in part)
            kept = await asyncio.gather(*renewals)
            for one, still in zip(part, kept, strict=True):
                if not still and one.claimed.is_set() and self._held.get(one.session) is one:
                    await self._lost(one)

    async def _lost(self, held: _Held) -> None:
        log.warning("session %s is another worker's now", held.session)
        if held.task is not None:
            held.task.cancel()
            await asyncio.wait({held.task})
        await self._sessions.abandon(held.session)

    async def _look(self) -> None:
        free = [one for one in await self._store.arrivals.unclaimed(_LOOK) if one not in self._held]
        self._seen_free = Counter({one: self._seen_free[one] + 1 for one in free})
        everybody = [self._wire.name, *self._wire.workers()]
        mine = [
            one
            for one in free
            if ranked(everybody, one)[0] == self._wire.name or self._seen_free[one] >= _PATIENCE
        ]
        for session in mine[:_MOST_NEW]:
            self.call(session)
        await self._owed()

    async def _owed(self) -> None:
        """Answers that need no run and whose worker died before they were delivered."""
        for reply in await self._store.owed(list(self._delivery.channels), self._lease):
            if self.has(reply.session):
                if not self._delivery.delivers(reply.id):
                    self._delivery.deliver(reply)
            elif not (await self._store.arrivals.holders([reply.session]))[0]:
                self.call(reply.session)  # delivered at the next look
