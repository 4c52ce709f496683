"""The one HTTP server: web chat, API, webhooks, health. Local channels are guarded here, once for all.

A page of another site must not reach the bridge through a visitor's browser, so for local channels the
`Host` header has to name this server (no DNS rebinding) and an `Origin`, if sent, has to be the same.
From beyond this machine a key is needed besides.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from bridge.texts import text
from channels.base import Channel

log = logging.getLogger("causeway.http")

COOKIE = "causeway_key"
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_MAX_BODY = 32 * 1024 * 1024
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ListenError(Exception):
    """The port cannot be used. The message says what to do."""


def is_loopback(host: str) -> bool:
    if host in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(value: str) -> str:
    """The name part of a Host header or of an origin's network location; "" when it is malformed."""
    try:
        return (urlsplit(f"//{value}").hostname or "").lower()
    except ValueError:
        return ""


def _same_origin(request: web.Request) -> bool:
    """Whether a request comes from our own page, from a program, or is a person following a link here."""
    headers = request.headers
    origin = headers.get("Origin")
    if origin is not None:
        return urlsplit(origin).netloc.lower() == headers.get("Host", "").lower()
    if headers.get("Sec-Fetch-Site", "none") in ("same-origin", "none"):
        return True
    # A link elsewhere may open the page (it cannot be framed); it may not load or post anything else.
    opens = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
    return request.method == "GET" and opens


class Guard:
    """Who may use the local channels over HTTP."""

    def __init__(self, host: str, key: str | None, allowed_hosts: Iterable[str]) -> None:
        self._key = key
        self._names = _LOOPBACK_NAMES | {name.lower() for name in allowed_hosts}
        if not is_loopback(host) and host not in ("0.0.0.0", "::", ""):  # noqa: S104 (compared, not bound)
            self._names |= {host.lower()}
        self._any_name = not is_loopback(host)

    def refusal(self, request: web.Request) -> tuple[int, str] | None:
        """(status, text key) when the request is refused, else None."""
        name = host_name(request.headers.get("Host", ""))
        local_name = name in _LOOPBACK_NAMES
        # Bound to other addresses the server may be called by any name; the key then guards it instead.
        if name not in self._names and not (self._any_name and self._key):
            return 403, "http.host"
        if not _same_origin(request):
            return 403, "http.origin"
        peer = request.remote or ""
        if self._key is None:
            if is_loopback(peer) and local_name:
                return None
            return 403, "http.no_key"
        return None if self._has_key(request) else (401, "http.key")

    def _has_key(self, request: web.Request) -> bool:
        assert self._key is not None
        given = [request.cookies.get(COOKIE, "")]
        scheme, _, value = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given.append(value.strip())
        return any(hmac.compare_digest(g.encode(), self._key.encode()) for g in given if g)

    def login(self, request: web.Request) -> web.Response | None:
        """`/?key=…` sets the cookie and goes to the page without the key in its address."""
        given = request.query.get("key", "")
        if not self._key or request.method != "GET" or not given:
            return None
        if not hmac.compare_digest(given.encode(), self._key.encode()):
            return None
        response = web.Response(status=303, headers={"Location": request.path, "Cache-Control": "no-store"})
        response.set_cookie(
            COOKIE,
            self._key,
            httponly=True,
            samesite="Lax",
            secure=request.secure,
            max_age=90 * 24 * 3600,
        )
        return response


def load_key(workspace: Path, host: str, configured: str | None) -> tuple[str | None, bool]:
    """The key that guards the server, and whether it was made here. On a loopback address none is needed;
    elsewhere one is made once and kept in the workspace, readable by its owner alone."""
    if configured:
        return configured, False
    if is_loopback(host):
        return None, False
    path = workspace / "server.key"
    if path.exists():
        return path.read_text(encoding="ascii").strip(), True
    key = secrets.token_urlsafe(24)
    path.touch(mode=0o600)
    path.write_text(key + "\n", encoding="ascii")
    return key, True


class Server:
    """The aiohttp server with the channels' routes and the health pages.

    `guarded` routes are for the person on this machine, like the local channels'; `public` ones prove by
    themselves who may use them. `fault` says why the store does not work now (empty: it does). `enough` says
    by the channels' health whether this process is ready.
    """

    def __init__(
        self,
        host: str,
        port: int,
        guard: Guard,
        channels: Mapping[str, Channel],
        *,
        guarded: Sequence[web.RouteDef] = (),
        public: Sequence[web.RouteDef] = (),
        fault: Callable[[], str] = str,
        enough: Callable[[Iterable[bool]], bool] = all,
    ) -> None:
        self.host = host
        self.port = port
        self._guard = guard
        self._channels = channels
        self._guarded_routes = guarded
        self._public_routes = public
        self._fault = fault
        self._enough = enough
        self._ready = False
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Bind and serve. `port` 0 takes a free one. Raises ListenError."""
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        self._add(app, self._guarded_routes, local=True)
        self._add(app, self._public_routes, local=False)
        for channel in self._channels.values():
            self._add(app, channel.routes(), local=channel.local)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port, reuse_address=True)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            reason = os.strerror(error.errno or 0)
            raise ListenError(
                f"Cannot listen on {self.host}:{self.port}: {reason}. Is the bridge running already? Stop "
                "it, or choose another port with server: port in config.yaml or --port."
            ) from error
        sockets = site._server.sockets if site._server is not None else ()  # type: ignore[attr-defined]
        self.port = sockets[0].getsockname()[1] if sockets else self.port

    def _add(self, app: web.Application, routes: Sequence[web.RouteDef], *, local: bool) -> None:
        for route in routes:
            handler = self._guarded(route.handler) if local else route.handler
            web.RouteDef(route.method, route.path, handler, route.kwargs).register(app.router)

    def ready(self, value: bool) -> None:
        self._ready = value

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _guarded(self, handler: Handler) -> Handler:
        async def checked(request: web.Request) -> web.StreamResponse:
            if (login := self._guard.login(request)) is not None:
                return login
            refusal = self._guard.refusal(request)
            if refusal is None:
                return await handler(request)
            status, key = refusal
            language = request.headers.get("Accept-Language", "en").split(",")[0]
            message = text(key, language)
            log.warning("request refused: %s %s: %s", request.method, request.path, key)
            if request.path.startswith("/v1/"):
                error = {"message": message, "type": "invalid_request_error", "param": None, "code": key}
                return web.json_response({"error": error}, status=status)
            return web.Response(status=status, text=message + "\n")

        return checked

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def _readyz(self, _request: web.Request) -> web.Response:
        channels = {
            name: {"ok": health.ok, "reason": health.reason, "cure": health.cure}
            for name, health in ((name, channel.health()) for name, channel in self._channels.items())
        }
        fault = self._fault()
        healthy = not channels or self._enough([bool(state["ok"]) for state in channels.values()])
        ok = self._ready and not fault and healthy
        said = {"ok": ok, "channels": channels, "store": {"ok": not fault, "reason": fault}}
        return web.json_response(said, status=200 if ok else 503)
