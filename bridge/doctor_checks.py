"""What `causeway doctor` looks at: one function a check, from `Scene` to findings. `CHECKS` lists them.

An error is something configured that does not work; a warning is something that works but will surprise
somebody. Nothing is changed.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import socket
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TypeAlias

from agent.tools.masking import Masker
from agent.tools.retrieval.confusable import DEAR
from bridge.access import AccessRule
from bridge.config import Config
from bridge.doctor_outside import Level, finding, look_at_channel, look_at_model
from bridge.house_admin import alone, chat_channels
from bridge.http import is_loopback
from bridge.running import Unreached, ask, base_url
from bridge.store import sqlite_path
from channels.base import Finding

_MIB = 1024 * 1024
#: Seconds that the look through the database may take.
_INTEGRITY = 10.0
_SQLITE = (3, 38)  # the store asks with `->>`
_FEW_FILES = 1024
#: No machine that runs this has an earlier time (2026-01-01).
_NOT_BEFORE = 1_767_225_600


@dataclass(frozen=True, slots=True)
class Scene:
    """What is looked at. `running`: a bridge works in this workspace; `probe`: real, small answers are asked
    of the model."""

    config: Config
    language: str
    probe: bool = False
    running: bool = False

    def say(self, level: Level, key: str, **values: object) -> Finding:
        """A finding of the catalogue: `doctor.<key>`, with its cure at `.cure` where there is one."""
        return finding(level, key, self.language, values)


Check: TypeAlias = Callable[[Scene], Awaitable[list[Finding]]]


# -- the house ---------------------------------------------------------------------------------------------


async def _configuration(scene: Scene) -> list[Finding]:
    file = scene.config.source
    if file is None:
        return [scene.say("ok", "config.none")]
    found = [scene.say("ok", "config", file=file.absolute())]
    written = await asyncio.to_thread(file.read_text, "utf-8", "replace")
    plain = any(secret in written for secret in scene.config.secrets())
    if plain and file.stat().st_mode & 0o077:
        found.append(scene.say("warning", "open_file", file=file))
    return found


async def _workspace(scene: Scene) -> list[Finding]:
    return await asyncio.to_thread(_look_at_workspace, scene)


def _look_at_workspace(scene: Scene) -> list[Finding]:
    folder = scene.config.workspace
    there = next(one for one in (folder, *folder.parents) if one.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return [scene.say("error", "workspace.closed", folder=folder, there=there)]
    found = [scene.say("ok", "workspace" if there == folder else "workspace.new", folder=folder)]
    free = shutil.disk_usage(there).free // _MIB
    if free < 500:
        found.append(scene.say("error" if free < 50 else "warning", "disk", free=free, folder=there))
    dotenv = folder / ".env"
    if dotenv.exists() and dotenv.stat().st_mode & 0o077:
        found.append(scene.say("warning", "open_file", file=dotenv))
    return found


async def _database(scene: Scene) -> list[Finding]:
    url = scene.config.store.url
    if url.startswith("sqlite:"):
        return await asyncio.to_thread(_look_at_database, scene)
    from bridge.store.redis_check import look

    return list(await look(url, language=scene.language))


def _look_at_database(scene: Scene) -> list[Finding]:
    """Read only, so that a running bridge is not disturbed and an older file is not brought up to date."""
    from bridge.store.sqlite_schema import APPLICATION_ID, MIGRATIONS
    from bridge.store.sqlite_upkeep import damaged_files

    path = sqlite_path(scene.config.store.url, scene.config.workspace)
    if not path.exists():
        return [scene.say("ok", "store.new", file=path)]
    closed = [one for end in ("", "-wal", "-shm") if (one := Path(f"{path}{end}")).exists()]
    if closed := [one for one in closed if not os.access(one, os.R_OK | os.W_OK)]:
        return [scene.say("error", "store.closed", file=closed[0])]
    until = time.monotonic() + _INTEGRITY
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as db:
            owner = db.execute("PRAGMA application_id").fetchone()[0]
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if owner != APPLICATION_ID:
                return [scene.say("error", "store.foreign", file=path)]
            if version > len(MIGRATIONS):
                return [scene.say("error", "store.newer", file=path, version=version, known=len(MIGRATIONS))]
            db.set_progress_handler(lambda: time.monotonic() > until, 100_000)
            said = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        if time.monotonic() > until:
            return [scene.say("ok", "store.large", file=path, size=path.stat().st_size // _MIB)]
        return [scene.say("error", "store.broken", file=path, reason=error)]
    if said != "ok":
        return [scene.say("error", "store.broken", file=path, reason=said)]
    size = round(path.stat().st_size / _MIB, 1)
    found = [scene.say("ok", "store", file=path, size=size, version=version)]
    return found + [scene.say("warning", "store.damaged", file=one) for one in damaged_files(path)]


def _up_to_date(scene: Scene) -> bool:
    """Whether the database has this program's format, or is still to be made."""
    from bridge.store.sqlite_schema import APPLICATION_ID, MIGRATIONS

    url = scene.config.store.url
    path = sqlite_path(url, scene.config.workspace) if url.startswith("sqlite:") else None
    if path is None or not path.exists():
        return True
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as db:
            found = [
                db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
            ]
    except sqlite3.Error:
        return False
    return found == [APPLICATION_ID, len(MIGRATIONS)]


