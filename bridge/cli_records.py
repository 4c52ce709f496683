"""`causeway sessions`, `usage` and `audit`: what was said, what it cost, and who allowed which call.

Looking needs no bridge; deleting is done by the running one, if there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.history import Assistant, Ended, Entry, ToolOutput, User, entry_to_json
from bridge.approvals import AUDIT_LOG, AUDIT_SCOPE
from bridge.cli_terminal import Terminal
from bridge.config import Config
from bridge.house_admin import Refusal, alone, carry_out, files_of
from bridge.keys import channel_of
from bridge.ledger import Ledger
from bridge.store.base import Store, StoredSession, UsageField, UsageRow

_PAGE = 1000
_SHOWN = 200  # lines of a table
_LONGEST_RESULT = 600  # characters of a tool's result in a transcript that is shown
GROUPS: Mapping[str, Callable[[UsageRow], str]] = {
    "person": lambda row: f"{row.channel}:{row.person}",
    "chat": lambda row: f"{row.channel}:{row.chat}",
    "model": lambda row: row.name if row.kind == "model" else "",
    "tool": lambda row: row.name if row.kind == "tool" else "",
    "session": lambda row: row.session,
}
_FIELDS: Mapping[str, tuple[UsageField, ...]] = {
    "person": ("channel", "person"),
    "chat": ("channel", "chat"),
    "session": ("session",),
}


class Wrong(Exception):
    """It cannot be done; the message is for the person at the terminal."""


# -- conversations -----------------------------------------------------------------------------------------


async def sessions(config: Config, options: argparse.Namespace, terminal: Terminal) -> int:
    async with alone(config, time.time, look=True) as desk:
        store = desk.store
        if options.what == "list":
            return await _list(config, store, options, terminal)
        key = await _find(store, config, options.key, terminal)
        count = await store.history.count(key)
        entries = [] if options.what == "delete" else await store.history.load(key)
    folder = config.workspace / "sessions" / key
    files = await asyncio.to_thread(files_of, folder)
    if options.what == "delete":
        return await _delete(config, options, terminal, key, count, files)
    if options.what == "show" and not options.json:
        terminal.raw(transcript(key, entries, files, longest=_LONGEST_RESULT))
        return 0
    if options.what == "export" and options.format == "md" and not options.json:
        words = terminal.masker.mask(transcript(key, entries, files))
    else:
        whole = {"session": key, "entries": [entry_to_json(entry) for entry in entries], "files": files}
        words = json.dumps(terminal.masked(whole), ensure_ascii=False, indent=2) + "\n"
    target = getattr(options, "output", None)
    if target is None:
        sys.stdout.write(words)
        return 0
    try:
        await asyncio.to_thread(_write, target, words)
    except OSError as error:
        raise Wrong(terminal.text("cli.sessions.file", file=target, reason=error.strerror)) from error
    terminal.say("cli.sessions.exported", file=target, folder=folder, files=len(files))
    return 0


def _write(target: Path, words: str) -> None:
    """What people said is for the one who asked for it."""
    target.touch(mode=0o600)
    target.write_text(words, encoding="utf-8")


async def _list(config: Config, store: Store, options: argparse.Namespace, terminal: Terminal) -> int:
    waiting = dict.fromkeys(await store.waiting_sessions(list(config.channels)), 0)
    every = [one async for one in _all(store)]
    every += [StoredSession(key, 0) for key in waiting.keys() - {one.key for one in every}]
    found = []
    if options.channel is not None:
        every = [one for one in every if channel_of(one.key) == options.channel]
    every.sort(key=lambda one: (one.active, one.key))
    most = _most(options, len(every))
    for one in every[len(every) - most :]:
        count = await store.waiting_count(one.key) if one.key in waiting else 0
        last = time.strftime("%Y-%m-%d", time.gmtime(one.active)) if one.active else ""
        found.append({"key": one.key, "entries": one.entries, "waiting": count, "last": last})
    if options.json:
        terminal.json({"sessions": found})
        return 0
    rows = [(one["last"] or "-", one["entries"], one["waiting"] or "", one["key"]) for one in found]
    terminal.table(terminal.text("cli.sessions.columns").split("|"), rows, "cli.sessions.none")
    if len(every) > most:
        terminal.say("cli.more", count=len(every) - most)
    return 0


def _most(options: argparse.Namespace, count: int) -> int:
    """How many lines of so many are shown."""
    return min(count, options.n or (count if options.json else _SHOWN))


async def _all(store: Store) -> AsyncIterator[StoredSession]:
    after = ""
    while page := await store.sessions(_PAGE, after):
        for one in page:
            yield one
        after = page[-1].key


async def _find(store: Store, config: Config, key: str, terminal: Terminal) -> str:
    """The key that was meant: as given, or the only one that holds it."""
    waiting = await store.waiting_sessions(list(config.channels))
    if await store.history.exists(key) or key in waiting:
        return key
    near = {one.key async for one in _all(store) if key in one.key} | {one for one in waiting if key in one}
    if len(near) == 1:
        return near.pop()
    if not near:
        raise Refusal("session", session=key[:200])
    shown = "\n  ".join(sorted(near)[:10])
    raise Wrong(terminal.text("cli.sessions.several", key=key[:200], count=len(near), keys=shown))


async def _delete(
    config: Config,
    options: argparse.Namespace,
    terminal: Terminal,
    key: str,
    entries: int,
    files: Sequence[str],
) -> int:
    if not options.yes:
        terminal.say("cli.sessions.delete", key=key, entries=entries, files=len(files))
        if not await asyncio.to_thread(terminal.agreed):
            terminal.say("cli.sessions.kept")
            return 1
    found = await carry_out(config, options.port, "POST", "/sessions/delete", {"session": key})
    if options.json:
        terminal.json(found)
    else:
        terminal.say("cli.sessions.deleted", key=key)
    return 0


def transcript(key: str, entries: Iterable[Entry], files: Sequence[str], longest: int | None = None) -> str:
    """A conversation as Markdown; results of tools at most `longest` characters each."""
    lines = [f"# {key}"]
    for entry in entries:
        if isinstance(entry, User):
            pictures = "".join(f"\n\n[{image.path}]" for image in entry.images)
            lines.append(f"## User\n\n{entry.text}{pictures}")
        elif isinstance(entry, Assistant):
            calls = [
                f"`{call.name}` {json.dumps(call.arguments, ensure_ascii=False)}" for call in entry.calls
            ]
            lines.append(
                "## Assistant\n\n" + "\n\n".join(part for part in (entry.text.strip(), *calls) if part)
            )
        elif isinstance(entry, ToolOutput):
            text = entry.text
            if longest is not None and len(text) > longest:
                text = f"{text[:longest]} … (+{len(text) - longest})"
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
            mark = " ✗" if entry.is_error else ""
            lines.append(f"### {entry.name}{mark}\n\n{fence}\n{text}\n{fence}")
        elif isinstance(entry, Ended):
            lines.append(f"_({entry.failure})_")
    if files:
        lines.append("## Files\n\n" + "\n".join(f"- {name}" for name in files))
    return "\n\n".join(lines) + "\n"


# -- use and confirmations ---------------------------------------------------------------------------------


async def usage(config: Config, options: argparse.Namespace, terminal: Terminal) -> int:
    async with alone(config, time.time, look=True) as desk:
        ledger = Ledger(desk.store, time.time, prices=config.model.prices)
        rows = await ledger.rows(options.days, *_FIELDS.get(options.by, ()))
    groups: dict[str, list[UsageRow]] = defaultdict(list)
    for row in rows:
        if name := GROUPS[options.by](row):
            groups[name].append(row)
    found = [{options.by: name, **_sum(group, ledger)} for name, group in groups.items()]
    found.sort(key=lambda one: (-one["cost"], -one["input"] - one["output"], -one["calls"]))
    total, most = _sum(rows, ledger), _most(options, len(found))
    unpriced = sorted({row.name for row in rows if row.kind == "model"} - set(config.model.prices))
    if options.json:
        terminal.json({"days": options.days, "by": options.by, "rows": found[:most], "total": total})
        return 0
    keys = ("answers", "input", "output", "cached", "calls", *(("cost",) if config.model.prices else ()))
    columns = dict(zip(("answers", "input", "output", "cached", "calls", "cost"),
                       terminal.text("cli.usage.columns").split("|"), strict=True))  # fmt: skip
    shown = [*found[:most], {options.by: terminal.text("cli.usage.total"), **total}] if found else []
    table = [(one[options.by], *(_figure(one[key]) for key in keys)) for one in shown]
    head = [terminal.text(f"cli.usage.{options.by}"), *(columns[key] for key in keys)]
    terminal.table(head, table, "cli.usage.none")
    if len(found) > most:
        terminal.say("cli.more", count=len(found) - most)
    if config.model.prices and unpriced and found:
        terminal.say("cli.usage.unpriced", names=", ".join(unpriced))
    return 0


def _sum(rows: Sequence[UsageRow], ledger: Ledger) -> dict[str, Any]:
    models = [row for row in rows if row.kind == "model"]
    return {
        "answers": sum(row.calls for row in models),
        "input": sum(row.input for row in models),
        "output": sum(row.output for row in models),
        "cached": sum(row.cached for row in models),
        "calls": sum(row.calls for row in rows if row.kind == "tool"),
        "cost": round(sum(ledger.cost(row) for row in models), 6),
    }


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"


async def audit(config: Config, options: argparse.Namespace, terminal: Terminal) -> int:
    async with alone(config, time.time, look=True) as desk:
        log = await desk.store.channel_state(AUDIT_SCOPE).read(AUDIT_LOG, limit=options.n)
    entries = [entry.value for entry in log]
    if options.json:
        terminal.json({"approvals": entries})
        return 0
    if not entries:
        terminal.say("cli.audit.none")
    for one in entries:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one["at"]))
        what = terminal.text(f"cli.audit.{one['what']}")
        by = one["by"] or "-"
        terminal.raw(f"{when}  {what}  {one['tool']}  {by} (← {one['asker']}, {one['session']})\n")
        terminal.raw(f"    {one['arguments'][:300]}\n")
    return 0
