"""Turns at running: so many at once in all, so many a person and a chat, and fair between people."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class _Waiter:
    chat: str
    ready: asyncio.Future[None] = field(repr=False)


class Slots:
    """`total`, `person`, `chat`: most runs at once (0: no limit of that kind).

    People who wait take turns: a person with many chats gets no more of the free slots than one with a
    single one. Within a person the order is that of asking.
    """

    def __init__(self, total: int, person: int = 0, chat: int = 0) -> None:
        self._total, self._person, self._chat = total, person, chat
        self._running = 0
        self._by_person: Counter[str] = Counter()
        self._by_chat: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[_Waiter]] = OrderedDict()

    @property
    def running(self) -> int:
        return self._running

    @asynccontextmanager
    async def hold(self, person: str, chat: str) -> AsyncIterator[None]:
        """Wait for a slot and hold it. Cancelling gives the place in the queue back."""
        if self._waiting.get(person) or not self._free(person, chat):
            waiter = _Waiter(chat, asyncio.get_running_loop().create_future())
            self._waiting.setdefault(person, deque()).append(waiter)
            self._admit()
            try:
                await waiter.ready
            except BaseException:
                self._left(person, waiter)
                raise
        else:
            self._take(person, chat)
        try:
            yield
        finally:
            self._give_back(person, chat)

    def _free(self, person: str, chat: str) -> bool:
        return (
            self._running < self._total
            and not (self._person and self._by_person[person] >= self._person)
            and not (self._chat and self._by_chat[chat] >= self._chat)
        )

    def _take(self, person: str, chat: str) -> None:
        self._running += 1
        self._by_person[person] += 1
        self._by_chat[chat] += 1

    def _give_back(self, person: str, chat: str) -> None:
        self._running -= 1
        for counter, key in ((self._by_person, person), (self._by_chat, chat)):
            counter[key] -= 1
            if counter[key] <= 0:
                del counter[key]
        self._admit()

    def _admit(self) -> None:
        """Give free slots to those who wait, one a person in turn."""
        admitted = True
        while admitted and self._running < self._total:
            admitted = False
            for person in list(self._waiting):
                queue = self._waiting[person]
                found = next((w for w in queue if self._free(person, w.chat)), None)
                if found is None:
                    continue
                queue.remove(found)
                if queue:
                    self._waiting.move_to_end(person)
                else:
                    del self._waiting[person]
                self._take(person, found.chat)
                found.ready.set_result(None)
                admitted = True

    def _left(self, person: str, waiter: _Waiter) -> None:
        if waiter.ready.done() and not waiter.ready.cancelled():
            self._give_back(person, waiter.chat)  # it had just been given a slot
            return
        queue = self._waiting.get(person)
        if queue and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._waiting[person]
