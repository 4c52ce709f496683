"""Arguments are checked before a tool runs, and the refusal tells what to change."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agent.tools.arguments import ArgumentChecker
from agent.tools.base import ToolFailure

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "count": {"type": "integer", "default": 3, "minimum": 1},
        "ratio": {"type": "number"},
        "mode": {"type": "string", "enum": ["fast", "slow"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "deep": {"type": "boolean"},
        "options": {
            "type": "object",
            "properties": {"colour": {"type": "string", "default": "red"}, "size": {"type": "integer"}},
        },
    },
    "required": ["path"],
    "additionalProperties": False,
}


def check(**arguments: Any) -> dict[str, Any]:
    return ArgumentChecker().check("tool", SCHEMA, arguments)


def test_defaults_are_filled_in_also_deeper_down_and_the_call_is_not_changed() -> None:
    options: dict[str, Any] = {"size": 1}
    assert check(path="a", options=options) == {
        "path": "a",
        "count": 3,
        "options": {"size": 1, "colour": "red"},
    }
    assert options == {"size": 1}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"count": "5"}, {"count": 5}),
        ({"ratio": "0.5"}, {"ratio": 0.5}),
        ({"deep": "True"}, {"deep": True}),
        ({"tags": '["a", "b"]'}, {"tags": ["a", "b"]}),
        ({"options": '{"size": 2}'}, {"options": {"size": 2}}),
        ({"count": None}, {"count": 3}),
        ({"ratio": None}, {}),
    ],
)
def test_what_is_nearly_right_is_mended(given: dict[str, Any], meant: dict[str, Any]) -> None:
    assert check(path="a", **given) == {"path": "a", "count": 3, **meant}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "lacks `path`"),
        ({"path": 5}, "`path` must be of type string, not 5"),
        ({"path": None}, "`path` must be of type string, not null"),
        ({"path": "a", "pathh": "b"}, "`pathh` is not known, did you mean `path`"),
        ({"path": "a", "mode": "quick"}, '`mode` must be one of "fast", "slow", not "quick"'),
        ({"path": "a", "count": 0}, "`count` breaks the rule minimum: 1 (it is 0)"),
        ({"path": "a", "count": "many"}, '`count` must be of type integer, not "many"'),
        ({"path": "a", "count": "NaN"}, "`count` must be of type integer"),
        ({"path": "a", "tags": ["x", 1]}, "`tags.1` must be of type string, not 1"),
        ({"path": "a", "options": {"size": []}}, "`options.size` must be of type integer"),
    ],
)
def test_a_refusal_names_the_argument_and_the_remedy(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ToolFailure) as refusal:
        check(**arguments)
    assert words in str(refusal.value)
    assert "It takes: path (string, required), count (integer)" in str(refusal.value)


def test_a_refusal_does_not_repeat_a_long_value() -> None:
    with pytest.raises(ToolFailure) as refusal:
        check(path="a", mode="x" * 100_000)
    assert len(str(refusal.value)) < 1_000


def test_a_reference_to_the_network_is_not_followed_and_does_not_stop_the_call() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    checker = ArgumentChecker()
    for _ in range(2):
        assert checker.check("tool", schema, {"a": 1}) == {"a": 1}


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"type": "object", "properties": []}, {}])
def test_a_schema_that_is_no_schema_lets_the_tool_judge(schema: dict[str, Any]) -> None:
    assert ArgumentChecker().check("tool", schema, {"a": 1}) == {"a": 1}


def test_a_pattern_that_takes_for_ever_does_not() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a|aa)+$"}}}
    began = time.monotonic()
    ArgumentChecker().check("tool", schema, {"a": "a" * 80 + "b"})
    assert time.monotonic() - began < 2.0


def test_many_schemas_do_not_pile_up() -> None:
    checker = ArgumentChecker()
    for n in range(1_000):
        schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": n}}}
        with pytest.raises(ToolFailure):
            checker.check("tool", schema, {"a": n - 1})
    assert len(checker._compiled) <= 256
