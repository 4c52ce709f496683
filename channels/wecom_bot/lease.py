"""The right to hold a bot's one connection, shared by all gateways of one store."""

from __future__ import annotations

import os
import secrets
import socket

from channels.base import ChannelState

_LEASE, _HOLDER = "connection", "holder"
#: Tells this process from an earlier one with the same number (in a container it is always 1).
_PROCESS = secrets.token_hex(6)


class Lease:
    """The right to hold a bot's one connection: a second one would kick the first."""

    def __init__(self, state: ChannelState, seconds: float) -> None:
        self._state = state
        self._seconds = seconds
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{_PROCESS}:{secrets.token_hex(4)}"
        self.held = False

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
        self.held = claimed
        return claimed

    async def free(self) -> None:
        await self._state.release(_LEASE, self.holder)


def _dead(holder: str) -> bool:
    """Whether a holder's process is certainly over. False for other machines: their lease must run out."""
    host, pid, process, _ = holder.rsplit(":", 3)
    if host != socket.gethostname() or process == _PROCESS or os.name != "posix":
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
