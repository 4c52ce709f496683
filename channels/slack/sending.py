"""Replies as Slack shows them: streamed where it lets us, else posted and updated; one message in the end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from channels.base import (
    Activity,
    Choice,
    Chunk,
    Env,
    Health,
    Inbound,
    Limits,
    Receive,
    Rejected,
    ReplyRef,
    SendError,
)
from channels.base import Sender as Person
from channels.slack.api import Api, ApiError
from channels.slack.blocks import MAX_TEXT, payload, question, render, text_chunks
from channels.slack.bounded import Owned
from channels.slack.config import SlackConfig
from channels.slack.errors import refuse, send_error
from channels.slack.files import upload
from channels.slack.inbound import Identity
from channels.slack.pacing import APPENDS, POSTS, STARTS, UPDATES, Bucket, Pace
from channels.slack.posting import COMMAND, Poster, metadata
from channels.slack.signs import Signs
from channels.slack.streaming import Over, Stream, Tasks, chunks, joint

__all__ = ["LIMITS", "Sender", "render"]

log = logging.getLogger("causeway.slack")

#: A status lives two minutes (docs.slack.dev, assistant.threads.setStatus).
LIMITS = Limits(max_text=MAX_TEXT, streams=True, update_interval=1.0, typing_interval=60.0)
_REPLIES = 2000
_CARDS_APART = 0.7  # seconds between two updates of task cards
_TAKE = 30.0  # seconds for the bridge to take a reader's "Stop"
_EARLY = "streams"  # our log of streams that were begun before their reply had text
_DAY = 24 * 3600.0


@dataclass(slots=True)
class _Reply:
    """What is under way of one reply."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    tasks: Tasks = field(default_factory=Tasks)
    stream: Stream | None = None
    early: str = ""  # ts of a stream that has no chunk yet
    posted: bool = False
    status: bool = False
    worker: asyncio.Task[None] | None = None


