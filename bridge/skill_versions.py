"""Versions of the workspace's skills: who changed what, when and why, and the way back.

Where the skills folder or the workspace is a git repository of its own, each change is a commit there that
holds the skill's files and nothing else. Otherwise versions are zips in the bridge's store.
Skills that are links to another place are that place's matter. All methods block: call them in a thread.
"""

from __future__ import annotations

import functools
import getpass
import hashlib
import io
import json
import logging
import os
import shutil
import stat
import subprocess
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent.skills.skill import Skill
from bridge.skill_shelf import StoreShelf

log = logging.getLogger("causeway.skills")

MAX_VERSIONS = 50
MAX_SKILL_BYTES = 10 * 1024 * 1024
MAX_SKILL_FILES = 500
_GIT_SECONDS = 20.0
_SKIPPED = frozenset({".git", "__pycache__", "node_modules"})

#: Paths relative to the skills folder, with their content and whether they can be run.
Files = dict[str, tuple[bytes, bool]]
#: The files of a skill with their times and sizes, by which a change is seen.
_State = tuple[tuple[str, int, int, int], ...]


class VersionError(Exception):
    """A version cannot be had or made. The text says what to do."""


@dataclass(frozen=True, slots=True)
class Version:
    """`id` is a number, or a commit's short hash. `when` is Unix seconds."""

    id: str
    skill: str
    when: float
    who: str
    why: str


