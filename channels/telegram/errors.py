"""What a failed Bot API call means for a reply: wait, go on, or give up.

The descriptions are those of the Bot API server (telegram-bot-api, Client.cpp) and of Telegram itself.
"""

from __future__ import annotations

from channels.base import Flooded, Gone, NotSent, Rejected, SendError, Unknown
from channels.telegram.api import ApiError

#: The chat, or the place in it, is not there for this bot any more.
_GONE = (
    "chat not found",
    "user is deactivated",
    "bot was blocked",
    "bot was kicked",
    "bot is not a member",
    "group chat was deactivated",
    "message thread not found",
    "topic_deleted",
    "peer_id_invalid",
    "chat_write_forbidden",
    "chat_restricted",
    "not enough rights to send text messages",
    "have no rights to send a message",
    "need administrator rights in the channel chat",
)
_BAD_ENTITIES = ("can't parse", "entity", "entities")


def send_error(error: ApiError) -> SendError:
    """The SendError that says what the bridge does next."""
    reason = error.reason.lower()
    if error.taken == "no":
        return NotSent(str(error))
    if error.taken == "maybe":
        return Unknown(str(error))
    if error.code == 429:
        return Flooded(str(error), max(error.retry_after, 1.0))
    if error.code == 403 or any(words in reason for words in _GONE):
        return Gone(str(error))
    if error.code in (401, 404, 409) or error.code >= 500:
        # The token is wrong at the moment, or the server is ill: neither is the message's fault.
        return NotSent(str(error))
    return Rejected(str(error))


def not_modified(error: ApiError) -> bool:
    return error.code == 400 and "message is not modified" in error.reason.lower()


def bad_entities(error: ApiError) -> bool:
    """The formatting was refused; the same text goes without it."""
    return error.code == 400 and any(words in error.reason.lower() for words in _BAD_ENTITIES)
