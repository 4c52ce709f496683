"""The tables of the SQLite store, opening a file, and bringing an older file up to date."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Literal

from bridge.store.base import StoreError

Synchronous = Literal["normal", "full"]

#: Marks a file as ours ("CSWY"), so that another program's database is not taken for an old one of ours.
APPLICATION_ID = 0x43535759

_FIRST = (
    # Rowids grow with time, so the oldest marks are the first rows and need no index of their own.
    """CREATE TABLE seen (
        row INTEGER PRIMARY KEY,
        channel TEXT NOT NULL, chat TEXT NOT NULL, message TEXT NOT NULL,
        at REAL NOT NULL,
        UNIQUE (channel, chat, message))""",
    # AUTOINCREMENT: a number is never given twice, so a late `drop` cannot hit a newer message.
    """CREATE TABLE inbox (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        session TEXT NOT NULL, channel TEXT NOT NULL,
        run TEXT, inbound TEXT NOT NULL)""",
    "CREATE INDEX inbox_session ON inbox (session, channel)",
    """CREATE TABLE outbox (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        session TEXT NOT NULL, channel TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('open', 'complete', 'delivered', 'failed')),
        ref TEXT NOT NULL, body TEXT NOT NULL,
        ended REAL)""",
    "CREATE INDEX outbox_complete ON outbox (seq) WHERE state = 'complete'",
    "CREATE INDEX outbox_ended ON outbox (ended) WHERE ended IS NOT NULL",
    """CREATE TABLE chunk (
        reply INTEGER NOT NULL, n INTEGER NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('intent', 'sent', 'unknown', 'rejected')),
        message TEXT NOT NULL,
        PRIMARY KEY (reply, n)) WITHOUT ROWID""",
    """CREATE TABLE history (
        row INTEGER PRIMARY KEY,
        session TEXT NOT NULL, seq INTEGER NOT NULL, entry TEXT NOT NULL,
        UNIQUE (session, seq))""",
    """CREATE TABLE setting (
        scope TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,
        PRIMARY KEY (scope, key)) WITHOUT ROWID""",
    """CREATE TABLE channel_note (
        channel TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,
        PRIMARY KEY (channel, key)) WITHOUT ROWID""",
    """CREATE TABLE channel_log (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        channel TEXT NOT NULL, log TEXT NOT NULL, id TEXT NOT NULL, value TEXT NOT NULL,
        UNIQUE (channel, log, id))""",
    "CREATE INDEX channel_log_order ON channel_log (channel, log, seq)",
)

#: Sums of use by day, and what takes settings together quickly.
_USAGE = (
    """CREATE TABLE usage (
        day TEXT NOT NULL, session TEXT NOT NULL,
        channel TEXT NOT NULL, chat TEXT NOT NULL, person TEXT NOT NULL,
        kind TEXT NOT NULL, name TEXT NOT NULL,
        calls INTEGER NOT NULL, input INTEGER NOT NULL, output INTEGER NOT NULL, cached INTEGER NOT NULL,
        PRIMARY KEY (day, session, chat, person, kind, name)) WITHOUT ROWID""",
)

#: When something last happened in a session: what is long past can be forgotten. And a way to the leases.
_ACTIVE = (
    "CREATE INDEX channel_lease ON channel_note (key) WHERE key >= '~lease:' AND key < '~lease;'",
    "CREATE TABLE session (id TEXT PRIMARY KEY, active REAL NOT NULL) WITHOUT ROWID",
    "CREATE INDEX session_active ON session (active)",
    "INSERT INTO session SELECT DISTINCT session, strftime('%s', 'now') + 0.0 FROM history",
)

#: A session's entries lie together, whoever else talks meanwhile: it wakes with a few reads of the disk, and
#: when it is forgotten it leaves whole pages free. `row` is the session's number times SPAN, plus 1, 2, 3 …
SPAN = 1 << 32
_TOGETHER = (
    "ALTER TABLE session RENAME TO old_session",
    "CREATE TABLE session (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, active REAL NOT NULL)",
    "INSERT INTO session (id, active) SELECT id, active FROM old_session",
    """INSERT OR IGNORE INTO session (id, active)
        SELECT DISTINCT session, strftime('%s', 'now') + 0.0 FROM history""",
    "DROP TABLE old_session",
    "CREATE INDEX session_active ON session (active)",
    "CREATE TABLE entry (row INTEGER PRIMARY KEY, value TEXT NOT NULL)",
    f"""INSERT INTO entry SELECT number * {SPAN} + seq, entry
        FROM session CROSS JOIN history ON session = id ORDER BY number, seq""",  # noqa: S608 - a constant
    "DROP TABLE history",
)

#: Step n brings a file of version n to version n + 1; a step that was released is never changed.
MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST, _USAGE, _ACTIVE, _TOGETHER)


def connect(path: Path, synchronous: Synchronous, busy_seconds: float) -> sqlite3.Connection:
    """Open an existing or new file for one thread. `busy_seconds` is how long one try waits for a lock."""
    connection = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, cached_statements=256)
    try:
        if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
            # A file takes this up only before its first page is written (and when it is compacted).
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreError(
                f"The database {path} cannot use a write-ahead log (it stayed in mode {mode!r}). "
                "Put the workspace on a local disk, not on a network share."
            )
        connection.execute(f"PRAGMA synchronous = {'FULL' if synchronous == 'full' else 'NORMAL'}")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -4096")  # KiB; counts towards the idle memory of the bridge
        connection.execute("PRAGMA journal_size_limit = 33554432")
    except BaseException:
        connection.close()
        raise
    return connection


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Create or update the tables, each step in a transaction of its own.

    Raises StoreError for a file that is newer than this program or belongs to another one.
    """
    newest = len(MIGRATIONS)
    while True:
        connection.execute("BEGIN IMMEDIATE")  # two processes that start at once must not both create tables
        try:
            version = _version(connection, path, newest)
            if version == newest:
                return
            for statement in MIGRATIONS[version]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {version + 1}")
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def _version(connection: sqlite3.Connection, path: Path, newest: int) -> int:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    owner = int(connection.execute("PRAGMA application_id").fetchone()[0])
    tables = int(connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])
    if owner != APPLICATION_ID and (tables or version):
        raise StoreError(
            f"The file {path} is another program's database. Set store.url to a file of the bridge's own."
        )
    if version > newest:
        raise StoreError(
            f"The database {path} was written by a newer version of Causeway (format {version}, this one "
            f"knows {newest}). Install that version again, or set store.url to another file."
        )
    return version
