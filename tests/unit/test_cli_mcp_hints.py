"""Hints on tool definitions: pure functions on plain data."""

from __future__ import annotations

import pytest

from bridge.cli_mcp_hints import Definition, hints

GOOD = "Reads a file. Use it when the path is known."


def kinds(*tools: Definition) -> dict[str, tuple[str, ...]]:
    return {hint.kind: hint.tools for hint in hints(tools)}


def test_good_definitions_get_no_hint() -> None:
    assert kinds(Definition("a", "read_file", GOOD), Definition("a", "send_mail", "Use to send mail.")) == {}


def test_a_missing_a_vague_and_an_endless_description_are_told_apart() -> None:
    found = kinds(
        Definition("a", "one", " "),
        Definition("a", "two", "Does things with the database."),
        Definition("a", "three", "Use it when needed. " + "x" * 1_000),
        Definition("a", "四", "查询表结构。涉及写入时请勿使用。"),
    )
    assert found == {"no-description": ("one",), "no-when": ("two",), "long-description": ("three",)}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("get_config", "config_get"),
        ("getConfig", "get-configs"),
        ("get_config", "get_config_history"),
        ("read_file", "read_text_file"),
    ],
)
def test_names_of_the_same_words_are_confusable_within_a_server(one: str, other: str) -> None:
    (pair,) = kinds(Definition("a", one, GOOD), Definition("a", other, GOOD))["confusable"]
    assert sorted(pair.split(" ~ ")) == sorted((one, other))


@pytest.mark.parametrize(
    ("one", "other"), [("get_config", "set_config"), ("t1", "t2"), ("list", "read_file")]
)
def test_names_of_other_words_are_not(one: str, other: str) -> None:
    assert kinds(Definition("a", one, GOOD), Definition("a", other, GOOD)) == {}


def test_a_description_that_names_the_other_tool_settles_it() -> None:
    told = "Use for the settings of now; for older ones use get_config_history."
    assert kinds(Definition("a", "get_config", told), Definition("a", "get_config_history", GOOD)) == {}
    partly = "Use it only with get_config_history_of_all."
    assert kinds(Definition("a", "get_config", partly), Definition("a", "get_config_history", GOOD))


def test_across_servers_equal_words_are_told_with_their_servers() -> None:
    found = kinds(
        Definition("jira", "search", "Use to search."),
        Definition("wiki", "search", "Use to search."),
        Definition("wiki", "search_all", "Use with search."),
    )
    assert found == {"confusable": ("jira/search ~ wiki/search",)}


def test_many_tools_are_told_and_pairs_are_found_quickly_among_thousands() -> None:
    tools = [Definition("a", f"tool_{n}_of_many", GOOD) for n in range(3_000)]
    assert kinds(*tools) == {"many-tools": ()}
