"""Between a transport and the SDK's session: results are mended on their way in, and the end is told.

Imports the SDK; load it lazily.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from agent.tools.mcp.primitives import mend_offers
from agent.tools.mcp.process import Child
from agent.tools.mcp.remote import CallBoundClient
from agent.tools.mcp.schema import mend_call_result, mend_listing

_MENDED = frozenset({"tools/list", "tools/call", "resources/list", "prompts/list"})


@dataclass(slots=True)
class Wire:
    """What the transport of one session shows to its link."""

    on_end: Callable[[], None]
    faults: list[str] = field(default_factory=list)
    asked: dict[str | int | None, str] = field(default_factory=dict)
    ended: bool = False
    child: Child | None = None
    http: CallBoundClient | None = None


@asynccontextmanager
async def watched(
    transport: AbstractAsyncContextManager[tuple[Any, Any]], wire: Wire
) -> AsyncIterator[tuple[_Reader, _Writer]]:
    """A transport whose results are mended before the SDK judges them, and whose end is told."""
    async with transport as (read, write):
        yield _Reader(read, wire), _Writer(write, wire)


class _Stream:
    def __init__(self, inner: Any, wire: Wire) -> None:
        self._inner = inner
        self._wire = wire

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> bool | None:
        done: bool | None = await self._inner.__aexit__(*details)
        return done


class _Writer(_Stream):
    async def send(self, item: SessionMessage, /) -> None:
        message, asked = item.message, self._wire.asked
        if isinstance(message, types.JSONRPCRequest) and message.method in _MENDED:
            if len(asked) > 10_000:  # calls whose answer never came; their place is needed
                asked.pop(next(iter(asked)))
            asked[message.id] = message.method
        await self._inner.send(item)


class _Reader(_Stream):
    @property
    def last_context(self) -> Any:
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        return self._mend(await self._inner.receive())

    def __aiter__(self) -> _Reader:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return self._mend(await self._inner.__anext__())
        except (StopAsyncIteration, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._wire.ended = True
            self._wire.on_end()
            raise

    def _mend(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        message = item.message if isinstance(item, SessionMessage) else None
        if not isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            return item
        asked = self._wire.asked.pop(message.id, None)
        if asked is None or isinstance(message, types.JSONRPCError):
            return item
        result = message.result
        if asked == "tools/list":
            tools, faults = mend_listing(result.get("tools"))
            self._wire.faults.extend(faults)
            message.result = {**result, "tools": tools}
        elif asked == "resources/list":
            message.result = {**result, "resources": mend_offers(result.get("resources"), ("uri", "name"))}
        elif asked == "prompts/list":
            message.result = {**result, "prompts": mend_offers(result.get("prompts"), ("name",))}
        else:
            message.result = mend_call_result(result)
        return item
