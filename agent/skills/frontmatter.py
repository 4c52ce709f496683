"""The head of a SKILL.md: from bytes to fields, with a fault for everything that was not right.

A pure parser on plain data; it never raises. YAML is read by PyYAML, node by node, so that every value
keeps its line, aliases cannot grow without bound and no object but plain data is ever made. What YAML
refuses but people write all the same goes to `recovery`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from agent.skills.textfile import decode

#: libyaml where PyYAML has it: ten times as fast, and with a bound of its own on nesting.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MAX_HEAD_CHARS = 64 * 1024
_MAX_VALUES = 2_000
_MAX_DEPTH = 20
_DIGITS = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})\Z")
#: Styles of scalars that say where they end; a plain one ends at ` #`.
_MARKED = frozenset({"'", '"', "|", ">"})
_FLOAT = re.compile(r"[-+]?[0-9]{1,17}\.[0-9]{1,17}([eE][-+]?[0-9]{1,2})?\Z")

#: Fields that say what a skill may do or needs: when one of these cannot be read, the file is refused,
#: because loading it without the field would loosen it.
GUARDED = frozenset(
    {"metadata", "requires", "os", "always", "allowedtools", "disablemodelinvocation", "userinvocable"}
)
KNOWN = GUARDED | {"name", "description", "license", "compatibility", "version", "homepage"}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a file. `line` counts from 1; `fatal` means that it cannot be used."""

    line: int
    reason: str
    cure: str
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class Document:
    """A file taken apart. Keys of `fields` are canonical: lower case, without `-` and `_`."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    body: str = ""
    faults: tuple[Fault, ...] = ()
    body_line: int = 1

    def line(self, key: str) -> int:
        return self.lines.get(key, 1)

    @property
    def fatal(self) -> bool:
        return any(fault.fatal for fault in self.faults)


class BadValue(ValueError):
    """A value that is no plain data of a bearable size."""


def canonical(key: str) -> str:
    """`allowed-tools`, `allowed_tools` and `allowedTools` are one key."""
    return key.strip().replace("-", "").replace("_", "").casefold()


def parse(data: bytes) -> Document:
    """Take a SKILL.md apart."""
    text, encoding = decode(data)
    faults: tuple[Fault, ...] = ()
    if encoding != "utf-8":
        faults = (Fault(1, f"The file is not UTF-8; it was read as {encoding}", "save it as UTF-8"),)
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if line.strip()), 0)

    def useless(reason: str, cure: str, body: str = "") -> Document:
        return Document(body=body, faults=(*faults, Fault(start + 1, reason, cure, fatal=True)))

    if lines[start].rstrip() != "---":
        cure = "begin it with a line '---', then 'name: ...' and 'description: ...', then a line '---'"
        return useless("The file has no frontmatter", cure, text.strip())
    end = next((i for i in range(start + 1, len(lines)) if lines[i].rstrip() in ("---", "...")), None)
    if end is None:
        reason = "The frontmatter is opened by '---' and never closed"
        return useless(reason, "write a line '---' after the last field")
    head = lines[start + 1 : end]
    body = "\n".join(lines[end + 1 :]).strip()
    if sum(map(len, head)) > MAX_HEAD_CHARS:
        reason = f"The frontmatter is longer than {MAX_HEAD_CHARS // 1024} KiB"
        return useless(reason, "move what is long into the text below it", body)
    fields, at, found = parse_head(head, start + 2)
    body_line = next((i for i in range(end + 1, len(lines)) if lines[i].strip()), 0) + 1
    return Document(MappingProxyType(fields), MappingProxyType(at), body, (*faults, *found), body_line)


def parse_head(
    head: Sequence[str], first_line: int
) -> tuple[dict[str, Any], dict[str, int], tuple[Fault, ...]]:
    """Fields, their lines and the faults of the lines between the two `---`."""
    # Imported here, because recovery reads single fields with the functions of this module.
    from agent.skills.recovery import recover

    try:
        node = compose("\n".join(head))
    except yaml.YAMLError as error:
        return recover(head, first_line, error)
    except RecursionError:
        fault = Fault(first_line, "The frontmatter is nested too deeply", "make it flatter", fatal=True)
        return {}, {}, (fault,)
    if node is None:
        return {}, {}, ()
    if not isinstance(node, MappingNode):
        return recover(head, first_line, None)
    fields: dict[str, Any] = {}
    lines: dict[str, int] = {}
    faults: list[Fault] = []
    for key_node, value_node in node.value:
        line = first_line + key_node.start_mark.line
        raw = str(key_node.value) if isinstance(key_node, ScalarNode) else ""
        key = canonical(raw)
        if key in fields:
            faults.append(Fault(line, f"The field {raw!r} is there twice; the last one counts", "keep one"))
        try:
            fields[key] = field_value(key, value_node, head)
        except BadValue as error:
            reason = f"The field {raw!r} cannot be used: {error}"
            faults.append(Fault(line, reason, "write a plain value", fatal=key in GUARDED))
            continue
        lines[key] = line
        faults.extend(_comment_trap(raw, value_node, head, line))
    return fields, lines, tuple(faults)


def field_value(key: str, node: Node, head: Sequence[str]) -> Any:
    """The plain value of a top-level field. Raises BadValue."""
    if key == "name" and isinstance(node, ScalarNode) and not node.tag.endswith(":null"):
        return node.value  # `name: on` and `name: 007` are names, not a switch and a number
    if key == "description" and isinstance(node, MappingNode):
        return _source(node, head)  # `Makes plans: goals` on a line of its own is a sentence to its author
    return plain(node)


def _source(node: Node, head: Sequence[str]) -> str:
    """What stands in the file between a node's two ends, as one line."""
    first, last = node.start_mark.line, min(node.end_mark.line, len(head) - 1)
    parts = list(head[first : last + 1])
    parts[-1] = parts[-1][: node.end_mark.column] if node.end_mark.line == last else parts[-1]
    parts[0] = parts[0][node.start_mark.column :]
    return " ".join(" ".join(parts).split())


