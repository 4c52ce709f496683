"""Getting the files that people send.

Telegram's own server gives a bot files of up to 20 MB by HTTP. A local Bot API server (`--local`) has no such
limit, fetches the file itself and answers with its place on its own disk (Bot API, "Using a Local Bot API
Server").
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

from channels.base import Attachment, NotSent, Rejected, TooLarge
from channels.telegram.api import CALL_TIMEOUT, DOWNLOAD_TIMEOUT, Api, ApiError
from channels.telegram.errors import send_error

log = logging.getLogger("causeway.telegram")

MIB = 1024 * 1024
#: Bot API, getFile.
MAX_DOWNLOAD = 20 * MIB


async def fetch(api: Api, attachment: Attachment, target: Path, max_bytes: int, *, local: bool) -> None:
    """Write the file to `target`. Raises TooLarge, NotSent or Rejected."""
    limit = max_bytes if local else min(max_bytes, MAX_DOWNLOAD)
    _check(attachment.size, limit)
    try:
        # A local server answers when it has the whole file.
        seconds = DOWNLOAD_TIMEOUT if local else CALL_TIMEOUT
        found = await api.call("getFile", seconds, file_id=attachment.ref)
        _check(int(found.get("file_size") or 0), limit)
        path = str(found.get("file_path") or "")
        if not path:
            raise Rejected("the server gave no place from which to get the file")
        if not Path(path).is_absolute():
            await api.download(path, target, limit)
        elif local:
            await asyncio.to_thread(_copy, Path(path), target, limit)
        else:
            raise Rejected(
                "the Bot API server keeps its files on its own disk: set local_server: true for this channel"
            )
    except ApiError as error:
        if "file is too big" in error.reason.lower():
            raise _too_large(MAX_DOWNLOAD) from None
        failed = send_error(error)
        if isinstance(failed, NotSent | Rejected):
            raise failed from None
        # Fetching changes nothing, so an unknown outcome may simply be tried again.
        raise (NotSent if error.taken == "maybe" else Rejected)(str(error)) from None


def _check(size: int, limit: int) -> None:
    if size > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the file is larger than {limit // MIB} MB, the most that can be fetched here", limit)


def _copy(source: Path, target: Path, limit: int) -> None:
    """The path holds the bot's token (it is a folder's name), so no error may quote it."""
    part = target.with_name(target.name + ".part")
    try:
        _check(source.stat().st_size, limit)
        shutil.copyfile(source, part)
        part.replace(target)
    except OSError as error:
        raise Rejected(
            f"the local Bot API server's file cannot be read here ({error.strerror}): the bridge has to run "
            "on the server's machine, or see its files at the same path, with the right to read them"
        ) from None
    finally:
        part.unlink(missing_ok=True)
