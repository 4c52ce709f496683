"""An MCP server behind OAuth and its authorization server, each on a port of its own.

They refuse what real ones refuse: a wrong PKCE verifier, redirect address, client or resource, a used code, a
used refresh token.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from aiohttp import BasicAuth, ClientSession, web


@dataclass
class Issued:
    scope: str
    client: str
    redirect_uri: str = ""
    challenge: str = ""
    used: bool = False


@dataclass
class Guarded:
    """The pair. Knobs are set by tests; `seen` holds the tokens that came to the MCP server."""

    lifetime: int = 3600
    refresh: bool = True
    registers: bool = True
    trouble: bool = False  # the token endpoint answers 503
    slow: bool = False  # a renewal waits for `release`
    garbled: bool = False  # the token endpoint answers with something unreadable, the token in it
    metadata: dict[str, Any] = field(default_factory=dict)  # replaces what the authorization server tells
    server: str = ""
    issuer: str = ""
    seen: list[str | None] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)  # paths asked of the authorization server
    granted: list[str] = field(default_factory=list)  # scopes, as they were granted
    clients: dict[str, str] = field(default_factory=dict)
    codes: dict[str, Issued] = field(default_factory=dict)
    live: dict[str, Issued] = field(default_factory=dict)
    refreshable: dict[str, Issued] = field(default_factory=dict)
    refreshed: int = 0
    calls: int = 0
    release: asyncio.Event = field(default_factory=asyncio.Event)  # ends what waits

    def revoke(self) -> None:
        """The access tokens are over; refresh tokens are not."""
        self.live.clear()

    # The MCP server -------------------------------------------------------------------------------------

    async def mcp(self, request: web.Request) -> web.StreamResponse:
        given = request.headers.get("Authorization")
        self.seen.append(given)
        issued = self.live.get((given or "").removeprefix("Bearer "))
        where = f'Bearer resource_metadata="{self.server}/.well-known/oauth-protected-resource/mcp"'
        if issued is None:
            return web.Response(status=401, headers={"WWW-Authenticate": f'{where}, scope="read"'})
        if request.method != "POST":
            return web.Response(status=405)
        message = await request.json()
        method, rid = message["method"], message.get("id")
        if rid is None:
            return web.Response(status=202)
        if method == "initialize":
            return _result(
                rid,
                {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "guarded", "version": "1"},
                },
            )
        if method == "tools/list":
            return _result(
                rid, {"tools": [{"name": n, "inputSchema": {"type": "object"}} for n in ("look", "change")]}
            )
        if method == "tools/call":
            if message["params"]["name"] == "change" and "write" not in issued.scope.split():
                challenge = f'{where}, error="insufficient_scope", scope="write"'
                return web.Response(status=403, headers={"WWW-Authenticate": challenge})
            self.calls += 1
            if message["params"].get("arguments", {}).get("wait"):
                await self.release.wait()
            return _result(rid, {"content": [{"type": "text", "text": f"with {issued.scope}"}]})
        error = {"code": -32601, "message": "?"}
        return web.json_response({"jsonrpc": "2.0", "id": rid, "error": error}, status=400)

    async def resource(self, request: web.Request) -> web.Response:
        return web.json_response({"resource": f"{self.server}/mcp", "authorization_servers": [self.issuer]})

    # The authorization server ---------------------------------------------------------------------------

    async def about(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        told = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "registration_endpoint": f"{self.issuer}/register",
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        }
        return web.json_response({**told, **self.metadata})

    async def register(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if not self.registers:
            return web.json_response({"error": "invalid_client_metadata"}, status=400)
        wanted = await request.json()
        name, secret = f"client{len(self.clients)}", secrets.token_urlsafe(12)
        self.clients[name] = secret
        return web.json_response(
            {
                **wanted,
                "client_id": name,
                "client_secret": secret,
                "token_endpoint_auth_method": "client_secret_post",
            },
            status=201,
        )

    async def authorize(self, request: web.Request) -> web.Response:
        """Stands for the person, who says yes at once."""
        query = request.query
        fits = (
            query["client_id"] in self.clients
            and query["response_type"] == "code"
            and query["code_challenge_method"] == "S256"
            and query["resource"] == f"{self.server}/mcp"
        )
        if not fits:
            return web.Response(status=400, text="no such client or resource")
        code = secrets.token_urlsafe(12)
        self.codes[code] = Issued(
            query.get("scope", ""), query["client_id"], query["redirect_uri"], query["code_challenge"]
        )
        back = {"code": code, "state": query["state"], "iss": self.issuer}
        return web.Response(status=302, headers={"Location": f"{query['redirect_uri']}?{urlencode(back)}"})

    async def token(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        form = await request.post()
        if self.trouble:
            return web.Response(status=503)
        if self.garbled:
            return web.json_response({"access_token": "at-garbled", "token_type": 7})
        client, secret = str(form.get("client_id")), form.get("client_secret")
        if "Authorization" in request.headers:
            basic = BasicAuth.decode(request.headers["Authorization"])
            client, secret = basic.login, basic.password
        if client not in self.clients or secret != self.clients[client]:
            return web.json_response({"error": "invalid_client"}, status=401)
        if form["grant_type"] == "refresh_token":
            issued = self.refreshable.get(str(form["refresh_token"]))
            if issued is None or issued.used or issued.client != client:
                self.refreshable.clear()  # a stolen one, perhaps: nobody gets in any more
                return web.json_response({"error": "invalid_grant"}, status=400)
            issued.used = True
            self.refreshed += 1
            if self.slow:
                await self.release.wait()
            return self._issue(issued.scope, client)
        issued = self.codes.get(str(form["code"]))
        digest = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
        proven = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (
            issued is None
            or issued.used
            or issued.client != client
            or issued.redirect_uri != form["redirect_uri"]
            or issued.challenge != proven
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        issued.used = True
        self.granted.append(issued.scope)
        return self._issue(issued.scope, client)

    def _issue(self, scope: str, client: str) -> web.Response:
        token = f"at-{secrets.token_urlsafe(12)}"
        self.live[token] = Issued(scope, client)
        given = {"access_token": token, "token_type": "bearer", "expires_in": self.lifetime, "scope": scope}
        if self.refresh:
            again = given["refresh_token"] = f"rt-{secrets.token_urlsafe(12)}"
            self.refreshable[again] = Issued(scope, client)
        return web.json_response(given)


def _result(rid: Any, result: dict[str, Any]) -> web.Response:
    return web.json_response({"jsonrpc": "2.0", "id": rid, "result": result})


@asynccontextmanager
async def site(*routes: web.RouteDef) -> AsyncIterator[str]:
    """A server on a free port of this machine; its address without a path."""
    app = web.Application()
    app.router.add_routes(routes)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def guarded(**knobs: Any) -> AsyncIterator[Guarded]:
    pair = Guarded(**knobs)
    async with (
        site(
            web.route("*", "/mcp", pair.mcp),
            web.get("/.well-known/oauth-protected-resource/mcp", pair.resource),
        ) as pair.server,
        site(
            web.get("/.well-known/oauth-authorization-server", pair.about),
            web.post("/register", pair.register),
            web.get("/authorize", pair.authorize),
            web.post("/token", pair.token),
        ) as pair.issuer,
    ):
        yield pair


async def browse(link: str, language: str = "en") -> tuple[int, str]:
    """A browser that follows a link to its end."""
    async with (
        ClientSession(headers={"Accept-Language": language}) as session,
        session.get(link) as answer,
    ):
        return answer.status, await answer.text()
