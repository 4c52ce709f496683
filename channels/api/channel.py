"""The bridge as an OpenAI-compatible server: `POST /v1/chat/completions` and `GET /v1/models`.

Which conversation a request belongs to: the header `X-Session-Id`, else the body's `user`. Then the bridge
keeps the history, and of `messages` only the last user message is taken. With neither, each request is a
conversation of its own, and the earlier messages become its context.

`Idempotency-Key`: the same key (in the same conversation) joins a request that is under way and, after it,
gets its answer again, also over a restart. Without a key a repeated request is a new message.

Who may call (key, Host, Origin) is checked by the HTTP server in front.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections import OrderedDict
from typing import Any

from aiohttp import web
from pydantic import Field

from channels.api.call import Call, response_to, stream_to
from channels.api.images import Images
from channels.api.request import ChatRequest, parse, session_id
from channels.api.wire import Fault, RequestError, invalid, model, models
from channels.base import (
    Address,
    Attachment,
    Channel,
    ChannelConfig,
    Chunk,
    Env,
    Flooded,
    Inbound,
    Limits,
    Outbound,
    Receive,
    ReplyRef,
    Sender,
)

log = logging.getLogger("causeway.api")

#: A body at least this long (bytes) is parsed in a thread, so that the loop does not stall.
_LONG_BODY = 256 * 1024
#: Seconds for a client to send its body, and for the bridge to take a message.
_BODY_TIMEOUT = 60.0
_RECEIVE_TIMEOUT = 30.0
#: Answers to keyed requests: kept in memory, and on disk in so many slots (a newer one takes the slot over).
_ANSWERS_IN_MEMORY = 500
_ANSWER_SLOTS = 4096
_KEYED = "chatcmpl-key"
_MAX_KEY = 255
#: Seconds between two looks for answers that another gateway was given.
_LOOK = 1.0


class ApiConfig(ChannelConfig):
    """`timeout`: seconds a request may take. `max_requests`: at once; more get 429. `max_body`: bytes."""

    timeout: float = Field(default=600.0, gt=0, le=86_400)
    max_requests: int = Field(default=1000, ge=1, le=100_000)
    max_body: int = Field(default=20 * 1024 * 1024, ge=1024, le=256 * 1024 * 1024)


class ApiChannel(Channel):
    type = "api"
    Config = ApiConfig
    #: Idempotent: a chunk replaces the text of the request it belongs to.
    limits = Limits(max_text=0, streams=True, update_interval=0.0, idempotent=True)
    local = True
    asks = False
    config: ApiConfig

    def __init__(self, name: str, config: Any, env: Env) -> None:
        super().__init__(name, config, env)
        self._receive: Receive | None = None
        self._calls: dict[tuple[str, str], Call] = {}
        self._answered: OrderedDict[tuple[str, str], Call] = OrderedDict()
        self._images = Images(env.folder / "images")
        self._running = 0
        self._refusal = "The bridge is starting."
        self._watcher: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    # -- lifecycle -----------------------------------------------------------------------------------

    async def start(self, receive: Receive) -> None:
        await asyncio.to_thread(self._images.clear_old, self.env.clock())
        if self.env.shared:
            self._watcher = asyncio.create_task(self._watch(), name="api watch")
        self._receive = receive

    async def pause(self) -> None:
        self._receive = None
        self._refusal = "The bridge is stopping."

    async def stop(self) -> None:
        await self.pause()
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait({watcher})
        for call in list(self._calls.values()):
            call.fail(_unavailable("The bridge is stopping; the answer is kept in the conversation."))
        try:
            async with asyncio.timeout(5):
                await self._idle.wait()
        except TimeoutError:
            log.warning("%d requests were still being answered at the stop", self._running)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/chat/completions", self._completions),
            web.get("/v1/models", _models),
            web.get("/v1/models/{id}", _model),
            web.route("*", "/v1/{rest:.*}", _unknown),
        ]

    # -- requests ------------------------------------------------------------------------------------

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        if self._running >= self.config.max_requests:
            message = f"The bridge already answers {self._running} requests at once. Try again in a moment."
            fault = Fault(429, message, kind="requests", code="rate_limit_exceeded")
            return RequestError(fault, {"Retry-After": "1"}).response()
        self._running += 1
        self._idle.clear()
        try:
            return await self._answer(request)
        except RequestError as error:
            return error.response()
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        deadline = asyncio.get_running_loop().time() + self.config.timeout
        if self._receive is None:
            raise RequestError(_unavailable(self._refusal), {"Retry-After": "1"})
        body = await _read(request, self.config.max_body)
        wanted = parse(body) if len(body) < _LONG_BODY else await asyncio.to_thread(parse, body)
        header = request.headers.get("X-Session-Id")
        session = session_id(header, "X-Session-Id") if header is not None else wanted.user
        call = await self._call(request.headers.get("Idempotency-Key"), session, wanted)
        call.waiters += 1
        try:
            if not call.accepted.is_set():
                await self._hand_over(call, wanted, session)
            if wanted.stream:
                return await stream_to(request, call, deadline, include_usage=wanted.include_usage)
            return await response_to(call, deadline)
        finally:
            call.waiters -= 1
            if not call.waiters and not (call.keyed and call.accepted.is_set()):
                self._calls.pop(call.key, None)

    async def _call(self, key: str | None, session: str, wanted: ChatRequest) -> Call:
        """The call of this request: a new one, or for a known key the one under way or already answered."""
        now = int(self.env.clock())
        if key is None:
            id = f"chatcmpl-{secrets.token_hex(16)}"
            call = Call(session or id, id, now)
            self._calls[call.key] = call
            return call
        if not 0 < len(key) <= _MAX_KEY or not key.isprintable():
            raise invalid(f"Idempotency-Key must be 1 to {_MAX_KEY} printable characters.", "Idempotency-Key")
        id = _KEYED + hashlib.sha256(f"{session}\n{key}".encode()).hexdigest()[:32]
        chat = session or id
        asked = hashlib.sha256(wanted.text.encode("utf-8", "surrogatepass")).hexdigest()
        stored = self._known((chat, id)) or await self._stored(chat, id)
        # Looked up again: the same key may have come a second time while the store was read.
        call = self._known((chat, id)) or stored or Call(chat, id, now, keyed=True)
        if call.asked and call.asked != asked:
            raise invalid("Idempotency-Key was used before with another message.", "Idempotency-Key")
        call.asked = asked
        if call.done.is_set():
            self._remember(call)
        else:
            self._drop_forgotten()
            self._calls[call.key] = call
        return call

    def _drop_forgotten(self) -> None:
        """Keyed calls wait for a client that may come back; of those whose reply never ends the oldest go."""
        surplus = len(self._calls) - 2 * self.config.max_requests
        if surplus >= 0:
            forgotten = [key for key, call in self._calls.items() if not call.waiters]
            for key in forgotten[: surplus + 1]:
                del self._calls[key]

    async def _hand_over(self, call: Call, wanted: ChatRequest, session: str) -> None:
        """Give the message to the bridge, once a call however many requests wait for it."""
        async with call.handing_over:
            receive = self._receive
            if call.accepted.is_set():
                return
            if receive is None:
                raise RequestError(_unavailable(self._refusal), {"Retry-After": "1"})
            inbound = Inbound(
                id=call.id,
                address=Address(self.name, call.chat),
                sender=Sender("local"),
                text=wanted.text,
                attachments=await self._images.keep(call.id, wanted.images) if wanted.images else (),
                context=() if session else wanted.context,
                sent_at=self.env.clock(),
            )
            try:
                async with asyncio.timeout(_RECEIVE_TIMEOUT):
                    await receive(inbound)
            except Exception as error:  # whatever the bridge could not do becomes an answer of this API
                raise _not_taken(error) from error
            call.accepted.set()

    # -- replies -------------------------------------------------------------------------------------

    def render(self, outbound: Outbound) -> list[Chunk]:
        # Files cannot travel in this protocol: their names are told.
        lines = [self.env.text("api.file", "", name=file.name) for file in outbound.files]
        text = "\n\n".join(part for part in (outbound.text, "\n".join(lines)) if part)
        return [Chunk(text)] if text else []

    async def post(self, ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        await self._show(ref, chunk, final)
        return f"{ref.id}/{n}"

    async def edit(self, ref: ReplyRef, n: int, message_id: str, chunk: Chunk, *, final: bool) -> None:
        await self._show(ref, chunk, final)

    async def _show(self, ref: ReplyRef, chunk: Chunk, final: bool) -> None:
        call = self._calls.get((ref.address.chat, ref.to))
        if call is None:
            # Nobody waits: the client left, or asked before a restart. Only a keyed one can come back.
            if not final or not ref.to.startswith(_KEYED):
                return
            call = Call(ref.address.chat, ref.to, int(self.env.clock()), keyed=True)
        call.grow(chunk.text)
        if final and call.keyed:
            await self._store(call)

    async def end(self, ref: ReplyRef) -> None:
        call = self._calls.pop((ref.address.chat, ref.to), None)
        if call is not None:
            call.finish()
            if call.keyed:
                self._remember(call)
                if self.env.shared:  # a run that was stopped has no last text
                    await self._store(call)
        await self._images.drop(ref.to)

    async def fetch(self, attachment: Attachment, target: Any, max_bytes: int) -> None:
        await self._images.copy(attachment.ref, target, max_bytes)

    async def _watch(self) -> None:
        """A keyed request may be repeated to this gateway while another one is shown its answer."""
        while True:
            await asyncio.sleep(_LOOK)
            for call in [call for call in self._calls.values() if call.keyed and call.waiters]:
                try:
                    stored = await self._stored(call.chat, call.id)
                except Exception as error:  # noqa: BLE001 - the store's; the next look finds it
                    log.warning("answers of other gateways cannot be seen: %s", error)
                    break
                if stored is not None and self._calls.get(call.key) is call:
                    call.grow(stored.text)
                    del self._calls[call.key]
                    call.finish()
                    self._remember(call)
                    await self._images.drop(call.id)

    # -- answers to keyed requests -------------------------------------------------------------------

    def _known(self, key: tuple[str, str]) -> Call | None:
        return self._calls.get(key) or self._answered.get(key)

    def _remember(self, call: Call) -> None:
        self._answered[call.key] = call
        self._answered.move_to_end(call.key)
        while len(self._answered) > _ANSWERS_IN_MEMORY:
            self._answered.popitem(last=False)

    async def _store(self, call: Call) -> None:
        answer = {
            "id": call.id,
            "chat": call.chat,
            "at": call.created,
            "text": call.text,
            "asked": call.asked,
        }
        await self.env.state.put(_slot(call.id), answer)

    async def _stored(self, chat: str, id: str) -> Call | None:
        answer = await self.env.state.get(_slot(id))
        if not isinstance(answer, dict) or (answer.get("id"), answer.get("chat")) != (id, chat):
            return None
        call = Call(chat, id, int(answer["at"]), keyed=True)
        call.asked = str(answer["asked"])
        call.accepted.set()
        call.grow(str(answer["text"]))
        call.finish()
        return call


def _slot(id: str) -> str:
    return f"answer:{int(id[len(_KEYED) :], 16) % _ANSWER_SLOTS}"


def _unavailable(message: str) -> Fault:
    return Fault(503, message, kind="server_error", code="unavailable")


def _not_taken(error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    if isinstance(error, Flooded):
        fault = Fault(429, str(error), kind="requests", code="rate_limit_exceeded")
        return RequestError(fault, {"Retry-After": str(max(1, round(error.retry_after)))})
    log.error("a message could not be taken: %s: %s", type(error).__name__, error)
    if isinstance(error, TimeoutError):
        # It may have been taken after all: the official clients must not repeat it by themselves.
        fault = _unavailable("The bridge did not say in time whether it took the message. Its log says why.")
        return RequestError(fault, {"x-should-retry": "false"})
    fault = _unavailable("The bridge could not store the message. Try again; its log says why.")
    return RequestError(fault, {"Retry-After": "2"})


async def _read(request: web.Request, limit: int) -> bytes:
    """The body, read here so that this channel's own limit holds (pictures are larger than the server's)."""
    too_large = Fault(413, f"The body is larger than {limit} bytes.", code="request_too_large")
    if (request.content_length or 0) > limit:
        raise RequestError(too_large)
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_TIMEOUT):
            while block := await request.content.readany():
                body += block
                if len(body) > limit:
                    raise RequestError(too_large)
    except TimeoutError:
        raise RequestError(Fault(408, f"The body did not arrive within {_BODY_TIMEOUT:.0f} s.")) from None
    return bytes(body)


async def _models(request: web.Request) -> web.Response:
    return web.json_response(models())


async def _model(request: web.Request) -> web.Response:
    wanted = request.match_info["id"]
    if wanted == model()["id"]:
        return web.json_response(model())
    message = f"The model {wanted[:100]!r} does not exist; GET /v1/models lists what there is."
    return RequestError(Fault(404, message, param="model", code="model_not_found")).response()


async def _unknown(request: web.Request) -> web.Response:
    if request.path == "/v1/chat/completions":
        return RequestError(Fault(405, "Use POST for this address.", code="method_not_allowed")).response()
    message = "There is no such address. This server has POST /v1/chat/completions and GET /v1/models."
    return RequestError(Fault(404, message, code="unknown_url")).response()
