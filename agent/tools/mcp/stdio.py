"""The stdio transport: newline-delimited JSON-RPC over a child's pipes. Imports the SDK; load it lazily.

The SDK's own transport stops only a server that outlives its stdin, writes a stack trace for every stray
line and keeps stderr without a bound; a bridge that runs for months needs more, so this one is ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage, jsonrpc_message_adapter
from pydantic import TypeAdapter, ValidationError

from agent.tools.mcp.process import Child

log = logging.getLogger("causeway.mcp")

_LONGEST_LINE = 64 * 1024 * 1024
_PARSE_IN_THREAD = 256 * 1024
_FLUSH = 0.5  # seconds for what is already written to leave, once the session has ended
_batch: TypeAdapter[list[JSONRPCMessage]] = TypeAdapter(list[JSONRPCMessage])

Incoming = SessionMessage | Exception


@asynccontextmanager
async def stdio_streams(
    child: Child, *, on_noise: Callable[[], None]
) -> AsyncIterator[tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]]:
    """The two streams of a session over `child`, which is stopped, with its group, on the way out."""
    to_session, read = anyio.create_memory_object_stream[Incoming](16)
    write, from_session = anyio.create_memory_object_stream[SessionMessage](16)
    reader = asyncio.create_task(_read(child, to_session, on_noise), name=f"mcp-stdout-{child.pid}")
    writer = asyncio.create_task(_write(child, from_session, to_session), name=f"mcp-stdin-{child.pid}")
    try:
        yield read, write
    finally:
        read.close()
        write.close()
        try:
            await asyncio.wait({writer}, timeout=_FLUSH)
            await child.stop()
        except asyncio.CancelledError:
            child.kill_now()
            raise
        finally:
            for task in (reader, writer):
                task.cancel()
            outcomes = await asyncio.gather(reader, writer, return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, Exception):
                    log.error("a pipe of an MCP server failed: %s", type(outcome).__name__, exc_info=outcome)
            for stream in (to_session, read, write, from_session):
                stream.close()
            await child.release()


async def _read(child: Child, out: MemoryObjectSendStream[Incoming], on_noise: Callable[[], None]) -> None:
    """Pass on each message; at the end close the stream, so that waiting calls learn that nobody answers."""
    pending = bytearray()
    listening = True
    with out:
        while True:
            try:
                chunk = await child.stdout.read(65_536)
            except ConnectionError:
                return
            if not chunk:
                return
            if not listening:
                continue  # drained, so that a server that is writing can come to its end
            pending += chunk
            if b"\n" not in chunk:
                if len(pending) > _LONGEST_LINE:
                    most = _LONGEST_LINE >> 20
                    log.error("an MCP server sent a line of more than %d MiB; connection ended", most)
                    return
                continue
            *lines, rest = bytes(pending).split(b"\n")
            pending = bytearray(rest)
            for line in lines:
                listening = listening and await _pass_on(line, out, on_noise)


async def _pass_on(line: bytes, out: MemoryObjectSendStream[Incoming], on_noise: Callable[[], None]) -> bool:
    line = line.strip()
    if not line:
        return True
    try:
        large = len(line) > _PARSE_IN_THREAD
        messages = await asyncio.to_thread(_parse, line) if large else _parse(line)
    except ValidationError:
        on_noise()
        return True
    try:
        for message in messages:
            await out.send(SessionMessage(message))
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return False  # the session has ended
    return True


def _parse(line: bytes) -> list[JSONRPCMessage]:
    if line.startswith(b"["):  # a batch, as the revision of 2025-03-26 allowed
        return _batch.validate_json(line, by_name=False)
    return [jsonrpc_message_adapter.validate_json(line, by_name=False)]


async def _write(
    child: Child, messages: MemoryObjectReceiveStream[SessionMessage], out: MemoryObjectSendStream[Incoming]
) -> None:
    try:
        with messages:
            async for item in messages:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                child.stdin.write(text.encode() + b"\n")
                await child.stdin.drain()
    except (ConnectionError, RuntimeError):
        out.close()  # the server does not read any more: end the session instead of waiting for an answer
