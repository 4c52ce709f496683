"""Writing config.yaml and .env: nothing half-written is ever seen, no secret can be read by others."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from bridge.config import Config, ConfigError, load_config
from bridge.config_source import read_dotenv

_HEAD = "# Written by `causeway init`. Every key is explained in config.example.yaml."


def dump(data: Mapping[str, Any]) -> str:
    """YAML for people; text that looks like a number (an id) stands in quotes."""
    return _HEAD + "\n\n" + yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=100)


@contextmanager
def staged(
    file: Path, data: Mapping[str, Any], environ: Mapping[str, str], secrets: Mapping[str, str]
) -> Iterator[Config]:
    """A new configuration, written beside `file` and loaded from there; within the block nothing is in its
    place yet. When the block ends without an exception the secrets go into the workspace's .env, an old file
    is kept as `.bak`, and the new one takes its place. Raises ConfigError or OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent, text=True)  # mode 0600
    part = Path(name)
    try:
        words = dump(data)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(words)
        try:
            config = load_config(part, {**environ, **secrets})
        except ConfigError as error:
            raise ConfigError(file, error.faults) from None  # under the name that people know
        yield config
        if secrets:
            write_dotenv(config.workspace / ".env", secrets)
        if not any(secret in words for secret in config.secrets()):
            part.chmod(file.stat().st_mode & 0o777 if file.exists() else 0o644)
        if file.exists():
            file.replace(file.with_name(file.name + ".bak"))
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def write_dotenv(file: Path, values: Mapping[str, str]) -> None:
    """Set variables in a .env file: known ones where they stand, others at its end. Raises ConfigError when
    the file as it stands cannot be read, OSError."""
    read_dotenv(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = file.read_text("utf-8").splitlines() if file.is_file() else []
    left = dict(values)
    for place, line in enumerate(lines):
        name = line.strip().removeprefix("export ").partition("=")[0].strip()
        if name in values:
            lines[place] = f"{name}={_quoted(values[name])}"
            left.pop(name, None)
    lines += [f"{name}={_quoted(value)}" for name, value in left.items()]
    handle, part = tempfile.mkstemp(prefix=".env.", dir=file.parent, text=True)  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write("\n".join(lines) + "\n")
        Path(part).replace(file)
    finally:
        Path(part).unlink(missing_ok=True)


def _quoted(value: str) -> str:
    if value and value.isascii() and all(char.isalnum() or char in "-_.:/+=" for char in value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
