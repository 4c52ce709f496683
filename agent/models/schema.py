"""Tool schemas as providers accept them.

One schema that a provider dislikes makes it refuse the whole request, even for "hi". So each is mended,
and a tool whose schema cannot be mended is left out with a warning. The original stays what a call's
arguments are checked against.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

from agent.models.base import ToolSpec
from agent.models.schema_gemini import Node, for_gemini, kinds_of

log = logging.getLogger("causeway.models")

Dialect: TypeAlias = Literal["openai", "anthropic", "gemini"]
#: Deeper schemas are taken for endless ones.
DEEPEST = 40
#: Characters of JSON that a mended schema may have: a model reads each at every step.
LARGEST = 20_000
#: Characters of JSON that references may bring in, and the depth from which on they are cut.
_MOST_INLINED = 60_000
_DEEPEST_REFERENCE = 20
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ANTHROPIC_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
#: Not allowed beside a tool schema's outermost `type: object`.
_NOT_OUTERMOST = ("oneOf", "anyOf", "allOf", "not", "enum", "const", "if", "then", "else")
_MAPS = ("properties", "patternProperties", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONES = ("items", "additionalProperties", "not", "contains", "if", "then", "else", "propertyNames")
#: What has done its work, or means nothing to a model, once references are written out.
_DROPPED = frozenset(
    {"$schema", "$id", "id", "$ref", "$defs", "definitions", "$anchor", "$comment", "$vocabulary",
     "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"}
)  # fmt: skip
#: Keywords that a model needs for no call.
_SAYS_NOTHING = frozenset({"title", "examples", "example", "$comment", "deprecated", "readOnly", "writeOnly"})
_SENTENCE = re.compile(r"[.!?](?=\s)|[。！？]")
_KINDS = ("object", "array", "string", "number", "integer", "boolean", "null")
_SHAPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("title", "description", "pattern", "format"), str),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), (int, float)),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), int),
    **dict.fromkeys(("minProperties", "maxProperties"), int), "multipleOf": (int, float),
    **dict.fromkeys(_MAPS, dict), **dict.fromkeys(_LISTS, list),
    "type": (str, list), "required": list, "enum": list, "items": (dict, list),
}  # fmt: skip


class Unmendable(ValueError):
    """The schema cannot be brought into a form that providers accept."""


def mend(schema: object, dialect: Dialect) -> Node:
    """A tool's schema as `dialect` accepts it, the original untouched. Raises Unmendable.

    No `$ref` is left: local ones are written out (one that leads back to itself ends in an open object),
    others are never followed and stand for anything. OpenAI wants `properties` at the outermost object and
    `items` in every array; Gemini knows only a part of JSON Schema and refuses objects with empty
    `properties`; all refuse alternatives at the outermost level, so those become optional properties of one
    object.
    """
    if schema in (None, True):
        schema = {}
    if not isinstance(schema, dict):
        raise Unmendable(f"its parameters are no JSON Schema object but {type(schema).__name__}")
    mender = _Mender(schema, dialect)
    whole, refs = mender.resolved(schema, 0, ())
    outer = {key: value for key, value in whole.items() if key not in _NOT_OUTERMOST}
    kind = outer.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise Unmendable(f"its parameters are of type {kind!r}, not object")
    properties, required = mender.alternatives(whole, refs)
    own = outer.get("properties")
    if isinstance(own, dict):
        properties.update(own)
    outer |= {"type": "object", "properties": properties}
    listed = outer.get("required")
    needed = [*(listed if isinstance(listed, list) else []), *required]
    if dialect == "anthropic":
        _refuse_odd_keys(properties, needed)
    if needed:
        outer["required"] = needed
    mended = mender.node(outer, 0, refs)
    assert mended is not None  # only `false` gives none
    return mended


def _refuse_odd_keys(properties: Node, needed: Sequence[Any]) -> None:
    for key in [key for key in properties if not _ANTHROPIC_KEY.fullmatch(key)]:
        if key in needed:
            raise Unmendable(f"its parameter {key[:80]!r} has a name that the provider refuses")
        del properties[key]


class _Mender:
    """Walks one schema. `refs` are the references that led to a node, outermost first."""

    def __init__(self, root: Node, dialect: Dialect) -> None:
        self._root = root
        self._gemini = dialect == "gemini"
        self._room = _MOST_INLINED
        self._sizes: dict[str, int] = {}

    def node(self, part: Any, depth: int, refs: tuple[str, ...]) -> Node | None:
        """A mended copy of a subschema; None for one that nothing fits."""
        if depth > DEEPEST:
            raise Unmendable(f"its parameters are nested more than {DEEPEST} deep")
        if part is False:
            return None
        raw, refs = self.resolved(part if isinstance(part, dict) else {}, depth, refs)
        mended = {key: value for key, value in raw.items() if key not in _DROPPED and _has_shape(key, value)}
        _exclusive_bounds(mended)
        for key in _MAPS:
            if key in mended:
                parts = ((str(name), self.node(part, depth + 1, refs)) for name, part in mended[key].items())
                mended[key] = {name: part for name, part in parts if part is not None}
        if isinstance(mended.get("items"), list):
            tuples = [item for item in mended["items"] if isinstance(item, dict)]
            mended["items"] = {"anyOf": tuples} if len(tuples) > 1 else (tuples or [{}])[0]
        for key in _LISTS:
            if key in mended:
                members = [self.node(member, depth + 1, refs) for member in mended.pop(key)]
                if some := [member for member in members if member is not None]:
                    mended[key] = some
        for key in _ONES:
            if isinstance(mended.get(key), dict):
                mended[key] = self.node(mended[key], depth + 1, refs)
        _known_kinds(mended)
        if "required" in mended:
            names = dict.fromkeys(name for name in mended["required"] if isinstance(name, str))
            if names:
                mended["required"] = list(names)
            else:
                del mended["required"]
        if "array" in kinds_of(mended) and not isinstance(mended.get("items"), dict):
            mended["items"] = {"type": "string"} if self._gemini else {}
        return for_gemini(mended) if self._gemini else mended

    def resolved(self, node: Node, depth: int, refs: tuple[str, ...]) -> tuple[Node, tuple[str, ...]]:
        """The node with its own reference written out; what stands beside a reference counts more."""
        while "$ref" in node:
            ref = node["$ref"]
            beside = {key: value for key, value in node.items() if key != "$ref"}
            target = self._target(ref) if isinstance(ref, str) else None
            if target is None:
                return beside, refs
            if refs.count(ref) >= 2 or depth > _DEEPEST_REFERENCE or self._room <= 0:
                kind = target.get("type")
                return {"type": kind if isinstance(kind, str) else "object"} | beside, refs
            if ref not in self._sizes:
                self._sizes[ref] = _size(target)
            self._room -= self._sizes[ref]
            refs = (*refs, ref)
            node = target | beside
        return node, refs

    def _target(self, ref: str) -> Node | None:
        """What a pointer into this schema leads to. Nothing outside of it is ever fetched."""
        if not ref.startswith("#"):
            return None
        place: Any = self._root
        for step in unquote(ref[1:]).split("/")[1:] if ref.startswith("#/") else ref[1:].split():
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(place, dict) and key in place:
                place = place[key]
            elif isinstance(place, list) and key.isdecimal() and int(key) < len(place):
                place = place[int(key)]
            else:
                return None
        return place if isinstance(place, dict) else None

    def alternatives(self, schema: Node, refs: tuple[str, ...]) -> tuple[Node, list[Any]]:
        """The properties that the outermost alternatives name, and which of them are always required."""
        properties: Node = {}
        required: list[Any] = []
        for key in ("allOf", "anyOf", "oneOf"):
            members = schema.get(key)
            for member in members if isinstance(members, list) else []:
                inner, _ = self.resolved(member, 1, refs) if isinstance(member, dict) else ({}, ())
                if isinstance(inner.get("properties"), dict):
                    properties = {**inner["properties"], **properties}
                if key == "allOf" and isinstance(inner.get("required"), list):
                    required += inner["required"]
        return properties, required


def _size(part: Any) -> int:
    try:
        return len(json.dumps(part, ensure_ascii=False, default=str))
    except ValueError:  # it contains itself
        raise Unmendable("its parameters contain themselves") from None


def _has_shape(key: str, value: Any) -> bool:
    shape = _SHAPES.get(key)
    if shape is None:
        return True
    # true is an int in Python, and a bound in the old drafts of JSON Schema.
    old_bound = key.startswith("exclusive") and isinstance(value, bool)
    right = isinstance(value, shape) and not isinstance(value, bool)
    return (right and value != []) or old_bound


def _exclusive_bounds(node: Node) -> None:
    """`exclusiveMinimum: true` beside `minimum`, as in draft 4, becomes a number."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(node.get(exclusive), bool) and node.pop(exclusive) and bound in node:
            node[exclusive] = node.pop(bound)