class Sender:
    """Everything that one Slack instance shows. `close` it after the last call. `rate`: posts a second and
    channel."""

    def __init__(
        self,
        api: Api,
        config: SlackConfig,
        env: Env,
        name: str,
        me: Identity,
        clock: Callable[[], float] = time.monotonic,
        rate: float = POSTS,
    ) -> None:
        self.api, self.config, self.env, self.name, self.me = api, config, env, name, me
        #: Where a person's "Stop" under a streamed answer goes, as the command that it means.
        self.receive: Receive | None = None
        self._clock = clock
        self.pace = Pace(clock, rate)
        self._signs = Signs(api)
        shared = env.state if env.shared else None
        self.poster = Poster(api, me, self.pace, clock, env.clock(), shared)
        self._updates = Bucket(UPDATES, 10, clock)
        self._appends = Bucket(APPENDS, 20, clock)
        self._starts = Bucket(STARTS, 10, clock)
        self._replies: dict[str, _Reply] = {}
        self._early: dict[str, str] | None = None  # reply -> ts; read when it is first needed
        self._no_streams: set[str] = set()  # channels, or "*"
        self._tasks = Owned()

    async def close(self) -> None:
        """End what is under way: a stream that stays open would end in an error after five minutes."""
        replies, self._replies = list(self._replies.values()), {}
        for reply in replies:
            await self._end_worker(reply)
        await self._tasks.wait(5.0)
        open_ = [r for r in replies if r.stream is not None and r.stream.state == "open"]
        await asyncio.gather(*(self._stop(reply) for reply in open_))

    def health(self) -> Health | None:
        """What is wrong with the account, or None."""
        return self.poster.trouble

    # -- chunks ------------------------------------------------------------------------------------------

    async def post(self, ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        reply = self._reply(ref)
        async with reply.lock:
            if chunk.file is not None:
                return await self._post_file(ref, chunk)
            if ref.to.startswith(COMMAND) or (ref.private and ref.address.kind != "direct"):
                # Not changeable later, so only the whole of it is shown.
                return f"private:{await self.poster.whisper(ref, str(n), chunk)}" if final else ""
            if reply.stream is not None and reply.stream.state == "stopped":
                return reply.stream.ts
            ts = await self._adopt(ref, reply, chunk, final) if n == 0 else ""
            ts = ts or await self.poster.take_up(ref, str(n), chunk)
            if not ts and not final:
                ts = await self._begin(ref, reply, n, chunk)
            if not ts:
                ts = await self.poster.post(ref, str(n), chunk)
            reply.posted, reply.status = True, False
            return ts

    async def edit(self, ref: ReplyRef, n: int, message_id: str, chunk: Chunk, *, final: bool) -> None:
        if chunk.file is not None or message_id.startswith(("private:", "file:")):
            return  # shown when it was whole
        reply = self._reply(ref)
        async with reply.lock:
            stream = reply.stream
            if stream is None or stream.ts != message_id:
                shown = False
            else:
                shown = stream.state == "stopped" or await self._streamed(ref, reply, stream, n, chunk, final)
            if shown:
                return
            if not final:
                self._updates.need()
            await self.poster.update(ref, str(n), message_id, chunk)

    async def _post_file(self, ref: ReplyRef, chunk: Chunk) -> str:
        assert chunk.file is not None
        address = ref.address
        comment = str(chunk.data.get("mrkdwn") or "")
        await self.pace.turn(address.chat)
        try:
            return f"file:{await upload(self.api, chunk.file, comment, address.chat, address.thread)}"
        except ApiError as error:
            if error.error == "ratelimited":
                self.pace.hold(address.chat, max(error.retry_after, 1.0))
            raise send_error(error) from None

    # -- streams -----------------------------------------------------------------------------------------

    async def _begin(self, ref: ReplyRef, reply: _Reply, n: int, chunk: Chunk) -> str:
        """Start a stream with what is there of a chunk; "" where it has to be posted."""
        end = joint(chunk.text, int(chunk.data.get("steady", 0)))
        if chunk.data.get("form") != "markdown" or not end or not self._may_stream(ref):
            return ""
        return await self._start_stream(ref, reply, chunk.text[:end], str(n))

    def _may_stream(self, ref: ReplyRef) -> bool:
        """A stream is a reply in a thread to a person."""
        if self.config.streaming == "update" or not (ref.address.thread and ref.person and self.me.team):
            return False
        return not self._no_streams & {"*", ref.address.chat} and not self._starts.wait()

    async def _start_stream(self, ref: ReplyRef, reply: _Reply, text: str, key: str = "0") -> str:
        """The ts of a new stream, "" where it is to be posted. Raises Unknown when one may have begun."""
        cards = reply.tasks.take()
        chat = ref.address.chat
        self._starts.take()
        try:
            answer = await self.api.call(
                "chat.startStream",
                channel=chat,
                thread_ts=ref.address.thread,
                recipient_user_id=ref.person,
                recipient_team_id=self.me.team,
                task_display_mode="timeline",
                chunks=chunks(cards, text),
            )
        except ApiError as error:
            reply.tasks.again(cards)
            if error.taken == "maybe":
                self.poster.doubt(ref, key)
                raise send_error(error) from None
            if error.error == "ratelimited":
                self._starts.drain(max(error.retry_after, 1.0))
            elif error.taken == "refused":
                log.warning("no streams in %s: %s", refuse(self._no_streams, chat, error), error)
            return ""
        reply.status = False
        reply.stream = Stream(self.api, chat, str(answer["ts"]), self._clock, text)
        return reply.stream.ts

    async def _adopt(self, ref: ReplyRef, reply: _Reply, chunk: Chunk, final: bool) -> str:
        """The first chunk goes into the message that has the reply's steps; "" when there is none."""
        stream = reply.stream
        if stream is not None and reply.early == stream.ts:
            shown = await self._streamed(ref, reply, stream, 0, chunk, final)
            ts = stream.ts if shown else await self.poster.adopt(ref, "0", stream.ts, chunk)
            if ts:
                reply.early = ""
            return ts
        left = (await self._left()).pop(ref.id, "")
        if not left:
            return ""
        reply.early = left
        return await self.poster.adopt(ref, "0", left, chunk)

    async def _left(self) -> dict[str, str]:
        """Streams that the last process, or another gateway, began for replies without text yet."""
        if self._early is None or self.env.shared:
            self._early = {}
            for entry in await self.env.state.read(_EARLY):
                if self.env.clock() - float(entry.value.get("at", 0)) > _DAY:
                    await self.env.state.remove(_EARLY, entry.id)
                else:
                    self._early[entry.id] = str(entry.value["ts"])
        return self._early

    async def _streamed(
        self, ref: ReplyRef, reply: _Reply, stream: Stream, n: int, chunk: Chunk, final: bool
    ) -> bool:
        """Bring a streamed message to `chunk`. False: it has to be replaced. Raises SendError."""
        if stream.state == "over":
            return final and stream.sent == chunk.text + str(chunk.data.get("close") or "")
        if not final:
            self._appends.need()
        try:
            await stream.show(chunk, reply.tasks, metadata(ref, str(n)), final=final)
        except Over:
            return False
        except ApiError as error:
            raise send_error(error) from None
        if stream.state == "stopped":
            self._stopped(ref)
        return True

    def _stopped(self, ref: ReplyRef) -> None:
        """The person pressed Stop: nothing more is shown, and the run ends as by the command."""
        log.info("reply %s was stopped by its reader", ref.id)
        if self.receive is not None and ref.person:
            who = Person(ref.person, language=ref.language)
            now = self.env.clock()
            stop = Inbound(f"stop-{ref.id}", ref.address, who, "/stop", cue="command", sent_at=now)
            work = asyncio.wait_for(self.receive(stop), _TAKE)
            self._tasks.start(work, f"a reader's stop of {ref.id}")

    async def _stop(self, reply: _Reply) -> None:
        assert reply.stream is not None
        try:
            async with asyncio.timeout(5.0):
                await reply.stream.stop("", reply.tasks)
        except (Over, ApiError, TimeoutError) as error:
            log.info("a stream was not ended: %s", error)

    async def end(self, ref: ReplyRef) -> None:
        reply = self._replies.pop(ref.id, None)
        if reply is None:
            await self._end_left(ref)
            return
        await self._end_worker(reply)
        async with reply.lock:
            if reply.stream is not None and reply.stream.state == "open":
                await self._stop(reply)
            if reply.status:
                await self._signs.status(ref, "")
        if reply.stream is not None or reply.early:
            await self.env.state.remove(_EARLY, ref.id)
        else:
            await self._end_left(ref)

    async def _end_left(self, ref: ReplyRef) -> None:
        """Another gateway began to show the steps of a reply, and we were told of its end."""
        left = (await self._left()).get(ref.id, "") if self.env.shared else ""
        if not left:
            return
        try:
            await self.poster.end_stream(ref.address.chat, left)
        except ApiError as error:
            log.info("the steps of %s end by themselves: %s", ref.id, error)
        await self.env.state.remove(_EARLY, ref.id)

    # -- signs of life -----------------------------------------------------------------------------------

    def activity(self, ref: ReplyRef, activity: Activity) -> None:
        if not ref.address.thread or ref.private:
            return
        reply = self._reply(ref)
        reply.tasks.note(activity)
        if reply.tasks.changed and (reply.worker is None or reply.worker.done()):
            reply.worker = self._tasks.start(self._show_tasks(ref, reply), f"showing the steps of {ref.id}")

    async def _show_tasks(self, ref: ReplyRef, reply: _Reply) -> None:
        """Bring task cards up to date until nothing is left to show."""
        while reply.tasks.changed:
            try:
                async with reply.lock:
                    await self._show_cards(ref, reply)
            except (ApiError, Over, SendError) as error:
                log.info("the steps of %s are not shown: %s", ref.id, error)
                return
            await asyncio.sleep(_CARDS_APART)

    async def _show_cards(self, ref: ReplyRef, reply: _Reply) -> None:
        if reply.stream is not None:
            if reply.stream.state == "open" and not self._appends.wait():
                self._appends.take()
                await reply.stream.append("", reply.tasks)
        elif not reply.posted and self._may_stream(ref) and ref.id not in await self._left():
            reply.early = await self._start_stream(ref, reply, "")
            if reply.early:
                note = {"ts": reply.early, "at": self.env.clock()}
                await self.env.state.append(_EARLY, ref.id, note)
                return
        if reply.stream is None or reply.stream.state != "open":
            reply.tasks.take()  # no place for cards

    async def typing(self, ref: ReplyRef) -> None:
        if not ref.address.thread or ref.private:
            return
        reply = self._reply(ref)
        if await self._signs.status(ref, self.env.text("slack.status", ref.language)):
            reply.status = True

    async def acknowledge(self, ref: ReplyRef) -> None:
        await self._signs.react(ref, self.config.acknowledge.strip(":"))

    # -- questions ---------------------------------------------------------------------------------------

    async def ask(self, ref: ReplyRef, words: str, choices: Sequence[Choice]) -> str:
        *before, last = text_chunks(words) or [Chunk("…")]
        for n, chunk in enumerate(before):
            await self.poster.post(ref, f"q{n}", chunk)
        try:
            return await self.poster.post(ref, "ask", last, **question(last, choices))
        except Rejected as error:
            log.warning("buttons were refused, words go in their place: %s", error)
        listed = "\n".join((last.text, "", *(f"- {choice.label}" for choice in choices)))
        return await self.poster.post(ref, "words", text_chunks(listed)[0])

    async def settle(self, ref: ReplyRef, message_id: str, outcome: str) -> None:
        chunk = (text_chunks(outcome) or [Chunk("…")])[0]
        await self.poster.replace(ref, message_id, payload(chunk))

    # -- replies -----------------------------------------------------------------------------------------

    def _reply(self, ref: ReplyRef) -> _Reply:
        if ref.id not in self._replies and len(self._replies) >= _REPLIES:
            idle = next((id for id, reply in self._replies.items() if not reply.lock.locked()), None)
            self._replies.pop(idle or "", None)  # its message is updated from now on, not streamed
        return self._replies.setdefault(ref.id, _Reply())

    async def _end_worker(self, reply: _Reply) -> None:
        worker, reply.worker = reply.worker, None
        if worker is None:
            return
        async with reply.lock:  # never cut off a call
            worker.cancel()
        await asyncio.wait({worker})
