"""The part of the fake Bot API that posts updates to a webhook, as telegram-bot-api's WebhookActor does.

Updates of one chat go one after the other, chats side by side; what is not answered with 2xx is repeated with
growing pauses. `noise` makes it as bad as it gets: deliveries that come twice, chats in any order.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

Json = dict[str, Any]
SECRET = "X-Telegram-Bot-Api-Secret-Token"


@dataclass
class Hook:
    """What setWebhook was told, and what became of it."""

    url: str
    secret: str = ""
    max_connections: int = 40
    allowed: list[str] = field(default_factory=list)
    error: str = ""
    error_date: int = 0
    statuses: list[int] = field(default_factory=list)  # of all deliveries, 0 when the connection failed


def chat_of(update: Json) -> Hashable:
    """WebhookActor's queue: a chat, or the update alone."""
    for kind, part in update.items():
        if isinstance(part, dict) and isinstance(part.get("chat"), dict) and kind != "callback_query":
            return int(part["chat"]["id"])
    return "alone", update["update_id"]


class Deliveries:
    """Delivers from `pending` (the fake's own list, which it empties) until stopped."""

    def __init__(
        self, hook: Hook, pending: list[Json], changed: Callable[[], None], noise: random.Random | None
    ) -> None:
        self.hook = hook
        self.pending = pending
        self.changed = changed
        self.first_pause, self.longest_pause = 0.02, 0.3
        self.noise = noise
        self._wake = asyncio.Event()
        self._busy: dict[Hashable, asyncio.Task[None]] = {}
        self._task = asyncio.create_task(self._run(), name="webhook deliveries")

    def wake(self) -> None:
        self._wake.set()

    async def stop(self) -> None:
        tasks = [self._task, *self._busy.values()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _run(self) -> None:
        async with aiohttp.ClientSession() as client:
            while True:
                self._wake.clear()
                waiting: dict[Hashable, Json] = {}
                for update in self.pending:
                    if not self.hook.allowed or update.keys() & set(self.hook.allowed):
                        waiting.setdefault(chat_of(update), update)
                chats = [chat for chat in waiting if chat not in self._busy]
                if self.noise:
                    self.noise.shuffle(chats)
                for chat in chats[: self.hook.max_connections - len(self._busy)]:
                    self._busy[chat] = asyncio.create_task(self._deliver(client, chat, waiting[chat]))
                await self._wake.wait()

    async def _deliver(self, client: aiohttp.ClientSession, chat: Hashable, update: Json) -> None:
        pause = self.first_pause
        try:
            while True:
                times = 2 if self.noise and self.noise.random() < 0.3 else 1
                answers = await asyncio.gather(*(self.post(client, update) for _ in range(times)))
                if all(200 <= status < 300 for status in answers):
                    break
                await asyncio.sleep(pause)
                pause = min(pause * 2, self.longest_pause)
            if update in self.pending:
                self.pending.remove(update)
        finally:
            del self._busy[chat]
            self._wake.set()
            self.changed()

    async def post(self, client: aiohttp.ClientSession, update: Json) -> int:
        headers = {SECRET: self.hook.secret} if self.hook.secret else {}
        try:
            async with client.post(self.hook.url, json=update, headers=headers) as response:
                status, reason = response.status, response.reason
        except (aiohttp.ClientError, OSError):
            status, reason = 0, ""
        if not 200 <= status < 300:
            answer = f"Wrong response from the webhook: {status} {reason}"
            self.hook.error = answer if status else "Connection refused"
            self.hook.error_date = int(time.time())
        self.hook.statuses.append(status)
        self.changed()
        return status
