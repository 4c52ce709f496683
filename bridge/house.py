"""The commands about people and permissions: who is let in, what waits for a yes, how a chat behaves."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.tools.base import Role
from agent.tools.mcp.hub import McpHub
from bridge.approvals import Approvals
from bridge.ledger import Ledger
from bridge.notes import ACTIVATIONS, BUSY_MODES, LONGEST_MOUNT, Notes, TooMany, place
from bridge.pairing import LENGTH, Pairing, Request, clean
from bridge.store.base import Store, UsageRow
from bridge.texts import text
from channels.base import Channel, Inbound

_DEFAULT_MOUNT = 60
_USAGE_DAYS = 30
_MOST_LINES = 12
#: Sums that the largest lines are made from: of a person, one for each model and tool.
_MOST_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Asked:
    """A command with who typed it, and where."""

    argument: str
    inbound: Inbound
    session: str
    language: str
    role: Role

    @property
    def admin(self) -> bool:
        return self.role == "admin"


@dataclass(frozen=True, slots=True)
class House:
    """What these commands work on. `forget` ends a session's run, agent and background tasks; `welcome`
    tells somebody that they were let in."""

    store: Store
    notes: Notes
    pairing: Pairing
    approvals: Approvals
    ledger: Ledger
    mcp: McpHub
    channels: Mapping[str, Channel]
    folder: Callable[[str], Path]
    forget: Callable[[str], Awaitable[None]]
    welcome: Callable[[Request, Role], Awaitable[None]]
    clock: Callable[[], float]
    busy_default: str = "queue"

    async def run(self, name: str, asked: Asked) -> str:
        match name:
            case "queue":
                return await self._queue(asked)
            case "activation":
                return await self._activation(asked)
            case "approve" | "deny":
                return await self._decide(name, asked)
            case "pair":
                return await self._pair(asked)
            case "mount":
                return await self._mount(asked)
            case "usage":
                return await self._usage(asked)
            case "forget":
                return await self._forget(asked)
            case _:
                raise AssertionError(f"no such command: {name}")

    # -- how a chat behaves ----------------------------------------------------------------------------

    async def _queue(self, asked: Asked) -> str:
        language, mode = asked.language, asked.argument.lower()
        now = self.notes.get("busy", asked.session) or self.busy_default
        if not mode:
            return text("queue.now", language, mode=now, modes=", ".join(BUSY_MODES))
        if mode not in BUSY_MODES:
            return text("queue.unknown", language, mode=mode[:20], modes=", ".join(BUSY_MODES))
        if asked.inbound.address.kind != "direct" and not asked.admin:
            return text("admins.only", language)
        return await self._note("busy", asked.session, mode, text(f"queue.{mode}", language), language)

    async def _activation(self, asked: Asked) -> str:
        language, value, address = asked.language, asked.argument.lower(), asked.inbound.address
        if address.kind == "direct":
            return text("activation.direct", language)
        key = place(address, self.notes.home(address))
        if not value:
            return text("activation.now", language, value=self.notes.get("activation", key) or "-")
        if not asked.admin:
            return text("admins.only", language)
        if value not in (*ACTIVATIONS, "default"):
            return text("activation.unknown", language, values=", ".join((*ACTIVATIONS, "default")))
        kept = None if value == "default" else value
        return await self._note("activation", key, kept, text(f"activation.{value}", language), language)

    async def _note(self, kind: str, key: str, value: str | None, done: str, language: str) -> str:
        try:
            await self.notes.put(kind, key, value)  # type: ignore[arg-type]
        except TooMany:
            return text("notes.full", language)
        return done

    async def _mount(self, asked: Asked) -> str:
        """`/mount NAME [MINUTES]`, `/mount off NAME`: a server marked `write`, here, for a time."""
        language = asked.language
        writing = self.mcp.on_request
        mounted = {
            name: until for name, until in self.notes.mounts(asked.session).items() if until > self.clock()
        }
        if not asked.argument:
            lines = [
                f"- {name}: {text('mount.left', language, minutes=round((until - self.clock()) / 60) or 1)}"
                for name, until in mounted.items()
            ]
            return "\n".join([text("mount.now", language, names=", ".join(sorted(writing)) or "-"), *lines])
        if not asked.admin:
            return text("admins.only", language)
        words = asked.argument.split()
        off = words[0].lower() == "off"
        name = words[1] if off and len(words) > 1 else words[0]
        if name not in writing and not (off and name in mounted):
            return text("mount.unknown", language, name=name[:40], names=", ".join(sorted(writing)) or "-")
        if off:
            mounted.pop(name, None)
            await self.notes.put("mount", asked.session, dict(mounted) or None)
            return text("mount.off", language, name=name)
        given = words[1] if len(words) > 1 else ""
        minutes = int(given) if given.isdecimal() else _DEFAULT_MOUNT
        minutes = max(1, min(minutes, LONGEST_MOUNT))
        await self.notes.put("mount", asked.session, {**mounted, name: self.clock() + minutes * 60})
        return text("mount.on", language, name=name, minutes=minutes)

    # -- confirmations and people ----------------------------------------------------------------------

    async def _decide(self, name: str, asked: Asked) -> str:
        """`/approve CODE [session|always]`, `/deny CODE words`; a pairing code works as well."""
        language = asked.language
        code, _, rest = asked.argument.partition(" ")
        if len(clean(code)) == LENGTH:
            return await self._let_in(clean(code), name == "approve", asked)
        how = {"": "once", "once": "once", "session": "session", "always": "always"}.get(rest.strip().lower())
        if name == "approve" and how is None:
            return text("approval.how", language)
        state = "denied" if name == "deny" else str(how)
        words = rest.strip() if name == "deny" else ""
        sender, address = asked.inbound.sender, asked.inbound.address
        said = await self.approvals.answer(code, state, sender, address, words, language)
        return said if said is not None else text("approval.none", language)

    async def _let_in(self, code: str, yes: bool, asked: Asked, role: Role | None = None) -> str:
        language = asked.language
        if not asked.admin:
            return text("admins.only", language)
        if not yes:
            denied = await self.pairing.deny(code)
            return text("pairing.denied" if denied else "pairing.unknown", language, code=code)
        by = f"{asked.inbound.address.channel}:{asked.inbound.sender.id}"
        done = await self.pairing.approve(code, by, role)
        if done is None:
            return text("pairing.unknown", language, code=code)
        await self.welcome(*done)
        request, given = done
        name = request.name or request.person
        return text("pairing.approved", language, name=name, role=text(f"role.{given}", language))

    async def _pair(self, asked: Asked) -> str:
        """`/pair`, `/pair approve CODE [admin|guest]`, `/pair deny CODE`, `/pair invite [admin]`."""
        language = asked.language
        if not asked.admin:
            return text("admins.only", language)
        words = asked.argument.split()
        verb = words[0].lower() if words else "list"
        last = words[-1].lower() if words else ""
        role: Role = "admin" if last == "admin" else "guest" if last == "guest" else "member"
        channel = asked.inbound.address.channel
        if verb == "invite":
            code = await self.pairing.invite(channel, role)
            return text("pairing.invite", language, code=code, role=text(f"role.{role}", language))
        if verb in ("approve", "deny") and len(words) > 1:
            return await self._let_in(clean(words[1]), verb == "approve", asked, role)
        waiting = await self.pairing.waiting()
        if not waiting:
            return text("pairing.none", language)
        lines = [f"- `{one.code}`: {_plain(one.name)} (id {one.person}, {one.channel})" for one in waiting]
        return "\n".join([text("pairing.waiting", language), "", *lines])

    # -- use and privacy -------------------------------------------------------------------------------

    async def _usage(self, asked: Asked) -> str:
        """Everybody sees their own use; admins see all, by person, chat, model and tool."""
        language, ledger = asked.language, self.ledger
        me = (asked.inbound.address.channel, asked.inbound.sender.id)
        mine, today = await ledger.rows(_USAGE_DAYS, of=me), await ledger.rows(1, of=me)
        lines = [
            text("usage.title", language, days=_USAGE_DAYS),
            "",
            f"- {text('usage.you', language)}: {self._sum(mine, language)}",
            f"- {text('usage.today', language)}: {self._sum(today, language)}",
        ]
        if asked.admin:
            every = await ledger.rows(_USAGE_DAYS)
            people = await ledger.rows(_USAGE_DAYS, "channel", "person", most=_MOST_ROWS)
            chats = await ledger.rows(_USAGE_DAYS, "channel", "chat", most=_MOST_ROWS)
            lines += [
                f"- {text('usage.all', language)}: {self._sum(every, language)}",
                *self._table("person", _person, people, language),
                *self._table("chat", _chat, chats, language),
                *self._table("model", _model, every, language),
                *self._table("tool", _tool, every, language),
            ]
        return "\n".join(lines)

    def _table(
        self, title: str, key: Callable[[UsageRow], str], rows: Sequence[UsageRow], language: str
    ) -> list[str]:
        groups: dict[str, list[UsageRow]] = defaultdict(list)
        for row in rows:
            if name := key(row):
                groups[name].append(row)
        if not groups:
            return []
        most = sorted(groups.items(), key=lambda one: -sum(r.input + r.output + r.calls for r in one[1]))
        lines = [f"  - {_plain(name)}: {self._sum(group, language)}" for name, group in most[:_MOST_LINES]]
        return [f"- {text(f'usage.by.{title}', language)}:", *lines]

    def _sum(self, rows: Sequence[UsageRow], language: str) -> str:
        models = [row for row in rows if row.kind == "model"]
        tools = sum(row.calls for row in rows if row.kind == "tool")
        cost = sum(self.ledger.cost(row) for row in models)
        said = text(
            "usage.sum",
            language,
            answers=sum(row.calls for row in models),
            input=sum(row.input for row in models),
            output=sum(row.output for row in models),
            tools=tools,
        )
        return f"{said}, {cost:.4f}" if cost else said

    async def _forget(self, asked: Asked) -> str:
        """`/forget yes` deletes the conversation with its files; in a group only for admins."""
        language = asked.language
        if asked.inbound.address.kind != "direct" and not asked.admin:
            return text("admins.only", language)
        if asked.argument.lower() not in ("yes", "是", "确认"):
            return text("forget.sure", language)
        await self.forget(asked.session)
        folder = self.folder(asked.session)
        await asyncio.to_thread(shutil.rmtree, folder, True)
        return text("forget.done", language)


def _plain(name: str) -> str:
    """A name in a list: one line, no markup of its own."""
    return re.sub(r"[\s`*_\[\]<>]+", " ", name).strip()[:60] or "-"


def _person(row: UsageRow) -> str:
    return f"{row.channel}:{row.person}"


def _chat(row: UsageRow) -> str:
    return f"{row.channel}:{row.chat}"


def _model(row: UsageRow) -> str:
    return row.name if row.kind == "model" else ""


def _tool(row: UsageRow) -> str:
    return row.name if row.kind == "tool" else ""
