"""Letting people in and forgetting conversations, from this machine: what `causeway pair` and `causeway
sessions delete` do. A running bridge offers it as routes behind the local guard; without one it is done in
the store.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

from aiohttp import web

from agent.tools.base import Role
from agent.tools.masking import Masker
from bridge.access import Access, Grants
from bridge.approvals import Approvals
from bridge.config import Config
from bridge.keys import address_of
from bridge.mcp_admin import masked
from bridge.overheard import Overheard
from bridge.pairing import GRANTS, INVITE_SECONDS, SECONDS, Pairing, Request, clean, has_admin
from bridge.running import Unreached, ask, runs
from bridge.store import open_store, sqlite_path
from bridge.store.base import Store
from bridge.texts import text
from channels.base import Address, Channel, Env, Sender
from channels.registry import load

#: Who let somebody in, as it is kept with a grant.
HERE = "this machine"
_ROLES = ("admin", "member", "guest")
_LARGEST_BODY = 4096

Answer: TypeAlias = dict[str, Any]


class Refusal(Exception):
    """It cannot be done. `key` says why: code, channel, role, person or session; `values` belong to it."""

    def __init__(self, key: str, **values: Any) -> None:
        super().__init__(key)
        self.key = key
        self.values = values


class Host(Protocol):
    """What of the bridge is needed here; `App` has it."""

    config: Config
    masker: Masker
    store: Store
    pairing: Pairing
    access: Access

    async def welcome(self, request: Request, role: Role) -> None: ...

    async def forget_session(self, session: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Desk:
    """What the actions work on. `forget` ends what a session does and deletes what it said; `welcome` tells
    somebody that they were let in (None: no bridge runs that could)."""

    config: Config
    store: Store
    pairing: Pairing
    access: Access
    forget: Callable[[str], Awaitable[None]]
    welcome: Callable[[Request, Role], Awaitable[None]] | None = None


def chat_channels(config: Config) -> list[str]:
    """The instances where people of a platform write; those of this machine's own person are left out."""
    return [name for name, settings in config.channels.items() if not load(settings.type or name).local]


# -- the actions -------------------------------------------------------------------------------------------


async def people(desk: Desk, _asked: Mapping[str, Any]) -> Answer:
    """Who waits to be let in, and who is: by the configuration and by what was granted."""
    waiting = [
        {
            "code": one.code,
            "channel": one.channel,
            "person": one.person,
            "name": one.name,
            "asked": one.at,
            "until": one.at + SECONDS,
        }
        for one in await desk.pairing.waiting()
    ]
    known: list[dict[str, Any]] = []
    for name in chat_channels(desk.config):
        rule = desk.access.rule(name)
        for role, ids in (("admin", rule.admins), ("member", rule.allow), ("guest", rule.guests)):
            known += [{"channel": name, "person": id, "role": role, "by": "config.yaml"} for id in ids]
    for key, value in (await desk.store.settings(GRANTS)).items():
        channel, _, person = key.partition("\0")
        if isinstance(value, dict) and value.get("role") in _ROLES:
            given = {"role": value["role"], "by": value.get("by", ""), "at": value.get("at")}
            known.append({"channel": channel, "person": person, **given})
    return {"waiting": waiting, "people": known}


async def approve(desk: Desk, asked: Mapping[str, Any]) -> Answer:
    """Let the person of a code in. The first of a channel that has no admin becomes its admin, unless a role
    is named: whoever may do this on the machine runs the bridge anyway."""
    code, role = clean(_word(asked, "code")), _role(asked)
    request = next((one for one in await desk.pairing.waiting() if one.code == code), None)
    if request is None:
        raise Refusal("code", code=code[:20])
    first = role is None and not has_admin(desk.access, request.channel)
    done = await desk.pairing.approve(code, HERE, "admin" if first else role)
    if done is None:
        raise Refusal("code", code=code[:20])
    if desk.welcome is not None:
        await desk.welcome(*done)
    return {**_whom(done[0]), "role": done[1], "first": first, "told": desk.welcome is not None}


