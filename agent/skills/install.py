"""Skills from elsewhere: a folder, a zip file or a git address, looked at before anything is put in place.

What comes from outside is copied file by file into a staging folder: regular files only, within bounds, no
links, no path that leads out. From there whole skills move into the workspace by a rename. Nothing of it
is ever run. All functions block.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agent.skills.discovery import SKILL_FILE, scan
from agent.skills.lint import Finding, inspect
from agent.skills.loader import load
from agent.skills.skill import Skill

MAX_BYTES = 50 * 1024 * 1024
MAX_FILE_BYTES = 10 * 1024 * 1024
MAX_FILES = 2_000
MAX_DEPTH = 10
#: How often smaller than its content a packed file may be, beyond its first megabyte.
_MAX_RATIO = 200
_CLONE_SECONDS = 120.0
_SKIPPED = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", ".DS_Store", "__MACOSX"})
_ENDINGS = ".py .sh .bash .zsh .fish .js .mjs .cjs .ts .rb .pl .php .lua .ps1 .bat .cmd .exe .jar .so .dll"
_SCRIPTS = frozenset(_ENDINGS.split())
_URL = re.compile(r"(https|ssh|file)://[^\s\x00-\x1f]+\Z", re.IGNORECASE)
_SSH_SHORT = re.compile(r"[A-Za-z0-9_.][\w.-]*@[A-Za-z0-9][\w.-]*:[\w./~-]+\Z")
_REF = re.compile(r"[A-Za-z0-9_][\w./-]{0,200}\Z")


class InstallError(Exception):
    """Nothing was installed. The text says what, why and what to do."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One skill that a source brings. `files` are its paths with sizes in bytes, `scripts` those of them that
    can be run. `folder` is its place in the staging folder."""

    skill: Skill
    folder: Path
    files: tuple[tuple[str, int], ...]
    scripts: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def name(self) -> str:
        return self.skill.name


@dataclass(frozen=True, slots=True)
class Contents:
    """What a source brings: skills, and in words what in it is no skill and why."""

    offers: tuple[Offer, ...]
    refused: tuple[str, ...] = ()


def shown_source(source: str) -> str:
    """A source as it may be shown and kept: without the password of an address."""
    return re.sub(r"(?<=://)[^/@\s]*@", "", source)


def fetch(source: str, staging: Path, ref: str = "") -> Path:
    """Bring a source into `staging` (an empty folder); returns the folder to look at. Raises InstallError.

    `ref` is the branch or tag of a git address. The folder's name is that of the source, since a skill
    without a name is called after it.
    """
    if "\0" in source or source.startswith("-"):
        raise InstallError(f"{source[:80]!r} is no source. Give a folder, a zip file or a git address.")
    if _URL.match(source) or _SSH_SHORT.match(source):
        stem = re.split(r"[/:]", source.rstrip("/"))[-1].removesuffix(".git")
        copy = _clone(source, staging / "clone", ref)
    elif "://" in source or "::" in source:
        raise InstallError(
            f"{shown_source(source)!r} cannot be used. Git addresses begin with https://, ssh:// or file://; "
            "a zip file has to be downloaded first."
        )
    else:
        copy = Path(source).expanduser()
        stem = copy.resolve().stem if copy.is_file() else copy.resolve().name
    target = staging / (_plain(stem) or "skill")
    target.mkdir(parents=True)
    try:
        if copy.is_dir():
            _copy_tree(copy, target)
        elif copy.is_file() and zipfile.is_zipfile(copy):
            _unpack(copy, target)
        else:
            what = "is no zip file" if copy.exists() else "does not exist"
            raise InstallError(f"{source} {what}. Give a folder, a zip file or a git address.")
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        what = shown_source(source)
        raise InstallError(f"{what} cannot be read: {error}. Nothing was installed.") from error
    inner = [entry for entry in target.iterdir() if entry.is_dir()]
    alone = len(inner) == 1 and not any(entry.suffix.casefold() == ".md" for entry in target.iterdir())
    return inner[0] if alone else target


def _plain(stem: str) -> str:
    return "".join(c for c in stem if c.isalnum() or c in "-_. ").strip(" .")[:64]


# -- bringing it here --------------------------------------------------------------------------------------


class _Writer:
    """Puts files into the staging folder within bounds."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._seen: set[str] = set()
        self._bytes = 0

    def check(self, name: str) -> PurePosixPath:
        """The path of a file that may be written. Raises InstallError."""
        path = PurePosixPath(name)
        bad = not name or path.is_absolute() or ".." in path.parts
        bad = bad or "\\" in name or bool(re.match(r"[A-Za-z]:", name))
        if bad or any(unicodedata.category(c)[0] == "C" for c in name):
            raise InstallError(f"The file name {name[:100]!r} leads out of its folder or cannot be used.")
        if len(path.parts) > MAX_DEPTH:
            raise InstallError(f"{name[:100]!r} lies deeper than {MAX_DEPTH} folders.")
        key = unicodedata.normalize("NFC", name).casefold()
        if key in self._seen:
            raise InstallError(f"{name[:100]!r} is there twice, save for capital letters.")
        self._seen.add(key)
        if len(self._seen) > MAX_FILES:
            raise InstallError(
                f"There are more than {MAX_FILES} files. A skill is a small folder of its own."
            )
        return path

    def put(self, path: PurePosixPath, read: Callable[[int], bytes], executable: bool) -> None:
        file = self._target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        size = 0
        with file.open("xb") as out:
            while piece := read(1 << 16):
                size += len(piece)
                self._bytes += len(piece)
                if size > MAX_FILE_BYTES or self._bytes > MAX_BYTES:
                    raise InstallError(
                        f"{path} makes it larger than allowed ({MAX_FILE_BYTES >> 20} MiB a file, "
                        f"{MAX_BYTES >> 20} MiB in all). Leave large files out."
                    )
                out.write(piece)
        file.chmod(0o755 if executable else 0o644)


