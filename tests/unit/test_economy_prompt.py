"""The beginning of the prompt stays the same while the history grows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from agent.history import Assistant, Entry, ToolCall, ToolOutput, User, shortened
from agent.models.anthropic import render_body
from agent.models.base import Request
from tests.unit.test_history import run_of


def body(entries: list[Entry], tools: int = 1) -> dict[str, Any]:
    request = Request("system", entries, (), load_image=lambda ref: b"")
    return render_body(request, {}, [{"name": f"t{n}"} for n in range(tools)], model="m", max_tokens=9)


def marked(messages: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [
        (at, place)
        for at, message in enumerate(messages)
        for place, block in enumerate(message["content"])
        if "cache_control" in block
    ]


def test_what_the_request_before_wrote_to_the_cache_is_marked_again_however_many_blocks_came_since() -> None:
    calls = tuple(ToolCall(f"c{n}", "ls", {}) for n in range(30))
    first: list[Entry] = [User("r", "go")]
    then: list[Entry] = [
        *first,
        Assistant("r", "", calls),
        *(ToolOutput("r", c.id, "ls", "x") for c in calls),
    ]
    assert marked(body(first)["messages"]) == [(0, 0)]
    assert marked(body(then)["messages"]) == [(0, 0), (2, 29)]


@pytest.mark.parametrize("turns", range(1, 12))
def test_there_are_never_more_than_four_marks_and_none_on_what_the_model_said(turns: int) -> None:
    entries = [entry for n in range(turns) for entry in run_of(f"r{n}", n % 3)]
    made = body([*entries, User("now", "go")])
    places = marked(made["messages"])
    assert 1 <= len(places) <= 2
    assert all(made["messages"][at]["role"] == "user" for at, _ in places)
    assert "cache_control" in made["system"][0]
    assert "cache_control" in made["tools"][-1]


def test_a_shortened_view_moves_in_steps_too() -> None:
    entries: list[Entry] = []
    firsts = []
    for n in range(100):
        entries += run_of(f"r{n}", 1)
        firsts.append(shortened(entries, f"r{n}", 2)[0])
    assert sum(one != other for one, other in pairwise(firsts)) <= 25
