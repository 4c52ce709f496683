"""Between a transport and the SDK's session: results are mended on their way in, and the end is told.

Imports the SDK; load it lazily.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

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
    asked: dict[str | int, str] = field(default_factory=dict)
    ended: bool = False
    child: Child | None = None
    http: CallBoundClient | None = None


class Watched:
    """A transport whose results are mended before the SDK judges them, and whose end is told."""

    def __init__(self, inner: AbstractAsyncContextManager[tuple[Any, Any]], wire: Wire) -> None:
        self._inner = inner
        self._wire = wire

    async def __aenter__(self) -> tuple[_Reader, _Writer]:
        read, write = await self._inner.__aenter__()
        return _Reader(read, self._wire), _Writer(write, self._wire)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)


class _Writer:
    def __init__(self, inner: Any, wire: Wire) -> None:
        self._inner = inner
        self._asked = wire.asked

    async def send(self, item: SessionMessage, /) -> None:
        message = item.message
        if isinstance(message, types.JSONRPCRequest) and message.method in _MENDED:
            if len(self._asked) > 10_000:  # calls whose answer never came; their place is needed
                self._asked.pop(next(iter(self._asked)))
            self._asked[message.id] = message.method
        await self._inner.send(item)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> _Writer:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> bool | None:
        done: bool | None = await self._inner.__aexit__(*details)
        return done


class _Reader:
    def __init__(self, inner: Any, wire: Wire) -> None:
        self._inner = inner
        self._wire = wire

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

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> _Reader:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> bool | None:
        done: bool | None = await self._inner.__aexit__(*details)
        return done

    def _mend(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        if isinstance(item, Exception):
            return item
        message = item.message
        if isinstance(message, types.JSONRPCError) and message.id is not None:
            self._wire.asked.pop(message.id, None)
        if not isinstance(message, types.JSONRPCResponse):
            return item
        asked = self._wire.asked.pop(message.id, None)
        if asked == "tools/list":
            tools, faults = mend_listing(message.result.get("tools"))
            self._wire.faults.extend(faults)
            message.result = {**message.result, "tools": tools}
        elif asked == "resources/list":
            resources = mend_offers(message.result.get("resources"), ("uri", "name"))
            message.result = {**message.result, "resources": resources}
        elif asked == "prompts/list":
            prompts = mend_offers(message.result.get("prompts"), ("name",))
            message.result = {**message.result, "prompts": prompts}
        elif asked == "tools/call":
            message.result = mend_call_result(message.result)
        return item
