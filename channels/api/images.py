"""Pictures that came inside a request, kept as files until its reply has ended."""

from __future__ import annotations

import asyncio
import base64
import binascii
import mimetypes
import shutil
from collections.abc import Sequence
from pathlib import Path

from channels.api.request import Image
from channels.api.wire import RequestError, invalid
from channels.base import Attachment, Rejected, TooLarge

#: Seconds after which a picture whose reply never ended is deleted at a start.
_KEEP = 7 * 86_400


class Images:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, list[Path]] = {}

    async def keep(self, id: str, images: Sequence[Image]) -> tuple[Attachment, ...]:
        """Write the pictures of message `id` down. Raises RequestError for base64 that is none."""
        paths: list[Path] = []
        self._kept[id] = paths
        try:
            return await asyncio.to_thread(self._write, id, images, paths)
        except RequestError:
            await self.drop(id)
            raise

    def _write(self, id: str, images: Sequence[Image], paths: list[Path]) -> tuple[Attachment, ...]:
        self._folder.mkdir(parents=True, exist_ok=True)
        attachments = []
        for n, image in enumerate(images):
            try:
                data = base64.b64decode(image.data, validate=True)
            except (binascii.Error, ValueError) as error:
                raise invalid(f"{image.param} holds no valid base64 ({error}).", image.param) from None
            name = f"{id}-{n}{mimetypes.guess_extension(image.mime) or '.img'}"
            path = self._folder / name
            path.write_bytes(data)
            paths.append(path)
            attachments.append(Attachment("image", name, image.mime, name, len(data)))
        return tuple(attachments)

    async def copy(self, ref: str, target: Path, max_bytes: int) -> None:
        path = self._folder / Path(ref).name
        await asyncio.to_thread(_copy, path, target, max_bytes)

    async def drop(self, id: str) -> None:
        paths = self._kept.pop(id, None)
        if paths:
            await asyncio.to_thread(_delete, paths)

    def clear_old(self, now: float) -> None:
        """Delete what a crash left behind. Blocks."""
        if self._folder.is_dir():
            _delete([path for path in self._folder.iterdir() if path.stat().st_mtime < now - _KEEP])


def _copy(path: Path, target: Path, max_bytes: int) -> None:
    if not path.is_file():
        raise Rejected("the picture is no longer there")
    if path.stat().st_size > max_bytes:
        raise TooLarge(f"the picture has {path.stat().st_size} bytes, allowed are {max_bytes}")
    shutil.copyfile(path, target)


def _delete(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
