"""The configuration: config.yaml, the environment, and built-in defaults.

`load_config` looks for the file (`--config`, ./config.yaml, ~/.causeway/config.yaml, else defaults), expands
`${VAR}` and `${VAR:-default}` in its values, and refuses what it does not know. The file `.env` in the
workspace adds variables that the real environment does not have; `VAR_FILE` may name a file that holds VAR.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator

from agent.models.resolve import ModelSettings
from agent.tools.retrieval import RetrievalSettings
from agent.tools.settings import ToolSettings
from bridge.access import PEOPLE, AccessRule
from bridge.config_faults import SECRET_NAME, nearest, secret_values, unknown_key, validate
from bridge.config_source import (
    ConfigError,
    Fault,
    KeyPath,
    Source,
    expand,
    read_dotenv,
    read_source,
)
from bridge.keys import Scope
from bridge.ledger import UseLimits
from bridge.notes import BusyMode
from bridge.store import check_url
from bridge.store.base import StoreError
from bridge.variables import Variables
from channels.base import ChannelConfig, ChannelError, ChatKind
from channels.registry import load

__all__ = ["AccessRule", "Config", "ConfigError", "Fault", "load_config"]

_LOCAL_CHANNELS = ("web", "api", "terminal")
_DEFAULT_CHANNELS = ("web", "api")
#: A variable whose name says "secret" is kept out of logs and prompts; a shorter value is too likely a word.
_SECRET_LENGTH = 12

#: Variables that count without being named in the configuration.
_WELL_KNOWN = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")

Id = Annotated[str, Field(min_length=1, max_length=200)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ScopeSettings(_Section):
    """What shares a session, by kind of chat: `thread` (each thread of a chat apart), `chat`, `person` (one
    for a person in the whole channel), `person_in_chat`."""

    direct: Scope = "thread"
    group: Scope = "thread"

    @property
    def by_kind(self) -> Mapping[ChatKind, Scope]:
        return {"direct": self.direct, "group": self.group, "channel": self.group}


class ResetSettings(_Section):
    """When a conversation begins anew by itself: `never`, `daily` at `hour` (local time), or after
    `idle_hours` without a message (`idle`)."""

    when: Literal["never", "daily", "idle"] = "never"
    hour: int = Field(default=4, ge=0, le=23)
    idle_hours: float = Field(default=24.0, gt=0, le=10_000)


class SessionSettings(_Section):
    """`idle_seconds`: when a quiet session leaves memory. `inbox_cap`: most waiting messages of a session.
    `history_messages`: most history entries a model is shown. `max_steps`: most model calls of one answer.
    `grace_seconds`: how long answers under way may go on when the bridge is told to stop.
    `instructions`: added to the system prompt. `busy`: what happens to a message that comes while an answer
    is made (`queue`, `steer`, `collect`, `interrupt`); `debounce_seconds`: quiet time before `collect` puts
    messages together. `approval_minutes`: how long a confirmation waits; silence is no. `retention_days`:
    conversations without a message for so long are deleted (0: never). `attachment_mb`: largest attachment
    that is fetched."""

    idle_seconds: float = Field(default=60.0, ge=1, le=86_400)
    inbox_cap: int = Field(default=100, ge=1, le=10_000)
    history_messages: int = Field(default=200, ge=10, le=10_000)
    max_steps: int = Field(default=25, ge=1, le=500)
    grace_seconds: float = Field(default=20.0, ge=0, le=600)
    instructions: str = Field(default="", max_length=50_000)
    scope: ScopeSettings = ScopeSettings()
    busy: BusyMode = "queue"
    debounce_seconds: float = Field(default=0.0, ge=0, le=60)
    reset: ResetSettings = ResetSettings()
    limits: UseLimits = UseLimits()
    approval_minutes: float = Field(default=10.0, gt=0, le=1440)
    retention_days: float = Field(default=0.0, ge=0, le=36_500)
    attachment_mb: int = Field(default=20, ge=1, le=2000)


class SamplingSettings(_Section):
    """Whether MCP servers may ask the model for text: at most `per_turn` times in one turn, each for at most
    `max_tokens`."""

    enabled: bool = False
    per_turn: int = Field(default=5, ge=1, le=100)
    max_tokens: int = Field(default=1000, ge=1, le=100_000)


class McpSettings(_Section):
    """`file`: mcp.json, relative to the workspace. `start_timeout`: seconds a server may take to start."""

    file: str = Field(default="mcp.json", min_length=1)
    start_timeout: float = Field(default=30.0, ge=1, le=600)
    sampling: SamplingSettings = SamplingSettings()


class SkillSettings(_Section):
    enabled: bool = True


class StoreSettings(_Section):
    """`url`: sqlite:/// and a file (relative to the workspace), or redis://host:port/db. `synchronous: full`
    also survives a power failure, at one disk flush a group of writes."""

    url: str = "sqlite:///causeway.db"
    synchronous: Literal["normal", "full"] = "normal"

    @field_validator("url")
    @classmethod
    def _known(cls, url: str) -> str:
        try:
            check_url(url)
        except StoreError as error:
            raise ValueError(str(error)) from None
        return url


def _absent_if_empty(value: object) -> object:
    return None if value == "" else value


class ServerSettings(_Section):
    """`key` is asked of everybody who is not on this machine; without one none can be let in from outside.
    `allowed_hosts`: further names under which the server may be addressed. `port` 0: any free one.
    `public_url`: where browsers elsewhere reach this server, for logins at MCP servers."""

    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65_535)
    key: Annotated[SecretStr | None, BeforeValidator(_absent_if_empty)] = None
    allowed_hosts: list[Id] = []
    public_url: str = Field(default="", pattern=r"^(https?://[^\s/]+(/[^\s]*)?)?$")

    @field_validator("host")
    @classmethod
    def _is_host(cls, host: str) -> str:
        if not host.strip() or "/" in host:
            raise ValueError(
                "this is no host. Write 127.0.0.1 (this machine only) or 0.0.0.0 (all networks)."
            )
        return host.strip()

    @field_validator("key")
    @classmethod
    def _long_enough(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and len(key.get_secret_value()) < _SECRET_LENGTH:
            raise ValueError(f"this key is too short to be safe. Write at least {_SECRET_LENGTH} characters.")
        return key


class LogSettings(_Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


#: The sections with a fixed schema; `workspace`, `channels` and `access` are read by hand.
SECTIONS: Mapping[str, type[BaseModel]] = MappingProxyType(
    {
        "model": ModelSettings,
        "sessions": SessionSettings,
        "tools": ToolSettings,
        "mcp": McpSettings,
        "skills": SkillSettings,
        "retrieval": RetrievalSettings,
        "store": StoreSettings,
        "server": ServerSettings,
        "log": LogSettings,
    }
)
TOP_KEYS = ("workspace", "model", "channels", "access", "sessions", "tools", "mcp", "skills", "retrieval",
            "store", "server", "log")  # fmt: skip


@dataclass(slots=True)
class Config:
    """A whole configuration. `channels` holds those that are on, by instance name, each with its `type`.
    `access` has a rule only where one was written ("default" included); `people` are its named lists.
    `environ` is the environment with the workspace's .env below it; `source` the file, None for built-in
    defaults."""

    workspace: Path
    model: ModelSettings
    channels: dict[str, ChannelConfig]
    access: dict[str, AccessRule]
    people: dict[str, tuple[str, ...]]
    sessions: SessionSettings
    tools: ToolSettings
    mcp: McpSettings
    skills: SkillSettings
    retrieval: RetrievalSettings
    store: StoreSettings
    server: ServerSettings
    log: LogSettings
    source: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    real_environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    def secrets(self) -> list[str]:
        """Every value that must not be seen: secret settings, and variables whose names say so."""
        found = set(secret_values(self.channels))
        for name in SECTIONS:
            found.update(secret_values(getattr(self, name)))
        return sorted(found | secret_variables(self.environ))


def secret_variables(environ: Mapping[str, str]) -> set[str]:
    """The values of variables whose names say that they are secret, and all that came from files."""
    found = {
        value for name, value in environ.items() if SECRET_NAME.search(name) and len(value) >= _SECRET_LENGTH
    }
    return found.union(environ.read.values()) if isinstance(environ, Variables) else found


def find_file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The configuration file that counts: `path` if given, else the first that exists."""
    if path is not None:
        return path
    candidates = (Path("config.yaml"), home(environ) / ".causeway" / "config.yaml")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def load_config(path: Path | None, environ: Mapping[str, str]) -> Config:
    """Read the configuration; blocking. Raises ConfigError with everything that is wrong.

    The workspace is the folder `workspace` beside the file, or ~/.causeway/workspace when there is no file.
    """
    file = find_file(path, environ)
    source = Source(data={}) if file is None else read_source(file)
    if source.data is None:
        source.data = {}
    if not isinstance(source.data, dict):
        source.fault((), 'it must consist of keys and values, such as "model:" and lines below it.')
        raise ConfigError(file, source.faults)
    data: dict[str, Any] = source.data
    _refuse_unknown(source, data)
    workspace = _workspace(source, data, file, Variables(environ))
    real = environ
    environ = Variables(real, read_dotenv(workspace / ".env"))
    for name in _WELL_KNOWN:
        if name not in environ and name in environ.faults:  # asking reads the file
            source.faults.append(Fault(0, "", environ.faults[name]))
    sections: dict[str, Any] = {}
    for name, model in SECTIONS.items():
        values = data[name] if data.get(name) is not None else {}
        sections[name] = validate(source, (name,), model, _expanded(source, (name,), values, environ))
    channels, known = _channels(source, data.get("channels"), environ)
    people = _people(source, data.get("access"), environ)
    access = _access(source, data.get("access"), known, people, environ)
    if source.faults:
        raise ConfigError(file, source.faults)
    return Config(
        workspace=workspace,
        channels=channels,
        access=access,
        people=people,
        source=file,
        environ=environ,
        real_environ=real,
        **sections,
    )