def whoami() -> str:
    """The name of the person who runs this program."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such entry in a container
        return f"uid {os.getuid()}"


class SkillVersions:
    """Keeps versions of the skills in one folder. Safe to call from several threads."""

    def __init__(self, custom: Path, shelf: StoreShelf, clock: Callable[[], float] = time.time) -> None:
        self._custom = custom
        self._shelf = shelf
        self._real = str(custom.resolve())
        self._clock = clock
        self._seen: dict[str, tuple[str, _State]] = {}
        self._guard = threading.Lock()

    def record(self, skills: Iterable[Skill], who: str = "", why: str = "") -> list[Version]:
        """Keep a version of each of the workspace's skills that changed since the last one.

        `skills` are all of them: one that went away gets a last entry. Without words of a person, `who` is
        the owner of the file that changed last and `why` names it. When nothing changed, only the states
        of files are asked for.
        """
        made = []
        with self._guard:
            self._real = str(self._custom.resolve())
            present = {s.name: (s, root) for s in skills if (root := self._root(s)) is not None}
            first = not self._seen
            keeper = functools.cache(self._keeper)
            for name, (skill, root) in present.items():
                state = (root, _state(skill.root))
                if self._seen.get(name) == state:
                    continue
                made.append(self._record(keeper(), skill, root, who, why))
                self._seen[name] = state
            roots = {name: root for name, (root, _) in self._seen.items()}
            if first:
                roots |= keeper().known()
            for name in sorted(roots.keys() - present.keys()):
                if (self._custom / roots[name]).exists():
                    continue  # it is there and cannot be used now, or has another name
                self._seen.pop(name, None)
                if keeper().state(name, roots[name], _digest({})) == "changed":
                    made.append(
                        self._keep(keeper(), name, roots[name], {}, who or "unknown", why or "removed")
                    )
        return [version for version in made if version]

    def _keep(
        self, keeper: _Keeper, name: str, root: str, files: Files, who: str, why: str
    ) -> Version | None:
        meta = Version("", name, self._clock(), who, why)
        return meta if keeper.keep(root, files, meta, _digest(files)) else None

    def history(self, name: str, skill: Skill | None = None) -> list[Version]:
        """The versions of a skill, newest first; also of one that is gone."""
        with self._guard:
            keeper = self._keeper()
            return keeper.list(name, self._where(keeper, name, skill))

    def rollback(self, name: str, id: str, skill: Skill | None, who: str, why: str = "") -> Version:
        """Bring a version back, after keeping what is there now. Raises VersionError."""
        with self._guard:
            keeper = self._keeper()
            if skill is not None and (lies := self._root(skill)) is not None:
                self._record(keeper, skill, lies, who, f"as it was before going back to {id}")
            root, files = keeper.content(name, self._where(keeper, name, skill), id)
            if not files:
                raise VersionError(f"In version {id} the skill {name} was removed. Choose an earlier one.")
            try:
                _restore(self._custom, root, files)
            except OSError as error:
                raise VersionError(f"{name} cannot be written: {error.strerror or error}.") from error
            self._keep(keeper, name, root, files, who, why or f"went back to version {id}")
            self._seen.pop(name, None)
            return keeper.list(name, root)[0]

    def _record(self, keeper: _Keeper, skill: Skill, root: str, who: str, why: str) -> Version | None:
        try:
            files, owner, newest = _read(self._custom, root)
            state = keeper.state(skill.name, root, _digest(files))
        except (OSError, VersionError) as error:
            log.warning("no version of the skill %s was kept: %s", skill.name, error)
            return None
        if state == "same":
            return None
        found = "first seen" if state == "new" else f"changed on disk: {newest}"
        return self._keep(keeper, skill.name, root, files, who or owner, why or found)

    def _root(self, skill: Skill) -> str | None:
        """Where the skill lies in the skills folder; None for one that lies elsewhere (built in, linked)."""
        path, start = str(skill.root), f"{self._real}{os.sep}"
        return path[len(start) :].replace(os.sep, "/") if path.startswith(start) else None

    def _where(self, keeper: _Keeper, name: str, skill: Skill | None) -> str:
        root = self._root(skill) if skill is not None else None
        return root or keeper.known().get(name, name)

    def _keeper(self) -> _Keeper:
        top = _repository(self._custom)
        return _Git(self._custom, top) if top else _Zips(self._shelf)


# -- files ---------------------------------------------------------------------------------------------------


def _listing(root: Path) -> list[str]:
    if root.is_file():
        return [str(root)]
    found: list[str] = []
    for path, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        found += [f"{path}/{name}" for name in sorted(names)]
        if len(found) > MAX_SKILL_FILES:
            raise VersionError(f"it has more than {MAX_SKILL_FILES} files")
    return found


def _state(root: Path) -> _State:
    state = []
    try:
        for file in _listing(root):
            status = os.lstat(file)
            state.append((file, status.st_mtime_ns, status.st_ctime_ns, status.st_size))
    except (OSError, VersionError):
        return (("", 0, 0, len(state)),)
    return tuple(state)


def _read(custom: Path, root: str) -> tuple[Files, str, str]:
    """A skill's files, the owner of the one that changed last, and its name."""
    files: Files = {}
    total, newest = 0, (-1, "", 0)
    for file in map(Path, _listing(custom / root)):
        status = file.lstat()
        if not stat.S_ISREG(status.st_mode):
            continue
        total += status.st_size
        if total > MAX_SKILL_BYTES:
            raise VersionError(f"it is larger than {MAX_SKILL_BYTES >> 20} MiB")
        files[file.relative_to(custom).as_posix()] = (file.read_bytes(), bool(status.st_mode & 0o100))
        if status.st_mtime_ns > newest[0]:
            newest = (status.st_mtime_ns, file.relative_to(custom / root).as_posix(), status.st_uid)
    _, name, owner = newest
    return files, _owner(owner), root if name in ("", ".") else name


def _owner(uid: int) -> str:
    try:
        import pwd  # Unix only

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return f"uid {uid}"


def _digest(files: Files) -> str:
    whole = hashlib.sha256()
    for path, (data, runs) in sorted(files.items()):
        whole.update(f"{path}\0{runs}\0{len(data)}\0".encode("utf-8", "surrogateescape") + data)
    return whole.hexdigest()


def _restore(custom: Path, root: str, files: Files) -> None:
    """Put a skill's files in the place of those that are there. Raises OSError."""
    target = custom / root
    new, old = custom / ".rollback.new", custom / ".rollback.old"
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    for path, (data, runs) in files.items():
        file = new / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        file.chmod(0o755 if runs else 0o644)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        old.mkdir()
        target.rename(old / "skill")
    (new / root).rename(target)
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)


