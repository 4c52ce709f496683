"""One lane for each chat: what belongs to one chat goes in order, chats never wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager
from typing import Any


class Busy(Exception):
    """Too much waits already; try again later."""


class Lanes:
    """Lets one at a time through for each key, in the order of arrival; at most `most` wait or work."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._locks: dict[Hashable, asyncio.Lock] = {}
        self._waiting: dict[Hashable, int] = {}
        self._all = 0

    @asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[None]:
        """Raises Busy at once when `most` are there."""
        if self._all >= self._most:
            raise Busy(f"{self._most} updates are under way")
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._waiting[key] = self._waiting.get(key, 0) + 1
        self._all += 1
        try:
            async with lock:
                yield
        finally:
            self._all -= 1
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key], self._locks[key]

    def __len__(self) -> int:
        return self._all


def lane_of(update: Mapping[str, Any]) -> Hashable:
    """The chat whose order an update belongs to. A pressed button waits for nothing: a run may be waiting
    for that very button."""
    for kind, part in update.items():
        if isinstance(part, Mapping) and isinstance(part.get("chat"), Mapping) and kind != "callback_query":
            return part.get("business_connection_id"), part["chat"].get("id")
    return "alone", update.get("update_id")
