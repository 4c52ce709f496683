"""What the console shows, as plain JSON: how things stand, never what people say to each other.

Every list and text is bounded. Secrets are masked by whoever sends it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import unquote

from agent.tools.base import Caller
from bridge import budget, house_admin
from bridge.approvals import AUDIT_LOG, AUDIT_SCOPE
from bridge.ledger import Ledger
from bridge.pairing import has_admin
from bridge.store.base import UsageField, UsageRow
from channels.base import Address, Channel, ChatKind, Sender

if TYPE_CHECKING:
    from agent.models.base import Model
    from agent.skills.counts import SkillCounts
    from agent.skills.manager import SkillManager
    from agent.tools.manager import ToolManager
    from agent.tools.mcp.hub import McpHub
    from bridge.approvals import Approvals, Card

#: Most rows of a list (people, skills, servers), tools in all, and characters of one text.
_ROWS, _TOOLS, _CHARS = 500, 1000, 2000
_AUDIT = 50
_DAYS, _DAY = 30, 86_400.0
_TOP = 12
#: Sums that the largest of each group are found among.
_SUMS = 1000
#: Seconds for which the use of 30 days is not summed again: there may be very many rows.
_USAGE_AGE = 30.0


class Host(house_admin.Host, Protocol):
    """What of the bridge is shown; `App` has it."""

    approvals: Approvals
    channels: dict[str, Channel]
    clock: Callable[[], float]
    counts: SkillCounts
    failed: dict[str, str]
    ledger: Ledger
    mcp: McpHub
    model: Model | None
    skills: SkillManager
    started: float
    tools: ToolManager

    async def budget(self, session: str, caller: Caller) -> Sequence[budget.Part]: ...


class Overview:
    """Gathers the state; one for all open consoles."""

    def __init__(self, app: Host) -> None:
        self._app = app
        self._usage: tuple[float, dict[str, Any]] = (float("-inf"), {})
        self._summing = asyncio.Lock()

    async def state(self, sessions: int) -> dict[str, Any]:
        """Everything; of the sessions the first so many by their keys."""
        app = self._app
        known = await app.store.sessions(sessions)
        return {
            "now": app.clock(),
            "since": app.started,
            "model": app.model.name if app.model is not None else "",
            "channels": _channels(app),
            **await _tools(app),
            **_skills(app),
            **await _people(app),
            "approvals": [_card(card) for card in (await app.approvals.open())[:_ROWS]],
            "usage": await self._used(),
            "limits": {name: value for name, value in app.ledger.limits.model_dump().items() if value},
            "sessions": [{"key": one.key, "entries": one.entries} for one in known],
            "audit": await _audit(app),
        }

    async def _used(self) -> dict[str, Any]:
        async with self._summing:
            made, found = self._usage
            now = self._app.clock()
            if abs(now - made) > _USAGE_AGE:
                ledger = self._app.ledger
                month = {
                    group: await ledger.rows(_DAYS, *per, most=_SUMS) for group, (per, _) in GROUPS.items()
                }
                found = await asyncio.to_thread(usage, month, await ledger.rows(1), ledger.cost)
                self._usage = now, found
            return found

    async def session(self, key: str) -> dict[str, Any] | None:
        """What a session's next request costs, part by part; None when it has no history."""
        app = self._app
        if not await app.store.history.exists(key):
            return None
        found = await app.budget(key, caller_of(app, key))
        rows = [{"kind": part.kind, "name": part.name, "tokens": part.tokens} for part in found]
        return {"key": key, "sums": budget.sums(found), "parts": rows[:_ROWS]}


def caller_of(app: Host, session: str) -> Caller:
    """Somebody who talks in a session, as far as its key tells: the person of a direct chat as what they
    are, else a member."""
    parts = [unquote(part) for part in session.split(":")]
    channel = parts[0]
    named = [part.partition("=")[2] for part in parts[1:] if part.startswith(("person=", "by="))]
    kind = cast("ChatKind", parts[1] if len(parts) > 2 and parts[1] in ("group", "channel") else "direct")
    chat = parts[2] if len(parts) > 2 else ""
    person = named[-1] if named else chat if kind == "direct" else ""
    if not person:
        return Caller("", channel=channel, chat_kind=kind, chat=chat)
    verdict = app.access.of(Sender(person), Address(channel, chat or person, kind))
    guest = verdict.kind != "allowed" or verdict.role == "guest"
    admin = verdict.kind == "allowed" and verdict.admin
    return Caller(person, admin=admin, channel=channel, chat_kind=kind, chat=chat, guest=guest)


def _channels(app: Host) -> list[dict[str, Any]]:
    rows = []
    for name, settings in app.config.channels.items():
        row = {"name": name, "type": settings.type or name, "ok": False, "reason": "", "cure": ""}
        channel = app.channels.get(name)
        if channel is None:
            row["reason"] = _short(app.failed.get(name, ""))
        else:
            health = channel.health()
            row |= {"ok": health.ok, "reason": _short(health.reason), "cure": _short(health.cure)}
        rows.append(row)
    return rows[:_ROWS]


