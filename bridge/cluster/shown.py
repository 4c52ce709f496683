"""What a gateway has shown lately. A worker that dies with a call in flight leaves its heir not knowing
whether it arrived; the gateway that did it knows.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from channels.base import Channel, Choice, Chunk, Rejected, ReplyRef

#: Messages that are remembered; the oldest go.
MOST = 20_000

_Key = tuple[str, str, int]


@dataclass(slots=True)
class _Message:
    id: str
    chunk: Chunk | None
    final: bool


class Shown:
    """Posts each chunk of a reply, and each question, once. One that comes again, from whichever worker, is
    the message that is there: with another text it is edited."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._messages: OrderedDict[_Key, _Message] = OrderedDict()
        self._at_work: dict[_Key, asyncio.Event] = {}

    async def post(self, channel: Channel, ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        """Raises SendError as `Channel.post` does."""
        key = (channel.name, ref.id, n)
        await self._turn(key)
        try:
            there = self._messages.get(key)
            if there is not None:
                if there.chunk == chunk and there.final == final:
                    return there.id
                try:
                    await channel.edit(ref, n, there.id, chunk, final=final)
                except Rejected:
                    del self._messages[key]  # it can be changed no more: as if it had not been known
                else:
                    there.chunk, there.final = chunk, final
                    return there.id
            id = await channel.post(ref, n, chunk, final=final)
            self._keep(key, _Message(id, chunk, final))
            return id
        finally:
            self._at_work.pop(key).set()

    async def edit(
        self, channel: Channel, ref: ReplyRef, n: int, message: str, chunk: Chunk, *, final: bool
    ) -> None:
        """Raises SendError as `Channel.edit` does."""
        key = (channel.name, ref.id, n)
        try:
            await channel.edit(ref, n, message, chunk, final=final)
        except Rejected:
            self._messages.pop(key, None)  # the worker posts it anew
            raise
        self._keep(key, _Message(message, chunk, final))

    async def ask(self, channel: Channel, ref: ReplyRef, question: str, choices: Sequence[Choice]) -> str:
        """Raises SendError as `Channel.ask` does."""
        key = (channel.name, ref.id, -1)
        await self._turn(key)
        try:
            if (there := self._messages.get(key)) is not None:
                return there.id
            id = await channel.ask(ref, question, choices)
            self._keep(key, _Message(id, None, True))
            return id
        finally:
            self._at_work.pop(key).set()

    async def _turn(self, key: _Key) -> None:
        """Wait until nobody else shows this one."""
        while (other := self._at_work.get(key)) is not None:
            await other.wait()
        self._at_work[key] = asyncio.Event()

    def _keep(self, key: _Key, message: _Message) -> None:
        if not message.id:
            return  # it left no message
        self._messages[key] = message
        self._messages.move_to_end(key)
        if len(self._messages) > self._most:
            self._messages.popitem(last=False)
