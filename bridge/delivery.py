"""What people see: a reply streamed where the channel streams, in chunks, each written down, resumable.

A chunk is written down before its platform call (`intent`) and after it (`sent`, with the platform's message
id). On channels that are idempotent the platform itself recognises a repeated chunk, so nothing is written.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from agent.events import Event, TextDelta, TextReset, ToolFinished, ToolProgress, ToolStarted
from agent.prompt import NO_REPLY
from bridge.store.base import SessionLost, Store, StoredChunk, StoredReply, StoreError
from channels.base import (
    Activity,
    Address,
    Channel,
    Chunk,
    Flooded,
    Gone,
    Lost,
    NotSent,
    Outbound,
    OutFile,
    Rejected,
    ReplyRef,
    SendError,
    Unknown,
)

log = logging.getLogger("causeway.delivery")

#: A reply that the platform has not taken for so long is given up (seconds).
GIVE_UP = 24 * 3600.0
#: Most answers to commands under way at once.
MOST_AT_ONCE = 2000
_LONGEST_PAUSE = 60.0
_LONGEST_STORE_PAUSE = 30.0
_CALL_DEADLINE = 120.0
_TYPING_DEADLINE = 5.0
#: Seconds that a quick answer gets before it is shown growing: it then costs its platform one call.
_FIRST_LOOK = 0.15
_LAST_CALL = 5.0
#: Longer text is rendered in a thread: dense Markdown costs about 2 ms a thousand characters.
_LONG_TEXT = 8000


def ref_to_json(ref: ReplyRef) -> dict[str, Any]:
    return asdict(ref)


def ref_from_json(data: Mapping[str, Any]) -> ReplyRef:
    return ReplyRef(**{**data, "address": Address(**data["address"])})


def body_to_json(outbound: Outbound) -> dict[str, Any]:
    return {"v": 1, **asdict(outbound)}


def body_from_json(data: Mapping[str, Any]) -> Outbound:
    return Outbound(data.get("text", ""), tuple(OutFile(**file) for file in data.get("files", ())))


@dataclass(slots=True)
class _Shown:
    """A chunk that the chat already has. `message_id` is empty when the platform never told it."""

    message_id: str
    chunk: Chunk | None
    final: bool


class Delivery:
    """Delivers replies through channels and keeps the outbox true."""

    def __init__(
        self,
        store: Store,
        channels: Mapping[str, Channel],
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.store = store
        self.channels = channels
        self.clock = clock
        self.sleep = sleep
        self._tasks: dict[str, tuple[asyncio.Task[None], str]] = {}
        #: Answers of commands that are at work (reply -> session): what is written down is for a crash only.
        self.preparing: dict[str, str] = {}

    def delivers(self, reply: str = "", session: str = "") -> bool:
        """Whether a reply, or any reply of a session, is being made or delivered by this process."""
        if reply in self._tasks or reply in self.preparing or session in self.preparing.values():
            return True
        return any(of == session for _, of in self._tasks.values())

    def open(self, ref: ReplyRef, session: str, stored: StoredReply | None = None) -> LiveReply:
        """A reply that a run is about to write; `stored` is what an earlier process left of it."""
        return LiveReply(self, self.channels[ref.address.channel], ref, session, stored)

    def command_reply(self, ref: ReplyRef, session: str, outbound: Outbound) -> StoredReply:
        """A whole reply as the outbox keeps it (state `complete`)."""
        return StoredReply(ref.id, session, ref_to_json(ref), body_to_json(outbound), "complete")

    def deliver(self, reply: StoredReply) -> None:
        """Deliver a whole reply that is already in the outbox, in a task of ours.

        With `MOST_AT_ONCE` under way (a platform that takes nothing for long) it goes out at the next start.
        """
        if len(self._tasks) >= MOST_AT_ONCE:
            log.error(
                "%d replies wait for their platforms; reply %s waits in the outbox", MOST_AT_ONCE, reply.id
            )
            return
        if reply.id in self._tasks:
            return
        task = asyncio.create_task(self._deliver(reply), name=f"deliver {reply.id}")
        self._tasks[reply.id] = task, reply.session
        task.add_done_callback(lambda _: self._tasks.pop(reply.id, None))

    async def _deliver(self, reply: StoredReply) -> None:
        pause = 1.0
        while reply.state == "complete":
            live = self.open(ref_from_json(reply.ref), reply.session, reply)
            try:
                await live.finish(body_from_json(reply.body), ())
                return
            except SessionLost as error:
                log.info("reply %s is left to others: %s", reply.id, error)
                return
            except StoreError as error:
                log.warning("a reply waits for the store: %s", error)
            except Exception:
                # The task's owner only waits for its end; the outbox still has the reply for the next start.
                log.exception("reply %s could not be delivered now", reply.id)
                return
            await self.sleep(pause)
            pause = min(pause * 2, _LONGEST_STORE_PAUSE)
            with suppress(StoreError):  # else it is tried as it was
                reply = await self.store.reply(reply.id) or reply

    async def unanswered(self, ref: ReplyRef) -> None:
        """Tell the channel that nothing more will come for a message, so that nobody waits for it."""
        channel = self.channels.get(ref.address.channel)
        if channel is None:
            return
        try:
            async with asyncio.timeout(_TYPING_DEADLINE):
                await channel.end(ref)
        except (SendError, TimeoutError) as error:
            log.info("the end of %s was not shown: %s", ref.id, error)

    async def stop(self, grace: float) -> None:
        """Wait for deliveries under way, at most `grace` seconds; what is left stays in the outbox."""
        if tasks := {task for task, _ in self._tasks.values()}:
            _, late = await asyncio.wait(tasks, timeout=grace)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)


class LiveReply:
    """One reply on its way. `emit` takes the agent's events; `finish` shows the rest and settles it."""

    def __init__(
        self, delivery: Delivery, channel: Channel, ref: ReplyRef, session: str, stored: StoredReply | None
    ) -> None:
        self._delivery = delivery
        self._channel = channel
        self.ref = ref
        self._session = session
        self._recorded = not channel.limits.idempotent
        self._open = stored is not None
        self._complete = stored is not None and stored.state == "complete"
        self._shown: dict[int, _Shown] = {}
        self._passing: set[int] = set()
        for chunk in stored.chunks if stored else ():
            if chunk.state == "sent":
                self._shown[chunk.n] = _Shown(chunk.message_id, None, final=False)
            elif chunk.state in ("unknown", "rejected"):
                self._shown[chunk.n] = _Shown("", None, final=True)
        self.text = ""
        self._dirty = asyncio.Event()
        self._ending = asyncio.Event()
        self._written = asyncio.Event()  # what the platform has shown is written down
        self._written.set()
        self._not_before = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    # -- while the run works ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to show signs of life. Every `start` is followed by `finish` or `park`."""
        if self._channel.limits.streams:
            self._tasks.append(asyncio.create_task(self._pump(), name=f"stream {self.ref.id}"))
        if self._channel.has("acknowledge"):
            self._tasks.append(asyncio.create_task(self._acknowledge(), name=f"acknowledge {self.ref.id}"))
        if self._channel.limits.typing_interval > 0:
            self._tasks.append(asyncio.create_task(self._type(), name=f"typing {self.ref.id}"))

    def emit(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            self.text += event.text
            self._dirty.set()
        elif isinstance(event, TextReset):
            self.text = self.text[: event.keep]
            self._dirty.set()
        elif isinstance(event, ToolStarted | ToolProgress):
            self._channel.activity(self.ref, Activity(event.call, event.name, "running", event.preview))
        elif isinstance(event, ToolFinished):
            self._channel.activity(
                self.ref,
                Activity(event.call, event.name, "done" if event.ok else "failed", event.preview),
            )

    async def _acknowledge(self) -> None:
        try:
            async with asyncio.timeout(_TYPING_DEADLINE):
                await self._channel.acknowledge(self.ref)
        except (SendError, TimeoutError) as error:
            log.info("the acknowledgement was not shown: %s", error)

    async def _type(self) -> None:
        while not self._ending.is_set():
            try:
                async with asyncio.timeout(_TYPING_DEADLINE):
                    await self._channel.typing(self.ref)
            except (SendError, TimeoutError) as error:
                log.debug("typing sign not shown: %s", error)
            await asyncio.sleep(self._channel.limits.typing_interval)

    async def _pump(self) -> None:
        """Show growing text, the newest state only, no faster than the channel allows."""
        clock, interval = self._delivery.clock, self._channel.limits.update_interval
        while not self._ending.is_set():
            await self._dirty.wait()
            if not self._shown and not self._ending.is_set():
                await self._pause(_FIRST_LOOK)
            pause = self._not_before - clock()
            if pause > 0 and not self._ending.is_set():
                await self._pause(pause)
            self._dirty.clear()
            if self._ending.is_set() or not self.text.strip() or self._may_be_silent():
                continue
            self._not_before = clock() + interval
            try:
                await self._show(Outbound(self.text), final=False)
            except Flooded as error:
                self._dirty.set()  # what could not be shown now is still to be shown
                self._not_before = clock() + error.retry_after
            except (SendError, StoreError) as error:
                # The text is still complete in memory: the final delivery shows it, with retries.
                log.info("a streamed update was not shown: %s", error)
                self._dirty.set()
                self._not_before = clock() + max(interval, 5.0)

    def _may_be_silent(self) -> bool:
        """Whether the text so far may yet turn out to mean "nothing to say" (in a group)."""
        return self.ref.address.kind != "direct" and NO_REPLY.startswith(self.text.strip())

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until the reply is to be finished."""
        try:
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        except TimeoutError:
            return  # the pause is over

    async def _quiet(self, *, patient: bool = True) -> None:
        """End the helpers; a platform call under way is not cut off, since its outcome would be unknown, and
        what it came to is written down. Not `patient`: no store that is away is waited for."""
        self._ending.set()
        self._dirty.set()
        for task in self._tasks:
            if (task.get_name() or "").startswith("typing") or not (patient or self._written.is_set()):
                task.cancel()
        if self._tasks:
            try:
                _, late = await asyncio.wait(self._tasks, timeout=_CALL_DEADLINE)
                if patient:
                    await self._written.wait()
                for task in late:
                    task.cancel()
            except asyncio.CancelledError:
                # The bridge stops. A call under way may end first, so that it is written down (see `_post`).
                for task in self._tasks:
                    task.cancel()
                await asyncio.wait(self._tasks, timeout=2 * _LAST_CALL)
                raise
        for task in self._tasks:
            if not task.cancelled() and task.done() and (error := task.exception()) is not None:
                log.error("showing a reply failed", exc_info=error)
        self._tasks.clear()

    async def park(self, *, patient: bool = False) -> None:
        """Stop showing; the run will go on later, mostly in another process. `patient`: in this one, once the
        store is back: until then what is shown stays known here."""
        await self._quiet(patient=patient)

    # -- the end ---------------------------------------------------------------------------------------

    async def finish(self, outbound: Outbound, seqs: Sequence[int]) -> bool:
        """Show the whole reply and settle it together with the inbox messages it answers.

        Waits and tries again while the platform does not take it, up to `GIVE_UP`. Returns whether it was
        delivered; when cancelled, the outbox keeps it for the next start.
        """
        await self._quiet()
        if self._recorded and not self._complete:
            await self._delivery.store.complete_reply(
                StoredReply(
                    self.ref.id, self._session, ref_to_json(self.ref), body_to_json(outbound), "complete"
                )
            )
            self._open = True
        delivered = await self._deliver(outbound)
        if not self._recorded:
            await self._end()  # nobody waits for our bookkeeping: repeating it all would show nothing twice
        await self._delivery.store.settle_reply(self.ref.id, "delivered" if delivered else "failed", seqs)
        if self._recorded:
            await self._end()
        return delivered

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(_CALL_DEADLINE):
                await self._channel.end(self.ref)
        except (SendError, TimeoutError) as error:
            log.warning("reply %s is shown, but its end was not: %s", self.ref.id, error)

    async def _deliver(self, outbound: Outbound) -> bool:
        began, pause = self._delivery.clock(), 1.0
        while True:
            try:
                await self._show(outbound, final=True)
            except Gone as error:
                log.warning("reply %s given up: the chat is gone: %s", self.ref.id, error)
                return False
            except NotSent as error:
                if self._delivery.clock() - began > GIVE_UP:
                    log.error("reply %s given up after a day: %s", self.ref.id, error)
                    return False
                wait = pause * (0.75 + random.random() / 2)
                if isinstance(error, Flooded):
                    wait = error.retry_after
                else:
                    pause = min(pause * 2, _LONGEST_PAUSE)
                # An outage of hours is told by the channel's health: here its beginning is enough.
                level = logging.INFO if pause < _LONGEST_PAUSE else logging.DEBUG
                log.log(level, "reply %s: not taken yet (%s), again in %.0f s", self.ref.id, error, wait)
                await self._delivery.sleep(wait)
            else:
                return True

    async def _show(self, outbound: Outbound, *, final: bool) -> None:
        """Bring the chat to `outbound`: post what is new, edit what changed.

        Raises NotSent or Gone, and while the reply is still growing any SendError.
        """
        if not outbound.text.strip() and not outbound.files:
            chunks: list[Chunk] = []
        elif len(outbound.text) > _LONG_TEXT:
            chunks = await asyncio.to_thread(self._channel.render, outbound)
        else:
            chunks = self._channel.render(outbound)
        for n, chunk in enumerate(chunks):
            done = final or n < len(chunks) - 1
            shown = self._shown.get(n)
            try:
                if shown is None or (not shown.message_id and not shown.final):
                    await self._post(n, chunk, done)
                elif shown.message_id and (shown.chunk != chunk or shown.final != done):
                    try:
                        await self._edit(n, shown, chunk, done)
                    except Lost as error:
                        log.info("chunk %d of reply %s is posted anew: %s", n, self.ref.id, error)
                        await self._post(n, chunk, done)
            except Rejected as error:
                if not final:
                    raise
                log.error("chunk %d of reply %s was refused for good: %s", n, self.ref.id, error)
                self._shown[n] = _Shown("", chunk, final=True)
                await self._record(StoredChunk(n, "rejected"))
        if final:
            for n in sorted(self._shown):
                if n >= len(chunks) and self._shown[n].message_id:
                    await self._retract(n, self._shown[n])

    async def _post(self, n: int, chunk: Chunk, final: bool) -> None:
        if final or n not in self._passing:
            await self._record(StoredChunk(n, "intent"))
        call = asyncio.ensure_future(self._channel.post(self.ref, n, chunk, final=final))
        try:
            async with asyncio.timeout(_CALL_DEADLINE):
                message_id = await asyncio.shield(call)
        except asyncio.CancelledError:
            # The bridge stops. Cutting the call off would leave its outcome unknown: it may end first.
            await asyncio.wait({call}, timeout=_LAST_CALL)
            if not call.done() or call.cancelled():
                call.cancel()
            elif call.exception() is None:
                await self._record(StoredChunk(n, "sent", call.result()))
            elif final and isinstance(call.exception(), Unknown):
                await self._record(StoredChunk(n, "unknown"))
            raise
        except (Unknown, TimeoutError) as error:
            call.cancel()
            # It may have arrived. A whole chunk is not repeated; one that was still growing is posted
            # anew when it is whole, since half an answer is worse than a doubled beginning.
            log.warning("chunk %d of reply %s may or may not have arrived: %s", n, self.ref.id, error)
            self._shown[n] = _Shown("", chunk, final=final)
            await self._settle(StoredChunk(n, "unknown" if final else "intent"))
            return
        self._shown[n] = _Shown(message_id, chunk, final)
        if not message_id and not final:
            self._passing.add(n)  # a draft leaves no message: what is written down of it stays true
        else:
            await self._settle(StoredChunk(n, "sent", message_id))

    async def _edit(self, n: int, shown: _Shown, chunk: Chunk, final: bool) -> None:
        """Edits repeat without harm, so they are not written down, and an unknown outcome is tried again."""
        try:
            async with asyncio.timeout(_CALL_DEADLINE):
                await self._channel.edit(self.ref, n, shown.message_id, chunk, final=final)
        except (Unknown, TimeoutError) as error:
            raise NotSent(f"an edit's outcome is unknown: {error}") from error
        shown.chunk, shown.final = chunk, final

    async def _retract(self, n: int, shown: _Shown) -> None:
        """A streamed chunk that the final text no longer has (its step was tried again) is blanked."""
        blank = Chunk("…")
        if shown.chunk == blank:
            return
        try:
            await self._edit(n, shown, blank, True)
        except Rejected as error:
            log.warning("chunk %d of reply %s could not be taken back: %s", n, self.ref.id, error)
            shown.chunk = blank

    async def _settle(self, chunk: StoredChunk) -> None:
        """Write down what a call has come to, however long the store does not take it: going on without that
        would show the chunk once more."""
        pause = 1.0
        self._written.clear()
        try:
            while True:
                try:
                    return await self._record(chunk)
                except SessionLost:
                    raise
                except StoreError as error:
                    log.warning("what is shown of a reply cannot be written down yet: %s", error)
                await self._delivery.sleep(pause)
                pause = min(pause * 2, _LONGEST_STORE_PAUSE)
        finally:
            self._written.set()

    async def _record(self, chunk: StoredChunk) -> None:
        if not self._recorded:
            return
        store = self._delivery.store
        if not self._open:
            await store.open_reply(StoredReply(self.ref.id, self._session, ref_to_json(self.ref), {}, "open"))
            self._open = True
        await store.put_chunk(self.ref.id, chunk)
