"""Tool definitions as servers send them, mended so that an SDK and a provider accept them. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agent.tools.base import Annotations

LONGEST_DESCRIPTION = 2_000
LARGEST_SCHEMA = 64 * 1024  # characters of JSON
_DEEPEST = 40
_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_SUBSCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


@dataclass(frozen=True, slots=True)
class ListedTool:
    """One tool as its server lists it. `schema` is the input schema as sent, of type object."""

    name: str
    description: str
    schema: dict[str, Any]
    annotations: Annotations = Annotations()


def mend_listing(items: object) -> tuple[list[dict[str, Any]], list[str]]:
    """The tools of a raw `tools/list` result that can be used, and why the others cannot.

    What the bridge does not read (icons, output schemas, metadata) is left out, so that no fault in it can
    cost a tool: the SDK refuses a whole list for one bad member, and a whole result for a schema mismatch.
    """
    if not isinstance(items, list):
        return [], ["the list of tools is no list"]
    good: list[dict[str, Any]] = []
    faults: list[str] = []
    seen: set[str] = set()
    for item in items:
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str) or not name:
            faults.append("a tool without a name")
            continue
        if name in seen:
            faults.append(f"a second tool named {name[:80]!r}")
            continue
        schema, fault = _object_schema(item.get("inputSchema"))
        if schema is None:
            faults.append(f"{name[:80]!r}: {fault}")
            continue
        seen.add(name)
        good.append(_known_parts(name, item, schema))
    return good, faults


def _known_parts(name: str, item: Mapping[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    tool: dict[str, Any] = {"name": name, "inputSchema": schema}
    for key in ("title", "description"):
        if isinstance(item.get(key), str):
            tool[key] = item[key]
    hints = item.get("annotations")
    if isinstance(hints, dict):
        tool["annotations"] = {key: hints[key] for key in _HINTS if isinstance(hints.get(key), bool)}
        if isinstance(hints.get("title"), str):
            tool.setdefault("title", hints["title"])
    return tool


def _object_schema(schema: object) -> tuple[dict[str, Any] | None, str]:
    if schema is None:
        return {"type": "object"}, ""
    if not isinstance(schema, dict):
        return None, "its input schema is no object"
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        return None, f"its input schema describes a {kind!r}; tool arguments are an object"
    try:
        size = len(json.dumps(schema))
    except (ValueError, RecursionError):
        return None, "its input schema is nested too deeply"
    if size > LARGEST_SCHEMA:
        return None, f"its input schema has {size:,} characters, more than {LARGEST_SCHEMA:,}"
    return {**schema, "type": "object"}, ""


def provider_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of an input schema with what providers insist on: `properties` on top, `items` in arrays."""
    mended: dict[str, Any] = _mend(schema, 0)
    mended["type"] = "object"
    if not isinstance(mended.get("properties"), dict):
        mended["properties"] = {}
    mended.pop("$schema", None)
    return mended


def _mend(schema: Any, depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth >= _DEEPEST:
        return schema
    mended = dict(schema)
    for key, value in schema.items():
        if key in _SUBSCHEMAS and isinstance(value, dict):
            mended[key] = {name: _mend(part, depth + 1) for name, part in value.items()}
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            mended[key] = [_mend(part, depth + 1) for part in value]
        elif key in ("items", "additionalProperties", "not"):
            mended[key] = _mend(value, depth + 1)
    kind = mended.get("type")
    if (kind == "array" or (isinstance(kind, list) and "array" in kind)) and "items" not in mended:
        mended["items"] = {}
    return mended


def read_annotations(hints: Mapping[str, Any]) -> Annotations:
    """Annotations from a server's hints; what it does not say is taken as the careful case."""
    read_only = hints.get("readOnlyHint") is True
    return Annotations(
        read_only=read_only,
        destructive=not read_only and hints.get("destructiveHint") is not False,
        open_world=hints.get("openWorldHint") is not False,
        stated=any(hint in hints for hint in ("readOnlyHint", "destructiveHint")),
    )


def short_description(text: str) -> str:
    """A description of at most `LONGEST_DESCRIPTION` characters."""
    text = text.strip()
    return text if len(text) <= LONGEST_DESCRIPTION else text[: LONGEST_DESCRIPTION - 1].rstrip() + "…"


def mend_call_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """A raw `tools/call` result in which no odd part costs the rest: parts that are no valid MCP become a
    line of text that says what was left out."""
    mended = dict(result)
    content = result.get("content")
    if content is None and "resultType" not in result:
        mended["content"] = []
    elif isinstance(content, str):
        mended["content"] = [{"type": "text", "text": content}]
    elif isinstance(content, list):
        mended["content"] = [part if _is_valid_part(part) else _left_out(part) for part in content]
    if "isError" in result and not isinstance(result["isError"], bool):
        mended["isError"] = bool(result["isError"])
    return mended


@cache
def _parts() -> TypeAdapter[Any]:
    from mcp_types import ContentBlock  # slow to load; where there is a result it is there

    return TypeAdapter(ContentBlock)


def _is_valid_part(part: object) -> bool:
    try:
        _parts().validate_python(part, by_name=False)
    except ValidationError:
        return False
    return True


def _left_out(part: object) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    named = f" of type {str(kind)[:40]!r}" if kind is not None else ""
    return {"type": "text", "text": f"[a part{named} was left out: it is not valid MCP content]"}
