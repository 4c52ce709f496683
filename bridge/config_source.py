"""Reading config.yaml and .env into plain data that still knows its lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from bridge.variables import Variables

KeyPath: TypeAlias = tuple[str | int, ...]

_MAX_BYTES = 1_000_000
_MAX_DEPTH = 20
_MAX_KEYS = 20_000
_PLAIN_TAGS = ("tag:yaml.org,2002:seq", "tag:yaml.org,2002:map")
_VARIABLE = re.compile(r"\$(\$\{)|\$\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: where (`line` from 1, 0 unknown; `key` as people write it) and what to do."""

    line: int
    key: str
    message: str
    file: Path | None = None  # when it is another file than the configuration

    def text(self, file: Path | None) -> str:
        where = str(self.file or file or "built-in defaults")
        if self.line:
            where += f":{self.line}"
        return f"{where}: {self.key}: {self.message}" if self.key else f"{where}: {self.message}"


class ConfigError(Exception):
    """The configuration cannot be used. The text lists every fault with file, line, key, reason and cure."""

    def __init__(self, file: Path | None, faults: list[Fault]) -> None:
        self.file = file
        self.faults = sorted(faults, key=lambda fault: (str(fault.file or ""), fault.line))
        head = (
            "The configuration has a fault:"
            if len(self.faults) == 1
            else f"The configuration has {len(self.faults)} faults:"
        )
        super().__init__("\n".join([head, *(f"  {fault.text(file)}" for fault in self.faults)]))


