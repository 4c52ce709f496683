"""A process that runs agents: everything of a bridge but the channels, which gateways hold."""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import aiohttp

from agent.skills.counts import SkillCounts
from bridge.app import App, StartError
from bridge.cluster import codec
from bridge.cluster.gateway import NEEDS_REDIS, call
from bridge.cluster.remote import remote
from bridge.cluster.usher import LEASE, Usher
from bridge.cluster.wire import BEAT, Wire
from bridge.config import Config
from bridge.keys import COUNTS_KEY, COUNTS_SCOPE
from bridge.process import HOUSE
from bridge.store import is_redis
from bridge.store.base import Store, StoredReply, StoreError
from bridge.store.redis import RedisStore
from channels.base import Channel, Json

log = logging.getLogger("causeway.cluster")

_LEADS = 60.0
_HTTP_SECONDS = 55.0
_FORGET_SECONDS = 60.0
_MOST_OWED = 1000


class Worker(App):
    """`start`, then `stop`; both once. `lease`: seconds of a claim on a session; `beat`: of a heartbeat."""

    store: Store
    wire: Wire
    usher: Usher

    def __init__(self, config: Config, *, lease: float = LEASE, beat: float = BEAT, **more: Any) -> None:
        super().__init__(config, roles=True, **more)
        self.name = f"worker-{secrets.token_hex(4)}"
        self._lease = lease
        self._beat = beat
        self._shared: RedisStore
        self._client: aiohttp.ClientSession | None = None
        self._news: set[asyncio.Task[None]] = set()

    # -- what is otherwise than in one process ---------------------------------------------------------

    def open_store(self) -> Store:
        if not is_redis(self.config.store.url):
            raise StartError(NEEDS_REDIS)
        self._shared = RedisStore(self.config.store.url, clock=self.clock, worker=self.name)
        self.wire = Wire(self._shared.relay, self.name, "worker", self._describe, beat=self._beat)
        return self._shared

    def open_channels(self) -> dict[str, Channel]:
        return {
            name: remote(real, self.wire, self._shared.token, self.workspace)
            for name, real in self.make_channels().items()
        }

    def _describe(self) -> Mapping[str, Any]:
        return {"draining": hasattr(self, "usher") and self.usher.stopping}

    def served(self) -> Mapping[str, Channel]:
        return {}

    async def _start_channel(self, name: str) -> None:
        """Gateways do that."""

    async def recover(self) -> None:
        self.usher = Usher(
            self._shared, self.wire, self.sessions, self.delivery, self.router.receive, lease=self._lease
        )
        self.sessions.having = self.usher
        self._counted = self.counts.saved()
        self._client = aiohttp.ClientSession(auto_decompress=True)
        self.wire.on("press", self._pressed)
        self.wire.on("forget", self._forget)
        self.wire.on("http", self._http)
        self.wire.hear("call", lambda args: self.usher.call(args[0]))
        self.wire.hear("note", lambda args: self.notes.learn(args[0], args[1], args[2]))
        self.wire.hear("grants", lambda _: self._soon(self.pairing.load()))
        self.wire.hear("decided", lambda args: self._soon(self.approvals.heard(args[0])))
        self.wire.hear("upkeep", lambda _: self.maintenance.trigger())
        self.wire.on_new_line = lambda: self._soon(self._read_again())
        self.notes.announce = lambda kind, key, value: self._tell("note", [kind, key, value])
        self.pairing.announce = lambda: self._tell("grants", [])
        self.approvals.announce = lambda id: self._tell("decided", [id])
        await self.wire.start()
        self.usher.start()

    async def draining(self) -> None:
        if hasattr(self, "usher"):
            self.usher.pause()
            await self.wire.tell_all("draining", [self.name])

    async def drained(self) -> None:
        if hasattr(self, "usher"):
            await self.usher.stop()
            await self.wire.stop()
        if self._news:
            await asyncio.wait(set(self._news), timeout=5)
        if self._client is not None:
            await self._client.close()

    async def leads(self) -> bool:
        try:
            return await self._shared.channel_state(HOUSE).claim("upkeep", self.name, _LEADS)
        except StoreError as error:
            log.info("shared upkeep waits: %s", error)
            return False

    async def keep_counts(self) -> None:
        """Add what was counted here since the last time to what all have counted."""
        state, now = self._shared.channel_state(COUNTS_SCOPE), self.counts.saved()
        if now == self._counted or not await state.claim("counting", self.name, 10.0):
            return
        try:
            everything = SkillCounts(await state.get(COUNTS_KEY))
            everything.load(self.counts.since(self._counted))
            await state.put(COUNTS_KEY, everything.saved())
            self._counted = now
        finally:
            await state.release("counting", self.name)

    async def _read_again(self) -> None:
        """The line was made anew: news may have been missed."""
        await self.notes.load()
        await self.pairing.load()

    # -- sessions --------------------------------------------------------------------------------------

    async def send(self, reply: StoredReply) -> None:
        """It may be another worker's session: it goes the way of the messages there."""
        holder = await self._shared.arrivals.put(reply.session, {"reply": asdict(reply)}, _MOST_OWED)
        if holder is None:
            log.warning("a notice for session %s is dropped: too much waits there", reply.session)
            return
        if holder == self.name or self.usher.has(reply.session):
            self.usher.call(reply.session)
        else:
            await call(self.wire, reply.session, holder)

    async def forget_session(self, session: str) -> None:
        async with self.usher.borrow(session) as mine:
            if mine:
                await super().forget_session(session)
                return
        [holder] = await self._shared.arrivals.holders([session])
        if not holder:
            raise StoreError(f"The session {session} could not be had; try again.")
        await self.wire.call(holder, "forget", [session], seconds=_FORGET_SECONDS)

    async def _forget(self, args: list[Any]) -> Json:
        await super().forget_session(args[0])
        return True

    # -- what other processes ask for ------------------------------------------------------------------

    async def _pressed(self, args: list[Any]) -> Json:
        """A button. `anyhow`: no worker waits for it, so this one says what has become of it."""
        press, anyhow = codec.press_from_json(args[0]), args[1]
        kind, _, rest = press.choice.partition(":")
        ours = {
            "qu": lambda: self.sessions.questions.holds(press.choice),
            "ap": lambda: self.approvals.holds(rest.partition(":")[0]),
        }.get(kind)
        if not anyhow and (ours is None or not ours()):
            return None
        return await self.press(press)

    async def _http(self, args: list[Any]) -> Json:
        """A page of this process, asked for through a gateway, whose guard has let it in."""
        method, path, headers, body = args
        assert self._client is not None
        if self.key:
            headers = {**headers, "Authorization": f"Bearer {self.key}"}
        async with self._client.request(
            method,
            self.url + path,
            headers=headers,
            data=base64.b64decode(body),
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=_HTTP_SECONDS),
        ) as response:
            data = base64.b64encode(await response.read()).decode()
            return [response.status, dict(response.headers), data]

    def _tell(self, what: str, args: list[Any]) -> None:
        self._soon(self.wire.tell_all(what, args))

    def _soon(self, work: Any) -> None:
        async def guarded() -> None:
            try:
                await work
            except StoreError as error:
                log.warning("what other processes changed is not known until the store is back: %s", error)

        task = asyncio.create_task(guarded(), name="news")
        self._news.add(task)
        task.add_done_callback(self._news.discard)
