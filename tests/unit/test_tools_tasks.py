"""Calls that outlast their deadline: background tasks, switches, deadlines and usage by tool."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agent.events import FileRef
from agent.tools import tasks as module
from agent.tools.base import Answer, Caller, FunctionTool, Question, Sample, Tool, ToolContext, ToolResult
from agent.tools.manager import Switches, ToolManager, ToolSettings, UnknownTool
from agent.tools.results import Masker
from agent.tools.settings import BackgroundSettings
from agent.tools.tasks import Tasks

TOKEN = "123:CANARY"
Change = Callable[[], None]


class Servers:
    """MCP tools that come and go."""

    def __init__(self) -> None:
        self.tools: tuple[Tool, ...] = ()
        self.status: tuple[Any, ...] = ()
        self._on_change: Change = lambda: None

    async def start(self, on_change: Change) -> None:
        self._on_change = on_change

    async def refresh(self) -> None: ...

    async def stop(self) -> None: ...

    def offer(self, *tools: Tool) -> None:
        self.tools = tools
        self._on_change()


class Work:
    """A tool that works until it is told to end, and shows whether it is at work."""

    def __init__(self, name: str = "srv__long", timeout: float = 0.05, **more: Any) -> None:
        self.begun = asyncio.Event()
        self.finish = asyncio.Event()
        self.running = 0
        self.result = ToolResult(f"found it {TOKEN}", files=(FileRef("a.png", "a.png", "image/png"),))
        self.context: ToolContext | None = None
        self.tool = FunctionTool(
            name, "", {"type": "object"}, self._run, timeout=timeout, source="srv", **more
        )

    async def _run(self, params: dict[str, Any], context: ToolContext) -> ToolResult:
        self.context = context
        self.running += 1
        self.begun.set()
        try:
            await self.finish.wait()
            return self.result
        finally:
            self.running -= 1


class Chat:
    """The chat of a call: answers questions when it is let to."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.shown: list[str] = []

    async def ask(self, question: Question) -> Answer:
        await self.answer.wait()
        return Answer("accept", {"a": 1})

    def progress(self, done: float, total: float | None, message: str) -> None:
        self.shown.append(message)

    async def sample(self, sample: Sample) -> str:
        return "text"


