"""Sessions: one runner each, strictly in order, independent of all others; this module owns them all."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from agent.agent import Agent
from agent.skills.counts import SkillCounts
from agent.skills.manager import SkillManager
from bridge.access import Access
from bridge.approvals import Approvals
from bridge.delivery import Delivery
from bridge.keys import Scope, key_of
from bridge.ledger import Ledger
from bridge.notes import BusyMode, Notes
from bridge.offers import Source
from bridge.overheard import Overheard
from bridge.questions import Questions
from bridge.runner import Runner
from bridge.slots import Slots
from bridge.store.base import Store
from bridge.turns import Intake
from channels.base import Channel, ChatKind, Inbound

log = logging.getLogger("causeway.sessions")

_REMEMBERED = 10_000
_SCOPES: Mapping[ChatKind, Scope] = {"direct": "thread", "group": "thread", "channel": "thread"}


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """`idle`: seconds until an idle runner leaves memory. `running`, `person_running`, `chat_running`: most
    runs at once in this process, of a person, in a chat (0: no limit of that kind). `busy`: what happens to
    a message that comes during a run. `debounce`: seconds of quiet before waiting messages are put together
    (`collect`). `album`: the same for the parts of an album. `reset`: when a conversation begins anew by
    itself; `reset_hour` (local time) for `daily`, `reset_idle` (seconds) for `idle`."""

    idle: float = 60.0
    running: int = 1000
    person_running: int = 0
    chat_running: int = 0
    busy: BusyMode = "queue"
    debounce: float = 0.0
    album: float = 1.0
    reset: Literal["never", "daily", "idle"] = "never"
    reset_hour: int = 4
    reset_idle: float = 24 * 3600.0
    scopes: Mapping[ChatKind, Scope] = field(default_factory=lambda: _SCOPES)


@dataclass(frozen=True, slots=True)
class Office:
    """What runners work with."""

    store: Store
    delivery: Delivery
    channels: Mapping[str, Channel]
    access: Access
    new_agent: Callable[[str, Path], Agent]
    folder: Callable[[str], Path]
    delivered: Callable[[], None]
    offers: Source
    questions: Questions
    approvals: Approvals
    overheard: Overheard
    notes: Notes
    ledger: Ledger
    skills: SkillManager
    counts: SkillCounts
    clock: Callable[[], float]
    intake: Intake = field(default_factory=Intake)


class Having(Protocol):
    """Which sessions this process may work on, where several share a store."""

    def has(self, session: str) -> bool: ...

    def call(self, session: str) -> None:
        """Try to get the session; then what waits in it is woken."""
        ...


@dataclass(frozen=True, slots=True)
class Stopped:
    """What `/stop` did. `refused`: the run belongs to others."""

    ended: bool = False
    dropped: int = 0
    refused: bool = False


class Sessions:
    """Owns all runners."""

    def __init__(self, office: Office, limits: SessionLimits) -> None:
        self.office = office
        self.store = office.store
        self.questions = office.questions
        self.limits = limits
        self.slots = Slots(limits.running, limits.person_running, limits.chat_running)
        self.stopping = False
        #: None: all sessions are this process's.
        self.having: Having | None = None
        self._runners: dict[str, Runner] = {}
        self._took_part: OrderedDict[str, None] = OrderedDict()

    def key(self, inbound: Inbound) -> str:
        """The session of a message: by the scope for its kind of chat, under the chat's first id."""
        return key_of(inbound, self.office.notes.home(inbound.address), self.limits.scopes)

    def wake(self, session: str, *, recovering: bool = False) -> None:
        """There is something in the session's inbox."""
        if self.stopping:
            return  # it is in the inbox; the next start takes it
        if self.having is not None and not self.having.has(session):
            self.having.call(session)
            return
        runner = self._runners.get(session)
        if runner is None:
            runner = self._runners[session] = Runner(self.office, self, session, recovering)
            runner.start()
        runner.arrived()

    async def stop_run(self, session: str, person: str, *, everything: bool, admin: bool) -> Stopped:
        """`/stop` by a person: end the session's run and drop what they have waiting behind it.

        `everything`: the chat is theirs alone, so all that waits is dropped. A run that answers only others
        is ended for an admin, and refused to anybody else.
        """
        runner = self._runners.get(session)
        if runner is None:
            return Stopped()
        return await runner.interrupt(person, everything=everything, admin=admin)

    async def forget_all(self, session: str) -> None:
        """End the session's run, drop what waits, and delete its history."""
        await self.stop_run(session, "", everything=True, admin=True)
        runner = self._runners.get(session)
        if runner is not None and runner.task is not None:
            await runner.quiet()
            await runner.agent.clear()
        else:
            await self.store.history.clear(session)
        self._took_part.pop(session, None)

    def busy(self, session: str) -> bool:
        runner = self._runners.get(session)
        return runner is not None and runner.working

    def mode(self, session: str, channel: Channel) -> BusyMode:
        """What happens to messages that come during a run. Where each request wants an answer of its own,
        they queue."""
        if not channel.asks:
            return "queue"
        return self.office.notes.busy(session, self.limits.busy)

    async def takes_part(self, session: str) -> bool:
        """Whether the bot has been talking in this session."""
        if session in self._took_part or session in self._runners:
            return True
        if not await self.store.history.exists(session):
            return False
        self._took_part[session] = None
        if len(self._took_part) > _REMEMBERED:
            self._took_part.popitem(last=False)
        return True

    @property
    def count(self) -> int:
        """How many runners are in memory."""
        return len(self._runners)

    def works_on(self, session: str) -> bool:
        """Whether the session has a runner in memory."""
        return session in self._runners

    async def abandon(self, session: str) -> None:
        """Another process has the session now: stop working on it at once, and write nothing more."""
        runner = self._runners.pop(session, None)
        if runner is not None and runner.task is not None:
            runner.task.cancel()
            await asyncio.wait({runner.task})
        self._took_part.pop(session, None)

    def forget(self, runner: Runner) -> None:
        if self._runners.get(runner.session) is runner:
            del self._runners[runner.session]

    async def recover(self) -> int:
        """Wake every session that an earlier process left with waiting messages. Returns how many."""
        sessions = await self.store.waiting_sessions(list(self.office.channels))
        for session in sessions:
            self.wake(session, recovering=True)
        return len(sessions)

    async def stop(self, grace: float) -> None:
        """Let runs under way end within `grace` seconds, then park them: the next start goes on with them."""
        self.stopping = True
        for runner in self._runners.values():
            runner.wake.set()
        tasks = {runner.task for runner in self._runners.values() if runner.task is not None}
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=grace)
        for task in late:
            task.cancel()
        if late:
            log.info("%d runs are parked; the next start goes on with them", len(late))
            await asyncio.wait(late)
