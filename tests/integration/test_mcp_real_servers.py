"""Servers that other people wrote and publish: connect, list, call, over each transport that they offer."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent.models.schema import Dialect, mend
from agent.tools.mcp.config import parse_config
from agent.tools.mcp.names import offered_name
from agent.tools.mcp.schema import mend_listing
from tests.conformance.suite import node
from tests.fakes.llm import free_port
from tests.fakes.mcp_bench import FAKES, Bench, bench, until
from tests.harness import ROOT

_NODE = ROOT / "tests" / "node" / "node_modules" / "@modelcontextprotocol"
_DEFINITIONS = ROOT.parent / "shared" / "data" / "livemcpbench"
_CI = bool(os.environ.get("CI"))

needs_node = pytest.mark.skipif(
    not _CI and (node() is None or not (_NODE / "server-everything").exists()),
    reason="the servers from npm or their Node are not installed; `scripts/install dev` brings both",
)
needs_definitions = pytest.mark.skipif(
    not _CI and not _DEFINITIONS.exists(), reason="the collection of public server definitions is not here"
)


def published(server: str, *words: str, **entry: Any) -> dict[str, Any]:
    """An entry for a server from npm."""
    return {"command": str(node()), "args": [str(_NODE / server / "dist" / "index.js"), *words], **entry}


@asynccontextmanager
async def everything_over(transport: str) -> AsyncIterator[str]:
    """server-everything as a process that listens; gives its port's root."""
    port = free_port()
    entry = published("server-everything", transport)
    process = subprocess.Popen(
        [entry["command"], *entry["args"]],
        env={**os.environ, "PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(20):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.02)
                    continue
                writer.close()
                break
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(10)


async def check_everything(b: Bench) -> None:
    """What the reference server's tools bring, each in the form in which a model or a person gets it."""
    assert b.status("e").state == "ready", b.status("e").reason
    assert len(b.names()) >= 13
    assert "hello" in (await b.call("e__echo", message="hello")).text
    assert "12" in (await b.call("e__get-sum", a=5, b=7)).text
    picture = await b.call("e__get-tiny-image")
    assert [file.mime for file in picture.files] == ["image/png"]
    assert "iVBOR" not in picture.text
    weather = await b.call("e__get-structured-content", location="Chicago")
    assert "temperature" in weather.text
    assert "demo://resource" in (await b.call("e__get-resource-links", count=2)).text
    assert "esource 1" in (await b.call("e__get-resource-reference", resourceType="Text", resourceId=1)).text
    wrong = await b.call("e__get-sum", a="five", b=7)
    assert wrong.is_error
    slow, quick = await asyncio.gather(
        b.call("e__trigger-long-running-operation", duration=0.5, steps=5), b.call("e__echo", message="now")
    )
    assert not slow.is_error, slow.text
    assert "now" in quick.text


@needs_node
async def test_the_reference_server_works_over_stdio(tmp_path: Path) -> None:
    async with bench(tmp_path, {"e": published("server-everything", "stdio")}) as b:
        await check_everything(b)


@needs_node
@pytest.mark.parametrize(("transport", "path"), [("streamableHttp", "/mcp"), ("sse", "/sse")])
async def test_the_reference_server_works_over_http(tmp_path: Path, transport: str, path: str) -> None:
    kind = {"type": "sse"} if transport == "sse" else {}
    async with everything_over(transport) as root:
        async with bench(tmp_path, {"e": {"url": root + path, **kind}}) as b:
            await check_everything(b)


@needs_node
async def test_the_published_file_server_reads_and_writes_in_its_folder_only(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    (folder / "note.txt").write_text("first line\n")
    (tmp_path / "closed.txt").write_text("not for you")
    async with bench(tmp_path, {"f": published("server-filesystem", str(folder))}) as b:
        assert len(b.names()) == 14
        assert "first line" in (await b.call("f__read_text_file", path=str(folder / "note.txt"))).text
        written = await b.call("f__write_file", path=str(folder / "new.txt"), content="words")
        assert not written.is_error, written.text
        assert (folder / "new.txt").read_text() == "words"
        refused = await b.call("f__read_text_file", path=str(tmp_path / "closed.txt"))
        assert refused.is_error
        assert "not for you" not in refused.text
        assert b.tool("f__read_text_file").annotations.read_only
        assert not b.tool("f__write_file").annotations.read_only


@needs_node
async def test_the_published_memory_server_keeps_what_it_was_told_over_a_restart(tmp_path: Path) -> None:
    entry = published("server-memory", env={"MEMORY_FILE_PATH": str(tmp_path / "memory.json")})
    async with bench(tmp_path, {"m": entry}) as b:
        entity = {"name": "Ada", "entityType": "person", "observations": ["likes tea"]}
        made = await b.call("m__create_entities", entities=[entity])
        assert not made.is_error, made.text
        assert await b.hub.restart("m")
        await until(lambda: b.status("m").state != "ready")
        await until(lambda: b.status("m").state == "ready", 20)
        assert "likes tea" in (await b.call("m__search_nodes", query="Ada")).text


async def test_the_published_git_server_works_in_a_repository(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    at = ["-C", str(repository)]
    for words in (
        ["init", "--quiet", str(repository)],
        [*at, "config", "user.email", "a@b"],
        [*at, "config", "user.name", "A"],
    ):
        subprocess.run(["git", *words], check=True)
    (repository / "file.txt").write_text("one\n")
    entry = {"command": sys.executable, "args": ["-m", "mcp_server_git", "--repository", str(repository)]}
    async with bench(tmp_path, {"git": entry}) as b:
        where = {"repo_path": str(repository)}
        assert len(b.names()) == 12
        assert "file.txt" in (await b.call("git__git_status", **where)).text
        await b.call("git__git_add", **where, files=["file.txt"])
        assert not (await b.call("git__git_commit", **where, message="the first one")).is_error
        assert "the first one" in (await b.call("git__git_log", **where)).text
        outside = await b.call("git__git_status", repo_path=str(tmp_path / "nowhere"))
        assert outside.is_error


async def test_the_published_fetch_server_brings_a_page_as_text(tmp_path: Path) -> None:
    async def page(_: web.Request) -> web.Response:
        body = "<html><head><title>T</title></head><body><article><h1>Harbour news</h1>" + (
            "<p>The new crane was put up on Monday and will be used from now on.</p>" * 5
        )
        return web.Response(text=body + "</article></body></html>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/page", page)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    root = f"http://127.0.0.1:{runner.addresses[0][1]}"
    entry = {
        "command": sys.executable,
        "args": ["-m", "mcp_server_fetch", "--allow-private-ips", "--ignore-robots-txt"],
        "env": {"PATH": str(tmp_path)},  # where it finds npm it installs a parser from the network
    }
    try:
        async with bench(tmp_path, {"w": entry}) as b:
            found = await b.call("w__fetch", url=f"{root}/page")
            assert not found.is_error, found.text
            assert "new crane" in found.text
            assert "<article>" not in found.text
            assert (await b.call("w__fetch", url=f"{root}/missing")).is_error
    finally:
        await runner.cleanup()


async def test_servers_of_both_eras_and_the_minimal_one_serve_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a\nb\nc\n")
    servers = {
        "time": {"command": sys.executable, "args": ["-m", "mcp_server_time"]},
        "local-files": {"command": sys.executable, "args": ["-u", str(FAKES / "mcp_seed.py")]},
    }
    async with bench(tmp_path, servers) as b:
        clock, lines = await asyncio.gather(
            b.call("time__get_current_time", timezone="Asia/Shanghai"),
            b.call("local-files__count_lines", path=str(tmp_path / "text")),
        )
        assert json.loads(clock.text)["timezone"] == "Asia/Shanghai"
        assert lines.text == "3 lines"


def _definitions() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((_DEFINITIONS / "tools.json").read_text("utf-8"))
    return found


@needs_definitions
def test_every_public_definition_loads() -> None:
    blocks = [json.dumps(server["config"], ensure_ascii=False) for server in _definitions()]
    assert len(blocks) == 70
    whole = (_DEFINITIONS / "clean_config.json").read_text("utf-8")
    assert len(parse_config(whole.encode(), environ=os.environ).servers) == len(
        json.loads(whole)["mcpServers"]
    )
    for block in (*blocks, whole):
        config = parse_config(block.encode(), environ=os.environ)
        assert config.servers, block
        assert config.bad == (), block
        assert config.warnings == (), block


@needs_definitions
def test_every_public_tool_is_offered_under_a_legal_name_with_a_schema_that_providers_take() -> None:
    names: set[str] = set()
    total = 0
    for entry in _definitions():
        for server, listing in entry["tools"].items():
            tools, faults = mend_listing(listing["tools"])
            assert faults == [], server
            assert len(tools) == len(listing["tools"])
            for tool in tools:
                total += 1
                names.add(offered_name(server, tool["name"]))
                for dialect in _DIALECTS:
                    mended = mend(tool["inputSchema"], dialect)
                    assert mended["type"] == "object"
                    assert '"$ref"' not in json.dumps(mended), (server, tool["name"], dialect)
    assert total >= 500
    assert all(len(name) <= 64 and set(name) <= _LEGAL for name in names)


_DIALECTS: tuple[Dialect, ...] = ("openai", "anthropic", "gemini")
_LEGAL = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
