"""One question that waits for its answer, and the two ways in which an answer is sent."""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from channels.api.wire import (
    HEARTBEAT,
    ChunkForm,
    Fault,
    RequestError,
    completion,
    stream_fault,
)
from channels.growing import Growing

log = logging.getLogger("causeway.api")

#: Seconds of silence after which a stream sends a comment, so that proxies keep the connection.
HEARTBEAT_SECONDS = 15.0
_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class Call:
    """A message that was (or is being) handed to the bridge, and what is known of its answer."""

    __slots__ = (
        "accepted", "asked", "chat", "created", "done", "fault", "handing_over", "id", "keyed", "streams",
        "text", "waiters",
    )  # fmt: skip

    def __init__(self, chat: str, id: str, created: int, *, keyed: bool = False) -> None:
        self.chat = chat
        self.id = id
        self.created = created
        self.keyed = keyed
        self.asked = ""  # digest of the question of a keyed call
        self.text = ""
        self.fault: Fault | None = None
        self.waiters = 0
        self.accepted = asyncio.Event()
        self.handing_over = asyncio.Lock()
        self.done = asyncio.Event()
        self.streams: list[asyncio.Event] = []

    @property
    def key(self) -> tuple[str, str]:
        return self.chat, self.id

    def grow(self, text: str) -> None:
        self.text = text
        for stream in self.streams:
            stream.set()

    def finish(self) -> None:
        self.done.set()
        for stream in self.streams:
            stream.set()

    def fail(self, fault: Fault) -> None:
        if not self.done.is_set():
            self.fault = fault
            self.finish()


async def response_to(call: Call, deadline: float) -> web.Response:
    """The whole answer, or an error when `deadline` (loop time) comes first. The run goes on regardless."""
    try:
        async with asyncio.timeout_at(deadline):
            await call.done.wait()
    except TimeoutError:
        raise _too_late() from None
    if call.fault is not None:
        # The message was taken: a client that repeats it by itself would send it twice.
        raise RequestError(call.fault, {"x-should-retry": "false"})
    return web.json_response(completion(call.id, call.created, call.text))


async def stream_to(
    request: web.Request, call: Call, deadline: float, *, include_usage: bool
) -> web.StreamResponse:
    """The answer as it grows. A client that leaves or is too slow is let go; the run goes on."""
    response = web.StreamResponse(headers=_HEADERS)
    form = ChunkForm(call.id, call.created, include_usage=include_usage)
    grown = asyncio.Event()
    call.streams.append(grown)
    try:
        async with asyncio.timeout_at(deadline):
            await response.prepare(request)
            await response.write(form.first())
            await _write_text(response, call, form, grown)
    except TimeoutError:
        if not await _write_end(response, stream_fault(_too_late().fault)) and request.transport is not None:
            request.transport.abort()  # else the end of the response would wait for this client
    except ConnectionError:
        log.info("a client left before its answer was complete")
    finally:
        call.streams.remove(grown)
    return response


async def _write_text(
    response: web.StreamResponse, call: Call, form: ChunkForm, grown: asyncio.Event
) -> None:
    growing = Growing()
    while True:
        grown.clear()
        done = call.done.is_set()
        if done and call.fault is not None:
            await response.write(stream_fault(call.fault))
            return
        delta = growing.more(call.text, final=done)
        if done:
            end = form.last()
            await response.write(form.delta(delta) + end if delta else end)
            return
        if delta:
            await response.write(form.delta(delta))
            continue  # the text may have grown while this was written
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                await grown.wait()
        except TimeoutError:
            await response.write(HEARTBEAT)


async def _write_end(response: web.StreamResponse, data: bytes) -> bool:
    try:
        async with asyncio.timeout(5):
            await response.write(data)
    except (TimeoutError, ConnectionError, RuntimeError):  # RuntimeError: the headers were never sent
        log.info("a client was gone or too slow to hear that its request took too long")
        return False
    return True


def _too_late() -> RequestError:
    message = "The answer took longer than this server waits. The run goes on; ask again in the same session."
    fault = Fault(504, message, kind="server_error", code="timeout")
    # The official clients repeat a request on 5xx unless told not to: that would send the message twice.
    return RequestError(fault, {"x-should-retry": "false"})