class Bench:
    def __init__(self, manager: ToolManager, servers: Servers, context: ToolContext) -> None:
        self.manager = manager
        self.servers = servers
        self.context = context

    async def call(self, name: str, /, _session: str = "s", **arguments: Any) -> ToolResult:
        context = replace(self.context, session=_session)
        async with asyncio.timeout(5):
            return await self.manager.call(self.manager.catalog, name, "c", arguments, context)

    async def begin(self, work: Work, session: str = "s") -> str:
        """Call a tool that outlasts its deadline; the task's id."""
        result = await self.call(work.tool.name, session)
        assert not result.is_error
        assert "goes on as the background task" in result.text
        return re.search(r"task-\w+", result.text)[0]  # type: ignore[index]

    async def status(self, task: str, session: str = "s", **more: Any) -> ToolResult:
        return await self.call("task_status", session, task=task, **{"wait": 1, **more})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks without news return after 20 ms and count at once, so that no test waits for seconds."""
    init, news = Tasks.__init__, module.Work.news
    monkeypatch.setattr(
        Tasks, "__init__", lambda self, settings, **more: init(self, settings, unchanged_seconds=0, **more)
    )
    monkeypatch.setattr(module.Work, "news", lambda self, seconds: news(self, seconds / 50))


@pytest.fixture
async def bench(tmp_path: Path, quick: None) -> AsyncIterator[Bench]:
    servers = Servers()
    manager = ToolManager(ToolSettings(), mcp=servers, masker=Masker([TOKEN]))
    await manager.start()
    yield Bench(manager, servers, ToolContext("s", "r", tmp_path, Caller("1"), lambda name: None))
    await manager.stop()


# Background tasks ----------------------------------------------------------------------------------------


async def test_a_call_that_outlasts_its_deadline_goes_on_and_its_result_is_fetched(bench: Bench) -> None:
    work = Work()
    bench.servers.offer(work.tool)
    task = await bench.begin(work)
    assert work.running == 1
    assert "still running" in (await bench.status(task)).text
    work.finish.set()
    result = await bench.status(task)
    assert result == ToolResult("found it ***", files=work.result.files)
    assert await bench.status(task) == result, "a second look finds the result again"
    stats = bench.manager.stats["srv__long"]
    assert (stats.calls, stats.failures, stats.timeouts) == (1, 0, 0)


async def test_a_call_in_time_is_answered_directly(bench: Bench) -> None:
    work = Work(timeout=5)
    work.finish.set()
    bench.servers.offer(work.tool)
    assert (await bench.call("srv__long")).text == "found it ***"


async def test_a_look_returns_as_soon_as_the_task_has_ended(bench: Bench) -> None:
    work = Work()
    bench.servers.offer(work.tool)
    task = await bench.begin(work)
    looking = asyncio.create_task(bench.status(task, wait=100))
    await asyncio.sleep(0)
    work.finish.set()
    assert (await looking).text == "found it ***"


async def test_a_task_without_news_for_three_looks_in_a_row_is_given_up(bench: Bench) -> None:
    work = Work()
    bench.servers.offer(work.tool)
    task = await bench.begin(work)
    assert "1 of 3" in (await bench.status(task)).text
    work.context.desk.progress(1, 2, "half of it")  # type: ignore[union-attr]
    assert "News: 50% half of it" in (await bench.status(task)).text
    assert "1 of 3" in (await bench.status(task)).text
    assert "2 of 3" in (await bench.status(task)).text
    given_up = await bench.status(task)
    assert given_up.is_error
    assert "given up" in given_up.text
    assert work.running == 0
    assert await bench.status(task) == given_up
    assert bench.manager.stats["srv__long"].timeouts == 1


async def test_looks_side_by_side_count_as_one(bench: Bench) -> None:
    work = Work()
    bench.servers.offer(work.tool)
    task = await bench.begin(work)
    async with asyncio.TaskGroup() as group:
        looks = [group.create_task(bench.status(task)) for _ in range(5)]
    assert all("1 of 3" in look.result().text for look in looks)


async def test_a_task_is_nobody_elses_and_an_unknown_one_is_lost(bench: Bench) -> None:
    work = Work()
    bench.servers.offer(work.tool)
    task = await bench.begin(work)
    for lost in (await bench.status(task, session="other"), await bench.status("task-00000000")):
        assert lost.is_error
        assert "lost in a restart" in lost.text
        assert "unknown" in lost.text
    assert work.running == 1


async def test_a_task_of_an_admins_tool_tells_nobody_else(bench: Bench) -> None:
    work = Work(admin_only=True)
    bench.servers.offer(work.tool)
    everybody = bench.context
    bench.context = replace(everybody, caller=Caller("2", admin=True))
    task = await bench.begin(work)
    work.finish.set()
    bench.context = everybody
    assert "reserved for admins" in (await bench.status(task)).text


async def test_the_model_can_end_a_task(bench: Bench) -> None:
    work = Work()
    bench.servers.offer(work.tool)
    task = await bench.begin(work)
    stopped = await bench.status(task, stop=True)
    assert stopped.is_error
    assert "was stopped" in stopped.text
    assert work.running == 0


async def test_a_session_has_at_most_five_tasks_and_finished_ones_make_room(bench: Bench) -> None:
    works = [Work(f"srv__t{n}") for n in range(7)]
    bench.servers.offer(*(work.tool for work in works))
    first, *_ = [await bench.begin(work) for work in works[:5]]
    refused = await bench.call("srv__t5")
    assert refused.is_error
    assert "5 background tasks" in refused.text
    assert works[5].running == 0
    await bench.begin(works[5], "another session")
    works[0].finish.set()
    assert (await bench.status(first)).text == "found it ***"
    await bench.begin(works[6])
    assert "lost" in (await bench.status(first)).text


async def test_all_sessions_together_have_a_bound(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    works = [Work(f"srv__t{n}") for n in range(3)]
    bench.servers.offer(*(work.tool for work in works))
    for work in works[:2]:
        await bench.begin(work, work.tool.name)
    assert (await bench.call("srv__t2", "s")).is_error


async def test_new_and_a_stop_end_the_tasks(bench: Bench) -> None:
    works = [Work(f"srv__t{n}") for n in range(3)]
    bench.servers.offer(*(work.tool for work in works))
    ours, _, _ = [await bench.begin(work, session) for work, session in zip(works, "aab", strict=True)]
    await bench.manager.end_session("a")
    assert [work.running for work in works] == [0, 0, 1]
    assert "lost" in (await bench.status(ours, "a")).text
    await bench.manager.stop()
    assert [work.running for work in works] == [0, 0, 0]


async def test_cancelling_ends_a_call_in_the_foreground_and_no_task(bench: Bench) -> None:
    work, task = Work(timeout=30), Work("srv__task")
    bench.servers.offer(work.tool, task.tool)
    await bench.begin(task)
    call = asyncio.create_task(bench.call("srv__long"))
    await work.begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (work.running, task.running) == (0, 1)


async def test_progress_keeps_a_call_in_the_foreground(bench: Bench) -> None:
    work, chat = Work(timeout=0.2), Chat()
    bench.servers.offer(work.tool)
    bench.context = replace(bench.context, desk=chat)
    call = asyncio.create_task(bench.call("srv__long"))
    await work.begun.wait()
    assert work.context is not None
    assert work.context.desk is not None
    for step in range(8):
        await asyncio.wait({call}, timeout=0.05)
        work.context.desk.progress(step, None, f"step {step}")
    work.finish.set()
    assert (await call).text == "found it ***"
    assert chat.shown[-1] == "step 7"


async def test_while_a_person_is_asked_a_call_stays_in_the_foreground(bench: Bench) -> None:
    chat = Chat()

    async def run(params: dict[str, Any], context: ToolContext) -> ToolResult:
        assert context.desk is not None
        return ToolResult((await context.desk.ask(Question("srv", "Sure?"))).action)

    bench.servers.offer(FunctionTool("srv__asks", "", {"type": "object"}, run, timeout=0.05, source="srv"))
    bench.context = replace(bench.context, desk=chat)
    call = asyncio.create_task(bench.call("srv__asks"))
    assert not (await asyncio.wait({call}, timeout=0.3))[0]
    chat.answer.set()
    assert (await call).text == "accept"


async def test_a_task_asks_nobody_and_shows_no_progress_any_more(bench: Bench) -> None:
    work, chat = Work(), Chat()
    bench.servers.offer(work.tool)
    bench.context = replace(bench.context, desk=chat)
    await bench.begin(work)
    desk = work.context.desk  # type: ignore[union-attr]
    assert desk is not None
    assert await desk.ask(Question("srv", "Sure?")) == Answer("cancel")
    desk.progress(1, 2, "later")
    assert chat.shown == []


async def test_a_task_ends_at_its_hard_limit(tmp_path: Path, quick: None) -> None:
    settings = ToolSettings(background=BackgroundSettings(limit=0.2))
    servers, work = Servers(), Work()
    manager = ToolManager(settings, mcp=servers, masker=Masker())
    await manager.start()
    servers.offer(work.tool)
    bench = Bench(manager, servers, ToolContext("s", "r", tmp_path, Caller("1"), lambda name: None))
    task = await bench.begin(work)
    result = await bench.status(task, wait=100)
    assert result.is_error
    assert "did not end within 0.2 s" in result.text
    assert work.running == 0
    await manager.stop()


async def test_without_background_a_call_ends_at_its_deadline(tmp_path: Path) -> None:
    settings = ToolSettings(background=BackgroundSettings(enabled=False))
    servers, work = Servers(), Work(timeout=0.01)
    manager = ToolManager(settings, mcp=servers, masker=Masker())
    await manager.start()
    servers.offer(work.tool)
    assert "task_status" not in manager.catalog.names
    assert manager.catalog.get("srv__long") is work.tool
    await manager.stop()


async def test_a_long_command_becomes_a_task_and_ends_with_the_session(tmp_path: Path, quick: None) -> None:
    settings = ToolSettings.model_validate({"bash": {"enabled": True, "timeout": 0.3}})
    manager = ToolManager(settings, mcp=None, masker=Masker())
    await manager.start()
    admin = Caller("1", admin=True)
    bench = Bench(manager, Servers(), ToolContext("s", "r", tmp_path, admin, lambda name: None))
    started = await bench.call("bash", command="echo $$ > pid; sleep 60")
    task = re.search(r"task-\w+", started.text)[0]  # type: ignore[index]
    pid = int((tmp_path / "pid").read_text())
    assert Path(f"/proc/{pid}").exists()
    assert "still running" in (await bench.status(task)).text
    await manager.end_session("s")
    assert not Path(f"/proc/{pid}").exists()
    fast = await bench.call("bash", command="sleep 0.5; echo done", timeout=20)
    task = re.search(r"task-\w+", fast.text)[0]  # type: ignore[index]
    assert (await bench.status(task, wait=100)).text.startswith("done\n[exit code 0")
    await manager.stop()


async def test_a_long_result_of_a_task_is_cut_once(bench: Bench) -> None:
    work = Work()
    work.result = ToolResult("x" * 50_000)
    bench.servers.offer(work.tool)
    task = await bench.begin(work)
    work.finish.set()
    text = (await bench.status(task, wait=100)).text
    assert text.count("left out here") == 1
    assert len(text) <= 20_000


# Switches ------------------------------------------------------------------------------------------------


class Kept:
    """Switches that outlive a manager."""

    def __init__(self) -> None:
        self.off: frozenset[str] = frozenset()
        self.broken = False

    async def load(self) -> Iterable[str]:
        return self.off

    async def save(self, off: frozenset[str]) -> None:
        if self.broken:
            raise OSError("the disk is full")
        self.off = off


async def start(servers: Servers, switches: Switches | None) -> ToolManager:
    manager = ToolManager(ToolSettings(), mcp=servers, masker=Masker(), switches=switches)
    await manager.start()
    return manager


async def test_mc_25_a_tool_that_is_off_stays_off_over_restart_reconnect_and_disappearance(
    tmp_path: Path,
) -> None:
    kept, t, u = Kept(), Work("s__t").tool, Work("s__u").tool
    for round_ in range(2):
        servers = Servers()
        manager = await start(servers, kept)
        servers.offer(t, u)
        if round_ == 0:
            held = manager.catalog
            await manager.switch("s__t", False)
        assert "s__t" not in manager.catalog.names
        for offer in ((), (u,), (Work("s__t").tool, u), (t, u)):  # gone, back without it, back anew
            servers.offer(*offer)
            assert "s__t" not in manager.catalog.names
        context = ToolContext("x", "r", tmp_path, Caller("1"), lambda name: None)
        for catalog in (manager.catalog, held):
            result = await manager.call(catalog, "s__t", "c", {}, context)
            assert result.is_error
            assert "switched it off" in result.text
        assert [row.on for row in manager.usage() if row.name in ("s__t", "s__u")] == [False, True]
        await manager.stop()
    manager = await start(servers, kept)
    await manager.switch("s__t", True)
    assert "s__t" in manager.catalog.names
    assert kept.off == frozenset()
    await manager.stop()


async def test_a_built_in_tool_can_be_switched_off_and_an_unknown_name_cannot() -> None:
    manager = await start(Servers(), None)
    await manager.switch("web_fetch", False)
    assert "web_fetch" not in manager.catalog.names
    with pytest.raises(UnknownTool) as unknown:
        await manager.switch("web_fetsch", False)
    assert unknown.value.close_matches == ("web_fetch",)
    assert manager.switched_off == {"web_fetch"}
    await manager.stop()


async def test_a_switch_that_cannot_be_kept_changes_nothing() -> None:
    kept = Kept()
    manager = await start(Servers(), kept)
    kept.broken = True
    with pytest.raises(OSError, match="disk"):
        await manager.switch("read", False)
    assert "read" in manager.catalog.names
    await manager.stop()


# Catalog, deadlines, usage -------------------------------------------------------------------------------


async def test_news_of_a_server_that_change_no_tool_leave_the_catalog_the_same_object() -> None:
    servers, work = Servers(), Work()
    manager = await start(servers, None)
    servers.offer(work.tool)
    before = manager.catalog
    servers.offer(work.tool)
    assert manager.catalog is before
    await manager.stop()


async def test_deadlines_of_single_built_in_tools_can_be_set() -> None:
    settings = ToolSettings.model_validate({"timeouts": {"search": 30}, "file_timeout": 7})
    manager = ToolManager(settings, mcp=None, masker=Masker())
    times = {tool.name: tool.timeout for tool in manager.catalog}
    assert times["search"] == 30
    assert times["read"] == 7
    assert {tool.timeout for tool in ToolManager(ToolSettings(), mcp=None, masker=Masker()).catalog
            if tool.name in ("read", "write", "edit", "ls", "search")} == {10}  # fmt: skip
    await manager.stop()


@pytest.mark.parametrize(
    ("timeouts", "words"),
    [
        ({"bash": 5}, "bash: timeout"),
        ({"raed": 5}, "known are read"),
        ({"read": 0}, "above 0"),
    ],
)
def test_a_deadline_that_cannot_be_is_refused(timeouts: dict[str, float], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ToolSettings.model_validate({"timeouts": timeouts})


async def test_usage_shows_each_tool_with_what_it_did_and_costs(bench: Bench) -> None:
    work = Work(timeout=5)
    work.finish.set()
    bench.servers.offer(work.tool, Work("srv__idle").tool)
    await bench.call("srv__long")
    rows = {row.name: row for row in bench.manager.usage()}
    assert (rows["srv__long"].calls, rows["srv__long"].bytes) == (1, len("found it ***"))
    assert rows["srv__idle"].calls == 0
    assert rows["read"].source == "builtin"
    assert rows["read"].tokens > rows["srv__idle"].tokens > 10
