"""Pictures of a history, read for a request within bounds."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeAlias

from agent.history import Entry, ImageRef, ToolOutput, User
from agent.models.base import LoadImage

log = logging.getLogger("causeway.models")

#: Most bytes of one picture: what Anthropic takes as base64 is 5 MB.
LARGEST = 3_700_000
#: Most bytes of all pictures of one request (Anthropic takes 32 MB as base64, OpenAI 50).
LARGEST_SUM = 15_000_000
#: Most pictures of one request. Above 20 Anthropic lowers the allowed size of each.
MOST = 20
_AT_A_TIME = 8


@dataclass(frozen=True, slots=True)
class Picture:
    mime: str
    data: str  # base64


#: What became of each picture: its content, or a sentence that stands for it.
Pictures: TypeAlias = Mapping[ImageRef, Picture | str]


def sniff(data: bytes) -> str:
    """The MIME type by the first bytes, "" when no provider takes it.

    Providers compare the declared type with the content, and platforms often declare it wrongly.
    """
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return ""


def wanted(entries: Iterable[Entry]) -> list[ImageRef]:
    """The pictures of a history, oldest first, each once."""
    found: dict[ImageRef, None] = {}
    for entry in entries:
        if isinstance(entry, User | ToolOutput):
            found.update(dict.fromkeys(entry.images))
    return list(found)


def load(refs: Sequence[ImageRef], load_image: LoadImage) -> dict[ImageRef, Picture | str]:
    """Read pictures, newest first until the bounds are reached. Blocking: call it in a thread."""
    found: dict[ImageRef, Picture | str] = {}
    room = LARGEST_SUM
    # Old ones go several at a time: each that goes changes the beginning of the request, which is cached.
    most = len(refs) - max(0, -(-(len(refs) - MOST) // _AT_A_TIME) * _AT_A_TIME)
    for count, ref in enumerate(reversed(refs)):
        name = PurePosixPath(ref.path).name
        if count >= most or room <= 0:
            why = "is left out: there are newer ones and a request holds only so many"
            found[ref] = f"[The picture {name} {why}.]"
            continue
        try:
            data = load_image(ref)
        except OSError as error:
            log.warning("A picture could not be read: %s", type(error).__name__)
            found[ref] = f"[The picture {name} could not be read: {error.strerror or type(error).__name__}.]"
            continue
        mime = sniff(data)
        if not mime:
            found[ref] = f"[The picture {name} is not shown: it is no JPEG, PNG, GIF or WebP.]"
        elif len(data) > min(LARGEST, room):
            found[ref] = f"[The picture {name} is not shown: {len(data):,} bytes are too many.]"
        else:
            room -= len(data)
            found[ref] = Picture(mime, base64.b64encode(data).decode("ascii"))
    return found


def show(ref: ImageRef, pictures: Pictures) -> Picture | str:
    """The picture, or the sentence that stands for it."""
    name = PurePosixPath(ref.path).name
    return pictures.get(ref, f"[The picture {name} could not be read.]")
