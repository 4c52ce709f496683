"""config.yaml as people write it: what is found, expanded, filled in, and refused with a helping sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from bridge.config import SECTIONS, TOP_KEYS, AccessRule, Config, ConfigError, load_config
from bridge.config_faults import inner_models
from channels.base import ChannelConfig
from channels.registry import TYPES, load

EXAMPLE = Path(__file__).parents[2] / "config.example.yaml"

Load = Callable[..., Config]


@pytest.fixture
def write(tmp_path: Path) -> Load:
    """Write a configuration (and a .env) and load it."""

    def load_text(text: str, env: dict[str, str] | None = None, dotenv: str | None = None) -> Config:
        file = tmp_path / "config.yaml"
        file.write_text(text)
        if dotenv is not None:
            (tmp_path / "workspace").mkdir(exist_ok=True)
            (tmp_path / "workspace" / ".env").write_text(dotenv)
        return load_config(file, {"HOME": str(tmp_path / "home"), **(env or {})})

    return load_text


def faults(write: Load, text: str, **options: Any) -> list[str]:
    """What is said about a configuration, one line a fault, without the file's name."""
    with pytest.raises(ConfigError) as caught:
        write(text, **options)
    head, *lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.faults)
    assert (head == "The configuration has a fault:") == (len(lines) == 1)
    assert all("config.yaml" in line for line in lines)
    return [line.split("config.yaml", 1)[1] for line in lines]


# -- where it is found -------------------------------------------------------------------------------


def test_without_a_file_the_defaults_apply_and_the_workspace_is_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(None, {"HOME": str(tmp_path / "home")})
    assert config.source is None
    assert config.workspace == tmp_path / "home" / ".causeway" / "workspace"
    assert list(config.channels) == ["web", "api"]
    assert config.access == {}
    assert (config.server.host, config.server.port, config.server.key) == ("127.0.0.1", 8765, None)
    assert (config.store.url, config.store.synchronous) == ("sqlite:///causeway.db", "normal")
    assert config.tools.bash.enabled is False
    assert config.model.provider == "auto"


def test_the_named_file_wins_over_the_folders_and_that_over_the_home_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    (home / ".causeway").mkdir(parents=True)
    monkeypatch.chdir(here)
    environ = {"HOME": str(home)}
    (home / ".causeway" / "config.yaml").write_text("server: {port: 1}")
    assert load_config(None, environ).server.port == 1
    assert load_config(None, environ).workspace == home / ".causeway" / "workspace"
    (here / "config.yaml").write_text("server: {port: 2}")
    assert load_config(None, environ).server.port == 2
    assert load_config(None, environ).workspace == here / "workspace"
    (tmp_path / "other.yaml").write_text("server: {port: 3}")
    assert load_config(tmp_path / "other.yaml", environ).server.port == 3


@pytest.mark.parametrize(
    "text", ["", "# nothing but a comment\n", "model:\nchannels:\naccess:\nstore:\n", "---\n"]
)
def test_an_empty_file_or_section_means_the_defaults(text: str, write: Load) -> None:
    assert list(write(text).channels) == ["web", "api"]


def test_a_named_file_that_is_missing_or_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: there is no such file"):
        load_config(tmp_path / "gone.yaml", {})
    with pytest.raises(ConfigError, match="it is no file"):
        load_config(tmp_path, {})


def test_a_relative_workspace_is_beside_the_file_and_may_name_home_and_variables(
    write: Load, tmp_path: Path
) -> None:
    assert write("workspace: data/here").workspace == tmp_path / "data" / "here"
    assert write("workspace: ~/there").workspace == tmp_path / "home" / "there"
    assert write("workspace: ${BASE}/x", env={"BASE": "/srv"}).workspace == Path("/srv/x")
    assert faults(write, "workspace: [a]") == [
        ":1: workspace: this is no folder. Write a path, for example ./workspace."
    ]


