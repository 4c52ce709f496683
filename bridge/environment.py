"""The environment that may change while the bridge runs: the real one on top of the workspace's .env, and
the files that NAME_FILE names."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bridge.config_source import ConfigError, read_dotenv
from bridge.variables import Variables

log = logging.getLogger("causeway.config")


class Environment(Mapping[str, str]):
    """Variables by name. `refresh` follows .env and the files of NAME_FILE (one stat of each when nothing
    changed); a file that became faulty leaves what it held before. `on_secrets` learns the values of a
    changed file."""

    def __init__(
        self, dotenv: Path, real: Mapping[str, str], on_secrets: Callable[[Mapping[str, str]], None]
    ) -> None:
        self._dotenv = dotenv
        self._real = real
        self._on_secrets = on_secrets
        self._variables = Variables(real, on_read=on_secrets)
        self._seen: tuple[int, int, int] | None = (-1, -1, -1)
        self._look()

    async def refresh(self) -> None:
        await asyncio.to_thread(self._look)

    def _look(self) -> None:
        self._variables.refresh()
        try:
            stat = self._dotenv.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        except OSError:
            seen = None
        if seen == self._seen:
            return
        try:
            file = read_dotenv(self._dotenv)
        except (ConfigError, OSError) as error:
            log.warning("%s cannot be used, its last values stay: %s", self._dotenv, error)
            # One that could not be read (no descriptor left) is read again; one that is wrong, once edited.
            if isinstance(error, ConfigError) and any(fault.line for fault in error.faults):
                self._seen = seen
            return
        self._seen = seen
        self._variables.layers = (self._real, file)
        self._on_secrets(file)

    def __getitem__(self, name: str) -> str:
        return self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)
