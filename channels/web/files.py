"""Files of replies, copied to where the page can get them: the original may change or go."""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aiohttp import web

from channels.base import ChannelState, OutFile, Rejected

#: Bytes; what is larger is not worth copying for a chat page.
MAX_FILE = 200 * 1024 * 1024
_ID = re.compile(r"[0-9a-f]{32}")
_MIME = re.compile(r"[a-z0-9.+-]+/[a-z0-9.+-]+")
#: Types that a browser shows in place without running anything; all others are downloads.
_SHOWN = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


class Files:
    def __init__(self, folder: Path, state: ChannelState) -> None:
        self._folder = folder
        self._state = state

    async def keep(self, chat: str, entry: str, file: OutFile) -> dict[str, Any]:
        """Copy a file for the visitor of `chat`; return what the page is told. Doing so again is harmless.

        Raises Rejected when there is no such file any more or it is too large.
        """
        id = hashlib.sha256(f"{chat}\n{entry}".encode()).hexdigest()[:32]
        size = await asyncio.to_thread(self._copy, Path(file.path), self._folder / id)
        mime = file.mime.lower() if _MIME.fullmatch(file.mime.lower()) else "application/octet-stream"
        await self._state.put(f"file:{id}", {"chat": chat, "name": file.name, "mime": mime})
        return {"id": id, "name": file.name, "size": size, "image": mime in _SHOWN}

    def _copy(self, source: Path, target: Path) -> int:
        try:
            size = source.stat().st_size
            if size > MAX_FILE:
                raise Rejected(f"the file has {size} bytes, the page takes {MAX_FILE}")
            self._folder.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(".part")
            shutil.copyfile(source, part)
            part.replace(target)
        except FileNotFoundError as error:
            raise Rejected(f"the file is no longer there ({error.strerror})") from error
        return size

    async def remove(self, id: str) -> None:
        """Forget a file that was kept. Raises OSError."""
        if _ID.fullmatch(id):
            await asyncio.to_thread((self._folder / id).unlink, missing_ok=True)
            await self._state.put(f"file:{id}", None)

    async def response(self, id: str, chat: str) -> web.StreamResponse | None:
        """The file for the visitor of `chat`, or None when it is not theirs or not there."""
        if not _ID.fullmatch(id):
            return None
        note = await self._state.get(f"file:{id}")
        path = self._folder / id
        if not isinstance(note, dict) or note["chat"] != chat or not await asyncio.to_thread(_own, path):
            return None
        shown = note["mime"] in _SHOWN
        disposition = "inline" if shown else "attachment"
        return web.FileResponse(
            path,
            headers={
                "Content-Type": note["mime"] if shown else "application/octet-stream",
                "Content-Disposition": f"{disposition}; filename*=UTF-8''{quote(note['name'], safe='')}",
                "Content-Security-Policy": "default-src 'none'; sandbox",
                "X-Content-Type-Options": "nosniff",
                "Cache-Control": "private, max-age=3600",
            },
        )


def _own(path: Path) -> bool:
    """A file that was copied here: never a link, which may lead anywhere. Blocks."""
    return path.is_file() and not path.is_symlink()
