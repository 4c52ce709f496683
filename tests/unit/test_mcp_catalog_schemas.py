"""Schemas as servers send them, in the form that each model protocol takes; and what they cost."""

from __future__ import annotations

import copy
import json
import logging
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agent.models.base import ToolSpec
from agent.models.chat import render_tool
from agent.models.schema import LARGEST, Dialect, ToolRenderer, Unmendable, fit, mend
from agent.tools.arguments import ArgumentChecker
from agent.tools.base import FunctionTool, ToolFailure, ToolResult
from agent.tools.catalog import Catalog
from agent.tools.stats import definition_tokens, text_tokens

DIALECTS: tuple[Dialect, ...] = ("openai", "anthropic", "gemini")
GEMINI_KEYS = {
    "type", "description", "nullable", "enum", "items", "minItems", "maxItems", "properties", "required",
    "minimum", "maximum", "minLength", "maxLength", "pattern", "format",
}  # fmt: skip


def check_strict(schema: Any) -> None:
    """What OpenAI and Anthropic insist on: a valid 2020-12 schema of an object, items in arrays, no $ref."""
    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert isinstance(schema["properties"], dict)
    assert not {"anyOf", "oneOf", "allOf", "not", "enum"} & set(schema)
    check_parts(schema)


def check_parts(schema: Any) -> None:
    assert "$ref" not in schema
    assert "$defs" not in schema
    kinds = schema.get("type", [])
    if "array" in (kinds if isinstance(kinds, list) else [kinds]):
        assert isinstance(schema["items"], dict)
    for part in schema.get("properties", {}).values():
        check_parts(part)
    for key in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(key, []):
            check_parts(part)
    for key in ("items", "additionalProperties", "not"):
        if isinstance(schema.get(key), dict):
            check_parts(schema[key])


def check_gemini(schema: Any) -> None:
    """What Gemini's own schema type has, and nothing else."""
    if "anyOf" in schema:
        assert set(schema) == {"anyOf"}
        for part in schema["anyOf"]:
            check_gemini(part)
        return
    assert set(schema) <= GEMINI_KEYS
    assert schema["type"] in ("object", "array", "string", "number", "integer", "boolean")
    assert schema.get("properties") != {}
    assert set(schema.get("required", [])) <= set(schema.get("properties", {}))
    assert all(isinstance(value, str) for value in schema.get("enum", []))
    if schema["type"] == "array":
        check_gemini(schema["items"])
    for part in schema.get("properties", {}).values():
        check_gemini(part)


def check(schema: Any, dialect: Dialect) -> None:
    if dialect == "gemini":
        assert schema["type"] == "object"
        check_gemini(schema)
    else:
        check_strict(schema)


def under(part: Any, **root: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"p": part}, **root}