def _no_version(name: str, id: str) -> VersionError:
    return VersionError(f"{name} has no version {id!r}. `causeway skills history {name}` lists them.")


# -- the store -----------------------------------------------------------------------------------------------


class _Zips:
    """One zip a version on the shelf; what is said about it stands in its comment."""

    def __init__(self, shelf: StoreShelf) -> None:
        self._shelf = shelf
        self._index = shelf.index()

    def _open(self, name: str, number: int) -> zipfile.ZipFile:
        return zipfile.ZipFile(io.BytesIO(self._shelf.read(name, number)))

    def _said(self, name: str, number: int) -> dict[str, Any]:
        try:
            with self._open(name, number) as packed:
                said = json.loads(packed.comment)
                return said if isinstance(said, dict) else {}
        except (OSError, ValueError, zipfile.BadZipFile):
            return {}

    def state(self, name: str, root: str, digest: str) -> Literal["new", "changed", "same"]:
        """How files of this digest stand to the last version."""
        if not (numbers := self._index.get(name)):
            return "new"
        return "same" if self._said(name, numbers[-1]).get("digest") == digest else "changed"

    def known(self) -> dict[str, str]:
        """The names that have versions, and where each skill lay."""
        kept = ((name, numbers[-1]) for name, numbers in self._index.items() if numbers)
        return {name: str(self._said(name, last).get("root", name)) for name, last in kept}

    def keep(self, root: str, files: Files, meta: Version, digest: str) -> bool:
        name, numbers = meta.skill, self._index.get(meta.skill, [])
        told = {"when": meta.when, "who": meta.who, "why": meta.why[:500]}
        said = {"v": 1, "digest": digest, "root": root, **told}
        body = io.BytesIO()
        with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as packed:
            for path, (data, runs) in sorted(files.items()):
                entry = zipfile.ZipInfo(path)
                entry.external_attr = (0o100755 if runs else 0o100644) << 16
                packed.writestr(entry, data, zipfile.ZIP_DEFLATED)
            packed.comment = json.dumps(said, ensure_ascii=True).encode()
        number = (numbers[-1] if numbers else 0) + 1
        cut = max(0, len(numbers) + 1 - MAX_VERSIONS)
        drop, older = numbers[:cut], numbers[cut:]
        try:
            self._shelf.write(name, number, body.getvalue(), older, drop)
        except OSError as error:
            log.warning("no version of the skill %s could be kept: %s", name, error)
            return False
        self._index[name] = [*older, number]
        return True

    def list(self, name: str, root: str) -> list[Version]:
        result = []
        for number in reversed(self._index.get(name, [])):
            said = self._said(name, number)
            when = said.get("when")
            when = float(when) if isinstance(when, (int, float)) else 0.0
            who, why = str(said.get("who", "?")), str(said.get("why", "(damaged)"))
            result.append(Version(str(number), name, when, who, why))
        return result

    def content(self, name: str, root: str, id: str) -> tuple[str, Files]:
        if not id.isdigit() or int(id) not in self._index.get(name, []):
            raise _no_version(name, id)
        files: Files = {}
        try:
            with self._open(name, int(id)) as packed:
                root = str(json.loads(packed.comment)["root"])
                for entry in packed.infolist():
                    inside = entry.filename == root or entry.filename.startswith(f"{root}/")
                    if not inside or ".." in Path(entry.filename).parts or entry.file_size > MAX_SKILL_BYTES:
                        raise VersionError(f"Version {id} of {name} holds a path that is not the skill's.")
                    files[entry.filename] = (packed.read(entry), bool(entry.external_attr >> 16 & 0o100))
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise VersionError(f"Version {id} of {name} is damaged. Choose another one.") from error
        return root, files


# -- git -----------------------------------------------------------------------------------------------------


