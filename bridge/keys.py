"""Session keys: one function that builds them from typed parts, so that no two addresses give one key."""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from channels.base import Address

_LONGEST = 160
#: Where the counts of skills are kept: `store.channel_state(COUNTS_SCOPE)`, key `COUNTS_KEY`.
COUNTS_SCOPE, COUNTS_KEY = "~skills", "counts"


def session_key(address: Address) -> str:
    """The key of the session that an address belongs to: channel, kind, chat and thread, each escaped.

    It is also a folder's name, so it has only letters, digits and `%-._~:`; a longer one ends in a hash.
    """
    parts = [address.channel, address.kind, address.chat]
    if address.thread is not None:
        parts.append(address.thread)
    key = ":".join(quote(part, safe="") for part in parts)
    if len(key) <= _LONGEST:
        return key
    return f"{key[:_LONGEST]}#{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def channel_of(key: str) -> str:
    """The (escaped) channel part of a key."""
    return key.split(":", 1)[0]
