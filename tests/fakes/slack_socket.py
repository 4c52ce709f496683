"""How the fake Slack hands events out: Socket Mode's WebSockets, or signed requests to an address.

An event that is not acknowledged in `ack_timeout` comes again, three times at most, as Slack does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import itertools
import json
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode

import aiohttp
from aiohttp import WSMsgType, web

if TYPE_CHECKING:
    from tests.fakes.slack import FakeSlack

Json = dict[str, Any]
Kind = Literal["events_api", "interactive", "slash_commands"]
MAX_CONNECTIONS = 10


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Slack's v0 signature (docs.slack.dev, Verifying requests from Slack)."""
    base = b"v0:" + timestamp.encode() + b":" + body
    return "v0=" + hmac.new(secret.encode(), base, hashlib.sha256).hexdigest()


@dataclass
class Delivery:
    """One thing that Slack tells the app. `response` is what the app answered with."""

    kind: Kind
    payload: Json
    attempts: int = 0
    statuses: list[int] = field(default_factory=list)
    response: Any = None
    done: bool = False
    given_up: bool = False


@dataclass(eq=False)
class Connection:
    ws: web.WebSocketResponse
    number: int
    silent: bool = False
    #: Envelopes that went out here, in order.
    sent: list[Json] = field(default_factory=list)
    leaving: bool = False


