"""What the bridge gives a channel, in memory: for tests that drive one channel alone."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from channels.base import Env, Json, LogEntry


class MemoryState:
    """A ChannelState that holds what it was given as JSON, as a store would. Outlives the channel."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.logs: dict[str, dict[str, tuple[int, str]]] = {}
        self.leases: dict[str, tuple[str, float]] = {}
        self._seq = itertools.count(1)

    async def get(self, key: str) -> Json:
        return json.loads(self.values[key]) if key in self.values else None

    async def put(self, key: str, value: Json) -> None:
        self.values[key] = json.dumps(value)

    async def append(self, log: str, entry: str, value: dict[str, Any]) -> int:
        await asyncio.sleep(0)  # a real store lets others run
        seq = next(self._seq)
        entries = self.logs.setdefault(log, {})
        entries.pop(entry, None)
        entries[entry] = (seq, json.dumps(value))
        return seq

    async def read(self, log: str, after: int = 0, limit: int = 500) -> list[LogEntry]:
        await asyncio.sleep(0)
        found = [
            LogEntry(seq, id, json.loads(value))
            for id, (seq, value) in self.logs.get(log, {}).items()
            if seq > after
        ]
        return found[-limit:]

    async def trim(self, log: str, upto: int) -> None:
        await asyncio.sleep(0)
        entries = self.logs.get(log, {})
        self.logs[log] = {id: entry for id, entry in entries.items() if entry[0] > upto}

    async def remove(self, log: str, entry: str) -> bool:
        await asyncio.sleep(0)
        return self.logs.get(log, {}).pop(entry, None) is not None

    async def claim(self, key: str, holder: str, seconds: float) -> bool:
        await asyncio.sleep(0)
        held = self.leases.get(key)
        if held is not None and held[0] != holder and held[1] > time.time():
            return False
        self.leases[key] = (holder, time.time() + seconds)
        return True

    async def release(self, key: str, holder: str) -> None:
        await asyncio.sleep(0)
        if key in self.leases and self.leases[key][0] == holder:
            del self.leases[key]


def key_text(key: str, language: str = "", /, **values: object) -> str:
    """A catalogue whose texts are their keys and values."""
    return " ".join([key, *(str(value) for value in values.values())])


def memory_env(
    folder: Path, state: MemoryState | None = None, text: Any = key_text, *, shared: bool = False
) -> Env:
    return Env(state=state or MemoryState(), text=text, folder=folder, clock=time.time, shared=shared)


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until `condition()` is true; fail after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
