"""A channel whose platform is this process: it keeps what a person would see, and fails on request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from channels.base import (
    Activity,
    Address,
    Attachment,
    Channel,
    ChannelConfig,
    Chunk,
    Inbound,
    Limits,
    Outbound,
    Receive,
    Rejected,
    ReplyRef,
    Sender,
)


class RoomConfig(ChannelConfig):
    pass


class Room(Channel):
    """Chats as lists of visible messages. `max_text` splits plainly; faults are raised by `before_post`."""

    type = "room"
    Config = RoomConfig

    def __init__(self, name: str, config: object, env: object, limits: Limits | None = None) -> None:
        super().__init__(name, config, env)  # type: ignore[arg-type]
        self.limits = limits or Limits(max_text=0)
        self.seen: dict[str, list[str]] = {}  # chat -> visible texts, in order
        self.order: list[tuple[str, str]] = []  # (chat, text) of each post, over all chats
        self.calls: list[tuple[str, str, int, str]] = []
        self.activities: list[Activity] = []
        self.ended: list[str] = []
        self.typed = 0
        self.before_post: Callable[[ReplyRef, int, Chunk], None] = lambda ref, n, chunk: None
        self.after_post: Callable[[ReplyRef, int, Chunk], None] = lambda ref, n, chunk: None
        self.changed = asyncio.Event()
        self.receive: Receive | None = None
        self.files: dict[str, bytes] = {}

    async def start(self, receive: Receive) -> None:
        self.receive = receive

    async def stop(self) -> None:
        self.receive = None

    def render(self, outbound: Outbound) -> list[Chunk]:
        size = self.limits.max_text or max(len(outbound.text), 1)
        chunks = [Chunk(outbound.text[i : i + size]) for i in range(0, len(outbound.text), size)]
        return chunks + [Chunk(f"[file {file.name}]", file=file) for file in outbound.files]

    async def post(self, ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        self.before_post(ref, n, chunk)
        texts = self.seen.setdefault(ref.address.chat, [])
        texts.append(chunk.text)
        self.order.append((ref.address.chat, chunk.text))
        self.calls.append(("post", ref.id, n, chunk.text))
        self.changed.set()
        self.after_post(ref, n, chunk)
        return str(len(texts) - 1)

    async def edit(self, ref: ReplyRef, n: int, message_id: str, chunk: Chunk, *, final: bool) -> None:
        self.before_post(ref, n, chunk)
        self.seen[ref.address.chat][int(message_id)] = chunk.text
        self.calls.append(("edit", ref.id, n, chunk.text))
        self.changed.set()

    async def end(self, ref: ReplyRef) -> None:
        self.ended.append(ref.id)
        self.changed.set()

    def activity(self, ref: ReplyRef, activity: Activity) -> None:
        self.activities.append(activity)

    async def typing(self, ref: ReplyRef) -> None:
        self.typed += 1

    async def fetch(self, attachment: Attachment, target: Path, max_bytes: int) -> None:
        data = self.files.get(attachment.ref)
        if data is None:
            raise Rejected("no such file")
        await asyncio.to_thread(target.write_bytes, data)

    async def until(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        """Wait until `condition` holds after some change of what is visible."""
        async with asyncio.timeout(timeout):
            while not condition():
                self.changed.clear()
                if condition():
                    return
                await self.changed.wait()


_counter = iter(range(1, 1_000_000_000))


def message(text: str, chat: str = "c1", *, id: str = "", channel: str = "room", **values: object) -> Inbound:
    """An inbound message with a fresh id."""
    return Inbound(
        id=id or f"m{next(_counter)}",
        address=Address(channel, chat),
        sender=Sender("u1", "Ann"),
        text=text,
        **values,  # type: ignore[arg-type]
    )
