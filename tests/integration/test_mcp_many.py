"""Many servers at once, and odd ones: none costs the others anything. Faults that peers have are named."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from aiohttp import web

from tests.fakes.mcp_bench import bench, living, plain, until

SERVERS = 20


async def test_twenty_servers_are_all_on_their_way_before_the_first_is_ready(tmp_path: Path) -> None:
    pids, gate = tmp_path / "pids", tmp_path / "gate"
    entry = plain("--pids", str(pids), "--gate", str(gate))
    hanging = plain("--hang", start_timeout=60)
    servers = {**{f"s{number}": entry for number in range(SERVERS)}, "hanging": hanging}
    async with bench(tmp_path, servers, settle=False) as b:
        # None answers before the gate opens, so whoever started them in turn would wait here for ever.
        await until(lambda: len(living(pids)) == SERVERS, 30)
        assert b.names() == []
        gate.touch()
        await until(lambda: sum(status.state == "ready" for status in b.hub.status) == SERVERS, 30)
        assert b.status("hanging").state == "starting", "the others were ready only after the one that hangs"
        results = await asyncio.gather(*(b.call(f"s{number}__echo", text="x") for number in range(SERVERS)))
        assert not any(result.is_error for result in results)
    assert living(pids) == []


async def test_peers_2_9_a_server_that_will_not_end_holds_up_neither_the_pass_nor_the_others(
    tmp_path: Path,
) -> None:
    pids = tmp_path / "pids"
    stubborn = plain("--stubborn", "--pids", str(pids))
    async with bench(tmp_path, {"stubborn": stubborn, "other": plain()}) as b:
        b.write({"other": plain(), "fresh": plain()})
        await b.hub.refresh()
        assert len(living(pids)) == 1, "the pass waited for the removed server's end"
        assert not (await b.call("other__echo", text="x")).is_error
        await until(lambda: "fresh__echo" in b.names())
        await until(lambda: living(pids) == [])


#: Answers as its option says: an error to tools/list, or a request of its own under the id of each call.
ODD = """
import json, sys
def send(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    rid, method = message.get("id"), message.get("method")
    if method == "initialize":
        send(id=rid, result={"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                             "serverInfo": {"name": "odd", "version": "1"}})
    elif method == "tools/list" and sys.argv[1] == "unlisted":
        send(id=rid, error={"code": -32603, "message": "the index is broken"})
    elif method == "tools/list":
        send(id=rid, result={"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        asked = rid
        send(id=rid, method="ping")
    elif method is None and "result" in message and rid == asked:
        send(id=asked, result={"content": [{"type": "text", "text": "after the ping was answered"}]})
    elif rid is not None:
        send(id=rid, error={"code": -32601, "message": "unknown method"})
"""


async def test_peers_2_8_a_server_whose_list_fails_is_not_ready(tmp_path: Path) -> None:
    async with bench(tmp_path, {"odd": _python(ODD, "unlisted"), "good": plain()}) as b:
        assert b.status("odd").state == "failed"
        assert "the index is broken" in b.status("odd").reason
        assert {tool.source for tool in b.hub.tools} == {"good"}


async def test_peers_2_11_a_request_of_the_server_under_a_calls_id_is_answered_and_no_result(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path, {"odd": _python(ODD, "asks")}) as b:
        assert (await b.call("odd__t")).text == "after the ping was answered"


async def test_peers_2_11_an_entrys_headers_are_sent_over_sse_too(tmp_path: Path) -> None:
    seen: list[str | None] = []

    async def stream(request: web.Request) -> web.Response:
        seen.append(request.headers.get("X-Key"))
        return web.Response(status=503)

    app = web.Application()
    app.router.add_get("/sse", stream)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/sse"
    try:
        entry = {"type": "sse", "url": url, "headers": {"X-Key": "${KEY}"}}
        async with bench(tmp_path, {"s": entry}, environ={"KEY": "the-key-of-the-test"}) as b:
            await until(lambda: seen)
            assert b.status("s").state == "failed"
        assert set(seen) == {"the-key-of-the-test"}
    finally:
        await runner.cleanup()


def _python(code: str, *words: str) -> dict[str, object]:
    return {"command": sys.executable, "args": ["-c", code, *words]}
