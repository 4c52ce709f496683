"""How the chats of a business account are named among the others.

A business chat has the id that the plain private chat of the same person with the bot has, and must not be
mixed up with it. So its name carries the connection through which the bot answers.
"""

from __future__ import annotations

_BUSINESS = "business:"


def business_chat(connection: str, chat: int | str) -> str:
    return f"{_BUSINESS}{connection}:{chat}"


def split_chat(name: str) -> tuple[str, str]:
    """(chat id, business connection id) of an `Address.chat`; the second is empty for all other chats."""
    if not name.startswith(_BUSINESS):
        return name, ""
    connection, _, chat = name.removeprefix(_BUSINESS).rpartition(":")
    return chat, connection
