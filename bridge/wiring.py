"""How the parts of a process are put together; `App` says when."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING

from agent.prompt import SystemPrompt
from agent.skills.counts import SkillCounts
from agent.skills.manager import SkillManager
from agent.tools.base import Tool, ToolContext
from agent.tools.builtin.skills import find_skills_tool, install_skill_tool
from agent.tools.manager import ToolManager
from agent.tools.mcp.hub import McpHub
from agent.tools.retrieval import Retrieval, make_embedder
from bridge.access import Access, Grants
from bridge.approvals import Approvals
from bridge.commands import Board, Commands
from bridge.config import Config
from bridge.delivery import Delivery
from bridge.doorbell import Doorbell
from bridge.house import House
from bridge.ledger import Ledger
from bridge.maintenance import Chore, Maintenance
from bridge.mcp_login import McpLogin
from bridge.overheard import Overheard
from bridge.pairing import Pairing
from bridge.paths import builtin_skills
from bridge.questions import Questions
from bridge.router import Router
from bridge.sessions import Office, SessionLimits, Sessions
from bridge.skill_shelf import VERSIONS_SCOPE, StoreShelf
from bridge.skill_versions import SkillVersions
from bridge.switches import StoredSwitches
from bridge.turns import Intake
from bridge.vectors import VECTORS_SCOPE, StoredVectors

if TYPE_CHECKING:
    from bridge.app import App


def agents_side(app: App) -> None:
    config = app.config
    app.login = McpLogin(
        app.store,
        lambda: config.server.public_url.rstrip("/") or (app.url if app.server is not None else ""),
        on_secret=app.masker.add,
    )
    app.mcp = McpHub(
        app.workspace / config.mcp.file,
        environ=app.environ,
        log_dir=app.workspace / "logs",
        cwd_default=app.workspace,
        on_secret=app.masker.add,
        mask=app.masker.mask,
        start_timeout=config.mcp.start_timeout,
        sampling=config.mcp.sampling.enabled,
        logins=app.login.logins,
    )
    app.skills = SkillManager(builtin_skills(), app.workspace / "skills", environ=lambda: app.environ)
    app.retrieval = Retrieval(
        config.retrieval,
        make_embedder(config.retrieval),
        StoredVectors(app.store.channel_state(VECTORS_SCOPE)),
    )

    def usable(context: ToolContext) -> tuple[Tool, ...]:
        return app.tools.offered(app.tools.catalog, context.caller, context.session)

    app.tools = ToolManager(
        config.tools,
        mcp=app.mcp,
        masker=app.masker,
        switches=StoredSwitches(app.store),
        mounted=app.mounted,
        more=[
            find_skills_tool(lambda: app.skills.current),
            install_skill_tool(app.workspace / "skills", app.skill_installed),
            app.retrieval.find_tools(usable),
        ],
    )
    app.counts = SkillCounts()
    shelf = StoreShelf(app.store.channel_state(VERSIONS_SCOPE), asyncio.get_running_loop())
    app.versions = SkillVersions(app.workspace / "skills", shelf, app.clock)
    app.prompt = SystemPrompt(app.skills, config.sessions.instructions, app.clock)


def bridge_side(app: App) -> None:
    config, sessions = app.config, app.config.sessions
    grants = Grants()
    app.access = Access(
        config.access,
        frozenset(name for name, c in app.channels.items() if c.local),
        people=config.people,
        grants=grants,
        homes=app.notes.homes,
    )
    app.pairing = Pairing(app.store, grants, app.clock)
    app.doorbell = Doorbell(app.store, app.channels, app.access, app.pairing, app.welcome)
    app.delivery = Delivery(app.store, app.channels, clock=time.monotonic)
    app.approvals = Approvals(
        app.store,
        app.channels,
        app.access,
        app.clock,
        app.masker.mask,
        wait=sessions.approval_minutes * 60,
        shared=app.roles,
    )
    app.ledger = Ledger(app.store, app.clock, sessions.limits, config.model.prices)
    app.overheard = Overheard(app.store)
    app.maintenance = Maintenance(
        [
            Chore("environment", app.environ.refresh),
            Chore("mcp", app.tools.refresh),
            Chore("skills", app.refresh_skills),
            Chore("retrieval", app.refresh_retrieval),
            Chore("skill versions", app.record_skills, every=10.0),
            Chore("skill counts", app.keep_counts, every=60.0),
            Chore("grants", app.pairing.load, every=30.0),
            Chore("store claim", app.hold, every=20.0),
            Chore("store fault", app.try_store, every=5.0),
            Chore("store", app.forget, every=3600.0, apart=True),
            Chore("store check", app.store.examine, every=86_400.0, apart=True),
        ],
        linger=lambda: app.mcp.settle(config.mcp.start_timeout),
    )
    if app.roles:
        app.maintenance.add(Chore("switches", app.tools.follow_switches))
    app.sessions = Sessions(
        Office(
            store=app.store,
            delivery=app.delivery,
            channels=app.channels,
            access=app.access,
            new_agent=app.new_agent,
            folder=app.session_folder,
            delivered=app.maintenance.trigger,
            offers=app.mcp,
            questions=Questions(app.channels, lambda: secrets.token_hex(8)),
            approvals=app.approvals,
            overheard=app.overheard,
            notes=app.notes,
            ledger=app.ledger,
            skills=app.skills,
            counts=app.counts,
            clock=app.clock,
            intake=Intake(app.transcriber, sessions.attachment_mb * 1024 * 1024),
        ),
        _session_limits(config),
    )
    app.router = Router(
        app.store,
        app.access,
        Commands(_board(app), app.sessions, _house(app)),
        app.sessions,
        app.delivery,
        sessions.inbox_cap,
        notes=app.notes,
        pairing=app.pairing,
        doorbell=app.doorbell,
        overheard=app.overheard,
        ledger=app.ledger,
    )


def _board(app: App) -> Board:
    return Board(
        model=lambda: app.model.name if app.model else "?",
        tools=app.tools,
        skills=app.skills,
        counts=app.counts,
        channels=app.channels,
        mcp_file=str(app.config.mcp.file),
        mcp=app.mcp,
        mask=app.masker.mask,
        messages=app.count_messages,
        budget=app.budget,
        since=app.started,
    )


def _house(app: App) -> House:
    return House(
        store=app.store,
        notes=app.notes,
        pairing=app.pairing,
        approvals=app.approvals,
        ledger=app.ledger,
        mcp=app.mcp,
        channels=app.channels,
        folder=app.session_folder,
        forget=app.forget_session,
        welcome=app.welcome,
        clock=app.clock,
        busy_default=app.config.sessions.busy,
    )


def _session_limits(config: Config) -> SessionLimits:
    sessions, limits = config.sessions, config.sessions.limits
    return SessionLimits(
        idle=sessions.idle_seconds,
        running=limits.total_runs,
        person_running=limits.person_runs,
        chat_running=limits.chat_runs,
        busy=sessions.busy,
        debounce=sessions.debounce_seconds,
        reset=sessions.reset.when,
        reset_hour=sessions.reset.hour,
        reset_idle=sessions.reset.idle_hours * 3600,
        scopes=sessions.scope.by_kind,
    )