async def deny(desk: Desk, asked: Mapping[str, Any]) -> Answer:
    code = clean(_word(asked, "code"))
    request = await desk.pairing.deny(code)
    if request is None:
        raise Refusal("code", code=code[:20])
    return _whom(request)


async def invite(desk: Desk, asked: Mapping[str, Any]) -> Answer:
    """A code for one person, for a day. Without a channel the only one is meant; without a role they become
    a member, or the admin when there is none."""
    known = chat_channels(desk.config)
    channel, role = _word(asked, "channel") or (known[0] if len(known) == 1 else ""), _role(asked)
    if channel not in known:
        raise Refusal("channel", channel=channel[:60], known=known)
    first = role is None and not has_admin(desk.access, channel)
    given: Role = "admin" if first else role or "member"
    code = await desk.pairing.invite(channel, given)
    return {"channel": channel, "role": given, "code": code, "first": first, "hours": INVITE_SECONDS / 3600}


async def revoke(desk: Desk, asked: Mapping[str, Any]) -> Answer:
    """Take back what was granted. `still`: the role that the configuration gives them all the same."""
    channel, person = _word(asked, "channel"), _word(asked, "person")
    if not await desk.pairing.revoke(channel, person):
        known = [one for one in (await people(desk, {}))["people"] if one["channel"] == channel]
        written = any(one["person"] == person for one in known)
        raise Refusal("configured" if written else "person", channel=channel[:60], person=person[:60])
    verdict = desk.access.of(Sender(person), Address(channel, person))
    return {
        "channel": channel,
        "person": person,
        "still": verdict.role if verdict.kind == "allowed" else "",
    }


async def forget(desk: Desk, asked: Mapping[str, Any]) -> Answer:
    """Delete a conversation: its history, what waits, what was overheard and allowed, and its files."""
    session = _word(asked, "session")
    folder = desk.config.workspace / "sessions" / session
    if Path(session).name != session or session in ("", ".", ".."):  # it becomes a folder's name
        raise Refusal("session", session=session[:200])
    entries = await desk.store.history.count(session)
    waiting = await desk.store.waiting_count(session)
    files = await asyncio.to_thread(files_of, folder)
    if not (entries or waiting or folder.is_dir()):
        raise Refusal("session", session=session[:200])
    await desk.forget(session)
    await asyncio.to_thread(shutil.rmtree, folder, True)
    return {"session": session, "entries": entries, "waiting": waiting, "files": len(files)}


Action: TypeAlias = Callable[[Desk, Mapping[str, Any]], Awaitable[Answer]]
#: By method and path of their routes.
ACTIONS: Mapping[tuple[str, str], Action] = {
    ("GET", "/people"): people,
    ("POST", "/pair/approve"): approve,
    ("POST", "/pair/deny"): deny,
    ("POST", "/pair/invite"): invite,
    ("POST", "/pair/revoke"): revoke,
    ("POST", "/sessions/delete"): forget,
}


def files_of(folder: Path) -> list[str]:
    """The files of a session, relative to its folder; blocking."""
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def _whom(request: Request) -> Answer:
    return {"channel": request.channel, "person": request.person, "name": request.name}


def _word(asked: Mapping[str, Any], key: str) -> str:
    return str(asked.get(key) or "").strip()[:400]


def _role(asked: Mapping[str, Any]) -> Role | None:
    role = asked.get("role")
    if role is not None and role not in _ROLES:
        raise Refusal("role", role=str(role)[:20], known=list(_ROLES))
    return cast("Role | None", role)


# -- with a running bridge ---------------------------------------------------------------------------------


