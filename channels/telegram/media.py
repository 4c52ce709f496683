"""Files on their way out: which method each is sent with, and which go together as one album.

Limits: Bot API, "Sending files", sendPhoto, sendVoice, sendMediaGroup.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mimetypes
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from channels.base import Chunk, Flooded, OutFile, Rejected, ReplyRef, Translate, Unknown
from channels.telegram.chunks import split
from channels.telegram.format import markdown
from channels.telegram.recent import Recent
from channels.telegram.styled import PLAIN, clean

log = logging.getLogger("causeway.telegram")

Data: TypeAlias = dict[str, Any]
Kind: TypeAlias = Literal["photo", "video", "animation", "voice", "audio", "document"]
#: (method, parameters) -> the server's result. Raises SendError.
Write: TypeAlias = Callable[[str, Data], Awaitable[Any]]

MAX_CAPTION = 1024
MAX_ALBUM = 10
MIB = 1024 * 1024
#: Seconds after which several files that go one by one leave the rest to the next call.
_ONE_CALL = 40.0
MAX_PHOTO, MAX_VOICE, MAX_UPLOAD, MAX_UPLOAD_LOCAL = 10 * MIB, 1 * MIB, 50 * MIB, 2000 * MIB

_BY_MIME: dict[str, Kind] = {
    "image/jpeg": "photo",
    "image/png": "photo",
    "image/webp": "photo",
    "image/gif": "animation",
    "video/mp4": "video",
    "audio/ogg": "voice",
    "audio/opus": "voice",
    "application/ogg": "voice",
    "audio/mpeg": "audio",
    "audio/mp3": "audio",
    "audio/mp4": "audio",
    "audio/x-m4a": "audio",
    "audio/m4a": "audio",
}
#: What may share an album; other kinds stand alone.
_ALBUMS: dict[Kind, str] = {"photo": "seen", "video": "seen", "document": "document", "audio": "audio"}


@dataclass(frozen=True, slots=True)
class Item:
    """A file with its caption: what it may be sent as, in the order to be tried. `fault`: why it cannot."""

    file: OutFile
    caption: Data
    kinds: tuple[Kind, ...] = ()
    size: int = 0
    fault: str = ""

    @property
    def name(self) -> str:
        return self.file.name or Path(self.file.path).name


def kind(file: OutFile) -> Kind:
    """What a file is best sent as, by its type, or by its name when nobody knows its type."""
    mime = file.mime.partition(";")[0].strip().lower()
    if mime in ("", "application/octet-stream"):
        mime = mimetypes.guess_type(file.name or file.path)[0] or ""
    return _BY_MIME.get(mime, "document")


def file_chunks(files: Sequence[OutFile]) -> list[Chunk]:
    """One chunk a file or album, each followed by what its captions have beyond 1024 units.

    `Chunk.file` is the first file, `data["album"]` has the others with their captions.
    """
    chunks = []
    for group in _groups(files):
        cut = [split(markdown(file.caption), MAX_CAPTION) or [("", [])] for file in group]
        heads = [_caption(*pieces[0]) for pieces in cut]
        data: Data = {"entities": heads[0]["caption_entities"]} if "caption_entities" in heads[0] else {}
        if len(group) > 1:
            data["album"] = [
                {"file": asdict(file), "caption": head}
                for file, head in zip(group[1:], heads[1:], strict=True)
            ]
        chunks.append(Chunk(str(heads[0].get("caption", "")), data, group[0]))
        for _, *rest in cut:
            chunks += [Chunk(text, {"entities": entities} if entities else {}) for text, entities in rest]
    return chunks


def _groups(files: Sequence[OutFile]) -> list[list[OutFile]]:
    """Neighbours that may share an album, at most ten."""
    groups: list[list[OutFile]] = []
    last: str | None = None
    for file in files:
        album = _ALBUMS.get(kind(file))
        if album is not None and album == last and len(groups[-1]) < MAX_ALBUM:
            groups[-1].append(file)
        else:
            groups.append([file])
        last = album
    return groups


def _caption(text: str, entities: list[Data]) -> Data:
    return ({"caption": text} if text else {}) | ({"caption_entities": entities} if entities else {})


def items_of(chunk: Chunk) -> list[tuple[OutFile, Data]]:
    """The files of a chunk with their captions."""
    if chunk.file is None:
        return []
    found = [(chunk.file, _caption(chunk.text, chunk.data.get("entities") or []))]
    found += [(OutFile(**more["file"]), dict(more["caption"])) for more in chunk.data.get("album", ())]
    return found


def look(file: OutFile, caption: Data, limit: int) -> Item:
    """Find out how a file can be sent. Blocks for a moment."""
    try:
        size = Path(file.path).stat().st_size
        with Path(file.path).open("rb"):
            pass
    except OSError as error:
        log.error("a file could not be read for sending: %s", error.strerror)
        return Item(file, caption, fault="telegram.file_unreadable")
    if size > limit:
        return Item(file, caption, size=size, fault="telegram.file_too_large")
    best = kind(file)
    fits = size <= {"photo": MAX_PHOTO, "voice": MAX_VOICE}.get(best, limit)
    kinds: tuple[Kind, ...] = (best, "document") if fits and best != "document" else ("document",)
    return Item(file, caption, kinds, size)


@dataclass(slots=True)
class _Progress:
    """What is done of a chunk with several files that had to go one by one."""

    apart: bool = False
    done: int = 0
    first: str = ""


class Files:
    """Posts the files of a chunk: as an album where that works, else one by one. A file that cannot be sent
    is replaced by words. Goes on where it stopped when a chunk is posted again."""

    def __init__(self, text: Translate, limit: int) -> None:
        self._text = text
        self._limit = limit
        self._progress: Recent[_Progress] = Recent(500)

    async def post(self, write: Write, ref: ReplyRef, n: int, chunk: Chunk, place: Data) -> str:
        """The id of the first message. Raises SendError."""
        items = await asyncio.to_thread(self._look, chunk)
        progress = self._progress.get(f"{ref.id}:{n}")
        if progress is None:
            progress = _Progress(apart=len(items) == 1 or not _is_album(items, self._limit))
            self._progress.put(f"{ref.id}:{n}", progress)
        if not progress.apart:
            try:
                return str((await _send_album(write, items, place))[0]["message_id"])
            except Rejected as error:
                log.warning("an album was refused (%s); its files go one by one", error)
                progress.apart = True
        began = time.monotonic()
        for item in items[progress.done :]:
            if time.monotonic() - began > _ONE_CALL:
                raise Flooded("more files follow", 0.1)
            try:
                message = await self._send(write, ref, item, place if not progress.done else _no_reply(place))
                progress.first = progress.first or str(message["message_id"])
            except Unknown:
                if len(items) == 1:
                    raise
                log.warning("one file of several may or may not have arrived; the others follow")
            progress.done += 1
        return progress.first

    def _look(self, chunk: Chunk) -> list[Item]:
        return [look(file, caption, self._limit) for file, caption in items_of(chunk)]

    async def _send(self, write: Write, ref: ReplyRef, item: Item, place: Data) -> Any:
        fault, reason = item.fault, ""
        for kind_ in item.kinds:
            try:
                async with _opened(item) as file:
                    return await write(f"send{kind_.capitalize()}", place | item.caption | {kind_: file})
            except Rejected as error:
                log.warning("a file was refused as %s: %s", kind_, error)
                fault, reason = "telegram.file_refused", str(error)
            except OSError as error:
                fault, reason = "telegram.file_unreadable", str(error.strerror)
        words = self._text(
            fault,
            ref.language,
            name=item.name,
            limit=self._limit // MIB,
            size=-(-item.size // MIB),
            reason=reason,
        )
        # A caption stays with the words that stand for its file; both are short.
        caption = f"{item.caption['caption']}\n\n" if "caption" in item.caption else ""
        ((text, _), *_) = split([(clean(caption + words), PLAIN)])
        return await write("sendMessage", place | {"text": text})


def _is_album(items: Sequence[Item], limit: int) -> bool:
    """All can be sent, and one request can carry them (a server takes no more than it takes of one file)."""
    return not any(item.fault for item in items) and sum(item.size for item in items) <= limit


async def _send_album(write: Write, items: Sequence[Item], place: Data) -> Any:
    # A picture that is too large to be one makes documents of all: the kinds do not mix.
    plain = any(item.kinds[0] == "document" for item in items)
    media, files = [], {}
    async with contextlib.AsyncExitStack() as stack:
        for number, item in enumerate(items):
            files[f"file{number}"] = await stack.enter_async_context(_opened(item))
            media.append(
                {
                    "type": "document" if plain else item.kinds[0],
                    "media": f"attach://file{number}",
                    **item.caption,
                }
            )
        return await write("sendMediaGroup", place | {"media": media} | files)


@asynccontextmanager
async def _opened(item: Item) -> AsyncIterator[Any]:
    """The file as the library sends it, read from the disk block by block as it goes out."""
    from telegram import InputFile

    handle = await asyncio.to_thread(Path(item.file.path).open, "rb")
    try:
        yield InputFile(handle, filename=item.name, read_file_handle=False)
    finally:
        await asyncio.to_thread(handle.close)


def _no_reply(place: Data) -> Data:
    return {key: value for key, value in place.items() if key != "reply_parameters"}
