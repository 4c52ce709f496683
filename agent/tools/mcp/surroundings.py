"""What the servers of one hub share: the environment, patience, and the SDK, imported once."""

from __future__ import annotations

import asyncio
import importlib
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from agent.tools.mcp.logins import Logins
from agent.tools.mcp.process import Grace


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things may take and how often they may fail; seconds unless said otherwise."""

    first_pause: float = 0.5  # before the first restart; doubles each time
    longest_pause: float = 60.0
    failures: int = 5  # in a row, then the server rests
    settled: float = 60.0  # a life this long ends a row of failures
    resting_remote: float = 300.0  # a resting remote server is tried again this often
    reconnect: float = 5.0  # a call waits this long for a server that is restarting
    forgotten: float = 2.0  # for calls under way in a remote session that the server forgot
    between_listings: float = 0.2
    listing: float = 30.0
    leaving: float = 10.0  # to close a session that is not a process (a process has `grace`)
    grace: Grace = field(default_factory=Grace)


class Sdk:
    """Imports the SDK at the first use, once, in a thread: it costs about 0.6 s of CPU and 55 MiB."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def link(self) -> ModuleType:
        """The module `agent.tools.mcp.link`."""
        async with self._lock:
            return await asyncio.to_thread(importlib.import_module, "agent.tools.mcp.link")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all servers of a hub share."""

    environ: Mapping[str, str]
    log_dir: Path | None
    cwd: Path
    sdk: Sdk
    clock: Callable[[], float] = time.time
    rng: Callable[[], float] = random.random
    patience: Patience = field(default_factory=Patience)
    logins: Logins | None = None
    sampling: bool = False  # whether servers may ask the model for text
    mask: Callable[[str], str] = lambda text: text  # hides secrets in what servers write to stderr


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a session tells to whoever opened it; called on the event loop."""

    on_end: Callable[[], None] = lambda: None  # the connection is gone
    on_change: Callable[[], None] = lambda: None  # the list of tools may be another one
    on_offers: Callable[[], None] = lambda: None  # that of resources or of prompts may be
    on_noise: Callable[[], None] = lambda: None  # a line on stdout that is no message
