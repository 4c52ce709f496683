"""Members' names: asked for once, kept for a day, never waited for long."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable

from channels.wecom.api import Api, ApiError

log = logging.getLogger("causeway.wecom")

_KEPT = 2000
_GOOD, _UNKNOWN = 24 * 3600.0, 600.0
#: Seconds. A message is not acknowledged before its sender's name is known, and WeCom waits for five.
PATIENCE = 1.5
#: WW 90313: the application may not read its members (or nobody may from here). It is asked again in an hour.
_NO_RIGHT = frozenset({48002, 60011, 60020, 301002})
_REST = 3600.0


class People:
    """Names by member id. The `_KEPT` used last are kept; a name that cannot be had is "" for ten minutes."""

    def __init__(self, api: Api, clock: Callable[[], float], *, patience: float = PATIENCE) -> None:
        self._api = api
        self._clock = clock
        self._patience = patience
        self._names: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._asking: dict[str, tuple[asyncio.Task[None], float]] = {}  # and until when it is waited for
        self._rest_until = 0.0

    async def name(self, person: str) -> str:
        """The member's name, or "" when it is not known within the patience."""
        kept = self._names.get(person)
        if kept is not None and kept[1] > self._clock():
            self._names.move_to_end(person)
            return kept[0]
        loop = asyncio.get_running_loop()
        asked = self._asking.get(person)
        if asked is None and self._clock() >= self._rest_until and len(self._asking) < _KEPT:
            task = asyncio.create_task(self._ask(person), name="member's name")
            asked = self._asking[person] = task, loop.time() + self._patience
            task.add_done_callback(lambda _: self._asking.pop(person, None))
        if asked is not None:
            # Messages come one after another: together they wait no longer than one would.
            await asyncio.wait({asked[0]}, timeout=max(asked[1] - loop.time(), 0))
        found = self._names.get(person)
        return found[0] if found else ""

    async def _ask(self, person: str) -> None:
        name, until = "", self._clock() + _UNKNOWN
        try:
            answer = await self._api.get("user/get", userid=person)
            name, until = str(answer.get("name") or ""), self._clock() + _GOOD
        except ApiError as error:
            if error.code in _NO_RIGHT:
                self._rest_until = self._clock() + _REST
                log.warning("members' names are not shown for an hour: %s", error)
            else:
                log.info("a member's name is not known: %s", error)
        # An older name is better than none.
        name = name or self._names.get(person, ("", 0.0))[0]
        self._names[person] = (name, until)
        self._names.move_to_end(person)
        if len(self._names) > _KEPT:
            self._names.popitem(last=False)

    async def close(self) -> None:
        tasks = [task for task, _ in self._asking.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