def _copy_tree(source: Path, target: Path) -> None:
    writer = _Writer(target)
    for name, file in _walk(source):
        path = writer.check(name)
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with os.fdopen(os.open(file, flags), "rb") as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InstallError(f"{name} is no regular file. Leave it out.")
            writer.put(path, opened.read, bool(status.st_mode & 0o100))


def _walk(root: Path) -> Iterator[tuple[str, Path]]:
    for path, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        for name in [*folders, *sorted(files)]:
            file = Path(path, name)
            shown = file.relative_to(root).as_posix()
            if file.is_symlink():
                raise InstallError(f"{shown} is a link. Put the file itself there, or leave it out.")
            if name in files and name not in _SKIPPED:
                yield shown, file


def _unpack(archive: Path, target: Path) -> None:
    writer = _Writer(target)
    with zipfile.ZipFile(archive) as packed:
        if len(packed.infolist()) > 2 * MAX_FILES:
            raise InstallError(f"The archive has more than {2 * MAX_FILES} entries.")
        for entry in packed.infolist():
            mode = entry.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise InstallError(f"{entry.filename[:100]!r} is a link or a device. Pack plain files only.")
            if entry.flag_bits & 0x1:
                raise InstallError("The archive is locked with a password. Pack it without one.")
            if entry.orig_filename != entry.filename and "\0" in entry.orig_filename:
                raise InstallError(f"The file name {entry.filename[:100]!r} cannot be used.")
            path = writer.check(entry.filename.rstrip("/"))
            if entry.is_dir() or _SKIPPED & set(path.parts):
                continue
            if entry.file_size > 1 << 20 and entry.file_size > _MAX_RATIO * max(entry.compress_size, 1):
                raise InstallError(
                    f"{path} unpacks to {_MAX_RATIO} times its size. That is no honest archive."
                )
            with packed.open(entry) as opened:
                writer.put(path, opened.read, bool(mode & 0o100))


