"""What becomes of a tool's text before a model sees it: secrets masked, bounded head-and-tail.

The whole of a long one is kept in the session's files, where the model can read the rest by range.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from agent.tools import paths
from agent.tools.base import Answer, Desk, Question, Sample, ToolFailure
from agent.tools.masking import LONGEST, MASK, Masker, MaskingFilter
from agent.tools.settings import ToolSettings

__all__ = ["FOLDER", "MASK", "MaskedDesk", "Masker", "MaskingFilter", "Results", "bound", "finish"]

log = logging.getLogger("causeway.tools")

#: Where long results lie, in the session's folder.
FOLDER = "results"
_HOW = "Ask for less (a narrower path, pattern or range) to see the rest."
# Only what is named like this is ever deleted: people and models may use the folder too.
_OURS = re.compile(r"[A-Za-z0-9_-]{1,64}-[0-9a-f]{10}\.txt")
#: Bytes that a character of UTF-8 takes at most.
_WIDEST = 4
#: Characters of a line above which a range of lines is no help to a reader.
_LONG_LINE = 2000


class Results:
    """Prepares the texts of results for models. May be used by many calls at once."""

    def __init__(self, settings: ToolSettings, masker: Masker) -> None:
        self._settings = settings
        self._masker = masker

    async def finish(self, text: str, *, tool: str, folder: Path, shorter: int = 0) -> str:
        """The text as a model may see it: at most `result_chars` less `shorter` characters.

        A longer one is written, masked, to `folder`; when that cannot be done it is only cut. Short texts
        never wait for the disk.
        """
        limit = self._settings.result_chars - shorter
        if len(text) <= limit:
            return _storable(self._masker.mask(text))
        return await asyncio.to_thread(self._long, text, limit, tool, folder)

    def _long(self, text: str, limit: int, tool: str, folder: Path) -> str:
        kept = self._settings.results
        # So that `read` can go through all of it by lines.
        most = max(min(kept.chars, self._settings.file_bytes // _WIDEST), limit)
        whole = _storable(finish(text, most, self._masker, "They were not kept."))
        if len(whole) <= limit:
            return whole
        if not kept.keep:
            return bound(whole, limit)
        try:
            path = store(folder, tool, whole, files=kept.files, size=kept.bytes)
        except (OSError, ToolFailure) as fault:
            log.warning("a long result of %s could not be kept: %s", tool, type(fault).__name__)
            return bound(whole, limit)
        head, tail = _parts(whole, limit)
        left_out = len(whole) - len(head) - len(tail)
        return _joined(head, tail, left_out, f"All of it is in {path}: {_range(whole, head, tail)}")


class MaskedDesk:
    """A call's way to the chat and to the model, on which no secret goes out either."""

    def __init__(self, inner: Desk, masker: Masker) -> None:
        self._inner = inner
        self._mask = masker.mask

    async def ask(self, question: Question) -> Answer:
        return await self._inner.ask(replace(question, text=self._mask(question.text)))

    def progress(self, done: float, total: float | None, message: str) -> None:
        self._inner.progress(done, total, self._mask(message))

    async def sample(self, sample: Sample) -> str:
        said = tuple((role, self._mask(text)) for role, text in sample.messages)
        return await self._inner.sample(replace(sample, messages=said, system=self._mask(sample.system)))


def _range(whole: str, head: str, tail: str) -> str:
    """How to read on where the head ends: by lines, or where these are too long, by bytes."""
    first = head.count("\n") + (2 if whole.startswith("\n", len(head)) else 1)
    total = whole.count("\n") + 1
    last = total - tail.count("\n") - 1
    if last > first and len(whole) - len(head) - len(tail) < _LONG_LINE * (last - first + 1):
        return (
            f"use read with that path and offset={first} for lines {first} to {last} of {total}, or search."
        )
    return f"use read with that path and byte={len(head.encode())} to go on here, or search."


def store(folder: Path, tool: str, text: str, *, files: int, size: int) -> str:
    """Write a result into the session's folder; the path relative to it. Blocks on the disk.

    The same text gets the same name. At most `files` files and `size` bytes are kept, the oldest go first.
    Raises OSError or ToolFailure.
    """
    data = text.encode("utf-8", "replace")
    stem = re.sub(r"[^A-Za-z0-9_-]", "_", tool)[:64] or "tool"
    name = f"{stem}-{hashlib.sha256(data).hexdigest()[:10]}.txt"
    root = Path(os.path.realpath(folder))
    paths.replace_file(paths.Place(root, (FOLDER, name), f"{FOLDER}/{name}"), data)
    _prune(paths.Place(root, (FOLDER,), FOLDER), name, files, size)
    return f"{FOLDER}/{name}"


def _prune(place: paths.Place, newest: str, files: int, size: int) -> None:
    with paths.open_folder(place) as descriptor:
        found: list[tuple[bool, int, int, str]] = []
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if _OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):  # another call has just deleted it
                        state = entry.stat(follow_symlinks=False)
                        found.append((entry.name == newest, state.st_mtime_ns, state.st_size, entry.name))
        count = total = 0
        for is_newest, _, length, name in sorted(found, reverse=True):
            count, total = count + 1, total + length
            if not is_newest and (count > files or total > size):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=descriptor)


def bound(text: str, limit: int, how: str = _HOW) -> str:
    """At most about `limit` characters: the beginning and the end, and between them a line that says how
    many characters were left out and `how` to get them."""
    if len(text) <= limit:
        return text
    head, tail = _parts(text, limit)
    return _joined(head, tail, len(text) - len(head) - len(tail), how)


def finish(text: str, limit: int, masker: Masker, how: str = _HOW) -> str:
    """`bound` with secrets masked, in time that depends on `limit` and not on the text's length.

    A secret that the cut goes through is not left in half: some more than is shown is masked, and the
    surplus is dropped afterwards.
    """
    if len(text) <= limit + LONGEST:
        return bound(masker.mask(text), limit, how)
    size = _head(limit)
    head = masker.mask(text[: size + LONGEST])[:-LONGEST][:size]
    tail = masker.mask(text[-(limit - size + LONGEST) :])[LONGEST:][-(limit - size) :]
    head, tail = _cut(head, tail)
    return _joined(head, tail, len(text) - len(head) - len(tail), how)


def _head(limit: int) -> int:
    return limit * 3 // 5


def _parts(text: str, limit: int) -> tuple[str, str]:
    return _cut(text[: _head(limit)], text[-(limit - _head(limit)) :])


def _cut(head: str, tail: str) -> tuple[str, str]:
    """Move both cuts to the ends of lines when these are near."""
    end = head.rfind("\n")
    if end > len(head) * 3 // 4:
        head = head[:end]
    start = tail.find("\n")
    if 0 <= start < len(tail) // 4:
        tail = tail[start + 1 :]
    return head, tail


def _joined(head: str, tail: str, left_out: int, how: str) -> str:
    return f"{head}\n[... {left_out} characters left out here. {how} ...]\n{tail}"


def _storable(text: str) -> str:
    """The text without what stores and providers refuse: NUL, and halves of surrogate pairs."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
