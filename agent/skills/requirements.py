"""What a skill needs to work: an operating system, programs, environment variables.

Requirements never fail open: what is there and cannot be understood is a fatal fault of the file, and what
is understood is checked every time, so a variable that is set later makes the skill usable without a
restart.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

from agent.skills.frontmatter import Fault, canonical

_OS_NAMES = {
    "win32": {"win32", "win64", "windows", "win", "windowsnt", "nt"},
    "darwin": {"darwin", "macos", "mac", "osx", "macosx", "apple"},
    "linux": {"linux", "linux2", "gnulinux", "linux32", "linux64"},
}
_OS = {spelling: name for name, spellings in _OS_NAMES.items() for spelling in spellings}
_ANY_OS = frozenset({"any", "all", "*"})
_UNIX = frozenset({"unix", "posix"})
_REQUIRES = {
    **dict.fromkeys(("bins", "bin"), "bins"),
    **dict.fromkeys(("anybins", "anybin"), "anyBins"),
    **dict.fromkeys(("env", "envs"), "env"),
    **dict.fromkeys(("anyenv", "anyenvs"), "anyEnv"),
}
_FLAGS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
#: Keys whose presence in a nested block of another program makes it a block of requirements.
_TELLING = frozenset({"requires", "os"})


@dataclass(frozen=True, slots=True)
class Requirements:
    """`any_bins` and `any_env` are groups: of each, one member must be there. `os` likewise."""

    os: tuple[tuple[str, ...], ...] = ()
    always: bool = False
    bins: tuple[str, ...] = ()
    any_bins: tuple[tuple[str, ...], ...] = ()
    env: tuple[str, ...] = ()
    any_env: tuple[tuple[str, ...], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.os or self.bins or self.any_bins or self.env or self.any_env)


@dataclass(frozen=True, slots=True)
class Missing:
    """What is not there. False when nothing is missing."""

    os: tuple[str, ...] = ()
    bins: tuple[str, ...] = ()
    any_bins: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    any_env: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return any(astuple(self))

    @property
    def fixable(self) -> bool:
        """Whether installing or setting something helps: another operating system is no set-up."""
        return bool(self) and not self.os

    def __str__(self) -> str:
        """`bins: a, b; env: C`, as the status page and the prompt show it."""
        keys = ("os", "bins", "anyBins", "env", "anyEnv")
        parts = zip(keys, astuple(self), strict=True)
        return "; ".join(f"{key}: {', '.join(names)}" for key, names in parts if names)


def flag(value: Any) -> bool | None:
    """A switch in any usual spelling; None for what is none. `"false"` is false."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (str, int)):
        return _FLAGS.get(str(value).strip().casefold())
    return None


def switch(value: Any, default: bool, careful: bool, faults: list[Fault], unclear: Fault) -> bool:
    """`value`, or `default` when it is not there; what is no switch is `careful`, and `unclear` is told."""
    if value is None:
        return default
    result = flag(value)
    if result is None:
        faults.append(unclear)
        return careful
    return result


def operating_system(spelling: str) -> str:
    """`windows`, `Win32` -> `win32`; `macOS` -> `darwin`; `Linux` -> `linux`; others in lower case."""
    word = re.sub(r"[\s/_.-]", "", spelling).casefold()
    return _OS.get(word, word)


def parse_requirements(
    metadata: Mapping[str, Any], top: Mapping[str, Any], line: int
) -> tuple[Requirements, tuple[Fault, ...]]:
    """Requirements from a skill's metadata and, for those who write them there, its top-level fields.

    Blocks of other programs inside the metadata are honoured too, so that a second key beside such a block
    does not switch its requirements off. Everything found must hold.
    """
    reader = _Reader(line)
    meta = {canonical(key): value for key, value in metadata.items()}
    always = reader.always(meta) or reader.always(top)
    blocks = [meta, {key: top[key] for key in _TELLING if key in top}]
    for value in metadata.values():
        if isinstance(value, Mapping):
            inner = {canonical(str(key)): item for key, item in value.items()}
            if _TELLING & inner.keys() and value is not metadata.get("requires"):
                blocks.append(inner)
    for block in blocks:
        reader.block(block)
    groups = reader.groups
    found = Requirements(
        os=tuple(groups["os"]),
        always=always,
        bins=_each(groups["bins"]),
        any_bins=tuple(groups["anyBins"]),
        env=_each(groups["env"]),
        any_env=tuple(groups["anyEnv"]),
    )
    return found, tuple(reader.faults)


