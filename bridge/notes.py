"""Small settings that people change in the chat: kept in memory for quick looks, and in the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, cast

from bridge.store.base import Store
from channels.base import Address, Json

BusyMode = Literal["queue", "steer", "collect", "interrupt"]
BUSY_MODES: tuple[BusyMode, ...] = ("queue", "steer", "collect", "interrupt")
ACTIVATIONS = ("mention", "always", "never")
#: Most settings of one kind in memory; further ones are refused.
MOST = 100_000
#: Most minutes for which a server is mounted.
LONGEST_MOUNT = 24 * 60

Kind = Literal["busy", "activation", "mount", "moved"]
_KINDS: tuple[Kind, ...] = ("busy", "activation", "mount", "moved")


class TooMany(Exception):
    """So many chats have a setting of this kind already."""


class Notes:
    """Settings by kind and key. Reads never wait; a write is on disk when it returns."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Told of each change: kind, key, value. Other processes keep the same notes in their memory.
        self.announce: Callable[[Kind, str, Json], None] = lambda kind, key, value: None
        self._kept: dict[Kind, dict[str, Json]] = {kind: {} for kind in _KINDS}
        #: (channel, new chat id) -> the id that the chat had at first.
        self.homes: dict[tuple[str, str], str] = {}

    async def load(self) -> None:
        for kind in _KINDS:
            kept = await self._store.settings(kind)
            self._kept[kind] = {}
            for key, value in kept.items():
                self.learn(kind, key, value)

    def get(self, kind: Kind, key: str) -> Json:
        return self._kept[kind].get(key)

    async def put(self, kind: Kind, key: str, value: Json) -> None:
        """Write a setting; None removes it. Raises TooMany."""
        if value is not None and key not in self._kept[kind] and len(self._kept[kind]) >= MOST:
            raise TooMany(kind)
        await self._store.put_setting(kind, key, value)
        self.learn(kind, key, value)
        self.announce(kind, key, value)

    def learn(self, kind: Kind, key: str, value: Json) -> None:
        """Take over what is in the store: another process has written it."""
        if value is None:
            self._kept[kind].pop(key, None)
        else:
            self._kept[kind][key] = value
        if kind == "moved" and value is not None:
            channel, _, chat = key.partition("\0")
            self.homes[channel, chat] = str(value)

    # -- what they mean --------------------------------------------------------------------------------

    def busy(self, session: str, default: BusyMode) -> BusyMode:
        kept = self.get("busy", session)
        return kept if kept in BUSY_MODES else default

    def mounts(self, session: str) -> Mapping[str, float]:
        """Servers that `/mount` put into a session: name -> until when, Unix seconds."""
        kept = self.get("mount", session)
        return cast("dict[str, float]", kept) if isinstance(kept, dict) else {}

    def mounted(self, session: str, now: float) -> frozenset[str]:
        """The servers that are mounted in a session now."""
        mounts = self.mounts(session).items()
        # Beyond the longest, the clock was set back since: that lengthens nothing.
        return frozenset(name for name, until in mounts if now < until <= now + LONGEST_MOUNT * 60)

    async def moved(self, channel: str, old: str, new: str) -> None:
        """A chat has a new id; its sessions and settings stay under the one it had at first."""
        home = self.homes.get((channel, old), old)
        if new == home or self.homes.get((channel, new)) == home:
            return
        await self.put("moved", f"{channel}\0{new}", home)

    def home(self, address: Address) -> str:
        """The id under which a chat's sessions and settings are kept."""
        return self.homes.get((address.channel, address.chat), address.chat)


def place(address: Address, chat: str) -> str:
    """The key of a setting that belongs to a chat, or to a thread of it."""
    return "\0".join((address.channel, chat, address.thread or ""))
