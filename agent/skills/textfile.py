"""A skill's file as text: read with a bound, decoded whatever editor wrote it, one kind of line end.

Pure but for `read_bytes`, which blocks: call it in a thread.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import stat
from pathlib import Path

#: A SKILL.md is a few kilobytes; what is longer than this belongs in reference files.
MAX_FILE_BYTES = 256 * 1024

#: Characters that YAML and prompts may hold; everything else is dropped when a file is decoded.
_STRANGE = re.compile("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
#: Line ends of YAML that no editor shows as one; as spaces they cannot start a second field unseen.
_ODD_BREAKS = re.compile("[\x85\u2028\u2029]")


class TooLarge(OSError):
    """The file is longer than the bound."""


def read_bytes(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """The whole file. Raises TooLarge over `limit` bytes, OSError for what is no regular file (a pipe would
    block for ever) or was exchanged for a link since it was found."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise TooLarge(f"it is longer than {limit // 1024} KiB")
    return data


def decode(data: bytes) -> tuple[str, str]:
    """Text with `\\n` line ends and without a byte order mark, and the name of the encoding that was used.

    "utf-8" is the rule; any other name means that the file should be saved again as UTF-8. Never raises.
    """
    text, encoding = _to_text(data)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _STRANGE.sub("", _ODD_BREAKS.sub(" ", text)), encoding


def _to_text(data: bytes) -> tuple[str, str]:
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return data.decode("utf-32", "replace"), "utf-32"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace"), "utf-16"
    # A frontmatter begins with ASCII, so UTF-16 without a mark shows as a zero in every second byte.
    even, odd = data[0:8:2], data[1:8:2]
    if len(odd) == 4 and all(even) and not any(odd):
        return data.decode("utf-16-le", "replace"), "utf-16"
    if len(odd) == 4 and all(odd) and not any(even):
        return data.decode("utf-16-be", "replace"), "utf-16"
    # Strict GB 2312 wants high bytes in pairs, which accented Western text does not have.
    for codec, name in (("utf-8-sig", "utf-8"), ("gb2312", "gb2312"), ("cp1252", "windows-1252")):
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode(codec), name
    return data.decode("latin-1"), "latin-1"
