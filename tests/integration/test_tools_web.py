"""web_fetch against real servers on this machine, and what it must never reach.

The "public" host of these tests is 127.0.0.2, named in `allow_hosts`; what must not be reached is 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import gzip
import time
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent.tools.base import Caller, FunctionTool, ToolFailure, ToolResult
from agent.tools.builtin.web import Resolve, web_fetch_tool
from agent.tools.manager import ToolManager, ToolSettings
from agent.tools.results import Masker
from agent.tools.settings import WebFetchSettings
from agent.tools.workers import Workers

from .tools_support import Bench, make_context

PUBLIC = "127.0.0.2"
_PACKED = {"Content-Encoding": "gzip", "Content-Type": "text/plain"}
_STATUSES = (301, 302, 303, 307, 308)


@dataclass(slots=True)
class Site:
    """A server at 127.0.0.2 (the outside) and one at 127.0.0.1 (the inside), on the same port."""

    port: int = 0
    hits: list[str] = field(default_factory=list)
    inside_hits: list[str] = field(default_factory=list)

    def url(self, path: str) -> str:
        return f"http://{PUBLIC}:{self.port}{path}"


async def _answer(request: web.Request) -> web.StreamResponse:
    match request.path:
        case "/page":
            body = "<title>T</title><body><p>Hello <a href='/x'>there</a></p>"
            return web.Response(text=body, content_type="text/html")
        case "/json":
            return web.json_response({"a": [1, 2]})
        case "/long":
            return web.Response(text="".join(f"{n:09}\n" for n in range(10_000)))
        case "/latin":
            return web.Response(
                body="grüße".encode("latin-1"), headers={"Content-Type": "text/plain; charset=latin1"}
            )
        case "/odd-charset":
            return web.Response(body=b"x" * 100_000, headers={"Content-Type": "text/plain; charset=punycode"})
        case "/image":
            return web.Response(body=b"\x89PNG\r\n\x1a\n\0", content_type="image/png")
        case "/untyped":
            return web.Response(body=b"ab\0\1", headers={"Content-Type": ""})
        case "/missing":
            return web.Response(text="not here", status=404)
        case "/gzip":
            return web.Response(body=gzip.compress(b"packed text"), headers=_PACKED)
        case "/deflate":
            packer = zlib.compressobj(wbits=-15)
            packed = packer.compress(b"packed text") + packer.flush()
            return web.Response(body=packed, headers={**_PACKED, "Content-Encoding": "deflate"})
        case "/bomb":
            packed = gzip.compress(b"\0" * 50_000_000, 9)
            return web.Response(
                body=packed, headers={"Content-Encoding": "gzip", "Content-Type": "text/plain"}
            )
        case "/broken-gzip":
            return web.Response(body=b"no gzip at all", headers=_PACKED)
        case "/cut":
            response = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "text/plain"})
            await response.prepare(request)
            await response.write(b"half")
            assert request.transport is not None
            request.transport.abort()
            return response
        case "/endless" | "/slow":
            response = web.StreamResponse(headers={"Content-Type": "text/plain"})
            await response.prepare(request)
            try:
                while True:
                    await response.write(b"x" * (10_000 if request.path == "/endless" else 1))
                    await asyncio.sleep(0 if request.path == "/endless" else 0.05)
            except ConnectionResetError:
                return response
        case "/to":
            return web.Response(status=302, headers={"Location": request.query["u"]})
        case "/hops":
            left = int(request.query["n"]) - 1
            target = f"/hops?n={left}" if left else "page"
            return web.Response(status=_STATUSES[left], headers={"Location": target})
        case "/loop":
            return web.Response(status=302, headers={"Location": "/loop"})
        case "/cookie":
            response = web.Response(status=302, headers={"Location": "/echo"})
            response.set_cookie("a", "b")
            return response
        case "/echo":
            return web.json_response(dict(request.headers))
    return web.Response(status=500)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()

    async def outside(request: web.Request) -> web.StreamResponse:
        site.hits.append(request.path)
        return await _answer(request)

    async def inside(request: web.Request) -> web.StreamResponse:
        site.inside_hits.append(request.path)
        return web.Response(text="INSIDE")

    runners = []
    for host, handler in ((PUBLIC, outside), ("127.0.0.1", inside)):
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.2)
        await runner.setup()
        server = web.TCPSite(runner, host, site.port)
        await server.start()
        site.port = runner.addresses[0][1]
        runners.append(runner)
    yield site
    for runner in runners:
        await runner.cleanup()
    assert site.inside_hits == []


@pytest.fixture
async def bench(tmp_path: Path, site: Site) -> AsyncIterator[Bench]:
    settings = ToolSettings.model_validate(
        {"web_fetch": {"allow_hosts": [f"{PUBLIC}:{site.port}"], "max_bytes": 200_000, "timeout": 2}}
    )
    manager = ToolManager(settings, mcp=None, masker=Masker())
    yield Bench(manager, make_context(tmp_path, Caller("1")), tmp_path)
    await manager.stop()


# Reading -------------------------------------------------------------------------------------------------


async def test_a_page_is_read_as_text_with_its_links(bench: Bench, site: Site) -> None:
    text = await bench.fine("web_fetch", url=site.url("/page#part"))
    assert text == f"{site.url('/page')} (HTTP 200)\nTitle: T\n\nHello [there]({site.url('/x')})"


async def test_other_texts_come_as_they_are(bench: Bench, site: Site) -> None:
    assert '{"a": [1, 2]}' in await bench.fine("web_fetch", url=site.url("/json"))
    assert "grüße" in await bench.fine("web_fetch", url=site.url("/latin"))
    assert "packed text" in await bench.fine("web_fetch", url=site.url("/gzip"))
    assert "packed text" in await bench.fine("web_fetch", url=site.url("/deflate"))


async def test_a_long_page_comes_in_parts_that_join_to_the_whole(bench: Bench, site: Site) -> None:
    whole = "".join(f"{n:09}\n" for n in range(10_000))
    read = ""
    while len(read) < len(whole):
        text = await bench.fine("web_fetch", url=site.url("/long"), start=len(read))
        assert len(text) <= 20_000
        read += text.partition("\n\n")[2].rpartition("\n[")[0]
    assert read == whole


async def test_what_is_no_text_is_named_and_not_shown(bench: Bench, site: Site) -> None:
    assert "image/png" in await bench.refused("web_fetch", url=site.url("/image"))
    assert "no text" in await bench.refused("web_fetch", url=site.url("/untyped"))


async def test_an_error_status_is_an_error_with_the_page_text(bench: Bench, site: Site) -> None:
    text = await bench.refused("web_fetch", url=site.url("/missing"))
    assert "(HTTP 404)" in text
    assert "not here" in text


async def test_faults_on_the_way_are_explained(bench: Bench, site: Site) -> None:
    assert "before the page was whole" in await bench.refused("web_fetch", url=site.url("/cut"))
    assert "unpacked" in await bench.refused("web_fetch", url=site.url("/broken-gzip"))
    assert "x" in await bench.fine("web_fetch", url=site.url("/odd-charset"))


async def test_redirects_are_followed_five_times_without_cookies(bench: Bench, site: Site) -> None:
    assert "Hello" in await bench.fine("web_fetch", url=site.url("/hops?n=5"))
    assert "more than 5 times" in await bench.refused("web_fetch", url=site.url("/loop"))
    assert site.hits.count("/loop") == 6
    assert "Cookie" not in await bench.fine("web_fetch", url=site.url("/cookie"))


# SC-04 ---------------------------------------------------------------------------------------------------

INSIDE = [
    "http://127.0.0.1:PORT/",
    "http://localhost:PORT/",
    "http://LOCALHOST.:PORT/",
    "http://[::ffff:127.0.0.1]:PORT/",
    "http://[::ffff:7f00:1]:PORT/",
    "http://[::1]:PORT/",
    "http://[::]:PORT/",
    "http://[64:ff9b::7f00:1]:PORT/",
    "http://[fe80::1]:PORT/",
    "http://2130706433:PORT/",
    "http://0x7f000001:PORT/",
    "http://0x7f.1:PORT/",
    "http://017700000001:PORT/",
    "http://0177.0.0.1:PORT/",
    "http://127.1:PORT/",
    "http://127.000.000.001:PORT/",
    "http://0:PORT/",
    "http://0.0.0.0:PORT/",
    "http://１２７.０.０.１:PORT/",
    "http://127。0。0。1:PORT/",
    "http://169.254.169.254/",
    "http://100.100.100.200/",
    "http://10.0.0.1/",
    "http://224.0.0.1/",
    "http://255.255.255.255/",
    "http://127.0.0.2:1/",
]
REFUSED = [
    *INSIDE,
    "file:///etc/hosts",
    "ftp://127.0.0.1/x",
    "gopher://127.0.0.1:PORT/x",
    "javascript:alert(1)",
    "data:text/plain,hello",
    "//127.0.0.1:PORT/",
    "/etc/hosts",
    "127.0.0.1:PORT",
    "http://",
    "http:///etc/hosts",
    "http://127.0.0.2:PORT@127.0.0.1:PORT/",
    "http://user:word@127.0.0.2:PORT/page",
    "http://@127.0.0.2:PORT/page",
    "http://127.0.0.2:PORT\\@127.0.0.1:PORT/",
    "http://127.0.0.2:99999/",
    "http://exa mple/",
]


@pytest.mark.parametrize("url", REFUSED)
async def test_sc_04_addresses_that_are_not_public_are_refused(bench: Bench, site: Site, url: str) -> None:
    text = await bench.refused("web_fetch", url=url.replace("PORT", str(site.port)))
    assert "INSIDE" not in text
    assert site.hits == []


@pytest.mark.parametrize("url", [*INSIDE, "file:///etc/hosts", "http://user:word@127.0.0.2:PORT/page"])
async def test_sc_04_a_redirect_does_not_lead_there_either(bench: Bench, site: Site, url: str) -> None:
    target = url.replace("PORT", str(site.port))
    text = await bench.refused("web_fetch", url=site.url("/to?u=") + target)
    assert "INSIDE" not in text
    assert site.hits == ["/to"]


async def test_sc_04_an_endless_body_is_cut(bench: Bench, site: Site) -> None:
    began = time.monotonic()
    text = await bench.fine("web_fetch", url=site.url("/endless"))
    assert "larger than 200000 bytes" in text
    assert len(text) < 21_000
    assert time.monotonic() - began < 3


async def test_sc_04_a_slow_body_ends_at_the_deadline(bench: Bench, site: Site) -> None:
    began = time.monotonic()
    assert "did not" in await bench.refused("web_fetch", url=site.url("/slow"))
    assert time.monotonic() - began < 4
    assert bench.manager.stats["web_fetch"].failures == 1


async def test_sc_04_a_packed_body_is_unpacked_no_further_than_the_bound(bench: Bench, site: Site) -> None:
    text = await bench.fine("web_fetch", url=site.url("/bomb"))
    assert "of 200000" in text
    assert "was cut" in text


@dataclass(slots=True)
class Names:
    """A resolver that gives each name its list of answers, one a question."""

    answers: dict[str, list[list[str]]]
    asked: list[str] = field(default_factory=list)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        known = self.answers.get(host)
        if not known:
            raise OSError("no such name")
        return known.pop(0)


def _tool(resolve: Resolve, allow: str) -> tuple[FunctionTool, Workers]:
    workers = Workers()
    settings = WebFetchSettings(allow_hosts=(allow,), timeout=3)
    return web_fetch_tool(settings, 20_000, workers, resolve), workers


async def _fetch(bench: Bench, names: Names, allow: str, url: str) -> ToolResult:
    tool, workers = _tool(names, allow)
    try:
        return await tool.execute({"url": url, "start": 0}, bench.context)
    finally:
        workers.close()


async def test_sc_04_a_name_is_resolved_once_a_hop_and_the_connection_goes_to_that_address(
    bench: Bench, site: Site
) -> None:
    # A second question would be answered with the inside.
    names = Names({"rebind.test": [[PUBLIC], ["127.0.0.1"]]})
    result = await _fetch(bench, names, f"{PUBLIC}/32", f"http://rebind.test:{site.port}/page")
    assert "Hello" in result.text
    assert names.asked == ["rebind.test"]


async def test_sc_04_a_name_that_moves_inside_between_two_hops_is_refused(bench: Bench, site: Site) -> None:
    names = Names({"rebind.test": [[PUBLIC], ["127.0.0.1"]]})
    url = f"http://rebind.test:{site.port}/to?u=/page"
    with pytest.raises(ToolFailure, match="not public"):
        await _fetch(bench, names, f"{PUBLIC}/32", url)
    assert site.hits == ["/to"]


async def test_sc_04_of_a_names_addresses_only_the_public_ones_are_tried(bench: Bench, site: Site) -> None:
    names = Names({"both.test": [["127.0.0.1", "::1", PUBLIC]]})
    result = await _fetch(bench, names, f"{PUBLIC}/32", f"http://both.test:{site.port}/page")
    assert "Hello" in result.text


async def test_sc_04_an_address_in_the_url_is_held_to_what_was_checked(bench: Bench, site: Site) -> None:
    # The client does not ask a resolver about a host that is an address: the last check stands alone.
    names = Names({"127.0.0.1": [[PUBLIC]]})
    with pytest.raises(ToolFailure, match="No connection could be made"):
        await _fetch(bench, names, f"{PUBLIC}/32", f"http://127.0.0.1:{site.port}/page")
    assert site.hits == []


async def test_sc_04_an_allowed_name_works_and_only_at_its_port(bench: Bench, site: Site) -> None:
    names = Names({"wiki.intern": [[PUBLIC], ["127.0.0.1"]]})
    result = await _fetch(bench, names, f"wiki.intern:{site.port}", f"http://Wiki.Intern:{site.port}/page")
    assert "Hello" in result.text
    with pytest.raises(ToolFailure, match="not public"):
        await _fetch(bench, names, f"wiki.intern:{site.port}", "http://wiki.intern:1/page")


async def test_a_name_that_leads_nowhere_is_explained(bench: Bench) -> None:
    with pytest.raises(ToolFailure, match="leads to no address"):
        await _fetch(bench, Names({}), "10.0.0.0/8", "http://none.test/")


async def test_it_can_be_switched_off() -> None:
    manager = ToolManager(
        ToolSettings.model_validate({"web_fetch": {"enabled": False}}), mcp=None, masker=Masker()
    )
    assert manager.catalog.get("web_fetch") is None
    await manager.stop()


async def test_cancelling_closes_the_connection(bench: Bench, site: Site) -> None:
    running: asyncio.Task[Any] = asyncio.create_task(bench.call("web_fetch", url=site.url("/slow")))
    async with asyncio.timeout(3):
        while not site.hits:
            await asyncio.sleep(0.005)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
