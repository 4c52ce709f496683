"""A call's arguments, checked against the tool's JSON Schema before the tool runs.

What models often get nearly right is mended without a round trip: a number or truth value written as a
string, an array or object written as JSON text, null for something that may be left out. Everything else
is refused with words that tell the model what to change.
"""

from __future__ import annotations

import copy
import difflib
import json
import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agent.tools.base import ToolFailure

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

log = logging.getLogger("causeway.tools")

_MAX_COMPILED = 256
_MAX_FAULTS = 5
_PATTERN_SECONDS = 0.05


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
        ready = _mend(schema, dict(arguments))
        validator = self._validator(name, schema)
        if validator is None:
            return ready
        try:
            faults = sorted(
                validator.iter_errors(ready), key=lambda fault: [str(p) for p in fault.absolute_path]
            )
        except Exception as error:  # noqa: BLE001
            # A reference that leads nowhere, or endless recursion, in a schema that a server gave us. The
            # library has no common base for these, and the call must not fail for them.
            log.warning("tool %s: its schema cannot be used, arguments go unchecked: %s", name, error)
            self._compiled[id(schema)] = (schema, None)
            return ready
        if faults:
            raise _refusal(name, schema, faults)
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
    checked = validators.extend(base, {"pattern": _pattern})  # type: ignore[no-untyped-call]
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


def _mend(schema: Mapping[str, Any], arguments: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or depth > 8:
        return arguments
    required = schema.get("required", ())
    for name, part in properties.items():
        if not isinstance(part, dict):
            continue
        if name not in arguments:
            if "default" in part:
                arguments[name] = copy.deepcopy(part["default"])
            continue
        kinds = part.get("type")
        value = arguments[name]
        if value is None and name not in required and isinstance(kinds, str) and kinds != "null":
            del arguments[name]
            if "default" in part:
                arguments[name] = copy.deepcopy(part["default"])
        elif isinstance(value, str):
            arguments[name] = _from_text(kinds, value)
        elif isinstance(value, dict):
            arguments[name] = _mend(part, dict(value), depth + 1)
    return arguments


_JSON_KINDS: dict[str, tuple[type, ...]] = {
    "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,), "object": (dict,),
}  # fmt: skip


def _from_text(kind: object, value: str) -> Any:
    """The value that a string spells when the schema wants that kind and no string; else the string."""
    if not isinstance(kind, str) or kind not in _JSON_KINDS or len(value) > 100_000:
        return value
    text = value.strip()
    try:
        meant = json.loads(text.lower() if kind == "boolean" else text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return value
    if isinstance(meant, bool) and kind != "boolean":
        return value
    return meant if isinstance(meant, _JSON_KINDS[kind]) else value


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _refusal(name: str, schema: Mapping[str, Any], faults: list[ValidationError]) -> ToolFailure:
    lines = [_describe(fault) for fault in faults[:_MAX_FAULTS]]
    if len(faults) > _MAX_FAULTS:
        lines.append(f"and {len(faults) - _MAX_FAULTS} more")
    return ToolFailure(
        f"The arguments of {name} are not right, so it was not run:",
        "; ".join(lines) + ".",
        f"It takes: {_summary(schema)}. Correct the arguments and call it again.",
    )


def _describe(fault: ValidationError) -> str:
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
        case "pattern":
            return f"{at}must match the pattern {_cut(str(wanted))}"
        case _:
            rule = f"{fault.validator}: {_cut(_spelled(wanted))}"
            return f"{at}breaks the rule {rule} (it is {_cut(_spelled(found))})"


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
        kind = part.get("type", "any value") if isinstance(part, dict) else "any value"
        kind = kind if isinstance(kind, str) else " or ".join(map(str, kind))
        words.append(f"{key} ({kind}{', required' if key in required else ''})")
    return ", ".join(words)


def _spelled(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _cut(text: str) -> str:
    return text if len(text) <= 120 else text[:120] + "..."
