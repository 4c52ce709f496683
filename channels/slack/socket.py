"""Socket Mode: one live WebSocket to Slack, replaced before it ends and when it falls silent.

slack_bolt's own socket client closes the old socket before it opens the next one, acknowledges on whatever
socket is current and runs envelopes in tasks that nobody owns; so the socket is ours, while Bolt dispatches
what comes out of it.

Slack pings its sockets every few seconds (its Node client gives one up after 30 s without), and answers our
pings. "Connected" says little: a socket that brings neither for long is dead, whatever TCP thinks.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import aiohttp
from aiohttp import WSMsgType

from channels.base import Health
from channels.slack.api import ApiError, trouble
from channels.slack.bounded import Owned

log = logging.getLogger("causeway.slack")

Data: TypeAlias = dict[str, Any]
#: (envelope) -> what to answer with, None for nothing. Raising means: not taken, so not acknowledged.
Handle: TypeAlias = Callable[[Data], Awaitable[Data | None]]
End: TypeAlias = Literal["", "closed", "stale", "refresh", "too_many", "disabled"]

_ENDS: dict[str, End] = {"link_disabled": "disabled", "too_many_websockets": "too_many"}
_GOODBYE = 2.0
_LARGEST = 16 * 1024 * 1024
#: Envelopes under way on one socket. Further ones are not acknowledged: Slack sends them again.
MOST_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. `ping`: between our pings. `pong`: without any frame the socket is dead. `silence`: without a
    ping or an envelope of Slack's own it is dead too, even when something answers our pings. `hello`: to
    connect. `drain`: an old socket may still finish and acknowledge what it brought."""

    ping: float = 5.0
    pong: float = 20.0
    silence: float = 60.0
    hello: float = 15.0
    drain: float = 10.0
    first_pause: float = 0.5
    longest_pause: float = 20.0
    refused_pause: float = 30.0


