"""Slash commands. They never wait for a run, save those that are `queued` and go through the inbox."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.skills.counts import SkillCounts
from agent.skills.manager import SkillManager
from agent.tools.base import Caller, Role
from agent.tools.manager import ToolManager, UnknownTool
from agent.tools.mcp.hub import McpHub
from agent.tools.mcp.logins import LoginFailed
from bridge.budget import Part, sums
from bridge.house import Asked, House
from bridge.texts import text
from channels.base import Channel, Inbound

if TYPE_CHECKING:
    from agent.tools.mcp.primitives import PromptInfo, ResourceInfo
    from bridge.sessions import Sessions

#: In the order in which /help lists them.
NAMES = (
    "help", "new", "stop", "status", "model", "tools", "mcp", "mount", "resource", "prompt", "skills",
    "skill", "queue", "activation", "approve", "deny", "pair", "usage", "forget", "whoami",
)  # fmt: skip
#: Known, but not listed: what Telegram sends when a person opens the chat.
_HIDDEN = ("start",)
#: What the help shows to admins only.
FOR_ADMINS = frozenset({"mount", "activation", "pair"})
#: With an argument these change something, so they must not run twice.
_ACTS_WITH_ARGUMENT = frozenset({"mcp", "tools", "mount", "queue", "activation", "pair"})
_DEAREST = 3
_ACTS = frozenset({"stop", "approve", "deny", "forget"})
#: From the second letter on the whole word must be meant as a command of ours: paths and units are not.
_WORD = re.compile(r"[/!]([A-Za-z][A-Za-z_]{1,20})")


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    argument: str

    @property
    def acts(self) -> bool:
        """Whether running it changes something."""
        return self.name in _ACTS or (self.name in _ACTS_WITH_ARGUMENT and bool(self.argument))

    @property
    def queued(self) -> bool:
        """Whether it keeps its place among the messages: it takes effect between turns, not inside one."""
        return self.name == "new" or (self.name in ("resource", "prompt", "skill") and bool(self.argument))


def parse(message: str) -> Command | None:
    """A known command (`/name` or `!name`, any case), else None: unknown `/words` go to the model."""
    stripped = message.strip()
    if not stripped or stripped[0] not in "/!":
        return None
    parts = stripped[1:].split(None, 1)
    name = parts[0].lower() if parts else ""
    argument = parts[1].strip() if len(parts) > 1 else ""
    return Command(name, argument) if name in NAMES or name in _HIDDEN else None


def completed(message: str) -> Command | None:
    """The command that an unambiguous beginning of one means (`/stat`), if it only tells something."""
    whole = _beginning(message)
    command = Command(whole[0], "") if len(whole) == 1 else None
    return command if command is not None and not command.acts and not command.queued else None


def suggestion(message: str) -> str | None:
    """The command that a mistyped one was meant to be: a message of this one word, off by a letter or two, or
    the beginning of a command that does something. None: it is for the model."""
    found = _WORD.fullmatch(message.strip())
    if found is None:
        return None
    if len(whole := _beginning(message)) == 1:
        return whole[0]
    near = difflib.get_close_matches(found.group(1).lower(), NAMES, n=1, cutoff=0.75)
    return near[0] if near else None


def _beginning(message: str) -> list[str]:
    found = _WORD.fullmatch(message.strip())
    word = found.group(1).lower() if found else ""
    return [name for name in NAMES if name.startswith(word)] if len(word) >= 3 else []


@dataclass(frozen=True, slots=True)
class Board:
    """What the commands report on."""

    model: Callable[[], str]
    tools: ToolManager
    skills: SkillManager
    counts: SkillCounts
    channels: Mapping[str, Channel]
    mcp_file: str
    mcp: McpHub
    mask: Callable[[str], str]
    messages: Callable[[str], Awaitable[int]]
    budget: Callable[[str, Caller], Awaitable[Sequence[Part]]]
    since: float


class Commands:
    def __init__(self, board: Board, sessions: Sessions, house: House) -> None:
        self._board = board
        self._sessions = sessions
        self._house = house

    async def run(self, command: Command, inbound: Inbound, session: str, language: str, role: Role) -> str:
        """The answer to a command, as Markdown, secrets masked (a reason quotes what a server printed)."""
        asked = Asked(command.argument, inbound, session, language, role)
        return self._board.mask(await self._run(command.name, asked))

    async def _run(self, name: str, asked: Asked) -> str:
        argument, language, admin = asked.argument, asked.language, asked.admin
        match name:
            case "help" | "start":
                lines = [
                    f"- `/{name}`: {text(f'command.{name}', language)}"
                    for name in NAMES
                    if admin or name not in FOR_ADMINS
                ]
                return text("help", language, commands="\n".join(lines))
            case "stop":
                return await self._stop(asked)
            case "status":
                return await self._status(asked)
            case "model":
                return text("model", language, model=self._board.model())
            case "tools":
                return await self._tools(asked)
            case "mcp":
                return await self._mcp(argument, language, admin)
            case "resource":
                return self._offers("resource", self._board.mcp.resources(), asked)
            case "prompt":
                return self._offers("prompt", self._board.mcp.prompts(), asked)
            case "skills":
                return self._skills(language, admin)
            case "skill":
                return text("skill.usage", language)
            case "whoami":
                return self._whoami(asked)
            case _:
                return await self._house.run(name, asked)

    async def _stop(self, asked: Asked) -> str:
        language, direct = asked.language, asked.inbound.address.kind == "direct"
        everything = direct or (asked.admin and asked.argument.lower() == "all")
        done = await self._sessions.stop_run(
            asked.session, asked.inbound.sender.id, everything=everything, admin=asked.admin
        )
        if done.refused:
            key = "stop.others_dropped" if done.dropped else "stop.others"
            return text(key, language, count=done.dropped)
        if done.dropped:
            return text("stop.dropped", language, count=done.dropped)
        return text("stop.done" if done.ended else "stop.idle", language)

    async def _status(self, asked: Asked) -> str:
        board, session, language = self._board, asked.session, asked.language
        servers = board.tools.mcp_status
        ready = sum(1 for server in servers if server.state == "ready")
        mcp = (
            text("mcp.summary", language, ready=ready, all=len(servers))
            if servers
            else text("mcp.nothing", language)
        )
        lines = []
        for name, channel in board.channels.items():
            health = channel.health()
            lines.append(name if health.ok else f"{name} ⚠ {health.reason}")
        if notice := self._sessions.store.notice():
            lines.append(f"⚠ {notice}")
        state = "status.busy" if self._sessions.busy(session) else "status.idle"
        waiting = await self._sessions.store.waiting_count(session)
        return text(
            "status",
            language,
            model=board.model(),
            messages=await board.messages(session),
            waiting=max(waiting - 1, 0) if self._sessions.busy(session) else waiting,
            state=text(state, language),
            tools=len(board.tools.catalog),
            mcp=mcp,
            skills=len(board.skills.current.available),
            channels=", ".join(lines),
            since=time.strftime("%Y-%m-%d %H:%M", time.localtime(board.since)),
            request=await self._request(asked),
        )

    async def _request(self, asked: Asked) -> str:
        """What the next request to the model costs, part by part, in tokens; the dearest tools by name."""
        found = await self._board.budget(asked.session, _caller(asked))
        total = sums(found)
        dear = [part for part in found if part.kind == "tools"][:_DEAREST]
        names = ", ".join(f"{part.name} {part.tokens}" for part in dear)
        return text("status.request", asked.language, all=sum(total.values()), names=names or "-", **total)

    async def _switch(self, argument: str, language: str, admin: bool) -> str | None:
        """`/tools off NAME`, `/tools on NAME`."""
        verb, _, rest = argument.partition(" ")
        name = rest.strip().strip("`")
        if verb.lower() not in ("on", "off") or not name:
            return None
        if not admin:
            return text("mcp.admins", language)
        try:
            await self._board.tools.switch(name, verb.lower() == "on")
        except UnknownTool as unknown:
            near = ", ".join(f"`{one}`" for one in unknown.close_matches) or "/tools"
            return text("tools.unknown", language, name=name, near=near)
        except ValueError as error:
            return text("mcp.login.not", language, name=name, reason=error)
        return text(f"tools.{verb.lower()}", language, name=name)

    async def _tools(self, asked: Asked) -> str:
        language, admin = asked.language, asked.admin
        if (done := await self._switch(asked.argument, language, admin)) is not None:
            return done
        caller, manager = _caller(asked), self._board.tools
        tools = manager.offered(manager.catalog, caller, asked.session)
        stats = self._board.tools.stats
        lines = []
        for tool in tools:
            line = f"- `{tool.name}`: {_sentence(tool.description)} ({tool.timeout:g} s)"
            if manager.decide(tool, caller, asked.session).effect == "ask":
                line += " " + text("tools.asks", language)
            if (used := stats.get(tool.name)) is not None and used.calls:
                line += " " + text(
                    "tools.used",
                    language,
                    calls=used.calls,
                    failures=used.failures,
                    ms=round(used.milliseconds / used.calls),
                )
            lines.append(line)
        off = sorted(self._board.tools.switched_off)
        if off and admin:
            lines += ["", text("tools.off_now", language, names=", ".join(f"`{name}`" for name in off))]
        return "\n".join([text("tools.title", language), "", *lines])

    def _offers(self, kind: str, known: Sequence[ResourceInfo] | Sequence[PromptInfo], asked: Asked) -> str:
        language, caller = asked.language, _caller(asked)
        mounted = self._house.notes.mounted(asked.session, self._house.clock())
        offers = [one for one in known if self._board.mcp.is_mounted(one.server, caller, mounted)]
        if not offers:
            return text(f"{kind}.none", language)
        lines = [f"- `{one.server}:{one.name}` {_sentence(one.description)}".rstrip() for one in offers[:100]]
        return "\n".join([text(f"{kind}.title", language), "", *lines])

    async def _mcp_act(self, argument: str, language: str, admin: bool) -> str | None:
        verb, _, rest = argument.partition(" ")
        name = rest.strip()
        if verb.lower() not in ("restart", "login") or not name:
            return None
        if not admin:
            return text("mcp.admins", language)
        if verb.lower() == "restart":
            known = await self._board.mcp.restart(name)
            return text("mcp.restarted" if known else "mcp.unknown", language, name=name)
        name, _, address = name.partition(" ")
        if address.strip():
            outcome = await self._board.mcp.answer_login(address.strip())
            return text(f"mcp.login.{outcome}", language)
        try:
            link = await self._board.mcp.login(name)
        except LoginFailed as fault:
            return text("mcp.login.not", language, name=name, reason=fault)
        return text("mcp.login.link", language, name=name, link=link)

    async def _mcp(self, argument: str, language: str, admin: bool) -> str:
        if (done := await self._mcp_act(argument, language, admin)) is not None:
            return done
        servers = self._board.tools.mcp_status
        lines = [
            text(
                "mcp.line",
                language,
                name=server.name,
                state=server.state,
                tools=server.tools,
                reason=f" ({server.reason})" if server.reason and admin else "",
            )
            for server in servers
        ]
        if not lines:
            lines.append(text("mcp.none", language, file=self._board.mcp_file))
        problems = self._board.mcp.problems
        if problems and admin:
            lines += ["", text("mcp.problems", language), *(f"- {problem}" for problem in problems)]
        return "\n".join(lines)

    def _skills(self, language: str, admin: bool) -> str:
        skills = self._board.skills.current
        lines: list[str] = []
        if skills.available:
            lines += [text("skills.title", language), ""]
            for skill in skills.available:
                count = self._board.counts.of(skill.name)
                told = text(
                    "skills.counts", language, offered=count.offered, read=count.read, used=count.used
                )
                lines.append(f"- **{skill.name}**: {_sentence(skill.description)} ({told})")
        else:
            lines.append(text("skills.none", language))
        if skills.unavailable:
            lines += ["", text("skills.unavailable", language), ""]
            lines += [f"- **{skill.name}**: {missing}" for skill, missing in skills.unavailable]
        if skills.diagnostics and admin:
            lines += ["", text("skills.problems", language), ""]
            lines += [f"- {diagnostic}" for diagnostic in skills.diagnostics]
        return "\n".join(lines)

    def _whoami(self, asked: Asked) -> str:
        sender = asked.inbound.sender
        return text(
            "whoami",
            asked.language,
            name=sender.name or sender.id,
            id=sender.id,
            channel=asked.inbound.address.channel,
            role=text(f"role.{asked.role}", asked.language),
        )


def _caller(asked: Asked) -> Caller:
    sender, address = asked.inbound.sender, asked.inbound.address
    return Caller(
        sender.id, sender.name, asked.admin, address.channel, address.kind, sender.language, address.chat,
        asked.role == "guest",
    )  # fmt: skip


def _sentence(description: str, limit: int = 120) -> str:
    line = " ".join(description.split())
    for end in (". ", "。"):
        head, found, _ = line.partition(end)
        if found and len(head) < limit:
            return head + end.strip()
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
