"""Tool schemas as providers accept them.

One schema that a provider dislikes makes it refuse the whole request, even for "hi". So each is mended,
and a tool whose schema cannot be mended is left out with a warning.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from agent.models.base import ToolSpec

log = logging.getLogger("causeway.models")

Dialect: TypeAlias = Literal["openai", "anthropic", "gemini"]
#: Deeper schemas are taken for endless ones.
DEEPEST = 40
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
#: Not allowed beside a tool schema's outermost `type: object`.
_NOT_OUTERMOST = ("oneOf", "anyOf", "allOf", "not", "enum", "if", "then", "else")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONES = ("items", "additionalProperties", "not", "contains", "if", "then", "else", "propertyNames")


class Unmendable(ValueError):
    """The schema cannot be brought into a form that providers accept."""


def mend(schema: object, dialect: Dialect) -> dict[str, Any]:
    """A tool's schema as `dialect` accepts it, the original untouched. Raises Unmendable.

    OpenAI wants `properties` at the outermost object and `items` in every array; Gemini refuses objects
    with empty `properties`; both refuse alternatives at the outermost level, so those become optional
    properties of one object.
    """
    if schema in (None, True):
        schema = {}
    if not isinstance(schema, dict):
        raise Unmendable(f"its parameters are no JSON Schema object but {type(schema).__name__}")
    outer = {key: value for key, value in schema.items() if key not in ("$schema", "$id", *_NOT_OUTERMOST)}
    kind = outer.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise Unmendable(f"its parameters are of type {kind!r}, not object")
    properties = dict(_alternatives(schema))
    own = outer.get("properties")
    if isinstance(own, dict):
        properties.update(own)
    outer["type"] = "object"
    outer["properties"] = properties
    if not isinstance(outer.get("required", []), list):
        del outer["required"]
    mended = _walk(outer, dialect, 0)
    if not isinstance(mended, dict):  # pragma: no cover - an object stays an object
        raise Unmendable("its parameters are no object")
    return mended


def _alternatives(schema: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for key in ("allOf", "anyOf", "oneOf"):
        members = schema.get(key)
        for member in members if isinstance(members, list) else []:
            inner = member.get("properties") if isinstance(member, dict) else None
            if isinstance(inner, dict):
                properties = {**inner, **properties}
    return properties


def _walk(node: Any, dialect: Dialect, depth: int) -> Any:
    if depth > DEEPEST:
        raise Unmendable(f"its parameters are nested more than {DEEPEST} deep")
    if not isinstance(node, dict):
        return node
    mended = dict(node)
    for key in _MAPS:
        inner = mended.get(key)
        if isinstance(inner, dict):
            mended[key] = {
                str(name): _walk(_no_bool(part), dialect, depth + 1) for name, part in inner.items()
            }
        elif key in mended:
            del mended[key]
    for key in _LISTS:
        if isinstance(mended.get(key), list):
            mended[key] = [_walk(_no_bool(part), dialect, depth + 1) for part in mended[key]]
    for key in _ONES:
        if isinstance(mended.get(key), dict):
            mended[key] = _walk(mended[key], dialect, depth + 1)
    kinds = mended.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "array" in kinds and not isinstance(mended.get("items"), dict):
        mended["items"] = {"type": "string"} if dialect == "gemini" else {}
    if dialect == "gemini" and mended.get("properties") == {}:
        del mended["properties"]
    return mended


def _no_bool(part: Any) -> Any:
    return {} if part is True else part


class ToolRenderer:
    """Renders tools to a protocol's words, keeping what it did: tools stay the same over many requests."""

    _MOST_KEPT = 2000

    def __init__(
        self,
        dialect: Dialect,
        render: Callable[[ToolSpec, dict[str, Any]], dict[str, Any]],
        *,
        most: int | None = None,
    ) -> None:
        """`most` is how many tools the provider takes in one request; the rest is left out with a warning."""
        self._dialect = dialect
        self._render = render
        self._most = most
        # By the identity of the schema, which the value keeps alive.
        self._known: dict[tuple[int, str, str], tuple[object, dict[str, Any] | None]] = {}

    def __call__(self, tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
        rendered: dict[str, dict[str, Any]] = {}
        for spec in tools:
            key = (id(spec.parameters), spec.name, spec.description)
            known = self._known.get(key)
            if known is None or known[0] is not spec.parameters:
                if len(self._known) >= self._MOST_KEPT:
                    self._known.clear()
                known = self._known[key] = (spec.parameters, self._one(spec))
            if known[1] is not None:
                rendered.setdefault(spec.name, known[1])
        if self._most is not None and len(rendered) > self._most:
            log.warning(
                "%d tools are left out: the provider takes %d", len(rendered) - self._most, self._most
            )
            return list(rendered.values())[: self._most]
        return list(rendered.values())

    def _one(self, spec: ToolSpec) -> dict[str, Any] | None:
        if not _NAME.fullmatch(spec.name):
            log.warning(
                "The tool %r is left out: providers accept only names of 1 to 64 letters, digits, _ and -",
                spec.name,
            )
            return None
        try:
            return self._render(spec, mend(spec.parameters, self._dialect))
        except (Unmendable, RecursionError) as error:
            reason = str(error) if isinstance(error, Unmendable) else "its parameters contain themselves"
            log.warning("The tool %s is left out: %s", spec.name, reason)
            return None
