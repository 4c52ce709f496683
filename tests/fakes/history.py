"""A history store in memory that keeps, like the real ones, what was written and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from agent.history import Entry, Tail, entry_from_json, entry_to_json, same_run


class MemoryHistory:
    def __init__(self) -> None:
        self._rows: dict[str, list[dict[str, object]]] = {}

    async def load(self, session: str) -> list[Entry]:
        return self._whole(session)

    def _whole(self, session: str) -> list[Entry]:
        return [entry_from_json(row) for row in self._rows.get(session, [])]

    async def tail(self, session: str, least: int) -> Tail:
        entries = self._whole(session)
        cut = max(0, len(entries) - least)
        while cut > 0 and same_run(entries[cut - 1], entries[cut]):
            cut -= 1
        return Tail(cut, entries[cut:])

    async def count(self, session: str) -> int:
        return len(self._rows.get(session, []))

    async def exists(self, session: str) -> bool:
        return bool(self._rows.get(session))

    async def append(self, session: str, entries: Sequence[Entry]) -> None:
        self._rows.setdefault(session, []).extend(entry_to_json(entry) for entry in entries)

    async def clear(self, session: str) -> None:
        self._rows.pop(session, None)
