"""Variables by name. `NAME_FILE` may name a file that holds NAME, as containers are given secrets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

log = logging.getLogger("causeway.config")

#: The longest secret. What is larger is most likely another kind of file.
_MAX_BYTES = 65_536
Stamp: TypeAlias = tuple[int, int, int]


class Variables(Mapping[str, str]):
    """The first of `layers` that has a variable gives its value. Where it is not set there, or empty, and
    `NAME_FILE` is set, the value is what that file holds, without the newline at its end.

    A file is read when its variable is first asked for (one read of at most 64 KiB) and kept; `refresh` looks
    for changes. `read` holds what came from files, secrets all of it, and `on_read` is called when there is
    more. With a file that cannot be used the variable is not set, and `faults` says why, by NAME.
    """

    def __init__(
        self, *layers: Mapping[str, str], on_read: Callable[[Variables], None] = lambda _: None
    ) -> None:
        self.layers = layers
        self.read: dict[str, str] = {}
        self.faults: dict[str, str] = {}
        self._on_read = on_read
        self._files: dict[str, tuple[Path, Stamp]] = {}

    def __getitem__(self, name: str) -> str:
        for layer in self.layers:
            value, file = layer.get(name), layer.get(f"{name}_FILE")
            if file and not value:
                return self._from_file(name, Path(file))
            if value is not None:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        names = dict.fromkeys([*self.read, *(name for layer in self.layers for name in layer)])
        return (name for name in names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def refresh(self) -> None:
        """Read again what has changed; blocking. A file that became faulty leaves the value that it had."""
        for name, (file, stamp) in list(self._files.items()):
            if _stamp(file) != stamp:
                self._take(name, file)

    def _from_file(self, name: str, file: Path) -> str:
        known = self._files.get(name)
        if known is None or known[0] != file:
            self.read.pop(name, None)
            self._take(name, file)
        return self.read[name]

    def _take(self, name: str, file: Path) -> None:
        self._files[name] = (file, _stamp(file))  # before reading: a change meanwhile is seen the next time
        try:
            value = _read(file)
        except ValueError as error:
            why = f"{name}_FILE names {file}: {error}"
            if self.faults.get(name) != why:
                self.faults[name] = why
                log.warning("%s", why)
            return
        self.faults.pop(name, None)
        if value != self.read.get(name):
            self.read[name] = value
            self._on_read(self)


def _stamp(file: Path) -> Stamp:
    try:
        stat = file.stat()
    except OSError:
        return (-1, -1, -1)
    return (stat.st_ctime_ns, stat.st_size, stat.st_ino)  # ctime: a right to read that was given counts too


def _read(file: Path) -> str:
    """Raises ValueError that says what is wrong and what to do."""
    try:
        if not file.is_file():  # a pipe would be waited for
            if file.is_dir():  # what container engines make where a secret's file is missing on the host
                raise ValueError("it is a folder. Put the secret into a file, and name that.")
            reason = "it is no ordinary file" if file.exists() else "there is no such file"
            raise ValueError(f"{reason}. Correct the path, or put the file there.")
        with file.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ValueError("it is larger than 64 KiB. Is this the right file?")
        return data.decode("utf-8-sig").rstrip("\r\n")
    except OSError as error:
        raise ValueError(
            f"it cannot be read: {error.strerror}. Give the bridge's user the right to read it."
        ) from None
    except UnicodeDecodeError:  # its message would show what the file holds
        raise ValueError("it is not UTF-8 text. Save it as UTF-8.") from None
