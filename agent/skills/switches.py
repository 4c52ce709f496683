"""`skills_config.json`: which skills the user switched on and off.

One entry a skill: `enabled` is the user's once the entry exists, `description` follows the skill, `source`,
`category`, `display_name` and any key that is not ours are kept. The file is written whole (temporary file,
flush, rename), under a lock that other processes of ours take too, and only when something changed. A file
that cannot be read never counts as "all on": the last good one stays in force, and is kept beside it for
the next start; without one, everything is off until the file is mended.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.skills.discovery import Stamp, shown
from agent.skills.requirements import flag
from agent.skills.skill import Diagnostic, Skill
from agent.skills.textfile import read_bytes

try:
    import fcntl
except ImportError:  # Windows: the atomic rename remains, only two processes at once could lose one change
    fcntl = None  # type: ignore[assignment]

FILE_NAME = "skills_config.json"
#: Where choices about skills that went away are remembered: replacing a folder by a newer version may be
#: seen half-way, and must not switch the skill on again.
REMOVED_KEY = "_removed"
REMEMBER_SECONDS = 7 * 24 * 3600
MAX_REMOVED = 200
_MAX_BYTES = 4 * 1024 * 1024
_LOCK_SECONDS = 2.0

Entries = dict[str, Any]


class SwitchesBroken(Exception):
    """The file of switches cannot be read or written, so nothing was changed. The text says what to do."""


@dataclass(frozen=True, slots=True)
class Switched:
    """Which skills are on, by name (one that is not here is off), and what was wrong."""

    enabled: Mapping[str, bool]
    diagnostics: tuple[Diagnostic, ...] = ()


class Switches:
    """The single owner of the file in this process. Methods block; callers hold one lock around them."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._path = folder / FILE_NAME
        self._backup = folder / f".{FILE_NAME}.last"
        self._clock = clock
        self._good: Entries | None = None
        self.seen: Stamp | None = None

    def stamp(self) -> Stamp | None:
        """The file's state on disk; differs from `seen` after someone else wrote it."""
        try:
            return Stamp.of(self._path.stat())
        except OSError:
            return None

    def sync(
        self,
        skills: Collection[Skill],
        held: Callable[[str, Mapping[str, Any]], bool],
        choose: tuple[str, bool] | None = None,
    ) -> Switched:
        """Bring the file in line with the skills that were found, and set one switch if `choose` says so.

        `held(name, entry)` is true for an entry whose skill is not among `skills` only because its file
        cannot be used now. Raises SwitchesBroken when `choose` could not be written.
        """
        with self._locked():
            self.seen = self.stamp()
            entries, fault = self._read()
            if fault and choose:
                raise SwitchesBroken(str(fault))
            if entries is None:
                return Switched({}, (fault,) if fault else ())
            merged = merge(entries, skills, held, self._clock(), choose)
            if fault is None and (merged != entries or (self.seen is None and merged)):
                fault = self._write(merged)
                if fault and choose:
                    raise SwitchesBroken(str(fault))
            self._good = merged
        enabled = {skill.name: merged[skill.name]["enabled"] for skill in skills}
        return Switched(enabled, (fault,) if fault else ())

    def _read(self) -> tuple[Entries | None, Diagnostic | None]:
        """The entries in force, None when nothing is known, and the fault of the file."""
        try:
            entries = _parse(read_bytes(Path(os.path.realpath(self._path)), _MAX_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            # While running, an editor may have the file away for a moment; at start it is a new workspace.
            return self._good or {}, None
        except (OSError, ValueError) as error:
            return self._last_good(error)
        self._keep(entries)
        return entries, None

    def _last_good(self, error: Exception) -> tuple[Entries | None, Diagnostic]:
        entries = self._good
        if entries is None:
            with contextlib.suppress(OSError, ValueError):
                entries = _parse(read_bytes(self._backup, _MAX_BYTES))
        force = "every skill is off until then" if entries is None else "the last good switches stay in force"
        cure = "mend the file, or stop the bridge and delete it to begin anew"
        reason = f"The switches cannot be read ({getattr(error, 'strerror', None) or error}); {force}"
        return entries, Diagnostic(shown(self._path), getattr(error, "lineno", 0), reason, cure)

    def _write(self, entries: Entries) -> Diagnostic | None:
        try:
            # A link to the file stays a link: what it points to is replaced.
            target = Path(os.path.realpath(self._path))
            inode = replace_file(target, _dump(entries))
            self.seen = self.stamp()
            if self.seen is not None and self.seen.inode != inode:
                self.seen = None  # someone else wrote in the same moment: read it next time
            self._keep(entries)
        except OSError as error:
            why = error.strerror or error
            reason = f"The switches cannot be saved: {why}; they hold until the next start"
            return Diagnostic(shown(self._path), 0, reason, "make the folder writable")
        return None

    def _keep(self, entries: Entries) -> None:
        """Keep what is good for a start that finds the file torn. Failing that costs nothing now."""
        if entries == self._good:
            return
        data = _dump(entries)
        with contextlib.suppress(OSError):
            if not self._backup.exists() or self._backup.read_bytes() != data:
                replace_file(self._backup, data)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold other processes off the file. A folder in which no lock can be made is not written anyway."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._folder / f".{FILE_NAME}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            yield
            return
        try:
            deadline = time.monotonic() + _LOCK_SECONDS
            while fcntl is not None:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    # The other side holds it for one small write; who holds it longer hangs.
                    if time.monotonic() > deadline:
                        break
                    time.sleep(0.01)
                except OSError:  # a file system without locks
                    break
            yield
        finally:
            os.close(descriptor)


def merge(
    entries: Mapping[str, Any],
    skills: Iterable[Skill],
    held: Callable[[str, Mapping[str, Any]], bool],
    now: float,
    choose: tuple[str, bool] | None = None,
) -> Entries:
    """The entries as they should stand. Pure.

    New skill: its own default. Known: the user's switch. Gone: removed, its switch remembered for a week.
    """
    by_name = {skill.name: skill for skill in skills}
    removed = _remembered(entries.get(REMOVED_KEY), now)
    result: Entries = {}
    for name, skill in sorted(by_name.items()):
        old = _as_entry(entries.get(name))
        enabled = skill.default_enabled
        if name in removed:
            enabled = removed.pop(name)["enabled"]
        if "enabled" in old:
            enabled = bool(flag(old["enabled"]))  # what is no switch counts as off
        if choose and choose[0] == name:
            enabled = choose[1]
        result[name] = {
            "category": "skill",
            **old,
            "name": name,
            "description": skill.description[:1_024],
            "source": old.get("source") or skill.source,
            "enabled": enabled,
            "default_enabled": skill.default_enabled,
            # Names the file also when its frontmatter cannot be read.
            "path": f"{skill.source}:{shown(skill.file)}",
        }
    for name, raw in entries.items():
        old = _as_entry(raw)
        if name in by_name or name == REMOVED_KEY or raw is None:
            continue
        if held(name, old):
            result[name] = raw
        elif "enabled" in old and bool(flag(old["enabled"])) != old.get("default_enabled", True):
            removed[name] = {"enabled": bool(flag(old["enabled"])), "since": now}
    if removed:
        newest = sorted(removed, key=lambda name: removed[name]["since"], reverse=True)[:MAX_REMOVED]
        result[REMOVED_KEY] = {name: removed[name] for name in sorted(newest)}
    return result


def _as_entry(raw: Any) -> dict[str, Any]:
    if isinstance(raw, bool):  # {"name": false}, written by hand
        return {"enabled": raw}
    if isinstance(raw, dict):
        return raw
    return {} if raw is None else {"enabled": False}


def _remembered(raw: Any, now: float) -> dict[str, dict[str, Any]]:
    result = {}
    for name, item in raw.items() if isinstance(raw, dict) else ():
        since = item.get("since") if isinstance(item, dict) else None
        if isinstance(since, (int, float)) and now - REMEMBER_SECONDS < since < now + REMEMBER_SECONDS:
            result[name] = {"enabled": bool(flag(item.get("enabled"))), "since": since}
    return result


def _parse(data: bytes) -> Entries:
    """Raises ValueError (json.JSONDecodeError has the line)."""
    try:
        entries = json.loads(data.decode("utf-8-sig"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(entries, dict):
        raise ValueError("it is not a JSON object")
    return entries


def _dump(entries: Entries) -> bytes:
    return (json.dumps(entries, ensure_ascii=False, indent=4) + "\n").encode("utf-8", "replace")


def replace_file(path: Path, data: bytes) -> int:
    """Put `data` in the place of the file so that a reader, or a crash, sees the old or the new one whole.
    Returns the new file's inode. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name.lstrip('.')}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        inode = os.fstat(file.fileno()).st_ino
    temporary.replace(path)
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return inode
