"""What each process of the bridge has, whatever its role: workspace, store, channels, HTTP."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from aiohttp import web

from agent.tools.masking import Masker
from bridge import texts
from bridge.commands import NAMES
from bridge.config import Config, secret_variables
from bridge.environment import Environment
from bridge.http import Guard, Server, load_key
from bridge.notes import Notes
from bridge.store import is_redis
from bridge.store.base import Store, StoreError
from bridge.texts import text
from channels.base import Channel, ChannelError, Env, Inbound, MenuEntry, Press, SendError
from channels.registry import load

log = logging.getLogger("causeway.app")

#: The claim on a store that several processes can reach, and for how many seconds it is good.
HOUSE, _HELD = "~house", 90.0
#: Another process may just be looking at the workspace's lock: so often, so many seconds apart it is tried.
_TRIES, _PAUSE = 5, 0.1


class StartError(Exception):
    """The bridge cannot start. The message says why and what to do."""


class Process:
    """`roles`: several processes work together in this workspace and on this store."""

    #: What the process is called among others.
    name = "bridge"
    store: Store
    notes: Notes

    def __init__(
        self,
        config: Config,
        *,
        clock: Callable[[], float] = time.time,
        masker: Masker | None = None,
        serve: bool = True,
        roles: bool = False,
    ) -> None:
        self.config = config
        self.clock = clock
        self.masker = masker or Masker(config.secrets())
        self.environ = Environment(config.workspace / ".env", config.real_environ, self.learn)
        self.serve = serve
        self.workspace = config.workspace
        self.channels: dict[str, Channel] = {}
        self.failed: dict[str, str] = {}
        self.server: Server | None = None
        self.key: str | None = None
        self.started = clock()
        self.roles = roles
        self._lock: int | None = None
        self._menus: set[asyncio.Task[None]] = set()
        self._holds = False

    def learn(self, variables: Mapping[str, str]) -> None:
        for value in secret_variables(variables):
            self.masker.add(value)

    # -- the workspace and the store -------------------------------------------------------------------

    def _prepare_workspace(self) -> None:
        """Blocking. Raises StartError."""
        try:
            self.workspace.mkdir(parents=True, exist_ok=True)
            (self.workspace / "skills").mkdir(exist_ok=True)
            if not self.serve:
                return
            self._lock = os.open(self.workspace / "causeway.lock", os.O_RDWR | os.O_CREAT, 0o600)
            kind = fcntl.LOCK_SH if self.roles else fcntl.LOCK_EX
            for tried in range(_TRIES):
                try:
                    fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if tried == _TRIES - 1:
                        raise
                    time.sleep(_PAUSE)
        except BlockingIOError as error:
            raise StartError(
                f"Another bridge already works in {self.workspace}. Stop it, or give this one its own "
                "workspace in config.yaml."
            ) from error
        except OSError as error:
            raise StartError(
                f"The workspace {self.workspace} cannot be used: {error.strerror}. Make it writable, or "
                "choose another with workspace in config.yaml."
            ) from error

    async def hold(self) -> None:
        """Keep other bridges off a store that they could reach too (a file has the workspace's lock). One
        that comes back in the same workspace goes on at once. Raises StartError when another one holds it."""
        if not (self.serve and is_redis(self.config.store.url)):
            return
        if not await self.store.channel_state(HOUSE).claim("bridge", self._holder, _HELD):
            raise StartError(
                "Another bridge works with this store. Stop it, or give this one its own with ?prefix= in "
                f"store: url. After a machine is lost its claim ends within {_HELD:.0f} s. (Gateways and "
                "workers cannot work beside a bridge that runs with --role all.)"
            )
        self._holds = True

    @property
    def _holder(self) -> str:
        """Gateways and workers hold the store together."""
        if self.roles:
            return "roles"
        place = f"{socket.gethostname()}\0{self.workspace.resolve()}"
        return hashlib.sha256(place.encode()).hexdigest()

    async def _let_go(self) -> None:
        """Give the claim back; what cannot be given back ends by itself."""
        if not self._holds or self.roles:
            return
        try:
            await self.store.channel_state(HOUSE).release("bridge", self._holder)
        except StoreError as error:
            log.warning("the claim on the store ends by itself: %s", error)

    def _unlock(self) -> None:
        if self._lock is not None:
            with suppress(OSError):
                os.close(self._lock)
            self._lock = None

    # -- channels --------------------------------------------------------------------------------------

    def make_channels(self) -> dict[str, Channel]:
        """The configured channels, not started."""
        made: dict[str, Channel] = {}
        for name, settings in self.config.channels.items():
            cls = load(settings.type or name)
            texts.add(cls.texts)

            async def moved(old: str, new: str, channel: str = name) -> None:
                await self.notes.moved(channel, old, new)

            env = Env(
                self.store.channel_state(name),
                text,
                self.workspace / "channels" / name,
                self.clock,
                press=self.press,
                moved=moved,
                public_url=self.config.server.public_url.rstrip("/"),
                shared=self.roles,
            )
            made[name] = cls(name, settings, env)
        return made

    async def receive(self, inbound: Inbound) -> None:
        """Where channels deliver."""
        raise NotImplementedError

    async def press(self, press: Press) -> str:
        """Where channels deliver pressed buttons; the words are for the person who pressed."""
        raise NotImplementedError

    async def _start_channel(self, name: str) -> None:
        channel = self.channels[name]
        try:
            await channel.start(self.receive)
        except ChannelError as error:
            log.error("channel %s is off: %s", name, error)
            self.failed[name] = str(error)
            del self.channels[name]
            return
        if channel.has("menu"):
            task = asyncio.create_task(self._menu(name, channel), name=f"menu of {name}")
            self._menus.add(task)
            task.add_done_callback(self._menus.discard)

    async def _menu(self, name: str, channel: Channel) -> None:
        """Tell a platform the commands; it is upkeep, so a failure costs nothing but the menu."""
        entries = [
            MenuEntry(one, {"en": text(f"command.{one}", "en"), "zh": text(f"command.{one}", "zh")})
            for one in NAMES
        ]
        try:
            async with asyncio.timeout(60):
                await channel.menu(entries)
        except (SendError, TimeoutError) as error:
            log.warning("channel %s: the command menu was not set: %s", name, error)

    async def _each(self, what: str) -> None:
        for name, channel in self.channels.items():
            try:
                async with asyncio.timeout(10):
                    await getattr(channel, what)()
            except Exception:
                # One channel's fault must not keep the others from being stopped.
                log.exception("channel %s: %s failed", name, what)

    # -- HTTP ------------------------------------------------------------------------------------------

    async def _serve(
        self,
        channels: Mapping[str, Channel],
        guarded: Sequence[web.RouteDef],
        public: Sequence[web.RouteDef],
    ) -> None:
        """Listen. Raises ListenError."""
        server = self.config.server
        configured = server.key.get_secret_value() if server.key else None
        self.key, _ = await asyncio.to_thread(load_key, self.workspace, server.host, configured)
        if self.key:
            self.masker.add(self.key)
        guard = Guard(server.host, self.key, server.allowed_hosts)
        self.server = Server(
            server.host,
            server.port,
            guard,
            channels,
            guarded=guarded,
            public=public,
            fault=self.store.fault,
            # A gateway with one faulty channel goes on serving the webhooks of the others.
            enough=any if self.roles else all,
        )
        await self.server.start()

    @property
    def url(self) -> str:
        assert self.server is not None
        host = self.server.host
        if host in ("0.0.0.0", "::", ""):  # noqa: S104 (compared, not bound)
            host = "127.0.0.1"
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server.port}"
