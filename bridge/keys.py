"""Session keys: one function that builds them from typed parts, so that no two addresses give one key."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, cast
from urllib.parse import quote, unquote

from channels.base import Address, ChatKind, Inbound

Scope = Literal["chat", "thread", "person", "person_in_chat"]

_LONGEST = 160
#: Where the counts of skills are kept: `store.channel_state(COUNTS_SCOPE)`, key `COUNTS_KEY`.
COUNTS_SCOPE, COUNTS_KEY = "~skills", "counts"


def session_key(address: Address, sender: str = "", scope: Scope = "thread") -> str:
    """The key of the session that a message belongs to.

    `chat`: all of a chat. `thread`: each thread of a chat apart (the default). `person`: one for a person in
    the whole channel, wherever they write. `person_in_chat`: one for each person in each thread of a chat.

    It is also a folder's name, so it has only letters, digits and `%-._~:=`; a longer one ends in a hash.
    Every part is escaped, so `=` (a part's type) and `:` (between parts) are only ever written here.
    """
    parts = [quote(address.channel, safe="")]
    if scope == "person":
        parts.append(f"person={quote(sender, safe='')}")
    else:
        parts += [address.kind, quote(address.chat, safe="")]
        if address.thread is not None and scope != "chat":
            parts.append(quote(address.thread, safe=""))
        if scope == "person_in_chat":
            parts.append(f"by={quote(sender, safe='')}")
    key = ":".join(parts)
    if len(key) <= _LONGEST:
        return key
    return f"{key[:_LONGEST]}#{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def key_of(inbound: Inbound, home: str, scopes: Mapping[ChatKind, Scope]) -> str:
    """The session of a message: by the scope for its kind of chat, under the chat's first id."""
    address = inbound.address
    if home != address.chat:
        address = replace(address, chat=home)
    return session_key(address, inbound.sender.id, scopes[address.kind])


def address_of(key: str) -> Address | None:
    """Where a session takes place; None for one that is not of a single chat, or whose key was cut."""
    parts = key.split(":")
    if len(parts) < 3 or "#" in key:
        return None
    channel, kind, chat, *more = parts
    thread = unquote(more[0]) if more and not more[0].startswith("by=") else None
    return Address(unquote(channel), unquote(chat), cast("ChatKind", kind), thread)


def channel_of(key: str) -> str:
    """The (escaped) channel part of a key."""
    return key.split(":", 1)[0]
