"""The store in Redis (or Valkey), for a bridge of several processes.

Each step of the contract is one script on one session's (or chat's) keys, so the keys can be spread over the
slots of a Redis Cluster. What touches two slots is done in an order in which stopping after any step loses
nothing: see `accept`. Acknowledged writes are as durable as the server's append-only file (docs/store.md).
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from agent.history import HistoryStore
from bridge.store import redis_scripts as lua
from bridge.store.base import (
    REPLY_SECONDS,
    SEEN_SECONDS,
    ReplyState,
    StoredChunk,
    StoredReply,
    StoredSession,
    StoreError,
    Waiting,
    encode,
    stored_inbound,
)
from bridge.store.redis_fleet import RedisArrivals, RedisRelay
from bridge.store.redis_line import Connect, RedisLine, connect, place
from bridge.store.redis_meter import RedisMeter
from bridge.store.redis_scripts import OPERATION_SECONDS, Command, Keys
from bridge.store.redis_state import Desk, RedisChannelState, RedisHistory, RedisNotes, pairs
from channels.base import ChannelState, Inbound

log = logging.getLogger("causeway.store")

FORMAT = 1
#: A reply that never comes to an end is kept for so long.
_OPEN_SECONDS = 30 * 86_400
#: How long an inbox remembers what was put into it (microseconds): it decides only where a process died
#: between putting a message in and noting that this is done, until the platform delivers it again.
_GOT_MICROSECONDS = 2 * 86_400 * 1_000_000
_DAY = 86_400.0
_REMEMBERED = 200_000
_MOST_OWED = 1000
_OLDEST = (6, 2)


class RedisStore(RedisNotes):
    """Implements `bridge.store.base.Store` and `Claims`.

    `worker`: this process runs agents beside others, under a name that no other has and none had before; its
    work on a session asks for a claim on it. `patience`
    is how many seconds a call waits for a server that is away before it fails with StoreError. `clock` gives
    Unix seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] = time.time,
        worker: str | None = None,
        patience: float = 10.0,
        connect: Connect = connect,
    ) -> None:
        self.place = place(url)
        self._writer = RedisLine(self.place, connect=connect, patience=patience, confirm=True)
        self._reader = RedisLine(self.place, connect=connect, patience=patience)
        self._keys = Keys(self.place.prefix)
        self._clock = clock
        super().__init__(Desk(self._writer, self._reader, self._keys, clock, worker))
        self._history = RedisHistory(self._desk)
        self.arrivals = RedisArrivals(self._desk)
        self.meter = RedisMeter(self._desk)
        # Which session a message or reply belongs to, for what this process has in hand.
        self._session_of_message: OrderedDict[int, str] = OrderedDict()
        self._session_of_reply: OrderedDict[str, str] = OrderedDict()

    @property
    def history(self) -> HistoryStore:
        return self._history

    async def open(self) -> None:
        """Raises StoreError when the server is away, too old, or holds a newer format."""
        await self._writer.start()
        try:
            await self._reader.start()
            await self._look()
        except BaseException:
            await self.close()
            raise

    async def _look(self) -> None:
        _, written = await self._writer.run(
            ("SET", self._keys.format, FORMAT, "NX"), ("GET", self._keys.format)
        )
        if int(written) > FORMAT:
            raise StoreError(
                f"The data in Redis at {self.place.shown} was written by a newer version of Causeway (format "
                f"{written}, this one knows {FORMAT}). Install that version again, or set another ?prefix=."
            )
        try:
            info = await self._reader.one(("INFO", "server"))
        except (
            StoreError
        ) as error:  # not every user may ask for it; then the first script shows what is wrong
            log.info("the version of Redis is not known: %s", error)
            return
        said = str(info.get("redis_version", "")) if isinstance(info, Mapping) else ""
        version = tuple(int(part) for part in said.split(".")[:2] if part.isdecimal())
        if version and version < _OLDEST:
            raise StoreError(
                f"Redis at {self.place.shown} is version {said}; the store needs "
                f"{'.'.join(map(str, _OLDEST))} or newer (any Valkey will do). Update it."
            )

    async def close(self) -> None:
        try:
            await self._writer.stop()
        finally:
            await self._reader.stop()

    def fault(self) -> str:
        return self._writer.fault or self._reader.fault

    # -- claims ----------------------------------------------------------------------------------------

    async def claim_session(self, session: str, seconds: float) -> int | None:
        desk = self._desk
        if desk.worker is None:
            raise StoreError("This store was opened without a worker's name, so it can claim no session.")
        with self._writer.steps():
            fresh = await self._writer.one(("INCR", self._keys.tokens))
            keys = self._keys.of_session(session, "lease")
            token = await self._writer.one(lua.CLAIM(keys, desk.worker, fresh, _milliseconds(seconds)))
        if token is None:
            desk.tokens.pop(session, None)
            return None
        desk.tokens[session] = token
        return int(token)

    async def renew_session(self, session: str, seconds: float) -> bool:
        token = self._desk.tokens.get(session)
        if token is None:
            return False
        keys = self._keys.of_session(session, "lease")
        held = bool(await self._writer.one(lua.RENEW(keys, token, _milliseconds(seconds))))
        if not held and self._desk.tokens.get(session) == token:
            del self._desk.tokens[session]
        return held

    async def release_session(self, session: str) -> None:
        token = self._desk.tokens.pop(session, None)
        if token is not None:
            await self._writer.one(lua.RENEW(self._keys.of_session(session, "lease"), token, 0))

    def token(self, session: str) -> int | None:
        token = self._desk.tokens.get(session)
        return int(token) if token is not None else None

    async def claimed_with(self, session: str, token: int) -> bool:
        """Whether a worker's claim with this token is (still) the newest."""
        [lease] = self._keys.of_session(session, "lease")
        return bool(await self._reader.one(("HGET", lease, "token")) == str(token))

    # -- inbox -----------------------------------------------------------------------------------------

    async def accept(self, inbound: Inbound, session: str, cap: int) -> Literal["accepted", "seen", "full"]:
        """See the contract. Three steps, since the chat's marks, the session's inbox and the index of waiting
        sessions may lie on different servers:

        1. the mark, noting which inbox the message is on its way to;
        2. the inbox, which takes a message once;
        3. the index; then the note of step 1 goes.

        The message is acknowledged after step 3. Whoever is given it again before that (after a crash, or a
        second gateway at the same time) finds the note and does the same steps, which then do nothing new.
        """
        with self._writer.steps():
            operation = self._desk.operation()
            body, key = encode(inbound.to_json()), _key(inbound, inbound.id)
            number, held = await self._writer.run(
                ("INCR", self._keys.numbers), self._mark(inbound, f"s:{operation}:{session}", operation)
            )
            if held is None:
                return "seen"
            _, by, session = held.split(":", 2)
            keys = self._keys.of_session(session, "inbox", "box", "got")
            step = lua.PUT(keys, key, number, body, cap, _GOT_MICROSECONDS)
            put, version = await self._writer.one(step)
            if version:
                waits: Command = ("ZADD", self._keys.waiting, "GT", version, session)
                await self._list(session, waits)
            self._writer.post(self._done(inbound))
            if not put:
                return "full"
            return "accepted" if put == 1 or by == operation else "seen"

    async def _list(self, session: str, waits: Command) -> None:
        try:
            await self._writer.run(waits, *self._desk.touch(session))
        except StoreError:
            self._desk.untouch(session)
            raise

    def _mark(self, inbound: Inbound, what: str, operation: str) -> Command:
        address, now = inbound.address, self._clock()
        keys = self._keys.of_chat(address.channel, address.chat, "seen", "begun", f"op:{operation}")
        return lua.MARK(keys, inbound.id, now, now - SEEN_SECONDS, SEEN_SECONDS, what, OPERATION_SECONDS)

    def _done(self, inbound: Inbound) -> Command:
        address = inbound.address
        return ("HDEL", *self._keys.of_chat(address.channel, address.chat, "begun"), inbound.id)

    async def mark_seen(self, inbound: Inbound, reply: StoredReply | None = None) -> bool:
        with self._writer.steps():
            operation = self._desk.operation()
            what = f"r:{operation}:" if reply else ""
            held = await self._writer.one(self._mark(inbound, what, operation))
            if held is None:
                return False
            if reply is None:
                return True
            written = await self._writer.run(*self._reply_steps(reply, operation, token=""))
            self._writer.post(self._done(inbound))
            return bool(written[-1])

    async def next(self, session: str, limit: int = 1) -> list[Waiting]:
        keys = self._keys.of_session(session, "lease", "inbox", "box")
        flat: list[str] = await self._reader.one(lua.NEXT(keys, self._desk.token(session), limit))
        found = []
        for n in range(0, len(flat), 3):
            number = int(flat[n])
            _remember(self._session_of_message, number, session)
            found.append(Waiting(number, session, stored_inbound(flat[n + 1], number), flat[n + 2] or None))
        return found

    async def take(self, seqs: Sequence[int], run: str) -> None:
        for session, numbers in self._by_session(seqs).items():
            keys = self._keys.of_session(session, "lease", "inbox", "box")
            await self._writer.one(lua.TAKE(keys, self._desk.token(session), run, *numbers))

    async def amend(self, inbound: Inbound, session: str) -> bool:
        key = _key(inbound, inbound.replaces)
        body = encode(replace(inbound, id=inbound.replaces, replaces="").to_json())
        keys = self._keys.of_session(session, "inbox", "box")
        return bool(await self._writer.one(lua.AMEND(keys, key, body)))

    async def drop(self, seqs: Sequence[int]) -> None:
        for session, numbers in self._by_session(seqs).items():
            keys = self._keys.of_session(session, "lease", "inbox", "box", "got")
            version = await self._writer.one(lua.DROP(keys, self._desk.token(session), *numbers))
            self._emptied(session, numbers, version)

    def _by_session(self, seqs: Sequence[int]) -> dict[str, list[int]]:
        """Numbers that this process was never given wait nowhere that it knows: they are left out."""
        found: dict[str, list[int]] = {}
        for number in seqs:
            session = self._session_of_message.get(number)
            if session is not None:
                found.setdefault(session, []).append(number)
        return found

    def _emptied(self, session: str, numbers: Sequence[int], version: str) -> None:
        for number in numbers:
            self._session_of_message.pop(number, None)
        if version:
            self._writer.post(lua.UNWAIT((self._keys.waiting,), session, version))

    async def waiting_sessions(self, channels: Sequence[str]) -> list[str]:
        """The index may hold sessions that have been served since: they are left out, and taken off it."""
        wanted, found = set(channels), []
        listed = pairs(await self._reader.one(("ZRANGE", self._keys.waiting, 0, -1, "WITHSCORES")))
        for start in range(0, len(listed), 200):
            part = listed[start : start + 200]
            heads = await self._reader.run(
                *(lua.HEAD(self._keys.of_session(session, "inbox", "box")) for session, _ in part)
            )
            for (session, version), head in zip(part, heads, strict=True):
                if head is None:
                    self._writer.post(lua.UNWAIT((self._keys.waiting,), session, f"{version:.0f}"))
                elif head[1].split("\0", 1)[0] in wanted:
                    found.append((int(head[0]), session))
        return [session for _, session in sorted(found)]

    async def waiting_count(self, session: str) -> int:
        return int(await self._reader.one(("ZCARD", *self._keys.of_session(session, "inbox"))))

    # -- outbox ----------------------------------------------------------------------------------------

    def _reply_steps(
        self, reply: StoredReply, operation: str, *, token: str, over: bool = False, state: str = ""
    ) -> tuple[Command, ...]:
        """What writes a reply down. Found again by its id and, when it is whole, among the pending ones: both
        are written before it, so that it is never there without them."""
        state = state or reply.state
        channel = reply.ref["address"]["channel"]
        ref, body = encode(reply.ref), encode(reply.body)
        fields = ["session", reply.session, "channel", channel, "ref", ref, "body", body, "state", state]
        if not over:
            for chunk in reply.chunks:
                fields += [f"c{chunk.n}", encode([chunk.state, chunk.message_id])]
        _remember(self._session_of_reply, reply.id, reply.session)
        keys = (*self._keys.of_session(reply.session, "lease"), self._keys.reply(reply.session, reply.id))
        steps: list[Command] = [("SET", self._keys.place_of(reply.id), reply.session, "EX", _OPEN_SECONDS)]
        if state == "complete":
            member = f"{reply.session}\0{reply.id}"
            steps.append(("ZADD", self._keys.pending(channel), self._clock(), member))
        steps.append(lua.REPLY(keys, token, int(over), operation, _OPEN_SECONDS, *fields))
        return tuple(steps)

    async def open_reply(self, reply: StoredReply) -> None:
        token, operation = self._desk.token(reply.session), self._desk.operation()
        await self._writer.run(*self._reply_steps(reply, operation, token=token))

    async def reply(self, id: str) -> StoredReply | None:
        session = await self._home_of(id)
        if session is None:
            return None
        kept = _stored_reply(id, await self._reader.one(("HGETALL", self._keys.reply(session, id))))
        return kept[1] if kept else None

    async def _home_of(self, id: str) -> str | None:
        session = self._session_of_reply.get(id)
        if session is None:
            session = await self._reader.one(("GET", self._keys.place_of(id)))
            if session is not None:
                _remember(self._session_of_reply, id, session)
        return session

    async def complete_reply(self, reply: StoredReply) -> None:
        token, operation = self._desk.token(reply.session), self._desk.operation()
        steps = self._reply_steps(reply, operation, token=token, over=True, state="complete")
        [*_, written] = await self._writer.run(*steps)
        if not written:  # it has ended: it must not go out again
            self._unlist(reply.ref["address"]["channel"], reply.session, reply.id)

    async def put_chunk(self, reply: str, chunk: StoredChunk) -> None:
        """Raises ValueError when there is no such reply."""
        session = self._session_of_reply.get(reply) or await self._home_of(reply)
        if session is not None:
            keys = (*self._keys.of_session(session, "lease"), self._keys.reply(session, reply))
            value = encode([chunk.state, chunk.message_id])
            if await self._writer.one(lua.CHUNK(keys, self._desk.token(session), f"c{chunk.n}", value)):
                return
        raise ValueError(f"chunk {chunk.n} belongs to no known reply: {reply!r}")

    async def settle_reply(self, id: str, state: Literal["delivered", "failed"], seqs: Sequence[int]) -> None:
        """A reply that has ended keeps the end it had; one that was never written may be settled too."""
        by_session = self._by_session(seqs)
        session = self._session_of_reply.get(id) or next(iter(by_session), None) or await self._home_of(id)
        if session is None:
            return
        numbers = by_session.get(session, [])
        keys = (
            *self._keys.of_session(session, "lease"),
            self._keys.reply(session, id),
            *self._keys.of_session(session, "inbox", "box", "got"),
        )
        step = lua.SETTLE(keys, self._desk.token(session), state, REPLY_SECONDS, *numbers)
        channel, version = await self._writer.one(step)
        self._session_of_reply.pop(id, None)
        self._emptied(session, numbers, version)
        self._writer.post(("EXPIRE", self._keys.place_of(id), REPLY_SECONDS))
        if channel:
            self._unlist(channel, session, id)

    def _unlist(self, channel: str, session: str, id: str) -> None:
        self._writer.post(("ZREM", self._keys.pending(channel), f"{session}\0{id}"))

    async def pending_replies(self, channels: Sequence[str]) -> list[StoredReply]:
        found: list[tuple[int, StoredReply]] = []
        for channel in channels:
            rows = pairs(await self._reader.one(("ZRANGE", self._keys.pending(channel), 0, -1, "WITHSCORES")))
            for start in range(0, len(rows), 200):
                part = rows[start : start + 200]
                places = [member.split("\0", 1) for member, _ in part]
                got = await self._reader.run(
                    *(("HGETALL", self._keys.reply(session, id)) for session, id in places)
                )
                for (session, id), (_, at), fields in zip(places, part, got, strict=True):
                    kept = _stored_reply(id, fields)
                    if kept is not None and kept[1].state == "complete":
                        _remember(self._session_of_reply, id, session)
                        found.append(kept)
                    elif kept is not None or at < self._clock() - _DAY:  # else it is about to be written
                        self._unlist(channel, session, id)
        return [reply for _, reply in sorted(found, key=lambda kept: kept[0])]

    async def owed(self, channels: Sequence[str], seconds: float) -> list[StoredReply]:
        """Whole replies that need no run and wait for longer than so many seconds, at most `_MOST_OWED` of a
        channel."""
        before, found = self._clock() - seconds, []
        for channel in channels:
            step: Command = ("ZRANGEBYSCORE", self._keys.pending(channel), "-inf", before)
            for member in await self._reader.one((*step, "LIMIT", 0, _MOST_OWED)):
                session, id = member.split("\0", 1)
                if id.startswith("c"):
                    kept = await self.reply(id)
                    if kept is not None and kept.state == "complete":
                        found.append(kept)
                    elif kept is not None:
                        self._unlist(channel, session, id)
        return found

    # -- sessions -------------------------------------------------------------------------------------

    async def sessions(self, limit: int = 1000, after: str = "") -> list[StoredSession]:
        found: list[StoredSession] = []
        while len(found) < limit:
            begin = f"({after}" if after else "-"
            step: Command = ("ZRANGEBYLEX", self._keys.sessions, begin, "+", "LIMIT", 0, min(limit, 250))
            keys: list[str] = await self._reader.one(step)
            if not keys:
                break
            lengths = await self._reader.run(
                *(("LLEN", *self._keys.of_session(key, "history")) for key in keys)
            )
            times = await self._reader.one(("ZMSCORE", self._keys.active, *keys))
            found += [
                StoredSession(key, n, float(at or 0.0))
                for key, n, at in zip(keys, lengths, times, strict=True)
                if n
            ]
            after = keys[-1]
        return found[:limit]

    def channel_state(self, channel: str) -> ChannelState:
        return RedisChannelState(self._desk, channel)

    @property
    def relay(self) -> RedisRelay:
        return RedisRelay(self.place, self._desk)

    # -- forgetting ------------------------------------------------------------------------------------

    async def forget_before(self, seen: float, replies: float, limit: int = 5000) -> int:
        """Marks and replies end by themselves."""
        return 0

    async def forget_sessions(self, before: float, limit: int = 100) -> list[str]:
        step: Command = ("ZRANGEBYSCORE", self._keys.active, "-inf", f"({before}", "LIMIT", 0, limit)
        gone: list[str] = []
        for session in await self._reader.one(step):
            keys = self._keys.of_session(session, "lease", "history", "inbox")
            if not await self._writer.one(lua.FORGET(keys)):
                # Somebody is at work on it, however long that takes: looked at again later.
                await self._writer.one(("ZADD", self._keys.active, "XX", self._clock(), session))
                continue
            await self._writer.one(lua.UNLIST((self._keys.active, self._keys.sessions), session, before))
            self._desk.untouch(session)
            gone.append(session)
        return gone

    async def examine(self) -> None:
        """The server looks after its own files; `doctor` asks it."""

    async def tidy(self) -> None:
        """Logs are cut as they are written, and sums of use end by themselves."""

    def notice(self) -> str:
        return ""


def _key(inbound: Inbound, id: str) -> str:
    return f"{inbound.address.channel}\0{inbound.address.chat}\0{id}"


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _remember(kept: OrderedDict[Any, str], key: int | str, session: str) -> None:
    kept[key] = session
    kept.move_to_end(key)
    if len(kept) > _REMEMBERED:
        kept.popitem(last=False)


def _stored_reply(id: str, fields: Mapping[str, str]) -> tuple[int, StoredReply] | None:
    """A reply, behind what orders replies by age."""
    if not fields:
        return None
    chunks = []
    for name, value in fields.items():
        if name[0] == "c" and name[1:].isdecimal():
            chunk_state, message = json.loads(value)
            chunks.append(StoredChunk(int(name[1:]), chunk_state, message))
    state: ReplyState = fields["state"]  # type: ignore[assignment]
    ref, body = json.loads(fields["ref"]), json.loads(fields["body"])
    ordered = tuple(sorted(chunks, key=lambda chunk: chunk.n))
    return int(fields["at"]), StoredReply(id, fields["session"], ref, body, state, ordered)
