"""What a run is given: the turn that it answers, and its bounds."""

from __future__ import annotations

from dataclasses import dataclass

from agent.desk import Ask
from agent.history import Entry, ImageRef
from agent.tools.base import Caller


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Bounds of one run. `retry_budget`: seconds of waiting for the model in one step. `loop_limit`: after so
    many equal calls with equal results the run is ended. `samples`: how often MCP servers may ask for text
    from the model in one run (0: never), each for at most `sample_tokens`."""

    max_steps: int = 25
    history_entries: int = 200
    max_attempts: int = 4
    retry_budget: float = 60.0
    parallel_calls: int = 8
    loop_limit: int = 5
    samples: int = 0
    sample_tokens: int = 1000


@dataclass(frozen=True, slots=True)
class Turn:
    """What one run answers. `seed` is earlier talk for a session without history; `ask` puts a question to
    the person (None: nobody is there)."""

    run: str
    caller: Caller
    text: str
    images: tuple[ImageRef, ...] = ()
    seed: tuple[Entry, ...] = ()
    ask: Ask | None = None
