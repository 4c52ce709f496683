"""One at a time in all processes that share a channel's notes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from channels.base import ChannelState

#: Seconds after which a process that died is waited for no longer; what is done alone must be quicker.
_LASTS = 5.0
_LOOK = 0.02


class Busy(TimeoutError):
    """It was never our turn."""


@asynccontextmanager
async def alone(state: ChannelState, key: str) -> AsyncIterator[None]:
    """Let the body run while no other process is in one with this key. Raises Busy when it is never our turn
    in twice the time that a dead process can hold us up, and what the store raises."""
    holder = secrets.token_hex(8)
    try:
        async with asyncio.timeout(2 * _LASTS):
            while True:
                if await state.claim(key, holder, _LASTS):
                    break
                await asyncio.sleep(_LOOK)
    except TimeoutError:
        raise Busy(f"another process has been at {key.partition(':')[0]} for too long") from None
    try:
        yield
    finally:
        await state.release(key, holder)
