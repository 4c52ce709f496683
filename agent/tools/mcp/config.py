"""`mcp.json` as found in the wild, read into plain frozen specs. Pure: text and environment in, data out.

The dialects differ in names, not in meaning: `mcpServers`, `servers`, `mcp_servers` (also below `mcp`, or the
bare map), as an object or a list of named entries; a local server has `command`, a remote one a `url`.
Times are seconds; a time limit above 3,600 is read as milliseconds, as some clients write it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from agent.tools.mcp.fields import (
    EntryError,
    allowed_tools,
    flag,
    included_tools,
    kind_name,
    one_of,
    pairs,
    seconds,
    stop_first,
    strings,
    tool_seconds,
)
from agent.tools.mcp.variables import Expander, UnknownVariable, looks_secret

LARGEST_FILE = 1024 * 1024
START_TIMEOUT = 30.0
Kind = Literal["stdio", "http", "sse"]

_SERVER_KEYS = ("mcpServers", "servers", "mcp_servers")
_KINDS: dict[str, Kind] = {
    "stdio": "stdio", "local": "stdio",
    "http": "http", "streamable-http": "http", "streamable_http": "http", "streamablehttp": "http",
    "https": "http", "remote": "http", "sse": "sse",
}  # fmt: skip
_ALIASES: dict[str, tuple[str, ...]] = {
    "kind": ("type", "transport", "transportType"),
    "command": ("command",),
    "args": ("args",),
    "env": ("env", "environment"),
    "cwd": ("cwd", "workingDirectory"),
    "url": ("url", "serverUrl", "httpUrl"),
    "headers": ("headers", "http_headers"),
    "disabled": ("disabled",),
    "enabled": ("enabled", "isActive"),
    "timeout": ("timeout", "timeout_seconds", "tool_timeout_sec"),
    "tool_timeouts": ("toolTimeouts", "tool_timeouts"),
    "start_timeout": ("start_timeout", "startTimeout", "startup_timeout_sec", "initTimeout"),
    "include": ("tools", "includeTools", "include", "include_tools", "enabled_tools", "allowedTools"),
    "exclude": ("excludeTools", "exclude", "exclude_tools", "disabled_tools", "disabledTools"),
    "allow": ("alwaysAllow", "autoApprove", "always_allow", "auto_approve"),
    "restart": ("restart",),
    "idle_stop": ("idle_stop", "idleStop"),
    "oauth": ("oauth",),
    "mount": ("mount",),
    "write": ("write",),
}
#: Keys that other clients use for their own looks; they change nothing here and deserve no warning.
_DECORATION = frozenset(
    {"name", "description", "title", "icon", "tags", "homepage", "$schema", "author", "version", "provider",
     "providerUrl", "logoUrl", "category", "id", "trust", "gallery", "comment", "_comment"}
)  # fmt: skip
_KNOWN = frozenset(key for keys in _ALIASES.values() for key in keys) | _DECORATION


class ConfigError(ValueError):
    """The file as a whole cannot be read. The message says what, where and what to do."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """A client that was registered by hand; `issuer` is the authorization server that knows it, if told."""

    id: str
    secret: str = field(default="", repr=False)
    issuer: str = ""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One server, expanded and checked. `fingerprint` covers what the running server depends on, after
    expansion, so that a changed credential is a change and a changed filter is none. `idle_stop`: seconds
    without a call after which it is closed until the next one (None: never). `mount`: where and for whom its
    tools are there (kinds of chats, roles, `channel:chat` globs; empty: everywhere). `write`: only where an
    admin has mounted it for a time."""

    name: str
    kind: Kind
    command: str = ""
    args: tuple[str, ...] = field(default=(), repr=False)
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    cwd: str = ""
    url: str = field(default="", repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    disabled: bool = False
    timeout: float | None = None
    tool_timeouts: tuple[tuple[str, float], ...] = ()
    start_timeout: float = START_TIMEOUT
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    always_allow: tuple[str, ...] = ()
    stop_first: bool = False
    idle_stop: float | None = None
    oauth_client: OAuthClient | None = None
    mount: tuple[str, ...] = ()
    write: bool = False

    def offers(self, tool: str) -> bool:
        """Whether the entry's filters let a tool through."""
        included = self.include is None or any(fnmatchcase(tool, pattern) for pattern in self.include)
        return included and not any(fnmatchcase(tool, pattern) for pattern in self.exclude)

    @property
    def fingerprint(self) -> str:
        what = (self.kind, self.command, self.args, self.env, self.cwd, self.url, self.headers)
        parts = [*what, self.disabled]
        return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class BadEntry:
    """An entry that failed alone. `reason` says what is wrong and what to do; `line` is 0 when unknown."""

    name: str
    reason: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class McpConfig:
    """What a file says. `variables` are the environment variables it refers to, with the values they had."""

    servers: tuple[ServerSpec, ...] = ()
    bad: tuple[BadEntry, ...] = ()
    warnings: tuple[str, ...] = ()
    variables: Mapping[str, str | None] = field(default_factory=dict, repr=False)


def parse_config(
    data: bytes,
    *,
    environ: Mapping[str, str],
    on_secret: Callable[[str], None] = lambda value: None,
    start_timeout: float = START_TIMEOUT,
) -> McpConfig:
    """Read the bytes of an `mcp.json`. An empty file names no servers. `start_timeout` holds for entries
    without one.

    Raises ConfigError when the file as a whole is unusable. Values that look like credentials are passed to
    `on_secret` before anything else sees them.
    """
    text = _decode(data)
    if not text.strip():
        return McpConfig()
    root, repeated = _load(text)
    expander = Expander(environ, on_secret)
    specs: list[ServerSpec] = []
    bad: list[BadEntry] = []
    warnings = [f"{key!r} is given twice; the last one counts" for key in repeated]
    for name, entry in _entries(root, warnings):
        try:
            if any(spec.name == name for spec in specs):
                raise EntryError("the name is given twice; the first one is used; rename the other")
            specs.append(_spec(name, entry, expander, warnings, start_timeout))
        except (EntryError, UnknownVariable) as fault:
            bad.append(BadEntry(name, str(fault), _line_of(text, name)))
    return McpConfig(tuple(specs), tuple(bad), tuple(warnings), expander.used)


def _decode(data: bytes) -> str:
    if len(data) > LARGEST_FILE:
        size = f"{len(data):,} bytes, more than {LARGEST_FILE:,}"
        raise ConfigError(f"the file has {size}; is it the right one?")
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        raise ConfigError("the file is not UTF-8 text; save it as UTF-8", line) from None


def _load(text: str) -> tuple[Any, list[str]]:
    """The file's value and the keys that one object gives twice."""
    repeated: list[str] = []

    def unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(items)
        if len(made) != len(items):
            keys = [key for key, _ in items]
            repeated.extend(sorted({key for key in keys if keys.count(key) > 1}))
        return made

    try:
        return json.loads(text, object_pairs_hook=unique), repeated
    except (json.JSONDecodeError, RecursionError) as fault:
        strict = fault
    import json5  # slow to import and to parse; most files are plain JSON

    repeated.clear()
    try:
        return json5.loads(text, object_pairs_hook=lambda items: unique(list(items))), repeated
    except (ValueError, RecursionError) as fault:
        raise _syntax_error(str(fault), strict) from None


def _syntax_error(message: str, strict: json.JSONDecodeError | RecursionError) -> ConfigError:
    found = re.match(r"(?:<string>)?:?(\d+) (.*) at column (\d+)$", message, re.DOTALL)
    if found is not None:
        line, what, column = int(found[1]), found[2], int(found[3])
    elif isinstance(strict, json.JSONDecodeError):
        line, what, column = strict.lineno, strict.msg, strict.colno
    else:
        return ConfigError("the file is nested too deeply; it should be an object of servers")
    if "end of input" in what:
        cure = "the file ends too early: a closing bracket or quote is missing, or it is half written"
    else:
        cure = "look for a missing comma, quote or bracket there"
    return ConfigError(f"line {line}, column {column}: {what}; {cure}", line)


def _entries(root: Any, warnings: list[str]) -> list[tuple[str, Any]]:
    if not isinstance(root, dict):
        raise ConfigError('the file must hold an object: {"mcpServers": {"name": {...}}}', 1)
    holder = root
    inner = root.get("mcp")
    if isinstance(inner, dict) and not any(key in root for key in _SERVER_KEYS):
        holder = inner if any(key in inner for key in _SERVER_KEYS) else root
    found = [key for key in _SERVER_KEYS if key in holder]
    if not found:
        bare = {key: value for key, value in root.items() if not key.startswith("$")}
        if bare and not all(_looks_like_server(value) for value in bare.values()):
            raise ConfigError('no servers found; the file should hold {"mcpServers": {"name": {...}}}', 1)
        return list(bare.items())
    if holder is root:
        others = sorted(set(root) - set(_SERVER_KEYS) - {"$schema", "inputs", "comment", "_comment"})
        warnings.extend(f"unknown key {key!r} at the top of the file is ignored" for key in others)
    return [entry for key in found for entry in _named(key, holder[key])]


def _named(key: str, value: Any) -> Iterable[tuple[str, Any]]:
    if value is None:
        return ()
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, list):
        return [
            (str(item.get("name") or f"#{place}") if isinstance(item, dict) else f"#{place}", item)
            for place, item in enumerate(value, 1)
        ]
    raise ConfigError(f"{key!r} must be an object of servers, not {type(value).__name__}", 1)


