"""`read`, `write`, `edit` and `ls`: the files of the session's folder, and of skills read-only."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agent.history import ImageRef
from agent.tools import paths
from agent.tools.base import Annotations, FunctionTool, ToolContext, ToolFailure, ToolResult
from agent.tools.builtin import schema
from agent.tools.builtin.content import Text, decode, picture_type
from agent.tools.masking import LONGEST, Masker, settled
from agent.tools.settings import ToolSettings
from agent.tools.workers import Workers

_READS = Annotations(read_only=True, destructive=False, open_world=False)
_CHANGES = Annotations(read_only=False, destructive=True, open_world=False)
_PATH = "Path relative to the session's folder"
#: Entries that `ls` shows, and of how many it picks them.
_MAX_LISTED = 500
_MAX_SCANNED = 20_000
#: Characters of a result that are left for the notes below a file's text.
_NOTES = 400


def file_tools(settings: ToolSettings, workers: Workers, masker: Masker | None = None) -> list[FunctionTool]:
    """The four file tools. All disk work is done in `workers`' threads. `masker` sees more of a file than
    the page that `read` shows, so that no secret passes in two halves."""
    hide = masker or Masker()

    def read(settings: ToolSettings, params: dict[str, Any], context: ToolContext) -> ToolResult:
        return _read(settings, params, context, hide)

    def threaded(
        work: Callable[[ToolSettings, dict[str, Any], ToolContext], ToolResult],
    ) -> Callable[[dict[str, Any], ToolContext], Any]:
        async def run(params: dict[str, Any], context: ToolContext) -> ToolResult:
            return await workers.run(lambda: work(settings, params, context))

        return run

    timeout = settings.file_timeout
    return [
        FunctionTool(
            "read",
            "Read a text file of this session, a picture (png, jpeg, gif, webp), or a skill's file "
            "by /skills/<name>/SKILL.md. Long files come in parts: use offset, or byte where lines are very "
            "long. To find something in many files use search; to list a folder use ls. Only this session's "
            "files and skills can be read.",
            schema.arguments(
                ("path",),
                path=schema.text(f"{_PATH}, or /skills/<name>/..."),
                offset=schema.integer("First line to read, from 1", 1, 1),
                limit=schema.integer("Most lines to read", 2000, 1),
                byte=schema.integer("Read on from this byte, and not by lines", 0, 0),
            ),
            threaded(read),
            _READS,
            timeout,
        ),
        FunctionTool(
            "write",
            "Create a text file in this session's folder, or replace one whole; missing folders are made. "
            f"At most {settings.file_bytes} bytes. What was in the file is lost: to change a part use edit. "
            "The person does not see the file until you call send_file.",
            schema.arguments(
                ("path", "content"), path=schema.text(_PATH), content=schema.text("The file's whole text")
            ),
            threaded(_write),
            _CHANGES,
            timeout,
            admin_only=True,
        ),
        FunctionTool(
            "edit",
            "Change a part of a text file of this session: replaces `old` by `new`. `old` must be in it "
            "exactly once, with its spaces and line breaks, unless `all` is true. Read the file first. For a "
            "new file, or to replace everything, use write.",
            schema.arguments(
                ("path", "old", "new"),
                path=schema.text(_PATH),
                old=schema.text("The text to replace, exactly as in the file", minLength=1),
                new=schema.text("What to put in its place; may be empty"),
                all=schema.flag("Replace every occurrence"),
            ),
            threaded(_edit),
            _CHANGES,
            timeout,
            admin_only=True,
        ),
        FunctionTool(
            "ls",
            "List a folder of this session, or of a skill by /skills/<name>: names and sizes in bytes, "
            f"folders with a slash, not what is inside them. At most {_MAX_LISTED} entries. To look for "
            "a name or a text in all folders use search.",
            schema.arguments(
                path=schema.text("Folder relative to the session's folder, or /skills/<name>", default=".")
            ),
            threaded(_ls),
            _READS,
            timeout,
        ),
    ]


def _read(settings: ToolSettings, params: dict[str, Any], context: ToolContext, hide: Masker) -> ToolResult:
    place = paths.locate(context, params["path"])
    with paths.open_file(place) as (descriptor, state):
        head = paths.read_all(descriptor, 16)
        if mime := picture_type(head):
            return _picture(place, mime, state.st_size, settings.image_bytes)
        if params["byte"]:
            return _from_byte(place, descriptor, state.st_size, params["byte"], settings.result_chars, hide)
        data = head + paths.read_all(descriptor, settings.file_bytes - len(head))
    cut = state.st_size > len(data)
    found = decode(data, cut=cut)
    if found is None:
        raise _no_text(place, state.st_size)
    page = _page(hide.blank(found.text), params["offset"], params["limit"], settings.result_chars)
    return ToolResult(settled(page.text) + _notes(place, page, found, cut, len(data)))


def _from_byte(
    place: paths.Place, descriptor: int, size: int, first: int, chars: int, hide: Masker
) -> ToolResult:
    """The part of a file that begins at a byte, however large the file and its lines are."""
    if first >= size:
        raise ToolFailure(
            f"There is no byte {first}: {place.shown} has {size} bytes.", cure="Use a lower byte."
        )
    start = max(0, first - LONGEST)
    os.lseek(descriptor, start, os.SEEK_SET)
    data = paths.read_all(descriptor, first - start + chars + LONGEST)
    if b"\0" in data:
        raise _no_text(place, size)
    first = _whole_character(data, first - start)
    last = _whole_character(data, min(first + chars - _NOTES, len(data)))
    before, part, after = (
        piece.decode("utf-8", "replace") for piece in (data[:first], data[first:last], data[last:])
    )
    text = settled(hide.blank(before + part + after)[len(before) :][: len(part)])
    more = f" Go on with byte={start + last}." if start + last < size else ""
    return ToolResult(f"{text}\n[Bytes {start + first} to {start + last} of {size}.{more}]")


def _whole_character(data: bytes, at: int) -> int:
    """The place, or the end of the UTF-8 character that it lies in."""
    return next((n for n in range(at, min(at + 3, len(data))) if data[n] & 0xC0 != 0x80), at)


def _no_text(place: paths.Place, size: int) -> ToolFailure:
    return ToolFailure(
        f"{place.shown} is no text file ({size} bytes).",
        "read shows text and pictures only.",
        "Use send_file to give it to the person.",
    )


def _picture(place: paths.Place, mime: str, size: int, most: int) -> ToolResult:
    if place.skill:
        raise ToolFailure(
            f"{place.shown} is a picture.", "Pictures can be looked at in the session's folder only."
        )
    if size > most:
        raise ToolFailure(
            f"{place.shown} is a picture of {size} bytes.",
            f"At most {most} bytes can be looked at.",
            "Use send_file to give it to the person.",
        )
    return ToolResult(
        f"{place.shown} is a picture ({mime}, {size} bytes); it is shown to you.",
        images=(ImageRef(place.relative, mime),),
    )


@dataclass(frozen=True, slots=True)
class _Page:
    """Lines `first` to `last` of `total`. `cut` characters of the last line are left out, the first of them
    is character number `at` of the file."""

    text: str
    first: int
    last: int
    total: int
    cut: int = 0
    at: int = 0


def _page(text: str, offset: int, limit: int, chars: int) -> _Page:
    # Room for the notes below the text, so that the result needs no second cut.
    budget = chars - _NOTES
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return _Page("", 0, 0, 0)
    if offset > len(lines):
        raise ToolFailure(
            f"There is no line {offset}: the file has {len(lines)} lines.", cure="Use a lower offset."
        )
    taken: list[str] = []
    for line in lines[offset - 1 : offset - 1 + limit]:
        if not taken and len(line) > budget:
            at = sum(len(one) + 1 for one in lines[: offset - 1]) + budget
            return _Page(line[:budget], offset, offset, len(lines), len(line) - budget, at)
        budget -= len(line) + 1
        if budget < 0:
            break
        taken.append(line.removesuffix("\r"))
    return _Page("\n".join(taken), offset, offset + len(taken) - 1, len(lines))


def _notes(place: paths.Place, page: _Page, found: Text, cut: bool, size: int) -> str:
    notes = []
    if page.total == 0:
        return f"[{place.shown} is empty.]"
    if page.cut:
        at = len(found.mark) + len(found.text[: page.at].encode(found.encoding))
        notes.append(f"Line {page.last} is long: {page.cut} more characters of it, from byte={at} on.")
    if page.first > 1 or page.last < page.total:
        more = f" Go on with offset={page.last + 1}." if page.last < page.total else ""
        notes.append(f"Lines {page.first} to {page.last} of {page.total}.{more}")
    if cut:
        notes.append(f"By lines only its first {size} bytes can be read; the rest from byte={size} on.")
    if found.encoding == "latin-1":
        notes.append("The file is not UTF-8; it was read as Latin-1, so some characters may be wrong.")
    return f"\n[{' '.join(notes)}]" if notes else ""


def _write(settings: ToolSettings, params: dict[str, Any], context: ToolContext) -> ToolResult:
    content: str = params["content"]
    place = paths.locate_for_writing(context, params["path"])
    data = content.encode("utf-8", "replace")
    _check_size(place, data, settings.file_bytes)
    new = paths.replace_file(place, data)
    return ToolResult(f"{'Created' if new else 'Replaced'} {place.shown}: {len(data)} bytes.")


def _check_size(place: paths.Place, data: bytes, most: int) -> None:
    if len(data) > most:
        raise ToolFailure(
            f"{place.shown} was not written: {len(data)} bytes are too many.",
            f"A file may have {most} bytes.",
            "Write several smaller files.",
        )


def _edit(settings: ToolSettings, params: dict[str, Any], context: ToolContext) -> ToolResult:
    place = paths.locate_for_writing(context, params["path"])
    with paths.open_file(place, settings.file_bytes) as (descriptor, _):
        found = decode(paths.read_all(descriptor, settings.file_bytes))
    if found is None:
        raise ToolFailure(f"{place.shown} is no text file.", "edit changes text only.")
    old, new = _with_its_line_ends(found.text, params["old"]), _with_its_line_ends(found.text, params["new"])
    if old == new:
        raise ToolFailure("`old` and `new` are the same.", cure="Nothing needs to be done.")
    count = found.text.count(old)
    if count == 0:
        raise _not_found(place, found.text, old)
    if count > 1 and not params["all"]:
        raise ToolFailure(
            f"`old` is in {place.shown} {count} times, at lines {_line_list(found.text, old)}.",
            cure="Add lines around it so that only one place fits, or set `all` to true.",
        )
    first = found.text.index(old)
    try:
        data = found.encode(found.text.replace(old, new))
    except UnicodeEncodeError as error:
        raise ToolFailure(
            f"{place.shown} was not changed.",
            f"It is written in {found.encoding}, which lacks a character of `new`.",
            "Use other characters, or write the whole file anew.",
        ) from error
    _check_size(place, data, settings.file_bytes)
    paths.replace_file(place, data)
    line = found.text.count("\n", 0, first) + 1
    if count > 1:
        return ToolResult(f"Changed {place.shown} in {count} places, the first at line {line}.")
    return ToolResult(f"Changed {place.shown} at line {line}.")


def _with_its_line_ends(text: str, part: str) -> str:
    """`part` with the line ends of the file: models write \\n, and `read` shows \\r\\n as that."""
    if "\r\n" in text and text.count("\r\n") == text.count("\n"):
        return part.replace("\r\n", "\n").replace("\n", "\r\n")
    return part


def _not_found(place: paths.Place, text: str, old: str) -> ToolFailure:
    first = next((line for line in old.splitlines() if line.strip()), "").strip()
    near = [number for number, line in enumerate(text.split("\n"), 1) if first and first in line][:5]
    if near:
        lines = ", ".join(map(str, near))
        why = f"Its first line stands at line {lines}, but what follows or its spaces differ."
    else:
        why = "Not even its first line is there."
    return ToolFailure(
        f"`old` is not in {place.shown}.", why, "Read the file again and copy the text exactly."
    )


def _line_list(text: str, old: str) -> str:
    lines: list[str] = []
    at = text.find(old)
    while at >= 0 and len(lines) < 10:
        lines.append(str(text.count("\n", 0, at) + 1))
        at = text.find(old, at + len(old))
    return ", ".join(lines) + (", ..." if at >= 0 else "")


def _ls(settings: ToolSettings, params: dict[str, Any], context: ToolContext) -> ToolResult:
    place = paths.locate(context, params["path"])
    folders: list[str] = []
    files: list[str] = []
    scanned = 0
    with paths.open_folder(place) as descriptor, os.scandir(descriptor) as entries:
        for entry in entries:
            scanned += 1
            if scanned > _MAX_SCANNED:
                break
            line, is_folder = _listed(entry)
            (folders if is_folder else files).append(line)
    listed = [*sorted(folders), *sorted(files)]
    if not listed:
        return ToolResult(
            f"[The folder {place.shown} is empty.]" if place.shown != "." else "[This folder is empty.]"
        )
    shown = listed[:_MAX_LISTED]
    text = "\n".join(shown)
    if len(listed) > len(shown) or scanned > _MAX_SCANNED:
        count = f"more than {_MAX_SCANNED}" if scanned > _MAX_SCANNED else str(len(listed))
        text += f"\n[{len(shown)} of {count} entries. Use search with a glob to find others.]"
    return ToolResult(text)


def _listed(entry: os.DirEntry[str]) -> tuple[str, bool]:
    name = entry.name.encode("utf-8", "replace").decode()
    try:
        state = entry.stat(follow_symlinks=False)
    except OSError:  # gone since it was listed
        return name, False
    if stat.S_ISDIR(state.st_mode):
        return f"{name}/", True
    if stat.S_ISLNK(state.st_mode):
        return f"{name}  (link)", False
    if not stat.S_ISREG(state.st_mode):
        return f"{name}  (no ordinary file)", False
    return f"{name}  {state.st_size}", False