def _git(folder: Path, *arguments: str, environ: Mapping[str, str] = {}) -> bytes:
    """Run git; its output. Raises VersionError."""
    command = ["git", "-c", "core.hooksPath=/dev/null", "-c", "commit.gpgsign=false", "-C", str(folder)]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        done = subprocess.run(
            [*command, *arguments], capture_output=True, timeout=_GIT_SECONDS, check=False,
            env={**kept, "GIT_TERMINAL_PROMPT": "0", "GIT_LITERAL_PATHSPECS": "1", **environ},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise VersionError(f"git cannot be used: {error}") from error
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip().splitlines()
        raise VersionError(f"git refused: {why[-1] if why else f'exit {done.returncode}'}")
    return done.stdout


def _repository(custom: Path) -> Path | None:
    """The git repository that is meant for the skills: the skills folder itself, or the workspace.

    A repository further up holds something else, whose history is not ours to write.
    """
    for folder in (custom, custom.parent):
        if (folder / ".git").exists() and shutil.which("git"):
            try:
                inside = str(custom.resolve() / "x")
                _git(custom, "check-ignore", "--quiet", inside, environ={"GIT_LITERAL_PATHSPECS": "0"})
            except VersionError:
                return folder  # not ignored
    return None


class _Git:
    """Versions as commits that touch one skill's folder."""

    def __init__(self, custom: Path, top: Path) -> None:
        self._custom = custom.resolve()
        inside = self._custom.relative_to(top.resolve()).as_posix()
        self._prefix = "" if inside == "." else f"{inside}/"

    def state(self, name: str, root: str, digest: str) -> Literal["new", "changed", "same"]:
        said = _git(self._custom, "status", "--porcelain", "--untracked-files=all", "--", root)
        if not said:
            return "same"
        return "changed" if _git(self._custom, "ls-files", "--", root) else "new"

    def known(self) -> dict[str, str]:
        return {}

    def keep(self, root: str, files: Files, meta: Version, digest: str) -> bool:
        who = "".join(c for c in meta.who if c.isprintable() and c not in "<>")[:100] or "unknown"
        names = {"GIT_AUTHOR_NAME": who, "GIT_AUTHOR_EMAIL": "causeway@localhost",
                 "GIT_COMMITTER_NAME": "Causeway", "GIT_COMMITTER_EMAIL": "causeway@localhost"}  # fmt: skip
        message = f"skill {meta.skill}: {' '.join(meta.why.split())[:500]}"
        try:
            _git(self._custom, "add", "--all", "--", root)
            _git(self._custom, "commit", "--quiet", "--only", "--message", message, "--", root, environ=names)
        except VersionError as error:
            log.warning("no version of the skill %s could be kept: %s", meta.skill, error)
            return False
        return True

    def list(self, name: str, root: str) -> list[Version]:
        most, form = f"--max-count={MAX_VERSIONS}", "--format=%h%x1f%an%x1f%at%x1f%s"
        try:
            out = _git(self._custom, "log", most, form, "--", root)
        except VersionError:
            return []
        versions = []
        for line in out.decode("utf-8", "replace").splitlines():
            id, who, when, why = line.split("\x1f", 3)
            versions.append(Version(id, name, float(when), who, why.removeprefix(f"skill {name}: ")))
        return versions

    def content(self, name: str, root: str, id: str) -> tuple[str, Files]:
        if not any(version.id == id for version in self.list(name, root)):
            raise _no_version(name, id)
        files: Files = {}
        listing = _git(self._custom, "ls-tree", "-r", "-z", "--full-tree", id, "--", self._prefix + root)
        for line in listing.decode("utf-8", "surrogateescape").split("\0"):
            head, _, path = line.partition("\t")
            mode, kind, blob = [*head.split(" "), "", ""][:3]
            if kind == "blob" and mode != "120000":
                data = _git(self._custom, "cat-file", "blob", blob)
                files[path.removeprefix(self._prefix)] = (data, mode == "100755")
        return root, files


_Keeper = _Zips | _Git
