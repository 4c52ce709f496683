"""The embedded default: no key, no network, no language model, and it says so.

It lets a newcomer see the whole way of a message, tools and skills included, from a handful of rules.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator

from agent.history import ToolCall
from agent.models.base import Completed, Delta, Request, Text
from agent.models.demo_rules import answer

#: Pieces that an answer's text comes in.
PIECES = 6


class DemoModel:
    """Answers by fixed rules from the request alone; the same request gives the same answer."""

    name = "demo"

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        answered = answer(request)
        for piece in cut(answered.text, PIECES):
            yield Text(piece)
            await asyncio.sleep(0)
        calls = tuple(
            ToolCall(f"demo_{len(request.entries)}_{number}", wish.tool, wish.arguments)
            for number, wish in enumerate(answered.calls)
        )
        yield Completed(answered.text, calls, "tools" if calls else "end")

    async def warm(self) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to close."""


def cut(text: str, pieces: int) -> list[str]:
    """The text in at most about `pieces` parts, cut before words."""
    words = re.findall(r"\s*\S{1,20}", text)
    rest = text[sum(map(len, words)) :]
    size = max(1, -(-len(words) // pieces))
    parts = ["".join(words[n : n + size]) for n in range(0, len(words), size)]
    return [*parts, rest] if rest else parts
