"""The right to hold a bot's one connection, shared by all gateways of one store."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

from channels.base import ChannelState

_LEASE, _HOLDER = "connection", "holder"
_LOOK = 2.0
#: Tells this process from an earlier one with the same number (in a container it is always 1).
_PROCESS = secrets.token_hex(6)


def place() -> str:
    """Where process numbers mean the same: this machine and, in a container, its process namespace (several
    containers may have one host name, and each has a process 1)."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return f"{socket.gethostname()} {namespace}".replace(":", "_")


class Lease:
    """The right to hold a bot's one connection: a second one would kick the first."""

    def __init__(self, state: ChannelState, seconds: float) -> None:
        self._state = state
        self._seconds = seconds
        #: Seconds between two attempts to take it: what is sent while nobody is connected may be lost.
        self.pause = min(seconds / 3, _LOOK)
        self.holder = f"{place()}:{os.getpid()}:{_PROCESS}:{secrets.token_hex(4)}"
        self.held = False
        #: Another one has it, as far as is known; and how often we have got it.
        self.elsewhere = False
        self.times = 0

    async def hold(self) -> bool:
        """Take or renew it. That of a process of this machine that is dead is taken over at once."""
        if not await self._claim():
            other = await self._state.get(_HOLDER)
            if not (isinstance(other, str) and _dead(other)):
                return False
            await self._state.release(_LEASE, other)
            return await self._claim()
        return True

    async def _claim(self) -> bool:
        claimed = await self._state.claim(_LEASE, self.holder, self._seconds)
        if claimed and not self.held:
            await self._state.put(_HOLDER, self.holder)
            self.times += 1
        self.held, self.elsewhere = claimed, not claimed
        return claimed

    async def free(self) -> None:
        self.held = False
        await self._state.release(_LEASE, self.holder)


def _dead(holder: str) -> bool:
    """Whether a holder's process is certainly over. False for other places: their lease must run out."""
    where, pid, process, _ = holder.rsplit(":", 3)
    if where != place() or process == _PROCESS or os.name != "posix":
        return False
    if pid == str(os.getpid()):
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False
    return False
