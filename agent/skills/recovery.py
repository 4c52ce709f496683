"""Frontmatter that is not YAML but whose meaning is plain: read field by field.

One bad value must not cost the others. The head is cut into its top-level fields; each is read as YAML
alone, then with tabs made spaces, then with colons in values quoted, and a field that is text is at last
taken as it stands. A field that limits the skill (`GUARDED`) is never guessed: if it cannot be read, that
is fatal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.nodes import MappingNode

from agent.skills.frontmatter import (
    GUARDED,
    KNOWN,
    BadValue,
    Fault,
    canonical,
    compose,
    field_value,
    without_surrogates,
)

_KEY = re.compile(r"""(?P<quote>["']?)(?P<key>[A-Za-z][\w.-]*)(?P=quote)[ \t]*:(?P<value>.*)\Z""")
_BLOCK = re.compile(r"[|>][-+0-9]{0,2}[ \t]*(#.*)?\Z")
#: A `key: value` line at any depth whose plain value holds a colon or hash that YAML trips over.
_TRIP = re.compile(r"(?P<head>[ \t]*(?:-[ \t]+)?[\w.-]+:[ \t]+)(?P<value>[^\s\"'\[{|>&*!#].*?: .*|.*:)\Z")
_MAX_JSON_DEPTH = 20


@dataclass(slots=True)
class _Field:
    key: str
    value: str
    line: int
    lines: list[str]


def recover(
    head: Sequence[str], first_line: int, error: yaml.YAMLError | None
) -> tuple[dict[str, Any], dict[str, int], tuple[Fault, ...]]:
    """Fields, lines and faults of a head that YAML as a whole refused with `error`, or that is no mapping."""
    faults: list[Fault] = []
    groups = list(_groups(head, first_line, faults))
    if not groups:
        reason = f"The frontmatter cannot be read{_problem(error)}"
        return {}, {}, (Fault(first_line, reason, "write one 'name: value' a line", fatal=True),)
    fields: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for group in groups:
        key = canonical(group.key)
        try:
            fields[key], repaired = _read(key, group)
        except (BadValue, RecursionError):
            reason = f"The field {group.key!r} is not valid YAML and says what the skill may do or needs"
            cure = "put its text in double quotes and indent it with spaces"
            faults.append(Fault(group.line, reason, cure, fatal=True))
            continue
        lines[key] = group.line
        if repaired:
            reason = f"The field {group.key!r} is not valid YAML{_problem(error)}; it was read as meant"
            faults.append(Fault(group.line, reason, "put its text in double quotes"))
    if not faults:
        mark = getattr(error, "problem_mark", None)
        line = first_line + (mark.line if mark else 0)
        reason = f"The frontmatter is not valid YAML{_problem(error)}; it was read line by line"
        faults.append(Fault(line, reason, "write one 'name: value' a line"))
    return fields, lines, tuple(faults)


def _problem(error: yaml.YAMLError | None) -> str:
    problem = getattr(error, "problem", None)
    return f" ({problem})" if isinstance(problem, str) else ""


def _groups(head: Sequence[str], first_line: int, faults: list[Fault]) -> Iterator[_Field]:
    """The top-level fields, each with all its lines. A line that begins none belongs to the one before."""
    current: _Field | None = None
    for number, raw in enumerate(head, first_line):
        line = raw.rstrip()
        match = _KEY.match(line)
        joined = match is not None and match["value"][:1] not in ("", " ", "\t")
        # `description:text` without a space is a field to its author; `http://...` is not.
        if match and not (joined and canonical(match["key"]) not in KNOWN):
            if current:
                yield current
            key, value = match["key"], match["value"].strip()
            current = _Field(key, value, number, [f"{key}: {value}" if joined else line])
        elif current and not raw.startswith("#"):
            current.lines.append(line)
        elif line and not raw.startswith("#"):
            faults.append(Fault(number, "The line belongs to no field", "write it as 'name: value'"))
    if current:
        yield current


def _read(key: str, group: _Field) -> tuple[Any, bool]:
    """The field's value and whether it had to be repaired. Raises BadValue for a guarded field."""
    spaced = _spaced(group.lines)
    # Quoting may join what was meant as two levels, so for text the plain text is taken instead.
    for lines in (group.lines, spaced, *([_quoted(spaced)] if key in GUARDED else [])):
        value = _as_yaml(key, lines)
        if value is not _NOTHING:
            return value, lines is not group.lines
    return _guarded(group) if key in GUARDED else _as_text(group), True


_NOTHING = object()


def _as_yaml(key: str, lines: Sequence[str]) -> Any:
    try:
        node = compose("\n".join(lines))
    except yaml.YAMLError:
        return _NOTHING
    if not isinstance(node, MappingNode) or len(node.value) != 1:
        return _NOTHING
    return field_value(key, node.value[0][1], lines)


def _spaced(lines: Sequence[str]) -> list[str]:
    """Tabs at the beginning and after a colon as spaces. Stops of eight keep a tabbed line the deeper one:
    a mix can then make the YAML invalid, but never lift a nested key to an upper level."""
    result = []
    for line in lines:
        rest = line.lstrip(" \t")
        indent = line[: len(line) - len(rest)].expandtabs(8)
        result.append(indent + re.sub(r":\t+", ": ", rest).replace("\t", " "))
    return result


def _quoted(lines: Sequence[str]) -> list[str]:
    result = []
    for line in lines:
        match = _TRIP.match(line)
        if match and match["value"].strip(" :"):
            quoted = match["value"].replace("'", "''")
            line = f"{match['head']}'{quoted}'"
        result.append(line)
    return result


def _guarded(group: _Field) -> Any:
    rest = "\n".join([group.value, *group.lines[1:]]).strip()
    if rest.startswith("{"):
        return from_json(rest)
    # `allowed-tools: Bash(git: *), Read`: one line of text loses nothing when it is taken literally.
    if canonical(group.key) == "allowedtools" and len(group.lines) == 1 and group.value[:1].isalpha():
        return group.value
    raise BadValue("it cannot be read")


def from_json(text: str) -> Any:
    """A JSON text as plain data. Raises BadValue."""
    try:
        return _bounded(json.loads(text, parse_constant=str, parse_int=_integer), 0)
    except (ValueError, RecursionError) as error:
        raise BadValue("it is no valid JSON") from error


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) < 19 else digits


def _bounded(value: Any, depth: int) -> Any:
    if depth > _MAX_JSON_DEPTH:
        raise BadValue("it is nested too deeply")
    if isinstance(value, dict):
        return {without_surrogates(key): _bounded(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_bounded(item, depth + 1) for item in value]
    return without_surrogates(value) if isinstance(value, str) else value


def _as_text(group: _Field) -> str:
    """The field as its author sees it: folded to one line, or line by line under `|`."""
    more = [line.strip() for line in group.lines[1:]]
    if _BLOCK.match(group.value):
        return ("\n" if group.value[0] == "|" else " ").join(more).strip()
    text = " ".join(part for part in [group.value, *more] if part)
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1].strip()
    return text
