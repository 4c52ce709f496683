"""A model inside the test's process: it answers by a function of the request and keeps what it was sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from agent.history import Assistant, Entry, ToolCall, ToolOutput, User
from agent.models.base import Completed, Delta, ModelError, Request, Text

Answer = Completed | ModelError | Sequence[Any]


def says(text: str) -> Completed:
    return Completed(text, (), "end")


def calls(*wanted: tuple[str, dict[str, Any]], text: str = "", start: int = 0) -> Completed:
    made = tuple(ToolCall(f"call-{start + i}-{name}", name, args) for i, (name, args) in enumerate(wanted))
    return Completed(text, made, "tools")


class Scripted:
    """`script`: a list of answers taken in turn, or a function of the request. An answer is a `Completed`, a
    `ModelError` to raise, or a list of either with `Text` pieces, awaitables and errors in between."""

    def __init__(
        self, script: Sequence[Answer] | Callable[[Request], Answer], name: str = "scripted"
    ) -> None:
        self.name = name
        self._script = script
        self._at = 0
        self.requests: list[Request] = []
        self.closed = 0

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        check(request.entries)
        self.requests.append(request)
        if callable(self._script):
            answer = self._script(request)
        else:
            answer = self._script[min(self._at, len(self._script) - 1)]
            self._at += 1
        parts = answer if isinstance(answer, list | tuple) else [answer]
        try:
            for part in parts:
                if isinstance(part, ModelError):
                    raise part
                if asyncio.iscoroutine(part) or isinstance(part, asyncio.Future):
                    await part
                elif callable(part):
                    await part()
                elif isinstance(part, Completed):
                    if part.text and len(parts) == 1:
                        yield Text(part.text)
                    yield part
                else:
                    yield part
        finally:
            self.closed += 1

    async def warm(self) -> None:
        return None

    async def close(self) -> None:
        return None


def check(entries: Sequence[Entry]) -> None:
    """Refuse what providers refuse: each call is answered once, directly after, before anything else."""
    open_calls: list[str] = []
    for entry in entries:
        if isinstance(entry, ToolOutput):
            assert entry.call in open_calls, f"a result without its call: {entry.call}"
            open_calls.remove(entry.call)
        elif isinstance(entry, Assistant | User):
            assert not open_calls, f"calls without results: {open_calls}"
            if isinstance(entry, Assistant):
                assert entry.text.strip() or entry.calls, "an empty assistant message"
                open_calls = [call.id for call in entry.calls]
    assert not open_calls, f"calls without results: {open_calls}"


def last_user(request: Request) -> str:
    return next(e.text for e in reversed(request.entries) if isinstance(e, User))


def results(request: Request) -> list[ToolOutput]:
    return [e for e in request.entries if isinstance(e, ToolOutput)]