# -- variables ---------------------------------------------------------------------------------------


def test_variables_are_expanded_once_in_values_of_every_kind(write: Load) -> None:
    config = write(
        """
        server:
          host: ${HOST:-0.0.0.0}
          port: ${PORT}
          allowed_hosts: ["${A}.example.com", "$${A}", "$A", "cost $5"]
        skills: {enabled: "${SKILLS:-off}"}
        sessions: {instructions: "${EMPTY:-}${EMPTY2:-x}"}
        """,
        env={"PORT": "99", "A": "${B}", "B": "never", "EMPTY": "", "EMPTY2": ""},
    )
    assert (config.server.host, config.server.port) == ("0.0.0.0", 99)
    assert config.server.allowed_hosts == ["${B}.example.com", "${A}", "$A", "cost $5"]
    assert config.skills.enabled is False
    assert config.sessions.instructions == "x"


def test_an_unset_variable_is_named_with_key_and_line(write: Load) -> None:
    [fault] = faults(write, "log:\n  level: info\nserver:\n  allowed_hosts:\n    - a\n    - ${NOT_THERE}\n")
    assert fault.startswith(":6: server.allowed_hosts[1]: the environment variable NOT_THERE is not set.")
    assert "${NOT_THERE:-default}" in fault


def test_a_malformed_variable_is_told_with_the_right_form(write: Load) -> None:
    [fault] = faults(write, "sessions: {instructions: 'a ${not a name} b'}")
    assert "${not a name} is no variable" in fault
    assert "${NAME:-default}" in fault


def test_the_workspaces_env_file_adds_variables_and_the_real_environment_wins(write: Load) -> None:
    dotenv = "\n".join(
        [
            "# a comment",
            "",
            "export HOST=10.0.0.1   # trailing",
            "PORT = 1",
            "WORDS='literal $x \\n # no comment'",
            'MORE="two\\nlines \\"quoted\\" \\\\ # no comment" # comment',
            "HASH=a#b",
            "EMPTY=",
        ]
    )
    config = write(
        'server: {host: "${HOST}", port: "${PORT}", allowed_hosts: ["${HASH}x${EMPTY}"]}\n'
        "sessions: {instructions: '${WORDS}|${MORE}'}",
        env={"PORT": "2"},
        dotenv=dotenv,
    )
    assert (config.server.host, config.server.port) == ("10.0.0.1", 2)
    assert config.server.allowed_hosts == ["a#bx"]
    assert config.sessions.instructions == 'literal $x \\n # no comment|two\nlines "quoted" \\ # no comment'
    assert config.environ["HOST"] == "10.0.0.1"
    assert config.environ["PORT"] == "2"


@pytest.mark.parametrize("line", ["just words hunter2", "1X=hunter2", 'A="hunter2', "A='hunter2' more"])
def test_a_faulty_line_of_the_env_file_is_named_without_showing_it(line: str, write: Load) -> None:
    with pytest.raises(ConfigError) as caught:
        write("", dotenv=f"FINE=1\n{line}\n")
    assert re.search(r"workspace/\.env:2: ", str(caught.value))
    assert "hunter2" not in str(caught.value)


