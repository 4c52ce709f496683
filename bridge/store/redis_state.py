"""Histories, settings, sums of use and the channels' own notes in Redis; and what all parts share."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent.history import Entry, Tail, entry_from_json, entry_to_json, same_run
from bridge.store import redis_scripts as lua
from bridge.store.base import (
    LOG_MOST,
    USAGE_FIELDS,
    USAGE_SECONDS,
    SessionLost,
    StoreError,
    UsageField,
    UsageRow,
    encode,
)
from bridge.store.redis_line import RedisLine
from bridge.store.redis_scripts import OPERATION_SECONDS, Command, Keys
from channels.base import Json, LogEntry

#: The last number of a log is remembered for so long when nothing is written to it.
_NUMBER_SECONDS = 90 * 86_400
#: A session's last activity is written down at most so often.
_TOUCH_SECONDS = 60.0
_REMEMBERED = 100_000
_NUMBERS = ("calls", "input", "output", "cached")
#: Histories longer than this many characters are read in a thread.
_LONG = 200_000


class Desk:
    """What all parts of one Redis store work with: lines, key names, the clock, and this worker's claims."""

    def __init__(
        self, writer: RedisLine, reader: RedisLine, keys: Keys, clock: Callable[[], float], worker: str | None
    ) -> None:
        self.writer = writer
        self.reader = reader
        self.keys = keys
        self.clock = clock
        self.worker = worker
        self.tokens: dict[str, str] = {}
        self._touched: OrderedDict[str, float] = OrderedDict()
        self._life, self._count = secrets.token_hex(8), itertools.count(1)

    def operation(self) -> str:
        """An id that no other operation has."""
        return f"{self._life}.{next(self._count)}"

    def token(self, session: str) -> str:
        """What a write on this session has to carry; empty where nobody claims. Raises SessionLost."""
        if self.worker is None:
            return ""
        token = self.tokens.get(session)
        if token is None:
            raise SessionLost(f"lost the session {session}: this worker has no claim on it")
        return token

    def touch(self, session: str) -> tuple[Command, ...]:
        """What lists a session as one that was active just now; nothing when that was written lately."""
        now = self.clock()
        if 0 <= now - self._touched.get(session, 0.0) < _TOUCH_SECONDS:
            return ()
        self._touched[session] = now
        self._touched.move_to_end(session)
        while len(self._touched) > 1:  # what is idle is not remembered
            oldest = next(iter(self._touched))
            if now - self._touched[oldest] < _TOUCH_SECONDS and len(self._touched) <= _REMEMBERED:
                break
            del self._touched[oldest]
        return (("ZADD", self.keys.active, now, session), ("ZADD", self.keys.sessions, 0, session))

    def untouch(self, session: str) -> None:
        self._touched.pop(session, None)


