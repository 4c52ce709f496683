"""The agent's loop: steps, retries, stops and restarts, with a history that stays valid throughout."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agent.agent import Agent
from agent.events import Event, Outcome, TextDelta, TextReset, ToolFinished, ToolStarted
from agent.history import STOPPED_TURN, Assistant, Ended, Entry, ToolBegun, ToolCall, ToolOutput, User
from agent.models.base import (
    Completed,
    Connection,
    ContextTooLong,
    Overloaded,
    RateLimited,
    Request,
    Text,
    Unauthorised,
)
from agent.prompt import SystemPrompt
from agent.skills.counts import SkillCounts
from agent.skills.manager import SkillManager
from agent.tools.base import (
    Annotations,
    Caller,
    FunctionTool,
    Question,
    ToolContext,
    ToolResult,
)
from agent.tools.base import Answer as Said
from agent.tools.builtin.skills import find_skills_tool
from agent.tools.manager import ToolManager
from agent.tools.masking import Masker
from agent.tools.settings import ToolSettings
from agent.turn import AgentSettings, Turn
from tests.fakes.history import MemoryHistory
from tests.fakes.scripted import Answer, Scripted, calls, check, results, says

ANN = Caller("u1", "Ann", admin=True)
READ = Annotations(read_only=True, destructive=False, open_world=False)
WRITE = Annotations(read_only=False)


class Source:
    """Tools of a test, in the shape of an MCP source."""

    def __init__(self, *tools: FunctionTool) -> None:
        self.tools = tools
        self.status = ()
        self.problems = ()

    async def start(self, on_change: Callable[[], None]) -> None:
        on_change()

    async def refresh(self) -> None:
        return None

    async def stop(self) -> None:
        return None


def tool(
    name: str, run: Callable[[dict[str, Any], ToolContext], Any], annotations: Annotations = READ
) -> FunctionTool:
    schema = {"type": "object", "properties": {"x": {"type": "string"}}}
    return FunctionTool(name, f"Test tool {name}.", schema, run, annotations)


class World:
    """An agent with its parts, which can be `restart`ed on the same history."""

    def __init__(self, folder: Path, script: Sequence[Answer] | Callable[[Request], Answer]) -> None:
        self.folder = folder
        self.model = Scripted(script)
        self.history = MemoryHistory()
        self.events: list[Event] = []
        self.slept: list[float] = []
        self.tools: list[FunctionTool] = []
        self.settings = AgentSettings()
        self.more: list[FunctionTool] = []

    async def start(self, *tools: FunctionTool) -> World:
        self.tools = list(tools)
        source = Source(*tools)
        self.manager = ToolManager(ToolSettings(), mcp=source, masker=Masker([]), more=self.more)
        await self.manager.start()
        self.skills = SkillManager(self.folder / "builtin", self.folder / "skills", environ=dict)
        await self.skills.refresh()
        self.restart()
        return self

    def restart(self) -> None:
        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        self.agent = Agent(
            "s1",
            self.folder / "files",
            model=self.model,
            tools=self.manager,
            skills=self.skills,
            prompt=SystemPrompt(self.skills),
            counts=SkillCounts(),
            history=self.history,
            settings=self.settings,
            sleep=sleep,
            jitter=lambda: 0.5,
        )

    async def say(self, text: str, run: str = "r1") -> Outcome:
        return await self.agent.run(Turn(run, ANN, text), self.events.append)

    def shown(self) -> str:
        text = ""
        for event in self.events:
            if isinstance(event, TextDelta):
                text += event.text
            elif isinstance(event, TextReset):
                text = text[: event.keep]
        return text

    async def entries(self) -> list[Entry]:
        return await self.history.load("s1")


async def answer(params: dict[str, Any], context: ToolContext) -> ToolResult:
    return ToolResult(f"got {params.get('x', '')}")


async def test_a_plain_answer_is_streamed_stored_and_returned(tmp_path: Path) -> None:
    world = await World(tmp_path, [[Text("Hel"), Text("lo"), says("Hello")]]).start()
    outcome = await world.say("hi")
    assert outcome == Outcome("Hello")
    assert world.shown() == "Hello"
    assert await world.entries() == [User("r1", "hi"), Assistant("r1", "Hello")]


async def test_tool_calls_run_and_their_results_go_back_in_order(tmp_path: Path) -> None:
    world = await World(
        tmp_path, [calls(("alpha", {"x": "1"}), ("beta", {"x": "2"}), text="Looking."), says("Both done.")]
    ).start(tool("alpha", answer), tool("beta", answer))
    outcome = await world.say("go")
    assert outcome.text == "Looking.\n\nBoth done."
    assert world.shown() == outcome.text
    # They ran side by side and are stored as they came; the protocols' renderers put them in order.
    assert sorted((r.name, r.text, r.is_error) for r in results(world.model.requests[1])) == [
        ("alpha", "got 1", False),
        ("beta", "got 2", False),
    ]
    assert [type(e) for e in world.events if not isinstance(e, TextDelta)].count(ToolStarted) == 2


async def test_reading_calls_run_side_by_side_and_writing_ones_in_order(tmp_path: Path) -> None:
    both = asyncio.Event()
    inside: list[str] = []
    order: list[str] = []

    async def meet(params: dict[str, Any], context: ToolContext) -> ToolResult:
        inside.append(params["x"])
        if len(inside) == 2:
            both.set()
        await asyncio.wait_for(both.wait(), 5)  # only passes when the other one runs at the same time
        order.append(f"read {params['x']}")
        return ToolResult("ok")

    async def write(params: dict[str, Any], context: ToolContext) -> ToolResult:
        order.append(f"begin {params['x']}")
        await asyncio.sleep(0)
        order.append(f"end {params['x']}")
        return ToolResult("ok")

    world = await World(
        tmp_path,
        [
            calls(("meet", {"x": "a"}), ("meet", {"x": "b"}), ("put", {"x": "c"}), ("put", {"x": "d"})),
            says("ok"),
        ],
    ).start(tool("meet", meet), tool("put", write, WRITE))
    await world.say("go")
    assert sorted(order[:2]) == ["read a", "read b"]
    assert order[2:] == ["begin c", "end c", "begin d", "end d"]


async def test_ag_01_a_restart_during_a_tool_gives_the_open_call_a_result(tmp_path: Path) -> None:
    started = asyncio.Event()
    ran = 0

    async def slow(params: dict[str, Any], context: ToolContext) -> ToolResult:
        nonlocal ran
        ran += 1
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    world = await World(tmp_path, [calls(("slow", {})), says("It was interrupted."), says("pong")]).start(
        tool("slow", slow, WRITE)
    )
    task = asyncio.create_task(world.say("go"))
    await started.wait()
    task.cancel()  # the process dies here: nothing tidies up
    await asyncio.wait({task})
    world.restart()
    assert (await world.say("", run="r1")).text == "It was interrupted."
    assert ran == 1
    (result,) = results(world.model.requests[1])
    assert result.is_error
    assert "outcome is unknown" in result.text
    assert (await world.say("ping", run="r2")).text == "pong"


async def test_a_restart_runs_a_reading_call_again_but_no_finished_one(tmp_path: Path) -> None:
    ran: list[str] = []
    started = asyncio.Event()

    async def quick(params: dict[str, Any], context: ToolContext) -> ToolResult:
        ran.append("quick")
        return ToolResult("quick result")

    async def hang(params: dict[str, Any], context: ToolContext) -> ToolResult:
        ran.append("hang")
        if ran.count("hang") == 1:
            started.set()
            await asyncio.Event().wait()
        return ToolResult("hang result")

    world = await World(tmp_path, [calls(("quick", {}), ("hang", {})), says("done")]).start(
        tool("quick", quick, WRITE), tool("hang", hang, READ)
    )
    task = asyncio.create_task(world.say("go"))
    await started.wait()
    task.cancel()
    await asyncio.wait({task})
    world.restart()
    outcome = await world.say("", run="r1")
    assert outcome.text == "done"
    assert ran == ["quick", "hang", "hang"]
    assert [r.text for r in results(world.model.requests[-1])] == ["quick result", "hang result"]


async def test_a_run_that_is_already_answered_asks_no_model(tmp_path: Path) -> None:
    world = await World(tmp_path, [says("Hello")]).start()
    await world.say("hi")
    world.restart()
    assert (await world.say("", run="r1")).text == "Hello"
    assert len(world.model.requests) == 1


@pytest.mark.parametrize("stop", ["length", "tools"])
async def test_ag_04_a_cut_off_call_is_not_run_and_ends_after_a_few_tries(tmp_path: Path, stop: Any) -> None:
    ran = 0

    async def write(params: dict[str, Any], context: ToolContext) -> ToolResult:
        nonlocal ran
        ran += 1
        return ToolResult("written")

    def cut(request: Request) -> Completed:
        n = len(results(request))
        return Completed("", (ToolCall(f"c{n}", "put", {}, "its arguments were cut off"),), stop)

    world = await World(tmp_path, cut).start(tool("put", write, WRITE))
    outcome = await world.say("write a long file")
    assert ran == 0
    assert outcome.failure == "cut_off"
    assert 2 <= len(world.model.requests) <= 4
    assert all(r.is_error and "cut off" in r.text for r in results(world.model.requests[-1]))
    check(await world.entries())
    world.model._script = [says("fine")]
    world.model._at = 0
    assert (await world.say("hello", run="r2")).text == "fine"


async def test_ag_10_overload_is_waited_out(tmp_path: Path) -> None:
    world = await World(tmp_path, [Overloaded("529"), Overloaded("529"), says("here")]).start()
    assert await world.say("hi") == Outcome("here")
    assert world.slept == [1.0, 2.0]


async def test_ag_10_endless_rate_limits_end_in_bounded_time_with_one_failure(tmp_path: Path) -> None:
    world = await World(tmp_path, [RateLimited("", 7.0)]).start()
    outcome = await world.say("hi")
    assert outcome.failure == "rate_limited"
    assert outcome.text == ""
    assert world.slept == [7.0, 7.0, 7.0]
    world.model._script = [says("ok")]
    assert (await world.say("again", run="r2")).text == "ok"
    assert [e for e in await world.entries() if isinstance(e, Ended)] == [Ended("r1", "rate_limited")]


async def test_a_wait_longer_than_the_budget_is_not_begun(tmp_path: Path) -> None:
    world = await World(tmp_path, [RateLimited("", 3600.0)]).start()
    assert (await world.say("hi")).failure == "rate_limited"
    assert world.slept == []


async def test_ag_10_an_empty_answer_is_asked_again_and_never_stored(tmp_path: Path) -> None:
    world = await World(tmp_path, [Completed("", (), "end"), says("now")]).start()
    assert (await world.say("hi")).text == "now"
    world.model._script, world.model._at = [Completed(" \n", (), "end")], 0
    assert (await world.say("more", run="r2")).failure == "empty"
    assert all(e.text.strip() for e in await world.entries() if isinstance(e, Assistant))


async def test_a_broken_stream_takes_back_what_it_showed(tmp_path: Path) -> None:
    world = await World(
        tmp_path, [[Text("Half an ans"), Connection("reset")], [Text("Whole"), says("Whole")]]
    ).start()
    assert (await world.say("hi")).text == "Whole"
    assert world.shown() == "Whole"


async def test_a_wrong_key_is_not_tried_again(tmp_path: Path) -> None:
    world = await World(tmp_path, [Unauthorised("401")]).start()
    outcome = await world.say("hi")
    assert outcome.failure == "unauthorised"
    assert len(world.model.requests) == 1


async def test_a_request_that_is_too_long_shrinks_strictly_until_it_fits(tmp_path: Path) -> None:
    sizes: list[int] = []

    def script(request: Request) -> Answer:
        size = sum(len(repr(e)) for e in request.entries)
        sizes.append(size)
        if "long" in repr(request.entries[-1]) and size > 30_000:
            return ContextTooLong("too long")
        return calls(("big", {}), start=len(sizes)) if len(sizes) < 4 else says("done")

    async def big(params: dict[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult("x" * 19_000)

    world = await World(tmp_path, script).start(tool("big", big))
    await world.say("fill")
    sizes.clear()
    sizes.extend([0, 0, 0, 0])
    assert (await world.say("long", run="r2")).text == "done"
    asked = sizes[4:]
    assert len(asked) >= 2
    assert all(after < before for before, after in pairwise(asked))


async def test_the_step_limit_ends_with_an_answer_without_tools(tmp_path: Path) -> None:
    def script(request: Request) -> Answer:
        if "Do not call a tool now" in str(request.entries[-1]):
            return says("That is as far as I got.")
        return calls(("alpha", {"x": str(len(request.entries))}), start=len(request.entries))

    world = World(tmp_path, script)
    world.settings = AgentSettings(max_steps=3)
    await world.start(tool("alpha", answer))
    outcome = await world.say("go")
    assert outcome == Outcome("That is as far as I got.")
    assert len(world.model.requests) == 4


async def test_ag_05_a_history_full_of_tool_output_is_cut_until_it_fits_and_the_next_message_works(
    tmp_path: Path,
) -> None:
    """30 results of 20 KB, then one of 400 KB; the provider takes 60 KB."""
    sizes: list[int] = []
    asked: list[str] = []

    def script(request: Request) -> Answer:
        size = sum(len(repr(entry)) for entry in request.entries)
        own = [e for e in request.entries if isinstance(e, ToolOutput) and e.run == f"r{len(asked)}"]
        if asked[-1] == "fill" and len(own) < 31:
            return calls(("big", {"x": str(len(own))}), start=len(own) * 10)
        sizes.append(size)
        return ContextTooLong("too long") if size > 60_000 else says("here you are")

    async def big(params: dict[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult(("x" if params["x"] != "30" else "xxxxxxxxxxxxxxxxxxxx") * 20_000)

    world = World(tmp_path, script)
    world.settings = AgentSettings(max_steps=40, history_entries=400)
    await world.start(tool("big", big))
    for number, text in enumerate(("fill", "and now?"), 1):
        asked.append(text)
        sizes.clear()
        assert (await world.say(text, run=f"r{number}")).text == "here you are"
        assert all(after < before for before, after in pairwise(sizes))
        assert sizes[-1] <= 60_000


@pytest.mark.parametrize("names", [("alpha",), ("alpha", "beta")], ids=["the same call", "A-B-A-B"])
async def test_ag_08_calls_that_repeat_with_equal_results_are_ended_soon(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    made = itertools.count()

    def script(request: Request) -> Answer:
        number = next(made)
        return calls((names[number % len(names)], {}), start=number)

    world = await World(tmp_path, script).start(tool("alpha", answer), tool("beta", answer))
    assert (await world.say("go")).failure == "loop"
    assert len(world.model.requests) <= world.settings.loop_limit * len(names)
    check(await world.history.load("s1"))


async def test_ag_08_a_poll_whose_result_changes_is_not_ended_early(tmp_path: Path) -> None:
    progress = itertools.count()

    def script(request: Request) -> Answer:
        done = len(results(request))
        return says("ready") if done == 12 else calls(("poll", {}), start=done)

    async def poll(params: dict[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult(f"{next(progress)} of 12")

    world = await World(tmp_path, script).start(tool("poll", poll))
    assert (await world.say("wait for it")).text == "ready"


async def test_a_stop_ends_tool_and_stream_and_leaves_a_valid_history(tmp_path: Path) -> None:
    started = asyncio.Event()
    ended = asyncio.Event()

    async def slow(params: dict[str, Any], context: ToolContext) -> ToolResult:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    world = await World(tmp_path, [calls(("slow", {}), ("slow", {})), says("next")]).start(
        tool("slow", slow, WRITE)
    )
    task = asyncio.create_task(world.say("go"))
    await started.wait()
    task.cancel()
    await asyncio.wait({task})
    assert ended.is_set()
    outcome = await world.agent.settle("r1", "stopped")
    assert outcome.failure == "stopped"
    entries = await world.entries()
    check(entries)
    assert len([e for e in entries if isinstance(e, ToolOutput) and "interrupted" in e.text]) == 2
    assert (await world.say("hello", run="r2")).text == "next"


async def test_a_stop_while_the_model_speaks_keeps_what_was_said(tmp_path: Path) -> None:
    shown = asyncio.Event()

    async def hang() -> None:
        shown.set()
        await asyncio.Event().wait()

    world = await World(tmp_path, [[Text("Half"), hang, says("never")], says("next")]).start()
    task = asyncio.create_task(world.say("go"))
    await shown.wait()
    task.cancel()
    await asyncio.wait({task})
    assert world.model.closed == 1
    outcome = await world.agent.settle("r1", "stopped")
    assert outcome.text == "Half"
    assert (await world.say("hello", run="r2")).text == "next"
    kept = [entry.text for entry in world.model.requests[-1].entries if isinstance(entry, Assistant)]
    assert kept == [f"Half\n\n{STOPPED_TURN}"]


async def test_a_skill_called_as_a_tool_is_taught_and_a_wrong_name_is_explained(tmp_path: Path) -> None:
    folder = tmp_path / "skills" / "tea"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(
        "---\nname: tea\ndescription: How tea is made. Use when tea is wanted.\n---\nBoil the water.\n"
    )
    world = await World(tmp_path, [calls(("tea", {}), ("alpa", {})), says("ok")]).start(tool("alpha", answer))
    await world.say("tea please")
    request = world.model.requests[0]
    assert "How tea is made" in request.system
    assert "Boil the water" not in request.system
    taught, wrong = results(world.model.requests[1])
    assert "Boil the water." in taught.text
    assert taught.is_error
    assert "alpha" in wrong.text
    assert wrong.is_error


async def test_the_begun_mark_stands_before_a_writing_call_and_not_before_a_reading_one(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, [calls(("look", {}), ("put", {})), says("ok")])
    seen: dict[str, int] = {}

    async def run(params: dict[str, Any], context: ToolContext) -> ToolResult:
        seen[params["x"]] = sum(isinstance(e, ToolBegun) for e in await world.entries())
        return ToolResult("ok")

    await world.start(tool("look", run), tool("put", run, WRITE))
    world.model._script = [calls(("look", {"x": "look"}), ("put", {"x": "put"})), says("ok")]
    await world.say("go")
    assert seen == {"look": 0, "put": 1}


async def test_a_failing_tool_is_told_to_the_model_and_shown_as_failed(tmp_path: Path) -> None:
    async def broken(params: dict[str, Any], context: ToolContext) -> ToolResult:
        raise ZeroDivisionError("division by zero")

    world = await World(tmp_path, [calls(("broken", {})), says("sorry")]).start(tool("broken", broken))
    await world.say("go")
    (result,) = results(world.model.requests[1])
    assert result.is_error
    assert "Traceback" not in result.text
    finished = [e for e in world.events if isinstance(e, ToolFinished)]
    assert [e.ok for e in finished] == [False]


def skill(folder: Path, name: str, head: str = "", body: str = "Boil the water.") -> None:
    place = folder / "skills" / name
    place.mkdir(parents=True)
    about = f"name: {name}\ndescription: How {name} is made. Use when {name} is wanted.\n{head}"
    (place / "SKILL.md").write_text(f"---\n{about}---\n{body}\n")


@pytest.mark.parametrize("agreed", [True, False, None])
async def test_a_skill_in_use_narrows_what_runs_without_asking(tmp_path: Path, agreed: bool | None) -> None:
    ran: list[str] = []

    async def put(params: dict[str, Any], context: ToolContext) -> ToolResult:
        ran.append(context.call)
        return ToolResult("written")

    skill(tmp_path, "tea", "allowed-tools: read\n")
    world = await World(
        tmp_path, [calls(("read", {"path": "/skills/tea/SKILL.md"})), calls(("put", {}), start=5), says("ok")]
    ).start(tool("put", put, WRITE))
    asked: list[Question] = []

    async def ask(question: Question) -> Said:
        asked.append(question)
        return Said("accept" if agreed else "decline")

    turn = Turn("r1", ANN, "tea please", ask=None if agreed is None else ask)
    await world.agent.run(turn, world.events.append)
    read, written = results(world.model.requests[-1])
    assert "Boil the water." in read.text
    assert bool(ran) is bool(agreed)
    assert written.is_error is not bool(agreed)
    assert len(asked) == (agreed is not None)
    if not agreed:
        assert "tea allows read without asking" in written.text
        assert not any(isinstance(e, ToolBegun) for e in await world.entries())


async def test_find_skills_is_offered_only_when_skills_found_no_room(tmp_path: Path) -> None:
    skill(tmp_path, "tea")
    world = World(tmp_path, [says("ok")])
    world.more = [find_skills_tool(lambda: world.skills.current)]
    await world.start()
    await world.say("hi")
    assert "find_skills" not in [one.name for one in world.model.requests[-1].tools]
    for number in range(400):
        skill(tmp_path, f"skill-{number}", "x: " + "long " * 20 + "\n")
    await world.skills.refresh()
    await world.say("more", run="r2")
    request = world.model.requests[-1]
    assert "find_skills" in [one.name for one in request.tools]
    assert "find_skills" in request.system


async def test_a_stop_in_the_middle_of_a_write_leaves_memory_and_disk_agreed(tmp_path: Path) -> None:
    writing, go_on = asyncio.Event(), asyncio.Event()
    world = await World(tmp_path, [calls(("alpha", {"x": "1"})), says("never")]).start(tool("alpha", answer))
    real = world.history.append

    async def slow(session: str, entries: Sequence[Entry]) -> None:
        if any(isinstance(e, ToolOutput) for e in entries) and not writing.is_set():
            writing.set()
            await go_on.wait()
        await real(session, entries)

    world.history.append = slow  # type: ignore[method-assign]
    task = asyncio.create_task(world.say("go"))
    await writing.wait()
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait({task})
    assert task.cancelled()
    await world.agent.settle("r1", "stopped")
    entries = await world.entries()
    check(entries)
    assert [e.text for e in entries if isinstance(e, ToolOutput)] == ["got 1"]
    assert await world.agent.entries() == entries


async def test_a_stop_while_the_finished_answer_is_written_keeps_it_once(tmp_path: Path) -> None:
    writing, go_on = asyncio.Event(), asyncio.Event()
    world = await World(tmp_path, [says("the whole answer")]).start()
    real = world.history.append

    async def slow(session: str, entries: Sequence[Entry]) -> None:
        if any(isinstance(e, Assistant) for e in entries) and not writing.is_set():
            writing.set()
            await go_on.wait()
        await real(session, entries)

    world.history.append = slow  # type: ignore[method-assign]
    task = asyncio.create_task(world.say("go"))
    await writing.wait()
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait({task})
    outcome = await world.agent.settle("r1", "stopped")
    assert outcome.text == "the whole answer"
    assert [e.text for e in await world.entries() if isinstance(e, Assistant)] == ["the whole answer"]
