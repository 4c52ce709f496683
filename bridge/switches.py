"""Which tools an admin has switched off, kept in the store."""

from __future__ import annotations

from collections.abc import Iterable

from bridge.store.base import Store

_SCOPE, _KEY = "tools", "off"


class StoredSwitches:
    """Implements `agent.tools.manager.Switches`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def load(self) -> Iterable[str]:
        kept = await self._store.get_setting(_SCOPE, _KEY)
        return [name for name in kept if isinstance(name, str)] if isinstance(kept, list) else []

    async def save(self, off: frozenset[str]) -> None:
        await self._store.put_setting(_SCOPE, _KEY, sorted(off))
