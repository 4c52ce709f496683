"""Frames of the long connection, the platform's error codes, and what each means for a reply."""

from __future__ import annotations

import json
import secrets
from typing import Any, TypeAlias

from channels.base import Flooded, Gone, NotSent, Rejected, SendError

Data: TypeAlias = dict[str, Any]

SUBSCRIBE, PING = "aibot_subscribe", "ping"
MESSAGE, EVENT = "aibot_msg_callback", "aibot_event_callback"
RESPOND, SEND = "aibot_respond_msg", "aibot_send_msg"
WELCOME, UPDATE_CARD = "aibot_respond_welcome_msg", "aibot_respond_update_msg"
UPLOAD_INIT, UPLOAD_PART, UPLOAD_FINISH = (
    "aibot_upload_media_init",
    "aibot_upload_media_chunk",
    "aibot_upload_media_finish",
)

BUSY, CONFLICT, FLOODED, BAD_CHAT = -1, 6000, 45009, 93006
#: The socket is open, but the server has forgotten the subscription.
NOT_SUBSCRIBED = 846609
#: The callback that a reply names is unknown (an earlier connection's, too old); the stream has run out.
BAD_REQ_ID, STREAM_EXPIRED = 846605, 846608
#: Seconds to hold back after the platform said "too often": its window is a minute.
FLOOD_PAUSE = 15.0


class BotError(Exception):
    """The platform refused a call: certainly not shown."""

    def __init__(self, cmd: str, code: int, message: str) -> None:
        super().__init__(f"WeCom refused {cmd}: {code} {message[:200]}")
        self.code = code


def send_error(error: BotError) -> SendError:
    """The SendError that says what the bridge does next."""
    if error.code == FLOODED:
        return Flooded(str(error), FLOOD_PAUSE)
    if error.code == BAD_CHAT:
        return Gone(f"{error}: the bot is no longer in this chat, or nobody wrote to it there yet")
    if temporary(error):
        return NotSent(str(error))
    return Rejected(str(error))


def temporary(error: BotError) -> bool:
    """The same call may succeed later."""
    return error.code in (BUSY, CONFLICT, FLOODED, NOT_SUBSCRIBED)


def new_req_id(cmd: str) -> str:
    return f"{cmd}_{secrets.token_hex(12)}"


def read_json(text: str | bytes) -> Data:
    """A JSON object; raw control characters inside strings are let through, since the platform sends some.
    Raises ValueError."""
    found = json.loads(text, strict=False)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def result(cmd: str, frame: Data) -> Data:
    """The body of an answer. Raises BotError for one that refuses."""
    code = frame.get("errcode", 0)
    if code != 0:
        raise BotError(cmd, code if isinstance(code, int) else BUSY, str(frame.get("errmsg", "")))
    body = frame.get("body")
    return body if isinstance(body, dict) else {}


def markdown(text: str) -> Data:
    return {"msgtype": "markdown", "markdown": {"content": text}}


def stream(stream_id: str, text: str, *, finish: bool) -> Data:
    return {"msgtype": "stream", "stream": {"id": stream_id, "finish": finish, "content": text}}
