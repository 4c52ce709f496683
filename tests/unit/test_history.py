"""What a model is shown of a long history."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agent.history import (
    Assistant,
    Ended,
    Entry,
    ToolBegun,
    ToolCall,
    ToolOutput,
    User,
    entry_from_json,
    entry_to_json,
    open_calls,
    shortened,
    window,
)
from tests.fakes.scripted import check


def run_of(name: str, steps: int, size: int = 10) -> list[Entry]:
    entries: list[Entry] = [User(name, f"do {name}")]
    for step in range(steps):
        call = ToolCall(f"{name}-{step}", "ls", {"path": "."})
        entries += [
            Assistant(name, "", (call,)),
            ToolBegun(name, call.id),
            ToolOutput(name, call.id, "ls", "x" * size),
        ]
    return [*entries, Assistant(name, f"done {name}")]


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=30), st.integers(4, 60), st.integers(1, 3), st.booleans()
)
def test_no_view_ever_separates_a_call_from_its_result(
    runs: list[int], limit: int, level: int, unfinished: bool
) -> None:
    entries = [entry for n, steps in enumerate(runs) for entry in run_of(f"r{n}", steps)]
    current = f"r{len(runs) - 1}"
    if unfinished:
        entries.pop()
    for view in (window(entries, current, limit), shortened(window(entries, current, limit), current, level)):
        check(view)
        assert any(isinstance(e, User) and e.run == current for e in view)


def test_ag_13_the_request_of_a_long_run_is_in_every_view() -> None:
    entries = run_of("r1", 60)[:-1]
    view = window(entries, "r1", 40)
    assert view[0] == User("r1", "do r1")
    assert len(view) <= 41


def test_the_beginning_of_the_view_stays_the_same_for_many_turns() -> None:
    entries: list[Entry] = []
    firsts = []
    for n in range(200):
        entries += run_of(f"r{n}", 0)
        firsts.append(window(entries, f"r{n}", 40)[0])
    changes = sum(1 for before, after in pairwise(firsts) if before != after)
    assert changes <= 20


def test_each_level_of_shortening_is_smaller_and_keeps_the_request() -> None:
    entries = [*run_of("old", 30, 20_000), User("new", "q" * 5000)]
    sizes = [len(repr(entries))] + [len(repr(shortened(entries, "new", level))) for level in (1, 2, 3)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[1] < sizes[0] / 4
    assert sizes[3] < sizes[1] / 10
    assert shortened(entries, "new", 3)[-1] == User("new", "q" * 5000)


def test_every_entry_survives_the_disk() -> None:
    for entry in [*run_of("r1", 2), Ended("r1", "stopped")]:
        assert entry_from_json(entry_to_json(entry)) == entry


def test_open_calls_are_those_without_a_result_in_the_order_asked() -> None:
    asked = tuple(ToolCall(str(n), "ls", {}) for n in range(3))
    entries: list[Entry] = [User("r", "x"), Assistant("r", "", asked), ToolOutput("r", "1", "ls", "ok")]
    assert [call.id for call in open_calls(entries)] == ["0", "2"]
