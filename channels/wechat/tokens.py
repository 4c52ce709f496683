"""One holder of an access token: kept in the store, renewed by one caller at a time in all processes."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import TypeVar

from channels.base import ChannelState

log = logging.getLogger("causeway.wechat.tokens")

T = TypeVar("T")

#: Error codes that mean: this token is no longer valid.
STALE = frozenset((40001, 40014, 42001))
#: A token is renewed so long before it ends (seconds): then stable_token already gives the next one.
_MARGIN = 300.0
#: Longest time for one renewal (seconds), and for waiting for another process's.
DEADLINE = 15.0
_LOOK = 0.1
_FORCE_EVERY = 3600.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


class StaleToken(Exception):
    """Raised by a call whose answer was 40001, 40014 or 42001. `code` is that number."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class NoToken(Exception):
    """No token can be had now: another process brought none in time, or the endpoint failed a moment ago."""


class Tokens:
    """The access token of one account.

    `request(force)` asks the platform for a token and returns (token, seconds it lasts); with `force` False
    it may return the one that is valid already. What it raises is passed on, and for a while (1 s, doubling
    up to 60 s) every caller gets `NoToken` at once instead of asking the ailing endpoint again.
    """

    def __init__(
        self,
        state: ChannelState,
        key: str,
        request: Callable[[bool], Awaitable[tuple[str, float]]],
        clock: Callable[[], float],
        *,
        deadline: float = DEADLINE,
    ) -> None:
        self._state = state
        self._key = key
        self._request = request
        self._clock = clock
        self._deadline = deadline
        self._holder = secrets.token_hex(8)
        self._lock = asyncio.Lock()
        self._token = ""
        self._until = 0.0
        self._pause = _FIRST_PAUSE
        self._not_before = 0.0
        self._reason = ""
        self._forced = float("-inf")

    async def get(self) -> str:
        """A token that should be valid. Raises NoToken or what `request` raises."""
        if self._fresh():
            return self._token
        async with self._lock:
            return await self._other_than("")

    async def renew(self, stale: str) -> str:
        """A token other than `stale`, which the platform refused."""
        async with self._lock:
            return await self._other_than(stale)

    async def call_with_token(self, call: Callable[[str], Awaitable[T]]) -> T:
        """Run `call(token)`; when it raises StaleToken, once more with a new token. No further try."""
        token = await self.get()
        try:
            return await call(token)
        except StaleToken as error:
            log.info("the access token was refused (%d); a new one is taken", error.code)
            return await call(await self.renew(token))

    def _fresh(self) -> bool:
        return bool(self._token) and self._clock() < self._until

    async def _other_than(self, stale: str) -> str:
        if self._fresh() and self._token != stale:
            return self._token
        loop = asyncio.get_running_loop()
        end = loop.time() + self._deadline
        while True:
            await self._load()
            if self._fresh() and self._token != stale:
                return self._token
            # A pause never ends later than it was long, also when the clock was set back.
            if 0 < self._not_before - self._clock() <= _LONGEST_PAUSE:
                raise NoToken(f"no access token; the last try failed: {self._reason}")
            if await self._state.claim(self._key, self._holder, self._deadline * 2):
                break
            if loop.time() > end:
                raise NoToken("no access token: another process holds its renewal and brought none in time")
            await asyncio.sleep(_LOOK)
        try:
            await self._load()  # another process may have put it there before we held the lease
            if not (self._fresh() and self._token != stale):
                await self._ask(stale)
        finally:
            await self._state.release(self._key, self._holder)
        return self._token

    async def _load(self) -> None:
        kept = await self._state.get(self._key)
        if isinstance(kept, dict):
            self._token, self._until = str(kept.get("token", "")), float(kept.get("until", 0))

    async def _ask(self, stale: str) -> None:
        try:
            async with asyncio.timeout(self._deadline):
                token, seconds = await self._request(False)
                if token == stale:
                    # The platform still gives out what its own servers refuse: only force makes another,
                    # which it allows 20 times a day.
                    if 0 <= self._clock() - self._forced < _FORCE_EVERY:
                        raise NoToken(
                            "the platform refuses the token that it gives out; is the secret right?"
                        )
                    self._forced = self._clock()
                    token, seconds = await self._request(True)
        except Exception as error:  # whatever it was, it is passed on and others are kept from repeating it
            self._reason = str(error) or type(error).__name__
            self._not_before = self._clock() + self._pause
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)
            raise
        self._pause, self._not_before, self._reason = _FIRST_PAUSE, 0.0, ""
        self._token, self._until = token, self._clock() + max(seconds - _MARGIN, seconds / 2, 1.0)
        await self._state.put(self._key, {"token": token, "until": self._until})
