"""Tools that are easily mistaken, and definitions that cost too much."""

from __future__ import annotations

from agent.tools.base import FunctionTool
from agent.tools.retrieval.confusable import confusable, dear
from tests.unit.retrieval_support import BUILTIN, crowd, nothing, tool


def pairs(*tools: FunctionTool) -> list[tuple[str, str, str]]:
    return [(pair.first, pair.second, pair.why) for pair in confusable(tools)]


def test_one_name_on_two_servers_is_a_pair() -> None:
    same = (
        tool("a", "searchFiles", "Finds files on the disk."),
        tool("b", "search_files", "Asks the cloud."),
    )
    assert pairs(*same, tool("c", "other", "Quite another thing.")) == [
        ("a__searchFiles", "b__search_files", "name")
    ]


def test_descriptions_of_the_same_words_are_a_pair() -> None:
    near = (
        tool("a", "shot", "Take a screenshot of the current page or one element."),
        tool("b", "picture", "Take a screenshot of the current page or one element"),
    )
    assert pairs(*near) == [("a__shot", "b__picture", "description")]


def test_an_author_who_tells_them_apart_is_believed() -> None:
    near = (
        tool("a", "shot", "Take a screenshot of the current page or one element."),
        tool("a", "picture", "Take a screenshot of the current page or one element. Small ones: shot."),
    )
    assert pairs(*near) == []


def test_short_descriptions_and_built_in_tools_are_no_evidence() -> None:
    assert pairs(tool("a", "x", "Does it."), tool("b", "y", "Does it."), *BUILTIN) == []


def test_many_tools_of_one_name_are_told_once_each_and_all_is_bounded() -> None:
    tools = [tool(f"s{n}", "search", f"Searches place {n}.") for n in range(200)]
    assert len(confusable(tools, limit=20)) == 20
    assert len(pairs(*tools[:5])) == 4


def test_what_costs_much_is_told_dearest_first() -> None:
    long = tool("a", "long", "word " * 2000)
    wide = FunctionTool("b__wide", "x", {"enum": [f"value {n}" for n in range(900)]}, nothing, source="b")
    found = dear((*crowd(5), long, wide, *BUILTIN))
    assert [cost.name for cost in found] == ["b__wide", "a__long"]
    assert found[1].tokens > 2000
    assert dear(crowd(5)) == ()
