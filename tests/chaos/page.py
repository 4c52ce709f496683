"""A chat page that is left open while the bridge dies and comes back: it sends again, and catches up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

_AGAIN = 0.05
_FAULTS = (aiohttp.ClientError, TimeoutError, ConnectionError)


class Page:
    """One visitor. `write` queues a message; `entries` is what the page shows, by id."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.entries: dict[str, dict[str, Any]] = {}
        self.seen_at: dict[str, float] = {}
        self.waiting: deque[tuple[str, str]] = deque()
        self.resets = 0
        self._count = 0
        self._last = 0

    def write(self, text: str) -> None:
        self._count += 1
        self.waiting.append((f"message-{self._count}", text))

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Page]:
        jar = aiohttp.CookieJar(unsafe=True)  # the host is an address
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=2)
        async with aiohttp.ClientSession(cookie_jar=jar, timeout=timeout) as session:
            tasks = [asyncio.create_task(self._live(session))]
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

    async def _live(self, session: aiohttp.ClientSession) -> None:
        while not await self._post(session, "session", {}):
            await asyncio.sleep(_AGAIN)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send(session))
            group.create_task(self._listen(session))

    async def _post(self, session: aiohttp.ClientSession, what: str, body: dict[str, str]) -> bool:
        try:
            async with session.post(f"{self.url}/web/{what}", json=body) as response:
                return response.status == 200
        except _FAULTS:
            return False

    async def _send(self, session: aiohttp.ClientSession) -> None:
        """One after the other; each again until it is taken."""
        while True:
            if self.waiting:
                id, text = self.waiting[0]
                if await self._post(session, "send", {"id": id, "text": text}):
                    self.waiting.popleft()
                    continue
            await asyncio.sleep(_AGAIN)

    async def _listen(self, session: aiohttp.ClientSession) -> None:
        while True:
            headers = {"Last-Event-ID": str(self._last)} if self._last else {}
            try:
                async with session.get(f"{self.url}/web/events", headers=headers) as response:
                    event: dict[str, str] = {}
                    async for raw in response.content:
                        name, _, value = raw.decode().rstrip("\n").partition(": ")
                        if name:
                            event[name] = value
                        else:
                            self._take(event)
                            event = {}
            except (*_FAULTS, ValueError):  # ValueError: a line longer than the client reads
                pass
            await asyncio.sleep(_AGAIN)

    def _take(self, event: dict[str, str]) -> None:
        if event.get("event") == "reset":
            self.resets += 1
            self.entries.clear()
        if event.get("event") != "entry":
            return
        self._last = int(event.get("id", self._last))
        entry = json.loads(event["data"])
        self.entries[entry["id"]] = entry
        self.seen_at.setdefault(entry["id"], time.monotonic())


def words(entry: dict[str, Any]) -> str:
    """What a reply's entry says, without its tags."""
    return re.sub(r"<[^>]+>", "\n", "\n".join(entry.get("blocks", ())))
