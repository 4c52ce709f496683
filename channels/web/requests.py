"""What the page asks for, read and checked: who the visitor is, and the bodies of its requests."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from typing import Any

from aiohttp import web

from channels.web.page import HEADERS

COOKIE = "causeway_chat"
MAX_TEXT = 100_000
_COOKIE_VALUE = re.compile(r"[0-9a-f]{32}")
_MESSAGE_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
_MAX_BODY = 1024 * 1024
_BODY_TIMEOUT = 30.0


class Refused(Exception):
    """A request of the page that is answered with an error. `again`: sending it again may help."""

    def __init__(self, status: int, message: str, *, again: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.again = again


def answer(data: dict[str, Any], status: int = 200) -> web.Response:
    return web.json_response(data, status=status, headers={**HEADERS, "Cache-Control": "no-store"})


def is_cookie(value: str) -> bool:
    """Whether it is one of our cookies' values."""
    return _COOKIE_VALUE.fullmatch(value) is not None


def chat_of(request: web.Request) -> str | None:
    """The visitor's chat. A digest of the cookie, so that a log or a folder's name does not give it away."""
    cookie = request.cookies.get(COOKIE, "")
    return hashlib.sha256(cookie.encode()).hexdigest()[:32] if is_cookie(cookie) else None


def visitor(request: web.Request) -> str:
    """The visitor's chat. Raises Refused."""
    chat = chat_of(request)
    if chat is None:
        raise Refused(403, "There is no session. Reload the page, and allow it to set a cookie.")
    return chat


async def message(request: web.Request) -> tuple[str, str]:
    """The id and text that the page sent. Raises Refused."""
    data = await _body(request)
    id, text = data.get("id"), data.get("text")
    if not isinstance(id, str) or not _MESSAGE_ID.fullmatch(id):
        raise Refused(400, "id must be 8 to 64 letters, digits, - or _.")
    if not isinstance(text, str) or not text.strip():
        raise Refused(400, "The message is empty.")
    if len(text) > MAX_TEXT:
        raise Refused(413, f"The message is longer than {MAX_TEXT} characters.")
    return id, text


async def pressed(request: web.Request) -> tuple[str, str]:
    """The card and the choice of a pressed button. Raises Refused."""
    data = await _body(request)
    card, choice = data.get("card"), data.get("choice")
    if not isinstance(card, str) or not isinstance(choice, str):
        raise Refused(400, "card and choice must be texts.")
    return card, choice


async def _body(request: web.Request) -> dict[str, Any]:
    # A form of another site cannot send this type, whatever else is checked before.
    if request.content_type != "application/json":
        raise Refused(415, "The body must be application/json.")
    if (request.content_length or 0) > _MAX_BODY:
        raise Refused(413, f"The message is longer than {MAX_TEXT} characters.")
    try:
        async with asyncio.timeout(_BODY_TIMEOUT):
            data = json.loads(await request.read())
    except (ValueError, RecursionError):
        raise Refused(400, "The body is not JSON.") from None
    except TimeoutError:
        raise Refused(408, "The message did not arrive in time.", again=True) from None
    return data if isinstance(data, dict) else {}
