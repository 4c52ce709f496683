"""The process: wires the parts together, starts them in order, and takes them down in order."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import shutil
import socket
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
from bridge.commands import NAMES
from bridge.config import Config, secret_variables
from bridge.environment import Environment
from bridge.http import Guard, Server, load_key
from bridge.keys import COUNTS_KEY, COUNTS_SCOPE, session_key
from bridge.notes import Notes
from bridge.pairing import Request
from bridge.store import is_redis, open_store
from bridge.store.base import Store, StoreError
from bridge.texts import text
from channels.base import (
    Channel,
    ChannelError,
    Inbound,
    MenuEntry,
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

log = logging.getLogger("causeway.app")

_DAY = 24 * 3600.0
#: The claim on a store that several processes can reach, and for how many seconds it is good.
_HOUSE, _HELD = "~house", 90.0
#: How long a message id is remembered; longer than any platform repeats a delivery (Telegram: 24 h).
_SEEN_DAYS = 14
_REPLY_DAYS = 2


class StartError(Exception):
    """The bridge cannot start. The message says why and what to do."""


class App:
    """One bridge process. `start`, then `stop`; both once."""

    # Made by `wiring` while the process starts.
    store: Store
    notes: Notes
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
    ) -> None:
        self.config = config
        self.clock = clock
        self.masker = masker or Masker(config.secrets())
        self.environ = Environment(config.workspace / ".env", config.real_environ, self.learn)
        self.serve = serve
        self.workspace = config.workspace
        self.channels: dict[str, Channel] = {}
        self.model: Model | None = None
        self.server: Server | None = None
        self.key: str | None = None
        hear = config.model.transcription
        self.transcriber = Transcriber(hear) if hear is not None else None
        self.failed: dict[str, str] = {}
        self._recovered = asyncio.Event()
        self._lock: int | None = None
        self._warming: asyncio.Task[None] | None = None
        self._menus: set[asyncio.Task[None]] = set()
        self._counted: object = None
        self._holds = False
        self.started = clock()

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
        self.store = open_store(
            self.config.store.url,
            self.workspace,
            synchronous=self.config.store.synchronous,
            clock=self.clock,
            sole=self.serve,
        )
        await self.store.open()
        await self.hold()
        self.notes = Notes(self.store)
        wiring.agents_side(self)
        wiring.open_channels(self)
        wiring.bridge_side(self)
        for part in (self.notes, self.pairing, self.doorbell, self.approvals, self.ledger):
            await part.load()
        self.counts.load(await self.store.channel_state(COUNTS_SCOPE).get(COUNTS_KEY))
        await asyncio.gather(self._resolve_model(), self.refresh_skills(), self.tools.start())
        if self.serve:
            await self._serve()
        for name in list(self.channels):
            await self._start_channel(name)
        for reply in await self.store.pending_replies(list(self.channels)):
            if reply.id.startswith("c"):  # a run's reply is taken up by its session
                self.delivery.deliver(reply)
        waiting = await self.sessions.recover()
        if waiting:
            log.info("going on with %d sessions of the last run", waiting)
        self._recovered.set()
        self.maintenance.start()
        if self.server is not None:
            self.server.ready(True)

    async def hold(self) -> None:
        """Keep other bridges off a store that they could reach too (a file has the workspace's lock). One
        that comes back in the same workspace goes on at once. Raises StartError when another one holds it."""
        if not self._shared:
            return
        if not await self.store.channel_state(_HOUSE).claim("bridge", self._holder, _HELD):
            raise StartError(
                "Another bridge works with this store. Stop it, or give this one its own with ?prefix= in "
                f"store: url. After a machine is lost its claim ends within {_HELD:.0f} s."
            )
        self._holds = True

    @property
    def _shared(self) -> bool:
        return self.serve and is_redis(self.config.store.url)

    @property
    def _holder(self) -> str:
        place = f"{socket.gethostname()}\0{self.workspace.resolve()}"
        return hashlib.sha256(place.encode()).hexdigest()

    async def _let_go(self) -> None:
        """Give the claim back; what cannot be given back ends by itself."""
        if not self._holds:
            return
        try:
            await self.store.channel_state(_HOUSE).release("bridge", self._holder)
        except StoreError as error:
            log.warning("the claim on the store ends by itself: %s", error)

    def _prepare_workspace(self) -> None:
        try:
            self.workspace.mkdir(parents=True, exist_ok=True)
            (self.workspace / "skills").mkdir(exist_ok=True)
            if not self.serve:
                return
            self._lock = os.open(self.workspace / "causeway.lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StartError(
                f"Another bridge already works in {self.workspace}. Stop it, or give this one its own "
                "workspace in config.yaml."
            ) from error
        except OSError as error:
            raise StartError(
                f"The workspace {self.workspace} cannot be used: {error.strerror}. Make it writable, or "
                "choose another with workspace in config.yaml."
            ) from error

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

    async def _serve(self) -> None:
        server = self.config.server
        configured = server.key.get_secret_value() if server.key else None
        self.key, _ = await asyncio.to_thread(load_key, self.workspace, server.host, configured)
        if self.key:
            self.masker.add(self.key)
        guard = Guard(server.host, self.key, server.allowed_hosts)
        self.server = Server(
            server.host,
            server.port,
            guard,
            self.channels,
            guarded=[*mcp_admin.routes(self), *house_admin.routes(self), *console.routes(self)],
            public=self.login.routes(),
        )
        await self.server.start()

    async def _start_channel(self, name: str) -> None:
        channel = self.channels[name]
        try:
            await channel.start(self.receive)
        except ChannelError as error:
            log.error("channel %s is off: %s", name, error)
            self.failed[name] = str(error)
            del self.channels[name]
            return
        if type(channel).menu is not Channel.menu:
            task = asyncio.create_task(self._menu(name, channel), name=f"menu of {name}")
            self._menus.add(task)
            task.add_done_callback(self._menus.discard)

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

    async def welcome(self, request: Request, role: Role) -> None:
        """Tell somebody that they were let in. A channel that fails is no reason to undo it."""
        channel = self.channels.get(request.channel)
        if channel is None:
            return
        words = text("pairing.welcome", request.language, role=text(f"role.{role}", request.language))
        ref = ReplyRef(f"c{request.code}", request.where, "", request.language, request.person)
        reply = self.delivery.command_reply(ref, session_key(request.where), Outbound(words))
        await self.store.open_reply(reply)
        self.delivery.deliver(reply)

    async def _menu(self, name: str, channel: Channel) -> None:
        """Tell a platform the commands; it is upkeep, so a failure costs nothing but the menu."""
        entries = [
            MenuEntry(one, {"en": text(f"command.{one}", "en"), "zh": text(f"command.{one}", "zh")})
            for one in NAMES
        ]
        try:
            async with asyncio.timeout(60):
                await channel.menu(entries)
        except (SendError, TimeoutError) as error:
            log.warning("channel %s: the command menu was not set: %s", name, error)

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

    def learn(self, variables: Mapping[str, str]) -> None:
        for value in secret_variables(variables):
            self.masker.add(value)

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
        if self.config.skills.enabled:
            await asyncio.to_thread(self.versions.record, tuple(self.skills.current))

    async def keep_counts(self) -> None:
        counts = self.counts.saved()
        # A terminal chat beside a running bridge must not write over what that one counts.
        if self.serve and counts != self._counted:
            await self.store.channel_state(COUNTS_SCOPE).put(COUNTS_KEY, counts)
            self._counted = counts

    async def forget(self) -> None:
        """Upkeep of the store: what is too old goes, in small steps."""
        now = self.clock()
        await self.store.tidy()
        if days := self.config.sessions.retention_days:
            await self._retire(now - days * _DAY)
        for _ in range(20):  # the rest is for the next pass: other writes go in between
            if await self.store.forget_before(now - _SEEN_DAYS * _DAY, now - _REPLY_DAYS * _DAY) < 5000:
                break

    async def _retire(self, before: float) -> None:
        """Delete conversations in which nothing has happened since `before`, with their files."""
        while gone := await self.store.forget_sessions(before):
            for session in gone:
                await self.approvals.forget(session)
                await self.overheard.forget(session, 2**62)
                folder = self.session_folder(session).parent
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            log.info("%d conversations were older than sessions.retention_days and are deleted", len(gone))

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
        entries = await self.store.history.load(session)
        return sum(1 for e in entries if isinstance(e, User) or (isinstance(e, Assistant) and e.text))

    @property
    def url(self) -> str:
        assert self.server is not None
        host = self.server.host
        if host in ("0.0.0.0", "::", ""):  # noqa: S104 (compared, not bound)
            host = "127.0.0.1"
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server.port}"

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
            await self.sessions.stop(grace)
            await self.delivery.stop(min(grace, 5.0))
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
        if self._lock is not None:
            with suppress(OSError):
                os.close(self._lock)
            self._lock = None

    async def _each(self, what: str) -> None:
        for name, channel in self.channels.items():
            try:
                async with asyncio.timeout(10):
                    await getattr(channel, what)()
            except Exception:
                # One channel's fault must not keep the others from being stopped.
                log.exception("channel %s: %s failed", name, what)
