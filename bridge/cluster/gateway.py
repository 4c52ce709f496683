"""A process that holds channels. What comes in is written down for the workers before it is acknowledged;
what workers want shown is shown here.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from aiohttp import web

from agent.tools.mcp.logins import CALLBACK_PATH
from bridge.cluster import codec
from bridge.cluster.shown import Shown
from bridge.cluster.wire import Refused, Unreached, Wire, ranked
from bridge.config import Config
from bridge.keys import key_of
from bridge.mcp_login import DOCUMENT_PATH
from bridge.notes import Notes
from bridge.process import Process, StartError
from bridge.store import is_redis
from bridge.store.base import StoreError
from bridge.store.redis import RedisStore
from bridge.texts import text
from channels.base import Activity, Address, Channel, Choice, Inbound, Json, Press, SendError, TooLarge

log = logging.getLogger("causeway.cluster")

NEEDS_REDIS = (
    "Gateways and workers share a store on a server: set store: url to redis://… (causeway[redis]). "
    "With SQLite the bridge is one process: causeway run."
)
#: Messages of one session that no worker has looked at: further ones are not acknowledged, so the platform
#: keeps them.
MOST_ARRIVED = 1000
_PRESS_SECONDS = 5.0
_HTTP_SECONDS = 60.0
_LARGEST_BODY = 1024 * 1024
_HOLD_EVERY = 20.0
_MOST_OPEN = 10_000
#: Headers that cross between a browser and a worker's pages.
_ASKED = ("Accept", "Accept-Language", "Content-Type", "If-None-Match")
_ANSWERED = ("Content-Type", "Cache-Control", "ETag", "Location", "X-Content-Type-Options")
_GUARDS = ("Content-Security-Policy", "Referrer-Policy", "X-Frame-Options")


class Gateway(Process):
    """`start`, then `stop`; both once."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Callable[[], float] = time.time,
        masker: Any = None,
        beat: float | None = None,
    ) -> None:
        super().__init__(config, clock=clock, masker=masker, roles=True)
        self.name = f"gateway-{secrets.token_hex(4)}"
        self._beat = beat
        self._scopes = config.sessions.scope.by_kind
        #: Requests held open for their answer: (channel, chat, message).
        self._open: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self._closed = asyncio.Event()
        self._shown = Shown()
        self._tasks: set[asyncio.Task[None]] = set()
        self.wire: Wire | None = None

    # -- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises StartError, StoreError or ListenError; what was begun is taken down."""
        try:
            await self._start()
        except BaseException:
            await self.stop(grace=0)
            raise

    async def _start(self) -> None:
        if not is_redis(self.config.store.url):
            raise StartError(NEEDS_REDIS)
        await asyncio.to_thread(self._prepare_workspace)
        store = RedisStore(self.config.store.url, clock=self.clock)
        self.store = self._arrivals_of = store
        await store.open()
        await self.hold()
        self.notes = Notes(store)
        await self.notes.load()
        self.channels = self.make_channels()
        self.wire = Wire(store.relay, self.name, "gateway", self.describe, **_beat(self._beat))
        self.wire.on("channel", self._do)
        self.wire.hear("activity", self._activity)
        self.wire.hear("note", lambda args: self.notes.learn(args[0], args[1], args[2]))
        self.wire.on_new_line = lambda: self._in_background(self.notes.load())
        self.notes.announce = lambda kind, key, value: self._announce("note", [kind, key, value])
        await self._serve(self.channels, self._pages(), self._public_pages())
        await self.wire.start()
        for name in list(self.channels):
            await self._start_channel(name)
        self._in_background(self._keep_hold())
        assert self.server is not None
        self.server.ready(True)

    async def stop(self, grace: float | None = None) -> None:
        """Stop receiving; answers to requests that are held open are waited for, at most `grace` seconds."""
        grace = self.config.sessions.grace_seconds if grace is None else grace
        if self.server is not None:
            self.server.ready(False)
        for task in self._menus:
            task.cancel()
        await self._each("pause")
        await self._answered(grace)
        if self.wire is not None:
            await self.wire.stop()
        await self._each("stop")
        if self.server is not None:
            await self.server.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        if hasattr(self, "store"):
            await self.store.close()
        self._unlock()

    async def _answered(self, grace: float) -> None:
        try:
            async with asyncio.timeout(grace):
                while self._open:
                    self._closed.clear()
                    await self._closed.wait()
        except TimeoutError:
            log.warning("%d requests had no answer yet when this gateway stopped", len(self._open))

    def describe(self) -> Mapping[str, Any]:
        """What the others are told of this gateway."""
        channels = {}
        for name, channel in self.channels.items():
            health = channel.health()
            channels[name] = {
                "ok": health.ok,
                "reason": health.reason,
                "cure": health.cure,
                "holds": channel.holds,
                "buttons": channel.buttons,
            }
        return {"channels": channels}

    async def _keep_hold(self) -> None:
        while True:
            await asyncio.sleep(_HOLD_EVERY)
            try:
                await self.hold()
            except (StoreError, StartError) as error:
                log.error("the claim on the store was not renewed: %s", error)

    def _in_background(self, work: Any) -> None:
        async def guarded() -> None:
            try:
                await work
            except StoreError as error:
                log.warning("settings of chats may be old until the store is back: %s", error)

        task = asyncio.create_task(guarded(), name="gateway upkeep")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _announce(self, what: str, args: list[Any]) -> None:
        assert self.wire is not None
        self._in_background(self.wire.tell_all(what, args))

    # -- in --------------------------------------------------------------------------------------------

    async def receive(self, inbound: Inbound) -> None:
        """Write a message down for a worker. Raises StoreError: do not acknowledge it then."""
        session = key_of(inbound, self.notes.home(inbound.address), self._scopes)
        channel = self.channels.get(inbound.address.channel)
        held = (inbound.address.channel, inbound.address.chat, inbound.id)
        if channel is not None and not channel.asks:
            self._open[held] = None  # before it is written: its answer may be quicker than we are
            if len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
        try:
            item = {"inbound": replace(inbound, via=self.name).to_json()}
            worker = await self._arrivals_of.arrivals.put(session, item, MOST_ARRIVED)
            if worker is None:
                raise StoreError(
                    f"{MOST_ARRIVED} messages of session {session} wait for a worker. Start one: "
                    "causeway run --role worker"
                )
        except BaseException:
            self._open.pop(held, None)
            raise
        await call(self._wire, session, worker)

    @property
    def _wire(self) -> Wire:
        assert self.wire is not None
        return self.wire

    async def press(self, press: Press) -> str:
        """The worker that asked takes it; when none has asked, any one says what has become of it."""
        data = asdict(press)
        said = await self._wire.ask_all("worker", "press", [data, False], seconds=_PRESS_SECONDS)
        workers = [one.name for one in self._wire.members("worker")]
        if said is None and workers:
            first = ranked(workers, press.choice)[0]
            try:
                said = await self._wire.call(first, "press", [data, True], seconds=_PRESS_SECONDS)
            except (Unreached, Refused) as error:
                log.warning("a pressed button was not taken: %s", error)
        return str(said) if said is not None else text("press.later", press.sender.language)

    # -- out -------------------------------------------------------------------------------------------

    async def _do(self, args: list[Any]) -> Json:
        """A platform call for a worker: the channel, the call, the session and its token (or None), what
        belongs to it."""
        name, what, fence, *rest = args
        channel = self.channels.get(name)
        if channel is None:
            raise Refused("NotSent", f"this gateway has no channel {name}")
        if fence is not None and not await self._arrivals_of.claimed_with(*fence):
            raise Refused("SessionLost", f"lost the session {fence[0]}: another worker has it")
        try:
            return await self._call(channel, what, rest)
        except (SendError, TooLarge) as error:
            raise Refused(*codec.error_to_json(error)) from None

    async def _call(self, channel: Channel, what: str, rest: Sequence[Any]) -> Json:
        workspace = self.workspace
        if what == "earlier":
            inbound, limit = rest
            found = await channel.earlier(Inbound.from_json(inbound), limit)
            return [asdict(one) for one in found]
        if what == "forget":
            await channel.forget(Address(**rest[0]))
            return None
        if what == "fetch":
            attachment, target, most = rest
            await channel.fetch(codec.attachment_from_json(attachment), workspace / target, most)
            return None
        ref = codec.ref_from_json(rest[0])
        match what:
            case "post":
                _, n, chunk, final = rest
                chunk = codec.chunk_from_json(chunk, workspace)
                return await self._shown.post(channel, ref, n, chunk, final=final)
            case "edit":
                _, n, message, chunk, final = rest
                chunk = codec.chunk_from_json(chunk, workspace)
                await self._shown.edit(channel, ref, n, message, chunk, final=final)
            case "end":
                await channel.end(ref)
                self._open.pop((channel.name, ref.address.chat, ref.to), None)
                self._closed.set()
            case "typing":
                await channel.typing(ref)
            case "acknowledge":
                await channel.acknowledge(ref)
            case "ask":
                _, question, choices = rest
                shown = [Choice(**one) for one in choices]
                return await self._shown.ask(channel, ref, question, shown)
            case "settle":
                await channel.settle(ref, rest[1], rest[2])
            case _:
                raise Refused("Rejected", f"no such call: {what}")
        return None

    def _activity(self, args: list[Any]) -> None:
        name, ref, activity = args
        if (channel := self.channels.get(name)) is not None:
            channel.activity(codec.ref_from_json(ref), Activity(**activity))

    # -- pages that a worker has -----------------------------------------------------------------------

    def _pages(self) -> list[web.RouteDef]:
        paths = ("/console", "/console/{tail:.*}", "/people", "/pair/{tail:.*}", "/sessions/{tail:.*}")
        return [web.route("*", path, self._page) for path in (*paths, "/mcp/{tail:.*}")]

    def _public_pages(self) -> list[web.RouteDef]:
        return [web.get(CALLBACK_PATH, self._callback), web.get(DOCUMENT_PATH, self._page)]

    async def _page(self, request: web.Request) -> web.Response:
        workers = [one.name for one in self._wire.members("worker")]
        if not workers:
            language = request.headers.get("Accept-Language", "en").split(",")[0]
            return web.Response(status=503, text=text("gateway.no_worker", language) + "\n")
        answer = await self._from(ranked(workers, "console")[0], request)
        if request.method == "POST" and answer.status < 400:
            await self._wire.tell_all("upkeep", [])  # what was changed in one worker, the others look for
        return answer

    async def _callback(self, request: web.Request) -> web.Response:
        """A browser that comes back from a login: the worker that began it knows its state."""
        answer = web.Response(status=503, text=text("gateway.no_worker", "en") + "\n")
        for worker in self._wire.members("worker"):
            answer = await self._from(worker.name, request)
            if answer.status == 200:
                await self._wire.tell_all("upkeep", [])
                break
        return answer

    async def _from(self, worker: str, request: web.Request) -> web.Response:
        if (request.content_length or 0) > _LARGEST_BODY:
            return web.Response(status=413, text="The body is too large.\n")
        body = base64.b64encode(await request.read()).decode()
        headers = {name: request.headers[name] for name in _ASKED if name in request.headers}
        asked = [request.method, request.path_qs, headers, body]
        try:
            found = await self._wire.call(worker, "http", asked, seconds=_HTTP_SECONDS, once=True)
        except (Unreached, Refused) as error:
            return web.Response(status=504, text=f"{error}\n")
        assert isinstance(found, list)
        status, headers, text_body = found
        kept = {name: value for name, value in headers.items() if name in (*_ANSWERED, *_GUARDS)}
        return web.Response(status=status, headers=kept, body=base64.b64decode(text_body))


def _beat(beat: float | None) -> dict[str, float]:
    return {} if beat is None else {"beat": beat}


async def call(wire: Wire, session: str, worker: str) -> None:
    """Tell the worker of a session, or one that may take it, that something has arrived. When nobody hears
    it, a worker finds the session by itself."""
    others = ranked(wire.workers(), session)
    for name in dict.fromkeys([*([worker] if worker else []), *others]):
        if await wire.nudge(name, "call", [session]):
            return