def _known_kinds(node: Node) -> None:
    """Only types that JSON Schema has; a list of one is that one."""
    known = list(dict.fromkeys(kind for kind in kinds_of(node) if kind in _KINDS))
    if known:
        node["type"] = known[0] if len(known) == 1 else known
    else:
        node.pop("type", None)


# Size ----------------------------------------------------------------------------------------------------


def fit(schema: Node, limit: int = LARGEST) -> tuple[Node, str]:
    """The mended schema with at most about `limit` characters of JSON, and what that cost in words.

    What may be left out of a call goes first: its descriptions, then whole properties, largest first; then
    what required properties say of their parts. Raises Unmendable when even their names are too much.
    """
    if _size(schema) <= limit:
        return schema, ""
    needed = set(schema.get("required", []))
    properties = {
        name: part if name in needed else _without_words(part)
        for name, part in schema.get("properties", {}).items()
    }
    rest = {key: value for key, value in schema.items() if key in ("type", "required", "description")}
    left_out = "the descriptions of its optional parameters"
    sizes = {name: len(name) + 6 + _size(part) for name, part in properties.items()}
    room = limit - _size(rest) - 20
    optional = sorted((name for name in sizes if name not in needed), key=sizes.__getitem__)
    dropped = 0
    while optional and sum(sizes.values()) > room:
        name = optional.pop()
        del properties[name], sizes[name]
        dropped += 1
    if dropped:
        left_out += f", {dropped} of them altogether"
    if sum(sizes.values()) > room:
        properties = {name: _outline(part) for name, part in properties.items()}
        left_out += ", the inner parts of the required ones"
    fitted = {**rest, "properties": properties}
    if _size(fitted) > limit:
        raise Unmendable(f"its required parameters alone have more than {limit:,} characters")
    return fitted, left_out