def _clone(url: str, target: Path, ref: str) -> Path:
    if ref and not _REF.match(ref):
        raise InstallError(f"{ref[:80]!r} is no name of a branch or tag.")
    if (git := shutil.which("git")) is None:
        raise InstallError("The program git is not installed. Install it, or download a zip file instead.")
    options = [
        "-c", "core.hooksPath=/dev/null", "-c", "core.symlinks=true", "-c", "submodule.recurse=false",
        "clone", "--quiet", "--depth", "1", "--single-branch", "--no-tags",
    ]  # fmt: skip
    command = [git, *options, *(["--branch", ref] if ref else []), "--", url, str(target)]
    # The shell sets a bound on the size of each file that git may write (in blocks of 512 or 1,024 bytes).
    limited = ["sh", "-c", f'ulimit -f {4 * MAX_BYTES // 1024}; exec "$@"', "sh", *command]
    inherited = os.environ.keys() - {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"}
    environ = {
        **{name: os.environ[name] for name in inherited},
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "https:ssh:file",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oConnectTimeout=20",
    }
    try:
        done = subprocess.run(
            limited, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=_CLONE_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise InstallError(
            f"{shown_source(url)} did not arrive within {_CLONE_SECONDS:g} s. Try again, or download it."
        ) from error
    if done.returncode:
        why = shown_source((done.stderr.strip().splitlines() or ["no reason given"])[-1])[:300]
        raise InstallError(
            f"git could not fetch {shown_source(url)}: {why}. Check the address and your access."
        )
    return target


# -- looking at it and putting it in place -----------------------------------------------------------------


def contents(root: Path) -> Contents:
    """What is in a folder that `fetch` brought: the skill that it is, or the skills in it."""
    if any(entry.name.casefold() == SKILL_FILE.casefold() for entry in root.iterdir()):
        folders, refused = [root], []
    else:
        found = scan(root, "custom")
        refused = [_relative(str(d), root) for d in found.diagnostics if d.severity == "error"]
        folders = [Path(one.folder) for one in found.found if not one.single]
        # A single page is a skill as well; it gets the folder that it lacks. A page without a head is a text.
        for one in found.found:
            if one.single and load(one).skill:
                folders.append(root / ".pages" / one.hint)
                folders[-1].mkdir(parents=True)
                shutil.copyfile(one.file, folders[-1] / SKILL_FILE)
    offers: list[Offer] = []
    for folder in folders:
        skill, findings = inspect(folder)
        if skill is None:
            refused.append(_relative(str(findings[0]), root))
        elif any(offer.name == skill.name for offer in offers):
            refused.append(f"{folder.name}: the name {skill.name!r} is there twice")
        else:
            files = tuple((name, file.stat().st_size) for name, file in _walk(folder))
            scripts = tuple(name for name, _ in files if _runs(folder / name))
            offers.append(Offer(skill, folder, files, scripts, tuple(findings)))
    return Contents(tuple(offers), tuple(refused))


def _relative(text: str, root: Path) -> str:
    return text.replace(f"{root}/", "").replace(str(root), ".")


def _runs(file: Path) -> bool:
    if file.suffix.casefold() in _SCRIPTS or file.stat().st_mode & 0o100:
        return True
    with file.open("rb") as opened:
        return opened.read(2) == b"#!"


def place(offer: Offer, custom: Path, replaced: Skill | None) -> Path:
    """Put a skill into the workspace's skills folder in one step; returns its folder.

    `replaced` is the user's copy that goes away; without it nothing that is there is touched. Raises
    InstallError, and then everything is as it was.
    """
    target = custom / offer.name
    if replaced is not None and replaced.root.is_relative_to(custom.resolve()) and not replaced.single:
        target = replaced.folder
    incoming, outgoing = custom / f".{offer.name}.new", custom / f".{offer.name}.old"
    try:
        custom.mkdir(parents=True, exist_ok=True)
        for left in (incoming, outgoing):
            shutil.rmtree(left, ignore_errors=True)
        shutil.copytree(offer.folder, incoming, symlinks=True)
        incoming.chmod(0o755)
        if replaced is not None and replaced.single:
            replaced.file.unlink()
        if replaced is not None and target.exists():
            target.rename(outgoing)
        elif target.exists() or target.is_symlink():
            raise InstallError(f"{target} is there already. Remove it first, or use --replace.")
        incoming.rename(target)
    except OSError as error:
        if outgoing.exists() and not target.exists():
            outgoing.rename(target)
        why = error.strerror or error
        raise InstallError(f"{offer.name} could not be put into {custom}: {why}.") from error
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    shutil.rmtree(outgoing, ignore_errors=True)
    return target


def replaceable(name: str, custom: Path) -> Skill | None:
    """The user's own skill of this name, as it lies on the disk now (whether or not it can be used)."""
    skills = (load(found).skill for found in scan(custom, "custom").found)
    return next((skill for skill in skills if skill and skill.name == name), None)
