"""Histories and the channels' own notes in SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from agent.history import Entry, Tail, entry_from_json, entry_to_json, same_run
from bridge.store.base import StoreError, encode
from bridge.store.sqlite_schema import SPAN
from bridge.store.sqlite_thread import SqliteThread
from channels.base import Json, LogEntry

_LEASE = "~lease:"
_MOST_ENTRIES = 500  # deleted in one transaction, which other writes wait for
_CLAIM = """INSERT INTO channel_note (channel, key, value) VALUES (?, ?, ?)
    ON CONFLICT (channel, key) DO UPDATE SET value = excluded.value
    WHERE value ->> 'holder' = ? OR value ->> 'until' NOT BETWEEN ? AND ?"""
_RELEASE = "DELETE FROM channel_note WHERE channel = ? AND key = ? AND value ->> 'holder' = ?"
#: The entries of one session lie together: see `rows_of`.
_ROWS = "FROM entry WHERE row BETWEEN ? AND ?"
_LAST = f"SELECT max(row) {_ROWS}"
_APPEND = "INSERT INTO entry (row, value) VALUES (?, ?)"
_WHOLE = f"SELECT value {_ROWS} ORDER BY row"
_NEWEST = f"SELECT row, value {_ROWS} ORDER BY row DESC"
#: How many: they are numbered without gaps. (SQLite looks up one end of a table at a time.)
_COUNT = f"SELECT coalesce((SELECT max(row) {_ROWS}) - (SELECT min(row) {_ROWS}) + 1, 0)"
_CUT_AT = f"""SELECT row {_ROWS} AND row >= (SELECT min(row) {_ROWS}) + ?
    AND value ->> 'kind' = 'user' ORDER BY row LIMIT 1"""
_CUT = f"DELETE {_ROWS}"
#: Notes that something happened in a session; more than once a minute is not written.
TOUCH = """INSERT INTO session (id, active) VALUES (?, ?) ON CONFLICT (id) DO UPDATE
    SET active = excluded.active WHERE excluded.active - active NOT BETWEEN 0 AND 60"""


class SqliteHistory:
    """Implements `agent.history.HistoryStore`."""

    def __init__(self, writer: SqliteThread, reader: SqliteThread, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock

    async def load(self, session: str) -> list[Entry]:
        def work(db: sqlite3.Connection) -> list[Entry]:
            rows = db.execute(_WHOLE, rows_of(db, session))
            return [_entry(session, text) for (text,) in rows]

        return await self._reader.run(work)

    async def tail(self, session: str, least: int) -> Tail:
        def work(db: sqlite3.Connection) -> Tail:
            found: list[Entry] = []
            before, (first, last) = 0, rows_of(db, session)
            # Newest first, and no further than is needed: rows are read one by one.
            for row, text in db.execute(_NEWEST, (first, last)):
                entry = _entry(session, text)
                if len(found) >= least and not same_run(entry, found[-1]):
                    break
                found.append(entry)
                before = row - first
            return Tail(before, found[::-1])

        return await self._reader.run(work)

    async def count(self, session: str) -> int:
        def work(db: sqlite3.Connection) -> int:
            return int(db.execute(_COUNT, rows_of(db, session) * 2).fetchone()[0])

        return await self._reader.run(work)

    async def exists(self, session: str) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            return db.execute(_LAST, rows_of(db, session)).fetchone()[0] is not None

        return await self._reader.run(work)

    async def append(self, session: str, entries: Sequence[Entry]) -> None:
        texts = [encode(entry_to_json(entry)) for entry in entries]
        touch = (session, self._clock())

        def work(db: sqlite3.Connection) -> None:
            db.execute(TOUCH, touch)
            first, last = rows_of(db, session)
            newest = db.execute(_LAST, (first, last)).fetchone()[0]
            db.executemany(_APPEND, enumerate(texts, first if newest is None else newest + 1))

        if texts:
            await self._writer.run(work)

    async def clear(self, session: str) -> None:
        while await self._writer.run(lambda db: cut_oldest(db, session)):
            pass  # other writes go in between


def rows_of(db: sqlite3.Connection, session: str) -> tuple[int, int]:
    """Between which rows the entries of a session lie."""
    found = db.execute("SELECT number FROM session WHERE id = ?", (session,)).fetchone()
    first = found[0] * SPAN + 1 if found else 0
    return first, first + SPAN - 2 if found else 0


def cut_oldest(db: sqlite3.Connection, session: str) -> bool:
    """Delete the oldest part of a history, of a short one all. What stays begins with what a person said, so
    that a model can be shown it. True: there is more."""
    first, last = rows_of(db, session)
    row = db.execute(_CUT_AT, (first, last, first, last, _MOST_ENTRIES)).fetchone()
    db.execute(_CUT, (first, row[0] - 1 if row else last))
    return row is not None


def _entry(session: str, text: str) -> Entry:
    try:
        return entry_from_json(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"The stored history of session {session} cannot be read ({error}). "
            "Start that conversation anew with /new, or restore a backup of the database."
        ) from None


class SqliteChannelState:
    """Implements `channels.base.ChannelState` for one channel instance."""

    def __init__(
        self, writer: SqliteThread, reader: SqliteThread, channel: str, clock: Callable[[], float]
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._channel = channel
        self._clock = clock

    async def get(self, key: str) -> Json:
        statement = "SELECT value FROM channel_note WHERE channel = ? AND key = ?"
        return await get_json(self._reader, statement, self._channel, key)

    async def put(self, key: str, value: Json) -> None:
        row = (self._channel, key, encode(value))
        await self._writer.run(
            lambda db: db.execute("REPLACE INTO channel_note VALUES (?, ?, ?)", row) and None
        )

    async def append(self, log: str, entry: str, value: dict[str, Any]) -> int:
        row = (self._channel, log, entry, encode(value))

        def work(db: sqlite3.Connection) -> int:
            # The old row goes and a new one comes, with a number higher than any before.
            seq = db.execute("REPLACE INTO channel_log (channel, log, id, value) VALUES (?, ?, ?, ?)", row)
            return seq.lastrowid or 0

        return await self._writer.run(work)

    async def read(self, log: str, after: int = 0, limit: int = 500) -> list[LogEntry]:
        def work(db: sqlite3.Connection) -> list[LogEntry]:
            rows = db.execute(
                "SELECT seq, id, value FROM channel_log WHERE channel = ? AND log = ? AND seq > ? "
                "ORDER BY seq DESC LIMIT ?",
                (self._channel, log, after, limit),
            ).fetchall()
            return [LogEntry(seq, id, json.loads(value)) for seq, id, value in reversed(rows)]

        return await self._reader.run(work)

    async def trim(self, log: str, upto: int) -> None:
        row = (self._channel, log, upto)
        statement = "DELETE FROM channel_log WHERE channel = ? AND log = ? AND seq <= ?"
        await self._writer.run(lambda db: db.execute(statement, row) and None)

    async def remove(self, log: str, entry: str) -> bool:
        row = (self._channel, log, entry)
        statement = "DELETE FROM channel_log WHERE channel = ? AND log = ? AND id = ?"
        return await self._writer.run(lambda db: db.execute(statement, row).rowcount > 0)

    async def claim(self, key: str, holder: str, seconds: float) -> bool:
        now = self._clock()
        value = encode({"holder": holder, "until": now + seconds})
        # One that would last longer than any was taken for is from before the clock was set back.
        row = (self._channel, _LEASE + key, value, holder, now + 1e-6, now + 2 * seconds)
        return await self._writer.run(lambda db: db.execute(_CLAIM, row).rowcount > 0)

    async def release(self, key: str, holder: str) -> None:
        row = (self._channel, _LEASE + key, holder)
        await self._writer.run(lambda db: db.execute(_RELEASE, row) and None)


async def get_json(reader: SqliteThread, statement: str, *key: str) -> Json:
    """The JSON of one row, None when there is none."""

    def work(db: sqlite3.Connection) -> Json:
        row = db.execute(statement, key).fetchone()
        return None if row is None else json.loads(row[0])

    return await reader.run(work)
