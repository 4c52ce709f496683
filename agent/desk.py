"""A call's way to the chat for which it runs: questions, progress, and text from the model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agent.events import Emit, ToolProgress
from agent.history import Assistant, Entry, User
from agent.models.base import Completed, Model, ModelError, Request, Text
from agent.tools.base import Answer, Question, Sample, ToolFailure

#: Puts a question into the chat; bound to the turn's person. Never raises but CancelledError.
Ask = Callable[[Question], Awaitable[Answer]]

_THINNING = 0.5
_SAMPLE_DEADLINE = 120.0
_CHARACTERS_A_TOKEN = 4


@dataclass(slots=True)
class SampleBudget:
    """What MCP servers may ask of the model in one run. `calls` counts down; `max_tokens` is for each."""

    calls: int
    max_tokens: int


class CallDesk:
    """Implements `agent.tools.base.Desk` for one call."""

    def __init__(
        self, call: str, name: str, emit: Emit, ask: Ask | None, model: Model, budget: SampleBudget
    ) -> None:
        self._call = call
        self._name = name
        self._emit = emit
        self._ask = ask
        self._model = model
        self._budget = budget
        self._told = 0.0

    async def ask(self, question: Question) -> Answer:
        return Answer("cancel") if self._ask is None else await self._ask(question)

    def progress(self, done: float, total: float | None, message: str) -> None:
        now = time.monotonic()
        if now - self._told < _THINNING and not (total and done >= total):
            return
        self._told = now
        part = f"{done / total:.0%}" if total else f"{done:g}"
        words = " ".join(message.split())[:160]
        self._emit(ToolProgress(self._call, self._name, f"{part} {words}".strip()))

    async def sample(self, sample: Sample) -> str:
        if self._budget.calls <= 0:
            raise ToolFailure(
                f"{sample.source} asked for text from the model, which was not given:",
                "that is switched off, or this turn's budget for it is used up.",
                "An admin can change mcp: sampling in config.yaml.",
            )
        self._budget.calls -= 1
        limit = min(sample.max_tokens, self._budget.max_tokens) * _CHARACTERS_A_TOKEN
        entries: list[Entry] = [
            User("", text) if role == "user" else Assistant("", text) for role, text in sample.messages
        ]
        request = Request(sample.system, entries, (), load_image=_no_image)
        try:
            async with asyncio.timeout(_SAMPLE_DEADLINE):
                return await self._text(request, limit)
        except (ModelError, TimeoutError) as error:
            kind = error.kind if isinstance(error, ModelError) else "timeout"
            raise ToolFailure(
                f"The model gave {sample.source} no text:", f"{kind}.", "Try again later."
            ) from error

    async def _text(self, request: Request, limit: int) -> str:
        said = ""
        stream = self._model.stream(request)
        try:
            async for delta in stream:
                if isinstance(delta, Completed):
                    return delta.text[:limit]
                if isinstance(delta, Text):
                    said += delta.text
                    if len(said) >= limit:
                        return said[:limit]
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
        return said


def _no_image(_: object) -> bytes:
    raise OSError("a server's request has no pictures")