ODD: list[Any] = [
    {"type": "object"},
    under({"type": "array"}),
    {},
    {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "u", "properties": {"a": True, "b": False}},
    under({"$ref": "#/$defs/a"},
          **{"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/b"}}, "b": {}}}),
    under({"$ref": "#/definitions/n"},
          definitions={"n": {"properties": {"next": {"$ref": "#/definitions/n"}, "v": {"type": "integer"}}}}),
    under({"$ref": "https://example.org/schema.json"}),
    under({"$ref": "#/nowhere"}),
    under({"$ref": "#"}),
    under({"$ref": 7}),
    {"$ref": "#/$defs/root", "$defs": {"root": {"type": "object", "properties": {"a": {"type": "array"}}}}},
    under({"type": ["string", "null"]}),
    under({"type": ["string", "integer", "array", "null"]}),
    under({"type": ["string"]}),
    under({"type": "any"}),
    under({"type": ["int", "str"]}),
    under({"type": "null"}),
    under({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "P"}),
    under({"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}], "description": "d"}),
    under({"oneOf": [{"const": "a"}, {"const": "b"}]}),
    under({"type": "object", "oneOf": [{"type": "object", "properties": {"a": {}}},
                                       {"type": "object", "properties": {"b": {"const": 1}}}]}),
    under({"allOf": [{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
                     {"properties": {"b": {"enum": [1, 2]}}}]}),
    under({"enum": ["a", None]}),
    under({"enum": [1, 2.5, 3]}),
    under({"enum": [True, "x", {"a": 1}]}),
    under({"enum": []}),
    under({"minimum": 0, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False}),
    under({"type": "integer", "minimum": "0", "description": 5, "pattern": ["x"], "minLength": True}),
    under({"type": "array", "items": [{"type": "string"}, {"type": "integer"}]}),
    under({"type": "array", "items": True}),
    under({"type": "array", "prefixItems": [{"type": "string"}, False]}),
    under({"type": "string", "required": True}),
    under({"type": "object", "properties": [], "required": "a"}),
    under({"type": "string", "format": "uri"}),
    under({"type": "object", "additionalProperties": {"$ref": "#/$defs/a"}},
          **{"$defs": {"a": {"type": "array"}}}),
    under({"type": "object", "patternProperties": {"^x": {"type": "array"}}}),
    under({}, required=["p", "p", 7, "gone"]),
    under({}, anyOf=[{"required": ["p"]}, {"required": ["q"]}]),
    {"allOf": [{"$ref": "#/$defs/a"}],
     "$defs": {"a": {"properties": {"x": {"type": "array"}}, "required": ["x"]}}},
    {"type": ["object", "null"], "properties": None},
    {"properties": {"$ref": {"type": "string"}, "type": {"type": "array"}, "items": {"enum": ["a"]}}},
    True,
    None,
]  # fmt: skip


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("schema", ODD, ids=range(len(ODD)))
def test_mc_11_every_odd_schema_is_mended_for_each_protocol(schema: Any, dialect: Dialect) -> None:
    before = copy.deepcopy(schema)
    check(mend(schema, dialect), dialect)
    assert schema == before, "the original was changed"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["object", "array", "#/$defs/a", "#"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["type", "properties", "items", "anyOf", "allOf", "oneOf", "enum", "required", "$ref", "$defs",
             "a", "const", "nullable", "minimum", "exclusiveMinimum", "description", "additionalProperties"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=14,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(part=json_values, definition=json_values, dialect=st.sampled_from(DIALECTS))
def test_mc_11_whatever_a_schema_holds_it_is_mended_or_refused(
    part: Any, definition: Any, dialect: Dialect
) -> None:
    try:
        mended = mend(under(part, **{"$defs": {"a": definition}}), dialect)
    except Unmendable:
        return
    if dialect == "gemini":
        check(mended, dialect)
    else:
        assert mended["type"] == "object"
        check_parts(mended)
    json.dumps(mended)


def test_a_recursive_schema_ends_in_an_open_object() -> None:
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}
    mended = mend(under({"$ref": "#/$defs/t"}, **{"$defs": {"t": tree}}), "openai")
    inner = mended["properties"]["p"]["properties"]["kids"]["items"]["properties"]["kids"]["items"]
    assert inner == {"type": "object"}


def test_references_that_double_at_each_level_cost_little_time() -> None:
    defs: dict[str, Any] = {
        f"d{n}": {"type": "object", "properties": {side: {"$ref": f"#/$defs/d{n + 1}"} for side in "lr"}}
        for n in range(30)
    }
    defs["d30"] = {"type": "string", "description": "x" * 5_000}
    began = time.process_time()
    mended, left_out = fit(mend(under({"$ref": "#/$defs/d0"}, **{"$defs": defs}), "anthropic"))
    assert time.process_time() - began < 1.0
    assert len(json.dumps(mended)) <= LARGEST
    assert left_out


def test_what_stands_beside_a_reference_is_kept() -> None:
    part = {"$ref": "#/$defs/a", "description": "this one"}
    mended = mend(under(part, **{"$defs": {"a": {"type": "string", "description": "any"}}}), "openai")
    assert mended["properties"]["p"] == {"type": "string", "description": "this one"}


def test_gemini_is_told_choices_and_nothing_in_its_own_words() -> None:
    def mended(part: Any) -> Any:
        return mend(under(part), "gemini")["properties"]["p"]

    assert mended({"anyOf": [{"type": "string"}, {"type": "null"}]}) == {"type": "string", "nullable": True}
    assert mended({"type": ["integer", "null"]}) == {"type": "integer", "nullable": True}
    assert mended({"const": "a"}) == {"type": "string", "enum": ["a"]}
    assert mended({"enum": [1, 2], "type": "integer"}) == {"type": "integer", "description": "One of: 1, 2."}
    assert mended({"oneOf": [{"type": "string"}, {"type": "number"}], "description": "d"}) == {
        "anyOf": [{"type": "string", "description": "d"}, {"type": "number"}]
    }


def test_mc_11_a_parameter_name_that_anthropic_refuses_costs_only_itself() -> None:
    schema = {"type": "object", "properties": {"a b": {}, "ok": {}}}
    assert list(mend(schema, "anthropic")["properties"]) == ["ok"]
    assert list(mend(schema, "openai")["properties"]) == ["a b", "ok"]
    with pytest.raises(Unmendable, match="'a b'"):
        mend({**schema, "required": ["a b"]}, "anthropic")


# Size ----------------------------------------------------------------------------------------------------


def test_a_large_schema_loses_words_before_properties_and_keeps_what_is_required(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wordy = {f"w{n}": {"type": "string", "description": "d" * 500} for n in range(60)}
    must = {"must": {"type": "string", "description": "the main one"}}
    schema = {"type": "object", "properties": {**must, **wordy}, "required": ["must"]}
    with caplog.at_level(logging.WARNING, "causeway.models"):
        (tool,) = ToolRenderer("openai", render_tool)([ToolSpec("t", "", schema)])
    shown = tool["function"]["parameters"]
    assert len(json.dumps(shown)) <= LARGEST
    assert set(shown["properties"]) == {"must", *wordy}
    assert shown["properties"]["must"] == must["must"]
    assert shown["properties"]["w0"] == {"type": "string"}
    assert "t is too large" in caplog.text


def test_a_larger_schema_loses_its_largest_optional_properties() -> None:
    big = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(600)}}
    schema = {"type": "object", "properties": {"big": big, "small": {}, "must": {}}, "required": ["must"]}
    fitted, left_out = fit(mend(schema, "openai"), 10_000)
    assert list(fitted["properties"]) == ["small", "must"]
    assert "1 of them altogether" in left_out


def test_required_properties_keep_their_outline_or_the_tool_is_left_out() -> None:
    part = {"type": "object", "description": "d" * 900, "properties": {f"p{n}": {} for n in range(300)}}
    schema = {"type": "object", "properties": {"a": part, "b": part}, "required": ["a", "b"]}
    fitted, _ = fit(mend(schema, "openai"), 3_000)
    assert fitted["properties"]["a"] == {"type": "object", "description": "d" * 200}
    names = [f"n{n}" for n in range(500)]
    with pytest.raises(Unmendable, match="required parameters"):
        fit(mend({"properties": {name: {} for name in names}, "required": names}, "openai"), 3_000)


def test_arguments_are_checked_against_the_original_of_a_schema_that_was_cut() -> None:
    part = {"type": "string", "description": "d" * 25_000, "maxLength": 3}
    schema = under({"$ref": "#/$defs/a"}, **{"$defs": {"a": part}})
    assert "p" in fit(mend(schema, "openai"))[0]["properties"]
    checker = ArgumentChecker()
    assert checker.check("t", schema, {"p": "abc"}) == {"p": "abc"}
    with pytest.raises(ToolFailure, match="`p` breaks the rule maxLength"):
        checker.check("t", schema, {"p": "abcd"})


def test_a_schema_is_mended_once_and_not_at_every_turn() -> None:
    specs = [ToolSpec(f"t{n}", "", {"properties": {f"p{k}": {"type": "array"} for k in range(40)}})
             for n in range(100)]  # fmt: skip
    render = ToolRenderer("gemini", render_tool)
    first = render(specs)
    began = time.process_time()
    again = render([ToolSpec(spec.name, spec.description, spec.parameters) for spec in specs])
    assert time.process_time() - began < 0.02
    assert all(one is other for one, other in zip(first, again, strict=True))


# The catalog ---------------------------------------------------------------------------------------------


def make(name: str, description: str = "") -> FunctionTool:
    async def run(params: dict[str, Any], context: Any) -> ToolResult:
        return ToolResult(name)

    return FunctionTool(name, description, {"type": "object", "properties": {}}, run, source="srv")


def test_a_catalog_keeps_what_a_run_has_used_from_an_older_one() -> None:
    used, unused, fresh = make("s__used"), make("s__unused"), make("s__new")
    old, new = Catalog([used, unused]), Catalog([fresh])
    kept = new.keeping(old, ["s__used", "never_existed"])
    assert kept.names == ("s__new", "s__used")
    assert kept.get("s__used") is used
    assert Catalog([fresh]).keeping(kept, ["s__used"]).get("s__used") is used, "it is kept over several swaps"
    assert old.keeping(old, ["s__used"]) is old
    assert new.keeping(old, []) is new
    newer = Catalog([make("s__used", "newer")])
    assert newer.keeping(old, ["s__used"]) is newer, "the newer tool of the same name counts"


def test_the_cost_of_a_definition_is_estimated() -> None:
    assert text_tokens("abcd" * 10) == 10
    assert text_tokens("工具") == 2
    assert definition_tokens(make("a", "x" * 400)) == pytest.approx(125, abs=10)