async def _bridge(scene: Scene) -> list[Finding]:
    server = scene.config.server
    if not scene.running:
        found = [scene.say("ok", "bridge.none")]
        if server.port and await asyncio.to_thread(_taken, server.host, server.port):
            found.append(scene.say("error", "port", host=server.host, port=server.port))
        return found
    try:
        state = await ask(scene.config, None, "GET", "/readyz")
    except Unreached as why:
        return [scene.say("warning", "bridge.unknown", reason=why)]
    found = [scene.say("ok", "bridge", base=base_url(scene.config, None))]
    for name, channel in state.get("channels", {}).items():
        if not channel["ok"]:
            found.append(Finding("error", f"{name}: {channel['reason']}", channel["cure"]))
    missing = [name for name in scene.config.channels if name not in state.get("channels", {})]
    if missing and "terminal" not in missing:
        found.append(scene.say("warning", "bridge.other_channels", names=", ".join(missing)))
    return found


def _taken(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


async def _server(scene: Scene) -> list[Finding]:
    server = scene.config.server
    public = server.public_url
    found = []
    if is_loopback(server.host):
        found.append(scene.say("ok", "server.here", host=server.host, port=server.port))
    else:
        found.append(scene.say("ok", "server.open", host=server.host, port=server.port))
        if not public.startswith("https://"):
            found.append(scene.say("warning", "server.no_tls", host=server.host))
        if server.key is None:
            found.append(scene.say("ok", "server.key", file=scene.config.workspace / "server.key"))
    if public.startswith("http://"):
        found.append(scene.say("warning", "server.http", url=public))
    return found


# -- the model ---------------------------------------------------------------------------------------------


# -- the model, channels and people ------------------------------------------------------------------------


async def _model(scene: Scene) -> list[Finding]:
    first = scene.config.model
    found = []
    for number, settings in enumerate((first, *first.fallbacks)):
        one = settings.model_copy(update={"fallbacks": ()})
        finding = await look_at_model(one, scene.config.environ, scene.language, probe=scene.probe)
        where = f"model.fallbacks[{number - 1}]: " if number else ""
        found.append(Finding(finding.level, where + finding.what, finding.cure))
    return found


def channel_check(name: str) -> Check:
    async def check(scene: Scene) -> list[Finding]:
        config = scene.config
        rule = config.access.get(name) or config.access.get("default")
        named = [*rule.chats, *(id for id in rule.allow if id.startswith("-"))] if rule else []
        groups = list(dict.fromkeys(one.partition("/")[0] for one in named))
        public = config.server.public_url.rstrip("/")
        return await look_at_channel(name, config.channels[name], public, scene.language, groups)

    return check


async def _access(scene: Scene) -> list[Finding]:
    config = scene.config
    names = chat_channels(config)
    if not names:
        return [scene.say("ok", "access.local")]
    if not await asyncio.to_thread(_up_to_date, scene):  # opening it would bring it up to date
        return [scene.say("warning", "access.unknown")]
    found = []
    async with alone(config, time.time, look=True) as desk:
        waiting = await desk.pairing.waiting()
        for name in names:
            admins = len(desk.access.rule(name).admins) + len(desk.access.grants.admins(name))
            found += _rule(scene, name, desk.access.rule(name), admins)
    if waiting:
        found.append(scene.say("warning", "access.waiting", count=len(waiting)))
    return found


def _rule(scene: Scene, name: str, rule: AccessRule, admins: int) -> list[Finding]:
    limits = scene.config.sessions.limits
    bounded = limits.person_messages or limits.person_tokens or limits.total_tokens
    if admins:
        found = [scene.say("ok", "access.admins", channel=name, count=admins)]
    else:
        found = [scene.say("warning", "access.no_admin", channel=name)]
    if rule.direct == "open":
        found.append(scene.say("warning", "access.open" if bounded else "access.unbounded", channel=name))
    if rule.groups == "open":
        found.append(scene.say("warning", "access.groups", channel=name))
    if rule.direct in ("off", "allowlist") and not (admins or rule.allow or rule.chats or rule.guests):
        found.append(scene.say("warning", "access.nobody", channel=name, direct=rule.direct))
    return found


# -- tools, skills, the machine ----------------------------------------------------------------------------


async def _mcp(scene: Scene) -> list[Finding]:
    from bridge.cli_mcp import Refused, _read

    config = scene.config
    file = config.workspace / config.mcp.file
    try:
        read = await asyncio.to_thread(_read, config, Masker())
    except Refused as fault:
        return [scene.say("error", "mcp.file", reason=fault)]
    on = [server for server in read.servers if not server.disabled]
    found = [scene.say("ok", "mcp", count=len(on), file=file)]
    found += [
        scene.say("error", "mcp.entry", name=bad.name, line=bad.line, file=file, reason=bad.reason)
        for bad in read.bad
    ]
    found += [scene.say("warning", "mcp.warning", file=file, reason=warning) for warning in read.warnings]
    if scene.running:
        with suppress(Unreached):  # the check of the bridge says so
            told = await ask(config, None, "GET", "/mcp/servers")
            broken = [one for one in told["servers"] if one["state"] in ("failed", "needs_auth")]
            found += [
                scene.say("error", "mcp.server", name=one["name"], reason=one["reason"]) for one in broken
            ]
            pairs = [f"{one} ~ {other}" for one, other in told.get("confusable", ())]
            if pairs:
                found.append(scene.say("warning", "mcp.confusable", pairs=", ".join(pairs)))
            if costly := told.get("dear", ()):
                found.append(scene.say("warning", "mcp.dear", names=", ".join(costly), tokens=DEAR))
            return found
    for server in on:
        path = dict(server.env).get("PATH") or config.environ.get("PATH")
        here = config.workspace / server.cwd / server.command
        if server.kind == "stdio" and not shutil.which(server.command, path=path) and not here.exists():
            found.append(scene.say("error", "mcp.command", name=server.name, command=server.command))
    return found


async def _skills(scene: Scene) -> list[Finding]:
    from agent.skills.manager import SkillManager
    from bridge.paths import builtin_skills

    config = scene.config
    if not config.skills.enabled or not config.workspace.is_dir():  # looking would make the folder
        return []
    manager = SkillManager(builtin_skills(), config.workspace / "skills", environ=lambda: config.environ)
    await manager.refresh()
    skills = manager.current
    found = [scene.say("ok", "skills", count=len(skills.available), off=len(skills.disabled))]
    for skill, missing in skills.unavailable:
        level: Level = "warning" if skill.source == "custom" else "ok"
        found.append(scene.say(level, "skills.lacks", name=skill.name, missing=missing))
    for one in skills.diagnostics:
        if one.severity != "note":
            where = f"{one.file}:{one.line}" if one.line else one.file
            found.append(Finding(one.severity, f"{where}: {one.reason}", one.cure))
    return found


async def _machine(scene: Scene) -> list[Finding]:
    found = machine(scene.language)
    roots = [str(getattr(one, "base_url", "")) for one in scene.config.channels.values()]
    root = next((one for one in roots if one.startswith(("http://", "https://"))), "")
    drift = await _drift(root) if root else None
    if drift is not None and abs(drift) > 60:
        level: Level = "error" if abs(drift) > 240 else "warning"
        found.append(scene.say(level, "clock", seconds=abs(round(drift)), root=root))
    return found


def machine(language: str) -> list[Finding]:
    """What can be said without any configuration."""
    versions = {"python": ".".join(map(str, sys.version_info[:3])), "sqlite": sqlite3.sqlite_version}
    found = [finding("ok", "machine", language, versions)]
    if sqlite3.sqlite_version_info < _SQLITE:
        found.append(finding("error", "sqlite", language, {**versions, "least": "3.38"}))
    if time.time() < _NOT_BEFORE:
        now = time.strftime("%Y-%m-%d", time.gmtime())
        found.append(finding("error", "clock.wrong", language, {"now": now}))
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < _FEW_FILES:
        found.append(finding("warning", "files", language, {"files": files, "most": most}))
    return found


async def _drift(root: str) -> float | None:
    """By how many seconds this machine's clock is ahead of a server's; None when that cannot be told."""
    import aiohttp

    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5), trust_env=True) as client,
            client.get(root, allow_redirects=False) as response,
        ):
            return time.time() - parsedate_to_datetime(response.headers["Date"]).timestamp()
    except (aiohttp.ClientError, OSError, TimeoutError, KeyError, ValueError):
        return None  # the channel's own check tells that its server is not reached


#: By name, in the order in which they are shown; the channels' own come behind the model's. A further check
#: needs an entry here and a text `doctor.title.<name>`.
CHECKS: dict[str, Check] = {
    "configuration": _configuration,
    "workspace": _workspace,
    "store": _database,
    "bridge": _bridge,
    "server": _server,
    "model": _model,
    "access": _access,
    "mcp": _mcp,
    "skills": _skills,
    "machine": _machine,
}