def routes(app: Host) -> Sequence[web.RouteDef]:
    """The actions as routes, to be put behind the guard of the local channels. A body is a JSON object; the
    answers are JSON with secrets masked, a refusal has `error` and status 404."""

    def route(method: str, path: str, action: Action) -> web.RouteDef:
        async def handle(request: web.Request) -> web.Response:
            try:
                asked = await _asked(request)
                desk = Desk(app.config, app.store, app.pairing, app.access, app.forget_session, app.welcome)
                return await _json(app, await action(desk, asked))
            except Refusal as refusal:
                status = 400 if refusal.key == "body" else 404
                return await _json(app, {"error": refusal.key, **refusal.values}, status)

        return web.route(method, path, handle)

    return [route(method, path, action) for (method, path), action in ACTIONS.items()]


async def _asked(request: web.Request) -> Mapping[str, Any]:
    if request.method == "GET":
        return {}
    if request.content_length is None or request.content_length > _LARGEST_BODY:
        raise Refusal("body")
    try:
        body = await request.json()
    except ValueError:
        raise Refusal("body") from None
    if not isinstance(body, dict):
        raise Refusal("body")
    return body


async def _json(app: Host, value: Answer, status: int = 200) -> web.Response:
    whole = {"workspace": str(app.config.workspace), **value}
    safe = await asyncio.to_thread(masked, whole, app.masker)
    return web.json_response(safe, status=status, headers={"Cache-Control": "no-store"})


# -- without one -------------------------------------------------------------------------------------------


@asynccontextmanager
async def alone(config: Config, clock: Callable[[], float], *, look: bool = False) -> AsyncIterator[Desk]:
    """A desk on the store itself. `look`: nothing is to be written, so where there is no store yet an empty
    one is put in its place that leaves nothing behind. Raises StoreError."""
    url, workspace = config.store.url, config.workspace
    with tempfile.TemporaryDirectory(prefix="causeway-") as nowhere:
        file = sqlite_path(url, workspace) if url.startswith("sqlite:") else None
        if look and file is not None and not await asyncio.to_thread(file.exists):
            url, workspace = "sqlite:///none.db", Path(nowhere)
        store = open_store(url, workspace, synchronous=config.store.synchronous, clock=clock)
        await store.open()
        try:
            grants = Grants()
            pairing = Pairing(store, grants, clock)
            await pairing.load()
            local = frozenset(config.channels) - frozenset(chat_channels(config))
            access = Access(config.access, local, people=config.people, grants=grants)

            async def forget_session(session: str) -> None:
                while waiting := await store.next(session, 1000):
                    await store.drop([one.seq for one in waiting])
                await store.history.clear(session)
                approvals = Approvals(store, {}, access, clock, str)
                await approvals.load()
                await approvals.forget(session)
                await Overheard(store).forget(session, 2**62)
                if (address := address_of(session)) is not None and address.channel in config.channels:
                    await _channel(config, store, address.channel, clock).forget(address)

            yield Desk(config, store, pairing, access, forget_session)
        finally:
            await store.close()


def _channel(config: Config, store: Store, name: str, clock: Callable[[], float]) -> Channel:
    """A channel that is not started, for what it keeps."""
    settings = config.channels[name]
    env = Env(store.channel_state(name), text, config.workspace / "channels" / name, clock)
    return load(settings.type or name)(name, settings, env)


async def carry_out(
    config: Config,
    port: int | None,
    method: str,
    path: str,
    asked: Mapping[str, Any],
    *,
    beside: Callable[[Unreached], None] | None = None,
) -> Answer:
    """Do an action: by the running bridge of the workspace, else in the store. `beside` is told when one runs
    but cannot be asked, and it is done in the store all the same; without it that is refused. Raises Refusal,
    Unreached or StoreError."""
    if await asyncio.to_thread(runs, config):
        try:
            found = await ask(config, port, method, path, asked if method == "POST" else None)
        except Unreached as why:
            if beside is None:
                raise
            beside(why)
        else:
            if "error" in found:
                raise Refusal(str(found.pop("error")), **found)
            return found
    async with alone(config, time.time, look=method == "GET") as desk:
        return await ACTIONS[method, path](desk, asked)
