"""Remote servers over streamable HTTP: the SDK's own server, and small doubles with faults."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.fakes.mcp_bench import FAKES, bench, until


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def sdk_server(port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(FAKES / "mcp_sdk.py"),
        "--port",
        str(port),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await until(lambda: _listens(port), 20)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Double:
    """A streamable HTTP server of the 2025 protocol that answers in plain JSON, with faults on demand."""

    def __init__(self) -> None:
        self.session = 0
        self.seen: list[tuple[str, str | None]] = []
        self.headers: list[str | None] = []
        self.forget_after = 10**9
        self.calls = 0
        self.status = 0
        self.drop = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            return web.Response(status=405)
        message = await request.json()
        method, rid = message["method"], message.get("id")
        session = request.headers.get("Mcp-Session-Id")
        self.seen.append((method, session))
        self.headers.append(request.headers.get("Authorization"))
        if self.status:
            return web.Response(status=self.status)
        if method == "initialize":
            self.session += 1
            result: dict[str, Any] = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "double", "version": "1"},
            }
            return self._json(rid, result, {"Mcp-Session-Id": f"s{self.session}"})
        if rid is None:
            return web.Response(status=202)
        if method == "server/discover":
            return web.json_response(
                {"jsonrpc": "2.0", "id": rid, "error": {"code": -32601, "message": "?"}}, status=400
            )
        if session != f"s{self.session}":
            return web.Response(status=404)
        if method == "tools/list":
            return self._json(rid, {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
        self.calls += 1
        if self.drop and request.transport is not None:
            request.transport.close()
            return web.Response()
        if self.calls > self.forget_after:
            self.session += 1000
            self.forget_after = 10**9
            return web.Response(status=404)
        return self._json(rid, {"content": [{"type": "text", "text": f"call in {session}"}]})

    def _json(self, rid: Any, result: Any, headers: dict[str, str] | None = None) -> web.Response:
        return web.json_response({"jsonrpc": "2.0", "id": rid, "result": result}, headers=headers)


@asynccontextmanager
async def serving(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/mcp", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()


async def test_a_server_over_streamable_http_is_called_and_found_again(
    tmp_path: Path,
) -> None:
    port = free_port()
    async with bench(tmp_path) as b:
        async with sdk_server(port):
            await b.reload({"r": {"url": f"http://127.0.0.1:{port}/mcp"}})
            assert b.status("r").state == "ready"
            assert b.tool("r__add").timeout == 30.0
            assert (await b.call("r__add", a=1, b=2)).text == "3"
            slow = asyncio.create_task(b.call("r__wait", seconds=0.5))
            assert (await b.call("r__add", a=2, b=2)).text == "4"
            assert not slow.done()
            assert (await slow).text == "waited"
            assert (await b.call("r__grow")).text == "grew"
            await until(lambda: "r__grown" in b.names())
            async with asyncio.timeout(5):
                dropped = await b.call("r__drop")  # mc_05, over HTTP: the process ends in the call
            assert dropped.is_error
        await until(lambda: b.status("r").state != "ready")
        assert b.status("r").reason
        async with sdk_server(port):
            await b.hub.restart("r")
            await until(lambda: b.status("r").state == "ready", 10)
            assert (await b.call("r__add", a=1, b=1)).text == "2"


async def test_mc_05_a_dropped_connection_fails_the_call_and_not_the_server(tmp_path: Path) -> None:
    double = Double()
    async with serving(double.handle) as url, bench(tmp_path, {"r": {"url": url}}) as b:
        double.drop = True
        async with asyncio.timeout(5):
            result = await b.call("r__t")
        assert result.is_error
        assert "connection broke" in result.text
        double.drop = False
        await until(lambda: double.seen[-1][0] == "tools/list")  # it was checked whether the server is there
        assert not (await b.call("r__t")).is_error
        assert [method for method, _ in double.seen].count("initialize") == 1


async def test_mc_08_a_forgotten_session_is_opened_once_for_all_waiting_calls(tmp_path: Path) -> None:
    double = Double()
    double.forget_after = 2
    async with serving(double.handle) as url, bench(tmp_path, {"r": {"url": url}}) as b:
        for _ in range(2):
            assert not (await b.call("r__t")).is_error
        results = await asyncio.gather(*(b.call("r__t") for _ in range(5)))
        assert [result.is_error for result in results] == [False] * 5
        starts = [session for method, session in double.seen if method == "initialize"]
        assert starts == [None, None], "the second session was asked for with the old id, or more than once"


async def test_mc_22_a_header_from_the_environment_arrives_and_a_refused_one_is_told(
    tmp_path: Path,
) -> None:
    double = Double()
    environ = {**os.environ, "DEMO_TOKEN": "tok-abcdef"}
    entry = {"headers": {"Authorization": "Bearer ${DEMO_TOKEN}"}}
    async with serving(double.handle) as url:
        async with bench(tmp_path, {"r": {"url": url, **entry}}, environ=environ) as b:
            assert not (await b.call("r__t")).is_error
            assert set(double.headers) == {"Bearer tok-abcdef"}
            double.status = 401
            await b.reload({"r": {"url": url, "headers": {"Authorization": "Bearer wrong-one"}}})
            assert b.status("r").state == "ready"
            assert "login" in b.status("r").reason
            assert "wrong-one" not in b.status("r").reason
            assert await b.hub.restart("r")
            assert await b.hub.settle(10)
            await b.reload({})
            await b.reload({"r": {"url": url}})
            assert b.status("r").state == "needs_auth"


async def test_a_server_that_is_not_there_fails_with_a_reason_and_comes_when_it_is(tmp_path: Path) -> None:
    port = free_port()
    async with bench(tmp_path, {"r": {"url": f"http://127.0.0.1:{port}/mcp"}}) as b:
        assert b.status("r").state in ("failed", "restarting")
        assert "no connection" in b.status("r").reason


async def test_a_page_that_is_no_mcp_server_is_named_as_such(tmp_path: Path) -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(status=404, text="nothing here")

    async with serving(handle) as url, bench(tmp_path, {"r": {"url": url}}) as b:
        assert "404" in b.status("r").reason
        assert '"type": "sse"' in b.status("r").reason


async def test_a_remote_server_that_hangs_ends_at_its_start_deadline(tmp_path: Path) -> None:
    async def handle(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async with serving(handle) as url, bench(tmp_path, {"r": {"url": url, "start_timeout": 0.5}}) as b:
        assert b.status("r").state == "failed"
        assert "0.5 s" in b.status("r").reason


async def test_killing_a_remote_server_leaves_the_others_alone(tmp_path: Path) -> None:
    port = free_port()
    double = Double()
    async with sdk_server(port) as process, serving(double.handle) as url:
        servers = {"gone": {"url": f"http://127.0.0.1:{port}/mcp"}, "here": {"url": url}}
        async with bench(tmp_path, servers) as b:
            waiting = asyncio.create_task(b.call("gone__wait", seconds=30))
            await asyncio.sleep(0)
            await until(lambda: b.status("gone").state == "ready")
            process.send_signal(signal.SIGKILL)
            async with asyncio.timeout(5):
                assert (await waiting).is_error
            assert not (await b.call("here__t")).is_error