def _refuse_unknown(source: Source, data: dict[str, Any]) -> None:
    for key in data:
        if key not in TOP_KEYS:
            owners = [f"{name}.{key}" for name, model in SECTIONS.items() if key in model.model_fields]
            source.fault((key,), unknown_key(key, TOP_KEYS, owners[0] if owners else None))


def _workspace(source: Source, data: dict[str, Any], file: Path | None, environ: Mapping[str, str]) -> Path:
    base = (file.parent if file else home(environ) / ".causeway").absolute()
    value = data.get("workspace")
    if value is None:
        return base / "workspace"
    value = _expanded(source, ("workspace",), value, environ)
    if not isinstance(value, str) or not value.strip():
        source.fault(("workspace",), "this is no folder. Write a path, for example ./workspace.")
        return base / "workspace"
    if value == "~" or value.startswith("~/"):
        return home(environ) / value[2:]
    return (base / value).resolve()


def _expanded(source: Source, path: KeyPath, value: Any, environ: Mapping[str, str]) -> Any:
    """A copy of `value` with its variables replaced; what cannot be replaced becomes a fault."""
    if isinstance(value, dict):
        return {key: _expanded(source, (*path, key), inner, environ) for key, inner in value.items()}
    if isinstance(value, list):
        return [_expanded(source, (*path, index), inner, environ) for index, inner in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    try:
        return expand(value, environ)
    except ValueError as error:
        source.fault(path, str(error))
        return value


def _channels(
    source: Source, data: Any, environ: Mapping[str, str]
) -> tuple[dict[str, ChannelConfig], list[str]]:
    """The channels that are on, and the names of all that are mentioned."""
    if data is None:
        data = {name: {} for name in _DEFAULT_CHANNELS}
    if not isinstance(data, dict):
        source.fault(("channels",), 'write one channel a line below it, for example "web: {}".')
        return {}, []
    found: dict[str, ChannelConfig] = {}
    for name, values in data.items():
        path = ("channels", name)
        values = {} if values is None else values
        if not isinstance(values, dict):
            source.fault(path, 'write its settings below it, or "{}" when it needs none.')
            continue
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,49}", name):
            source.fault(path, "a channel's name has letters, digits, _ and - only, at most 50.")
            continue
        enabled = _expanded(source, (*path, "enabled"), values.get("enabled", True), environ)
        if str(enabled).lower() in ("false", "off", "no", "0"):
            continue  # neither its variables nor its parts need be there
        settings = _channel(source, path, name, _expanded(source, path, values, environ))
        if settings is not None:
            found[name] = settings
    return found, list(data)


