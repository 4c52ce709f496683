"""The counters of the use limits in the memory of the one process that works on a store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from bridge.store.base import DAY, MINUTE, Bound, Reached

_REMEMBERED = 10_000


class MemoryMeter:
    """Implements `bridge.store.base.Meter`. Messages of the 10,000 counters asked for last are known."""

    def __init__(self) -> None:
        self._messages: OrderedDict[str, dict[str, float]] = OrderedDict()
        self._tokens: dict[str, int] = {}
        self._day = 0

    async def admit(self, message: str, now: float, bounds: Sequence[Bound]) -> Reached | None:
        recent = {bound.counter: self._recent(bound.counter, now) for bound in bounds if bound.messages}
        if any(message in counted for counted in recent.values()):
            return None
        spent = self._spent(now)
        for bound in bounds:
            if bound.tokens and spent.get(bound.counter, 0) >= bound.tokens:
                return Reached(bound.counter, "tokens")
            if bound.messages and len(counted := recent[bound.counter]) >= bound.messages:
                return Reached(bound.counter, "messages", next(iter(counted.values())) + MINUTE - now)
        for counted in recent.values():
            counted[message] = now
        return None

    def _recent(self, counter: str, now: float) -> dict[str, float]:
        counted = self._messages.setdefault(counter, {})
        self._messages.move_to_end(counter)
        # What lies ahead of a clock that was set back is not waited for.
        for message in [message for message, at in counted.items() if not now - MINUTE < at <= now]:
            del counted[message]
        if len(self._messages) > _REMEMBERED:
            self._messages.popitem(last=False)
        return counted

    def _spent(self, now: float) -> dict[str, int]:
        if (day := int(now // DAY)) != self._day:
            self._day, self._tokens = day, {}
        return self._tokens

    async def spend(self, now: float, tokens: Mapping[str, int]) -> None:
        spent = self._spent(now)
        for counter, number in tokens.items():
            spent[counter] = spent.get(counter, 0) + number

    async def begin(self, now: float, tokens: Mapping[str, int]) -> None:
        spent = self._spent(now)
        for counter, number in tokens.items():
            spent.setdefault(counter, number)