def _looks_like_server(value: Any) -> bool:
    return isinstance(value, dict) and any(key in value for key in ("command", *_ALIASES["url"]))


def _spec(name: str, entry: Any, expander: Expander, warnings: list[str], start_timeout: float) -> ServerSpec:
    if not isinstance(entry, dict):
        raise EntryError(f'an entry must be an object such as {{"command": "..."}}, not {kind_name(entry)}')
    if not name.strip():
        raise EntryError("a server needs a name")
    if name == "builtin":  # what the source of our own tools is called
        raise EntryError("this name is taken by the built-in tools; give the server another one")
    warnings += [f"{name}: unknown key {key!r} is ignored" for key in entry if key not in _KNOWN]
    given = {field_name: one_of(entry, keys) for field_name, keys in _ALIASES.items()}
    kind = _kind(entry, given)
    include, switched_off = included_tools(given["include"])
    common: dict[str, Any] = {
        "name": name,
        "kind": kind,
        "disabled": flag("disabled", given["disabled"], False) or not flag("enabled", given["enabled"], True),
        "timeout": seconds("timeout", given["timeout"]),
        "tool_timeouts": tool_seconds("toolTimeouts", given["tool_timeouts"]),
        "start_timeout": seconds("start_timeout", given["start_timeout"]) or start_timeout,
        "include": include,
        "exclude": tuple(sorted({*strings("excludeTools", given["exclude"]), *switched_off})),
        "always_allow": allowed_tools(given["allow"]),
        "stop_first": stop_first(given["restart"]),
        "idle_stop": seconds("idle_stop", given["idle_stop"], milliseconds=False),
        "mount": strings("mount", [given["mount"]] if isinstance(given["mount"], str) else given["mount"]),
        "write": flag("write", given["write"], False),
    }
    return (_local if kind == "stdio" else _remote)(common, given, expander)


