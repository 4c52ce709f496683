"""WeChat official accounts (公众号): callbacks in, passive replies and customer-service messages out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from channels.base import (
    Attachment,
    Channel,
    Choice,
    Chunk,
    Env,
    Finding,
    Health,
    Limits,
    NotSent,
    Outbound,
    Receive,
    Rejected,
    ReplyRef,
)
from channels.webhook import read_body
from channels.wechat import xml
from channels.wechat.api import Api, ApiError, close_quietly, import_slow_parts
from channels.wechat.callback import Door, Verified
from channels.wechat.check import check
from channels.wechat.config import SETUP, WechatConfig, refuse_unusable
from channels.wechat.crypto import Envelope, Refused
from channels.wechat.inbound import Callback, only_fetches, read_media_ref
from channels.wechat.passive import (
    HOLD,
    HOLD_LAST,
    MAX_PIECE,
    Desk,
    Hint,
    Part,
    Person,
    Seen,
    wait_for,
)
from channels.wechat.plain import MAX_BYTES, plain, split_bytes
from channels.wechat.service import Service
from channels.wechat.texts import TEXTS

log = logging.getLogger("causeway.wechat")

_MAX_BODY = 256 * 1024
#: Requests held at once; further ones are not answered, so that the platform sends them again.
_MOST_HELD = 5000
#: Longest wait for the platform to cut a request that is not answered (seconds).
_CUT = 1.5
_SWEEP = 30.0


@dataclass(slots=True)
class _Parts:
    """What `start` builds."""

    door: Door
    api: Api
    service: Service
    desk: Desk


class WechatChannel(Channel):
    type = "wechat"
    Config = WechatConfig
    limits = Limits(max_text=MAX_BYTES, unit="bytes", streams=False, typing_interval=10.0)
    setup = SETUP
    texts = TEXTS
    config: WechatConfig

    def __init__(self, name: str, config: WechatConfig, env: Env) -> None:
        super().__init__(name, config, env)
        self._parts: _Parts | None = None
        self._receive: Receive | None = None
        self._receiving: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._upkeep: asyncio.Task[None] | None = None
        self._held = 0
        self._none_held = asyncio.Event()
        self._none_held.set()

    # -- life -------------------------------------------------------------------------------------------

    async def start(self, receive: Receive) -> None:
        refuse_unusable(self.config, self.name)
        await asyncio.to_thread(import_slow_parts)
        token = self.config.token.get_secret_value().strip()
        clock = self.env.clock
        envelope = Envelope(token, self.config.keys, self.config.app_id.strip(), clock=clock)
        api = self._new_api()
        service = Service(self.config.mode, api, self.env.state, clock)
        desk = Desk(self.env.state, clock, self._words, shared=self.env.shared)
        self._parts = _Parts(Door(envelope, self.name), api, service, desk)
        self._receive = receive
        self._upkeep = asyncio.create_task(self._keep(self._parts), name=f"wechat upkeep {self.name}")

    def _new_api(self) -> Api:
        secret = self.config.app_secret.get_secret_value().strip()
        return Api(self.config.app_id.strip(), secret, self.config.root, self.env.state, self.env.clock)

    async def _keep(self, parts: _Parts) -> None:
        """Learn what the account may do, and tidy up from time to time."""
        while True:
            try:
                if parts.service.due:
                    await parts.service.learn()
                await parts.desk.sweep()
            except Exception:
                # The store may be away for a while; this upkeep can wait for it and must not end.
                log.exception("upkeep of channel %s failed; it is tried again", self.name)
            await asyncio.sleep(_SWEEP)

    async def pause(self) -> None:
        self._receive = None

    async def stop(self) -> None:
        self._receive = None
        parts, self._parts = self._parts, None
        if parts is None:
            return
        parts.desk.close()  # held requests end: the platform repeats them to the next process
        own = {task for task in (self._upkeep, *self._tasks) if task}
        for task in own:
            task.cancel()
        running = own | set(self._receiving.values())
        if running:
            await asyncio.wait(running, timeout=5.0)
        try:
            async with asyncio.timeout(1.0):
                await self._none_held.wait()
        except TimeoutError:
            log.info("%d held requests did not end in time", self._held)
        await close_quietly(parts.api)

    def health(self) -> Health:
        if self._parts is None:
            return Health(False, "not started", "")
        door, service = self._parts.door, self._parts.service
        return service.health if door.health.ok else door.health

    async def check(self, language: str = "") -> list[Finding]:
        return await check(self, self.config, self.env, self._new_api, language)

    @property
    def path(self) -> str:
        return f"/channels/{self.name}/callback"

    def _words(self, hint: Hint, language: str) -> str:
        return self.env.text(f"wechat.{hint}", language)

    def _running(self) -> _Parts:
        if self._parts is None:
            raise NotSent(f"channel {self.name} is not running")
        return self._parts

    # -- callbacks --------------------------------------------------------------------------------------

    def routes(self) -> list[web.RouteDef]:
        return [web.get(self.path, self._url_check), web.post(self.path, self._callback)]

    async def _url_check(self, request: web.Request) -> web.StreamResponse:
        if self._parts is None:
            return web.Response(status=503, text="starting")
        try:
            echo = self._parts.door.url_check(request.query)
        except Refused as error:
            return self._refuse(error)
        return web.Response(body=echo, content_type="text/plain")

    def _refuse(self, error: Refused) -> web.Response:
        log.warning("a callback of channel %s was refused: %s", self.name, error)
        return web.Response(status=403, text="refused")

    async def _callback(self, request: web.Request) -> web.StreamResponse:
        began = asyncio.get_running_loop().time()
        parts = self._parts
        if parts is None or self._held >= _MOST_HELD:
            return await self._unanswered(request)
        self._held += 1
        self._none_held.clear()
        try:
            body = await read_body(request, _MAX_BODY)
            try:
                verified = parts.door.open(body, request.query)
            except Refused as error:
                return self._refuse(error)
            except (xml.Malformed, ValueError) as error:
                # It is the platform's, but nothing we know: repeating it would not make it better.
                log.warning("a callback of channel %s could not be read: %s", self.name, error)
                return web.Response(text="success")
            text = await self._answer(parts, verified, began)
            if text is None:
                return await self._unanswered(request)
            reply, kind = parts.door.dress(verified, text, self.env.clock())
            return web.Response(text=reply, content_type=kind)
        finally:
            self._held -= 1
            if not self._held:
                self._none_held.set()

    async def _unanswered(self, request: web.Request) -> web.Response:
        """Give no answer: wait until the platform has cut the connection, or cut it. It asks again."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _CUT
        while loop.time() < end and self._parts is not None:
            if request.transport is None or request.transport.is_closing():
                break
            await asyncio.sleep(0.1)
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=503)

    # -- one callback -----------------------------------------------------------------------------------

    async def _answer(self, parts: _Parts, verified: Verified, began: float) -> str | None:
        """The text to reply with, "" for none, or None: give no answer at all."""
        callback = verified.callback
        if callback.kind == "ignored":
            return ""
        try:
            person = await parts.desk.person(callback.user)
            said = callback.inbound.text if callback.inbound else ""
            event = callback.kind != "message"
            seen = await person.arrive(callback.id, verified.elapsed, event=event, said=said)
            if callback.kind == "subscribe":
                return await self._greet(person, callback, seen)
            return await self._take(parts, person, verified, seen, began)
        except Exception:
            # The store failed, or the bridge: the message is not safe, so it is not acknowledged.
            log.exception("a callback of channel %s could not be taken", self.name)
            return None

    async def _greet(self, person: Person, callback: Callback, seen: Seen) -> str:
        if seen.state == "done":
            return ""
        await person.mark(callback.id, "done")
        return self.env.text("wechat.greeting", person.language)

    async def _take(
        self, parts: _Parts, person: Person, verified: Verified, seen: Seen, began: float
    ) -> str | None:
        callback = verified.callback
        assert callback.inbound is not None
        if seen.replayed:
            return ""
        service = parts.service
        until = began + (HOLD_LAST if seen.last or service.usable else HOLD)
        with person.slot(callback.id):
            if seen.state == "running" and not seen.accepted:
                if seen.n == 1 and await self._only_fetches(person, callback):
                    await person.mark(callback.id, "fetch")
                elif not await self._accepted(callback, seen, until):
                    return await self._not_accepted(person, callback, seen)
            text = await person.hold(callback.id, until, seen.last, lambda: service.usable)
        if service.worth_trying and await person.waiting():
            self._spawn(service.flush(person), f"flush {self.name}")
        return text

    async def _not_accepted(self, person: Person, callback: Callback, seen: Seen) -> str | None:
        """The platform brings it again; after the last time the person hears of it from us."""
        if not seen.last:
            return None
        await person.mark(callback.id, "done")
        return self.env.text("wechat.trouble", person.language)

    async def _only_fetches(self, person: Person, callback: Callback) -> bool:
        """Whether the words ask for what waits, or for an answer the person was told to wait for."""
        assert callback.inbound is not None
        if callback.kind != "message" or callback.inbound.attachments:
            return False
        if not only_fetches(callback.inbound.text):
            return False
        return bool(await person.waiting()) or (person.invited and person.working)

    async def _accepted(self, callback: Callback, seen: Seen, until: float) -> bool:
        """Hand the message to the bridge, once however many requests bring it; False: not taken (yet)."""
        assert callback.inbound is not None
        task = self._receiving.get(callback.id)
        if task is None:
            receive = self._receive
            if receive is None:
                return False  # draining: the next process gets the repetition
            task = asyncio.create_task(_await(receive(callback.inbound)), name=f"receive {self.name}")
            self._receiving[callback.id] = task
            task.add_done_callback(lambda done: self._forget(callback.id, done))
        left = max(until - asyncio.get_running_loop().time(), 0.0)
        await asyncio.wait({task}, timeout=left)
        seen.accepted = task.done() and not task.cancelled() and task.exception() is None
        return seen.accepted

    def _forget(self, id: str, task: asyncio.Task[None]) -> None:
        self._receiving.pop(id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a message of channel %s was not taken", self.name, exc_info=error)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """A task of ours that `stop` awaits."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)

    # -- showing ----------------------------------------------------------------------------------------

    def render(self, outbound: Outbound) -> list[Chunk]:
        pieces: list[Chunk] = [Chunk(text) for text in split_bytes(plain(outbound.text), MAX_PIECE)]
        for file in outbound.files:
            first, *rest = split_bytes(plain(file.caption), MAX_PIECE // 2) or [""]
            pieces += [Chunk(first, file=file), *(Chunk(text) for text in rest)]
        last = len(pieces) - 1
        return [Chunk(piece.text, {"more": last - n}, piece.file) for n, piece in enumerate(pieces)]

    async def post(self, ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        parts = self._running()
        person = await parts.desk.person(ref.address.chat)
        id = f"{ref.id}:{n}"
        text = chunk.text
        if chunk.file is not None:
            if await parts.service.file(person, chunk.file):
                if not text.strip():
                    return id
            else:
                note = self.env.text("wechat.file", ref.language or person.language, name=chunk.file.name)
                text = f"{text}\n{note}" if text else note
        # What is told of a file is a paragraph of its own, also in one message with what is before it.
        reply = id if chunk.file is not None else ref.id
        part = Part(id, reply, ref.to, text, int(chunk.data.get("more", 0)))
        await self._show(parts, person, part)
        return id

    async def _show(self, parts: _Parts, person: Person, part: Part) -> None:
        """Into an open request, else by a customer-service message, else into the store until one opens."""
        while True:
            async with person.lock:
                changed = person.changed
                waiting = len(await person.waiting())
                slots = person.open.total()
                direct = parts.service.worth_trying and not slots and not waiting
                if waiting < slots or not parts.service.worth_trying or (waiting and not slots):
                    await person.put(part)
                    break
            if direct:
                await parts.service.text(person, part)
                return
            # The open requests are taking what was put there a moment ago; this part comes behind it.
            await wait_for(changed, 1.0)
        if parts.service.worth_trying and waiting and not slots:
            self._spawn(parts.service.flush(person), f"flush {self.name}")

    async def ask(self, ref: ReplyRef, question: str, choices: Sequence[Choice]) -> str:
        """Questions are answered in words; a long one goes out whole."""
        lines = [question, "", *(f"- {choice.label}" for choice in choices)]
        id = ""
        for n, chunk in enumerate(self.render(Outbound("\n".join(lines)))):
            id = await self.post(ref, n, chunk, final=True)
        return id

    async def end(self, ref: ReplyRef) -> None:
        parts = self._running()
        person = await parts.desk.person(ref.address.chat)
        await person.mark(ref.to, "done")

    async def typing(self, ref: ReplyRef) -> None:
        if self._parts is not None:
            await self._parts.service.typing(ref.address.chat)

    # -- attachments ------------------------------------------------------------------------------------

    async def fetch(self, attachment: Attachment, target: Path, max_bytes: int) -> None:
        api = self._running().api
        media, url = read_media_ref(attachment.ref)
        try:
            if url:
                await api.picture(url, target, max_bytes)
            else:
                await api.download(media, target, max_bytes)
        except ApiError as error:
            failed = Rejected if error.taken == "refused" else NotSent
            raise failed(f"{attachment.name} could not be fetched: {error}") from None


async def _await(work: Any) -> None:
    await work
