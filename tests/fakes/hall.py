"""A bridge without its process: one channel, a real store, a scripted model."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from agent.agent import Agent
from agent.models.base import Request
from agent.prompt import SystemPrompt
from agent.skills.counts import SkillCounts
from agent.skills.manager import SkillManager
from agent.tools.base import Tool
from agent.tools.manager import ToolManager
from agent.tools.masking import Masker
from agent.tools.mcp.hub import McpHub
from agent.tools.policy import PolicyRule
from agent.tools.settings import ToolSettings
from agent.turn import AgentSettings
from bridge.access import Access, AccessRule
from bridge.approvals import Approvals
from bridge.commands import Board, Commands
from bridge.delivery import Delivery
from bridge.doorbell import Doorbell
from bridge.house import House
from bridge.keys import Scope
from bridge.ledger import Ledger, UseLimits
from bridge.notes import BusyMode, Notes
from bridge.overheard import Overheard
from bridge.pairing import Pairing
from bridge.questions import Questions
from bridge.router import Router
from bridge.sessions import Office, SessionLimits, Sessions
from bridge.store.sqlite import SqliteStore
from channels.base import Address, ChatKind, Inbound, Limits, Sender
from tests.fakes.channel import Room, RoomConfig, message
from tests.fakes.scripted import Answer, Scripted, last_user, says


def echo(request: Request) -> Answer:
    return says(f"re: {last_user(request)}")


class Hall:
    """A bridge without its process: one channel, a real store, a scripted model."""

    def __init__(self, folder: Path, script: Sequence[Answer] | Callable[[Request], Answer]) -> None:
        self.folder = folder
        self.room = Room("room", RoomConfig(), None, Limits(max_text=0))
        self.model = Scripted(script)
        self.store = SqliteStore(folder / "hall.db")
        self.rules = {"room": AccessRule(direct="open", groups="open")}
        self.delivered = 0
        self.counts = SkillCounts()
        self.idle = 60.0
        self.cap = 100
        self.busy: BusyMode = "queue"
        self.limits = UseLimits()
        self.policy: tuple[PolicyRule, ...] = ()
        self.more_tools: tuple[Tool, ...] = ()
        self.debounce = 0.0
        self.reset: Literal["never", "daily", "idle"] = "never"
        self.scopes: dict[ChatKind, Scope] = {"direct": "thread", "group": "thread", "channel": "thread"}
        self.wait = 600.0
        self.clock: Callable[[], float] = time.time

    async def start(self) -> Hall:
        await self.store.open()
        self.tools = ToolManager(
            ToolSettings(policy=self.policy), mcp=None, masker=Masker([]), more=self.more_tools
        )
        self.skills = SkillManager(self.folder / "builtin", self.folder / "skills", environ=dict)
        prompt = SystemPrompt(self.skills)
        channels = {"room": self.room}
        access = Access(self.rules, frozenset())
        self.delivery = Delivery(self.store, channels, clock=asyncio.get_running_loop().time)

        def new_agent(session: str, folder: Path) -> Agent:
            return Agent(
                session,
                folder,
                model=self.model,
                tools=self.tools,
                skills=self.skills,
                prompt=prompt,
                counts=self.counts,
                history=self.store.history,
                settings=AgentSettings(),
            )

        self.mcp = McpHub(self.folder / "mcp.json", environ={}, log_dir=None, cwd_default=self.folder)
        ids = itertools.count()
        self.questions = Questions(channels, lambda: str(next(ids)))

        def count() -> None:
            self.delivered += 1

        self.grants = access.grants
        self.notes = notes = Notes(self.store)
        self.approvals = Approvals(self.store, channels, access, self.clock, str, wait=self.wait)
        overheard, ledger = Overheard(self.store), Ledger(self.store, self.clock, self.limits)
        self.sessions = Sessions(
            Office(
                store=self.store,
                delivery=self.delivery,
                channels=channels,
                access=access,
                new_agent=new_agent,
                folder=lambda session: self.folder / "sessions" / session,
                delivered=count,
                offers=self.mcp,
                questions=self.questions,
                approvals=self.approvals,
                overheard=overheard,
                notes=notes,
                ledger=ledger,
                skills=self.skills,
                counts=self.counts,
                clock=self.clock,
            ),
            SessionLimits(
                idle=self.idle,
                busy=self.busy,
                debounce=self.debounce,
                album=0.05,
                reset=self.reset,
                scopes=self.scopes,
                chat_running=self.limits.chat_runs,
            ),
        )

        async def no_messages(session: str) -> int:
            return 0

        async def no_parts(*_: object) -> tuple[()]:
            return ()

        board = Board(
            model=lambda: "scripted",
            tools=self.tools,
            skills=self.skills,
            counts=self.counts,
            channels=channels,
            mcp_file="mcp.json",
            mcp=self.mcp,
            mask=str,
            messages=no_messages,
            budget=no_parts,
            since=0.0,
        )
        self.pairing = pairing = Pairing(self.store, self.grants, self.clock)

        async def nothing(*_: object) -> None:
            return None

        self.doorbell = Doorbell(self.store, channels, access, pairing, nothing)
        house = House(
            store=self.store,
            notes=notes,
            pairing=pairing,
            approvals=self.approvals,
            ledger=ledger,
            mcp=self.mcp,
            channels=channels,
            folder=lambda session: self.folder / "sessions" / session,
            forget=self.sessions.forget_all,
            welcome=nothing,
            clock=self.clock,
        )
        commands = Commands(board, self.sessions, house)
        self.router = Router(
            self.store,
            access,
            commands,
            self.sessions,
            self.delivery,
            self.cap,
            notes=notes,
            pairing=pairing,
            doorbell=self.doorbell,
            overheard=overheard,
            ledger=ledger,
        )
        for part in (notes, pairing, self.doorbell, self.approvals, ledger):
            await part.load()
        await self.sessions.recover()
        return self

    async def stop(self, grace: float = 5.0) -> None:
        await self.doorbell.stop()
        await self.sessions.stop(grace)
        await self.delivery.stop(grace)
        await self.tools.stop()
        await self.store.close()

    async def say(self, text: str, chat: str = "c1", **values: Any) -> None:
        await self.router.receive(message(text, chat, **values))

    async def write(self, text: str, who: str, chat: str = "g1", **values: Any) -> Inbound:
        """A message of a group's member, for the bot unless `addressed` says otherwise."""
        inbound = message(text, chat)
        place = Address("room", chat, values.pop("kind", "group"), values.pop("thread", None))
        values = {"addressed": True, **values}
        values.setdefault("cue", "mention" if values["addressed"] else "")
        sent = Inbound(inbound.id, place, Sender(who, who.title(), language="en"), text, **values)
        await self.router.receive(sent)
        return sent

    async def emptied(self, session: str = "room:direct:c1") -> None:
        """Wait until nothing waits in a session's inbox and its runner rests."""
        async with asyncio.timeout(5):
            while await self.store.next(session) or self.sessions.busy(session):
                await asyncio.sleep(0.002)

    def seen(self, chat: str = "c1") -> list[str]:
        return self.room.seen.get(chat, [])
