"""Names of people and channels, asked of Slack once and remembered for a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from channels.base import Sender as Person
from channels.slack.api import Api, ApiError
from channels.slack.bounded import Owned, Recent
from channels.slack.mrkdwn_in import Names

log = logging.getLogger("causeway.slack")

#: Entries kept (the one used longest ago goes first), and seconds that one stays good; an id that could not
#: be asked is tried again sooner.
REMEMBERED = 5000
LIFE, RETRY = 3600.0, 60.0
#: A message waits no longer for names (seconds); what is not known by then appears as its id.
PATIENCE = 1.0
_MOST_QUESTIONS = 20


class People:
    """The names of one workspace. Failures are logged, never raised: a name is a nicety."""

    def __init__(self, api: Api, clock: Callable[[], float]) -> None:
        self._api, self._clock = api, clock
        self._known: Recent[str, tuple[float, Person]] = Recent(REMEMBERED)
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._quiet_until = 0.0

    async def names(self, users: Iterable[str], channels: Iterable[str] = ()) -> Names:
        """What these ids are called, as far as it is known within `PATIENCE`."""
        users, channels = list(users)[:_MOST_QUESTIONS], list(channels)[:_MOST_QUESTIONS]
        await self._learn([*users, *channels])
        named = ({id: self.known(id).name for id in ids} for ids in (users, channels))
        return Names(*named)

    def known(self, user: str) -> Person:
        """What is known of a person without asking."""
        return self._recall(user) or Person(user)

    def forget(self, id: str) -> None:
        """Somebody or something was renamed."""
        self._known.pop(id, None)

    async def close(self) -> None:
        await Owned(self._asking.values()).end()

    def _recall(self, id: str) -> Person | None:
        entry = self._known.get(id)
        if entry is None or entry[0] < self._clock():
            return None
        self._known.move_to_end(id)
        return entry[1]

    async def _learn(self, ids: Iterable[str]) -> None:
        unknown = {id for id in ids if id and self._recall(id) is None}
        if not unknown or 0 < self._quiet_until - self._clock() <= LIFE:
            return
        for id in unknown - self._asking.keys():
            task = asyncio.create_task(self._ask(id), name=f"name of {id}")
            self._asking[id] = task
            task.add_done_callback(lambda _, id=id: self._asking.pop(id, None))  # type: ignore[misc]
        # The questions go on when we stop waiting: the next message will have the names.
        await asyncio.wait([self._asking[id] for id in unknown], timeout=PATIENCE)

    async def _ask(self, id: str) -> None:
        person, life = Person(id), RETRY
        try:
            if id[0] in "UW":
                answer = await self._api.call("users.info", user=id, include_locale=True)
                person = _person(id, answer.get("user") or {})
            else:
                answer = await self._api.call("conversations.info", channel=id)
                person = Person(id, str((answer.get("channel") or {}).get("name") or ""))
            life = LIFE
        except ApiError as error:
            if error.retry_after:
                self._quiet_until = self._clock() + error.retry_after
            log.info("the name of %s is not known: %s", id, error)
        self._known[id] = (self._clock() + life, person)


def _person(id: str, user: dict[str, Any]) -> Person:
    profile = user.get("profile") or {}
    names = (profile.get("display_name"), profile.get("real_name"), user.get("real_name"), user.get("name"))
    name = next(filter(None, (str(name or "").strip() for name in names)), "")
    return Person(id, name, bool(user.get("is_bot")), str(user.get("locale") or ""))
