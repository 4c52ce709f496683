"""Where skills are: one walk over a source, which is also the signature of its tree.

A walk asks for file status only and opens nothing, so that 500 skills that did not change cost a few
milliseconds. Rules: a root-level `*.md` but README is a skill; a folder with SKILL.md is one and is not
searched deeper; other folders are searched; hidden and machine-made folders are skipped. A link is
followed to a skill's own folder and no further, so no link can lead the walk around in circles or away.
"""

from __future__ import annotations

import itertools
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from agent.skills.skill import Diagnostic, Severity, Source

SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__", "venv"})
MAX_DEPTH = 6
MAX_SKILLS = 2_000
MAX_ENTRIES = 20_000
SKILL_FILE = "SKILL.md"


@dataclass(frozen=True, slots=True)
class Stamp:
    """Tells whether a file changed. Change time and inode catch an edit that kept time and size."""

    mtime_ns: int
    ctime_ns: int
    size: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        return cls(status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)

    def younger_than(self, age_ns: int, now_ns: int) -> bool:
        """Whether a further edit could still fall on the same clock tick and go unnoticed."""
        return now_ns - max(self.mtime_ns, self.ctime_ns) < age_ns


@dataclass(frozen=True, slots=True)
class Found:
    """A file that may be a skill. `path` as the user sees it; `file` and `folder` with links resolved;
    `hint` is the name that it has when its frontmatter gives none."""

    path: str
    file: str
    folder: str
    hint: str
    single: bool
    source: Source
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Scan:
    """One source as it stands. Two equal scans mean that nothing needs to be read again.

    `blocked` are folders that are there and could not be looked into: what was known of them stays.
    `absent` means that the source's own folder is not there."""

    found: tuple[Found, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    blocked: tuple[str, ...] = ()
    absent: bool = False


def shown(path: str | Path) -> str:
    """A path for people: bytes and control characters that a log cannot hold are made visible."""
    text = os.fsencode(path).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def scan(root: Path, source: Source) -> Scan:
    """Walk one source. Blocks; never raises OSError."""
    try:
        is_folder = stat.S_ISDIR(root.stat().st_mode)
    except FileNotFoundError:
        reason, cure = "The skills folder does not exist", "create it, or correct its path"
        return Scan(diagnostics=(_fault(root, reason, cure, "warning"),), absent=True)
    except OSError as error:
        reason = f"The skills folder cannot be read: {error.strerror}"
        return Scan(diagnostics=(_fault(root, reason, "check its permissions"),), blocked=(str(root),))
    if not is_folder:
        reason, cure = "The path for skills is no folder", "put a folder there"
        return Scan(diagnostics=(_fault(root, reason, cure),), absent=True)
    walk = _Walk(source, os.path.realpath(root))
    walk.folder(str(root), walk.real_root, 0)
    return Scan(tuple(walk.found), tuple(walk.diagnostics), tuple(walk.blocked))


def _fault(path: str | Path, reason: str, cure: str, severity: Severity = "error") -> Diagnostic:
    return Diagnostic(shown(path), 0, reason, cure, severity)


@dataclass(slots=True)
class _Walk:
    source: Source
    real_root: str
    found: list[Found] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)
    entries: int = 0
    full: bool = False

    def fault(self, path: str, reason: str, cure: str, severity: Severity = "warning") -> None:
        self.diagnostics.append(_fault(path, reason, cure, severity))

    def _block(self, path: str, error: OSError) -> None:
        """Something is there that cannot be looked at."""
        self.blocked.append(path)
        if isinstance(error, FileNotFoundError):
            self._nowhere(path)
        else:
            reason = f"It cannot be looked into: {error.strerror}"
            self.fault(path, reason, "check its permissions, or remove it", "error")

    def _nowhere(self, path: str) -> None:
        self.fault(path, "The link leads nowhere", "remove it, or mend what it points to")

    def folder(self, path: str, real: str, depth: int) -> None:
        """Look at everything in a folder that is no skill itself."""
        for entry in self._list(path):
            if self.full:
                return
            name = entry.name
            try:
                link, folder = entry.is_symlink(), entry.is_dir()
            except OSError as error:
                self._block(entry.path, error)
                continue
            if depth == 0 and not folder and name.casefold().endswith(".md"):
                if name.casefold() != "readme.md":
                    self._root_file(entry, real)
            elif folder:
                self._subfolder(entry.path, name, link, real, depth)
            elif link and not os.path.exists(entry.path):  # noqa: PTH110 (paths are text here for speed)
                self._nowhere(entry.path)

    def _list(self, path: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(path) as entries:
                listed = []
                for entry in entries:
                    self.entries += 1
                    if self.entries > MAX_ENTRIES:
                        self._overflow(path, f"more than {MAX_ENTRIES} files")
                        break
                    if not entry.name.startswith(".") and entry.name not in SKIPPED_FOLDERS:
                        listed.append(entry)
        except OSError as error:
            self.blocked.append(path)
            self.fault(path, f"The folder cannot be read: {error.strerror}", "check its permissions", "error")
            return []
        # Links last: of a folder and a link to it, the folder is the skill.
        return sorted(listed, key=lambda entry: (entry.is_symlink(), entry.name))

    def _overflow(self, path: str, what: str) -> None:
        if not self.full:
            self.full = True
            reason = f"There are {what}; the rest was not looked at"
            self.fault(path, reason, "keep only skills here", "error")

    def _root_file(self, entry: os.DirEntry[str], real: str) -> None:
        name = entry.name
        hint = os.path.basename(real) if name == SKILL_FILE else name[:-3]  # noqa: PTH119
        try:
            status = os.stat(entry.path)  # noqa: PTH116
        except OSError as error:
            self._block(entry.path, error)
            return
        if not stat.S_ISREG(status.st_mode):
            self.fault(entry.path, "It is not a regular file", "put a text file there", "error")
        else:
            file = os.path.realpath(entry.path) if entry.is_symlink() else os.path.join(real, name)  # noqa: PTH118
            self._take(Found(entry.path, file, real, hint, True, self.source, Stamp.of(status)))

    def _subfolder(self, path: str, name: str, link: bool, parent_real: str, depth: int) -> None:
        real = os.path.realpath(path) if link else f"{parent_real}/{name}"
        if link and holds(real, self.real_root):
            reason = "The link leads to a folder that holds the skills folder"
            self.fault(path, reason, "link one skill's folder")
            return
        try:
            if file := self._skill_file(path):
                self._skill(path, name, *file, real, depth)
                return
        except OSError as error:
            self._block(path, error)
            return
        if link:
            cure = "link the folder that holds SKILL.md itself"
            self.fault(path, "The link leads to a folder without SKILL.md and is not searched", cure)
        elif depth + 1 >= MAX_DEPTH:
            self.fault(path, f"Folders deeper than {MAX_DEPTH} are not searched", "move the skill up")
        else:
            self.folder(path, real, depth + 1)

    def _skill_file(self, path: str) -> tuple[str, os.stat_result] | None:
        """The folder's SKILL.md, also when its name is written in other case. Raises OSError."""
        try:
            return SKILL_FILE, os.lstat(f"{path}/{SKILL_FILE}")
        except FileNotFoundError:
            pass
        with os.scandir(path) as entries:
            # Bounded, because what a link leads to may be anything.
            for entry in itertools.islice(entries, 1_000):
                if entry.name.casefold() == SKILL_FILE.casefold():
                    return entry.name, os.lstat(entry.path)
        return None

    def _skill(self, path: str, hint: str, name: str, status: os.stat_result, real: str, depth: int) -> None:
        """Take the folder `path` with its SKILL.md, called `name`. Raises OSError."""
        at, file = f"{path}/{name}", f"{real}/{name}"
        if stat.S_ISLNK(status.st_mode):
            status, file = os.stat(at), os.path.realpath(at)  # noqa: PTH116
            if not holds(real, file):
                reason = "SKILL.md is a link that leads out of its folder"
                self.fault(at, reason, "link the whole folder, or copy the file", "error")
                return
        elif stat.S_ISDIR(status.st_mode) and depth + 1 < MAX_DEPTH:
            self.folder(path, real, depth + 1)
            return
        if not stat.S_ISREG(status.st_mode):
            self.fault(at, "It is not a regular file", "put a text file there", "error")
        elif real in self.folders:
            self.fault(path, "The folder is there already under another name", "remove one link", "note")
        else:
            self.folders.add(real)
            self._take(Found(at, file, real, hint, False, self.source, Stamp.of(status)))

    def _take(self, found: Found) -> None:
        if len(self.found) >= MAX_SKILLS:
            self._overflow(found.path, f"more than {MAX_SKILLS} skills")
        else:
            self.found.append(found)


def holds(folder: str, path: str) -> bool:
    """Whether `path` is `folder` or lies in it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