def _kind(entry: dict[str, Any], given: dict[str, Any]) -> Kind:
    has_command, has_url = given["command"] not in (None, ""), given["url"] not in (None, "")
    if has_command and has_url:
        url_key = next(key for key in _ALIASES["url"] if entry.get(key) not in (None, ""))
        raise EntryError(f"it has both 'command' and {url_key!r}; keep one of them")
    if not has_command and not has_url:
        raise EntryError("it has neither 'command' (a local server) nor 'url' (a remote one)")
    told = given["kind"]
    if told is None:
        return "stdio" if has_command else "http"
    if isinstance(told, dict):  # {"transport": {"type": "sse"}}
        told = told.get("type")
    kind = _KINDS.get(str(told).lower())
    if kind is None:
        raise EntryError(f"type {told!r} is unknown; known are stdio, http (streamable HTTP) and sse")
    if (kind == "stdio") != has_command:
        needs = "a 'command'" if kind == "stdio" else "a 'url'"
        raise EntryError(f"type {told!r} needs {needs}")
    return kind


def _local(common: dict[str, Any], given: dict[str, Any], expander: Expander) -> ServerSpec:
    words = given["command"] if isinstance(given["command"], list) else [given["command"]]
    words = [*strings("command", words), *strings("args", given["args"])]
    env = pairs("env", given["env"], expander)
    for key, value in env:
        if looks_secret(key):
            expander.note_secret(value)
    command, *args = [expander.expand(word) for word in words] or [""]
    if not command:
        raise EntryError("its 'command' is empty")
    if any("\0" in word for word in (command, *args)):
        raise EntryError("its command line contains a NUL character")
    cwd = given["cwd"]
    if cwd is not None and not isinstance(cwd, str):
        raise EntryError(f"'cwd' must be a path, not {kind_name(cwd)}")
    return ServerSpec(**common, command=command, args=tuple(args), env=env, cwd=expander.expand(cwd or ""))


