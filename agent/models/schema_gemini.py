"""Schemas in the part of JSON Schema that Gemini knows. Pure functions on nodes whose parts are done."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeAlias

Node: TypeAlias = dict[str, Any]
_KNOWN = frozenset(
    {"type", "description", "nullable", "enum", "items", "minItems", "maxItems", "properties", "required",
     "minimum", "maximum", "minLength", "maxLength", "pattern", "format"}
)  # fmt: skip


def kinds_of(node: Node) -> list[str]:
    """The types that a node names; none when it names none."""
    kind = node.get("type", [])
    return kind if isinstance(kind, list) else [kind]


def for_gemini(node: Node) -> Node:
    """One node, whose parts are done already, in the words that Gemini has."""
    for member in node.pop("allOf", []):
        node = _both(node, member)
    if "const" in node:
        node["enum"] = [node.pop("const")]
    given = node.get("anyOf") or node.get("oneOf") or []
    kinds = [kind for kind in kinds_of(node) if kind != "null"]
    choices = [choice for choice in given if choice.get("type") != "null"]
    if not kinds and not given and kinds_of(node) == ["null"]:
        return {"type": "null"}  # for the alternatives around it, which become nullable
    nullable = bool(node.get("nullable")) or "null" in kinds_of(node) or len(choices) < len(given)
    kept = {key: _no_null(value) for key, value in node.items() if key in _KNOWN and key != "type"}
    kept.pop("nullable", None)
    if len(kinds) > 1:
        choices = [{"type": kind, **_belonging(kept, kind)} for kind in kinds]
    elif kinds and not (kinds == ["object"] and "properties" not in kept and _all_objects(choices)):
        kept["type"], choices = kinds[0], []
    if len(choices) > 1:
        first = dict(choices[0])
        if "description" in kept:
            first.setdefault("description", kept["description"])
        if nullable:
            first["nullable"] = True
        return {"anyOf": [first, *choices[1:]]}  # nothing else may stand beside it
    if choices:
        kept = choices[0] | kept
    _gemini_enum(kept)
    kept.setdefault("type", _guessed(kept))
    _gemini_leftovers(kept)
    return kept | {"nullable": True} if nullable else kept


def _both(node: Node, member: Node) -> Node:
    merged = member | node
    if "properties" in node or "properties" in member:
        merged["properties"] = member.get("properties", {}) | node.get("properties", {})
    if needed := [*node.get("required", []), *member.get("required", [])]:
        merged["required"] = list(dict.fromkeys(needed))
    return merged


def _no_null(value: Any) -> Any:
    """The value of a keyword without parts that are null and nothing else: Gemini has no such type."""
    if isinstance(value, dict):
        if value == {"type": "null"}:
            return {"type": "string", "nullable": True}
        return {name: _no_null(part) if isinstance(part, dict) else part for name, part in value.items()}
    return value


def _belonging(kept: Node, kind: str) -> Node:
    keys = {"array": ("items", "minItems", "maxItems"), "object": ("properties", "required")}.get(kind, ())
    return {key: kept[key] for key in keys if key in kept}


def _all_objects(choices: Iterable[Node]) -> bool:
    parts = list(choices)
    return bool(parts) and all(part.get("type") == "object" and "properties" in part for part in parts)


def _guessed(node: Node) -> str:
    if "properties" in node or "required" in node:
        return "object"
    return "array" if "items" in node else "string"


def _gemini_enum(node: Node) -> None:
    """Choices are strings there; others are told in words."""
    values = node.pop("enum", None)
    if not values:
        return
    words = [value for value in values if isinstance(value, str) and value]
    if len(words) == len([value for value in values if value is not None]):
        node |= {"type": "string", "enum": list(dict.fromkeys(words))}
    else:
        said = f"One of: {', '.join(json.dumps(value, ensure_ascii=False) for value in values[:50])}."
        node["description"] = f"{node['description']} {said}" if "description" in node else said
        if "type" not in node and all(isinstance(value, int | float) for value in values):
            node["type"] = "number"


def _gemini_leftovers(node: Node) -> None:
    if node.get("format") != "date-time" or node["type"] != "string":
        node.pop("format", None)
    if not node.get("properties"):
        node.pop("properties", None)
        node.pop("required", None)
    elif needed := [name for name in node.get("required", []) if name in node["properties"]]:
        node["required"] = needed
    else:
        node.pop("required", None)
    if node["type"] == "array":
        node.setdefault("items", {"type": "string"})