@dataclass(slots=True)
class Source:
    """The data of a file. `lines`: line of each key path; `written`: each scalar as it stands in the file."""

    data: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    written: dict[KeyPath, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def line(self, path: KeyPath) -> int:
        """The line of the longest known part of a path."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)

    def fault(self, path: KeyPath, message: str) -> None:
        """Note what is wrong at a path: only the first thing, since the next mostly follow from it."""
        key = show(path)
        if all(fault.key != key for fault in self.faults):
            self.faults.append(Fault(self.line(path), key, message))


def show(path: KeyPath) -> str:
    """A key path as a person writes it: `access.telegram.allow[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML 1.2's plain values: `off`, `no` and `on` are words, `12:30` and 2026-01-01 are text."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"-?(?:0|[1-9][0-9]*)", list("-0123456789")),
    ("float", r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][-+]?[0-9]+)?", list("-0123456789")),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def read_source(file: Path) -> Source:
    """Read a YAML file. Raises ConfigError when it cannot be read or is no YAML at all."""
    return parse(file, _read(file))


def parse(file: Path, text: str) -> Source:
    """Turn YAML text into plain data with lines. Keys given twice become faults of the result."""
    source = Source()
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            source.data = None if node is None else _plain(loader, node, (), source)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = error.problem or error.context or "it cannot be understood"
        number = mark.line + 1 if mark else 0
        line = "".join(text.splitlines()[number - 1 : number])
        raise ConfigError(file, [Fault(number, "", _syntax(what, line))]) from None
    except yaml.YAMLError as error:
        raise ConfigError(file, [Fault(0, "", f"this is no YAML text: {error}. Save it as UTF-8.")]) from None
    return source


def _syntax(what: str, line: str) -> str:
    cure = "Check the indentation, and put text that holds : or # in quotes."
    if line.lstrip(" ").startswith("\t"):
        cure = "Indent with spaces: YAML does not allow tabs."
    elif "${" in line:
        cure = 'Between { and } or [ and ] a variable needs quotes: "${NAME}".'
    return f"this is not valid YAML: {what}. {cure}"


def _plain(loader: Any, node: Node, path: KeyPath, source: Source) -> Any:
    if len(path) > _MAX_DEPTH or len(source.lines) > _MAX_KEYS:  # an alias can stand for any number of keys
        raise yaml.MarkedYAMLError(problem="it has too many keys or levels", problem_mark=node.start_mark)
    if isinstance(node, ScalarNode):
        source.written[path] = node.value
        return loader.construct_object(node)
    if node.tag not in _PLAIN_TAGS:
        raise yaml.MarkedYAMLError(
            problem=f"the tag {node.tag!r} is not allowed", problem_mark=node.start_mark
        )
    if isinstance(node, SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            source.lines[(*path, index)] = item.start_mark.line + 1
            items.append(_plain(loader, item, (*path, index), source))
        return items
    assert isinstance(node, MappingNode)
    own = {id(key) for key, _ in node.value}
    loader.flatten_mapping(node)
    result: dict[str, Any] = {}
    given: set[str] = set()
    for key_node, value_node in node.value:
        key = key_node.value if isinstance(key_node, ScalarNode) else "?"
        here = (*path, key)
        if id(key_node) in own:
            if key in given:
                first, again = source.lines[here], key_node.start_mark.line + 1
                message = f"this key is given twice (line {first} and line {again}). Keep one of them."
                source.faults.append(Fault(again, show(here), message))
            given.add(key)
        source.lines[here] = key_node.start_mark.line + 1
        result[key] = _plain(loader, value_node, here, source)
    return result


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Replace `${NAME}` and `${NAME:-default}` once (a default stands for an unset or empty variable);
    `$${` is a plain `${`. Raises ValueError that names the variable and says what to do."""

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return "${"
        name, colon, default = match[2].partition(":-")
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"${{{match[2]}}} is no variable. Write ${{NAME}} or ${{NAME:-default}}; "
                "$${ stands for a plain ${."
            )
        found = environ.get(name)
        if isinstance(environ, Variables) and name in environ.faults:
            raise ValueError(environ.faults[name])  # a default would hide that a secret is missing
        if found is None and not colon:
            raise ValueError(
                f"the environment variable {name} is not set. Set it (the file .env in the workspace "
                f"will do), name a file that holds it with {name}_FILE, or write ${{{name}:-default}}."
            )
        return (found or default) if colon else (found or "")

    return _VARIABLE.sub(value, text)


def read_dotenv(file: Path) -> dict[str, str]:
    """Variables of a .env file, none when there is no file. Raises ConfigError with the line."""
    return parse_dotenv(file, _read(file)) if file.is_file() else {}


def parse_dotenv(file: Path, text: str) -> dict[str, str]:
    """`NAME=value` lines: `export`, comments, 'literal' and "escaped" quotes; nothing is expanded."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.removeprefix("export ").partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not _NAME.fullmatch(name):
            # The line itself may hold a secret, so it is not shown.
            raise ConfigError(
                file, [Fault(number, "", "this line is not NAME=value. Mend it or put # before it.")]
            )
        quote = value[:1]
        if quote in ("'", '"'):
            end = _closing(value, quote)
            if end < 0 or value[end + 1 :].split("#")[0].strip():
                raise ConfigError(
                    file, [Fault(number, name, f"the closing {quote} is missing or not at the end.")]
                )
            value = value[1:end]
            if quote == '"':
                value = re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t", "r": "\r"}.get(m[1], m[1]), value)
        else:
            value = re.split(r"\s#", value, maxsplit=1)[0].rstrip()
        found[name] = value
    return found


def _closing(value: str, quote: str) -> int:
    at = 1
    while at < len(value):
        if value[at] == "\\" and quote == '"':
            at += 1
        elif value[at] == quote:
            return at
        at += 1
    return -1


def _read(file: Path) -> str:
    try:
        if not file.is_file():
            reason = "it is no file" if file.exists() else "there is no such file"
            raise ConfigError(file, [Fault(0, "", f"{reason}. Check the path.")])
        with file.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ConfigError(file, [Fault(0, "", "it is larger than 1 MB. Is this the right file?")])
        return data.decode("utf-8-sig")
    except OSError as error:
        cure = "Give the bridge's user the right to read it."
        raise ConfigError(file, [Fault(0, "", f"it cannot be read: {error.strerror}. {cure}")]) from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(file, [Fault(line, "", "it is not UTF-8 text. Save it as UTF-8.")]) from None
