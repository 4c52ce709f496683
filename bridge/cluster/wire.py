"""Requests between the processes of one installation, over the store's relay.

A request is sent again until its answer is there, and whoever gets it does it once: so neither a line that
breaks nor a restart of Redis loses or doubles it. Only when the other process dies with a request its outcome
is unknown; that it is dead is concluded from its silence while we ourselves could ask.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal

from bridge.store.base import Relay, StoreError, encode
from channels.base import Json

log = logging.getLogger("causeway.cluster")

Role = Literal["gateway", "worker"]
Handler = Callable[[list[Any]], Awaitable[Json]]
Told = Callable[[list[Any]], None]

#: A process says so often that it is there, is on the list for so long, and is held for dead when it was
#: missing from so many lists in a row.
BEAT, ALIVE, MISSED = 2.0, 8.0, 4
#: Seconds after which a request is sent again.
AGAIN = 3.0
#: Requests at work in a process at once, and answers that are remembered for requests that come again.
MOST, REMEMBERED = 5_000, 10_000
#: A longer answer is to a question that may be asked again (characters).
LARGEST_REMEMBERED = 4_096
_LEAVING, _START = 5.0, 30.0
_FIRST = asyncio.FIRST_COMPLETED


class Unreached(Exception):
    """The request was not answered. `sent`: it may have been done all the same."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Refused(Exception):
    """The other process could not do it. `kind` is the error's class name, `extra` what belongs to it."""

    def __init__(self, kind: str, message: str, extra: Json = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.extra = extra


@dataclass(frozen=True, slots=True)
class Member:
    """A process that is there. `channels` is what a gateway says of each: see `Gateway.describe`. `draining`:
    it takes on nothing new."""

    name: str
    role: Role
    draining: bool = False
    channels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def ranked(names: list[str], subject: str) -> list[str]:
    """The names in an order that depends on the subject alone, and stays when others come and go."""
    return sorted(names, key=lambda name: blake2b(f"{name}\0{subject}".encode(), digest_size=8).digest())


class Wire:
    """One process's end. `describe` gives what is told to the others besides the role."""

    def __init__(
        self,
        relay: Relay,
        name: str,
        role: Role,
        describe: Callable[[], Mapping[str, Any]] = dict,
        *,
        beat: float = BEAT,
    ) -> None:
        self.name = name
        self.role: Role = role
        self._relay = relay
        self._describe = describe
        self._beat = beat
        self._alive_for = ALIVE / BEAT * beat
        self._beaten = time.monotonic()
        self._handlers: dict[str, Handler] = {}
        self._told: dict[str, Told] = {}
        self._members: dict[str, Member] = {}
        self._missed: dict[str, int] = {}
        self._left: OrderedDict[str, None] = OrderedDict()
        self._calls: dict[str, asyncio.Future[Json]] = {}
        self._resend = asyncio.Event()
        self._numbers = itertools.count(1)
        self._at_work: dict[str, asyncio.Task[None]] = {}
        self._answers: OrderedDict[str, str] = OrderedDict()
        self._sending: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self.on_new_line: Callable[[], None] = lambda: None

    def on(self, what: str, handler: Handler) -> None:
        """Answer requests of a kind."""
        self._handlers[what] = handler

    def hear(self, what: str, told: Told) -> None:
        """Take news of a kind, in the order in which a process sends them."""
        self._told[what] = told

    # -- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when this process is on the list. Raises StoreError."""
        reader = asyncio.create_task(self._read(), name="cluster reader")
        self._tasks = [reader]
        try:
            async with asyncio.timeout(_START):
                await self._changed.wait()  # the line is made
        except TimeoutError:
            raise StoreError("Redis does not let this process SUBSCRIBE; its log says why.") from None
        await self._look()
        await self.tell_all("here", [self.name, self._record()])
        self._tasks.append(asyncio.create_task(self._keep(), name="cluster heartbeat"))

    async def stop(self) -> None:
        """Finish what is being done for others, then leave the list."""
        if self._at_work:
            await asyncio.wait(set(self._at_work.values()), timeout=_LEAVING)
        if self._tasks:
            await self._relay.leave(self.name)
            await self.tell_all("bye", [self.name])
        if self._sending:
            await asyncio.wait(set(self._sending), timeout=_LEAVING)
        tasks = [*self._tasks, *self._at_work.values(), *self._sending]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._tasks = []

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._beat)
            try:
                await self._look()
            except StoreError as error:
                log.warning("the other processes cannot be seen: %s", error)

    async def _look(self) -> None:
        began = time.monotonic()
        found = await self._relay.keep_alive(self.name, self._record(), self._alive_for)
        self._beaten = began
        for name, text in found.items():
            self._enter(name, text)
        for name in [name for name in self._members if name not in found]:
            # Missing from a list that we could read. After an outage of Redis everybody is, for a beat.
            self._missed[name] = self._missed.get(name, 0) + 1
            if self._missed[name] >= MISSED:
                log.warning("%s %s is gone", self._members[name].role, name)
                self._forget(name)  # until it says again that it is there: it may only have stood still
        self._changed.set()

    def _record(self) -> str:
        return encode({"role": self.role, **self._describe()})

    def _enter(self, name: str, record: str) -> None:
        if name in self._left or name == self.name:
            return
        kept = json.loads(record)
        if name not in self._members:
            log.info("%s %s is there", kept["role"], name)
        draining = bool(kept.get("draining"))
        self._members[name] = Member(name, kept["role"], draining, kept.get("channels") or {})
        self._missed.pop(name, None)

    def _forget(self, name: str) -> None:
        self._members.pop(name, None)
        self._missed.pop(name, None)
        self._resend.set()

    def _leaves(self, how: str, name: str) -> None:
        if how == "bye":
            self._left[name] = None
            if len(self._left) > REMEMBERED:
                self._left.popitem(last=False)
            self._forget(name)
        elif name in self._members:
            self._members[name] = replace(self._members[name], draining=True)

    def members(self, role: Role) -> list[Member]:
        """Those that are there, but for this process."""
        return [m for m in self._members.values() if m.role == role and m.name not in self._missed]

    def workers(self) -> list[str]:
        """The names of the workers that take on sessions, but for this process."""
        return [one.name for one in self.members("worker") if not one.draining]

    def alive(self, name: str) -> bool:
        """Whether a process is not known to be gone."""
        return name in self._members

    # -- asking ----------------------------------------------------------------------------------------

    async def call(self, to: str, what: str, args: list[Any], *, seconds: float, once: bool = False) -> Json:
        """Ask a process for something. `once`: too large to be sent or remembered twice.

        Raises Refused with the other's error, Unreached when there is no answer within `seconds`, or when the
        other process is gone.
        """
        id = f"{self.name}.{next(self._numbers)}"
        text = encode({"id": id, "from": self.name, "what": what, "args": args, "once": once})
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._calls[id] = answer
        sent, heard = False, 0
        waits: set[asyncio.Future[Any]]
        try:
            async with asyncio.timeout(seconds):
                while True:
                    if not self.alive(to):
                        raise Unreached(f"{to} is gone", sent=sent)
                    if not (sent and once):
                        try:
                            heard = await self._relay.publish(to, text)
                            sent = sent or heard > 0
                        except StoreError as error:
                            sent = True  # who knows
                            log.info("a request waits: %s", error)
                    self._resend.clear()
                    waits = {answer, early := asyncio.create_task(self._resend.wait())}
                    pause = AGAIN if heard else AGAIN / 10
                    try:
                        await asyncio.wait(waits, timeout=pause, return_when=_FIRST)
                    finally:
                        early.cancel()
                    if answer.done():
                        return answer.result()
        except TimeoutError:
            raise Unreached(f"{to} did not answer within {seconds:.0f} s", sent=sent) from None
        finally:
            self._calls.pop(id, None)

    async def ask_all(self, role: Role, what: str, args: list[Any], *, seconds: float) -> Json:
        """The first answer of a process of this role that is not None; None when none has one."""
        asked = [
            asyncio.ensure_future(self.call(member.name, what, args, seconds=seconds))
            for member in self.members(role)
        ]
        try:
            for next_one in asyncio.as_completed(asked):
                try:
                    found = await next_one
                except (Unreached, Refused) as error:
                    log.info("no answer to %s: %s", what, error)
                    continue
                if found is not None:
                    return found
            return None
        finally:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def nudge(self, to: str, what: str, args: list[Any]) -> bool:
        """Tell a process what it finds out by itself if this gets lost. Whether it was listening."""
        text = encode({"what": what, "args": args})
        try:
            return await self._relay.publish(to, text) > 0
        except StoreError as error:
            log.info("%s was not told: %s", to, error)
            return False

    async def tell_all(self, what: str, args: list[Any]) -> None:
        """The same to all processes."""
        await self.nudge("all", what, args)

    def tell(self, to: str, what: str, args: list[Any]) -> None:
        """The same to one, in the order of these calls, without waiting. Dropped when too many wait."""
        if len(self._sending) >= MOST:
            return
        task = asyncio.create_task(self._nudge_quietly(to, what, args), name=f"tell {what}")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _nudge_quietly(self, to: str, what: str, args: list[Any]) -> None:
        await self.nudge(to, what, args)

    # -- being asked -----------------------------------------------------------------------------------

    async def _read(self) -> None:
        async for text in self._relay.listen([self.name, "all"]):
            try:
                if text is None:
                    self._changed.set()
                    self._resend.set()
                    self.on_new_line()
                else:
                    self._take(json.loads(text))
            except Exception:
                # One message that cannot be understood must not end the line for all.
                log.exception("a message of another process was not understood")

    def _take(self, message: Mapping[str, Any]) -> None:
        if "answer" in message:
            self._answered(message)
            return
        what = message["what"]
        if "id" not in message:
            if what == "here":
                self._enter(*message["args"])
            elif what in ("bye", "draining"):
                self._leaves(what, message["args"][0])
            elif what in self._told:
                self._told[what](message["args"])
            return
        id = message["id"]
        if id in self._at_work:
            return  # the answer will come
        if id in self._answers:
            self._send(message["from"], self._answers[id])
            return
        task = asyncio.create_task(self._work(message), name=f"request {what}")
        self._at_work[id] = task
        task.add_done_callback(lambda _: self._at_work.pop(id, None))

    def _answered(self, message: Mapping[str, Any]) -> None:
        future = self._calls.get(message["id"])
        if future is None or future.done():
            return
        error = message.get("error")
        if error is None:
            future.set_result(message["answer"])
        else:
            future.set_exception(Refused(*error))

    async def _work(self, message: Mapping[str, Any]) -> None:
        id, handler = message["id"], self._handlers.get(message["what"])
        answer: dict[str, Any] = {"id": id, "answer": None}
        try:
            if handler is None:
                raise Refused("NotSent", f"this process does not know {message['what']}")
            if time.monotonic() - self._beaten > self._alive_for:
                # We stood still, and may have been given up: somebody else may be at work on this by now.
                raise Refused("NotSent", "this process was not heard of for a while")
            if len(self._at_work) > MOST:
                raise Refused("NotSent", "this process has too much to do")
            answer["answer"] = await handler(message["args"])
        except Refused as error:
            answer["error"] = [error.kind, str(error), error.extra]
        except Exception as error:
            # Whatever it is, whoever asked must hear of it instead of waiting.
            log.exception("a request of another process failed")
            answer["error"] = ["Fault", f"{type(error).__name__} in {self.name}", None]
        text = encode(answer)
        if not message.get("once") and len(text) <= LARGEST_REMEMBERED:
            self._answers[id] = text
            if len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)
        self._send(message["from"], text)

    def _send(self, to: str, text: str) -> None:
        async def send() -> None:
            try:
                await self._relay.publish(to, text)
            except StoreError as error:
                log.info("an answer waits until it is asked for again: %s", error)

        task = asyncio.create_task(send(), name="answer")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