def _channel(source: Source, path: KeyPath, name: str, values: dict[str, Any]) -> ChannelConfig | None:
    kind = values.get("type") or name
    try:
        model = load(str(kind)).Config
    except ChannelError as error:
        source.fault((*path, "type") if values.get("type") else path, str(error))
        return None
    settings = cast("ChannelConfig | None", validate(source, path, model, {**values, "type": str(kind)}))
    return settings if settings is not None and settings.enabled else None


def _people(source: Source, data: Any, environ: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The named lists of `access.people`."""
    lists = data.get(PEOPLE) if isinstance(data, dict) else None
    if lists is None:
        return {}
    path: KeyPath = ("access", PEOPLE)
    lists = _expanded(source, path, lists, environ)
    if not isinstance(lists, dict):
        source.fault(path, "write one list a line below it, for example: family: [telegram:123456789].")
        return {}
    found = {}
    for name, ids in lists.items():
        if not isinstance(ids, list) or not all(isinstance(id, str | int) for id in ids):
            source.fault(
                (*path, name), "write ids in brackets, for example [telegram:123456789, slack:U012AB]."
            )
            continue
        found[str(name)] = tuple(str(id) for id in ids)
    return found


def _known_lists(
    source: Source, path: KeyPath, rule: AccessRule, people: Mapping[str, Sequence[str]]
) -> None:
    for key in ("allow", "admins", "guests", "bots"):
        for id in getattr(rule, key):
            if id.startswith("@") and id[1:] not in people:
                source.fault((*path, key), f"there is no list {id[1:]!r} in access: people.")


def _access(
    source: Source,
    data: Any,
    channels: list[str],
    people: Mapping[str, Sequence[str]],
    environ: Mapping[str, str],
) -> dict[str, AccessRule]:
    """The rules as written; what a channel's rule leaves out is taken from "default"."""
    if data is None:
        return {}
    if not isinstance(data, dict):
        source.fault(
            ("access",), 'write one channel (or "default") a line below it, and its rule below that.'
        )
        return {}
    known = list(dict.fromkeys(["default", *channels, *_LOCAL_CHANNELS]))
    default = data.get("default")
    rules: dict[str, AccessRule] = {}
    for name, values in data.items():
        path: KeyPath = ("access", name)
        if name == PEOPLE:
            continue
        if name not in known:
            meant = nearest(name, known)
            hint = f'Did you mean "{meant}"? ' if meant else ""
            source.fault(path, f"there is no channel of this name. {hint}Known: {', '.join(known)}.")
            continue
        rule = validate(source, path, AccessRule, _expanded(source, path, values or {}, environ))
        if rule is not None:
            rules[name] = cast("AccessRule", rule)
            _known_lists(source, path, rules[name], people)
    if isinstance(default, dict) and "default" in rules:
        base = rules["default"].model_dump(exclude_unset=True)
        for name, rule in rules.items():
            rules[name] = AccessRule.model_validate({**base, **rule.model_dump(exclude_unset=True)})
    return rules
