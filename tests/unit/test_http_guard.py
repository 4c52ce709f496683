"""Who reaches the local channels over HTTP, asked through a real server."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from bridge.http import Guard, ListenError, Server, load_key
from tests.fakes.channel import Room, RoomConfig


class Page(Room):
    local = True

    def routes(self) -> list[web.RouteDef]:
        async def page(request: web.Request) -> web.Response:
            return web.Response(text="in")

        return [web.get("/", page), web.post("/v1/chat/completions", page)]


@asynccontextmanager
async def serving(host: str = "127.0.0.1", key: str | None = None, *names: str) -> AsyncIterator[Server]:
    server = Server(host, 0, Guard(host, key, names), {"web": Page("web", RoomConfig(), None)})
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def status(server: Server, method: str = "GET", path: str = "/", **headers: str) -> int:
    async with (
        aiohttp.ClientSession() as client,
        client.request(
            method,
            f"http://127.0.0.1:{server.port}{path}",
            headers={name.replace("_", "-"): value for name, value in headers.items()},
            allow_redirects=False,
        ) as response,
    ):
        return response.status


async def test_the_local_user_is_let_in_under_every_name_of_this_machine() -> None:
    async with serving() as server:
        assert await status(server) == 200
        for name in ("localhost", "127.0.0.1", "[::1]", "LOCALHOST"):
            assert await status(server, Host=f"{name}:{server.port}") == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "[::1", ""])
async def test_a_name_that_was_rebound_to_this_machine_is_refused(host: str) -> None:
    async with serving() as server:
        assert await status(server, Host=host) in (400, 403)


async def test_pages_of_other_sites_cannot_use_the_bridge() -> None:
    async with serving() as server:
        own = f"http://127.0.0.1:{server.port}"
        post = ("POST", "/v1/chat/completions")
        assert await status(server, *post, Origin=own) == 200
        assert await status(server, *post) == 200  # a program
        for origin in (
            "https://evil.example",
            "http://127.0.0.1:1",
            "null",
            f"http://localhost:{server.port}",
        ):
            assert await status(server, *post, Origin=origin) == 403
        for site in ("cross-site", "same-site"):
            assert await status(server, *post, Sec_Fetch_Site=site) == 403
            assert await status(server, Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors") == 403
        opened = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
        assert await status(server, **opened) == 200  # a link
        assert await status(server, *post, **opened) == 403  # a form


async def test_with_a_key_nobody_is_let_in_without_it() -> None:
    async with serving("127.0.0.1", "a-long-secret-key") as server:
        assert await status(server) == 401
        assert await status(server, Authorization="Bearer wrong") == 401
        assert await status(server, Authorization="Bearer a-long-secret-key") == 200
        assert await status(server, Cookie="causeway_key=a-long-secret-key") == 200
        assert await status(server, path="/?key=a-long-secret-key") == 303
        assert await status(server, path="/?key=wrong") == 401


async def test_the_login_link_sets_a_cookie_that_scripts_cannot_read() -> None:
    async with serving("127.0.0.1", "a-long-secret-key") as server, aiohttp.ClientSession() as client:
        async with client.get(
            f"http://127.0.0.1:{server.port}/?key=a-long-secret-key", allow_redirects=False
        ) as response:
            cookie = response.headers["Set-Cookie"]
            assert response.headers["Location"] == "/"
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie


async def test_the_api_is_refused_in_its_own_form_and_the_page_in_words() -> None:
    async with serving("127.0.0.1", "a-long-secret-key") as server, aiohttp.ClientSession() as client:
        root = f"http://127.0.0.1:{server.port}"
        async with client.post(f"{root}/v1/chat/completions") as response:
            assert (await response.json())["error"]["code"] == "http.key"
        async with client.get(root, headers={"Accept-Language": "zh-CN,zh"}) as response:
            assert "密钥" in await response.text()


async def test_a_server_for_all_networks_always_has_a_key(tmp_path: Path) -> None:
    key, made = load_key(tmp_path, "0.0.0.0", None)
    assert made
    assert key is not None
    assert len(key) >= 32
    assert (tmp_path / "server.key").stat().st_mode & 0o777 == 0o600
    assert load_key(tmp_path, "0.0.0.0", None) == (key, True)
    assert load_key(tmp_path, "127.0.0.1", None) == (None, False)
    assert load_key(tmp_path, "0.0.0.0", "mine") == ("mine", False)


async def test_without_a_key_a_public_name_is_refused_even_when_it_is_allowed() -> None:
    # A reverse proxy on this machine makes everybody look local: then only a key can tell.
    async with serving("127.0.0.1", None, "bot.example") as server:
        assert await status(server, Host="bot.example") == 403
    async with serving("127.0.0.1", "a-long-secret-key", "bot.example") as server:
        assert await status(server, Host="bot.example", Authorization="Bearer a-long-secret-key") == 200
        assert await status(server, Host="other.example", Authorization="Bearer a-long-secret-key") == 403


async def test_a_port_in_use_is_explained() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = Server("127.0.0.1", port, Guard("127.0.0.1", None, ()), {})
        with pytest.raises(ListenError, match=rf"127\.0\.0\.1:{port}.*--port"):
            await server.start()


async def test_health_pages_tell_a_failing_channel() -> None:
    async with serving() as server, aiohttp.ClientSession() as client:
        root = f"http://127.0.0.1:{server.port}"
        async with client.get(f"{root}/healthz") as response:
            assert response.status == 200
        async with client.get(f"{root}/readyz") as response:
            assert response.status == 503
        server.ready(True)
        async with client.get(f"{root}/readyz") as response:
            assert response.status == 200
            assert (await response.json())["channels"]["web"]["ok"] is True
