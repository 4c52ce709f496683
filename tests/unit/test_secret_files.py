"""`NAME_FILE`: variables, above all secrets, that come from files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.models.resolve import ModelSettings, choose
from agent.tools.masking import Masker
from bridge.config import Config, ConfigError, load_config, secret_variables
from bridge.environment import Environment
from bridge.variables import Variables

CONFIG = "server:\n  key: ${CAUSEWAY_KEY:-}\n"
Load = Callable[..., Config]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text("a-secret-of-a-file\n")
    return file


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load_text(text: str, dotenv: str = "", **environ: str) -> Config:
        (tmp_path / "workspace").mkdir(exist_ok=True)
        (tmp_path / "workspace" / ".env").write_text(dotenv)
        (tmp_path / "config.yaml").write_text(text)
        return load_config(tmp_path / "config.yaml", {"HOME": str(tmp_path), **environ})

    return load_text


def key(config: Config) -> str:
    assert config.server.key is not None
    return config.server.key.get_secret_value()


def refusal(load: Load, text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, **environ)
    (fault,) = caught.value.faults
    return fault.text(caught.value.file)


# -- in the configuration ------------------------------------------------------------------------------------


def test_a_variable_of_the_configuration_comes_from_its_file_without_the_last_newline(
    load: Load, secret: Path
) -> None:
    config = load(CONFIG, CAUSEWAY_KEY_FILE=str(secret))
    assert key(config) == "a-secret-of-a-file"
    secret.write_bytes(b" two lines,\nand blanks \r\n")
    assert key(load(CONFIG, CAUSEWAY_KEY_FILE=str(secret))) == " two lines,\nand blanks "


def test_a_part_of_a_value_may_come_from_a_file(load: Load, secret: Path) -> None:
    text = "store: {url: 'redis://:${REDIS_PASSWORD}@redis:6379/0'}\n"
    config = load(text, REDIS_PASSWORD_FILE=str(secret))
    assert config.store.url == "redis://:a-secret-of-a-file@redis:6379/0"


def test_the_variable_itself_wins_over_its_file_unless_it_is_empty(load: Load, secret: Path) -> None:
    files = {"CAUSEWAY_KEY_FILE": str(secret)}
    assert key(load(CONFIG, CAUSEWAY_KEY="the variable itself", **files)) == "the variable itself"
    assert key(load(CONFIG, CAUSEWAY_KEY="", **files)) == "a-secret-of-a-file"


def test_a_file_that_the_environment_names_wins_over_the_workspaces_env_file(
    load: Load, secret: Path
) -> None:
    dotenv = "CAUSEWAY_KEY=that of the .env file\n"
    assert key(load(CONFIG, dotenv)) == "that of the .env file"
    assert key(load(CONFIG, dotenv, CAUSEWAY_KEY_FILE=str(secret))) == "a-secret-of-a-file"
    assert key(load(CONFIG, f"CAUSEWAY_KEY_FILE={secret}\n")) == "a-secret-of-a-file"


def test_an_empty_file_is_an_empty_variable(load: Load, secret: Path) -> None:
    secret.write_text("\n")
    config = load("server: {key: '${CAUSEWAY_KEY:-the default of it}'}\n", CAUSEWAY_KEY_FILE=str(secret))
    assert key(config) == "the default of it"


def test_the_models_well_known_keys_may_come_from_files(load: Load, secret: Path) -> None:
    config = load("", ANTHROPIC_API_KEY_FILE=str(secret))
    assert choose(ModelSettings(), config.environ) == "anthropic"
    secret.write_text("")
    assert choose(ModelSettings(), load("", ANTHROPIC_API_KEY_FILE=str(secret)).environ) == "demo"


# -- what cannot be used -------------------------------------------------------------------------------------


def test_a_file_that_is_missing_is_told_with_line_key_and_cure_and_no_default_hides_it(
    load: Load, tmp_path: Path
) -> None:
    said = refusal(load, CONFIG, CAUSEWAY_KEY_FILE=str(tmp_path / "gone"))
    assert re.search(r"config\.yaml:2: server\.key: CAUSEWAY_KEY_FILE names \S+/gone: there is no such", said)
    assert "put the file there" in said


def test_a_missing_file_of_a_models_key_is_told_too(load: Load, tmp_path: Path) -> None:
    said = refusal(load, "", OPENAI_API_KEY_FILE=str(tmp_path / "gone"))
    assert "OPENAI_API_KEY_FILE names" in said
    assert load("", OPENAI_API_KEY="set", OPENAI_API_KEY_FILE=str(tmp_path / "gone")).workspace


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda file: file.mkdir(), "it is a folder"),
        (os.mkfifo, "it is no ordinary file"),
        (lambda file: file.write_text("x" * 65_537), "larger than 64 KiB"),
        (lambda file: file.write_bytes(b"caf\xe9-the-secret"), "it is not UTF-8 text"),
    ],
)
def test_what_is_no_secrets_file_is_refused_and_never_shown(
    load: Load, tmp_path: Path, make: Callable[[Path], object], says: str
) -> None:
    make(tmp_path / "odd")
    said = refusal(load, CONFIG, CAUSEWAY_KEY_FILE=str(tmp_path / "odd"))
    assert says in said
    assert "the-secret" not in said


def test_a_file_without_the_right_to_read_it_is_told(
    load: Load, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def refuse(path: Path, *args: object, **options: object) -> object:  # root may read everything
        if path == secret:
            raise PermissionError(13, "Permission denied")
        return opened(path, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    said = refusal(load, CONFIG, CAUSEWAY_KEY_FILE=str(secret))
    assert "it cannot be read: Permission denied. Give the bridge's user the right" in said


def test_a_file_that_no_setting_asks_for_is_not_read(load: Load, tmp_path: Path) -> None:
    """SSL_CERT_FILE and its like name files that are no secrets of ours."""
    config = load("", SSL_CERT_FILE="/dev/zero", GIT_TOKEN_FILE=str(tmp_path / "gone"))
    assert "SSL_CERT" not in list(config.environ)
    assert isinstance(config.environ, Variables)
    assert (config.environ.read, config.environ.faults) == ({}, {})


def test_a_broken_file_hides_no_other_variable(load: Load, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    config = load("", "DOCS=below\nFINE=yes\n", DOCS_FILE=gone, OTHER="", OTHER_FILE=gone)
    assert [name for name in config.environ if name in ("DOCS", "OTHER", "FINE")] == ["FINE"]
    assert dict(config.environ)["DOCS_FILE"] == gone


# -- masking, and changes while the bridge runs --------------------------------------------------------------


def test_what_came_from_a_file_is_masked_whatever_its_name(load: Load, secret: Path) -> None:
    secret.write_text("blue-door\n")  # as short and plain as people's passwords are
    config = load("sessions: {instructions: 'Say ${GREETING}.'}\n", GREETING_FILE=str(secret))
    assert Masker(config.secrets()).mask("it is blue-door") == "it is ***"


async def test_a_secret_that_is_replaced_while_the_bridge_runs_is_followed_and_masked(
    tmp_path: Path, secret: Path
) -> None:
    masker = Masker([])

    def learn(variables: object) -> None:
        for value in secret_variables(variables):  # type: ignore[arg-type]
            masker.add(value)

    environ = Environment(tmp_path / ".env", {"DOCS_FILE": str(secret)}, learn)
    assert environ["DOCS"] == "a-secret-of-a-file"
    assert masker.mask("a-secret-of-a-file") == "***"

    new = tmp_path / "new"
    new.write_text("another-secret\n")
    new.replace(secret)
    assert environ["DOCS"] == "a-secret-of-a-file"  # until the next look
    await environ.refresh()
    assert environ["DOCS"] == "another-secret"
    assert masker.mask("another-secret") == "***"

    secret.unlink()
    await environ.refresh()
    assert environ["DOCS"] == "another-secret"  # what worked stays


async def test_a_file_that_comes_later_counts_from_the_next_look_on(tmp_path: Path) -> None:
    environ = Environment(tmp_path / ".env", {"DOCS_FILE": str(tmp_path / "later")}, lambda _: None)
    assert environ.get("DOCS") is None
    (tmp_path / "later").write_text("now it is here")
    await environ.refresh()
    assert environ["DOCS"] == "now it is here"
    assert "DOCS" in environ
    assert list(environ) == ["DOCS", "DOCS_FILE"]
    assert len(environ) == 2


async def test_the_env_file_may_name_a_file_and_name_another_one_later(tmp_path: Path, secret: Path) -> None:
    (tmp_path / "other").write_text("of the other file")
    (tmp_path / ".env").write_text(f"DOCS_FILE={secret}\n")
    environ = Environment(tmp_path / ".env", {}, lambda _: None)
    assert environ["DOCS"] == "a-secret-of-a-file"
    (tmp_path / ".env").write_text(f"DOCS_FILE={tmp_path / 'other'}\n")
    await environ.refresh()
    assert environ["DOCS"] == "of the other file"