class RedisHistory:
    """Implements `agent.history.HistoryStore`: one list a session."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def _key(self, session: str) -> str:
        return self._desk.keys.of_session(session, "history")[0]

    async def load(self, session: str) -> list[Entry]:
        return await self._read(session, await self._desk.reader.one(("LRANGE", self._key(session), 0, -1)))

    async def tail(self, session: str, least: int) -> Tail:
        key = self._key(session)
        length, rows = await self._desk.reader.run(("LLEN", key), ("LRANGE", key, -least, -1))
        entries, before = await self._read(session, rows), max(0, length - len(rows))
        while before > 0 and entries:
            step: Command = ("LRANGE", key, max(0, before - least), before - 1)
            older = await self._read(session, await self._desk.reader.one(step))
            cut, oldest = len(older), entries[0]
            while cut > 0 and same_run(older[cut - 1], oldest):
                cut -= 1
                oldest = older[cut]
            entries, before = older[cut:] + entries, before - (len(older) - cut)
            if cut or not older:
                break
        return Tail(before if entries else 0, entries)

    async def count(self, session: str) -> int:
        return int(await self._desk.reader.one(("LLEN", self._key(session))))

    async def _read(self, session: str, rows: Sequence[str]) -> list[Entry]:
        try:
            if sum(map(len, rows)) > _LONG:
                return await asyncio.to_thread(_entries, rows)
            return _entries(rows)
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"The stored history of session {session} cannot be read ({error}). "
                "Start that conversation anew with /new, or restore a backup of Redis."
            ) from None

    async def exists(self, session: str) -> bool:
        return bool(await self._desk.reader.one(("EXISTS", self._key(session))))

    async def append(self, session: str, entries: Sequence[Entry]) -> None:
        rows = [encode(entry_to_json(entry)) for entry in entries]
        if not rows:
            return
        desk = self._desk
        token, operation = desk.token(session), desk.operation()
        keys = desk.keys.of_session(session, "lease", "history", f"op:{operation}")
        try:
            # Listed first: a session that is listed and has no history is not shown.
            await desk.writer.run(*desk.touch(session), lua.APPEND(keys, token, OPERATION_SECONDS, *rows))
        except StoreError:
            desk.untouch(session)
            raise

    async def clear(self, session: str) -> None:
        keys = self._desk.keys.of_session(session, "lease", "history")
        await self._desk.writer.one(lua.CLEAR(keys, self._desk.token(session)))


def _entries(rows: Sequence[str]) -> list[Entry]:
    return [entry_from_json(json.loads(row)) for row in rows]


class RedisNotes:
    """The part of `bridge.store.base.Store` that keeps settings and sums of use."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._days: set[str] = set()

    async def get_setting(self, scope: str, key: str) -> Json:
        return decoded(await self._desk.reader.one(("HGET", self._desk.keys.setting(scope), key)))

    async def put_setting(self, scope: str, key: str, value: Json) -> None:
        if value is None:
            await self._desk.writer.one(("HDEL", self._desk.keys.setting(scope), key))
        else:
            await self._desk.writer.one(("HSET", self._desk.keys.setting(scope), key, encode(value)))

    async def settings(self, scope: str) -> dict[str, Json]:
        kept = await self._desk.reader.one(("HGETALL", self._desk.keys.setting(scope)))
        return {key: json.loads(value) for key, value in kept.items()}

    async def add_usage(self, rows: Sequence[UsageRow]) -> None:
        days: dict[str, list[str | int]] = {}
        for row in rows:
            name = encode([row.session, row.channel, row.chat, row.person, row.kind, row.name])
            fields = days.setdefault(row.day, [])
            for what in _NUMBERS:
                if number := getattr(row, what):
                    fields += [f"{what}:{name}", number]
        for day, fields in days.items():
            keys = self._desk.keys.of_day(day, "sums", f"op:{self._desk.operation()}")
            listed: list[Command] = [] if day in self._days else [("SADD", self._desk.keys.days, day)]
            await self._desk.writer.run(*listed, lua.ADD(keys, OPERATION_SECONDS, USAGE_SECONDS, *fields))
            self._days = {*self._days, day} if len(self._days) < 100 else {day}

    async def usage(
        self,
        since: str,
        per: Sequence[UsageField] = USAGE_FIELDS,
        of: tuple[str, str] | None = None,
        most: int = 0,
    ) -> list[UsageRow]:
        days = sorted(
            day for day in await self._desk.reader.one(("SMEMBERS", self._desk.keys.days)) if day >= since
        )
        sums: dict[tuple[str, ...], Counter[str]] = {}
        for day in days:
            kept = await self._desk.reader.one(("HGETALL", *self._desk.keys.of_day(day, "sums")))
            await asyncio.to_thread(_add_up, sums, day, kept, per, of)
        kept = await asyncio.to_thread(_largest, sums, most) if most else list(sums.items())
        return [UsageRow(*names, **numbers) for names, numbers in kept]


