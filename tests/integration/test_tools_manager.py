"""The way of every call: found, allowed, checked, run under a deadline, bounded, masked, counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agent.history import ImageRef
from agent.tools.base import Caller, FunctionTool, Tool, ToolContext, ToolFailure, ToolResult
from agent.tools.catalog import Catalog
from agent.tools.manager import ToolManager, ToolSettings, UnknownTool
from agent.tools.results import Masker, MaskingFilter

from .tools_support import Bench, make_context

TOKEN = "123:CANARY"
ANYTHING = {"type": "object"}
Run = Callable[[dict[str, Any], ToolContext], Awaitable[ToolResult]]


class Servers:
    """Tools that come and go, as those of MCP servers do."""

    def __init__(self) -> None:
        self.tools: tuple[Tool, ...] = ()
        self.status: tuple[Any, ...] = ()
        self.refreshed = 0
        self.stopped = False
        self._on_change: Callable[[], None] = lambda: None

    async def start(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change

    async def refresh(self) -> None:
        self.refreshed += 1

    async def stop(self) -> None:
        self.stopped = True

    def offer(self, *tools: Tool) -> None:
        self.tools = tools
        self._on_change()


def tool(name: str, run: Run, **more: Any) -> FunctionTool:
    return FunctionTool(name, "", more.pop("params", ANYTHING), run, source=more.pop("source", "srv"), **more)


def answering(name: str, text: str = "", **more: Any) -> FunctionTool:
    async def run(params: dict[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult(text or repr(params))

    return tool(name, run, **more)


def raising(name: str, error: BaseException, **more: Any) -> FunctionTool:
    async def run(params: dict[str, Any], context: ToolContext) -> ToolResult:
        raise error

    return tool(name, run, **more)


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
async def bench(tmp_path: Path, servers: Servers) -> AsyncIterator[Bench]:
    manager = ToolManager(ToolSettings(), mcp=servers, masker=Masker([TOKEN]))
    await manager.start()
    yield Bench(manager, make_context(tmp_path, Caller("1", admin=True)), tmp_path)
    await manager.stop()
    assert servers.stopped


# The catalog ---------------------------------------------------------------------------------------------


async def test_the_catalog_has_built_in_tools_first_and_is_swapped_whole(
    bench: Bench, servers: Servers
) -> None:
    before = bench.manager.catalog
    assert before.names == ("read", "write", "edit", "ls", "search", "send_file", "web_fetch")
    servers.offer(answering("srv__b"), answering("srv__a"))
    assert list(bench.manager.catalog.names) == [*before.names, "task_status", "srv__b", "srv__a"]
    assert before.get("srv__b") is None
    servers.offer()
    assert bench.manager.catalog.names == before.names


async def test_a_servers_tool_does_not_take_a_built_in_name(bench: Bench, servers: Servers) -> None:
    servers.offer(answering("read", "taken"))
    assert "does not exist" in await bench.refused("read", path="x")


async def test_a_run_calls_what_its_own_catalog_holds(bench: Bench, servers: Servers) -> None:
    servers.offer(answering("srv__old", "still here"))
    held = bench.manager.catalog
    servers.offer(answering("srv__new"))
    result = await bench.manager.call(held, "srv__old", "c", {}, bench.context)
    assert result.text == "still here"
    with pytest.raises(UnknownTool):
        await bench.call("srv__old")


async def test_refresh_reaches_the_servers(bench: Bench, servers: Servers) -> None:
    await bench.manager.refresh()
    assert servers.refreshed == 1


async def test_every_built_in_tool_has_a_short_description_and_a_strict_schema(bench: Bench) -> None:
    settings = ToolSettings.model_validate({"bash": {"enabled": True}})
    manager = ToolManager(settings, mcp=None, masker=Masker())
    assert manager.catalog.names[-2:] == ("bash", "task_status")
    for built_in in manager.catalog:
        assert 30 <= len(built_in.description.split()) <= 70, built_in.name
        assert built_in.params["additionalProperties"] is False
        assert all("description" in part for part in built_in.params["properties"].values())
    reading = {one.name for one in manager.catalog if one.annotations.read_only}
    assert reading == {"read", "ls", "search", "web_fetch", "task_status"}
    await manager.stop()


# Before the call -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("called", "expected"),
    [
        ("get_time", ("time__get_time",)),
        ("raed", ("read",)),
        ("clock__get_time", ("time__get_time",)),
        ("zzzz", ()),
    ],
)
async def test_an_unknown_name_is_signalled_with_names_like_it(
    bench: Bench, servers: Servers, called: str, expected: tuple[str, ...]
) -> None:
    servers.offer(answering("time__get_time"), answering("secret__raedy", admin_only=True))
    with pytest.raises(UnknownTool) as unknown:
        await bench.call(called)
    assert unknown.value.name == called
    assert unknown.value.close_matches == expected


async def test_a_tool_that_is_not_allowed_is_not_run(bench: Bench, servers: Servers) -> None:
    ran = []

    async def run(params: dict[str, Any], context: ToolContext) -> ToolResult:
        ran.append(context.caller.id)
        return ToolResult("done")

    servers.offer(tool("srv__guarded", run, admin_only=True))
    bench.as_caller(Caller("1"))
    assert "reserved for admins" in await bench.refused("srv__guarded")
    bench.as_caller(Caller("2", admin=True, chat_kind="group"))
    assert "direct chat" in await bench.refused("srv__guarded")
    bench.as_caller(Caller("3", admin=True))
    await bench.fine("srv__guarded")
    assert ran == ["3"]


async def test_wrong_arguments_are_explained_and_the_tool_is_not_run(bench: Bench) -> None:
    text = await bench.refused("write", path="x.txt", contents="y")
    assert "lacks `content`" in text
    assert "`contents` is not known, did you mean `content`" in text
    assert not (bench.folder / "x.txt").exists()


async def test_defaults_reach_the_tool(bench: Bench, servers: Servers) -> None:
    params = {"type": "object", "properties": {"n": {"type": "integer", "default": 7}}}
    servers.offer(answering("srv__t", params=params))
    assert await bench.fine("srv__t") == "{'n': 7}"


# The result ----------------------------------------------------------------------------------------------


async def test_a_long_result_is_cut_in_the_middle_and_masked(bench: Bench, servers: Servers) -> None:
    servers.offer(answering("srv__t", f"begin {TOKEN} " + "x" * 5_000_000 + f" {TOKEN} end"))
    text = await bench.fine("srv__t")
    assert text.startswith("begin *** x")
    assert text.endswith("x *** end")
    assert "characters left out here" in text
    assert len(text) < 20_300


async def test_what_stores_and_providers_refuse_is_replaced(bench: Bench, servers: Servers) -> None:
    servers.offer(answering("srv__t", "a\0b\ud800c"))
    assert await bench.fine("srv__t") == "a\ufffdb?c"


async def test_files_and_pictures_pass_through(bench: Bench, servers: Servers) -> None:
    async def run(params: dict[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult("a picture", images=(ImageRef("p.png", "image/png"),))

    servers.offer(tool("srv__t", run))
    assert (await bench.call("srv__t")).images == (ImageRef("p.png", "image/png"),)


async def test_sc_05_a_tool_that_fails_with_the_token_in_its_message_tells_nobody(
    bench: Bench, servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"http://127.0.0.1:9/bot{TOKEN}/getFile"
    caplog.handler.addFilter(MaskingFilter(Masker([TOKEN])))
    servers.offer(
        raising("srv__a", RuntimeError(f"cannot reach {url}")),
        raising("srv__b", ToolFailure("It failed.", f"{url} was refused.", "Try again.")),
        raising("srv__c", ExceptionGroup("several", [OSError(f"cannot reach {url}")])),
    )
    with caplog.at_level(logging.DEBUG):
        for name in ("srv__a", "srv__b", "srv__c"):
            text = await bench.refused(name)
            assert "CANARY" not in text
            assert "http://127.0.0.1:9/bot***" in text
    assert "CANARY" not in caplog.text
    assert "RuntimeError" in caplog.text


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("first line\nTraceback (most recent call last)"), "ValueError: first line."),
        (OSError(28, "No space left on device", "/srv/causeway/data/x"), "No space left on device."),
        (KeyError(), "KeyError."),
        (RuntimeError("cannot open /home/someone/keys/id_rsa now"), "cannot open (path) now."),
        (RuntimeError("see https://example.org/a/b/c"), "see https://example.org/a/b/c."),
        (RuntimeError("x" * 10_000), "x" * 500 + "."),
        (TimeoutError(), "TimeoutError."),
        (ExceptionGroup("all", [ExceptionGroup("inner", [ValueError("the one")])]), "ValueError: the one."),
    ],
)
async def test_any_exception_becomes_what_why_and_what_to_try(
    bench: Bench, servers: Servers, error: Exception, words: str
) -> None:
    servers.offer(raising("srv__t", error))
    text = await bench.refused("srv__t")
    assert text.startswith("srv__t failed. ")
    assert words in text
    assert text.endswith("Try it with other arguments, or go on without it.")
    assert "Traceback" not in text
    assert "/home/" not in text
    assert "/srv/" not in text
    assert len(text) < 700


async def test_paths_in_the_session_folder_are_shown_as_tools_take_them(
    bench: Bench, servers: Servers
) -> None:
    servers.offer(raising("srv__t", ToolFailure(f"{bench.folder}/a.txt is broken.")))
    assert (await bench.call("srv__t")).text == "a.txt is broken."


# Time ----------------------------------------------------------------------------------------------------


async def test_a_call_ends_at_its_deadline_and_the_tool_is_cancelled(bench: Bench) -> None:
    ended = asyncio.Event()

    async def run(params: dict[str, Any], context: ToolContext) -> ToolResult:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    manager = ToolManager(ToolSettings(), mcp=None, masker=Masker())
    catalog = Catalog([tool("slow", run, timeout=0.05, source="builtin")])
    async with asyncio.timeout(2):
        result = await manager.call(catalog, "slow", "c", {}, bench.context)
    assert ended.is_set()
    assert result.is_error
    assert "did not end within 0.05 s" in result.text
    assert manager.stats["slow"].timeouts == 1
    await manager.stop()


async def test_cancelling_a_call_passes_through_and_reaches_the_tool(bench: Bench, servers: Servers) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def run(params: dict[str, Any], context: ToolContext) -> ToolResult:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    servers.offer(tool("srv__t", run))
    running = asyncio.create_task(bench.call("srv__t"))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()
    stats = bench.manager.stats["srv__t"]
    assert (stats.calls, stats.failures) == (1, 0)


async def test_a_cancellation_that_nobody_asked_for_is_a_failed_call(bench: Bench, servers: Servers) -> None:
    async def run(params: dict[str, Any], context: ToolContext) -> ToolResult:
        gone: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        gone.cancel()
        return await gone

    servers.offer(tool("srv__t", run))
    assert "interrupted" in await bench.refused("srv__t")


async def test_calls_are_counted(bench: Bench, servers: Servers) -> None:
    servers.offer(answering("srv__t", "1234"), raising("srv__u", ValueError("no")))
    for _ in range(3):
        await bench.fine("srv__t")
    await bench.refused("srv__u")
    stats = bench.manager.stats["srv__t"]
    assert (stats.calls, stats.failures, stats.timeouts, stats.bytes) == (3, 0, 0, 12)
    assert stats.milliseconds > 0
    assert (bench.manager.stats["srv__u"].calls, bench.manager.stats["srv__u"].failures) == (1, 1)


async def test_a_log_line_has_the_duration_and_no_body(
    bench: Bench, servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    servers.offer(answering("srv__t", "the body of the result"))
    with caplog.at_level(logging.INFO, "causeway.tools"):
        await bench.fine("srv__t", word="the-argument")
    assert "tool srv__t ok in" in caplog.text
    assert "the body" not in caplog.text
    assert "the-argument" not in caplog.text


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        ToolSettings.model_validate({"bash": {"enable": True}})
