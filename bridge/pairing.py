"""How unknown people are let in: a code that they show, and an admin's yes.

A request lives for an hour and at most three wait for a channel. An invitation is the same the other way
round: an admin makes a code, and who writes `/start CODE` is let in. Codes use characters that are not
mistaken for one another.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Literal

from agent.tools.base import Role
from bridge.access import Access, Grants
from bridge.approvals import CLEAR
from bridge.store.base import Store
from channels.base import Address, Inbound

log = logging.getLogger("causeway.pairing")

LENGTH = 8
SECONDS = 3600.0
INVITE_SECONDS = 24 * 3600.0
MOST_WAITING = 3
#: Invitations that a person may try in an hour.
MOST_TRIES = 5
_REMEMBERED = 10_000
#: The same person is told their code again at most so often, in seconds.
_AGAIN = 60.0
_REQUESTS, _INVITES, GRANTS = "pairing", "invite", "grant"


@dataclass(frozen=True, slots=True)
class Request:
    """Somebody asks to be let in."""

    code: str
    channel: str
    person: str
    name: str
    at: float
    told: float
    address: dict[str, str | None]
    language: str = ""

    @property
    def where(self) -> Address:
        return Address(**self.address)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Invite:
    code: str
    channel: str
    role: Role
    at: float


class Pairing:
    """Requests, invitations and grants, all in the store; a grant counts at once."""

    def __init__(self, store: Store, grants: Grants, clock: Callable[[], float]) -> None:
        self._store = store
        self._grants = grants
        self._clock = clock
        #: Told when grants have changed: other processes read them anew.
        self.announce: Callable[[], None] = lambda: None
        self._one_by_one = asyncio.Lock()  # a code works once, also for two who send it at the same moment
        self._tries: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()

    async def load(self) -> None:
        """Bring the grants into memory; also later, when another process may have given some."""
        for _ in range(5):  # where one is given each time, the next load has them all
            before = self._grants.changes
            stored = await self._store.settings(GRANTS)
            roles = await asyncio.to_thread(self._grants.read, stored)  # there may be very many
            if self._grants.changes == before:
                self._grants.load(roles)
                return

    async def look_up(self, channel: str, person: str) -> None:
        """Bring one person's grant into memory: another process may have given it."""
        stored = await self._store.get_setting(GRANTS, key := f"{channel}\0{person}")
        if role := self._grants.read({key: stored}).get(channel, {}).get(person):
            self._grants.give(channel, person, role)

    async def waiting(self, channel: str | None = None) -> list[Request]:
        """Requests that are still valid, oldest first; those that are not are put away."""
        found = []
        for code, stored in (await self._store.settings(_REQUESTS)).items():
            request = Request(**stored) if isinstance(stored, dict) else None
            if request is None or abs(self._clock() - request.at) > SECONDS:  # or the clock was set back
                await self._store.put_setting(_REQUESTS, code, None)
            elif channel in (None, request.channel):
                found.append(request)
        return sorted(found, key=lambda one: one.at)

    async def ask(self, inbound: Inbound) -> tuple[Literal["new", "again", "quiet", "full"], str]:
        """An unknown person wrote. Returns what to do and their code: tell it for the first time, tell it
        again, say nothing (they have just been told), or say that too many wait."""
        channel, sender, now = inbound.address.channel, inbound.sender, self._clock()
        waiting = await self.waiting(channel)
        mine = next((one for one in waiting if one.person == sender.id), None)
        if mine is not None:
            if 0 <= now - mine.told < _AGAIN:
                return "quiet", mine.code
            await self._store.put_setting(_REQUESTS, mine.code, asdict(replace(mine, told=now)))
            return "again", mine.code
        if len(waiting) >= MOST_WAITING:
            return "full", ""
        request = Request(
            _code(), channel, sender.id, sender.name[:100], now, now, asdict(inbound.address), sender.language
        )
        await self._store.put_setting(_REQUESTS, request.code, asdict(request))
        return "new", request.code

    async def request(self, code: str) -> Request | None:
        """The request of a code, while it waits."""
        return next((one for one in await self.waiting() if one.code == clean(code)), None)

    async def approve(self, code: str, by: str, role: Role | None = None) -> tuple[Request, Role] | None:
        """Let the person of a request in; None when there is no such request (any more). Without a `role`
        they become a member."""
        request = await self._take(code)
        if request is None:
            return None
        given: Role = role or "member"
        await self.grant(request.channel, request.person, given, by)
        return request, given

    async def deny(self, code: str) -> Request | None:
        return await self._take(code)

    async def _take(self, code: str) -> Request | None:
        async with self._one_by_one:
            found = await self.request(code)
            if found is not None:
                await self._store.put_setting(_REQUESTS, found.code, None)
            return found

    async def grant(self, channel: str, person: str, role: Role, by: str) -> None:
        value = {"role": role, "by": by, "at": self._clock()}
        await self._store.put_setting(GRANTS, f"{channel}\0{person}", value)
        self._grants.give(channel, person, role)
        self.announce()

    async def revoke(self, channel: str, person: str) -> bool:
        known = self._grants.role(channel, person) is not None
        await self._store.put_setting(GRANTS, f"{channel}\0{person}", None)
        self._grants.take(channel, person)
        self.announce()
        return known

    # -- invitations -----------------------------------------------------------------------------------

    async def invite(self, channel: str, role: Role) -> str:
        """A code that lets one person in, for a day."""
        invite = Invite(_code(), channel, role, self._clock())
        await self._store.put_setting(_INVITES, invite.code, asdict(invite))
        return invite.code

    async def accept(self, code: str, inbound: Inbound) -> Role | None:
        """`/start CODE`: the role that the invitation gave; None when it is not valid here, or when this
        person has tried too many codes."""
        if not self._may_try(inbound.address.channel, inbound.sender.id):
            log.warning("%s tries codes; no more of them are looked at for now", inbound.sender.id)
            return None
        async with self._one_by_one:
            stored = await self._store.get_setting(_INVITES, clean(code))
            invite = Invite(**stored) if isinstance(stored, dict) else None
            if invite is None or invite.channel != inbound.address.channel:
                return None
            await self._store.put_setting(_INVITES, invite.code, None)
        if abs(self._clock() - invite.at) > INVITE_SECONDS:
            return None
        await self.grant(invite.channel, inbound.sender.id, invite.role, "invitation")
        return invite.role

    def _may_try(self, channel: str, person: str) -> bool:
        """Count a try of a code; whether it may be looked at."""
        tries = self._tries.setdefault((channel, person), deque(maxlen=MOST_TRIES))
        self._tries.move_to_end((channel, person))
        if len(self._tries) > _REMEMBERED:
            self._tries.popitem(last=False)
        if len(tries) == MOST_TRIES and 0 <= self._clock() - tries[0] < SECONDS:
            return False
        tries.append(self._clock())
        return True


def has_admin(access: Access, channel: str) -> bool:
    """Whether anybody is an admin of a channel, by the configuration or by a grant."""
    return bool(access.rule(channel).admins or access.grants.admins(channel))


def clean(code: str) -> str:
    """A code as people type it: any case, with spaces or dashes."""
    return "".join(c for c in code.upper() if c.isalnum())[:32]


def _code() -> str:
    return "".join(secrets.choice(CLEAR) for _ in range(LENGTH))
