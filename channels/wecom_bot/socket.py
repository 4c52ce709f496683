"""The long connection: subscribe, keep alive, reconnect for ever, hand on what comes in order, call and be
acked.

Our own thin client, after reading and running both SDKs (2026-11). `wecom-aibot-python-sdk` 1.0.2 (Tencent's)
has no upload and no disconnected_event, always passes a TLS context (a ws:// address cannot be used, so it
cannot be tested or proxied), and gives up after ten tries. `wecom-aibot-sdk` 1.0.8 has both, but does not
come back when the server closes the connection cleanly, and waits for ever for the answer to a subscription.
Both drop a message whose JSON holds a raw control character, run handlers side by side (so messages overtake
each other and a failure to store one is only logged), and report error codes only inside an exception's
words. What is left of them after mending that is a frame format.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

import aiohttp

from channels.base import Health, NotSent, Unknown
from channels.wecom_bot.api import (
    BUSY,
    CONFLICT,
    EVENT,
    FLOODED,
    MESSAGE,
    NOT_SUBSCRIBED,
    PING,
    SUBSCRIBE,
    BotError,
    Data,
    new_req_id,
    read_json,
    result,
)
from channels.wecom_bot.config import MIB, Times
from channels.wecom_bot.lease import Lease

log = logging.getLogger("causeway.wecom_bot")

_LARGEST_FRAME = 8 * MIB
#: Messages taken from the socket and not yet stored. Beyond it nothing more is read until there is room.
_MOST_WAITING = 1000
#: Events handled at once; further ones are dropped with a warning (they matter for five seconds only).
_MOST_EVENTS = 100
_CONFLICTS = 3
#: Tries to store one message (about 50 minutes); one that never can be must not hold up the others for ever.
_TRIES = 100
_GOODBYE = 5.0
_ELSEWHERE = "another gateway holds this bot's connection"

Handler = Callable[[Data], Awaitable[None]]


class Connection:
    """One bot's connection. `on_message` gets messages one by one, in order, and is called again until it
    returns; `on_event` gets events side by side. `on_held` is called when the lease has become ours, before
    anything comes in."""

    def __init__(
        self,
        url: str,
        bot_id: str,
        secret: str,
        lease: Lease,
        on_message: Handler,
        on_event: Handler,
        on_held: Callable[[], Awaitable[None]],
        times: Times,
    ) -> None:
        self._url, self._bot_id, self._secret = url, bot_id, secret
        self._lease, self._times = lease, times
        self._on_message, self._on_event, self._on_held = on_message, on_event, on_held
        self._ws: aiohttp.ClientWebSocketResponse | None = None
        self._ready = asyncio.Event()
        self._acks: dict[str, deque[asyncio.Future[Data]]] = {}
        self._waiting: asyncio.Queue[Data] = asyncio.Queue(_MOST_WAITING)
        self._events: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._kicks = self._refusals = self._learned = 0
        self._kicked = False
        self.health = Health(False, "not connected to WeCom yet", "wait a moment; see the log if it stays so")

    # -- life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._run(), name="wecom_bot connection"),
            asyncio.create_task(self._work(), name="wecom_bot messages"),
        ]

    async def stop(self) -> None:
        """Close the connection, then let the messages that were taken from it be stored (5 s at most)."""
        if not self._tasks:
            return
        connection, worker = self._tasks
        self._tasks = []
        connection.cancel()
        await asyncio.wait({connection})
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE):
                await self._waiting.join()
        if not self._waiting.empty():
            log.error("%d messages could not be stored before the end and are lost", self._waiting.qsize())
        for task in (worker, *self._events):
            task.cancel()
        await asyncio.wait({worker, *self._events})
        await self._lease.free()

    async def _run(self) -> None:
        pause = self._times.first_pause
        async with aiohttp.ClientSession(trust_env=True) as http:
            while True:
                began = asyncio.get_running_loop().time()
                rest = 0.0
                try:
                    if await self._lease.hold():
                        if self._learned != self._lease.times:
                            await self._on_held()
                            self._learned = self._lease.times
                        rest = await self._connected(http)
                    else:
                        self.health = Health(True, _ELSEWHERE)
                        rest = self._lease.pause
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    self._trouble(f"the connection failed: {type(error).__name__}")
                except Exception:
                    # The store may fail, or a frame be of an unknown kind: the connection must come back.
                    log.exception("the long connection failed")
                    self._trouble("the connection failed, see the log")
                if asyncio.get_running_loop().time() - began > self._times.ping:
                    pause = self._times.first_pause
                await self._stay_away(rest or pause * (0.75 + random.random() / 2))
                pause = min(pause * 2, self._times.longest_pause)

    async def _stay_away(self, seconds: float) -> None:
        """Wait, and keep the lease meanwhile if we have it: our next gateway would meet the same trouble."""
        end = asyncio.get_running_loop().time() + seconds
        while (left := end - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(left, self._times.lease / 3))
            if self._lease.held:
                await self._lease.hold()

    def _trouble(self, reason: str) -> None:
        if not self._kicked:
            self.health = Health(
                False, reason, "WeCom's server must be reachable on port 443; it is tried again"
            )
            log.warning("WeCom AI bot: %s", reason)

    # -- one connection ----------------------------------------------------------------------------------

    async def _connected(self, http: aiohttp.ClientSession) -> float:
        """Live one connection to its end; returns the seconds to stay away (0: the usual pause)."""
        async with asyncio.timeout(self._times.connect):
            ws = await http.ws_connect(self._url, max_msg_size=_LARGEST_FRAME, timeout=_close_soon())
        reader = asyncio.create_task(self._read(ws), name="wecom_bot reader")
        self._ws, self._kicked = ws, False
        try:
            await self._call_once(SUBSCRIBE, {"bot_id": self._bot_id, "secret": self._secret}, "")
            self._refusals = 0
            self._ready.set()
            self.health = Health(True)
            log.info("WeCom AI bot: connected")
            await self._keep_alive(ws, reader)
        except BotError as error:
            return self._refused(error)
        except (NotSent, Unknown) as error:
            self._trouble(f"the subscription was not answered ({error})")
        finally:
            self._ready.clear()
            self._ws = None
            reader.cancel()
            await asyncio.wait({reader})
            self._lose_acks()
            with suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with asyncio.timeout(2):
                    await ws.close()
        if self._kicked:
            return self._rest_after_kick()
        if self.health.ok:
            self._trouble("the connection was closed")
        return 0.0

    async def _keep_alive(self, ws: aiohttp.ClientWebSocketResponse, reader: asyncio.Task[None]) -> None:
        missed = 0
        while True:
            done, _ = await asyncio.wait({reader}, timeout=self._times.ping)
            if done:
                if self._kicks and not self._kicked:
                    self._kicks = 0
                return
            if not await self._lease.hold():
                log.warning("WeCom AI bot: the lease of the connection went to another gateway")
                return
            try:
                await self._call_once(PING, None, "")
                missed = 0
            except (Unknown, NotSent):
                missed += 1
                log.warning("WeCom AI bot: no answer to ping (%d)", missed)
                if missed >= 2:
                    return
            except BotError as error:
                log.warning("WeCom AI bot: %s; connecting anew", error)
                return

    def _refused(self, error: BotError) -> float:
        if error.code in (BUSY, CONFLICT, FLOODED):
            self._trouble(str(error))
            return self._times.longest_pause
        self._refusals += 1
        self.health = Health(
            False,
            f"WeCom refused the bot ID or the secret (code {error.code})",
            "take bot_id and secret anew from the bot's page (API 模式, 长连接), then restart",
        )
        log.error("WeCom AI bot: %s. %s", self.health.reason, self.health.cure)
        return self._longer(self._times.refused_pause, self._refusals)

    def _rest_after_kick(self) -> float:
        """A bot has one connection; whoever subscribes last gets it. Fighting for it would help nobody."""
        self._kicks += 1
        rest = self._longer(self._times.kicked_pause, self._kicks)
        self.health = Health(
            False,
            "another program connected with this bot ID, so WeCom closed our connection",
            "stop the other program (or give it a bot of its own), then restart; "
            f"tried again in {rest / 60:.0f} min",
        )
        log.error("WeCom AI bot: %s. What to do: %s", self.health.reason, self.health.cure)
        return rest

    def _longer(self, pause: float, times: int) -> float:
        """A rest that doubles each time, up to the longest."""
        return min(pause * float(1 << min(times - 1, 10)), self._times.longest_rest)

    async def _read(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        async for message in ws:
            if message.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                continue
            try:
                if await self._dispatch(read_json(message.data)):
                    return
            except (ValueError, RecursionError, AttributeError, TypeError) as error:
                # No JSON, or of no known shape. Its words are not logged: they may be a person's.
                log.error("WeCom AI bot: a frame could not be read and is skipped (%s)", type(error).__name__)

    async def _dispatch(self, frame: Data) -> bool:
        """Whether the connection is over."""
        cmd = frame.get("cmd")
        if cmd == MESSAGE:
            await self._waiting.put(frame)
        elif cmd == EVENT:
            event = (frame.get("body") or {}).get("event") or {}
            if event.get("eventtype") == "disconnected_event":
                self._kicked = True
                return True
            if len(self._events) >= _MOST_EVENTS:
                log.warning("WeCom AI bot: too many events at once; one is dropped")
                return False
            task = asyncio.create_task(self._event(frame), name="wecom_bot event")
            self._events.add(task)
            task.add_done_callback(self._events.discard)
        else:
            req_id = str((frame.get("headers") or {}).get("req_id", ""))
            for future in self._acks.get(req_id, ()):
                if not future.done():
                    future.set_result(frame)
                    break
        return False

    async def _event(self, frame: Data) -> None:
        try:
            await self._on_event(frame)
        except Exception:
            # An event is an extra (a welcome, a pressed button): its failure must not end the connection.
            log.exception("WeCom AI bot: an event could not be handled")

    async def _work(self) -> None:
        """Hand on messages in order. WeCom sends each once, so one that was not stored is tried again."""
        while True:
            frame = await self._waiting.get()
            await self._hand_on(frame)
            self._waiting.task_done()

    async def _hand_on(self, frame: Data) -> None:
        pause = self._times.first_pause
        for _ in range(_TRIES):
            try:
                await self._on_message(frame)
                return
            except Exception:
                # Whatever kept it from being stored may pass; giving up would lose the message.
                log.exception("WeCom AI bot: a message could not be stored; again in %.0f s", pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, self._times.longest_pause)
        log.error("WeCom AI bot: a message is given up after %d tries", _TRIES)

    # -- calls -------------------------------------------------------------------------------------------

    async def call(self, cmd: str, body: Data, req_id: str = "") -> Data:
        """One call, answered with its body. Raises BotError (refused), NotSent (at once when the connection
        is another gateway's), or Unknown (no answer came)."""
        conflicts = 0
        again = True
        while True:
            self.require()
            try:
                async with asyncio.timeout(self._times.resend):
                    await self._ready.wait()
            except TimeoutError:
                raise NotSent("the long connection to WeCom is down") from None
            try:
                return await self._call_once(cmd, body, req_id)
            except BotError as error:
                if error.code == NOT_SUBSCRIBED and again:
                    again = False
                    await self._reconnect()
                elif error.code == CONFLICT and conflicts < _CONFLICTS:
                    conflicts += 1
                    await asyncio.sleep(0.2 * conflicts)
                else:
                    raise

    @property
    def held(self) -> bool:
        """Whether the connection is ours, up or down."""
        return self._lease.held

    def require(self) -> None:
        """Raises NotSent when another gateway holds the connection."""
        if self._lease.elsewhere:
            raise NotSent(_ELSEWHERE)

    async def _reconnect(self) -> None:
        log.warning("WeCom AI bot: the server forgot the subscription; connecting anew")
        self._ready.clear()
        if self._ws is not None:
            with suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with asyncio.timeout(2):
                    await self._ws.close()

    async def _call_once(self, cmd: str, body: Data | None, req_id: str) -> Data:
        ws = self._ws
        if ws is None:
            raise NotSent("the long connection to WeCom is down")
        req_id = req_id or new_req_id(cmd)
        frame: Data = {"cmd": cmd, "headers": {"req_id": req_id}}
        if body is not None:
            frame["body"] = body
        future: asyncio.Future[Data] = asyncio.get_running_loop().create_future()
        # Answers to calls with one req_id come in the order of the calls.
        lane = self._acks.setdefault(req_id, deque())
        lane.append(future)
        try:
            try:
                await ws.send_json(frame)
            except (ConnectionError, aiohttp.ClientError) as error:
                raise NotSent(f"the long connection to WeCom broke ({type(error).__name__})") from None
            async with asyncio.timeout(self._times.ack):
                return result(cmd, await future)
        except TimeoutError:
            raise Unknown(f"WeCom did not answer {cmd} within {self._times.ack:.0f} s") from None
        finally:
            lane.remove(future)
            if not lane:
                self._acks.pop(req_id, None)

    def _lose_acks(self) -> None:
        for lane in list(self._acks.values()):
            for future in lane:
                if not future.done():
                    future.set_exception(Unknown("the long connection ended before WeCom answered"))


def _close_soon() -> aiohttp.ClientWSTimeout:
    return aiohttp.ClientWSTimeout(ws_close=2.0)
