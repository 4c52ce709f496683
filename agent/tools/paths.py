"""Paths that tools are given: inside the session's folder, or read-only inside a skill. Nothing else.

A path is resolved with its links first; then the file is opened by walking from the root folder one
component at a time, following no link. What was resolved holds no link any more, so a link met on the
walk was put there meanwhile, and the walk fails instead of leaving the folder. All functions block on
the disk: call them in a thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agent.tools.base import ToolContext, ToolFailure

SKILLS = "/skills"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO that nobody writes to would wait for ever. O_NOCTTY: a terminal must not
# become ours.
_SAFELY = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_MAX_PATH = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """A checked path. `parts` lead from `root` (an absolute path without links) to the file; `shown` is the
    name to use in messages: relative to the session's folder, or `/skills/<name>/...`."""

    root: Path
    parts: tuple[str, ...]
    shown: str
    skill: str = ""

    @property
    def relative(self) -> str:
        return "/".join(self.parts) or "."


def locate(context: ToolContext, path: str) -> Place:
    """Check a path that a model gave. It need not exist. Raises ToolFailure."""
    _check_text(path)
    if path == SKILLS or path.startswith(SKILLS + "/"):
        return _locate_in_skill(context, path)
    if path.startswith(("~", "file:")):
        raise _outside(path)
    root = _real(context.folder)
    if path.startswith("/"):
        # A shell shows absolute names of the session's own files; those are as good as relative ones.
        given = next((base for base in (root, context.folder) if Path(path).is_relative_to(base)), None)
        if given is None:
            raise _outside(path)
        path = str(Path(path).relative_to(given))
    return _within(root, path, original=path)


def locate_for_writing(context: ToolContext, path: str) -> Place:
    """As `locate`, for a file to be made or changed: skills are refused, and so is the folder itself."""
    place = locate(context, path)
    if place.skill:
        raise ToolFailure(
            f"{place.shown} cannot be changed.",
            "Skills are read-only.",
            "Copy what you need into a file of the session's folder, by a relative path such as notes.txt.",
        )
    if not place.parts:
        raise ToolFailure(f"{path!r} is the session's folder itself.", cure="Name a file in it.")
    return place


def _locate_in_skill(context: ToolContext, path: str) -> Place:
    name, _, rest = path[len(SKILLS) + 1 :].partition("/")
    if not name:
        raise ToolFailure(
            f"{path!r} names no skill.",
            cure="Use /skills/<name>/SKILL.md with a name from the list of available skills.",
        )
    folder = None if name in (".", "..") else context.skill_folder(name)
    if folder is None:
        raise ToolFailure(
            f"There is no skill named {_short(name)!r} for this chat.",
            cure="Use a name from the list of available skills.",
        )
    root = _real(folder)
    if root.is_file():  # a skill that is a single file: it is its own SKILL.md
        if rest not in ("", "SKILL.md", root.name):
            raise ToolFailure(f"The skill {name} is a single file.", cure=f"Read {SKILLS}/{name}/SKILL.md.")
        return Place(root.parent, (root.name,), f"{SKILLS}/{name}/SKILL.md", skill=name)
    return _within(root, rest or ".", original=path, prefix=f"{SKILLS}/{name}/", skill=name)


def _within(root: Path, path: str, *, original: str, prefix: str = "", skill: str = "") -> Place:
    try:
        resolved = Path(os.path.realpath(root / path))
    except (OSError, ValueError) as error:  # a name that the system cannot take
        raise ToolFailure(
            f"{_short(original)!r} is no usable path.", cure="Use a plain file name."
        ) from error
    if not resolved.is_relative_to(root):
        raise _outside(original)
    parts = resolved.relative_to(root).parts
    return Place(root, parts, prefix + ("/".join(parts) or "."), skill)


def _real(folder: Path) -> Path:
    return Path(os.path.realpath(folder))


def _check_text(path: str) -> None:
    if not path.strip():
        raise ToolFailure("The path is empty.", cure="Name a file, such as notes.txt.")
    if "\0" in path or len(path) > _MAX_PATH:
        raise ToolFailure("The path is not usable.", "It holds a NUL character or is too long.")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise ToolFailure("The path is not usable.", "It holds half a character.") from error


def _outside(path: str) -> ToolFailure:
    return ToolFailure(
        f"{_short(path)!r} is outside the session's folder.",
        "Only files of this session and of skills can be used, also by way of links.",
        "Give a path relative to the session's folder, such as notes.txt, or /skills/<name>/SKILL.md.",
    )


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "..."


