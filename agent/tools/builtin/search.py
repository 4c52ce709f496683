"""`search`: find text, or files by name, in the session's folder or in a skill.

Patterns come from a model, so any of them may be one that takes for ever. They run in a thread, by an
engine that lets go of the interpreter's lock while it matches and stops at a time limit.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agent.tools import paths
from agent.tools.base import Annotations, FunctionTool, ToolContext, ToolFailure, ToolResult
from agent.tools.builtin import schema
from agent.tools.builtin.content import decode
from agent.tools.masking import Masker, settled
from agent.tools.settings import ToolSettings
from agent.tools.workers import Workers

_MAX_MATCHES = 200
_MAX_FILES = 5_000
_MAX_ENTRIES = 20_000
_MAX_BYTES = 50_000_000
_MAX_DEPTH = 40
_MAX_PATTERN = 1_000
#: Seconds of processor time (the engine counts no other) for one pattern on one line.
_LINE_SECONDS = 0.5
#: Characters shown of a line, and matches shown of a line that is longer.
_SHOWN = 300
_PER_LINE = 5

#: The (start, end) of matches in a line.
_Find = Callable[[str], Iterator[tuple[int, int]]]


def search_tool(settings: ToolSettings, workers: Workers, masker: Masker | None = None) -> FunctionTool:
    """The tool. Stops by itself before its deadline and then shows what it has found. What `masker` knows for
    a secret is neither found nor shown."""
    hide = masker or Masker()

    async def run(params: dict[str, Any], context: ToolContext) -> ToolResult:
        stop = threading.Event()
        # Some time is left for showing what was found.
        until = time.monotonic() + settings.file_timeout * 0.8
        return await workers.run(lambda: _search(settings, params, context, _Limits(stop, until), hide), stop)

    return FunctionTool(
        "search",
        "Find text in the files of this session's folder, or of a skill by /skills/<name>. The pattern is "
        "a regular expression, tried on each line; with `literal` it is plain text. Without a pattern the "
        f"files that fit `glob` are listed. Shows at most {_MAX_MATCHES} lines. To see a file use read.",
        schema.arguments(
            pattern=schema.text("What to find; leave out to list files", default="", maxLength=_MAX_PATTERN),
            path=schema.text("Folder or file to look in", default="."),
            glob=schema.text("Only files whose name or path fits, such as *.py or src/*.md", default="*"),
            literal=schema.flag("The pattern is plain text"),
            ignore_case=schema.flag("Capital and small letters are the same"),
        ),
        run,
        Annotations(read_only=True, destructive=False, open_world=False),
        settings.file_timeout,
    )


@dataclass(slots=True)
class _Limits:
    """What a search may still use up."""

    stop: threading.Event
    until: float
    entries: int = 0
    files: int = 0
    bytes: int = 0
    reached: str = ""

    def exhausted(self) -> bool:
        if not self.reached:
            if self.stop.is_set() or time.monotonic() > self.until:
                self.reached = "the time was up"
            elif self.files >= _MAX_FILES or self.entries >= _MAX_ENTRIES:
                self.reached = f"{self.files} files were enough"
            elif self.bytes >= _MAX_BYTES:
                self.reached = f"{self.bytes} bytes were enough"
        return bool(self.reached)


@dataclass(slots=True)
class _Found:
    """The lines to show, bounded in number and characters."""

    room: int
    lines: list[str] = field(default_factory=list)
    full: bool = False

    def add(self, line: str) -> None:
        if len(self.lines) >= _MAX_MATCHES or len(line) + 1 > self.room:
            self.full = True
            return
        self.room -= len(line) + 1
        self.lines.append(line)


def _search(
    settings: ToolSettings, params: dict[str, Any], context: ToolContext, limits: _Limits, hide: Masker
) -> ToolResult:
    place = paths.locate(context, params["path"])
    find = _finder(params["pattern"], params["literal"], params["ignore_case"], limits)
    found = _Found(settings.result_chars - 400)
    skipped = 0
    for name, folder, shown in _files(place, _chooser(params["glob"]), limits):
        if find is None:
            found.add(shown)
        else:
            look = functools.partial(_look_into, hide=hide, find=find, most=settings.file_bytes)
            skipped += not look(name, folder, shown, found=found, limits=limits)
        if found.full or limits.exhausted():
            break
    return ToolResult(_report(found, limits, skipped, listing=find is None))


def _report(found: _Found, limits: _Limits, skipped: int, *, listing: bool) -> str:
    notes = []
    if not found.lines and not found.full:
        what = "No file fits." if listing else "Nothing was found."
        notes.append(f"{what} {limits.files} files were looked at.")
    if found.full:
        notes.append("There is more. Use a narrower pattern, path or glob.")
    if limits.reached:
        notes.append(f"The search ended early: {limits.reached}. Use a narrower path or glob.")
    if skipped:
        notes.append(
            f"{skipped} files were skipped or searched in part: no text, not readable, or too large."
        )
    return "\n".join([*found.lines, *([f"[{' '.join(notes)}]"] if notes else [])])


def _finder(pattern: str, literal: bool, ignore_case: bool, limits: _Limits) -> _Find | None:
    """How to find the pattern in a line; None when there is no pattern."""
    if not pattern:
        return None
    import regex

    flags = regex.IGNORECASE if ignore_case else 0
    try:
        compiled = regex.compile(regex.escape(pattern) if literal else pattern, flags)
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        raise ToolFailure(
            f"The pattern is no regular expression: {str(error)[:200] or type(error).__name__}.",
            cure="Correct it, or set `literal` to true to find it as plain text.",
        ) from error

    def find(line: str) -> Iterator[tuple[int, int]]:
        seconds = max(0.01, min(_LINE_SECONDS, limits.until - time.monotonic()))
        try:
            for match in compiled.finditer(line, timeout=seconds, concurrent=True):
                yield match.span()
        except TimeoutError:
            raise ToolFailure(
                "The pattern takes too long on a line of the files.",
                "It can match in too many ways, such as repeats inside repeats.",
                "Make it simpler, or set `literal` to true.",
            ) from None

    return find


def _chooser(glob: str) -> Callable[[str, str], bool]:
    """Whether a file (its name, its path below the start) fits the glob."""
    glob = glob.removeprefix("./") or "*"
    if "/" not in glob:
        return lambda name, path: fnmatch.fnmatchcase(name, glob)
    # A star takes slashes too here; `**/` may also stand for no folder at all.
    globs = {glob, glob.removeprefix("**/"), glob.replace("/**/", "/")}
    return lambda name, path: any(fnmatch.fnmatchcase(path, one) for one in globs)


def _files(
    place: paths.Place, fits: Callable[[str, str], bool], limits: _Limits
) -> Iterator[tuple[str, int, str]]:
    """(name, descriptor of its folder, path to show) of each file; links are not followed."""
    try:
        with paths.open_file(place):
            pass
    except ToolFailure:
        with paths.open_folder(place) as descriptor:
            shown = "" if place.shown == "." else place.shown.removesuffix("/.") + "/"
            yield from _walk(descriptor, shown, "", 0, fits, limits)
        return
    with paths.folder_of(place) as folder:
        limits.files += 1
        yield place.parts[-1], folder, place.shown


def _walk(
    folder: int, shown: str, path: str, depth: int, fits: Callable[[str, str], bool], limits: _Limits
) -> Iterator[tuple[str, int, str]]:
    with os.scandir(folder) as entries:
        listed = sorted(
            itertools.islice(entries, _MAX_ENTRIES - limits.entries), key=lambda entry: entry.name
        )
    limits.entries += len(listed)
    deeper = []
    for entry in listed:
        if limits.exhausted():
            return
        if entry.is_dir(follow_symlinks=False):
            deeper.append(entry.name)
        elif entry.is_file(follow_symlinks=False) and fits(entry.name, path + entry.name):
            limits.files += 1
            yield entry.name, folder, shown + entry.name
    for name in deeper if depth < _MAX_DEPTH else ():
        try:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except OSError:  # gone, or not ours to read: the others still count
            continue
        try:
            yield from _walk(inner, f"{shown}{name}/", f"{path}{name}/", depth + 1, fits, limits)
        finally:
            os.close(inner)


def _look_into(
    name: str,
    folder: int,
    shown: str,
    *,
    hide: Masker,
    find: _Find,
    most: int,
    found: _Found,
    limits: _Limits,
) -> bool:
    """Add the file's matching lines. Returns whether the whole file could be searched."""
    try:
        data, whole = _load(name, folder, most)
    except (OSError, ToolFailure):  # gone or changed since it was listed, or not readable
        return False
    limits.bytes += len(data)
    content = decode(data, cut=not whole)
    if content is None:
        return False
    for number, line in enumerate(hide.blank(content.text).split("\n"), 1):
        if found.full or limits.exhausted():
            return whole
        line = line.removesuffix("\r")
        most_shown = 1 if len(line) <= _SHOWN else _PER_LINE
        for start, end in itertools.islice(find(line), most_shown):
            found.add(f"{shown}:{number}: {settled(_around(line, start, end))}")
    return whole


def _load(name: str, folder: int, most: int) -> tuple[bytes, bool]:
    descriptor = os.open(
        name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=folder
    )
    try:
        state = os.fstat(descriptor)
        paths.require_regular(state, name)
        return paths.read_all(descriptor, most), state.st_size <= most
    finally:
        os.close(descriptor)


def _around(line: str, start: int, end: int) -> str:
    if len(line) <= _SHOWN:
        return line
    first = max(0, min(start - 60, len(line) - _SHOWN))
    last = min(len(line), first + _SHOWN)
    before, after = "..." if first else "", "..." if last < len(line) else ""
    return f"{before}{line[first:last]}{after} (character {start + 1})"
