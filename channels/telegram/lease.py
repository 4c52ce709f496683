"""Who polls: one of all processes that run a bot, for as long as it renews its lease.

A process that was killed cannot give its lease back. Another one on the same machine and in the same
workspace need not wait for the end of it: the name of the holder lies in a file that the living process keeps
locked. Elsewhere that says nothing, since not every shared folder tells other machines of locks.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import socket
from pathlib import Path

from channels.base import ChannelState

log = logging.getLogger("causeway.telegram")

#: Seconds after which the lease of a process that is gone ends.
SECONDS = 30.0
#: Longest pause between two attempts to take it.
_LOOK = 2.0
_KEY = "poll"
_FILE = "poll.lock"


class Lease:
    """`take` until it is True, then `keep` beside the work, then `release`."""

    def __init__(self, state: ChannelState, folder: Path) -> None:
        self._state = state
        self._folder = folder
        self._seconds = SECONDS
        self._holder = ""
        self._file: int | None = None

    @property
    def interval(self) -> float:
        """Seconds between two attempts to renew it."""
        return self._seconds / 3

    @property
    def pause(self) -> float:
        """Seconds between two attempts to take it."""
        return min(self.interval, _LOOK)

    async def take(self) -> bool:
        """Whether nobody else has it now. Raises what the store raises."""
        if self._file is None:  # asked again: whoever has the file locked may be dead by now
            self._file, self._holder = await asyncio.to_thread(_open_holder, self._folder, self._holder)
        return await self._state.claim(_KEY, self._holder, self._seconds)

    async def keep(self) -> None:
        """Renew until it is lost: another has it, or the store could not be asked for too long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._seconds
        while loop.time() < until:
            await asyncio.sleep(self.interval)
            asked = loop.time()
            try:
                async with asyncio.timeout(self.interval):
                    held = await self._state.claim(_KEY, self._holder, self._seconds)
            except Exception as error:  # noqa: BLE001 - whatever the store suffers from, it is asked again
                log.warning("the right to poll could not be renewed (%s)", type(error).__name__)
                continue
            if not held:
                log.warning("another gateway has taken over polling")
                return
            until = asked + self._seconds
        log.warning("the right to poll ran out")

    async def release(self) -> None:
        try:
            if self._holder:
                async with asyncio.timeout(self.interval):
                    await self._state.release(_KEY, self._holder)
        except Exception as error:  # noqa: BLE001 - it ends by itself
            log.warning("the right to poll was not given back (%s)", type(error).__name__)

    def close(self) -> None:
        """Let a successor in this folder be somebody else."""
        file, self._file = self._file, None
        self._holder = ""
        if file is not None:
            os.close(file)


def _open_holder(folder: Path, known: str) -> tuple[int | None, str]:
    """The name under which to hold the lease, and the locked file that proves it is ours alone. `known` is
    the name so far: it stays while another process has the file."""
    machine = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    fresh = known or machine + secrets.token_hex(8)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if not known:
            log.warning("%s cannot be used (%s); after a crash polling begins late", folder, error.strerror)
        return None, fresh
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another process polls from this very folder, or the file system knows no locks
        os.close(file)
        return None, fresh
    with contextlib.suppress(UnicodeDecodeError):
        name = os.pread(file, 64, 0).decode("ascii").strip()
        if len(name) == len(fresh) and name.isalnum() and name.startswith(machine):
            return file, name
    os.truncate(file, 0)
    os.pwrite(file, fresh.encode(), 0)
    return file, fresh
