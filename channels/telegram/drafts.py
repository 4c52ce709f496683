"""Growing text in private chats: drafts, which Telegram animates and which leave no message behind.

Bot API, sendMessageDraft: private chats only, an id other than 0, seen for 30 seconds, ended by an ordinary
message. Older servers do not know it, or give it to bots with topics only.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from channels.base import Address
from channels.telegram.api import ApiError
from channels.telegram.chats import split_chat
from channels.telegram.recent import Recent

log = logging.getLogger("causeway.telegram")

Data: TypeAlias = dict[str, Any]

#: Seconds after which a draft that stands still is sent once more.
REFRESH = 20.0
_REMEMBERED = 1000


@dataclass(slots=True)
class _Shown:
    params: Data
    at: float


class Drafts:
    """Which chats take drafts, and what each reply shows as one. Knows the last 1000 of both."""

    def __init__(self, on: bool, clock: Callable[[], float]) -> None:
        self._on = on
        self._clock = clock
        self._without: Recent[bool] = Recent(_REMEMBERED)
        self._shown: Recent[_Shown | None] = Recent(_REMEMBERED)

    def usable(self, address: Address) -> bool:
        business = split_chat(address.chat)[1]
        return self._on and address.kind == "direct" and not business and not self._without.get(address.chat)

    def refused(self, address: Address, error: ApiError) -> None:
        """Edits are used from now on: everywhere when the server has no drafts, else in this chat."""
        if error.code == 404 or "method" in error.reason.lower():
            log.info("this server has no drafts (%s); growing text is shown by edits", error.reason)
            self._on = False
        else:
            log.info("chat %s takes no drafts (%s); edits are used there", address.chat, error.reason)
            self._without.put(address.chat, True)

    def showed(self, reply: str, params: Data) -> None:
        self._shown.put(reply, _Shown(params, self._clock()))

    def shown(self, reply: str) -> int:
        """The id of the draft that a reply shows now, or 0."""
        shown = self._shown.get(reply)
        return int(shown.params["draft_id"]) if shown is not None else 0

    def stale(self, reply: str) -> Data | None:
        """The parameters of a draft that will soon vanish, though its reply is not at an end."""
        shown = self._shown.get(reply)
        return shown.params if shown is not None and self._clock() - shown.at >= REFRESH else None

    def ended(self, reply: str) -> None:
        """A message has taken the draft's place."""
        if self._shown.get(reply) is not None:
            self._shown.put(reply, None)


def draft_id(reply: str, n: int) -> int:
    """The same for each state of one chunk of one reply; never 0."""
    return zlib.crc32(f"{reply}:{n}".encode()) & 0x7FFFFFFF or 1
