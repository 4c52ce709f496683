"""How fast Telegram is written to: by kind of chat, over all chats, and by what the server answers. No I/O.

Telegram publishes no contract. Its FAQ for bots names about one message a second in a chat (short bursts are
let through), twenty a minute in a group and thirty a second over all chats; edits count as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from channels.telegram.recent import Recent

#: `new`: the first sight of a message; `growing`: one more state of it; `final`: text that will not change.
Urgency: TypeAlias = Literal["new", "growing", "final"]


@dataclass(frozen=True, slots=True)
class Pace:
    """`gap`: least seconds before one more state of growing text. At most `most` calls in `seconds`, of which
    growing text leaves `kept` free, so that what is whole need not wait."""

    gap: float
    most: int
    seconds: float
    kept: int


PRIVATE = Pace(gap=1.0, most=15, seconds=10.0, kept=5)
GROUP = Pace(gap=3.0, most=20, seconds=60.0, kept=4)

RATE = 30.0
#: Longest wait for a place among all chats' calls (seconds); beyond it the caller comes again.
LONGEST_WAIT = 10.0
#: So long (seconds) a flood is remembered: edits of that chat are slower, and all chats share `RATE`.
FLOOD_MEMORY = 300.0
_MOST_SLOWDOWN = 3
_CHATS = 5000


@dataclass(slots=True)
class _Chat:
    calls: deque[float] = field(default_factory=lambda: deque(maxlen=max(PRIVATE.most, GROUP.most)))
    pause: float = 0.0
    flooded_at: float = -1e18
    floods: int = 0


class Pacer:
    """Keeps the pace of each chat and of all together. Knows the last 5000 chats written to.

    `rate`: calls a second over all chats. None: whatever the server takes, and `RATE` for a while after it
    refused a call as a flood.
    """

    def __init__(self, clock: Callable[[], float], rate: float | None = RATE) -> None:
        self._clock = clock
        self._rate = rate
        self._chats: Recent[_Chat] = Recent(_CHATS)
        self._flooded_at = -1e18
        self._tokens = rate or RATE
        self._filled_at = clock()

    def hold(self, chat: str, pace: Pace, urgency: Urgency) -> float:
        """Seconds until this call may be made; 0.0: now."""
        now = self._clock()
        state = self._chats.get(chat) or _Chat()
        wait = _left(state.flooded_at, state.pause, now)
        allowed = pace.most - (pace.kept if urgency == "growing" else 0)
        if len(state.calls) >= allowed:
            wait = max(wait, _left(state.calls[-allowed], pace.seconds, now))
        if urgency == "growing":
            if state.calls:
                wait = max(wait, _left(state.calls[-1], pace.gap * self._slowdown(state, now), now))
            if not wait and self._limited(now) and self._fill(now) < self._per_second / 2:
                wait = 0.5  # what is sent for the first time goes before edits
        return wait

    def take(self, chat: str) -> float:
        """Note a call that is made; return the seconds to wait for its place among all chats' calls.

        More than `LONGEST_WAIT`: no place was taken.
        """
        now = self._clock()
        wait = 0.0
        if self._limited(now):
            wait = max(0.0, 1.0 - self._fill(now)) / self._per_second
            if wait > LONGEST_WAIT:
                return wait
            self._tokens -= 1
        self._state(chat).calls.append(now)
        return wait

    def flooded(self, chat: str, retry_after: float) -> None:
        """The server refused a call to this chat for so many seconds."""
        now = self._clock()
        state = self._state(chat)
        state.floods = min(self._floods(state, now) + 1, _MOST_SLOWDOWN)
        state.flooded_at, state.pause = now, retry_after
        self._flooded_at = now

    def paused(self, chat: str) -> bool:
        """Whether the server wants no call for this chat, or none can be spared for a mere sign of life."""
        now = self._clock()
        state = self._chats.get(chat)
        if state is not None and _left(state.flooded_at, state.pause, now) > 0:
            return True
        return self._limited(now) and self._fill(now) < self._per_second / 2

    def _state(self, chat: str) -> _Chat:
        state = self._chats.get(chat)
        if state is None:
            state = _Chat()
            self._chats.put(chat, state)
        return state

    def _slowdown(self, state: _Chat, now: float) -> float:
        return 2.0 ** self._floods(state, now)

    def _floods(self, state: _Chat, now: float) -> int:
        return state.floods if _left(state.flooded_at, FLOOD_MEMORY, now) > 0 else 0

    # -- all chats -----------------------------------------------------------------------------------------

    @property
    def _per_second(self) -> float:
        return self._rate or RATE

    def _limited(self, now: float) -> bool:
        return self._rate is not None or _left(self._flooded_at, FLOOD_MEMORY, now) > 0

    def _fill(self, now: float) -> float:
        """The calls that can be made at once; at most a second's worth, below zero: reserved already."""
        grown = max(0.0, now - self._filled_at) * self._per_second
        self._tokens = min(self._per_second, self._tokens + grown)
        self._filled_at = now
        return self._tokens


def _left(since: float, seconds: float, now: float) -> float:
    """What is left of a span. A clock that was set back ends it, rather than stretching it."""
    return max(0.0, since + seconds - now) if now >= since else 0.0
