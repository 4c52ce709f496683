"""`causeway init`: asks what a bridge needs, tries it, and writes config.yaml.

Answers come from a person, from a pipe (one line each) or from flags. Nothing is written before the end.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from agent.models.resolve import OLLAMA, ModelSettings, choose
from agent.tools.masking import Masker
from bridge import doctor, texts
from bridge.cli_dialogue import Dialogue, Stopped
from bridge.cli_terminal import Terminal
from bridge.config import Config, ConfigError, find_file, load_config
from bridge.config_faults import validate
from bridge.config_source import Source, expand, read_source
from bridge.config_write import staged
from bridge.doctor_outside import invite_link, look_at_channel, look_at_model
from bridge.house_admin import alone
from bridge.pairing import has_admin
from channels.base import Channel, ChannelConfig, ChannelError, Env
from channels.registry import TYPES, load

_REFERENCE = re.compile(r"\$\{[A-Za-z_]\w*(:-[^}]*)?\}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,49}")
_KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "other": "MODEL_API_KEY"}


@dataclass(slots=True)
class Plan:
    """What will be written: the data of config.yaml, and variables for .env. `chats`: the channels that were
    set up; `real`: the environment, `environ` with the workspace's .env below it."""

    data: dict[str, Any]
    real: Mapping[str, str]
    environ: Mapping[str, str]
    secrets: dict[str, str] = field(default_factory=dict)
    chats: list[str] = field(default_factory=list)

    def expanded(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values with their variables filled in; raises ValueError for one that is not set."""
        environ = {**self.environ, **self.secrets}
        return {key: expand(one, environ) if isinstance(one, str) else one for key, one in values.items()}

    def keep(self, name: str, secret: str) -> str:
        """Put a secret aside for .env; what stands in config.yaml instead."""
        if _REFERENCE.fullmatch(secret):
            return secret
        name = re.sub(r"\W", "_", name).upper()
        while self.real.get(name, secret) != secret:  # the real environment would win over .env
            name += "_2"
        self.secrets[name] = secret
        return f"${{{name}}}"


def add_parser(commands: Any, parents: Sequence[argparse.ArgumentParser]) -> None:
    init = commands.add_parser(
        "init",
        parents=parents,
        help="set a bridge up: asks, tries each answer, writes config.yaml",
        description="Asks in the terminal, or takes the answers from flags: "
        "causeway init --channel telegram --set token='${TELEGRAM_TOKEN}' --admin 123456789 --yes",
    )
    init.add_argument(
        "--channel", action="append", default=[], metavar="[NAME=]TYPE", help="set this channel up"
    )
    init.add_argument("--set", action="append", default=[], metavar="[CHANNEL.|model.]KEY=VALUE",
                      help="an answer; ${VARIABLE} stays a reference")  # fmt: skip
    init.add_argument("--admin", action="append", default=[], metavar="[CHANNEL:]ID", help="who is admin")
    init.add_argument("--yes", action="store_true", help="ask nothing: take flags and defaults")


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """The dialogue; 1 when it was stopped or the doctor finds an error. KeyboardInterrupt leaves no trace."""
    masker = Masker()
    terminal = Terminal(options.language, environ, masker)
    try:
        return _Init(options, environ, terminal).run()
    except (Stopped, ConfigError) as error:
        terminal.complain(str(error))
    except OSError as error:
        terminal.complain(terminal.text("init.not_written", file=error.filename, reason=error.strerror))
    terminal.complain(terminal.text("init.nothing"))
    return 1


class _Init:
    def __init__(self, options: argparse.Namespace, environ: Mapping[str, str], terminal: Terminal) -> None:
        self.options = options
        self.real = environ
        self.terminal = terminal
        self.file = (find_file(options.config, environ) or Path("config.yaml")).absolute()
        self.talk = Dialogue(terminal, yes=options.yes)
        self.admins: dict[str, list[str]] = {}
        #: Nothing was kept that does not work.
        self.good = True

    def run(self) -> int:
        self.terminal.say("init.hello")
        plan = self._begin()
        names = self._wanted()
        self._answers(list(names))
        self._model(plan)
        for name, kind in (names or self._choose(plan)).items():
            self._channel(plan, name, kind)
        unused = [*self.talk.given, *(f"--admin {name}:" for name in self.admins if name not in plan.chats)]
        if unused:
            raise Stopped(self.terminal.text("init.unused", given=", ".join(unused)))
        for name in plan.chats:
            self._first_admin(plan, name)
        with staged(self.file, plan.data, self.real, plan.secrets) as config:
            self.terminal.say("init.writes", file=self.file, workspace=config.workspace)
            if plan.secrets:
                self.terminal.say(
                    "init.secrets", file=config.workspace / ".env", names=", ".join(plan.secrets)
                )
        return asyncio.run(self._end(load_config(self.file, self.real), plan))

    # -- beginning -------------------------------------------------------------------------------------

    def _begin(self) -> Plan:
        """What is there already."""
        data: dict[str, Any] = {"model": {}, "channels": {"web": {}, "api": {}}}
        if self.file.is_file():
            self.terminal.say("init.there", file=self.file, backup=f"{self.file.name}.bak")
            if not self.talk.agreed("init.change", default=True):
                raise Stopped(self.terminal.text("init.kept", file=self.file))
            found = read_source(self.file).data
            data = found if isinstance(found, dict) else {}
        try:
            environ = load_config(self.file, self.real).environ
        except ConfigError:  # there is none yet, or it has a fault
            environ = self.real  # what is wrong is told when the whole is loaded, before anything is written
        return Plan(data, self.real, environ)

    def _wanted(self) -> dict[str, str]:
        """The channels that flags name: name -> type."""
        found = {}
        for one in self.options.channel:
            name, _, kind = one.partition("=")
            found[name] = kind or name
        for kind in found.values():
            if kind not in _types():
                known = ", ".join(_types())
                raise Stopped(self.terminal.text("init.no_type", kind=kind[:40], known=known))
        return found

    def _answers(self, names: list[str]) -> None:
        for one in self.options.set:
            key, equals, value = one.partition("=")
            if not equals:
                raise Stopped(self.terminal.text("init.set", given=key[:60]))
            if "." not in key:
                if len(names) != 1:
                    raise Stopped(self.terminal.text("init.set_which", given=key[:60]))
                key = f"{names[0]}.{key}"
            self.talk.given[key] = value
        for one in self.options.admin:
            name, colon, id = one.partition(":")
            if not colon and len(names) != 1:
                raise Stopped(self.terminal.text("init.admin_which", given=one[:60]))
            self.admins.setdefault(name if colon else names[0], []).append(id if colon else one)

    # -- the model -------------------------------------------------------------------------------------

    def _model(self, plan: Plan) -> None:
        while True:
            chosen = self._model_settings(plan)
            if chosen is None:
                return
            source = Source(data=chosen)
            settings = validate(source, ("model",), ModelSettings, plan.expanded(chosen))
            if settings is None:
                for fault in source.faults:
                    self.terminal.complain(f"{fault.key}: {fault.message}")
                good = False
            else:
                good = self._answers_now(cast("ModelSettings", settings), plan)
            how = "keep" if good else self.talk.after_fault(settings is not None)
            if how == "keep":
                plan.data["model"] = {**_kept(plan.data.get("model")), **chosen}
                self.good &= good
                return
            if how == "skip":
                return

    def _answers_now(self, settings: ModelSettings, plan: Plan) -> bool:
        if settings.provider == "demo":
            return True
        self.terminal.say("init.trying")
        environ = {**plan.environ, **plan.secrets}
        found = asyncio.run(look_at_model(settings, environ, self.terminal.language, probe=True))
        doctor.show_findings([found], self.terminal)
        return found.level != "error"

    def _model_settings(self, plan: Plan) -> dict[str, Any] | None:
        """What to write below `model`; None: it stays as it is."""
        given = {
            key.partition(".")[2]: value for key, value in self.talk.given.items() if key.startswith("model.")
        }
        if given:
            for key in given:
                self.talk.given.pop(f"model.{key}")
            if "api_key" in given:
                self.terminal.masker.add(given["api_key"])
                given["api_key"] = plan.keep(
                    _KEYS.get(given.get("provider", ""), _KEYS["other"]), given["api_key"]
                )
            return dict(given)
        if plan.data.get("model"):
            if self.talk.agreed("init.model.keep", default=True):
                return None
        else:
            found = choose(ModelSettings(), plan.environ)
            if found != "demo" and self.talk.agreed("init.model.found", default=True, name=_KEYS[found]):
                return {"provider": found}
        if self.talk.silent:
            return None
        which = self.talk.choose("init.model.which", ("openai", "anthropic", "other", "demo"))
        if which == "demo":
            return {"provider": "demo"}
        chosen: dict[str, Any] = {"provider": "openai" if which == "other" else which}
        if which == "other":
            chosen["base_url"] = self.talk.ask("model.base_url", "init.model.url", default=f"{OLLAMA}/v1")
        key = self.talk.ask("model.api_key", "init.model.key", secret=True, required=which != "other")
        if key:
            chosen["api_key"] = plan.keep(_KEYS[which], key)
        if name := self.talk.ask("model.name", "init.model.name", required=False):
            chosen["name"] = name
        return chosen

    # -- channels --------------------------------------------------------------------------------------

    def _choose(self, plan: Plan) -> dict[str, str]:
        """Ask which channels; name -> type."""
        if self.talk.silent:
            return {}
        kinds = list(_types())
        there = plan.data.get("channels") or {}
        found = {}
        for kind in self.talk.several("init.channels", kinds, [self._label(kind) for kind in kinds]):
            name = kind
            if name in there or name in found:
                name = self.talk.ask(f"{kind}.name", "init.second", default=kind, name=kind)
            found[name if _NAME.fullmatch(name) else kind] = kind
        return found

    def _label(self, kind: str) -> str:
        try:
            return self.terminal.text(f"init.type.{kind}")
        except KeyError:
            return kind

    def _channel(self, plan: Plan, name: str, kind: str) -> None:
        try:
            cls = load(kind)
        except ChannelError as error:
            raise Stopped(str(error)) from error
        texts.add(cls.texts)
        channels = plan.data.get("channels")
        if not isinstance(channels, dict):
            channels = {"web": {}, "api": {}}  # they are on without `channels`, so they stay on with it
        values = {key: value for key, value in (channels.get(name) or {}).items() if key != "enabled"}
        if kind != name:
            values["type"] = kind
        shown = self._label(kind) + ("" if kind == name else f" ({name})")
        self.terminal.say("init.channel", name=shown)
        asking = True
        while True:
            self._fields(plan, name, cls, values, asking=asking)
            how = self._try_channel(plan, name, cls, values)
            if how == "keep":
                plan.data["channels"] = {**channels, name: values}
                plan.chats.append(name)
                return
            if how == "skip":
                return
            key, equals, value = how.partition("=")
            asking = not equals
            if equals:  # another setting, such as mode=http
                self.talk.given[f"{name}.{key.strip()}"] = value.strip()

    def _fields(
        self, plan: Plan, name: str, cls: type[Channel], values: dict[str, Any], *, asking: bool
    ) -> None:
        """Ask for the settings of a channel, or (not `asking`) only take those that are given."""
        others = self.talk.taken(name, {one.name for one in cls.setup})
        for one in cls.setup:
            slot = f"{name}.{one.name}"
            if not asking and slot not in self.talk.given:
                continue
            answer = self.talk.ask(
                slot,
                "init.field",
                secret=one.secret,
                required=one.required,
                kept=one.name in values,
                name=one.name,
                about=one.about[self.terminal.language],
            )
            if answer:
                values[one.name] = plan.keep(f"{name}_{one.name}", answer) if one.secret else answer
        for key, value in others.items():
            known = cls.Config.model_fields.get(key)
            if known is not None and "SecretStr" in str(known.annotation):
                self.terminal.masker.add(value)
                value = plan.keep(f"{name}_{key}", value)
            values[key] = value

    def _try_channel(self, plan: Plan, name: str, cls: type[Channel], values: dict[str, Any]) -> str:
        """Check the settings as the channel itself does, then from outside. Returns what to do."""
        source = Source(data=values)
        try:
            filled = plan.expanded({**values, "type": cls.type})
        except ValueError as error:
            self.terminal.complain(str(error))
            return self.talk.after_fault(False)
        settings = cast("ChannelConfig | None", validate(source, ("channels", name), cls.Config, filled))
        if settings is None:
            for fault in source.faults:
                self.terminal.complain(f"{fault.key}: {fault.message}")
            return self.talk.after_fault(False)
        public = self._public_url(plan, name, cls, settings)
        self.terminal.say("init.trying")
        found = asyncio.run(look_at_channel(name, settings, public, self.terminal.language))
        doctor.show_findings(found, self.terminal)
        good = all(one.level != "error" for one in found)
        how = "keep" if good else self.talk.after_fault(True)
        self.good &= good or how != "keep"
        return how

    def _public_url(self, plan: Plan, name: str, cls: type[Channel], settings: ChannelConfig) -> str:
        """Where the platform reaches this server; asked only where a channel has routes for it."""
        server = plan.data.get("server") or {}
        public = str(server.get("public_url") or "")
        nowhere = cast("Any", None)  # a channel's routes are known without any notes
        env = Env(nowhere, texts.text, self.file.parent, time.time)
        asked = not public and bool(cls(name, settings, env).routes())
        while asked:
            public = self.talk.ask("server.public_url", "init.public_url", required=False).rstrip("/")
            asked = bool(public) and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", public)
        if public:
            plan.data["server"] = {**server, "public_url": public}
        return public

    # -- the end ---------------------------------------------------------------------------------------

    def _first_admin(self, plan: Plan, name: str) -> None:
        access = plan.data.get("access") or {}
        rule = dict(access.get(name) or {})
        given = self.admins.get(name, [])
        if not given and not (rule.get("admins") or (access.get("default") or {}).get("admins")):
            id = self.talk.ask(f"{name}.admin", "init.admin", required=False, name=name)
            given = [id] if id else []
        if given:
            rule["admins"] = list(dict.fromkeys([*map(str, rule.get("admins") or ()), *given]))
            plan.data["access"] = {**access, name: rule}

    async def _end(self, config: Config, plan: Plan) -> int:
        """Look at the whole, then say what comes next."""
        for secret in config.secrets():
            self.terminal.masker.add(secret)
        self.terminal.say("init.doctor")
        seen = ["model", "access", *(f"channel:{name}" for name in plan.chats)]  # what was just talked about
        groups = await doctor.examine(config, self.terminal.language, skip=seen)
        good = doctor.show(groups, self.terminal, brief=True) and self.good
        if not self.good:
            self.terminal.say("init.not_yet")
        default = find_file(None, self.real)
        usual = default is not None and default.absolute() == self.file
        self.terminal.say("init.next", command="causeway run" + ("" if usual else f" --config {self.file}"))
        async with alone(config, time.time) as desk:
            for name in plan.chats:
                if name in config.channels and not has_admin(desk.access, name):
                    code = await desk.pairing.invite(name, "admin")
                    self.terminal.say("init.invited", name=name, code=code)
                    if link := await invite_link(name, config.channels[name], code):
                        self.terminal.raw(f"      {link}\n")
        return 0 if good else 1


def _types() -> dict[str, type[Channel]]:
    """The channel types that can be set up by questions."""
    found = {}
    for kind in TYPES:
        try:
            cls = load(kind)
        except ChannelError:
            continue  # it is not installed; naming it in a flag says so
        if cls.setup:
            found[kind] = cls
    return found


def _kept(model: Any) -> dict[str, Any]:
    """What stays of an earlier `model`: all but what says which one it is."""
    which = ("provider", "name", "base_url", "api_key")
    return {key: value for key, value in model.items() if key not in which} if isinstance(model, dict) else {}
