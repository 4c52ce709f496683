"""Logins at remote MCP servers: a real store, and an authorization server that refuses what real ones do."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from aiohttp import web

from agent.tools.mcp.logins import LoginFailed
from bridge.config import load_config
from bridge.mcp_login import McpLogin, StoredTokens, login_here
from bridge.store import open_store
from bridge.store.base import Store
from tests.fakes.mcp_bench import Bench, bench, until
from tests.fakes.mcp_oauth import Guarded, browse, guarded, site


@dataclass
class House:
    """What a bridge has for logins: a store, the callback page, a hub."""

    store: Store
    login: McpLogin
    b: Bench
    secrets: list[str]

    async def log_in(self, name: str) -> tuple[int, str]:
        """An admin asks for a link and follows it; then the server starts."""
        return await browse(await self.b.hub.login(name))

    async def record(self, pair: Guarded) -> Any:
        return await self.store.get_setting("oauth", f"{pair.server}/mcp")


@asynccontextmanager
async def house(folder: Path, servers: dict[str, Any]) -> AsyncIterator[House]:
    store = open_store("sqlite:///causeway.db", folder)
    await store.open()
    secrets: list[str] = []
    base = ""
    login = McpLogin(store, lambda: base, on_secret=secrets.append)
    try:
        async with site(*login.routes()) as base, bench(folder, servers, logins=login.logins) as b:
            yield House(store, login, b, secrets)
    finally:
        await store.close()


def entry(pair: Guarded) -> dict[str, Any]:
    return {"url": f"{pair.server}/mcp"}


def ready(h: House, name: str = "g") -> Callable[[], bool]:
    return lambda: h.b.status(name).state == "ready"


async def test_a_server_that_wants_a_login_says_so_and_connects_by_itself_after_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded() as pair, house(tmp_path, {"g": entry(pair)}) as h:
        assert h.b.status("g").state == "needs_auth"
        assert "/mcp login g" in h.b.status("g").reason
        assert h.b.names() == []
        status, page = await h.log_in("g")
        assert status == 200
        assert "logged in" in page
        await until(ready(h))
        assert (await h.b.call("g__look")).text == "with read"
        record = await h.record(pair)
        assert record["issuer"].rstrip("/") == pair.issuer
        token = record["tokens"]["access_token"]
        assert {token, record["tokens"]["refresh_token"], record["client"]["client_secret"]} <= set(h.secrets)
        assert stat.S_IMODE((tmp_path / "causeway.db").stat().st_mode) == 0o600
    # peers_2_11: the answer of the token endpoint is in no log
    assert not any(secret in caplog.text for secret in h.secrets)


async def test_a_login_is_still_there_after_a_restart(tmp_path: Path) -> None:
    async with guarded() as pair:
        async with house(tmp_path, {"g": entry(pair)}) as h:
            await h.log_in("g")
            await until(ready(h))
        async with house(tmp_path, {"g": entry(pair)}) as h:
            assert h.b.status("g").state == "ready"
            assert pair.granted == ["read"]


async def test_peers_2_11_the_same_name_with_another_address_is_not_sent_the_token(tmp_path: Path) -> None:
    async with guarded() as pair, guarded() as other, house(tmp_path, {"g": entry(pair)}) as h:
        await h.log_in("g")
        await until(ready(h))
        await h.b.reload({"g": entry(other)})
        assert set(other.seen) == {None}
        assert "/mcp login g" in h.b.status("g").reason
        await h.b.reload({})
        await h.b.reload({"g": entry(other)})
        assert h.b.status("g").state == "needs_auth"
        assert set(other.seen) == {None}


async def test_a_token_is_sent_to_the_server_it_is_for_and_to_no_other_place(tmp_path: Path) -> None:
    async with guarded() as pair, house(tmp_path, {"g": entry(pair)}) as h:
        access = await h.login.logins.access(f"{pair.server}/mcp")
        assert access.covers(httpx2.URL(f"{pair.server}/elsewhere"))
        assert not access.covers(httpx2.URL(f"{pair.issuer}/mcp"))
        assert not access.covers(httpx2.URL(f"{pair.server.replace('127.0.0.1', 'localhost')}/mcp"))


async def test_peers_2_11_a_token_that_is_over_is_renewed_once_for_all_calls(tmp_path: Path) -> None:
    async with guarded() as pair, house(tmp_path, {"g": entry(pair)}) as h:
        await h.log_in("g")
        await until(ready(h))
        pair.revoke()
        results = await asyncio.gather(*(h.b.call("g__look") for _ in range(20)))
        assert [result.text for result in results] == ["with read"] * 20
        assert pair.refreshed == 1
        record = await h.record(pair)
        assert record["tokens"]["access_token"] in pair.live
        assert record["tokens"]["refresh_token"] in pair.refreshable


async def test_a_token_near_its_end_is_renewed_before_it_is_sent(tmp_path: Path) -> None:
    async with guarded(lifetime=5) as pair, house(tmp_path, {"g": entry(pair)}) as h:
        await h.log_in("g")
        pair.lifetime = 3600
        await until(ready(h))
        assert (await h.b.call("g__look")).text == "with read"
        assert pair.refreshed == 1
        assert None not in pair.seen[-3:]


async def test_a_slow_call_with_a_token_holds_back_no_other(tmp_path: Path) -> None:
    async with guarded() as pair, house(tmp_path, {"g": entry(pair)}) as h:
        await h.log_in("g")
        await until(ready(h))
        slow = asyncio.create_task(h.b.call("g__look", wait=True))
        await until(lambda: pair.calls == 1)
        assert (await h.b.call("g__look")).text == "with read"
        assert not slow.done()
        pair.release.set()
        assert (await slow).text == "with read"


async def test_a_renewal_outlives_whoever_began_it(tmp_path: Path) -> None:
    """A renewal that breaks off would leave a used refresh token behind, and the login would be lost."""
    async with guarded() as pair, house(tmp_path, {"g": entry(pair)}) as h:
        await h.log_in("g")
        await until(ready(h))
        access = await h.login.logins.access(f"{pair.server}/mcp")
        used = await access.bearer()
        assert used
        pair.slow = True
        first, second = (asyncio.create_task(access.renew(used)) for _ in range(2))
        await until(lambda: pair.refreshed == 1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        pair.release.set()
        assert await second in pair.live
        assert await access.bearer() == second.result()
        assert pair.refreshed == 1


async def test_a_renewal_that_is_refused_asks_for_a_login_again(tmp_path: Path) -> None:
    async with guarded() as pair, house(tmp_path, {"g": entry(pair)}) as h:
        await h.log_in("g")
        await until(ready(h))
        pair.revoke()
        pair.refreshable.clear()
        result = await h.b.call("g__look")
        assert result.is_error
        assert "/mcp login g" in result.text
        await until(lambda: h.b.status("g").state == "needs_auth")
        assert await h.record(pair) is None
        await h.log_in("g")
        await until(ready(h))
        assert (await h.b.call("g__look")).text == "with read"


async def test_a_login_survives_trouble_of_the_authorization_server(tmp_path: Path) -> None:
    async with guarded() as pair, house(tmp_path, {"g": entry(pair)}) as h:
        await h.log_in("g")
        await until(ready(h))
        pair.revoke()
        pair.trouble = True
        assert "could not be renewed" in (await h.b.call("g__look")).text
        pair.trouble = False
        await until(ready(h))
        assert (await h.b.call("g__look")).text == "with read"
        assert pair.granted == ["read"], "nobody had to log in again"


async def test_a_call_that_needs_more_rights_says_so_and_a_login_adds_them(tmp_path: Path) -> None:
    async with guarded() as pair, house(tmp_path, {"g": entry(pair)}) as h:
        await h.log_in("g")
        await until(ready(h))
        refused = await h.b.call("g__change")
        assert refused.is_error
        assert "scope write" in refused.text
        assert "/mcp login g" in refused.text
        assert h.b.status("g").state == "ready", "other tools go on"
        starts = h.b.hub.find("g")
        await h.log_in("g")
        assert pair.granted == ["read", "read write"]
        assert len(pair.clients) == 1
        assert (await h.b.call("g__change")).text == "with read write"
        assert h.b.hub.find("g") is starts


@pytest.mark.parametrize("wrong", ["guessed", "again", "late"])
async def test_a_callback_counts_once_in_time_and_with_its_own_state(tmp_path: Path, wrong: str) -> None:
    async with guarded() as pair, house(tmp_path, {"g": entry(pair)}) as h:
        if wrong == "late":
            h.login.logins._limit = 0.05
        link = await h.b.hub.login("g")
        query = parse_qs(urlsplit(link).query)
        back = f"{query['redirect_uri'][0]}?code=c&state="
        if wrong == "guessed":
            assert (await browse(f"{back}{query['state'][0][:-1]}x"))[0] == 400
            assert (await browse(f"{back}"))[0] == 400
            assert (await browse(link))[0] == 200  # the real one still counts
            return
        if wrong == "again":
            assert (await browse(f"{back}{query['state'][0]}"))[0] == 400  # the code is refused
        else:
            await until(lambda: not h.login.logins._flows)
        status, page = await browse(link, "zh-CN")
        assert status == 400
        assert "没有等待中的登录" in page
        assert h.b.status("g").state == "needs_auth"
        assert await h.record(pair) is None


async def test_a_login_that_is_declined_is_told_and_another_link_can_be_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded() as pair, house(tmp_path, {"g": entry(pair)}) as h:
        first = await h.b.hub.login("g")
        assert await h.b.hub.login("g") == first, "one login at a time"
        query = parse_qs(urlsplit(first).query)
        address = f"{query['redirect_uri'][0]}?error=access_denied&state={query['state'][0]}"
        assert await h.login.logins.answer_address(address) == "failed"
        assert "declined (access_denied)" in caplog.text
        assert await h.b.hub.login("g") != first
        assert (await h.log_in("g"))[0] == 200


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"issuer": "http://127.0.0.1:1"}, "cannot be trusted"),
        ({"authorization_endpoint": "http://example.com/authorize"}, "not an https address"),
        ({"registration_endpoint": "http://example.com/register"}, "not an https address"),
    ],
)
async def test_an_authorization_server_that_cannot_be_trusted_gets_nothing(
    tmp_path: Path, metadata: dict[str, Any], says: str
) -> None:
    async with guarded(metadata=metadata) as pair, house(tmp_path, {"g": entry(pair)}) as h:
        with pytest.raises(LoginFailed, match=says):
            await h.b.hub.login("g")
        assert "/token" not in pair.asked


async def test_peers_2_11_an_unreadable_answer_with_a_token_is_in_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded(garbled=True) as pair, house(tmp_path, {"g": entry(pair)}) as h:
        assert (await h.log_in("g"))[0] == 400
        assert "gave no token (HTTP 200)" in caplog.text
        assert "at-garbled" not in caplog.text
        assert await h.record(pair) is None


async def test_an_older_server_over_sse_is_logged_in_to_as_well(tmp_path: Path) -> None:
    async with guarded() as pair, house(tmp_path, {"g": {**entry(pair), "type": "sse"}}) as h:
        assert h.b.status("g").state == "needs_auth"
        await h.log_in("g")
        await until(lambda: (pair.seen[-1] or "").startswith("Bearer at-"))


async def test_a_login_without_a_bridge_is_there_for_the_bridge(tmp_path: Path) -> None:
    async with guarded() as pair:
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"g": entry(pair)}}))
        (tmp_path / "config.yaml").write_text(f"workspace: {tmp_path}\nserver: {{port: 0}}\n")
        config = load_config(tmp_path / "config.yaml", {})
        said: list[str] = []
        assert await login_here(config, "x", say=said.append) == 1
        assert "has no server 'x'. It has: g" in said[0]
        said.clear()
        task = asyncio.create_task(login_here(config, "g", say=said.append))
        await until(lambda: said)
        assert (await browse(said[0].split()[-1]))[0] == 200
        assert await task == 0
        assert said[1:] == ["Logged in to g."]
        async with house(tmp_path, {"g": entry(pair)}) as h:
            assert h.b.status("g").state == "ready"


async def test_a_login_from_a_shell_beside_a_bridge_counts_after_a_restart(tmp_path: Path) -> None:
    async with guarded() as pair, house(tmp_path, {"g": entry(pair)}) as h, site() as taken:
        port = urlsplit(taken).port
        (tmp_path / "config.yaml").write_text(f"workspace: {tmp_path}\nserver: {{port: {port}}}\n")
        said: list[str] = []
        task = asyncio.create_task(
            login_here(load_config(tmp_path / "config.yaml", {}), "g", say=said.append)
        )
        await until(lambda: said)
        await browse(said[0].split()[-1])
        assert await task == 0
        assert "/mcp restart g" in said[-1]
        assert await h.b.hub.restart("g")
        await until(ready(h))


async def test_why_there_is_no_login_is_told_with_what_to_do(tmp_path: Path) -> None:
    async def open_to_all(request: web.Request) -> web.Response:
        return web.Response(status=200)

    servers: dict[str, Any] = {"local": {"command": "true"}, "off": {"url": "http://127.0.0.1:1/mcp"}}
    async with guarded(registers=False) as pair, site(web.post("/mcp", open_to_all)) as free:
        servers["g"] = entry(pair)
        servers["own"] = {**entry(pair), "headers": {"authorization": "Bearer wrong-token"}}
        servers["free"] = {"url": f"{free}/mcp"}
        async with house(tmp_path, servers) as h:
            for name, says in (
                ("local", "'env'"),
                ("off", "cannot be used"),
                ("g", "registers no clients by itself .HTTP 400, invalid_client_metadata"),
                ("own", "Authorization header"),
                ("free", "does not ask for a login"),
                ("missing", "no server 'missing'"),
            ):
                with pytest.raises(LoginFailed, match=says):
                    await h.b.hub.login(name)
            assert h.b.status("own").state == "needs_auth"
            assert "renew the Authorization header" in h.b.status("own").reason
            assert "/mcp login" not in h.b.status("own").reason


async def test_a_client_that_was_registered_by_hand_logs_in_and_renews(tmp_path: Path) -> None:
    async with guarded(registers=False, clients={"by-hand": "hand-secret"}) as pair:
        client = {"clientId": "by-hand", "clientSecret": "hand-secret"}
        async with house(tmp_path, {"g": {**entry(pair), "oauth": client}}) as h:
            assert (await h.log_in("g"))[0] == 200
            await until(ready(h))
            pair.revoke()
            assert (await h.b.call("g__look")).text == "with read"
            assert pair.refreshed == 1
            assert "hand-secret" in h.secrets


async def test_a_record_that_is_no_record_asks_for_a_login(tmp_path: Path) -> None:
    async with guarded() as pair:
        store = open_store("sqlite:///causeway.db", tmp_path)
        await store.open()
        await StoredTokens(store).save(f"{pair.server}/mcp", {"v": 1, "tokens": {"access_token": 7}})
        await store.close()
        async with house(tmp_path, {"g": entry(pair)}) as h:
            assert h.b.status("g").state == "needs_auth"


async def test_a_bridge_that_stops_ends_the_logins_under_way(tmp_path: Path) -> None:
    async with guarded() as pair, house(tmp_path, {"g": entry(pair)}) as h:
        await h.b.hub.login("g")
        assert h.login.logins._tasks
    assert not h.login.logins._tasks  # and the bench saw that no task is left
