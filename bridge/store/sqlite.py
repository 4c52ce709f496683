"""The store in one SQLite file: a write-ahead log, one thread that writes, one that reads."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from agent.history import HistoryStore
from bridge.store.base import (
    LOG_MOST,
    USAGE_FIELDS,
    USAGE_SECONDS,
    ChunkState,
    ReplyState,
    StoredChunk,
    StoredReply,
    StoredSession,
    StoreError,
    UsageField,
    UsageRow,
    Waiting,
    encode,
    stored_inbound,
)
from bridge.store.meter import MemoryMeter
from bridge.store.pace import unhurried
from bridge.store.sqlite_schema import SPAN, Synchronous, connect, migrate
from bridge.store.sqlite_state import TOUCH, SqliteChannelState, SqliteHistory, cut_oldest, get_json
from bridge.store.sqlite_thread import SqliteThread, SqliteWriter, store_error
from bridge.store.sqlite_upkeep import damage, give_back, set_aside
from channels.base import ChannelState, Inbound, Json

log = logging.getLogger("causeway.store")

T = TypeVar("T")

_BUSY_SECONDS = 1.0  # one try; the threads try again
_CHECK_SECONDS = 2.0  # for looking through the file at start
_LONG_CHECK_SECONDS = 3600.0  # for looking through it while it is in use
_MOST_STEPS = 16_384  # of giving room back, in one go: 4 GiB
_MOST_ROWS = 5000  # deleted in one transaction
_AHEAD = 86_400.0  # seconds that a date may lie ahead of the clock


class SqliteStore:
    """Implements `bridge.store.base.Store`.

    `synchronous`: "normal" survives the death of the process at any moment (a power failure may take back
    the last commits, but never damages the file); "full" also survives a power failure and costs one disk
    flush a group of writes. `clock` gives Unix seconds. A database that another program keeps locked for
    `busy_limit` seconds fails the write with StoreError; until then the callers wait. `sole`: no other
    process uses the file, so it is looked through first; a damaged one is set aside and a new one begun.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        synchronous: Synchronous = "normal",
        busy_limit: float = 120.0,
        sole: bool = False,
    ) -> None:
        self.path = path
        self._sole = sole
        self._notice = ""
        self._clock = clock
        self._synchronous = synchronous
        self._writer = SqliteWriter("store-writer", path, self._open_writer, busy_limit=busy_limit)
        self._reader = SqliteThread("store-reader", path, self._open_reader, busy_limit=busy_limit)
        # For what looks through much of the file: no message waits behind it. Begun when it is first needed.
        self._searcher = SqliteThread("store-searcher", path, self._open_reader, busy_limit=busy_limit)
        self._searching = asyncio.Lock()
        self._checking: threading.Event | None = None
        self._history = SqliteHistory(self._writer, self._reader, clock)
        self.meter = MemoryMeter()

    @property
    def history(self) -> HistoryStore:
        return self._history

    async def open(self) -> None:
        await self._writer.start()
        try:
            await self._reader.start()
        except BaseException:
            await self._writer.stop()
            raise

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.set()
        # The writer last: it is then the only connection, and folds the write-ahead log into the file.
        try:
            await self._searcher.stop()
        finally:
            try:
                await self._reader.stop()
            finally:
                await self._writer.stop()

    async def _search(self, work: Callable[[sqlite3.Connection], T]) -> T:
        async with self._searching:
            if not self._searcher.started:
                await self._searcher.start()
        return await self._searcher.run(work)

    def _open_writer(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Made here and not by SQLite, so that only the bridge's user can read people's messages.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise StoreError(
                f"The database {self.path} cannot be created or written: {error.strerror}. "
                "Give the bridge's user the right to write there, or set store.url to another place."
            ) from None
        if self._sole and (why := damage(self.path, _CHECK_SECONDS)):
            self._begin_anew(why)
        connection = connect(self.path, self._synchronous, _BUSY_SECONDS)
        try:
            migrate(connection, self.path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _begin_anew(self, why: str) -> None:
        try:
            aside = set_aside(self.path, self._clock())
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise StoreError(
                f"The database {self.path} is damaged ({why}) and cannot be set aside: {error.strerror}. "
                "Move it away, or restore a backup."
            ) from None
        self._notice = (
            f"The database {self.path} was damaged ({why}). It is kept as {aside}, and a new one was begun. "
            f"To restore a backup: stop the bridge, copy the backup to {self.path}, start again."
        )
        log.error("%s", self._notice)

    def notice(self) -> str:
        return self._notice

    def fault(self) -> str:
        return self._writer.fault or self._reader.fault

    def _open_reader(self) -> sqlite3.Connection:
        connection = connect(self.path, self._synchronous, _BUSY_SECONDS)
        connection.execute("PRAGMA query_only = ON")
        return connection

    # -- inbox ---------------------------------------------------------------------------------------

    async def accept(self, inbound: Inbound, session: str, cap: int) -> Literal["accepted", "seen", "full"]:
        address, mark = inbound.address, self._mark(inbound)
        touch = (session, self._clock())
        row = (session, address.channel, encode(inbound.to_json()), session, cap, cap)

        def work(db: sqlite3.Connection) -> Literal["accepted", "seen", "full"]:
            if not db.execute(_MARK, mark).rowcount:
                return "seen"
            db.execute(TOUCH, touch)
            return "accepted" if db.execute(_ACCEPT, row).rowcount else "full"

        return await self._writer.run(work)

    async def mark_seen(self, inbound: Inbound, reply: StoredReply | None = None) -> bool:
        mark, rows = self._mark(inbound), _Rows(reply) if reply else None

        def work(db: sqlite3.Connection) -> bool:
            if not db.execute(_MARK, mark).rowcount:
                return False
            if rows:
                rows.insert(db)
            return True

        return await self._writer.run(work)

    def _mark(self, inbound: Inbound) -> tuple[str, str, str, float]:
        address = inbound.address
        return (address.channel, address.chat, inbound.id, self._clock())

    async def next(self, session: str, limit: int = 1) -> list[Waiting]:
        def work(db: sqlite3.Connection) -> list[Waiting]:
            rows = db.execute(
                "SELECT seq, run, inbound FROM inbox WHERE session = ? ORDER BY seq LIMIT ?", (session, limit)
            )
            return [Waiting(seq, session, stored_inbound(text, seq), run) for seq, run, text in rows]

        return await self._reader.run(work)

    async def take(self, seqs: Sequence[int], run: str) -> None:
        rows = [(run, seq) for seq in seqs]
        await self._write_many("UPDATE inbox SET run = ? WHERE seq = ?", rows)

    async def amend(self, inbound: Inbound, session: str) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            row = db.execute(_PENDING_ONE, (session, inbound.address.chat, inbound.replaces)).fetchone()
            if row is None:
                return False
            merged = replace(inbound, id=inbound.replaces, replaces="")
            db.execute("UPDATE inbox SET inbound = ? WHERE seq = ?", (encode(merged.to_json()), row[0]))
            return True

        return await self._writer.run(work)

    async def drop(self, seqs: Sequence[int]) -> None:
        await self._write_many(_DROP, [(seq,) for seq in seqs])

    async def waiting_sessions(self, channels: Sequence[str]) -> list[str]:
        def work(db: sqlite3.Connection) -> list[str]:
            rows = db.execute(
                "SELECT session FROM inbox INDEXED BY inbox_session "
                "WHERE channel IN (SELECT value FROM json_each(?)) GROUP BY session ORDER BY min(seq)",
                (encode(list(channels)),),
            )
            return [session for (session,) in rows]

        return await self._reader.run(work)

    async def waiting_count(self, session: str) -> int:
        def work(db: sqlite3.Connection) -> int:
            row = db.execute("SELECT count(*) FROM inbox WHERE session = ?", (session,)).fetchone()
            return int(row[0])

        return await self._reader.run(work)

    # -- outbox --------------------------------------------------------------------------------------

    async def open_reply(self, reply: StoredReply) -> None:
        await self._writer.run(_Rows(reply).insert)

    async def reply(self, id: str) -> StoredReply | None:
        def work(db: sqlite3.Connection) -> StoredReply | None:
            replies = _replies(db.execute(_REPLY, (id,)))
            return replies[0] if replies else None

        return await self._reader.run(work)

    async def complete_reply(self, reply: StoredReply) -> None:
        rows = _Rows(reply, "complete")

        def work(db: sqlite3.Connection) -> None:
            if not db.execute(_COMPLETE, (rows.ref, rows.body, reply.id)).rowcount:
                rows.insert(db)  # does nothing to one that has ended: it must not go out again

        await self._writer.run(work)

    async def put_chunk(self, reply: str, chunk: StoredChunk) -> None:
        """Raises ValueError when there is no such reply."""

        def work(db: sqlite3.Connection) -> None:
            if not db.execute(_CHUNK, (chunk.n, chunk.state, chunk.message_id, reply)).rowcount:
                raise ValueError(f"chunk {chunk.n} belongs to no known reply: {reply!r}")

        await self._writer.run(work)

    async def settle_reply(self, id: str, state: Literal["delivered", "failed"], seqs: Sequence[int]) -> None:
        """A reply that has ended keeps the end it had; one that was never written may be settled too."""
        ended, rows = self._clock(), [(seq,) for seq in seqs]

        def work(db: sqlite3.Connection) -> None:
            db.execute(_SETTLE, (state, ended, id))
            db.executemany(_DROP, rows)

        await self._writer.run(work)

    async def pending_replies(self, channels: Sequence[str]) -> list[StoredReply]:
        def work(db: sqlite3.Connection) -> list[StoredReply]:
            rows = db.execute(_PENDING, (encode(list(channels)),))
            return _replies(rows)

        return await self._reader.run(work)

    # -- notes ---------------------------------------------------------------------------------------

    async def get_setting(self, scope: str, key: str) -> Json:
        return await get_json(
            self._reader, "SELECT value FROM setting WHERE scope = ? AND key = ?", scope, key
        )

    async def put_setting(self, scope: str, key: str, value: Json) -> None:
        if value is None:
            await self._write_many("DELETE FROM setting WHERE scope = ? AND key = ?", [(scope, key)])
        else:
            await self._write_many(_SETTING, [(scope, key, encode(value))])

    async def settings(self, scope: str) -> dict[str, Json]:
        def work(db: sqlite3.Connection) -> dict[str, Json]:
            rows = db.execute("SELECT key, value FROM setting WHERE scope = ?", (scope,))
            return {key: json.loads(value) for key, value in rows}

        return await self._search(work)

    async def add_usage(self, rows: Sequence[UsageRow]) -> None:
        await self._write_many(_ADD_USAGE, [astuple(row) for row in rows])

    async def usage(
        self,
        since: str,
        per: Sequence[UsageField] = USAGE_FIELDS,
        of: tuple[str, str] | None = None,
        most: int = 0,
    ) -> list[UsageRow]:
        chosen = [name if name in per else "''" for name in USAGE_FIELDS]
        group = ", ".join((*(name for name in USAGE_FIELDS if name in per), "kind", "name"))
        whose = "AND channel = ? AND person = ?" if of else ""
        order = "sum(input) + sum(output) + sum(calls) DESC" if most else "1"
        head = _USAGE.format(", ".join(chosen))
        statement = f"{head} WHERE day >= ? {whose} GROUP BY {group} ORDER BY {order} LIMIT ?"
        marks = (since, *(of or ()), most or -1)
        return await self._search(lambda db: [UsageRow(*row) for row in db.execute(statement, marks)])

    async def sessions(self, limit: int = 1000, after: str = "") -> list[StoredSession]:
        def work(db: sqlite3.Connection) -> list[StoredSession]:
            return [StoredSession(*row) for row in db.execute(_SESSIONS, (after, limit))]

        return await self._search(work)

    def channel_state(self, channel: str) -> ChannelState:
        return SqliteChannelState(self._writer, self._reader, channel, self._clock)

    async def forget_before(self, seen: float, replies: float, limit: int = 5000) -> int:
        def work(db: sqlite3.Connection) -> int:
            now = self._clock()
            # What is dated ahead of a clock that was set back would stay as long, and in the way of the rest.
            db.execute(_REDATE_SEEN, (now, limit, now + _AHEAD))
            db.execute(_REDATE_ENDED, (now, now + _AHEAD, limit))
            marks = db.execute(_FORGET_SEEN, (limit, seen)).rowcount
            db.execute(_FORGET_LEASES, (now,))
            ended = [
                row
                for (row,) in db.execute(
                    "SELECT seq FROM outbox WHERE ended < ? ORDER BY ended LIMIT ?", (replies, limit - marks)
                )
            ]
            db.executemany("DELETE FROM chunk WHERE reply = ?", [(row,) for row in ended])
            db.executemany("DELETE FROM outbox WHERE seq = ?", [(row,) for row in ended])
            return marks + len(ended)

        return await self._writer.run(work)

    async def forget_sessions(self, before: float, limit: int = 100) -> list[str]:
        def work(db: sqlite3.Connection) -> list[str]:
            return [session for (session,) in db.execute(_LONG_PAST, (before, limit))]

        def forget(db: sqlite3.Connection) -> bool | None:
            if not db.execute(_STILL_PAST, (session, before)).fetchone():
                return False  # something has happened in it since
            if cut_oldest(db, session):
                return None
            db.execute("DELETE FROM session WHERE id = ?", (session,))
            return True

        gone = []
        for session in await self._search(work):
            # In small parts: other writes go in between.
            while (done := await unhurried(self._writer.run(forget))) is None:
                pass
            if done:
                gone.append(session)
        return gone

    async def examine(self) -> None:
        if not self._sole or self._checking is not None:
            return
        self._checking = threading.Event()
        try:
            found = await asyncio.to_thread(damage, self.path, _LONG_CHECK_SECONDS, self._checking)
        except sqlite3.Error as error:
            log.warning("the database could not be looked through: %s", store_error(error, self.path))
            return
        finally:
            self._checking = None
        if found:
            self._notice = (
                f"The database {self.path} is damaged ({found}). What that does not touch goes on working. "
                "Stop the bridge, keep the file, and restore a backup (causeway backup makes them)."
            )
            log.error("%s", self._notice)

    async def tidy(self) -> None:
        day = time.strftime("%Y-%m-%d", time.gmtime(self._clock() - USAGE_SECONDS))
        await self._writer.run(lambda db: db.execute("DELETE FROM usage WHERE day < ?", (day,)) and None)
        for channel, name, count in await self._search(
            lambda db: db.execute(_LONG_LOGS, (LOG_MOST,)).fetchall()
        ):
            row = (channel, name, channel, name, min(count - LOG_MOST, _MOST_ROWS))
            await self._writer.run(lambda db, row=row: db.execute(_CUT_LOG, row) and None)  # type: ignore[misc]
        for _ in range(_MOST_STEPS):
            if not await unhurried(self._writer.run(give_back)):
                break

    async def _write_many(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        if rows:
            await self._writer.run(lambda db: db.executemany(statement, rows) and None)


_FORGET_LEASES = """DELETE FROM channel_note
    WHERE key >= '~lease:' AND key < '~lease;' AND value ->> 'until' < ?"""
_MARK = "INSERT INTO seen (channel, chat, message, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_ACCEPT = """INSERT INTO inbox (session, channel, inbound) SELECT ?, ?, ?
    WHERE (SELECT count(*) FROM (SELECT 1 FROM inbox WHERE session = ? LIMIT ?)) < ?"""
_LONG_PAST = """SELECT id FROM session WHERE active < ?
    AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.session = id) ORDER BY active LIMIT ?"""
_STILL_PAST = """SELECT 1 FROM session WHERE id = ? AND active < ?
    AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.session = id)"""
_LONG_LOGS = "SELECT channel, log, count(*) FROM channel_log GROUP BY channel, log HAVING count(*) > ?"
_CUT_LOG = """DELETE FROM channel_log WHERE channel = ? AND log = ? AND seq IN (
    SELECT seq FROM channel_log WHERE channel = ? AND log = ? ORDER BY seq LIMIT ?)"""
_PENDING_ONE = """SELECT seq FROM inbox WHERE session = ? AND run IS NULL
    AND inbound ->> '$.address.chat' = ? AND inbound ->> '$.id' = ?"""
_DROP = "DELETE FROM inbox WHERE seq = ?"
_OPEN = """INSERT INTO outbox (id, session, channel, state, ref, body, ended) VALUES (?, ?, ?, ?, ?, ?, NULL)
    ON CONFLICT (id) DO NOTHING"""
_COMPLETE = """UPDATE outbox SET state = 'complete', ref = ?, body = ?
    WHERE id = ? AND state IN ('open', 'complete')"""
_SETTLE = (
    """UPDATE outbox SET state = iif(ended IS NULL, ?, state), ended = coalesce(ended, ?) WHERE id = ?"""
)
_CHUNK = "REPLACE INTO chunk (reply, n, state, message) SELECT seq, ?, ?, ? FROM outbox WHERE id = ?"
_SETTING = "REPLACE INTO setting (scope, key, value) VALUES (?, ?, ?)"
_ADD_USAGE = """INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (day, session, chat, person, kind, name) DO UPDATE SET calls = calls + excluded.calls,
    input = input + excluded.input, output = output + excluded.output, cached = cached + excluded.cached"""
_USAGE = "SELECT {}, kind, name, sum(calls), sum(input), sum(output), sum(cached) FROM usage"
_ROWS = f"FROM entry WHERE row BETWEEN number * {SPAN} + 1 AND number * {SPAN} + {SPAN - 1}"
# Numbers have no gaps, so the first and the last tell how many there are.
_SESSIONS = f"""SELECT id, (SELECT max(row) {_ROWS}) - (SELECT min(row) {_ROWS}) + 1, active FROM session
    WHERE id > ? AND EXISTS (SELECT 1 {_ROWS}) ORDER BY id LIMIT ?"""  # noqa: S608 - all constants
_REPLIES = """SELECT o.id, o.session, o.ref, o.body, o.state, c.n, c.state, c.message
    FROM outbox o LEFT JOIN chunk c ON c.reply = o.seq """
_REPLY = _REPLIES + "WHERE o.id = ? ORDER BY c.n"
_PENDING = f"""{_REPLIES} WHERE o.state = 'complete'
    AND o.channel IN (SELECT value FROM json_each(?)) ORDER BY o.seq, c.n"""  # noqa: S608 - all constants
_REDATE_SEEN = """UPDATE seen SET at = ?
    WHERE row IN (SELECT row FROM seen ORDER BY row LIMIT ?) AND at > ?"""
_REDATE_ENDED = """UPDATE outbox SET ended = ?
    WHERE seq IN (SELECT seq FROM outbox WHERE ended > ? LIMIT ?)"""
_FORGET_SEEN = """DELETE FROM seen
    WHERE row IN (SELECT row FROM seen ORDER BY row LIMIT ?) AND at < ?"""


class _Rows:
    """A reply as it stands in the tables."""

    __slots__ = ("body", "chunks", "ref", "values")

    def __init__(self, reply: StoredReply, state: ReplyState | None = None) -> None:
        self.ref, self.body = encode(reply.ref), encode(reply.body)
        channel = reply.ref["address"]["channel"]
        self.values = (reply.id, reply.session, channel, state or reply.state, self.ref, self.body)
        self.chunks = [(chunk.n, chunk.state, chunk.message_id, reply.id) for chunk in reply.chunks]

    def insert(self, db: sqlite3.Connection) -> None:
        if db.execute(_OPEN, self.values).rowcount and self.chunks:
            db.executemany(_CHUNK, self.chunks)


def _replies(
    rows: Iterable[tuple[str, str, str, str, ReplyState, int, ChunkState, str]],
) -> list[StoredReply]:
    """Gather rows of `_REPLIES`, one a chunk, into replies; `n` is None for a reply without chunks."""
    found: dict[str, StoredReply] = {}
    chunks: dict[str, list[StoredChunk]] = {}
    for id, session, ref, body, state, n, chunk_state, message in rows:
        if id not in found:
            found[id] = StoredReply(id, session, json.loads(ref), json.loads(body), state)
            chunks[id] = []
        if n is not None:
            chunks[id].append(StoredChunk(n, chunk_state, message))
    return [StoredReply(r.id, r.session, r.ref, r.body, r.state, tuple(chunks[r.id])) for r in found.values()]
