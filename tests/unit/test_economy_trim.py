"""Definitions made shorter: what a call needs stays, and the same always becomes the same."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from agent.models.base import ToolSpec
from agent.models.schema import shorter, trimmed
from agent.tools.settings import TrimSettings

SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "FindArguments",
    "properties": {
        "title": {"type": "string", "title": "Title", "description": "A title. " * 20},
        "mode": {"enum": ["fast", "slow"], "default": "fast", "examples": ["fast"]},
        "limit": {"anyOf": [{"type": "integer", "title": "N"}, {"type": "null"}], "default": None},
        "inner": {"$ref": "#/$defs/Inner"},
    },
    "required": ["title"],
    "additionalProperties": False,
    "$defs": {"Inner": {"type": "object", "title": "Inner", "properties": {"examples": {"type": "array"}}}},
}
TOOL = ToolSpec("find", "Finds things. " + "It looks everywhere, and then some more. " * 20, SCHEMA)


def test_without_the_setting_nothing_changes() -> None:
    assert trimmed(TOOL) is TOOL
    assert TrimSettings() == TrimSettings(descriptions=0, schemas=False)


def test_descriptions_end_with_a_sentence_and_the_schema_keeps_what_a_call_needs() -> None:
    before = copy.deepcopy(SCHEMA)
    short = trimmed(TOOL, 60, plain=True)
    assert before == SCHEMA
    assert short.description == "Finds things. It looks everywhere, and then some more."
    properties = short.parameters["properties"]
    assert len(properties["title"]["description"]) <= 60
    assert properties["mode"] == {"enum": ["fast", "slow"], "default": "fast"}
    assert properties["limit"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert short.parameters["required"] == ["title"]
    assert short.parameters["additionalProperties"] is False
    assert short.parameters["$defs"]["Inner"]["properties"] == {"examples": {"type": "array"}}
    assert len(json.dumps(short.parameters)) < len(json.dumps(SCHEMA)) * 0.7
    assert trimmed(TOOL, 60, plain=True) == short


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("Short.", "Short."),
        ("One sentence is here. Another one follows it", "One sentence is here."),
        ("words and words and words without any end at all", "words and words and words…"),
        ("读取会话中的文本文件，长文件分段读取。" * 2, "读取会话中的文本文件，长文件分段读取。"),
        ("x" * 60, "x" * 29 + "…"),
        ("See example.org/a.b for all of the details of it", "See example.org/a.b for all…"),
    ],
)  # fmt: skip
def test_a_text_is_cut_where_a_sentence_or_a_word_ends(text: str, short: str) -> None:
    assert shorter(text, 30) == short
    assert len(shorter(text, 30)) <= 30


def test_a_schema_that_contains_itself_is_left_to_those_who_refuse_it() -> None:
    endless: dict[str, Any] = {"type": "object", "properties": {}}
    endless["properties"]["self"] = endless
    assert trimmed(ToolSpec("t", "d", endless), 50).parameters is endless


def test_a_length_that_describes_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="describe nothing"):
        TrimSettings(descriptions=10)
