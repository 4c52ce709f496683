"""The demo model's way to fill a tool's parameters from what a person wrote. Pure functions."""

from __future__ import annotations

import json
import re
from typing import Any

from agent.models.base import ToolSpec

_PAIR = re.compile(r"""([A-Za-z_][\w.-]*)\s*[=＝]\s*("(?:[^"\\]|\\.)*"|'[^']*'|“[^”]*”|[^\s,，]+)""")


def parse_arguments(tool: ToolSpec, rest: str) -> dict[str, Any]:
    """Arguments from `{json}`, from `key=value` pairs, or bare words for a tool with one text parameter.

    Raises ValueError for a broken JSON object.
    """
    rest = re.sub(r"^(with|and|参数)\b\s*", "", rest.strip(), flags=re.I)
    if rest.startswith(("{", "```")):
        start = rest.find("{")
        try:
            value, _ = json.JSONDecoder(strict=False).raw_decode(rest[start:] if start >= 0 else rest)
        except (ValueError, RecursionError) as error:
            raise ValueError(str(error) or "nested too deeply") from None
        if not isinstance(value, dict):
            raise ValueError("not an object")
        return value
    properties = properties(tool)
    pairs = {
        key: typed(unquote(value), properties.get(key))
        for key, value in _PAIR.findall(rest)
        if key in properties
    }
    if pairs or not rest:
        return pairs
    texts = [name for name in required(tool) or list(properties) if kind(properties.get(name)) == "string"]
    return {texts[0]: unquote(rest)} if len(texts) == 1 else {}


def unquote(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and (text[0], text[-1]) in (('"', '"'), ("'", "'"), ("“", "”"), ("`", "`")):
        inner = text[1:-1]
        return (
            inner.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\") if text[0] == '"' else inner
        )
    return text


def typed(text: str, schema: object) -> Any:
    kind = kind(schema)
    if kind == "string":
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return int(value) if kind == "integer" and isinstance(value, float) and value.is_integer() else value


def kind(schema: object) -> str:
    kind = schema.get("type", "string") if isinstance(schema, dict) else ""
    return (
        next((str(one) for one in kind if one != "null"), "string") if isinstance(kind, list) else str(kind)
    )


def properties(tool: ToolSpec) -> dict[str, Any]:
    found = tool.parameters.get("properties") if isinstance(tool.parameters, dict) else None
    return found if isinstance(found, dict) else {}


def required(tool: ToolSpec) -> list[str]:
    found = tool.parameters.get("required") if isinstance(tool.parameters, dict) else None
    return [str(name) for name in found] if isinstance(found, list) else []


def example(tool: ToolSpec) -> str:
    names = required(tool) or list(properties(tool))[:1]
    return " ".join(f"{name}=…" for name in names)


_ALIASES = {
    "path": ("path", "file", "file_path", "filename", "name"),
    "content": ("content", "text", "body", "data"),
    "query": ("query", "pattern", "q", "text", "words", "regex"),
    "url": ("url", "uri", "link"),
}


def parameter(tool: ToolSpec, meaning: str) -> str:
    """The tool's own name for a parameter of that meaning."""
    properties = properties(tool)
    known = next((name for name in _ALIASES[meaning] if name in properties), None)
    return known or next(iter(required(tool)), meaning)