def _remote(common: dict[str, Any], given: dict[str, Any], expander: Expander) -> ServerSpec:
    if not isinstance(given["url"], str):
        raise EntryError(f"'url' must be text, not {kind_name(given['url'])}")
    url = expander.expand(given["url"].strip())
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise EntryError("its 'url' is no http:// or https:// address")
    if parts.password:
        expander.note_secret(parts.password)
    for key, value in parse_qsl(parts.query):
        if looks_secret(key):
            expander.note_secret(value)
    headers = pairs("headers", given["headers"], expander)
    for key, value in headers:
        if not key or any(ord(letter) < 32 for letter in key + value):
            raise EntryError(f"header {key!r} contains a line break or another control character")
        expander.note_header(key, value)
    client = _oauth_client(given["oauth"], expander)
    return ServerSpec(**common, url=url, headers=headers, oauth_client=client)


_OAUTH_KEYS = frozenset(("clientid", "clientsecret", "issuer"))


def _oauth_client(value: Any, expander: Expander) -> OAuthClient | None:
    if value is None or isinstance(value, bool):
        return None  # `true`: other programs' way to say that the server wants a login
    if isinstance(value, dict):  # their other settings (a callback port, scopes) are not ours to refuse
        known = {key: text for key, text in value.items() if key.lower().replace("_", "") in _OAUTH_KEYS}
        value = {key: text for key, text in known.items() if text is not None}
        if not value:
            return None
    told = {key.lower().replace("_", ""): text for key, text in pairs("oauth", value, expander)}
    if not told.get("clientid"):
        raise EntryError("'oauth' holds 'client_id' and, if they are known, 'client_secret' and 'issuer'")
    secret = told.get("clientsecret", "")
    if secret:
        expander.note_secret(secret)
    return OAuthClient(told["clientid"], secret, told.get("issuer", ""))


def _line_of(text: str, name: str) -> int:
    found = re.search(r"[\"']?" + re.escape(json.dumps(name, ensure_ascii=False)[1:-1]) + r"[\"']?\s*:", text)
    return text.count("\n", 0, found.start()) + 1 if found is not None else 0
