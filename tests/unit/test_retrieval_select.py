"""Which tools a request is given, and in which order."""

from __future__ import annotations

import pytest

from agent.history import ToolOutput
from agent.tools.retrieval.select import FIND_TOOLS, arranged, found_names, select, used_names
from tests.unit.retrieval_support import BUILTIN, FINDER, called, crowd, said

MCP = crowd(30)
OFFERED = (*BUILTIN, FINDER, *MCP)
ORDER = [tool.name for tool in MCP]
BUILT_IN = ["read", "write"]


def chosen(**changes: object) -> list[str]:
    settings: dict[str, object] = {"injected": (), "used": (), "top_k": 5, "threshold": 20, **changes}
    ranked, offered = settings.pop("ranked", ORDER), settings.pop("offered", OFFERED)
    return list(select(ranked, offered, **settings))  # type: ignore[arg-type]


def test_built_in_tools_come_first_then_the_best_and_a_way_to_find_the_others() -> None:
    assert chosen() == [*BUILT_IN, FIND_TOOLS, *ORDER[:5]]


def test_at_the_threshold_all_are_taken_and_above_it_not() -> None:
    at, above = (*BUILTIN, FINDER, *MCP[:20]), (*BUILTIN, FINDER, *MCP[:21])
    assert chosen(offered=at) == [*BUILT_IN, *ORDER[:20]]
    assert chosen(offered=above) == [*BUILT_IN, FIND_TOOLS, *ORDER[:5]]


def test_zero_means_zero() -> None:
    """PEERS 2.10: a threshold or a number of 0 silently became 20 and 10."""
    assert chosen(top_k=0) == [*BUILT_IN, FIND_TOOLS]
    assert chosen(top_k=0, used=("read", ORDER[7])) == [*BUILT_IN, FIND_TOOLS, ORDER[7]]
    assert chosen(threshold=0, offered=(*BUILTIN, FINDER, *MCP[:2]), top_k=1) == [
        *BUILT_IN, FIND_TOOLS, ORDER[0]
    ]  # fmt: skip


def test_more_than_there_are_takes_all_without_a_finder() -> None:
    assert chosen(top_k=1000) == [*BUILT_IN, *ORDER]


def test_what_the_history_used_stays_though_it_ranks_last() -> None:
    assert chosen(used=(ORDER[29], "gone")) == [*BUILT_IN, FIND_TOOLS, ORDER[29], *ORDER[:5]]


def test_a_run_s_list_grows_only_at_its_end() -> None:
    first = chosen()
    later = chosen(ranked=ORDER[::-1], injected=first)
    assert later[: len(first)] == first
    assert later[len(first) :] == ORDER[:-6:-1]


def test_a_turn_of_phrase_changes_nothing_while_the_best_are_there() -> None:
    """PEERS 2.10: the list changed at every step, and with it what the provider had cached."""
    first = chosen()
    assert chosen(ranked=[*ORDER[2:5], *ORDER[20:]], injected=first) == first
    assert chosen(ranked=[ORDER[20], *ORDER[2:5]], injected=first) == [*first, ORDER[20]]


def test_the_finder_joins_at_the_end_when_it_is_needed_later() -> None:
    few = (*BUILTIN, FINDER, *MCP[:10])
    first = chosen(offered=few)
    assert FIND_TOOLS not in first
    later = chosen(injected=first, ranked=ORDER[::-1])
    assert later[: len(first)] == first
    assert FIND_TOOLS in later[len(first) :]


def test_the_finder_stays_when_it_was_used() -> None:
    few = (*BUILTIN, FINDER, *MCP[:10])
    assert FIND_TOOLS in chosen(offered=few, used=(FIND_TOOLS,))


def test_a_finder_that_is_switched_off_is_not_injected() -> None:
    assert FIND_TOOLS not in chosen(offered=(*BUILTIN, *MCP))


def test_a_tool_that_is_offered_no_more_leaves_the_list() -> None:
    first = chosen()
    assert chosen(injected=first, offered=OFFERED[:-30] + OFFERED[-29:])[:4] == [
        *BUILT_IN, FIND_TOOLS, ORDER[1]
    ]  # fmt: skip


def test_removed_tools_take_no_places() -> None:
    """PEERS 2.10: a removed tool went on eating places, so that no tool at all could be injected."""
    gone = [f"gone__{n}" for n in range(50)]
    assert chosen(ranked=[*gone, *ORDER]) == [*BUILT_IN, FIND_TOOLS, *ORDER[:5]]


def test_used_names_are_those_of_calls_and_of_results() -> None:
    entries = [*said("r", "hi"), *called("r", "b"), *called("r", "a"), ToolOutput("r", "x", "c", "")]
    assert used_names(entries) == ("b", "a", "c")


def test_found_names_are_read_from_this_run_s_results_of_the_finder() -> None:
    text = "- a__x: Does x.\n- b__y: - c__z: not one.\nThey are in your list now."
    entries = [ToolOutput("r", "1", FIND_TOOLS, text), ToolOutput("old", "2", FIND_TOOLS, "- d__d: No.")]
    assert found_names([*entries, ToolOutput("r", "3", "other", "- e__e: No.")], "r") == ("a__x", "b__y")


@pytest.mark.parametrize(
    ("before", "wanted", "expected"),
    [
        (ORDER[:8], ORDER[2:5], ORDER[:8]),  # all that is wanted is there: not a byte changes
        (ORDER[:8], [ORDER[20], ORDER[3]], [ORDER[3], ORDER[20]]),
        (ORDER[:25], ORDER[:5], ORDER[:5]),  # too much that nobody wants
        (["gone", *ORDER[:4]], ORDER[:4], ORDER[:4]),
        ([], ORDER[:4], ORDER[:4]),
    ],
)
def test_a_new_run_is_given_what_the_last_one_had_where_it_can(
    before: list[str], wanted: list[str], expected: list[str]
) -> None:
    assert list(arranged(wanted, before, OFFERED, (), top_k=5)) == expected
