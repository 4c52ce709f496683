"""The process: wires the parts together, starts them in order, and takes them down in order."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agent.agent import Agent
from agent.history import Assistant, User
from agent.models.base import Model, ModelError
from agent.models.resolve import ModelSetupError, resolve
from agent.models.transcription import Transcriber
from agent.tools.base import Caller, Role
from agent.tools.masking import Masker
from agent.turn import AgentSettings
from bridge import console, house_admin, mcp_admin, wiring
from bridge.budget import Part, measure
from bridge.config import Config
from bridge.keys import COUNTS_KEY, COUNTS_SCOPE, address_of, session_key
from bridge.notes import Notes
from bridge.pairing import Request
from bridge.process import Process, StartError
from bridge.store import open_store
from bridge.store.base import Store, StoredReply, StoreError
from bridge.store.pace import unhurried
from bridge.texts import text
from channels.base import (
    Channel,
    Inbound,
    Outbound,
    Press,
    ReplyRef,
    SendError,
)

if TYPE_CHECKING:
    from agent.prompt import SystemPrompt
    from agent.skills.counts import SkillCounts
    from agent.skills.manager import SkillManager
    from agent.tools.manager import ToolManager
    from agent.tools.mcp.hub import McpHub
    from agent.tools.retrieval import Retrieval
    from bridge.access import Access
    from bridge.approvals import Approvals
    from bridge.delivery import Delivery
    from bridge.doorbell import Doorbell
    from bridge.ledger import Ledger
    from bridge.maintenance import Maintenance
    from bridge.mcp_login import McpLogin
    from bridge.overheard import Overheard
    from bridge.pairing import Pairing
    from bridge.router import Router
    from bridge.sessions import Sessions
    from bridge.skill_versions import SkillVersions

__all__ = ["App", "StartError"]

log = logging.getLogger("causeway.app")

_DAY = 24 * 3600.0
#: Seconds that a try of an ailing store may hold up other upkeep.
_STORE_TRY = 2.0
#: How long a message id is remembered; longer than any platform repeats a delivery (Telegram: 24 h).
_SEEN_DAYS = 14
_REPLY_DAYS = 2
#: Rows that upkeep deletes in one write: other writes wait for some 10 ms.
_STEP = 200


class App(Process):
    """A bridge in one process, or (see `cluster.worker`) the part of one that runs agents. `start`, then
    `stop`; both once."""

    # Made by `wiring` while the process starts.
    mcp: McpHub
    login: McpLogin
    skills: SkillManager
    tools: ToolManager
    retrieval: Retrieval
    counts: SkillCounts
    versions: SkillVersions
    prompt: SystemPrompt
    access: Access
    pairing: Pairing
    doorbell: Doorbell
    delivery: Delivery
    approvals: Approvals
    ledger: Ledger
    overheard: Overheard
    maintenance: Maintenance
    sessions: Sessions
    router: Router

    def __init__(
        self,
        config: Config,
        *,
        clock: Callable[[], float] = time.time,
        masker: Masker | None = None,
        serve: bool = True,
        roles: bool = False,
    ) -> None:
        super().__init__(config, clock=clock, masker=masker, serve=serve, roles=roles)
        self.model: Model | None = None
        hear = config.model.transcription
        self.transcriber = Transcriber(hear) if hear is not None else None
        self._recovered = asyncio.Event()
        self._warming: asyncio.Task[None] | None = None
        self._counted: object = None

    # -- start -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bring everything up. Raises StartError, StoreError or ListenError; what was begun is taken down."""
        try:
            await self._start()
        except BaseException:
            await self.stop(grace=0)
            raise

    async def _start(self) -> None:
        await asyncio.to_thread(self._prepare_workspace)
        self.store = self.open_store()
        await self.store.open()
        await self.hold()
        self.notes = Notes(self.store)
        wiring.agents_side(self)
        self.channels = self.open_channels()
        wiring.bridge_side(self)
        for part in (self.notes, self.pairing, self.doorbell, self.approvals, self.ledger):
            await part.load()
        self.counts.load(await self.store.channel_state(COUNTS_SCOPE).get(COUNTS_KEY))
        await asyncio.gather(self._resolve_model(), self.refresh_skills(), self.tools.start())
        if self.serve:
            guarded = [*mcp_admin.routes(self), *house_admin.routes(self), *console.routes(self)]
            await self._serve(self.served(), guarded, self.login.routes())
        for name in list(self.channels):
            await self._start_channel(name)
        await self.recover()
        self._recovered.set()
        self.maintenance.start()
        if self.server is not None:
            self.server.ready(True)

    async def _resolve_model(self) -> None:
        try:
            self.model = await resolve(self.config.model, self.environ)
        except ModelSetupError as error:
            raise StartError(str(error)) from error
        self._warming = asyncio.create_task(self._warm(self.model), name="warm the model")

    @staticmethod
    async def _warm(model: Model) -> None:
        try:
            await model.warm()
        except ModelError as error:
            # The first message will meet the same fault and tell its person in words.
            log.error("the model cannot be used: %s", error.detail)

    # -- what is otherwise in a process that runs agents only -------------------------------------------

    def open_store(self) -> Store:
        return open_store(
            self.config.store.url,
            self.workspace,
            synchronous=self.config.store.synchronous,
            clock=self.clock,
            sole=self.serve,
        )

    def open_channels(self) -> dict[str, Channel]:
        return self.make_channels()

    def served(self) -> Mapping[str, Channel]:
        """The channels whose routes are served here."""
        return self.channels

    async def recover(self) -> None:
        """Go on with what the last process left."""
        for reply in await self.store.pending_replies(list(self.channels)):
            if reply.id.startswith("c"):  # a run's reply is taken up by its session
                self.delivery.deliver(reply)
        waiting = await self.sessions.recover()
        if waiting:
            log.info("going on with %d sessions of the last run", waiting)

    async def leads(self) -> bool:
        """Whether the upkeep of what all processes share is this one's to do."""
        return True

    async def draining(self) -> None:
        """No more messages come in; runs under way go on."""

    async def drained(self) -> None:
        """All runs have ended or are parked."""

    # -- what the parts ask for --------------------------------------------------------------------------

    async def receive(self, inbound: Inbound) -> None:
        """Where channels deliver. Until what the last process left is taken up again, new messages wait here
        (unacknowledged), so that nothing overtakes it."""
        await self._recovered.wait()
        await self.router.receive(inbound)

    async def press(self, press: Press) -> str:
        """Where channels deliver pressed buttons; the words are for the person who pressed."""
        await self._recovered.wait()
        said = self.sessions.questions.press(press)
        if said is None:
            said = await self.approvals.press(press)
        if said is None:
            said = await self.doorbell.press(press)
        return said if said is not None else text("approval.gone", press.sender.language)

    def mounted(self, session: str) -> frozenset[str]:
        return self.notes.mounted(session, self.clock())

    async def forget_session(self, session: str) -> None:
        """End what a session does and delete what it has said. Its files are the caller's to delete."""
        await self.sessions.forget_all(session)
        await self.approvals.forget(session)
        await self.overheard.forget(session, 2**62)
        await self._forget_in_channel(session)

    async def _forget_in_channel(self, session: str) -> None:
        address = address_of(session)
        channel = self.channels.get(address.channel) if address is not None else None
        if address is None or channel is None or not channel.has("forget"):
            return
        try:
            async with asyncio.timeout(30):
                await channel.forget(address)
        except (SendError, TimeoutError) as error:
            log.warning("what %s keeps of session %s is still there: %s", channel.name, session, error)

    async def welcome(self, request: Request, role: Role) -> None:
        """Tell somebody that they were let in. A channel that fails is no reason to undo it."""
        channel = self.channels.get(request.channel)
        if channel is None:
            return
        words = text("pairing.welcome", request.language, role=text(f"role.{role}", request.language))
        ref = ReplyRef(f"c{request.code}", request.where, "", request.language, request.person)
        await self.send(self.delivery.command_reply(ref, session_key(request.where), Outbound(words)))

    async def send(self, reply: StoredReply) -> None:
        """Deliver a whole reply that no message asked for."""
        await self.store.open_reply(reply)
        self.delivery.deliver(reply)

    def session_folder(self, session: str) -> Path:
        return self.workspace / "sessions" / session / "files"

    def new_agent(self, session: str, folder: Path) -> Agent:
        assert self.model is not None
        sessions = self.config.sessions
        return Agent(
            session,
            folder,
            model=self.model,
            tools=self.tools,
            skills=self.skills,
            history=self.store.history,
            prompt=self.prompt,
            counts=self.counts,
            retrieval=self.retrieval,
            settings=AgentSettings(
                max_steps=sessions.max_steps,
                history_entries=sessions.history_messages,
                max_attempts=self.config.model.max_attempts,
                retry_budget=self.config.model.retry_budget,
                samples=self.config.mcp.sampling.per_turn if self.config.mcp.sampling.enabled else 0,
                sample_tokens=self.config.mcp.sampling.max_tokens,
            ),
        )

    async def refresh_retrieval(self) -> None:
        """Compute what vectors are missing; another pass follows while there is progress."""
        missing = await self.retrieval.refresh(self.tools.catalog)
        if missing and self.retrieval.resting is None:
            self.maintenance.trigger()

    async def refresh_skills(self) -> None:
        if self.config.skills.enabled:
            await self.skills.refresh()

    async def skill_installed(self, who: str, why: str) -> None:
        """A skill was put in place by a tool: known at once, and in the history with its author."""
        await self.refresh_skills()
        await asyncio.to_thread(self.versions.record, tuple(self.skills.current), who, why)

    async def record_skills(self) -> None:
        if self.config.skills.enabled and await self.leads():
            await asyncio.to_thread(self.versions.record, tuple(self.skills.current))

    async def keep_counts(self) -> None:
        counts = self.counts.saved()
        # A terminal chat beside a running bridge must not write over what that one counts.
        if self.serve and counts != self._counted:
            await self.store.channel_state(COUNTS_SCOPE).put(COUNTS_KEY, counts)
            self._counted = counts

    async def try_store(self) -> None:
        """After a fault of the store, see whether it is over: /readyz may be all that anybody asks for."""
        if not self.store.fault():
            return
        with suppress(StoreError, TimeoutError):  # then it is not over, which has been told already
            async with asyncio.timeout(_STORE_TRY):
                await self.store.put_setting("store", "tried", self.clock())

    async def forget(self) -> None:
        """Upkeep of the store: what is too old goes, in small steps."""
        if not await self.leads():
            return
        now = self.clock()
        await self.approvals.tidy()
        if days := self.config.sessions.retention_days:
            await self._retire(now - days * _DAY)
        seen, replies = now - _SEEN_DAYS * _DAY, now - _REPLY_DAYS * _DAY
        while await unhurried(self.store.forget_before(seen, replies, _STEP)) >= _STEP:
            pass
        await self.store.tidy()

    async def _retire(self, before: float) -> None:
        """Delete conversations in which nothing has happened since `before`, with their files."""
        total, gone = 0, 1
        while gone:
            step = asyncio.create_task(self._retire_some(before), name="retire conversations")
            try:
                gone = await asyncio.shield(step)
            except asyncio.CancelledError:
                # Else files would stay of what the store has forgotten.
                await asyncio.wait({step}, timeout=10)
                raise
            total += gone
        if total:
            log.info("%d conversations were older than sessions.retention_days and are deleted", total)

    async def _retire_some(self, before: float) -> int:
        gone = await self.store.forget_sessions(before, 20)
        for session in gone:
            folder = self.session_folder(session).parent
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        for session in gone:
            await self.approvals.forget(session)
            await self.overheard.forget(session, 2**62)
            await self._forget_in_channel(session)
        return len(gone)

    async def budget(self, session: str, caller: Caller) -> Sequence[Part]:
        """What this caller's next request in a session costs, part by part."""
        return await measure(
            session,
            caller,
            tools=self.tools,
            prompt=self.prompt,
            skills=self.skills,
            history=self.store.history,
            retrieval=self.retrieval,
            longest=self.config.sessions.history_messages,
        )

    async def count_messages(self, session: str) -> int:
        """How many messages a session's history has; before what models are shown each entry counts."""
        tail = await self.store.history.tail(session, self.config.sessions.history_messages)
        said = (e for e in tail.entries if isinstance(e, User) or (isinstance(e, Assistant) and e.text))
        return tail.before + sum(1 for _ in said)

    # -- stop ------------------------------------------------------------------------------------------

    async def stop(self, grace: float | None = None) -> None:
        """Stop receiving, let runs end within `grace` seconds (default: configured) or park them, release."""
        grace = self.config.sessions.grace_seconds if grace is None else grace
        if self.server is not None:
            self.server.ready(False)
        for task in self._menus:
            task.cancel()
        if hasattr(self, "sessions"):
            await self._each("pause")
            await self.maintenance.stop()
            await self.doorbell.stop()
            await self.draining()
            await self.sessions.stop(grace)
            await self.delivery.stop(min(grace, 5.0))
            await self.drained()
            try:
                await self.keep_counts()
            except StoreError as error:
                log.warning("the counts of skills were not kept: %s", error)
            await self._each("stop")
        if self.server is not None:
            await self.server.stop()
        if hasattr(self, "tools"):
            await self.tools.stop()
            await self.retrieval.close()
        if self._warming is not None:
            await asyncio.wait({self._warming}, timeout=5)
            self._warming.cancel()
        if self.model is not None:
            await self.model.close()
        if self.transcriber is not None:
            await self.transcriber.close()
        if hasattr(self, "store"):
            await self._let_go()
            await self.store.close()
        self._unlock()
