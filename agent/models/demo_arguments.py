"""The demo model's way to fill a tool's parameters from what a person wrote. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from agent.models.base import ToolSpec

_TAIL = re.compile(r"(\s+and|\s*和)?[\s,，;]*$", re.I)
_QUOTED = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'[^']*'|“[^”]*”|`[^`]*`)""")


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
    known = properties(tool)
    pairs = {key: typed(value, known[key]) for key, value in _pairs(list(known), rest)}
    if pairs or not rest:
        return pairs
    texts = [name for name in required(tool) or list(known) if kind(known.get(name)) == "string"]
    return {texts[0]: unquote(rest)} if len(texts) == 1 else {}


def _pairs(names: list[str], text: str) -> Iterator[tuple[str, str]]:
    """The `name=value` pairs of known names; a value without quotes ends before the next name."""
    if not names:
        return
    key = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, names))})\s*[=＝]", re.I)
    originals = {name.lower(): name for name in names}
    found = key.search(text)
    while found is not None:
        quoted = _QUOTED.match(text, found.end())
        following = key.search(text, quoted.end() if quoted else found.end())
        end = following.start() if following else len(text)
        value = quoted[1] if quoted else _TAIL.sub("", text[found.end() : end])
        yield originals[found[1].lower()], unquote(value)
        found = following


def unquote(text: str) -> str:
    text = text.strip()
    if len(text) < 2 or text[0] + text[-1] not in ('""', "''", "“”", "``"):
        return text
    inner = text[1:-1]
    return inner.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\") if text[0] == '"' else inner


def typed(text: str, schema: object) -> Any:
    wanted = kind(schema)
    if wanted == "string":
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return int(value) if wanted == "integer" and isinstance(value, float) and value.is_integer() else value


def kind(schema: object) -> str:
    found = schema.get("type", "string") if isinstance(schema, dict) else ""
    if isinstance(found, list):
        return next((str(one) for one in found if one != "null"), "string")
    return str(found)


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
    names = properties(tool)
    known = next((name for name in _ALIASES[meaning] if name in names), None)
    return known or next(iter(required(tool)), meaning)
