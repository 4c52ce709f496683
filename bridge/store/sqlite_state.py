"""Histories and the channels' own notes in SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from agent.history import Entry, entry_from_json, entry_to_json
from bridge.store.base import StoreError, encode
from bridge.store.sqlite_thread import SqliteThread
from channels.base import Json, LogEntry

_LEASE = "~lease:"
_CLAIM = """INSERT INTO channel_note (channel, key, value) VALUES (?, ?, ?)
    ON CONFLICT (channel, key) DO UPDATE SET value = excluded.value
    WHERE value ->> 'holder' = ? OR value ->> 'until' <= ?"""
_RELEASE = "DELETE FROM channel_note WHERE channel = ? AND key = ? AND value ->> 'holder' = ?"
_APPEND = """INSERT INTO history (session, seq, entry)
    VALUES (?, 1 + coalesce((SELECT max(seq) FROM history WHERE session = ?), 0), ?)"""
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
            rows = db.execute("SELECT entry FROM history WHERE session = ? ORDER BY seq", (session,))
            try:
                return [entry_from_json(json.loads(text)) for (text,) in rows]
            except (ValueError, KeyError, TypeError) as error:
                raise StoreError(
                    f"The stored history of session {session} cannot be read ({error}). "
                    "Start that conversation anew with /new, or restore a backup of the database."
                ) from None

        return await self._reader.run(work)

    async def exists(self, session: str) -> bool:
        statement = "SELECT 1 FROM history WHERE session = ? LIMIT 1"
        return await self._reader.run(lambda db: db.execute(statement, (session,)).fetchone() is not None)

    async def append(self, session: str, entries: Sequence[Entry]) -> None:
        rows = [(session, session, encode(entry_to_json(entry))) for entry in entries]
        touch = (session, self._clock())

        def work(db: sqlite3.Connection) -> None:
            db.executemany(_APPEND, rows)
            db.execute(TOUCH, touch)

        if rows:
            await self._writer.run(work)

    async def clear(self, session: str) -> None:
        await self._writer.run(
            lambda db: db.execute("DELETE FROM history WHERE session = ?", (session,)) and None
        )


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
        row = (self._channel, _LEASE + key, encode({"holder": holder, "until": now + seconds}), holder, now)
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
