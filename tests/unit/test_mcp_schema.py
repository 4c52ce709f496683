"""Mending what servers send before an SDK and a provider see it."""

from __future__ import annotations

import pytest

from agent.tools.base import Annotations
from agent.tools.mcp.schema import (
    LONGEST_DESCRIPTION,
    mend_call_result,
    mend_listing,
    provider_schema,
    read_annotations,
    short_description,
)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"type": "object"}, {"type": "object", "properties": {}}),
        (
            {"type": "object", "properties": {"l": {"type": "array"}}},
            {"type": "object", "properties": {"l": {"type": "array", "items": {}}}},
        ),
        ({}, {"type": "object", "properties": {}}),
        (
            {"properties": {"a": {"anyOf": [{"type": ["array", "null"]}, {}]}}},
            {
                "type": "object",
                "properties": {"a": {"anyOf": [{"type": ["array", "null"], "items": {}}, {}]}},
            },
        ),
        ({"properties": {"items": {"type": "array"}}}, {
            "type": "object", "properties": {"items": {"type": "array", "items": {}}}}),
    ],
)  # fmt: skip
def test_mc_11_schemas_get_what_a_provider_insists_on(given: dict, wanted: dict) -> None:
    before = repr(given)
    assert provider_schema(given) == wanted
    assert repr(given) == before, "the original was changed"


def test_the_good_tools_of_a_list_are_kept_and_the_others_named() -> None:
    tools, faults = mend_listing(
        [
            {"name": "good", "inputSchema": {"type": "object"}},
            {"name": "no type", "inputSchema": {"properties": {}}},
            {"name": "no schema"},
            {"description": "no name"},
            {"name": "text", "inputSchema": {"type": "string"}},
            {"name": "good", "inputSchema": {"type": "object"}},
            "no object",
            {"name": "big", "inputSchema": {"type": "object", "description": "x" * 70_000}},
            {
                "name": "odd",
                "description": 5,
                "annotations": {"readOnlyHint": "yes"},
                "icons": 7,
                "outputSchema": 1,
            },
        ]
    )
    assert [tool["name"] for tool in tools] == ["good", "no type", "no schema", "odd"]
    assert all(tool["inputSchema"]["type"] == "object" for tool in tools)
    assert tools[-1] == {"name": "odd", "inputSchema": {"type": "object"}, "annotations": {}}
    assert len(faults) == 5
    assert mend_listing(None) == ([], ["the list of tools is no list"])


def test_annotations_are_the_careful_ones_unless_the_server_says_otherwise() -> None:
    assert read_annotations({}) == Annotations(False, destructive=True, open_world=True, stated=False)
    assert read_annotations({"readOnlyHint": True}) == Annotations(True, False, True)
    assert read_annotations({"destructiveHint": False, "openWorldHint": False}) == Annotations(
        False, False, False
    )


def test_a_description_is_bounded() -> None:
    assert len(short_description("x" * 9_000)) == LONGEST_DESCRIPTION
    assert short_description("  short ") == "short"


def test_an_odd_part_of_a_result_costs_only_itself() -> None:
    mended = mend_call_result({"content": [{"type": "text", "text": "a"}, {"type": "image"}, 7]})
    assert [part["type"] for part in mended["content"]] == ["text", "text", "text"]
    assert mended["content"][0]["text"] == "a"
    assert mend_call_result({})["content"] == []
    assert mend_call_result({"content": "words"})["content"] == [{"type": "text", "text": "words"}]
