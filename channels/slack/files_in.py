"""Files that people sent: fetched with the bot's token, which goes to Slack's hosts alone."""

from __future__ import annotations

import json
from pathlib import Path

from channels.base import Attachment, NotSent, Rejected, TooLarge
from channels.slack.api import Api, ApiError
from channels.slack.inbound import attachments

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
        file_id, url, fault = str(ref["id"]), str(ref.get("url") or ""), str(ref.get("fault") or "")
    except (ValueError, KeyError, TypeError):
        raise Rejected("this is no reference to a Slack file") from None
    try:
        mime = attachment.mime
        if not fault and not url:
            # Slack Connect: the event holds no more than the id (`file_access: check_file_info`).
            file_id, url, fault, mime = await _ask(api, file_id, mime)
        if fault:
            raise Rejected(_reason(fault))
        if attachment.size > max_bytes:
            raise TooLarge(f"the file is larger than {max_bytes} bytes")
        await api.download(url, target, max_bytes, html=mime.startswith(("text/html", "application/xhtml")))
    except ApiError as error:
        if error.taken != "refused" or error.error in ("ratelimited", "http_503"):
            raise NotSent(str(error)) from None
        raise Rejected(_reason(error.error, str(error))) from None


async def _ask(api: Api, file_id: str, mime: str) -> tuple[str, str, str, str]:
    answer = await api.call("files.info", file=file_id)
    found = attachments({"files": [answer.get("file")]})
    if not found:
        return file_id, "", "file_not_found", mime
    ref = json.loads(found[0].ref)
    url = str(ref.get("url") or "")
    return file_id, url, str(ref.get("fault") or ("" if url else "access_denied")), found[0].mime or mime


def _reason(fault: str, otherwise: str = "") -> str:
    if "missing_scope" in (fault, otherwise):
        return _FAULTS["login_page"]
    return _FAULTS.get(fault, otherwise or f"Slack says: {fault}")
