"""A session's history as its agent holds it: what is in memory is never ahead of the disk."""

from __future__ import annotations

import asyncio

from agent.history import Entry, HistoryStore, of_run


class Conversation:
    """Loaded at the first use. Raises the store's errors."""

    def __init__(self, session: str, store: HistoryStore) -> None:
        self.session = session
        self._store = store
        self._entries: list[Entry] | None = None

    async def entries(self) -> list[Entry]:
        """All entries, oldest first; not to be changed."""
        if self._entries is None:
            self._entries = await self._store.load(self.session)
        return self._entries

    async def of_run(self, run: str) -> list[Entry]:
        """The entries that a run wrote."""
        return of_run(await self.entries(), run)

    async def add(self, *entries: Entry) -> None:
        """Store entries, then know them."""
        loaded = await self.entries()
        write = asyncio.ensure_future(self._store.append(self.session, entries))
        try:
            await asyncio.shield(write)
        except asyncio.CancelledError:
            # The write was begun and will be committed: memory and disk must agree on it.
            await asyncio.wait({write})
            if not write.cancelled() and write.exception() is None:
                loaded.extend(entries)
            raise
        loaded.extend(entries)

    async def clear(self) -> None:
        await self._store.clear(self.session)
        self._entries = []
