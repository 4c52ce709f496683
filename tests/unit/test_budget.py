"""The tokens of each part of a request."""

from __future__ import annotations

from agent.history import Assistant, Ended, ImageRef, ToolBegun, ToolCall, ToolOutput, User
from bridge.budget import Part, entry_tokens, parts, sums


def test_the_skills_are_counted_once_and_the_dearest_tool_stands_first() -> None:
    skills = "<available_skills>" + "s" * 382
    found = parts("p" * 400 + skills, skills, {"cheap": 10, "dear": 90, "also": 10}, [User("r", "a" * 40)])
    assert found == (
        Part("system", "", 100),
        Part("skills", "", 100),
        Part("tools", "dear", 90),
        Part("tools", "also", 10),
        Part("tools", "cheap", 10),
        Part("history", "", 14),
    )
    assert sums(found) == {"system": 100, "skills": 100, "tools": 110, "history": 14}


def test_an_empty_request_still_names_all_its_parts() -> None:
    assert sums(parts("", "", {}, [])) == {"system": 0, "skills": 0, "tools": 0, "history": 0}


def test_the_history_counts_what_models_are_shown_and_nothing_else() -> None:
    assert entry_tokens(Ended("r", "stopped")) == entry_tokens(ToolBegun("r", "c")) == 0
    plain = entry_tokens(Assistant("r", "a" * 40))
    assert plain == 14
    called = entry_tokens(Assistant("r", "a" * 40, (ToolCall("c", "read", {"path": "x" * 400}),)))
    assert called > plain + 100
    assert entry_tokens(Assistant("r", "a" * 40, opaque={"anthropic": ["t" * 400]})) > plain + 100
    assert entry_tokens(ToolOutput("r", "c", "read", "中" * 100)) == 104
    assert entry_tokens(User("r", "", (ImageRef("a.png", "image/png"),))) > 500
