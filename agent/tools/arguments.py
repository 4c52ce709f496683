"""A call's arguments, checked against the tool's JSON Schema before the tool runs.

What models often get nearly right is mended without a round trip: a number or truth value written as a
string, an array or object written as JSON text, null for something that may be left out. Everything else
is refused with words that tell the model what to change, also a name that the schema would let pass but
that is nearly one which it knows: the tool would quietly do without it.
"""

from __future__ import annotations

import copy
import datetime
import difflib
import json
import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agent.tools.base import ToolFailure

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

log = logging.getLogger("causeway.tools")

_MAX_COMPILED = 256
_MAX_FAULTS = 5
_PATTERN_SECONDS = 0.05
#: Parts inside parts that are looked into.
_DEEPEST = 8


class ArgumentChecker:
    """Checks arguments; keeps the compiled validators of the schemas used last."""

    def __init__(self) -> None:
        # Keyed by identity, since hashing a schema costs more than validating by it. The entry holds the
        # schema, so that its id is not used again while the entry lives.
        self._compiled: OrderedDict[int, tuple[dict[str, Any], Validator | None]] = OrderedDict()

    def check(self, name: str, schema: dict[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the tool gets them: a copy, mended, with defaults filled in.

        Raises ToolFailure when they do not fit. A schema that cannot be used lets everything through: the
        tool is then its own judge.
        """
        validator = self._validator(name, schema)
        try:
            ready = _Mender(schema, validator).mended(schema, dict(arguments))
            if validator is None:
                return ready
            faults = sorted(
                validator.iter_errors(ready), key=lambda fault: [str(p) for p in fault.absolute_path]
            )
        except Exception as error:  # noqa: BLE001
            # A reference that leads nowhere, or endless recursion, in a schema that a server gave us. The
            # library has no common base for these, and the call must not fail for them.
            log.warning("tool %s: its schema cannot be used, arguments go unchecked: %s", name, error)
            self._compiled[id(schema)] = (schema, None)
            return dict(arguments)
        strays = _strays(schema, arguments)
        if faults or strays:
            raise _refusal(name, schema, faults, strays)
        return ready

    def _validator(self, name: str, schema: dict[str, Any]) -> Validator | None:
        entry = self._compiled.get(id(schema))
        if entry is None:
            entry = (schema, _compile(name, schema))
            self._compiled[id(schema)] = entry
            if len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
        else:
            self._compiled.move_to_end(id(schema))
        return entry[1]


def _compile(name: str, schema: dict[str, Any]) -> Validator | None:
    from jsonschema import Draft202012Validator, validators
    from jsonschema.exceptions import SchemaError
    from referencing import Registry

    base = validators.validator_for(schema, default=Draft202012Validator)
    try:
        base.check_schema(schema)
    except SchemaError as error:
        log.warning("tool %s: its schema is invalid, arguments go unchecked: %s", name, error.message[:200])
        return None
    checked = validators.extend(base, {"pattern": _pattern, "format": _format})  # type: ignore[no-untyped-call]
    # An empty registry: the default one fetches references from the network.
    registry: Registry[Any] = Registry()
    validator: Validator = checked(schema, registry=registry)
    return validator


def _pattern(_: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """The keyword `pattern`, with a time limit: a schema comes from elsewhere, and so may its patterns."""
    import regex
    from jsonschema.exceptions import ValidationError

    if not isinstance(instance, str):
        return
    try:
        found = regex.search(pattern, instance, timeout=_PATTERN_SECONDS)
    except (regex.error, TimeoutError, RecursionError):
        return
    if not found:
        yield ValidationError(f"does not match the pattern {pattern!r}")


#: Formats that are checked, each with an example. Others are hints: what they allow differs too much.
_FORMATS: dict[str, tuple[Callable[[str], object], str]] = {
    "date": (datetime.date.fromisoformat, "2026-01-31"),
    "date-time": (datetime.datetime.fromisoformat, "2026-01-31T12:00:00Z"),
    "time": (datetime.time.fromisoformat, "12:00:00Z"),
    "uuid": (uuid.UUID, "123e4567-e89b-42d3-a456-426614174000"),
}


def _format(_: Any, name: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """The keyword `format`, for those that a program can tell and a model can put right."""
    from jsonschema.exceptions import ValidationError

    if not isinstance(instance, str) or not isinstance(name, str) or name not in _FORMATS:
        return
    try:
        _FORMATS[name][0](instance)
    except ValueError:
        yield ValidationError(f"is no {name}")


class _Mender:
    """Puts right what is nearly right, and fills in defaults. `root` is where references point into."""

    def __init__(self, root: dict[str, Any], validator: Validator | None) -> None:
        self._root = root
        self._validator = validator

    def mended(self, schema: Mapping[str, Any], arguments: dict[str, Any], depth: int = 0) -> dict[str, Any]:
        """The arguments of an object, changed in place."""
        schema = self._resolved(schema)
        properties = schema.get("properties")
        if not isinstance(properties, dict) or depth > _DEEPEST:
            return arguments
        required = schema.get("required", ())
        for name, written in properties.items():
            if not isinstance(written, dict):
                continue
            part = self._resolved(written)
            kinds = self._kinds(part)
            if name not in required and kinds and "null" not in kinds and arguments.get(name, "") is None:
                del arguments[name]
            if name in arguments:
                arguments[name] = self._value(part, kinds, arguments[name], depth)
            elif "default" in part and self._fits(part, part["default"]):
                arguments[name] = copy.deepcopy(part["default"])
        return arguments

    def _value(self, part: Mapping[str, Any], kinds: frozenset[str], value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return _from_text(kinds, value)
        if isinstance(value, dict):
            return self.mended(self._branch(part), dict(value), depth + 1)
        items = part.get("items")
        if isinstance(value, list) and isinstance(items, dict) and depth < _DEEPEST:
            inner = self._resolved(items)
            kinds = self._kinds(inner)
            return [self._value(inner, kinds, one, depth + 1) for one in value]
        return value

    def _resolved(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part with its local reference followed; what stands beside the reference counts more."""
        for _ in range(_DEEPEST):
            ref = part.get("$ref")
            if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
                return part
            place: Any = self._root
            for step in ref.split("/")[1:]:
                key = step.replace("~1", "/").replace("~0", "~")
                place = place.get(key) if isinstance(place, dict) else None
            if not isinstance(place, dict):
                return part
            part = {**place, **{key: value for key, value in part.items() if key != "$ref"}}
        return part

    def _kinds(self, part: Mapping[str, Any]) -> frozenset[str]:
        """The types that a value may have; empty when the schema does not say."""
        kinds = part.get("type")
        if isinstance(kinds, str):
            return frozenset((kinds,))
        if isinstance(kinds, list):
            return frozenset(kind for kind in kinds if isinstance(kind, str))
        inner = [self._kinds(self._resolved(one)) for one in _choices(part)]
        return frozenset().union(*inner) if inner and all(inner) else frozenset()

    def _branch(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part, or the one object among its alternatives (an optional object is written like that)."""
        objects = [one for one in map(self._resolved, _choices(part)) if "object" in self._kinds(one)]
        return objects[0] if len(objects) == 1 and "properties" not in part else part

    def _fits(self, part: Mapping[str, Any], default: Any) -> bool:
        """Whether a default obeys its own schema: some servers write null beside `type: string`."""
        if self._validator is None:
            return True
        return bool(self._validator.evolve(schema=dict(part)).is_valid(default))


def _choices(part: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = part.get("anyOf") or part.get("oneOf") or []
    return [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []


_JSON_KINDS: dict[str, tuple[type, ...]] = {
    "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,), "object": (dict,),
}  # fmt: skip


_BOOLEANS = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false"}


def _from_text(kinds: frozenset[str], value: str) -> Any:
    """The value that a string spells when the schema wants one of those kinds and no string; else the
    string."""
    wanted = [kind for kind in kinds if kind in _JSON_KINDS]
    if "string" in kinds or not wanted or len(value) > 100_000:
        return value
    text = value.strip()
    try:
        meant = json.loads(_BOOLEANS.get(text, text), parse_constant=_no_number)
    except (ValueError, RecursionError):
        return value
    if isinstance(meant, bool):
        return meant if "boolean" in kinds else value
    return meant if any(isinstance(meant, _JSON_KINDS[kind]) for kind in wanted) else value


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _strays(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    """Names that the schema says nothing about, but that are nearly those of arguments which are missing."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or {"additionalProperties", "patternProperties"} & schema.keys():
        return []
    missing = [name for name in properties if name not in arguments]
    unknown = [name for name in arguments if name not in properties]
    return [
        f"`{_cut(name)}` is not known{nearest}" for name in unknown if (nearest := _nearest(name, missing))
    ]


def _refusal(
    name: str, schema: Mapping[str, Any], faults: list[ValidationError], strays: list[str]
) -> ToolFailure:
    lines = [*(_describe(fault) for fault in faults), *strays]
    if len(lines) > _MAX_FAULTS:
        lines = [*lines[:_MAX_FAULTS], f"and {len(lines) - _MAX_FAULTS} more"]
    return ToolFailure(
        f"The arguments of {name} are not right, so it was not run:",
        "; ".join(lines) + ".",
        f"It takes: {_summary(schema)}. Correct the arguments and call it again.",
    )


def _describe(fault: ValidationError, depth: int = 0) -> str:
    place = ".".join(str(part) for part in fault.absolute_path)
    at = f"`{place}` " if place else ""
    wanted: Any = fault.validator_value
    found: Any = fault.instance
    match fault.validator:
        case "required":
            missing = [key for key in wanted if key not in found]
            return at + "lacks " + ", ".join(f"`{key}`" for key in missing)
        case "additionalProperties" if wanted is False and isinstance(fault.schema, dict):
            known = list(fault.schema.get("properties", {}))
            return "; ".join(
                f"{at}`{_cut(str(key))}` is not known{_nearest(str(key), known)}"
                for key in found
                if key not in known
            )
        case "type":
            kinds = wanted if isinstance(wanted, str) else " or ".join(map(str, wanted))
            return f"{at}must be of type {kinds}, not {_cut(_spelled(found))}"
        case "enum":
            choices = ", ".join(_spelled(choice) for choice in wanted[:20])
            return f"{at}must be one of {choices}, not {_cut(_spelled(found))}"
        case "const":
            return f"{at}must be {_cut(_spelled(wanted))}, not {_cut(_spelled(found))}"
        case "pattern":
            return f"{at}must match the pattern {_cut(str(wanted))}"
        case "format":
            return f"{at}must be a {wanted} such as {_FORMATS[wanted][1]}, not {_cut(_spelled(found))}"
        case "anyOf" | "oneOf" if fault.context and depth < _DEEPEST:
            return f"{at}fits none of what it may be: {_alternatives(fault, depth)}"
        case "oneOf":
            return f"{at}fits more than one of what it may be; leave out what belongs to the other"
        case _:
            rule = f"{fault.validator}: {_cut(_spelled(wanted))}"
            return f"{at}breaks the rule {rule} (it is {_cut(_spelled(found))})"


def _alternatives(fault: ValidationError, depth: int) -> str:
    """What is wrong with a value by each of its alternatives, the nearest first."""
    branches: dict[object, list[ValidationError]] = {}
    for inner in fault.context:
        branches.setdefault(inner.schema_path[0], []).append(inner)
    # A fault inside the value says that its kind was right; fewer are nearer.
    nearest = sorted(branches.values(), key=lambda inner: (not any(one.path for one in inner), len(inner)))
    told = [" and ".join(_describe(one, depth + 1) for one in inner[:2]) for inner in nearest[:3]]
    if len(nearest) > 3:
        told.append(f"{len(nearest) - 3} more")
    return ", or ".join(told)


def _nearest(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, 1)
    return f", did you mean `{near[0]}`" if near else ""


def _summary(schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        return "no arguments"
    required = schema.get("required", ())
    words = []
    for key, part in list(properties.items())[:30]:
        part = part if isinstance(part, dict) else {}
        kind = part.get("type") or [one.get("type") for one in _choices(part) if one.get("type")]
        kind = kind if isinstance(kind, str) else " or ".join(map(str, kind)) or "any value"
        words.append(f"{key} ({kind}{', required' if key in required else ''})")
    return ", ".join(words)


def _spelled(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _cut(text: str) -> str:
    return text if len(text) <= 120 else text[:120] + "..."
