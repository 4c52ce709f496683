"""What a run is given: the turn that it answers, and its bounds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from agent.desk import Ask
from agent.history import Entry, ImageRef
from agent.tools.base import Caller


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Bounds of one run. `retry_budget`: seconds after which a step's failed calls of the model are not tried
    again (one more try there is in any case). `loop_limit`: after so many equal calls with equal results the
    run is ended. `samples`: how often MCP servers may ask for text from the model in one run (0: never), each
    for at most `sample_tokens`."""

    max_steps: int = 25
    history_entries: int = 200
    max_attempts: int = 4
    retry_budget: float = 60.0
    parallel_calls: int = 8
    loop_limit: int = 5
    samples: int = 0
    sample_tokens: int = 1000


@dataclass(frozen=True, slots=True)
class Approval:
    """A call that waits for a permitted person's yes, bound to exactly these arguments."""

    run: str
    call: str
    tool: str
    source: str
    arguments: dict[str, Any]
    caller: Caller


@dataclass(frozen=True, slots=True)
class Approved:
    """What became of it. `words` is what the person added, or why nobody could be asked."""

    yes: bool
    why: Literal["approved", "denied", "timeout", "nobody"] = "approved"
    words: str = ""


Approve = Callable[[Approval], Awaitable[Approved]]


@dataclass(frozen=True, slots=True)
class Part:
    """People's words for a run: the turn's own, or more of them while it works. `messages` are the inbox
    numbers behind it."""

    caller: Caller
    text: str
    images: tuple[ImageRef, ...] = ()
    messages: tuple[int, ...] = ()


async def _nothing_more() -> list[Part]:
    return []


@dataclass(frozen=True, slots=True)
class Turn:
    """What one run answers. `seed` is earlier talk for a session without history; `ask` puts a question to
    the person (None: nobody is there); `approve` gets a yes or no for a call; `more` is asked at each safe
    point for messages that came meanwhile and belong into this run."""

    run: str
    caller: Caller
    text: str
    images: tuple[ImageRef, ...] = ()
    seed: tuple[Entry, ...] = ()
    ask: Ask | None = None
    messages: tuple[int, ...] = ()
    approve: Approve | None = None
    more: Callable[[], Awaitable[list[Part]]] = _nothing_more