def _largest(
    sums: Mapping[tuple[str, ...], Counter[str]], most: int
) -> list[tuple[tuple[str, ...], Counter[str]]]:
    return heapq.nlargest(
        most, sums.items(), lambda one: one[1]["input"] + one[1]["output"] + one[1]["calls"]
    )


def _add_up(
    sums: dict[tuple[str, ...], Counter[str]],
    day: str,
    kept: Mapping[str, str],
    per: Sequence[UsageField],
    of: tuple[str, str] | None,
) -> None:
    """Add a day's sums to those of the days before it."""
    known: dict[str, Counter[str]] = {}
    for field, number in kept.items():
        what, name = field.split(":", 1)
        if (found := known.get(name)) is None:
            names = dict(zip((*USAGE_FIELDS, "kind", "name"), (day, *json.loads(name)), strict=True))
            if of is not None and (names["channel"], names["person"]) != of:
                continue
            key = tuple(value if one in (*per, "kind", "name") else "" for one, value in names.items())
            found = known[name] = sums.setdefault(key, Counter())
        found[what] += int(number)


class RedisChannelState:
    """Implements `channels.base.ChannelState` for one channel instance. Leases run by the server's clock."""

    def __init__(self, desk: Desk, channel: str) -> None:
        self._desk = desk
        self._channel = channel

    def _log(self, log: str, *parts: str) -> tuple[str, ...]:
        return self._desk.keys.of_log(self._channel, log, *parts)

    async def get(self, key: str) -> Json:
        return decoded(await self._desk.reader.one(("HGET", self._desk.keys.notes(self._channel), key)))

    async def put(self, key: str, value: Json) -> None:
        notes = self._desk.keys.notes(self._channel)
        if value is None:
            await self._desk.writer.one(("HDEL", notes, key))
        else:
            await self._desk.writer.one(("HSET", notes, key, encode(value)))

    async def append(self, log: str, entry: str, value: dict[str, Any]) -> int:
        keys = self._log(log, "order", "entries", "number")
        step = lua.LOG_APPEND(keys, entry, encode(value), LOG_MOST, _NUMBER_SECONDS)
        return int(await self._desk.writer.one(step))

    async def read(self, log: str, after: int = 0, limit: int = 500) -> list[LogEntry]:
        keys = self._log(log, "order", "entries")
        flat: list[str] = await self._desk.reader.one(lua.LOG_READ(keys, after, limit))
        rows = [(int(flat[n]), flat[n + 1], flat[n + 2]) for n in range(0, len(flat), 3)]
        return [LogEntry(number, id, json.loads(value)) for number, id, value in reversed(rows)]

    async def trim(self, log: str, upto: int) -> None:
        await self._desk.writer.one(lua.LOG_TRIM(self._log(log, "order", "entries"), upto))

    async def remove(self, log: str, entry: str) -> bool:
        keys = self._log(log, "order", "entries", f"op:{self._desk.operation()}")
        return bool(await self._desk.writer.one(lua.LOG_REMOVE(keys, entry, OPERATION_SECONDS)))

    async def claim(self, key: str, holder: str, seconds: float) -> bool:
        lease = (self._desk.keys.lease(self._channel, key),)
        return bool(await self._desk.writer.one(lua.LEASE(lease, holder, max(1, round(seconds * 1000)))))

    async def release(self, key: str, holder: str) -> None:
        lease = (self._desk.keys.lease(self._channel, key),)
        await self._desk.writer.one(lua.UNLEASE(lease, holder))


def decoded(value: str | None) -> Json:
    kept: Json = None if value is None else json.loads(value)
    return kept


def pairs(rows: Sequence[Any]) -> list[tuple[str, float]]:
    """Members with their scores, as the client gives them: in pairs, or one after the other."""
    if rows and not isinstance(rows[0], str):
        return [(member, float(score)) for member, score in rows]
    return [(rows[n], float(rows[n + 1])) for n in range(0, len(rows), 2)]
