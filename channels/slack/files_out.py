"""Files by the upload-URL flow: an address, the bytes, the sharing (docs.slack.dev, Working with files)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from channels.base import OutFile, Rejected
from channels.slack.api import UPLOAD_TIMEOUT, Api, ApiError

#: Slack takes files up to 1 GB.
MAX_FILE = 1024**3


async def upload(api: Api, file: OutFile, comment: str, channel: str, thread: str | None) -> str:
    """Show a file with its comment (mrkdwn); return its id. A file that was not shared stays unseen, so
    everything up to the last call may be repeated. Raises ApiError, or Rejected for a file that cannot go."""
    path = Path(file.path)
    try:
        size = (await asyncio.to_thread(path.stat)).st_size
    except OSError as error:
        raise Rejected(f"{file.name} cannot be read: {error.strerror}") from None
    if not 0 < size <= MAX_FILE:
        raise Rejected(f"{file.name} has {size} bytes; Slack takes 1 to {MAX_FILE}")
    name = file.name or path.name
    target = await api.call("files.getUploadURLExternal", filename=name, length=size)
    try:
        await api.upload(str(target["upload_url"]), path)
    except ApiError as error:
        # Nobody has seen anything yet, so an unknown outcome is none.
        raise ApiError("upload", error.error, "no", error.retry_after) from None
    except OSError as error:
        raise Rejected(f"{file.name} cannot be read: {error.strerror}") from None
    file_id = str(target["file_id"])
    params: dict[str, Any] = {"files": [{"id": file_id, "title": name}], "channel_id": channel}
    if thread:
        params["thread_ts"] = thread
    if comment:
        params["initial_comment"] = comment
    try:
        await api.call("files.completeUploadExternal", UPLOAD_TIMEOUT, **params)
    except ApiError as error:
        if error.taken != "maybe" or not await _shared(api, file_id):
            raise
    return file_id


async def _shared(api: Api, file_id: str) -> bool:
    """Whether a file stands in a chat: settles a sharing whose answer was lost."""
    try:
        found = await api.call("files.info", file=file_id)
    except ApiError:
        return False
    shares = found.get("file", {}).get("shares")
    return bool(shares)