def _comment_trap(raw: str, node: Node, head: Sequence[str], line: int) -> Iterator[Fault]:
    """A plain `description: Fix issue #42` ends before the `#`, which its author did not mean."""
    if canonical(raw) != "description" or not isinstance(node, ScalarNode) or node.style in _MARKED:
        return
    end = node.end_mark
    if end.line < len(head) and head[end.line][end.column :].lstrip().startswith("#"):
        yield Fault(line, "The description ends at ' #', which begins a comment in YAML", "put it in quotes")


def compose(text: str) -> Node | None:
    """The node tree of one YAML text. Raises yaml.YAMLError, RecursionError."""
    node: Node | None = yaml.compose(text, Loader=_LOADER)
    return node


def plain(node: Node) -> Any:
    """A node as dict, list, str, int, float, bool or None. Raises BadValue."""
    return _plain(node, [_MAX_VALUES], 0)


def _plain(node: Node, left: list[int], depth: int) -> Any:
    # Aliases are counted each time they are used, so a few lines cannot become millions of values.
    left[0] -= 1
    if left[0] < 0:
        raise BadValue(f"it has more than {_MAX_VALUES} values")
    if depth > _MAX_DEPTH:
        raise BadValue("it is nested too deeply")
    if isinstance(node, ScalarNode):
        return _scalar(node)
    if isinstance(node, SequenceNode):
        return [_plain(item, left, depth + 1) for item in node.value]
    if not isinstance(node, MappingNode):
        raise BadValue("it is of an unknown kind")
    result: dict[str, Any] = {}
    for key, item in node.value:
        if not isinstance(key, ScalarNode):
            raise BadValue("a key in it is not plain text")
        value = _plain(item, left, depth + 1)
        if key.tag.endswith(":merge"):
            for source in value if isinstance(value, list) else [value]:
                if not isinstance(source, dict):
                    raise BadValue("'<<' in it does not name a mapping")
                result = {**source, **result}
        else:
            result[without_surrogates(key.value)] = value
    return result


def _scalar(node: ScalarNode) -> Any:
    kind, value = node.tag.rpartition(":")[2], without_surrogates(node.value)
    if kind == "null":
        return None
    if kind == "bool":
        return value.casefold() in ("true", "yes", "on")
    if kind == "int" and _DIGITS.match(value):
        return int(value)
    if kind == "float" and _FLOAT.match(value):
        return float(value)
    return value  # dates, octal and base 60 numbers stay as they were written


def without_surrogates(text: str) -> str:
    """Half characters from escapes, which no file and no log could be written with, become `?`."""
    return text if text.isprintable() else text.encode("utf-8", "replace").decode("utf-8")
