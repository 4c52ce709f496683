"""Calls under way: deadlines that stretch, questions that end with their call, data from odd servers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.tools.base import Answer, Caller, Question, Sample, ToolContext, ToolFailure
from agent.tools.mcp.config import parse_config
from agent.tools.mcp.primitives import LONGEST_TEXT, mend_offers, prompt_info, prompt_text, render_contents
from agent.tools.mcp.requests import MOST_REQUESTS, Call, Calls, ceiling


class Desk:
    """Answers when `free` is set; counts what it was asked and how much of it was withdrawn."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.asked = 0
        self.withdrawn = 0

    async def ask(self, question: Question) -> Answer:
        self.asked += 1
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.withdrawn += 1
            raise
        return Answer("accept")

    def progress(self, done: float, total: float | None, message: str) -> None:
        pass

    async def sample(self, sample: Sample) -> str:
        return "text"


def under(desk: Desk, timeout: float, session: str = "s") -> Call:
    return Call.of(ToolContext(session, "r", Path(), Caller("u"), lambda name: None, desk=desk), timeout)


async def test_two_questions_at_once_hold_the_deadline_until_the_last_is_answered() -> None:
    calls, first, second = Calls("a"), Desk(), Desk()
    call = under(first, 0.2)
    answered: list[str] = []

    async def work() -> None:
        async with calls.under_way(call):
            one = asyncio.create_task(calls.ask(Question("a", "?")))
            await asyncio.sleep(0)
            call.desk = second
            two = asyncio.create_task(calls.ask(Question("a", "?")))
            first.free.set()
            answered.append((await one).action)
            # The second is answered only after the call's own deadline.
            asyncio.get_running_loop().call_later(0.4, second.free.set)
            answered.append((await two).action)
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await work()
    assert answered == ["accept", "accept"]


async def test_a_question_is_withdrawn_when_its_call_ends_before_the_answer() -> None:
    calls, desk = Calls("a"), Desk()
    async with calls.under_way(under(desk, 5)):
        asking = asyncio.create_task(calls.ask(Question("a", "?")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert desk.asked == 1
    assert (await asking).action == "cancel"
    assert desk.withdrawn == 1


async def test_a_request_that_comes_after_its_call_reaches_nobody_even_with_another_call_under_way() -> None:
    calls, mine, other = Calls("a"), Desk(), Desk()
    late = asyncio.Event()

    async def ask_late() -> Answer:
        await late.wait()
        return await calls.ask(Question("a", "?"))

    async with calls.under_way(under(mine, 5)):
        asking = asyncio.create_task(ask_late())  # in the context of this call
    async with calls.under_way(under(other, 5, "other")):
        late.set()
        assert (await asking).action == "cancel"
    assert (mine.asked, other.asked) == (0, 0)


async def test_parallel_calls_of_one_turn_share_their_chat_and_calls_without_a_chat_have_none() -> None:
    calls, desk = Calls("a"), Desk()
    desk.free.set()

    async def elsewhere() -> Answer:
        return await calls.ask(Question("a", "?"))

    outside = asyncio.Event()

    async def from_no_call() -> Answer:
        await outside.wait()
        return await elsewhere()

    untied = [asyncio.create_task(from_no_call()) for _ in range(2)]
    async with calls.under_way(under(desk, 5)), calls.under_way(under(desk, 5)):
        outside.set()
        assert [answer.action for answer in await asyncio.gather(*untied)] == ["accept", "accept"]
    outside.clear()
    last = asyncio.create_task(from_no_call())
    async with calls.under_way(Call(5)):
        outside.set()
        assert (await last).action == "cancel"
        assert calls.folder() is None


async def test_one_call_is_not_asked_without_end() -> None:
    calls, desk = Calls("a"), Desk()
    desk.free.set()
    async with calls.under_way(under(desk, 5)):
        answers = [(await calls.ask(Question("a", "?"))).action for _ in range(MOST_REQUESTS + 5)]
        with pytest.raises(ToolFailure):
            await calls.sample(Sample("a", ()))
    assert answers.count("accept") == desk.asked == MOST_REQUESTS


def test_the_ceiling_is_ten_times_the_deadline_at_most_ten_minutes_and_never_below_it() -> None:
    assert [ceiling(seconds) for seconds in (1, 30, 60, 120, 3600)] == [10, 300, 600, 600, 3600]


def test_odd_entries_of_a_list_do_not_cost_the_good_ones() -> None:
    raw = [
        {"uri": "a://1", "name": "one", "title": 7, "size": "large", "icons": 1},
        {"uri": "a://2"},
        "text",
        {"uri": None, "name": "x"},
    ]
    assert mend_offers(raw, ("uri", "name")) == [{"uri": "a://1", "name": "one"}]
    assert mend_offers(None, ("name",)) == []
    prompts = mend_offers([{"name": "p", "arguments": [{"name": "x", "required": "yes"}, 1, {}]}], ("name",))
    assert prompt_info("s", prompts[0]).arguments == (("x", "", False),)


def test_a_resources_text_is_cut_and_its_binary_parts_are_saved(tmp_path: Path) -> None:
    parts = ({"uri": "a://1", "text": "x" * (LONGEST_TEXT + 9)}, {"uri": "a://2", "text": "tail"})
    made = render_contents(parts, tmp_path, "a")
    assert made.text.startswith("xxx")
    assert "[cut: 14 characters more]" in made.text
    binary = {"uri": "a://3", "mimeType": "application/pdf", "blob": "JVBERi0x"}
    made = render_contents((binary,), tmp_path, "a")
    (saved,) = (tmp_path / "mcp").iterdir()
    assert saved.read_bytes() == b"%PDF-1"
    assert saved.name in made.text
    assert "empty" in render_contents((), tmp_path, "a").text


def test_what_is_no_text_in_a_prompt_leaves_a_line_that_says_so() -> None:
    assert prompt_text({"type": "text", "text": "hi"}) == "hi"
    assert prompt_text({"type": "image", "data": "AAAA", "mimeType": "image/png"}).count("AAAA") == 0
    assert "note" in prompt_text({"type": "resource", "resource": {"uri": "n://1", "text": "the note"}})


def test_idle_stop_is_read_in_seconds_whatever_its_size_and_changes_no_fingerprint() -> None:
    entries = '{"mcpServers": {"a": {"command": "x", "idle_stop": 7200}, "b": {"command": "x"}}}'
    a, b = parse_config(entries.encode(), environ={}).servers
    assert (a.idle_stop, b.idle_stop) == (7200.0, None)
    assert a.fingerprint == b.fingerprint
