"""How fast we may call: tokens that refill, for posts by channel and for the rest by kind of call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from channels.base import Flooded
from channels.slack.bounded import Recent

#: chat.postMessage: one a second and channel, short bursts (docs.slack.dev, Rate limits).
POSTS = 1.0
POST_BURST = 3
#: Calls a minute of growing text: chat.update is tier 3 (50), appendStream tier 4 (100), startStream tier 2
#: (20). What finishes a reply is never held back here.
UPDATES, APPENDS, STARTS = 50 / 60, 100 / 60, 20 / 60
#: A post waits so long for its turn (seconds); a longer wait is the caller's.
PATIENCE = 5.0
_CHATS = 2000


class Bucket:
    """Tokens that refill at `rate` a second up to `burst`."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._left, self._at = burst, clock()

    def wait(self) -> float:
        """Seconds until a token is there; 0 when there is one now."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        return 0.0 if self._left >= 1 else (1 - self._left) / self._rate

    def take(self) -> None:
        """Take a token; the account may go below zero, which later calls wait for."""
        self.wait()
        self._left -= 1

    def need(self) -> None:
        """Take a token, or raise Flooded with the time until there is one."""
        if wait := self.wait():
            raise Flooded("our own pace", wait)
        self._left -= 1

    def drain(self, seconds: float) -> None:
        """No token for so long: the platform said so."""
        self.wait()
        self._left = min(self._left, 1 - seconds * self._rate)


class Pace:
    """The posts of each channel. Channels that were quiet longest are forgotten first."""

    def __init__(self, clock: Callable[[], float], rate: float = POSTS) -> None:
        self._clock, self._rate = clock, rate
        self._chats: Recent[str, Bucket] = Recent(_CHATS)

    async def turn(self, chat: str) -> None:
        """Wait for this channel's turn. Raises Flooded when that takes longer than `PATIENCE`."""
        bucket = self._bucket(chat)
        wait = bucket.wait()
        if wait > PATIENCE:
            raise Flooded("this channel's pace", wait)
        bucket.take()
        if wait:
            await asyncio.sleep(wait)

    def hold(self, chat: str, seconds: float) -> None:
        """Slack answered 429: this channel (and no other) rests for `seconds`."""
        self._bucket(chat).drain(seconds)

    def _bucket(self, chat: str) -> Bucket:
        bucket = self._chats.get(chat)
        if bucket is None:
            bucket = Bucket(self._rate, POST_BURST, self._clock)
        self._chats[chat] = bucket
        return bucket
