"""The owner of all skills: finds them, checks them, and swaps in one immutable set for every session."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import logging
import os
import platform as host_platform
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.skills.discovery import Scan, Stamp, holds, scan, shown
from agent.skills.loader import Loaded, load
from agent.skills.requirements import Host, Missing
from agent.skills.skill import Diagnostic, Skill, SkillSet
from agent.skills.switches import Switched, Switches, SwitchesBroken

__all__ = ["SkillManager", "SwitchesBroken", "UnknownSkill"]

log = logging.getLogger("causeway.skills")

#: A file this young is read again next time: two edits may share one tick of the file system's clock.
_YOUNG_NS = 20_000_000
_LEVELS = {"error": logging.WARNING, "warning": logging.WARNING, "note": logging.INFO}


class UnknownSkill(ValueError):
    """There is no skill of that name."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A file's last reading, and the last skill that it gave."""

    stamp: Stamp
    file: str
    loaded: Loaded
    good: Skill | None


class SkillManager:
    """Skills of two sources, of which the custom one wins by name.

    `environ` is asked on every refresh, in a thread, so a variable set later counts without a restart.
    `current` may be read at any time and never changes in the reader's hands.
    """

    def __init__(
        self,
        builtin: Path,
        custom: Path,
        *,
        environ: Callable[[], Mapping[str, str]],
        platform: str | None = None,
        which: Callable[[str], str | None] = shutil.which,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._builtin = builtin
        self._custom = custom
        self._environ = environ
        self._platform = platform or host_platform.system()
        self._which = which
        self._switches = Switches(custom, clock)
        # Passes run in threads and a cancelled caller does not stop its thread: this keeps them apart.
        self._guard = threading.Lock()
        self._scans: tuple[Scan, ...] = ()
        self._reads: dict[str, _Read] = {}
        self._skills: Mapping[str, Skill] = {}
        self._clashes: tuple[Diagnostic, ...] = ()
        self._unsettled = True
        self._pending = True  # what was read has not reached `current` yet
        self._missing: dict[str, Missing] = {}
        self._switched = Switched({})
        self._current = SkillSet()

    @property
    def current(self) -> SkillSet:
        return self._current

    async def refresh(self) -> bool:
        """Follow the disk and the environment; True when the set changed. Off the event loop.

        When nothing changed no file is opened. Files that became bad keep their last good skill.
        """
        return await asyncio.to_thread(self._pass, None)

    async def set_enabled(self, name: str, enabled: bool) -> bool:
        """Switch one skill; True when the set changed. Raises UnknownSkill, SwitchesBroken."""
        return await asyncio.to_thread(self._pass, (name, enabled))

    def _pass(self, choose: tuple[str, bool] | None) -> bool:
        with self._guard:
            self._make_custom_folder()
            scans = (scan(self._builtin, "builtin"), scan(self._custom, "custom"))
            if scans != self._scans or self._unsettled:
                self._pending = True
                self._read_files(scans)
                self._skills, self._clashes = _chosen(self._reads)
            skills = self._skills
            host = Host(self._platform, self._environ(), self._which)
            missing = {n: host.missing(s.requirements) for n, s in skills.items() if s.requirements}
            touched = self._switches.stamp() != self._switches.seen or bool(self._switched.diagnostics)
            sync = self._pending or touched or choose
            if not sync and missing == self._missing:
                return False
            if choose and choose[0] not in skills:
                raise UnknownSkill(_unknown(choose[0], skills))
            if sync:
                self._switched = self._switches.sync(skills.values(), self._held(scans), choose)
            self._missing = missing
            self._pending = False
            return self._swap(skills, self._diagnostics(scans) + self._clashes + self._switched.diagnostics)

    def _make_custom_folder(self) -> None:
        with contextlib.suppress(OSError):  # the scan says what stands in the way
            self._custom.mkdir(parents=True, exist_ok=True)

    def _read_files(self, scans: tuple[Scan, ...]) -> None:
        now = time.time_ns()
        reads: dict[str, _Read] = {}
        self._unsettled = False
        for found in (found for one in scans for found in one.found):
            old = self._reads.get(found.path)
            young = found.stamp.younger_than(_YOUNG_NS, now)
            same = old is not None and old.file == found.file
            if old and same and old.stamp == found.stamp and not young and not old.loaded.again:
                reads[found.path] = old
                continue
            loaded = load(found)
            good = loaded.skill or (old.good if old and same else None)
            reads[found.path] = _Read(found.stamp, found.file, loaded, good)
            self._unsettled = self._unsettled or young or loaded.again
        for path, old in self._reads.items():
            if path not in reads and any(holds(blocked, path) for one in scans for blocked in one.blocked):
                reads[path] = old  # it may well be there: the folder could not be looked into
        self._reads = reads
        self._scans = scans

    def _diagnostics(self, scans: tuple[Scan, ...]) -> tuple[Diagnostic, ...]:
        result = [diagnostic for one in scans for diagnostic in one.diagnostics]
        for _, read in sorted(self._reads.items()):
            result.extend(read.loaded.diagnostics)
            if read.loaded.skill is None and read.good is not None:
                first = read.loaded.diagnostics[0]
                reason = f"Until then the last good version of {read.good.name!r} stays in use"
                result.append(Diagnostic(first.file, first.line, reason, "mend the file", "warning"))
        return tuple(result)

    def _held(self, scans: tuple[Scan, ...]) -> Callable[[str, Mapping[str, Any]], bool]:
        """Tells of a switch whose skill was not found whether its file is still there, unusable."""
        refused = [
            found
            for one in scans
            for found in one.found
            if (read := self._reads.get(found.path)) is None or read.good is None
        ]
        paths = {f"{found.source}:{shown(found.file)}" for found in refused}
        hints = {found.hint for found in refused}
        blocked = tuple(shown(os.path.realpath(path)) for one in scans for path in one.blocked)
        absent = {source for source, one in zip(("builtin", "custom"), scans, strict=True) if one.absent}

        def held(name: str, entry: Mapping[str, Any]) -> bool:
            source, _, path = str(entry.get("path", "")).partition(":")
            if f"{source}:{path}" in paths or source in absent:
                return True
            return name in hints or any(holds(folder, path) for folder in blocked)

        return held

    def _swap(self, skills: Mapping[str, Skill], diagnostics: tuple[Diagnostic, ...]) -> bool:
        enabled, missing = self._switched.enabled, self._missing
        every = sorted(skills.values(), key=lambda skill: skill.name)
        on = [skill for skill in every if enabled.get(skill.name, False)]
        new = SkillSet(
            available=tuple(skill for skill in on if not missing.get(skill.name)),
            unavailable=tuple((skill, missing[skill.name]) for skill in on if missing.get(skill.name)),
            disabled=tuple(skill for skill in every if not enabled.get(skill.name, False)),
            diagnostics=diagnostics,
        )
        if new == self._current:
            return False
        told = frozenset(self._current.diagnostics)
        for diagnostic in dict.fromkeys(diagnostics):
            if diagnostic not in told:
                log.log(_LEVELS[diagnostic.severity], "%s", diagnostic)
        log.info(
            "skills: %d available, %d unavailable, %d disabled",
            len(new.available),
            len(new.unavailable),
            len(new.disabled),
        )
        self._current = new
        return True


def _chosen(reads: Mapping[str, _Read]) -> tuple[dict[str, Skill], tuple[Diagnostic, ...]]:
    """One skill a name: custom before built-in, and within one source the first by path."""
    chosen: dict[str, tuple[Skill, str]] = {}
    clashes: list[Diagnostic] = []
    found = [(read.good, path) for path, read in reads.items() if read.good]
    # "builtin" sorts before "custom", and is replaced by it; the paths of the two may sort in any way.
    for skill, path in sorted(found, key=lambda one: (one[0].source, one[1])):
        earlier = chosen.get(skill.name)
        if earlier is None or earlier[0].source != skill.source:
            chosen[skill.name] = (skill, path)
        else:
            reason = f"The name {skill.name!r} is taken by {shown(earlier[1])}; this one is not used"
            clashes.append(Diagnostic(shown(path), 0, reason, "rename one of them"))
    return {name: skill for name, (skill, _) in chosen.items()}, tuple(clashes)


def _unknown(name: str, skills: Mapping[str, Skill]) -> str:
    near = difflib.get_close_matches(name, list(skills), 1, 0.6)
    hint = f"Did you mean {near[0]!r}?" if near else "See the list of skills."
    return f"There is no skill called {name[:80]!r}. {hint}"