# -- what is refused, and how ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "start", "hint"),
    [
        ("modle: {}", ":1: modle: there is no such setting.", 'Did you mean "model"?'),
        ("port: 80", ":1: port: there is no such setting.", 'Did you mean "server.port"?'),
        ("server:\n  prot: 1", ":2: server.prot: there is no such setting.", 'Did you mean "port"?'),
        ("server:\n  allowedHosts: []", ":2: server.allowedHosts:", 'Did you mean "allowed_hosts"?'),
        ("tools:\n  bash:\n    enable: true", ":3: tools.bash.enable:", 'Did you mean "enabled"?'),
        ("retrieval: {embedding: {base_url: x, model: y, apikey: z}}", ":1: retrieval.embedding.apikey:",
         '"api_key"?'),
        ("zzz: 1", ":1: zzz: there is no such setting. Known here: workspace, model,", ""),
        ("server:\n  port: abc", ':2: server.port: "abc" does not fit.', "whole number"),
        ("server:\n  port: 70000", ':2: server.port: "70000" does not fit.', "at most 65535"),
        ("server:\n  port: 1.5", ':2: server.port: "1.5" does not fit.', "whole number"),
        ("server:\n  host: http://x/", ":2: server.host: this is no host.", "127.0.0.1"),
        ("server:\n  key: short", ":2: server.key: this key is too short", "at least 12"),
        ("sessions:\n  idle_seconds: 0", ':2: sessions.idle_seconds: "0" does not fit.', "at least 1"),
        ("log:\n  level: loud", ':2: log.level: "loud" does not fit.', "'debug', 'info', 'warning', 'error'"),
        ("skills:\n  enabled: perhaps", ':2: skills.enabled: "perhaps" does not fit.', "true or false"),
        ("server: 8765", ':1: server: "8765" does not fit.', "keys and values"),
        ("server:\n  allowed_hosts: a", ':2: server.allowed_hosts: "a" does not fit.', "[a, b]"),
        ("retrieval:\n  embedding: locl", ':2: retrieval.embedding: "locl" does not fit.', "'local'"),
        ("store:\n  synchronous: off", ':2: store.synchronous: "off" does not fit.', "'normal', 'full'"),
        ("model:\n  provider: opnai", ':2: model.provider: "opnai" does not fit.', "'anthropic'"),
        ("channels:\n  telegran: {}", ":2: channels.telegran: There is no channel type", "'telegram'"),
        ("channels:\n  x: {type: webb}", ":2: channels.x.type: There is no channel type 'webb'.", "'web'"),
        ("channels:\n  telegram: {}", ":2: channels.telegram.token: it is missing.", "token:"),
        ("channels:\n  tg: {type: telegram, token: t, mod: x}", ":2: channels.tg.mod: there is no", '"mode"'),
        ("channels:\n  web: 5", ":2: channels.web: write its settings below it", "{}"),
        ("channels:\n  a b: {type: web}", ":2: channels.a b: a channel's name", "letters"),
        ("channels: [web]", ":1: channels: write one channel a line", "web: {}"),
        ("access:\n  telegrm: {}\nchannels:\n  telegram: {token: t}", ":2: access.telegrm:", '"telegram"?'),
        ("access:\n  web: {direct: opn}", ':2: access.web.direct: "opn" does not fit.', "'open'"),
        ("access:\n  web: {groups: pairing}", ':2: access.web.groups: "pairing" does not', "'allowlist'"),
        ("access:\n  web: open", ':2: access.web: "open" does not fit.', "keys and values"),
        ("access:\n  web:\n    allow:\n      - {}", ":4: access.web.allow[0]:", "Write text"),
        ("access: open", ":1: access: write one channel", "default"),
        ("- a\n- b", ": it must consist of keys and values", "model:"),
        ("server:\n  port: 1\n  port: 2", ":3: server.port: this key is given twice", "(line 2 and line 3)"),
        ("a: b: c", ":1: this is not valid YAML", "quotes"),
        ("server:\n\tport: 1", ":2: this is not valid YAML", "spaces"),
        ("channels:\n  telegram: {token: ${T}}", ":2: this is not valid YAML", '"${NAME}"'),
        ("x: !!python/object/apply:os.system [ls]", ":1: this is not valid YAML: the tag", "is not allowed"),
        ("x: !!python/name:os.system ''", ":1: this is not valid YAML: could not determine", ""),
        ("x: &a [*a]", ":1: this is not valid YAML: it has too many", ""),
    ],
)  # fmt: skip
def test_a_fault_names_line_and_key_and_says_what_to_write(
    text: str, start: str, hint: str, write: Load
) -> None:
    [fault] = faults(write, text)
    assert fault.startswith(start), fault
    assert hint in fault, fault


