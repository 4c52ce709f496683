"""A bridge among ailing surroundings: the real process whose limits, user or clock a test changes."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.fakes.llm import Say, ScriptedModel, Seen
from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.harness import ROOT, Process, openai_at, write_config


def echo(seen: Seen) -> Say:
    return Say(f"re {seen.last_user[:20]}")


def telegram(fake: FakeTelegram, model: ScriptedModel | str, **more: Any) -> dict[str, Any]:
    """Settings: one Telegram bot for the chats 1 to 9, and the web server."""
    url = model if isinstance(model, str) else model.openai_url
    return {
        "model": openai_at(url),
        "channels": {"telegram": {"token": TOKEN, "base_url": fake.url}, "web": {}},
        "access": {"telegram": {"admins": [str(chat) for chat in range(1, 10)]}},
        **more,
    }


@asynccontextmanager
async def running(folder: Path, settings: dict[str, Any], **environ: str) -> AsyncIterator[Process]:
    """The real program; it must live to the end and leave with 0."""
    bridge = Process(write_config(folder, settings), folder, dev=False, environ=environ)
    try:
        await bridge.start()
        yield bridge
        assert bridge.process is not None
        assert bridge.process.returncode is None, bridge.output
        assert await bridge.terminate() == 0, bridge.output
    finally:
        await bridge.close()


def limit(bridge: Process, what: int, most: int) -> None:
    """Set a limit of the running process; a negative one lifts it again."""
    hard = resource.prlimit(bridge.pid, what)[1]
    resource.prlimit(bridge.pid, what, (hard if most < 0 else most, hard))


def at_start(folder: Path, code: str) -> dict[str, str]:
    """Environment under which the program runs `code` before anything else."""
    place = folder / "at_start"
    place.mkdir(parents=True, exist_ok=True)
    (place / "sitecustomize.py").write_text(code)
    place.chmod(0o755)
    return {"PYTHONPATH": f"{place}{os.pathsep}{ROOT}"}


def bound_by_modes(folder: Path) -> dict[str, str]:
    """Root may write everywhere: under it the program gives up its capabilities, that one with them."""
    if os.geteuid() != 0:
        return {}
    code = """
import ctypes
nothing, header = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 2)(0x20080522, 0)
assert ctypes.CDLL(None).capset(header, nothing) == 0
"""
    return at_start(folder, code)


async def page(bridge: Process, path: str) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(5)) as client:
        async with client.get(f"{bridge.url}{path}") as response:
            return response.status, await response.json()


async def ready(bridge: Process, wanted: Callable[[int, dict[str, Any]], bool], timeout: float = 25) -> None:
    """Wait for what /readyz says."""
    until = time.monotonic() + timeout
    while not wanted(*(said := await page(bridge, "/readyz"))):
        assert time.monotonic() < until, said
        await asyncio.sleep(0.05)
