"""The pace of upkeep: what has all the time in the world leaves the store to messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")
_LONGEST = 0.5


async def unhurried(step: Awaitable[T]) -> T:
    """Do a step of upkeep, then rest for as long as it took (half a second at most): a message that comes
    meanwhile waits for one step, and half of the store's time is never upkeep's."""
    began = time.perf_counter()
    result = await step
    await asyncio.sleep(min(time.perf_counter() - began, _LONGEST))
    return result