def test_all_faults_are_told_at_once_in_the_order_of_the_lines(write: Load) -> None:
    text = "log: {level: loud}\nmodle: {}\nserver:\n  port: x\n  key: ${NOPE}\nchannels: {telegran: {}}\n"
    found = faults(write, text)
    assert [re.sub(r"^:(\d+): ([^:]+):.*", r"\1 \2", line) for line in found] == [
        "1 log.level",
        "2 modle",
        "4 server.port",
        "5 server.key",
        "6 channels.telegran",
    ]


def test_aliases_that_stand_for_endless_keys_are_refused_quickly(write: Load) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    [fault] = faults(write, "\n".join(rows))
    assert "too many keys" in fault


@pytest.mark.parametrize("data", [b"a: \xff\xfe", b"log:\n  level: \xe9", b"a: \x00"])
def test_a_file_that_is_no_text_is_told_so(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(data)
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(file, {})


def test_a_file_saved_on_windows_loads(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(b"\xef\xbb\xbfserver:\r\n  port: 5\r\n")
    assert load_config(file, {}).server.port == 5


def test_a_value_from_the_environment_is_never_shown(write: Load) -> None:
    env = {"SECRET_PORT": "hunter2", "K": "hunter2"}
    for text in (
        "server: {port: '${SECRET_PORT}'}",
        "log: {level: '${K}'}",
        "server: {key: '${K}'}",
        "channels: {telegram: {token: '${K}', mode: '${K}'}}",
        "model: {provider: '${K}'}",
    ):
        [fault] = faults(write, text, env=env)
        assert "hunter2" not in fault


# -- channels and access -----------------------------------------------------------------------------


def test_two_instances_of_one_type_and_channels_that_are_off(write: Load) -> None:
    config = write(
        """
        channels:
          telegram: {token: "1:a"}
          second: {type: telegram, token: "2:b", base_url: "http://localhost:1"}
          web:
          api: {enabled: false, nonsense: 1}
          third: {type: telegram, enabled: off, token: "${NOT_SET}"}
          slack: {enabled: "${SLACK:-no}"}
        """
    )
    assert list(config.channels) == ["telegram", "second", "web"]
    assert [c.type for c in config.channels.values()] == ["telegram", "telegram", "web"]
    token = getattr(config.channels["second"], "token")  # noqa: B009 - its type is the channel's own
    assert isinstance(token, SecretStr)
    assert token.get_secret_value() == "2:b"


def test_ids_are_text_as_it_is_written(write: Load) -> None:
    config = write(
        """
        access:
          web:
            allow: [123456789, -1001234567890, "007", 0123, +8613800000000, 1_000, wx_id, 12:30, on, 1.50]
            admins: [42]
        """
    )
    rule = config.access["web"]
    assert rule.allow == ["123456789", "-1001234567890", "007", "0123", "+8613800000000", "1_000", "wx_id",
                          "12:30", "on", "1.50"]  # fmt: skip
    assert rule.admins == ["42"]


def test_off_is_a_word_and_not_false(write: Load) -> None:
    config = write("access: {default: {direct: off, groups: off}, web: {direct: pairing}}")
    assert config.access["default"] == AccessRule(direct="off", groups="off")
    assert config.access["web"].direct == "pairing"


def test_a_channels_rule_takes_from_default_only_what_it_leaves_out(write: Load) -> None:
    config = write(
        """
        channels: {telegram: {token: t}, web: {}}
        access:
          telegram: {allow: [], groups: open}
          default: {direct: open, allow: [1], admins: [2]}
        """
    )
    assert config.access["telegram"] == AccessRule(direct="open", groups="open", allow=[], admins=["2"])
    assert config.access["default"] == AccessRule(direct="open", allow=["1"], admins=["2"])
    assert "web" not in config.access  # nobody wrote a rule for it: the local user's rights stay


def test_without_a_rule_there_is_none_and_an_empty_rule_lets_nobody_in(write: Load) -> None:
    assert write("").access == {}
    rule = write("access: {telegram: {}}\nchannels: {telegram: {token: t}}").access["telegram"]
    assert (rule.direct, rule.groups, rule.allow, rule.admins) == ("pairing", "allowlist", [], [])


def test_a_number_as_a_channels_text_setting_is_taken_as_written(write: Load) -> None:
    config = write("channels: {telegram: {token: 0123456}}\nmodel: {name: 4}")
    assert config.model.name == "4"
    assert "0123456" in config.secrets()


# -- secrets -----------------------------------------------------------------------------------------


def test_every_secret_is_known_to_the_masker_and_none_is_in_the_repr(write: Load) -> None:
    config = write(
        """
        model: {api_key: "${OPENAI_API_KEY}"}
        channels: {telegram: {token: "123:CANARY"}, second: {type: telegram, token: "456:CANARY"}}
        server: {key: CANARY-server-key}
        retrieval: {embedding: {base_url: "http://e", model: m, api_key: CANARY-embedding}}
        """,
        env={
            "OPENAI_API_KEY": "CANARY-from-env",
            "OTHER_TOKEN": "CANARY-unnamed-one",
            "PATH": "/usr/bin/CANARY",
            "SHORT_TOKEN": "production",
        },
        dotenv="DOCS_PASSWORD=CANARY-in-dotenv\n",
    )
    assert config.secrets() == sorted(
        ["CANARY-from-env", "123:CANARY", "456:CANARY", "CANARY-server-key", "CANARY-embedding",
         "CANARY-unnamed-one", "CANARY-in-dotenv"]
    )  # fmt: skip
    assert "CANARY" not in repr(config)


# -- the registry ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
def test_every_registered_type_loads_and_knows_its_name(kind: str) -> None:
    channel = load(kind)
    assert channel.type == kind
    assert issubclass(channel.Config, ChannelConfig)
    assert channel.Config.model_config.get("extra") == "forbid"


# -- the example -------------------------------------------------------------------------------------


def test_the_example_loads_and_says_what_the_defaults_are(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(EXAMPLE.read_text())
    example = load_config(file, {"HOME": "/nowhere"})
    file.write_text("")
    defaults = load_config(file, {"HOME": "/nowhere"})
    assert example.workspace == defaults.workspace
    assert example.channels == defaults.channels
    assert example.access == {"default": AccessRule()}
    for name in SECTIONS:
        assert getattr(example, name) == getattr(defaults, name), name


def test_the_example_also_loads_with_everything_that_it_has_switched_off(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    text = re.sub(r"(?m)^(\s*)#(?=\S)", r"\1", EXAMPLE.read_text())
    text = text.replace("  embedding: none\n", "")  # the other form of the same key follows it
    file.write_text(text)
    names = set(re.findall(r"\$\{([A-Z_]+)", text)) - {"VARIABLE", "NAME"}
    config = load_config(file, {name: f"value of {name}" for name in names})
    assert {"telegram", "web", "api"} <= set(config.channels)
    assert config.server.key is not None
    assert config.access["telegram"].allow == ["123456789"]


def keys(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield name
        for inner in inner_models(field.annotation):
            if inner is not model:  # a model's fallbacks are models
                yield from keys(inner)


def test_the_example_documents_every_key() -> None:
    text = EXAMPLE.read_text()
    wanted = {*TOP_KEYS, *keys(AccessRule)}
    for model in (*SECTIONS.values(), *(load(kind).Config for kind in TYPES)):
        wanted.update(keys(model))
    missing = [key for key in sorted(wanted) if not re.search(rf"(?m)^\s*#?{key}:", text)]
    assert not missing
    for name in SECTIONS:
        assert re.search(rf"(?m)^{name}:", text), name
