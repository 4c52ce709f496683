"""Logins at remote MCP servers: the callback page, the tokens in the store, and a login without a bridge."""

from __future__ import annotations

import asyncio
import html
import logging
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web

from agent.tools.mcp.config import ConfigError, ServerSpec, parse_config
from agent.tools.mcp.logins import CALLBACK_PATH, LoginFailed, Logins
from bridge.config import Config
from bridge.store import open_store
from bridge.store.base import Store, StoreError
from bridge.texts import language_of, text

log = logging.getLogger("causeway.http")

_SCOPE = "oauth"
DOCUMENT_PATH = "/mcp/client.json"
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the page's address holds the code
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
_PAGE = (
    '<!doctype html><html lang="{language}"><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width"><title>Causeway</title>'
    "<style>body{{font:1.1rem/1.6 system-ui,sans-serif;max-width:34rem;margin:20vh auto;padding:0 1rem}}"
    "</style><p>{message}</p></html>"
)


class StoredTokens:
    """The `TokenStore` over the bridge's store, whose file only the bridge's user can read."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def load(self, server: str) -> Any:
        return await self._store.get_setting(_SCOPE, server)

    async def save(self, server: str, record: dict[str, Any] | None) -> None:
        await self._store.put_setting(_SCOPE, server, record)


class McpLogin:
    """The bridge's part in logins. `logins` goes to the hub, `routes` to the HTTP server, unguarded: the
    browser comes from another site, and the state in the address is what proves that it may."""

    def __init__(
        self,
        store: Store,
        base_url: Callable[[], str],
        *,
        on_secret: Callable[[str], None] = lambda value: None,
    ) -> None:
        """`base_url`: where an admin's browser reaches this process now, without a slash at the end; "" when
        it does not listen."""
        self._base_url = base_url
        self.logins = Logins(
            StoredTokens(store),
            lambda: self._address(CALLBACK_PATH),
            # An authorization server fetches the document: it has to be public.
            client_document=lambda: self._address(DOCUMENT_PATH) if base_url().startswith("https:") else "",
            on_secret=on_secret,
        )

    def routes(self) -> Sequence[web.RouteDef]:
        return [
            web.get(CALLBACK_PATH, self._callback, allow_head=False),
            web.get(DOCUMENT_PATH, self._document),
        ]

    def _address(self, path: str) -> str:
        base = self._base_url()
        return base + path if base else ""

    async def _document(self, _request: web.Request) -> web.Response:
        """Who we are, for authorization servers that take this page's address for a client id."""
        return web.json_response(
            {
                "client_id": self._address(DOCUMENT_PATH),
                "client_name": "Causeway",
                "redirect_uris": [self._address(CALLBACK_PATH)],
                "grant_types": ["authorization_code", "refresh_token"],
                "response_types": ["code"],
                "token_endpoint_auth_method": "none",
            }
        )

    async def _callback(self, request: web.Request) -> web.Response:
        outcome = await self.logins.answer(request.query)
        log.info("a browser came back from a login: %s", outcome)
        language = language_of(request.headers.get("Accept-Language", "en").split(",")[0])
        message = html.escape(text(f"mcp.login.{outcome}", language))
        return web.Response(
            status=200 if outcome == "done" else 400,
            text=_PAGE.format(language=language, message=message),
            content_type="text/html",
            headers=_HEADERS,
        )


async def login_here(
    config: Config,
    name: str,
    *,
    say: Callable[[str], None] = print,
    on_secret: Callable[[str], None] = lambda value: None,
) -> int:
    """Log in to a server of mcp.json from a shell: show the address, receive the callback on a port of this
    machine, store the tokens. Returns the exit code; `say` is told what happens."""
    try:
        spec = await asyncio.to_thread(_spec, config, name, on_secret)
        config.workspace.mkdir(parents=True, exist_ok=True)
        store = open_store(config.store.url, config.workspace, synchronous=config.store.synchronous)
        await store.open()
    except (LoginFailed, StoreError, OSError) as fault:
        say(str(fault))
        return 1
    base = ""
    login = McpLogin(store, lambda: base, on_secret=on_secret)
    app = web.Application()
    app.router.add_routes(login.routes())
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0, handle_signals=False)
    try:
        await runner.setup()
        port, taken = await _listen(runner, config.server.port)
        base = f"http://127.0.0.1:{port}"
        await login.logins.complete(
            spec,
            lambda link: say(
                "Open this address in a browser on this machine and log in (you have 10 minutes):"
                f"\n\n  {link}\n"
            ),
        )
        say(f"Logged in to {name}.")
        if taken:
            say(f"If a bridge is running, tell it in the chat: /mcp restart {name}")
        return 0
    except LoginFailed as fault:
        say(f"{name}: {fault}")
        return 1
    finally:
        await login.logins.stop()
        await runner.cleanup()
        await store.close()


def _spec(config: Config, name: str, on_secret: Callable[[str], None]) -> ServerSpec:
    path = config.workspace / config.mcp.file
    try:
        read = parse_config(path.read_bytes(), environ=config.environ, on_secret=on_secret)
    except FileNotFoundError:
        raise LoginFailed(f"{path} does not exist: add the server there first.") from None
    except ConfigError as fault:
        raise LoginFailed(f"{path}: {fault}") from None
    for entry in read.bad:
        if entry.name == name:
            raise LoginFailed(f"{path}: {name}: {entry.reason}")
    for spec in read.servers:
        if spec.name == name:
            return spec
    names = ", ".join(spec.name for spec in read.servers) or "none"
    raise LoginFailed(f"{path} has no server {name!r}. It has: {names}.")


async def _listen(runner: web.AppRunner, port: int) -> tuple[int, bool]:
    """The port where the callback is received, and whether the configured one was taken: by a bridge."""
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        taken = False
    except OSError:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        taken = True
    return int(runner.addresses[0][1]), taken