class _Reader:
    def __init__(self, line: int) -> None:
        self.line = line
        self.faults: list[Fault] = []
        #: The lists of names that were found, by their key.
        self.groups: defaultdict[str, list[tuple[str, ...]]] = defaultdict(list)

    def refuse(self, what: str, cure: str) -> None:
        self.faults.append(Fault(self.line, what, cure, fatal=True))

    def always(self, block: Mapping[str, Any]) -> bool:
        reason = "'always' is neither true nor false; it counts as false"
        unclear = Fault(self.line, reason, "write 'always: true' or leave it out")
        return switch(block.get("always"), False, False, self.faults, unclear)

    def block(self, block: Mapping[str, Any]) -> None:
        self._add("os", "os", block.get("os"), r",")
        requires = block.get("requires")
        if requires is None:
            return
        if not isinstance(requires, Mapping):
            self.refuse("'requires' is not a mapping", "write 'requires: {bins: [...], env: [...]}'")
            return
        for raw, value in requires.items():
            key = _REQUIRES.get(canonical(str(raw)))
            if key is None:
                self._unknown(str(raw))
            else:
                self._add(key, f"requires.{raw}", value, r"[,\s]")

    def _add(self, key: str, where: str, value: Any, separator: str) -> None:
        if value is not None and (names := self._names(where, value, separator)):
            self.groups[key].append(tuple(names))

    def _unknown(self, raw: str) -> None:
        near = difflib.get_close_matches(canonical(raw), list(_REQUIRES), 1, 0.7)
        meant = f"; did you mean {_REQUIRES[near[0]]!r}?" if near else " and is ignored"
        reason, cure = f"'requires.{raw}' is not known{meant}", "use bins, anyBins, env or anyEnv"
        # A near miss is a requirement with a slip of the pen: ignoring it would offer what cannot work.
        self.faults.append(Fault(self.line, reason, cure, fatal=bool(near)))

    def _names(self, where: str, value: Any, separator: str) -> list[str]:
        items = re.split(separator, value) if isinstance(value, str) else value
        if isinstance(items, (int, float)) and not isinstance(items, bool):
            items = [items]
        if not isinstance(items, list):
            self.refuse(f"'{where}' is not a list of names", f"write '{where}: [name, name]'")
            return []
        names = []
        for item in items:
            if isinstance(item, Mapping):  # {name: API_KEY, description: ...}
                item = item.get("name")
            if not isinstance(item, (str, int, float)) or isinstance(item, bool):
                self.refuse(f"'{where}' holds something that is no name", f"write '{where}: [name, name]'")
                return []
            names.append(str(item).strip())
        return [name for name in names if name]


class Host:
    """What this machine has, asked once for each name: make a new one for each pass over the skills."""

    def __init__(self, platform: str, environ: Mapping[str, str], which: Callable[[str], str | None]) -> None:
        self._os = operating_system(platform)
        self._environ = environ
        self._which = which
        self._bins: dict[str, bool] = {}

    def missing(self, needs: Requirements) -> Missing:
        """What of `needs` is not here. `always` skips programs and variables, never the system."""
        wrong_os = next((group for group in needs.os if not self._is(group)), ())
        if needs.always:
            return Missing(os=wrong_os)
        return Missing(
            os=wrong_os,
            bins=tuple(name for name in needs.bins if not self._bin(name)),
            any_bins=_none_of(needs.any_bins, self._bin),
            env=tuple(name for name in needs.env if not self._env(name)),
            any_env=_none_of(needs.any_env, self._env),
        )

    def _is(self, names: tuple[str, ...]) -> bool:
        fitting = {self._os, *_ANY_OS, *(() if self._os == "win32" else _UNIX)}
        return not fitting.isdisjoint(map(operating_system, names))

    def _env(self, name: str) -> bool:
        return bool(self._environ.get(name, "").strip())

    def _bin(self, name: str) -> bool:
        if name not in self._bins:
            try:
                self._bins[name] = self._which(name) is not None
            except (OSError, ValueError):  # a name with a NUL, a PATH that cannot be read
                self._bins[name] = False
        return self._bins[name]


def _none_of(groups: Iterable[tuple[str, ...]], have: Callable[[str], bool]) -> tuple[str, ...]:
    """The members of the groups of which nothing is there."""
    return _each(group for group in groups if not any(map(have, group)))


def _each(groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for group in groups for name in group))
