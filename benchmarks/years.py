"""A SQLite file as years of use would leave it, written in bulk: for the benches `large` and `memory`.

Entries are written as they are when many people talk at the same time, not one session after the other.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from agent.history import Assistant, User, entry_to_json
from bridge.store.base import encode
from bridge.store.sqlite_schema import SPAN, connect, migrate

#: One session in so many is as long as `LONG` entries.
ONE_LONG_IN, LONG = 5000, 10_000
#: One session in so many has had nothing for two years.
ONE_OLD_IN = 10
_DAY = 86_400.0
_ROUND = 2  # a question and its answer
_CROWD = 2000  # sessions that talk at the same time


def key(number: int) -> str:
    return f"api:direct:user-{number}"


def is_long(number: int) -> bool:
    return number % ONE_LONG_IN == 1


def is_old(number: int) -> bool:
    return number % ONE_OLD_IN == 3


def build(path: Path, sessions: int, entries: int) -> int:
    """Write a new file with so many sessions and about so many entries of history; returns how many. Beside
    them lies what two weeks of marks, two days of replies and a hundred days of sums leave. Blocks."""
    with closing(connect(path, "normal", 10.0)) as db:
        migrate(db, path)
        # Not kept in the file: this connection alone writes without care for a crash.
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA cache_size = -300000")
        written = _histories(db, sessions, entries)
        _beside(db, sessions)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return written


def _histories(db: sqlite3.Connection, sessions: int, entries: int) -> int:
    longs = sum(map(is_long, range(sessions)))
    rounds = max(1, (entries - longs * LONG) // _ROUND // max(1, sessions - longs))
    long_rounds = -(-LONG // _ROUND // rounds)
    written = 0
    for first in range(0, sessions, _CROWD):
        crowd = range(first, min(first + _CROWD, sessions))
        db.execute("BEGIN")
        for turn in range(rounds):
            rows = list(_turn(turn, crowd, long_rounds))
            db.executemany("INSERT INTO entry (row, value) VALUES (?, ?)", rows)
            written += len(rows)
        db.execute("COMMIT")
    return written


def _turn(turn: int, crowd: range, long_rounds: int) -> Iterator[tuple[int, str]]:
    answer = "It was a fine year, with rain in its spring. " * 4
    texts = [_pair(f"r{turn}", turn, answer)]
    many = [_pair(f"r{turn}.{n}", turn, answer) for n in range(long_rounds)]
    for number in crowd:
        row = (number + 1) * SPAN + 1 + turn * _ROUND * (long_rounds if is_long(number) else 1)
        for text in (text for pair in (many if is_long(number) else texts) for text in pair):
            yield row, text
            row += 1


def _pair(run: str, turn: int, answer: str) -> tuple[str, str]:
    question = User(run, f"And how was the weather in year {1900 + turn}?", (), (turn,))
    return encode(entry_to_json(question)), encode(entry_to_json(Assistant(run, answer)))


def _beside(db: sqlite3.Connection, sessions: int) -> None:
    now = time.time()
    ref = encode({"id": "r", "address": {"channel": "api", "chat": "user", "kind": "direct", "thread": None}})
    body = encode({"v": 1, "text": "It was a fine year. " * 9, "files": []})
    days = [time.strftime("%Y-%m-%d", time.gmtime(now - n * _DAY)) for n in range(100)]
    active = ((n + 1, key(n), now - (730 * _DAY if is_old(n) else n % 100 * _DAY)) for n in range(sessions))
    marks = (("api", f"user-{n % sessions}", f"m{n}", now - _DAY) for n in range(10 * sessions))
    replies = ((n, f"r{n}", key(n), "api", "delivered", ref, body, now - 3600) for n in range(sessions))
    sums = ((day, key(n), "api", f"user-{n}", f"user-{n}", "model", "demo", 3, 4000, 300, 2000)
            for d, day in enumerate(days) for n in range(d, sessions, 10))  # fmt: skip
    for statement, rows in (
        ("INSERT INTO session VALUES (?, ?, ?)", active),
        ("INSERT INTO seen (channel, chat, message, at) VALUES (?, ?, ?, ?)", marks),
        ("INSERT INTO outbox (seq, id, session, channel, state, ref, body, ended) VALUES (?,?,?,?,?,?,?,?)",
         replies),
        ("INSERT INTO chunk SELECT seq, 0, 'sent', 'm' || seq FROM outbox WHERE ?", [(1,)]),
        ("INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", sums),
    ):  # fmt: skip
        db.execute("BEGIN")
        db.executemany(statement, rows)
        db.execute("COMMIT")