class Sockets:
    """Deliveries of one app. The knobs are read at each delivery."""

    def __init__(self, slack: FakeSlack) -> None:
        self.slack = slack
        self.connections: list[Connection] = []
        self.opened = 0
        self.pings = 0
        self.most = 0
        self.http_url = ""  # events go here, signed, when it is set
        self.ack_timeout = 3.0
        self.retry_pauses: tuple[float, ...] = (0.0, 0.05, 0.1)  # Slack's are 0, 60 and 300 s
        self.duplicates = 0.0  # share of events that come twice
        self.lost_acks = 0.0  # share of acknowledgements that Slack does not see
        self.ping_every = 5.0
        self.silent = False  # new connections are
        self.hello = True
        self.connection_time = 18_060
        self.random = random.Random(7)
        self.deliveries: list[Delivery] = []
        self._tickets: set[str] = set()
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._queue: asyncio.Queue[Delivery] = asyncio.Queue()
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._client: aiohttp.ClientSession | None = None
        self._changed = asyncio.Event()

    async def start(self) -> None:
        self._client = aiohttp.ClientSession()
        self._spawn(self._dispatch())

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self.connections):
            with contextlib.suppress(ConnectionError):
                await connection.ws.close()
        if self._client:
            await self._client.close()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- what tests do -----------------------------------------------------------------------------------

    def deliver(self, kind: Kind, payload: Json) -> Delivery:
        delivery = Delivery(kind, payload)
        self.deliveries.append(delivery)
        self._queue.put_nowait(delivery)
        if kind == "events_api" and self.random.random() < self.duplicates:
            self._queue.put_nowait(Delivery(kind, payload))
        return delivery

    @property
    def live(self) -> list[Connection]:
        return [c for c in self.connections if not c.ws.closed and not c.leaving]

    async def disconnect(
        self, reason: str, grace: float = 10.0, connection: Connection | None = None
    ) -> None:
        """Announce the end of a connection (or of all), and end it `grace` seconds later."""
        for one in [connection] if connection else list(self.live):
            one.leaving = True
            await self._send(one, {"type": "disconnect", "reason": reason, "debug_info": {"host": "fake"}})
            self._spawn(self._close_later(one, grace))

    async def _close_later(self, connection: Connection, grace: float) -> None:
        await asyncio.sleep(grace)
        await connection.ws.close()

    def drop(self, connection: Connection | None = None) -> None:
        """Cut connections without a word."""
        for one in [connection] if connection else list(self.connections):
            one.leaving = True
            transport = one.ws._req.transport if one.ws._req is not None else None
            if transport is not None:
                transport.abort()

    # -- Socket Mode -------------------------------------------------------------------------------------

    def new_url(self) -> str:
        ticket = f"ticket{next(self._numbers)}"
        self._tickets.add(ticket)
        return f"{self.slack.url.replace('http', 'ws', 1)}/link/?ticket={ticket}&app_id={self.slack.app}"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        ticket = request.query.get("ticket", "")
        if ticket not in self._tickets:
            return web.Response(status=408, text="the ticket is not valid any more")
        self._tickets.discard(ticket)  # an address works once
        ws = web.WebSocketResponse(autoping=False)
        await ws.prepare(request)
        self.opened += 1
        connection = Connection(ws, self.opened, silent=self.silent)
        if len(self.live) >= MAX_CONNECTIONS:
            await ws.send_json({"type": "disconnect", "reason": "too_many_websockets"})
            await ws.close()
            return ws
        if self.hello:
            await ws.send_json(self._hello())
        self.connections.append(connection)
        self.most = max(self.most, len(self.connections))
        pinger = asyncio.create_task(self._ping(connection))
        try:
            self._notify()
            await self._read(connection)
        finally:
            pinger.cancel()
            self.connections.remove(connection)
            self._notify()
        return ws

    def _hello(self) -> Json:
        info = {"host": "fake", "build_number": 1, "approximate_connection_time": self.connection_time}
        return {
            "type": "hello",
            "num_connections": len(self.connections) + 1,
            "debug_info": info,
            "connection_info": {"app_id": self.slack.app},
        }

    async def _ping(self, connection: Connection) -> None:
        while not connection.ws.closed:
            await asyncio.sleep(self.ping_every)
            if not connection.silent:
                with contextlib.suppress(ConnectionError):
                    await connection.ws.ping(b"Ping from the fake")
                self.pings += 1
                self._notify()

    async def _read(self, connection: Connection) -> None:
        async for message in connection.ws:
            if connection.silent:
                continue
            if message.type == WSMsgType.PING:
                await connection.ws.pong(message.data)
            elif message.type == WSMsgType.TEXT:
                answer = json.loads(message.data)
                self._acknowledge(str(answer.get("envelope_id")), answer.get("payload"))

    def _acknowledge(self, envelope: str, payload: Any) -> None:
        if self.random.random() < self.lost_acks:
            return
        future = self._waiting.pop(envelope, None)
        if future is not None and not future.done():
            future.set_result(payload)

    async def _send(self, connection: Connection, message: Json) -> bool:
        try:
            await connection.ws.send_json(message)
        except (ConnectionError, RuntimeError):
            return False
        return True

    async def _pick(self) -> Connection:
        while not (live := self.live):
            self._changed.clear()
            await self._changed.wait()
        return self.random.choice(live)

    # -- deliveries --------------------------------------------------------------------------------------

    async def _dispatch(self) -> None:
        """Send in order; who is not acknowledged comes again in its own time."""
        while True:
            delivery = await self._queue.get()
            if self.http_url:
                self._spawn(self._by_http(delivery))
            else:
                waiter = await self._by_socket(delivery)
                self._spawn(self._await_ack(delivery, waiter))

    async def _by_socket(self, delivery: Delivery) -> asyncio.Future[Any]:
        while True:
            connection = await self._pick()
            envelope = f"env-{next(self._numbers)}"
            waiter = self._waiting[envelope] = asyncio.get_running_loop().create_future()
            message: Json = {
                "type": delivery.kind,
                "envelope_id": envelope,
                "payload": delivery.payload,
                "accepts_response_payload": delivery.kind != "events_api",
            }
            if delivery.kind == "events_api":
                message |= {
                    "retry_attempt": delivery.attempts,
                    "retry_reason": "timeout" if delivery.attempts else "",
                }
            delivery.attempts += 1
            connection.sent.append(message)
            if connection.silent or await self._send(connection, message):
                return waiter
            connection.leaving = True

    async def _await_ack(self, delivery: Delivery, waiter: asyncio.Future[Any]) -> None:
        for pause in (*self.retry_pauses, None):
            try:
                delivery.response = await asyncio.wait_for(waiter, self.ack_timeout)
            except TimeoutError:
                if pause is None or delivery.kind != "events_api":
                    break
                await asyncio.sleep(pause)
                waiter = await self._by_socket(delivery)
            else:
                delivery.done = True
                break
        delivery.given_up = not delivery.done
        self._notify()

    async def _by_http(self, delivery: Delivery) -> None:
        assert self._client is not None
        for pause in (*self.retry_pauses, None):
            body, kind = self.encode(delivery)
            headers = {"Content-Type": kind, **self.sign(body)}
            if delivery.attempts:
                headers |= {
                    "X-Slack-Retry-Num": str(delivery.attempts),
                    "X-Slack-Retry-Reason": "http_timeout" if not delivery.statuses[-1] else "http_error",
                }
            delivery.attempts += 1
            limit = aiohttp.ClientTimeout(total=self.ack_timeout)
            status = 0
            try:
                async with self._client.post(
                    self.http_url, data=body, headers=headers, timeout=limit
                ) as answer:
                    text, status = await answer.text(), answer.status
                    if text and 200 <= status < 300:
                        delivery.response = json.loads(text) if text.startswith("{") else text
            except (aiohttp.ClientError, TimeoutError):
                status = 0
            delivery.statuses.append(status)
            if 200 <= status < 300 and self.random.random() >= self.lost_acks:
                delivery.done = True
                break
            if pause is None or delivery.kind != "events_api":
                break
            await asyncio.sleep(pause)
        delivery.given_up = not delivery.done
        self._notify()

    def encode(self, delivery: Delivery) -> tuple[bytes, str]:
        """(body, content type) as Slack sends it."""
        if delivery.kind == "events_api":
            return json.dumps(delivery.payload).encode(), "application/json"
        form = delivery.payload
        if delivery.kind == "interactive":
            form = {"payload": json.dumps(delivery.payload)}
        return urlencode(form).encode(), "application/x-www-form-urlencoded"

    def sign(self, body: bytes, at: float | None = None) -> dict[str, str]:
        timestamp = str(int(at if at is not None else time.time()))
        return {
            "X-Slack-Request-Timestamp": timestamp,
            "X-Slack-Signature": signature(self.slack.signing_secret, timestamp, body),
        }

    def _notify(self) -> None:
        self._changed.set()
        self.slack.notify()
