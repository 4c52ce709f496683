"""Files of people and of replies.

What people sent is fetched with the bot's token, which goes to Slack's hosts alone. What a reply holds goes
by the upload-URL flow: an address, the bytes, the sharing (docs.slack.dev, Working with files).
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from channels.base import Attachment, NotSent, OutFile, Rejected, TooLarge
from channels.slack.api import UPLOAD_TIMEOUT, Api, ApiError
from channels.slack.inbound import attachments

#: Slack takes files up to 1 GB.
_MAX_FILE = 1024**3
#: Why a file cannot be had, by Slack's word for it.
_FAULTS = {
    "tombstone": "the file was deleted",
    "file_deleted": "the file was deleted",
    "file_not_found": "the file is not there, or the bot may not see it",
    "hidden_by_limit": "the file is beyond the storage limit of the workspace's plan",
    "access_denied": "the file belongs to another organisation that does not share it",
    "external": "the file lies outside Slack (a link to another service), where the bot has no access",
    "not_slack": "the file's address is not Slack's, so the bot's token is not sent there",
    "login_page": "Slack sent its login page instead of the file: give the app the scope files:read, "
    "install it again, and see that bot_token is the new one",
}


async def fetch(api: Api, attachment: Attachment, target: Path, max_bytes: int) -> None:
    """Write a file of a message to `target`. Raises TooLarge, NotSent (try again) or Rejected."""
    try:
        ref = json.loads(attachment.ref)
        file_id = str(ref["id"])
    except (ValueError, KeyError, TypeError):
        raise Rejected("this is no reference to a Slack file") from None
    mime = attachment.mime
    try:
        if not ref.get("fault") and not ref.get("url"):
            # Slack Connect: the event holds no more than the id (`file_access: check_file_info`).
            answer = await api.call("files.info", file=file_id)
            found = attachments({"files": [answer.get("file")]})
            if not found:
                raise Rejected(_FAULTS["file_not_found"])
            ref, mime = json.loads(found[0].ref), found[0].mime or mime
        if fault := ref.get("fault") or ("" if ref.get("url") else "access_denied"):
            raise Rejected(_FAULTS.get(fault, f"Slack says: {fault}"))
        if attachment.size > max_bytes:
            raise TooLarge(f"the file is larger than {max_bytes} bytes")
        html = mime.startswith(("text/html", "application/xhtml"))
        await api.download(ref["url"], target, max_bytes, html=html)
    except ApiError as error:
        if error.taken != "refused" or error.error in ("ratelimited", "http_503"):
            raise NotSent(str(error)) from None
        fault = "login_page" if error.error == "missing_scope" else error.error
        raise Rejected(_FAULTS.get(fault, str(error))) from None


async def upload(api: Api, file: OutFile, comment: str, channel: str, thread: str | None) -> str:
    """Show a file with its comment (mrkdwn); return its id. A file that was not shared stays unseen, so
    everything up to the last call may be repeated. Raises ApiError, or Rejected for a file that cannot go."""
    path = Path(file.path)
    try:
        size = (await asyncio.to_thread(path.stat)).st_size
    except OSError as error:
        raise Rejected(f"{file.name} cannot be read: {error.strerror}") from None
    if not 0 < size <= _MAX_FILE:
        raise Rejected(f"{file.name} has {size} bytes; Slack takes 1 to {_MAX_FILE}")
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
    try:
        await api.call(
            "files.completeUploadExternal",
            UPLOAD_TIMEOUT,
            files=[{"id": file_id, "title": name}],
            channel_id=channel,
            thread_ts=thread,
            initial_comment=comment or None,
        )
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
    return bool(found.get("file", {}).get("shares"))
