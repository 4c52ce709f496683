"""Several models as one: the next takes over when one is down or its key is refused."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from agent.models.base import Delta, Model, ModelError, Request, Text, Unauthorised

log = logging.getLogger("causeway.models")

#: Failures in a row after which a model rests, and seconds that it does.
PATIENCE = 2
REST = 60.0


@dataclass(slots=True)
class _Place:
    model: Model
    failures: int = 0
    rests_until: float = 0.0


class FailoverModel:
    """Asks the first model that is not resting.

    One failure that may pass is raised as any model's is, so that the caller waits and asks again; after
    `PATIENCE` of them in a row, or a refused key, the model rests and the next is asked, in the same call
    when no text came yet. When all rest, the one whose rest ends first is asked. Faults of the request
    itself (too long, refused, bad) are raised: they would fail elsewhere too.
    """

    def __init__(self, models: Sequence[Model], clock: Callable[[], float] = time.monotonic) -> None:
        if not models:
            raise ValueError("a failover needs at least one model")
        self._places = [_Place(model) for model in models]
        self._clock = clock
        #: The name of the model that answered last, at first of the one that is asked first.
        self.name = models[0].name

    def _order(self) -> list[_Place]:
        now = self._clock()
        # Those awake in their own order (the sort is stable), then those whose rest ends first.
        return sorted(self._places, key=lambda place: max(now, place.rests_until))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        order = self._order()
        for number, place in enumerate(order):
            said = False
            stream: Any = place.model.stream(request)
            try:
                async with aclosing(stream) as deltas:
                    async for delta in deltas:
                        said = said or isinstance(delta, Text)
                        yield delta
            except ModelError as error:
                rests = self._note(place, error)
                if said or not rests or number == len(order) - 1:
                    raise
                then = order[number + 1].model.name
                log.warning("Model %s failed (%s); asking %s", place.model.name, error.kind, then)
            else:
                place.failures, place.rests_until = 0, 0.0
                self.name = place.model.name
                return

    def _note(self, place: _Place, error: ModelError) -> bool:
        """Count the failure; whether the model rests now."""
        if not error.retryable and not isinstance(error, Unauthorised):
            return False
        place.failures += 1
        if place.failures < PATIENCE and error.retryable:
            return False
        place.rests_until = self._clock() + max(REST, error.retry_after or 0.0)
        return True

    async def warm(self) -> None:
        """Warm the first model; the others load when they are needed. Raises ModelError."""
        await self._places[0].model.warm()

    async def close(self) -> None:
        """Close all models, also when one of them fails to."""
        results = await asyncio.gather(*(p.model.close() for p in self._places), return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                log.warning("A model could not be closed: %s", type(result).__name__)
