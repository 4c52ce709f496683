"""Where versions of skills lie when no git repository holds them: in the store, one body a version."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Coroutine
from typing import Any, TypeVar

from channels.base import ChannelState

#: The store's notes under which the versions lie: `store.channel_state(VERSIONS_SCOPE)`.
VERSIONS_SCOPE = "~skill-versions"
_INDEX = "index"
_MOST_NAMES = 100_000
_DEADLINE = 60.0
T = TypeVar("T")


class StoreShelf:
    """Numbered bodies by name, in the bridge's store. Called in threads, which wait while the store works on
    `loop`. Raises OSError when a body cannot be had or kept."""

    def __init__(self, notes: ChannelState, loop: asyncio.AbstractEventLoop) -> None:
        self._notes = notes
        self._loop = loop

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(_DEADLINE)
        except Exception as error:
            # Whatever the store raises (full, closed, too slow) means the same here: it could not be done.
            raise OSError(f"the store did not take it: {error}") from error

    def index(self) -> dict[str, list[int]]:
        """The numbers that each name has, ascending."""
        found = {}
        for entry in self._wait(self._notes.read(_INDEX, 0, _MOST_NAMES)):
            numbers = entry.value.get("numbers")
            if isinstance(numbers, list):
                found[entry.id] = sorted(n for n in numbers if isinstance(n, int))
        return found

    def read(self, name: str, number: int) -> bytes:
        kept = self._wait(self._notes.get(f"{name}/{number}"))
        if not isinstance(kept, str):
            raise OSError("there is no such version")
        return base64.b64decode(kept)

    def write(self, name: str, number: int, body: bytes, older: list[int], drop: list[int]) -> None:
        """Keep a body beside those with the numbers `older`, and let those with the numbers `drop` go."""

        async def all_of_it() -> None:
            # The body first: what a crash leaves without its number in the index is written over later.
            await self._notes.put(f"{name}/{number}", base64.b64encode(body).decode("ascii"))
            await self._notes.append(_INDEX, name, {"numbers": [*older, number]})
            for old in drop:
                await self._notes.put(f"{name}/{old}", None)

        self._wait(all_of_it())