class Connection:
    """One WebSocket. `ended` is set when it should be replaced or is gone; `end` says which."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, handle: Handle, timing: Timing) -> None:
        self._ws, self._handle, self._timing = ws, handle, timing
        self._work = Owned()
        self._heard = self._spoke = time.monotonic()  # any frame; one of Slack's own
        self.end: End = ""
        self.ended = asyncio.Event()
        self._reader = asyncio.create_task(self._read(), name="slack socket")
        self._pinger = asyncio.create_task(self._ping(), name="slack socket ping")

    def age(self) -> tuple[float, float]:
        """Seconds since the last frame, and since the last that Slack sent by itself."""
        now = time.monotonic()
        return now - self._heard, now - self._spoke

    @property
    def stale(self) -> bool:
        heard, spoke = self.age()
        return heard > self._timing.pong or spoke > self._timing.silence

    @property
    def gone(self) -> bool:
        return self._reader.done()

    async def close(self) -> None:
        """End it after what it brought is acknowledged (at most `drain`). Leaves no task behind."""
        try:
            async with asyncio.timeout(self._timing.drain):
                while self._work:
                    await self._work.wait()
        except TimeoutError:
            log.warning("%d events of Slack were not taken before their socket ended", len(self._work))
        await Owned({self._reader, self._pinger, *self._work}).end()
        try:
            async with asyncio.timeout(_GOODBYE):
                await self._ws.close()
        except TimeoutError:
            log.debug("a silent socket did not say goodbye")

    def _finish(self, end: End) -> None:
        self.end = self.end or end
        self.ended.set()

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(self._timing.ping)
            if self.stale:
                self._finish("stale")
            try:
                async with asyncio.timeout(self._timing.ping):
                    await self._ws.ping()
            except (ConnectionError, TimeoutError, aiohttp.ClientError):
                log.debug("a ping could not be sent")

    async def _read(self) -> None:
        try:
            async for message in self._ws:
                self._heard = time.monotonic()
                if message.type == WSMsgType.PING:
                    self._spoke = self._heard
                    await self._ws.pong(message.data)
                elif message.type == WSMsgType.TEXT:
                    self._spoke = self._heard
                    self.take(message.data)
        except (ConnectionError, aiohttp.ClientError) as error:
            log.debug("the socket broke: %s", type(error).__name__)
        finally:
            self._finish("closed")

    def take(self, text: str) -> None:
        """Begin to deal with what Slack sent."""
        try:
            envelope = json.loads(text)
        except ValueError:
            envelope = None
        if not isinstance(envelope, dict):
            log.warning("Slack sent something over the socket that is no JSON object; ignored")
        elif envelope.get("type") == "disconnect":
            reason = str(envelope.get("reason") or "")
            log.info("Slack ends this socket: %s", reason)
            self._finish(_ENDS.get(reason, "refresh"))
        elif envelope.get("envelope_id"):
            if len(self._work) >= MOST_AT_ONCE:
                log.error("%d events of Slack are under way; one more is left for later", MOST_AT_ONCE)
                return
            self._work.start(self._answer(envelope), "slack envelope")

    async def _answer(self, envelope: Data) -> None:
        try:
            payload = await self._handle(envelope)
        except Exception as error:  # noqa: BLE001 - an event must not end the socket
            # Not taken: without an acknowledgement Slack sends it again, and the socket must go on. Bolt has
            # logged what a listener raised.
            log.warning("an event of Slack was not taken, it will come again: %r", error)
            return
        answer: Data = {"envelope_id": envelope["envelope_id"]}
        if payload is not None and envelope.get("accepts_response_payload"):
            answer["payload"] = payload
        try:
            await self._ws.send_json(answer)
        except (ConnectionError, aiohttp.ClientError):
            log.info("an acknowledgement was lost with its socket; Slack sends the event again")


class _SentAway(Exception):
    """Slack answered a new socket with `disconnect` instead of hello."""

    def __init__(self, end: End) -> None:
        super().__init__(end)
        self.end: End = end


class Socket:
    """Keeps one live connection while `run` runs. `connect` gives a fresh address (it works once)."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[str]],
        session: aiohttp.ClientSession,
        handle: Handle,
    ) -> None:
        self._connect, self._session, self._handle = connect, session, handle
        self._timing = Timing()
        self._current: Connection | None = None
        self._closing = Owned()
        self._failures = 0
        self._trouble: Health | None = Health(False, "not connected to Slack yet", "wait a moment")

    def health(self) -> Health:
        """By what was last heard, not by what TCP says."""
        current = self._current
        if self._trouble is not None:
            return self._trouble
        if current is None or current.gone or (current.ended.is_set() and current.end != "refresh"):
            return Health(False, "the socket to Slack is being replaced", "wait a moment; see the log")
        if current.stale:
            return Health(False, "the socket to Slack has fallen silent", "it is being replaced; see the log")
        return Health(True)

    async def run(self) -> None:
        """Connect, replace, recover, until cancelled; then nothing is left open."""
        try:
            while True:
                await self._replace()
                assert self._current is not None
                await self._current.ended.wait()
                if self._current.end == "stale":
                    ages = self._current.age()
                    log.warning("the socket to Slack fell silent (%.0f s, %.0f s); replacing it", *ages)
                elif self._current.end in ("too_many", "disabled"):
                    await self._sent_away(self._current.end)
        finally:
            self._retire()
            await self._closing.wait()

    async def _replace(self) -> None:
        """Open the next connection, then close the old one, so that nothing falls between them."""
        while True:
            try:
                fresh = await self._open()
            except ApiError as error:
                self._note(trouble(error))
                await asyncio.sleep(max(error.retry_after, self._pause(error)))
            except _SentAway as error:
                await self._sent_away(error.end)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                reason = f"Slack's socket cannot be opened ({type(error).__name__})"
                self._note(Health(False, reason, "check the network and a proxy; it is tried again"))
                await asyncio.sleep(self._pause(None))
            else:
                break
        self._retire()
        self._current = fresh
        if self._trouble is not None:
            log.info("receiving events from Slack")
        self._trouble, self._failures = None, 0

    def _retire(self) -> None:
        """Close the current connection beside whatever comes next."""
        old, self._current = self._current, None
        if old is not None:
            self._closing.start(old.close(), "slack socket close")

    async def _sent_away(self, end: End) -> None:
        """Slack wants no socket of ours at the moment. Ours go first, then there is a pause."""
        if end == "disabled":
            cure = "switch Socket Mode on in the app's settings (api.slack.com/apps), or set mode: http"
            self._note(Health(False, "Socket Mode is switched off for this app", cure))
        else:
            reason = "Slack refuses a further socket for this app (10 are allowed)"
            self._note(Health(False, reason, "stop other programs or gateways with the same app token"))
        self._retire()
        await asyncio.sleep(self._timing.refused_pause * _jitter())

    async def _open(self) -> Connection:
        async with asyncio.timeout(self._timing.hello):
            address = await self._connect()
            ws = await self._session.ws_connect(address, autoping=False, max_msg_size=_LARGEST)
            try:
                early = await self._greet(ws)
            except BaseException:
                await ws.close()
                raise
        connection = Connection(ws, self._handle, self._timing)
        if early:
            connection.take(early)
        return connection

    async def _greet(self, ws: aiohttp.ClientWebSocketResponse) -> str:
        """A socket counts when Slack has said hello on it. Returns an event that came in its place."""
        while True:
            message = await ws.receive()
            if message.type == WSMsgType.PING:
                await ws.pong(message.data)
            elif message.type == WSMsgType.TEXT:
                first = json.loads(message.data)
                if first.get("type") == "disconnect":
                    raise _SentAway(_ENDS.get(str(first.get("reason")), "too_many"))
                log.info("a socket to Slack is open (%s of this app)", first.get("num_connections"))
                return "" if first.get("type") == "hello" else str(message.data)
            elif message.type != WSMsgType.PONG:
                raise aiohttp.ClientError("closed before hello")

    def _note(self, health: Health) -> None:
        self._failures += 1
        if self._trouble is None or self._trouble.reason != health.reason:
            log.warning("Slack: %s; %s", health.reason, health.cure)
        self._trouble = health

    def _pause(self, error: ApiError | None) -> float:
        if error is not None and error.taken == "refused" and not error.retry_after:
            return self._timing.refused_pause * _jitter()
        return growing(self._failures, self._timing.first_pause, self._timing.longest_pause)


def growing(failures: int, first: float, longest: float) -> float:
    """Seconds to wait after so many failures in a row."""
    return min(first * 2.0 ** min(failures - 1, 10), longest) * _jitter()


def _jitter() -> float:
    return 0.75 + random.random() / 2