def _walked(part: Any, keep: Callable[[str, Any], Node]) -> Any:
    """A copy of a schema of whose keywords those stay that `keep` gives back, as it gives them."""
    if isinstance(part, list):
        return [_walked(item, keep) for item in part]
    if not isinstance(part, dict):
        return part
    kept: Node = {}
    for key, value in part.items():
        if key in (*_MAPS, "$defs", "definitions") and isinstance(value, dict):
            kept[key] = {name: _walked(inner, keep) for name, inner in value.items()}
        elif key in (*_LISTS, *_ONES):
            kept[key] = _walked(value, keep)
        else:
            kept |= keep(key, value)
    return kept


def _without_words(part: Any) -> Any:
    words = ("description", "title", "examples", "default")
    return _walked(part, lambda key, value: {} if key in words else {key: value})


def _outline(part: Node) -> Node:
    short: Node = {key: part[key] for key in ("type", "nullable") if key in part}
    if isinstance(part.get("description"), str):
        short["description"] = part["description"][:200]
    return short | {"items": {}} if "array" in kinds_of(part) else short


def trimmed(spec: ToolSpec, longest: int = 0, *, plain: bool = False) -> ToolSpec:
    """A shorter definition for the same tool, for tools whose makers were generous with words.

    Descriptions, of the tool and of its parameters, have at most `longest` characters (0: whole). `plain`
    leaves out titles, examples, empty descriptions and null defaults. Names, types, `required` and choices
    are kept. The same definition always becomes the same, so what a provider cached stays cached.
    """
    if not longest and not plain:
        return spec

    def keep(key: str, value: Any) -> Node:
        if key == "description" and isinstance(value, str):
            return {key: shorter(value, longest)} if value.strip() or not plain else {}
        idle = key in _SAYS_NOTHING or (key == "default" and value is None)
        return {} if plain and idle else {key: value}

    try:
        parameters = _walked(spec.parameters, keep)
    except RecursionError:  # it contains itself; the renderer says so
        parameters = spec.parameters
    return ToolSpec(spec.name, shorter(spec.description, longest), parameters)


def shorter(text: str, longest: int) -> str:
    """The text, cut to at most `longest` characters (0: whole) where a sentence ends, else a word."""
    if not longest or len(text) <= longest:
        return text
    head = text[:longest]
    end = max((end.end() for end in _SENTENCE.finditer(text[: longest + 1])), default=0)
    if longest // 2 <= end <= longest:
        return head[:end]
    space = head.rfind(" ")
    return (head[:space] if space >= longest // 2 else head[:-1]).rstrip(" ,;:") + "…"


class ToolRenderer:
    """Renders tools to a protocol's words, keeping what it did: tools stay the same over many requests."""

    _MOST_KEPT = 2000

    def __init__(
        self, dialect: Dialect, render: Callable[[ToolSpec, Node], Node], *, most: int | None = None
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
            over = len(rendered) - self._most
            log.warning("%d tools are left out: the provider takes %d", over, self._most)
        return list(rendered.values())[: self._most]

    def _one(self, spec: ToolSpec) -> dict[str, Any] | None:
        try:
            if not _NAME.fullmatch(spec.name):
                raise Unmendable("providers accept only names of 1 to 64 letters, digits, _ and -")
            schema, left_out = fit(mend(spec.parameters, self._dialect))
            if left_out:
                log.warning("The schema of %s is too large; models are not shown %s", spec.name, left_out)
            return self._render(spec, schema)
        except (Unmendable, RecursionError) as error:
            reason = error if isinstance(error, Unmendable) else "its parameters contain themselves"
            log.warning("The tool %r is left out: %s", spec.name, reason)
            return None