async def _tools(app: Host) -> dict[str, Any]:
    """The servers with their tools; those that are built in stand in a group of their own."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in await asyncio.to_thread(app.tools.usage):
        tool = {
            "name": one.name,
            "on": one.on,
            "tokens": one.tokens,
            "calls": one.calls,
            "failures": one.failures,
            "ms": round(one.milliseconds / one.calls) if one.calls else 0,
        }
        groups[one.source].append(tool)
    servers, room = [], _TOOLS
    for status in app.mcp.status[:_ROWS]:
        tools = groups[status.name]
        row = {"name": status.name, "state": status.state, "reason": _short(status.reason)}
        cost = sum(tool["tokens"] for tool in tools)
        servers.append({**row, "count": len(tools), "tokens": cost, "tools": tools[:room]})
        room = max(room - len(tools), 0)
    problems = [_short(str(problem)) for problem in app.mcp.problems[:_ROWS]]
    return {"servers": servers, "problems": problems, "builtin": groups["builtin"][:_ROWS]}


def _skills(app: Host) -> dict[str, Any]:
    skills = app.skills.current
    states = {skill.name: ("available", "") for skill in skills.available}
    states |= {skill.name: ("unavailable", _short(str(missing))) for skill, missing in skills.unavailable}
    rows = []
    for skill in sorted(skills, key=lambda one: one.name)[:_ROWS]:
        state, missing = states.get(skill.name, ("disabled", ""))
        count = app.counts.of(skill.name)
        row = {"name": skill.name, "source": skill.source, "state": state, "missing": missing}
        rows.append({**row, "offered": count.offered, "read": count.read, "used": count.used})
    told = [
        {"severity": one.severity, "text": _short(str(one))}
        for one in dict.fromkeys(skills.diagnostics[:_ROWS])
    ]
    return {"skills": rows, "diagnostics": told}


async def _people(app: Host) -> dict[str, Any]:
    desk = house_admin.Desk(app.config, app.store, app.pairing, app.access, app.forget_session, app.welcome)
    found = await house_admin.people(desk, {})
    for one in found["waiting"]:
        one["first"] = not has_admin(app.access, one["channel"])
    return {name: rows[:_ROWS] for name, rows in found.items()}


def _card(card: Card) -> dict[str, Any]:
    """An open confirmation: what would run and for whom."""
    return {
        "id": card.id,
        "code": card.code,
        "tool": card.tool,
        "source": card.source,
        "arguments": _short(card.arguments),
        "asker": card.asker,
        "channel": card.address.channel,
        "chat": card.address.chat,
        "kind": card.address.kind,
        "until": card.until,
    }


async def _audit(app: Host) -> list[dict[str, Any]]:
    """The newest entries of the audit log, newest first."""
    entries = await app.store.channel_state(AUDIT_SCOPE).read(AUDIT_LOG, 0, _AUDIT)
    texts = ("what", "tool", "arguments", "session", "asker", "by")
    return [
        {
            "seq": entry.seq,
            "at": entry.value.get("at", 0),
            **{name: _short(str(entry.value.get(name, ""))) for name in texts},
        }
        for entry in reversed(entries)
    ]


#: How use is grouped: the fields that are needed for it, and the name of a row's group ("": none).
GROUPS: Mapping[str, tuple[tuple[UsageField, ...], Callable[[UsageRow], str]]] = {
    "person": (("channel", "person"), lambda row: f"{row.channel}:{row.person}"),
    "chat": (("channel", "chat"), lambda row: f"{row.channel}:{row.chat}"),
    "session": (("session",), lambda row: row.session),
    "model": ((), lambda row: row.name if row.kind == "model" else ""),
    "tool": ((), lambda row: row.name if row.kind == "tool" else ""),
}


def usage(
    month: Mapping[str, Sequence[UsageRow]], today: Sequence[UsageRow], cost: Callable[[UsageRow], float]
) -> dict[str, Any]:
    """Sums of today and of the month, and the largest by each of `GROUPS`; `month` has the rows of each."""
    by: dict[str, list[dict[str, Any]]] = {}
    for group, (_, name_of) in GROUPS.items():
        found: dict[str, list[UsageRow]] = defaultdict(list)
        for row in month[group]:
            if name := name_of(row):
                found[name].append(row)
        sums = [{"name": _short(name), **_sum(own, cost)} for name, own in found.items()]
        by[group] = sorted(sums, key=lambda one: (-one["input"] - one["output"], -one["tools"]))[:_TOP]
    return {
        "today": _sum(today, cost),
        "month": _sum(month["model"], cost),
        "by": by,
    }


def _sum(rows: Iterable[UsageRow], cost: Callable[[UsageRow], float]) -> dict[str, Any]:
    total = {"answers": 0, "input": 0, "output": 0, "cached": 0, "tools": 0}
    money = 0.0
    for row in rows:
        total["answers" if row.kind == "model" else "tools"] += row.calls
        total["input"] += row.input
        total["output"] += row.output
        total["cached"] += row.cached
        money += cost(row)
    return {**total, "cost": round(money, 6)}


def _short(text: str) -> str:
    return text if len(text) <= _CHARS else f"{text[: _CHARS - 1]}…"
