"""The stream of events that an open page listens to (server-sent events).

`entry` carries the place in the log as its event id: a page that reconnects says the last one it got and
receives what it missed. `live` is a text that still grows, sent from the first block that changed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from channels.base import ChannelState, LogEntry
from channels.web.conversation import Busy, Conversation, Draft, Entry, Page
from channels.web.html import blocks

log = logging.getLogger("causeway.web")

#: Newest entries that a page is shown; a page that missed more starts anew with these.
HISTORY = 500
HEARTBEAT_SECONDS = 15.0
#: Seconds that a page may take for one event before it is cut off.
WRITE_TIMEOUT = 20.0
#: Characters up to which Markdown is rendered on the event loop (about 5 ms).
_SHORT = 10_000
#: A page rests this many times as long as its last rendering took: long replies must not eat the processor.
_REST = 8
_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
}


async def stream(
    request: web.Request,
    conversation: Conversation,
    state: ChannelState,
    after: int,
    monotonic: Callable[[], float],
) -> web.StreamResponse:
    """Write events until the page leaves, is too slow, or is closed by the channel."""
    response = web.StreamResponse(headers=_HEADERS)
    page = conversation.open_page()  # before the log is read, so that nothing falls between
    writer = _Writer(response)
    try:
        async with asyncio.timeout(WRITE_TIMEOUT):
            await response.prepare(request)
        await _catch_up(writer, conversation, state, after)
        conversation.show_unfinished(page, monotonic())
        await writer.event("ready", "{}")
        await _follow(writer, page)
    except TimeoutError:
        log.info("a page was too slow and is cut off; it reconnects by itself")
        if request.transport is not None:
            request.transport.abort()
    except ConnectionError:
        log.debug("a page left")
    finally:
        conversation.pages.discard(page)
    return response


async def _catch_up(writer: _Writer, conversation: Conversation, state: ChannelState, after: int) -> None:
    name = f"chat:{conversation.chat}"
    entries = await state.read(name, after, HISTORY)
    if after and not entries:
        newest = await state.read(name, 0, 1)
        if not newest or newest[-1].seq < after:  # the page knows more than the log: it was replaced
            entries = await state.read(name, 0, HISTORY)
            await writer.event("reset", "{}")
    elif after and len(entries) >= HISTORY:  # there may be a gap before them
        await writer.event("reset", "{}")
    for start in range(0, len(entries), 50):
        for seq, data in await asyncio.to_thread(_encode, entries[start : start + 50]):
            await writer.event("entry", data, seq)


def _encode(entries: list[LogEntry]) -> list[tuple[int, str]]:
    return [(entry.seq, _entry_data(entry.id, entry.value)) for entry in entries]


def _entry_data(id: str, value: dict[str, Any]) -> str:
    if value.get("role") == "bot" and "file" not in value:
        value = {**value, "blocks": safe_blocks(value["text"])}
        del value["text"]
        if "outcome" in value:
            value["outcome"] = safe_blocks(value["outcome"])
    return json.dumps({"id": id, **value}, ensure_ascii=False)


def safe_blocks(text: str) -> list[str]:
    try:
        return blocks(text)
    except Exception:
        # A fault in rendering must not hide the answer: the page shows its words as they are.
        log.exception("a reply could not be rendered and is shown as plain text")
        plain = text.replace("&", "&amp;").replace("<", "&lt;")
        return [f"<pre>{plain}</pre>"]


async def _follow(writer: _Writer, page: Page) -> None:
    while not page.closed:
        if not page.waiting:
            page.news.clear()
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await page.news.wait()
            except TimeoutError:
                await writer.event("ping", "{}")
            continue
        key, item = page.waiting.popitem(last=False)
        if isinstance(item, Draft):
            await writer.draft(item, page)
        elif isinstance(item, Entry):
            writer.shown.pop(key, None)
            long = len(item.value.get("text", "")) > _SHORT
            data = (
                await asyncio.to_thread(_entry_data, item.id, item.value)
                if long
                else _entry_data(item.id, item.value)
            )
            await writer.event("entry", data, item.seq)
        elif isinstance(item, Busy):
            await writer.event("busy", json.dumps({"on": item.on}))


class _Writer:
    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response
        #: The blocks of growing texts that the page has.
        self.shown: dict[str, list[str]] = {}

    async def event(self, name: str, data: str, seq: int = 0) -> None:
        """`data` is JSON, which has no line breaks. Raises TimeoutError for a page that does not read."""
        head = f"id: {seq}\nevent: {name}\n" if seq else f"event: {name}\n"
        async with asyncio.timeout(WRITE_TIMEOUT):
            await self._response.write(f"{head}data: {data}\n\n".encode("utf-8", "replace"))

    async def draft(self, item: Draft, page: Page) -> None:
        begun = time.monotonic()
        text = item.text
        now = safe_blocks(text) if len(text) <= _SHORT else await asyncio.to_thread(safe_blocks, text)
        took = time.monotonic() - begun
        before = self.shown.get(item.id, [])
        same = 0
        while same < min(len(before), len(now)) and before[same] == now[same]:
            same += 1
        if item.id not in self.shown or same < max(len(before), len(now)):
            self.shown[item.id] = now
            data = {"id": item.id, **item.place, "from": same, "blocks": now[same:]}
            await self.event("live", json.dumps(data, ensure_ascii=False))
        if took > 0.005 and not page.closed:
            await asyncio.sleep(min(took * _REST, 2.0))
