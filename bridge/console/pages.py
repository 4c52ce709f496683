"""The console's page and its JSON. The routes are for the guard of the local channels: whoever may use those
on this machine, or has the key, may use them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from aiohttp import web

from bridge import house_admin, texts
from bridge.console.state import Host, Overview
from bridge.console.texts import TEXTS
from bridge.mcp_admin import masked
from bridge.texts import text

if TYPE_CHECKING:
    from channels.web.page import Assets

_ASSETS = Path(__file__).parent / "assets"
_LARGEST_BODY = 4096
_BODY_TIMEOUT = 10.0
_SESSIONS, _MOST_SESSIONS = 50, 1000
_LONGEST_KEY = 400

Asked: TypeAlias = Mapping[str, Any]
Action: TypeAlias = Callable[[Host, Asked, str], Awaitable[str]]


class Refused(Exception):
    """A request that cannot be met; the words are for the person."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


def routes(app: Host) -> Sequence[web.RouteDef]:
    """`GET /console`, what belongs to the page, and `POST /console/pair`, `/revoke`, `/approval`. A POST's
    body is a JSON object of that content type, which no form of another site can send."""
    texts.add(TEXTS)
    overview = Overview(app)
    loaded: list[Assets] = []

    async def assets() -> Assets:
        if not loaded:
            loaded.append(await asyncio.to_thread(_load))
        return loaded[0]

    async def page(request: web.Request) -> web.Response:
        ours = await assets()
        from channels.web.page import language_of

        chosen = request.query.get("lang", "")
        return ours.page_response(text, chosen if chosen in ("en", "zh") else language_of(request), TEXTS)

    async def asset(request: web.Request) -> web.Response:
        return (await assets()).file_response(request, request.match_info["name"])

    async def state(request: web.Request) -> web.Response:
        wanted = request.query.get("sessions", "")
        count = int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) < 6 else _SESSIONS
        return await _json(app, await overview.state(min(max(count, 1), _MOST_SESSIONS)))

    async def session(request: web.Request) -> web.Response:
        found = await overview.session(request.query.get("key", "")[:_LONGEST_KEY])
        return await _json(app, found or {"error": "unknown"}, 200 if found else 404)

    def post(action: Action) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            language = ""
            try:
                asked = await _body(request)
                language = str(asked.get("language", ""))[:35]
                return await _json(app, {"said": await action(app, asked, language)})
            except Refused as refused:
                return await _json(app, {"error": str(refused)}, refused.status)
            except house_admin.Refusal as refusal:
                return await _json(app, {"error": _why(refusal, language)}, 404)

        return handle

    return [
        web.get("/console", page),
        web.get("/console/state", state),
        web.get("/console/session", session),
        web.post("/console/pair", post(_pair)),
        web.post("/console/revoke", post(_revoke)),
        web.post("/console/approval", post(_approval)),
        web.get("/console/{name}", asset),
    ]


def _load() -> Assets:
    """Blocks. Imported now: a bridge whose console nobody opens need not know the chat page."""
    from channels.web.page import FOLDER, Assets

    files = (_ASSETS / "console.js", _ASSETS / "console.css", FOLDER / "base.css", FOLDER / "icon.svg")
    return Assets.load(_ASSETS / "console.html", files)


async def _pair(app: Host, asked: Asked, language: str) -> str:
    """`code`, `yes`, and the `role` to give (without one as `causeway pair approve` does)."""
    desk, yes = _desk(app), _yes(asked)
    if not yes:
        await house_admin.deny(desk, asked)
        return text("pairing.denied", language, code=str(asked.get("code"))[:20])
    done = await house_admin.approve(desk, asked)
    name = done["name"] or done["person"]
    return text("pairing.approved", language, name=name, role=text(f"role.{done['role']}", language))


async def _revoke(app: Host, asked: Asked, language: str) -> str:
    done = await house_admin.revoke(_desk(app), asked)
    key = "console.revoked.still" if done["still"] else "console.revoked"
    role = text(f"role.{done['still'] or 'none'}", language)
    return text(key, language, person=done["person"], role=role)


async def _approval(app: Host, asked: Asked, language: str) -> str:
    """`id` and `yes`: one call is allowed once, or denied."""
    yes = _yes(asked)
    card = await app.approvals.decide(str(asked.get("id", "")), yes, "console")
    if card is None:
        raise Refused(404, text("approval.gone", language))
    return text(f"approval.did.{'yes' if yes else 'no'}", language, tool=card.tool)


def _desk(app: Host) -> house_admin.Desk:
    return house_admin.Desk(app.config, app.store, app.pairing, app.access, app.forget_session, app.welcome)


def _yes(asked: Asked) -> bool:
    yes = asked.get("yes")
    if not isinstance(yes, bool):
        raise Refused(400, "yes must be true or false.")
    return yes


def _why(refusal: house_admin.Refusal, language: str) -> str:
    key = {"code": "pairing.unknown", "configured": "console.configured"}.get(refusal.key, "console.refused")
    return text(key, language, code=refusal.values.get("code", ""))


async def _body(request: web.Request) -> Asked:
    if request.content_type != "application/json":
        raise Refused(415, "The body must be application/json.")
    if request.content_length is None or request.content_length > _LARGEST_BODY:
        raise Refused(413, f"The body must be at most {_LARGEST_BODY} bytes long, and say how long it is.")
    try:
        async with asyncio.timeout(_BODY_TIMEOUT):
            data = json.loads(await request.read())
    except TimeoutError:
        raise Refused(408, "The body did not arrive in time.") from None
    except (ValueError, RecursionError):
        raise Refused(400, "The body is not JSON.") from None
    if not isinstance(data, dict):
        raise Refused(400, "The body must be a JSON object.")
    return data


async def _json(app: Host, value: dict[str, Any], status: int = 200) -> web.Response:
    def encode() -> str:
        return json.dumps(masked(value, app.masker), ensure_ascii=False)

    return web.Response(
        text=await asyncio.to_thread(encode),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"},
    )
