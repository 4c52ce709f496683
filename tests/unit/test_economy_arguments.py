"""Arguments against schemas as servers really write them, and refusals that a model can act on."""

from __future__ import annotations

from typing import Any

import pytest

from agent.tools.arguments import ArgumentChecker
from agent.tools.base import ToolFailure

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "filter": {"$ref": "#/$defs/Filter"},
        "window": {"anyOf": [{"$ref": "#/$defs/Window"}, {"type": "null"}]},
        "target": {
            "oneOf": [
                {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
                {"type": "string", "enum": ["all", "none"]},
            ]
        },
        "since": {"type": "string", "format": "date-time"},
        "key": {"type": "string", "format": "uuid"},
        "points": {"type": "array", "items": {"$ref": "#/$defs/Point"}},
        "name": {"type": "string", "default": None},
    },
    "required": ["query"],
    "$defs": {
        "Filter": {
            "type": "object",
            "properties": {"field": {"type": "string"}, "exact": {"type": "boolean", "default": True}},
            "additionalProperties": False,
        },
        "Window": {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]},
        "Point": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "y": {"type": "number", "default": 0}},
        },
    },
}  # fmt: skip


def check(**arguments: Any) -> dict[str, Any]:
    return ArgumentChecker().check("find", SCHEMA, {"query": "q", **arguments})


def refused(**arguments: Any) -> str:
    with pytest.raises(ToolFailure) as failure:
        check(**arguments)
    return str(failure.value)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"limit": "5"}, {"limit": 5}),
        ({"limit": None}, {"limit": None}),
        ({"filter": {"field": "a"}}, {"filter": {"field": "a", "exact": True}}),
        ({"filter": {"exact": "false"}}, {"filter": {"exact": False}}),
        ({"filter": '{"field": "a"}'}, {"filter": {"field": "a"}}),
        ({"window": {"days": "7"}}, {"window": {"days": 7}}),
        ({"points": [{"x": "1.5"}]}, {"points": [{"x": 1.5, "y": 0}]}),
        ({"target": {"id": 3}}, {"target": {"id": 3}}),
        ({"target": "all"}, {"target": "all"}),
        ({"since": "2026-01-31T12:00:00Z"}, {"since": "2026-01-31T12:00:00Z"}),
        ({"other": 1}, {"other": 1}),
    ],
)
def test_references_alternatives_and_lists_are_mended_and_filled_in(
    given: dict[str, Any], meant: dict[str, Any]
) -> None:
    assert check(**given) == {"query": "q", "limit": None, **meant}


def test_a_default_that_its_own_schema_forbids_is_not_filled_in() -> None:
    assert "name" not in check()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"filter": {"feild": "a"}}, "`filter` `feild` is not known, did you mean `field`"),
        ({"limt": 5}, "`limt` is not known, did you mean `limit`"),
        ({"target": {"id": "x"}}, "fits none of what it may be: `target.id` must be of type integer"),
        ({"target": "some"}, '`target` must be one of "all", "none", not "some"'),
        ({"window": {}}, "`window` lacks `days`"),
        ({"since": "yesterday"}, "`since` must be a date-time such as 2026-01-31T12:00:00Z, not"),
        ({"key": "17"}, "`key` must be a uuid such as"),
        ({"points": [{"x": 1}, {"x": "far"}]}, '`points.1.x` must be of type number, not "far"'),
    ],
)  # fmt: skip
def test_a_refusal_says_what_to_change_deep_inside_too(given: dict[str, Any], words: str) -> None:
    said = refused(**given)
    assert words in said
    assert said.startswith("The arguments of find are not right, so it was not run:")
    assert said.endswith("Correct the arguments and call it again.")
    assert "limit (integer or null)" in said


def test_a_missing_name_and_the_misspelt_one_are_told_together() -> None:
    with pytest.raises(ToolFailure) as failure:
        ArgumentChecker().check("find", SCHEMA, {"qurey": "q"})
    assert "lacks `query`" in str(failure.value)
    assert "`qurey` is not known, did you mean `query`" in str(failure.value)


@pytest.mark.parametrize("more", [{"additionalProperties": True}, {"patternProperties": {"^x": {}}}])
def test_names_that_a_schema_expressly_allows_are_not_questioned(more: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"limit": {"type": "integer"}}, **more}
    assert ArgumentChecker().check("t", schema, {"limt": 1}) == {"limt": 1}


@pytest.mark.parametrize(
    "part",
    [
        {"$ref": "#/$defs/Missing"},
        {"$ref": "#/$defs/Loop"},
        {"$ref": "https://127.0.0.1:9/x"},
        {"anyOf": "nonsense"},
        {"type": 5},
        {"properties": {"a": {"$ref": "#"}}},
    ],
)
def test_a_schema_that_leads_nowhere_never_stops_a_call(part: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": part}, "$defs": {"Loop": {"$ref": "#/$defs/Loop"}}}
    assert ArgumentChecker().check("t", schema, {"a": {"a": {}}}) == {"a": {"a": {}}}


def test_a_tree_that_refers_to_itself_is_mended_as_deep_as_is_sensible() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"child": {"$ref": "#"}, "n": {"type": "integer"}},
    }
    assert ArgumentChecker().check("t", schema, {"child": {"child": {"n": "1"}, "n": "2"}}) == {
        "child": {"child": {"n": 1}, "n": 2}
    }
