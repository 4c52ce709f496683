"""The counters of the use limits in Redis, shared by all processes.

They lie in one slot of a Redis Cluster, so that a message is counted against its person, its chat and the
total in one step or not at all. A counter of messages is a set of the messages of the last minute by the time
at which they came: counting one twice is counting it once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from bridge.store import redis_scripts as lua
from bridge.store.base import DAY, MINUTE, Bound, Reached
from bridge.store.redis_scripts import OPERATION_SECONDS, Command
from bridge.store.redis_state import Desk

#: A day's counters are kept for so long: until it is over for the last clock that is not quite right.
_DAY_SECONDS = 2 * 86_400
_AT_ONCE = 1000


class RedisMeter:
    """Implements `bridge.store.base.Meter`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def _of_day(self, now: float, *parts: str) -> tuple[str, ...]:
        return self._desk.keys.of_limits(f"tokens:{now // DAY:.0f}", *parts)

    async def admit(self, message: str, now: float, bounds: Sequence[Bound]) -> Reached | None:
        counters = self._desk.keys.of_limits(*(f"messages:{bound.counter}" for bound in bounds))
        id = hashlib.blake2b(message.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
        numbers = [part for bound in bounds for part in (bound.counter, bound.messages, bound.tokens)]
        step = lua.ADMIT((*self._of_day(now), *counters), id, f"{now:.6f}", round(MINUTE), *numbers)
        found = await self._desk.writer.one(step)
        if found is None:
            return None
        bound = bounds[int(found[0]) - 1]
        if found[1] == "tokens":
            return Reached(bound.counter, "tokens")
        return Reached(bound.counter, "messages", float(found[2]) + MINUTE - now)

    async def spend(self, now: float, tokens: Mapping[str, int]) -> None:
        keys = self._of_day(now, f"op:{self._desk.operation()}")
        fields = [part for item in tokens.items() for part in item]
        await self._desk.writer.one(lua.ADD(keys, OPERATION_SECONDS, _DAY_SECONDS, *fields))

    async def begin(self, now: float, tokens: Mapping[str, int]) -> None:
        [key], items = self._of_day(now), list(tokens.items())
        for start in range(0, len(items), _AT_ONCE):
            steps: list[Command] = [("HSETNX", key, *item) for item in items[start : start + _AT_ONCE]]
            await self._desk.writer.run(*steps, ("EXPIRE", key, _DAY_SECONDS))
