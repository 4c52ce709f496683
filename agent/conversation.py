"""A session's history as its agent holds it: its newest part, and never ahead of the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agent.history import Entry, HistoryStore, of_run, same_run


class Conversation:
    """Loaded at the first use: the newest `least` entries and the whole run that the oldest of them belongs
    to, so that a session costs the same however much was said before. Raises the store's errors."""

    def __init__(self, session: str, store: HistoryStore, least: int = 200) -> None:
        self.session = session
        self._store = store
        self._least = least
        self._before = 0
        self._entries: list[Entry] | None = None

    async def entries(self) -> list[Entry]:
        """The newest entries, oldest first; empty only for a session without any. Not to be changed."""
        if self._entries is None:
            tail = await self._store.tail(self.session, self._least)
            self._before, self._entries = tail.before, tail.entries
        return self._entries

    @property
    def before(self) -> int:
        """How many entries of the history stand before `entries`, once these are loaded."""
        return self._before

    async def of_run(self, run: str) -> list[Entry]:
        """The entries that a run wrote."""
        return of_run(await self.entries(), run)

    async def add(self, *entries: Entry) -> None:
        """Store entries, then know them."""
        await self.entries()
        write = asyncio.ensure_future(self._store.append(self.session, entries))
        try:
            await asyncio.shield(write)
        except asyncio.CancelledError:
            # The write was begun and will be committed: memory and disk must agree on it.
            await asyncio.wait({write})
            if not write.cancelled() and write.exception() is None:
                self._know(entries)
            raise
        self._know(entries)

    def _know(self, entries: Sequence[Entry]) -> None:
        known = self._entries
        assert known is not None, "it was loaded before the write"
        known.extend(entries)
        cut = len(known) - self._least
        if cut <= self._least:
            return
        while cut > 0 and same_run(known[cut - 1], known[cut]):
            cut -= 1
        # A new list: whoever holds the old one keeps what it holds.
        self._entries = known[cut:]
        self._before += cut

    async def clear(self) -> None:
        await self._store.clear(self.session)
        self._entries, self._before = [], 0