@contextmanager
def folder_of(place: Place, *, create: bool = False) -> Iterator[int]:
    """A descriptor of the folder that holds the place (of the root, when the place is the root)."""
    with _walk(place.root, place.parts[:-1], place.shown, create=create) as descriptor:
        yield descriptor


@contextmanager
def open_folder(place: Place) -> Iterator[int]:
    """A descriptor of the place, which must be a folder. Raises ToolFailure."""
    with _walk(place.root, place.parts, place.shown) as descriptor:
        yield descriptor


@contextmanager
def _walk(root: Path, parts: tuple[str, ...], shown: str, *, create: bool = False) -> Iterator[int]:
    try:
        # Not O_NOFOLLOW above the root: those folders are ours, and `root` was resolved.
        current = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ToolFailure("The folder cannot be opened.", f"{error.strerror}.") from error
    try:
        for part in parts:
            try:
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=current)
                following = os.open(part, _DIRECTORY, dir_fd=current)
            except OSError as error:
                raise _explain(error, shown) from error
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)


@contextmanager
def open_file(place: Place, max_bytes: int | None = None) -> Iterator[tuple[int, os.stat_result]]:
    """Open a regular file for reading; yields its descriptor and state.

    Folders, FIFOs, sockets and devices are refused without being opened, and so is a file larger than
    `max_bytes`. Raises ToolFailure.
    """
    with folder_of(place) as folder:
        if not place.parts:
            raise _is_folder(place.shown)
        descriptor = _open_regular(place.parts[-1], folder, place.shown)
    try:
        state = os.fstat(descriptor)
        require_regular(state, place.shown)
        if max_bytes is not None and state.st_size > max_bytes:
            raise ToolFailure(f"{place.shown} has {state.st_size} bytes; at most {max_bytes} are allowed.")
        yield descriptor, state
    finally:
        os.close(descriptor)


def _open_regular(name: str, folder: int, shown: str) -> int:
    try:
        require_regular(os.stat(name, dir_fd=folder, follow_symlinks=False), shown)
        return os.open(name, os.O_RDONLY | _SAFELY, dir_fd=folder)
    except OSError as error:
        raise _explain(error, shown) from error


def require_regular(state: os.stat_result, shown: str) -> None:
    """Raise ToolFailure unless the state is that of a regular file."""
    if stat.S_ISDIR(state.st_mode):
        raise _is_folder(shown)
    if not stat.S_ISREG(state.st_mode):
        raise ToolFailure(f"{shown} is no ordinary file.", "It is a link, a pipe, a socket or a device.")


def read_all(descriptor: int, limit: int) -> bytes:
    """At most `limit` bytes from an open file, whatever its stated size."""
    pieces: list[bytes] = []
    left = limit
    while left > 0 and (piece := os.read(descriptor, min(left, 1 << 20))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def replace_file(place: Place, data: bytes) -> bool:
    """Put `data` in the file's place at once: readers see the old or the new content, never a part.

    Missing folders are made; permissions of an existing file are kept. Returns whether the file is new.
    Raises ToolFailure.
    """
    name = place.parts[-1]
    with folder_of(place, create=True) as folder:
        mode = 0o600
        try:
            state = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            new = True
        except OSError as error:
            raise _explain(error, place.shown) from error
        else:
            require_regular(state, place.shown)
            mode, new = stat.S_IMODE(state.st_mode), False
        temporary = f".{os.urandom(8).hex()}.tmp"
        try:
            _write_new(temporary, folder, data, mode)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise _explain(error, place.shown) from error
    return new


def _write_new(name: str, folder: int, data: bytes, mode: int) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY, 0o600, dir_fd=folder)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fchmod(descriptor, mode & 0o777)
    finally:
        os.close(descriptor)


def _is_folder(shown: str) -> ToolFailure:
    return ToolFailure(f"{shown} is a folder.", cure="Use ls to see what is in it, then name a file.")


def _explain(error: OSError, shown: str) -> ToolFailure:
    """The failure for a system error, without the host's paths."""
    if isinstance(error, FileNotFoundError):
        return ToolFailure(f"{shown} does not exist.", cure="Use ls to see what is there.")
    if isinstance(error, NotADirectoryError):
        return ToolFailure(f"{shown} cannot be reached.", "It, or a part of its path, is a file or a link.")
    return ToolFailure(f"{shown} cannot be used.", f"{error.strerror or type(error).__name__}.")
