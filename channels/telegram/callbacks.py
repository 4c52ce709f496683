"""Pressed buttons: from a callback_query to a `Press`, and the answer that ends the button's spinning."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from channels.base import Press
from channels.telegram.api import Api, ApiError
from channels.telegram.inbound import Me, address_of, person

log = logging.getLogger("causeway.telegram")

#: Longest answer in characters (Bot API, answerCallbackQuery).
MAX_ANSWER = 200
#: Seconds for the bridge to take a press, and for Telegram to take the answer.
_PRESS_DEADLINE, _ANSWER_DEADLINE = 10.0, 10.0


def read_press(query: Mapping[str, Any], channel: str, me: Me) -> Press | None:
    """None for a button of a message that is not in a chat of ours (inline), and for one without data.

    A message that is too old comes without its topic (Bot API, InaccessibleMessage)."""
    message = query.get("message")
    if not isinstance(message, Mapping) or not query.get("data"):
        return None
    address = address_of(message, channel, me)
    if address is None:
        return None
    return Press(address, person(query["from"]), str(query["data"]), str(message["message_id"]))


async def take_press(
    query_id: str, pressed: Press | None, api: Api, press: Callable[[Press], Awaitable[str]]
) -> None:
    """Hand a press over and answer it. Raises what `press` raises: the query comes again then."""
    words = ""
    if pressed is not None:
        async with asyncio.timeout(_PRESS_DEADLINE):
            words = await press(pressed)
    try:
        async with asyncio.timeout(_ANSWER_DEADLINE):
            await api.call("answerCallbackQuery", callback_query_id=query_id, text=_cut(words) or None)
    except TimeoutError:
        log.warning("a press was not answered in time")
    except ApiError as error:
        # It is only a sign to the person; the press itself has been taken. "Query is too old" is usual after
        # a restart.
        log.log(
            logging.DEBUG if error.code == 400 else logging.WARNING, "a press was not answered: %s", error
        )


def _cut(words: str) -> str:
    return words if len(words) <= MAX_ANSWER else words[: MAX_ANSWER - 1] + "…"
