"""What several processes share beside the store proper: arrivals for workers, and messages to one another."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Sequence

from bridge.store import redis_scripts as lua
from bridge.store.base import StoreError, encode
from bridge.store.redis_line import Place, connect, store_error
from bridge.store.redis_scripts import OPERATION_SECONDS
from bridge.store.redis_state import Desk, pairs
from channels.base import Json

log = logging.getLogger("causeway.store")

#: An entry of the index without anything behind it is taken off when it is as old as this (microseconds): it
#: may be the beginning of a call that is being written.
_STALE = 600 * 1_000_000
_PART = 250


class RedisArrivals:
    """Implements `bridge.store.base.Arrivals`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._cursor: dict[str, int] = {}

    async def put(self, session: str, item: Json, cap: int) -> str | None:
        """The session is listed as calling before the item is written: one that is listed for nothing costs a
        look, one that has something and is not listed would wait for ever."""
        desk, version = self._desk, time.time_ns() // 1000
        keys = desk.keys.of_session(session, "lease", "arrivals", "called", f"op:{desk.operation()}")
        with desk.writer.steps():
            _, done = await desk.writer.run(
                ("ZADD", desk.keys.calling, "GT", version, session),
                lua.ARRIVE(keys, OPERATION_SECONDS, cap, version, encode(item)),
            )
            if done is None:
                return None
            called, worker = done
            if int(called) > version:  # another process's clock is ahead
                await desk.writer.one(("ZADD", desk.keys.calling, "GT", called, session))
        return str(worker)

    async def read(self, session: str, limit: int) -> list[Json]:
        keys = self._desk.keys.of_session(session, "lease", "arrivals")
        rows = await self._desk.reader.one(lua.ARRIVED(keys, self._desk.token(session), limit))
        return [json.loads(row) for row in rows]

    async def consume(self, session: str, count: int) -> bool:
        desk = self._desk
        keys = desk.keys.of_session(session, "lease", "arrivals", "called", f"op:{desk.operation()}")
        called = await desk.writer.one(lua.CONSUME(keys, desk.token(session), OPERATION_SECONDS, count))
        if called == "":
            return False
        desk.writer.post(lua.UNWAIT((desk.keys.calling,), session, called))
        return True

    async def unclaimed(self, limit: int) -> list[str]:
        keys = self._desk.keys
        found = await self._free(keys.calling, "LLEN", "arrivals", limit)
        found += await self._free(keys.waiting, "ZCARD", "inbox", limit)
        return list(dict.fromkeys(found))

    async def _free(self, index: str, length: str, part: str, limit: int) -> list[str]:
        """Look at the next `limit` entries of an index, after its end at the first ones again."""
        desk, start = self._desk, self._cursor.get(index, 0)
        rows = pairs(await desk.reader.one(("ZRANGE", index, start, start + limit - 1, "WITHSCORES")))
        self._cursor[index] = start + limit if len(rows) == limit else 0
        old = time.time_ns() // 1000 - _STALE
        free: list[str] = []
        for at in range(0, len(rows), _PART):
            some = rows[at : at + _PART]
            holders = await self.holders([session for session, _ in some])
            some = [row for row, holder in zip(some, holders, strict=True) if not holder]
            lengths = await desk.reader.run(
                *((length, *desk.keys.of_session(session, part)) for session, _ in some)
            )
            for (session, version), count in zip(some, lengths, strict=True):
                if count:
                    free.append(session)
                else:  # a call is listed before it is written, a message after: see `put` and `accept`
                    upto = min(version, old) if index == desk.keys.calling else version
                    desk.writer.post(lua.UNWAIT((index,), session, f"{upto:.0f}"))
        return free

    async def holders(self, sessions: Sequence[str]) -> list[str]:
        keys = self._desk.keys
        found = await self._desk.reader.run(
            *(lua.HOLDER(keys.of_session(session, "lease")) for session in sessions)
        )
        return [holder or "" for holder in found]


class RedisRelay:
    """Implements `bridge.store.base.Relay` by publishing and subscribing."""

    def __init__(self, place: Place, desk: Desk) -> None:
        self._place = place
        self._desk = desk

    def _channel(self, name: str) -> str:
        return f"{self._place.prefix}:to:{name}"

    async def publish(self, channel: str, text: str) -> int:
        return int(await self._desk.writer.one(("PUBLISH", self._channel(channel), text)))

    async def listen(self, channels: Sequence[str]) -> AsyncIterator[str | None]:
        pause = 0.05
        while True:
            client = await asyncio.to_thread(connect, self._place)
            pubsub = client.pubsub(ignore_subscribe_messages=True)
            try:
                await pubsub.subscribe(*(self._channel(name) for name in channels))
                yield None
                pause = 0.05
                while True:
                    # The client answers pings by itself; a silent line is looked at every few seconds.
                    message = await pubsub.get_message(timeout=5.0)
                    if message is None:
                        await pubsub.ping()
                    elif message["type"] == "message":
                        yield message["data"]
            except Exception as error:  # noqa: BLE001 - whatever the client raises, the line is made anew
                log.warning("%s", store_error(error, self._place.shown))
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)
            finally:
                await pubsub.aclose()  # type: ignore[no-untyped-call]
                await client.aclose()

    async def keep_alive(self, member: str, record: str, seconds: float) -> dict[str, str]:
        """Two round trips; whoever has not said so for `seconds` is taken off the list."""
        keys = self._desk.keys
        _, _, members = await self._desk.writer.run(
            ("SET", keys.member(member), record, "PX", round(seconds * 1000)),
            ("SADD", keys.members, member),
            ("SMEMBERS", keys.members),
        )
        names = sorted(members)
        records = await self._desk.reader.run(*(("GET", keys.member(name)) for name in names))
        gone = [name for name, kept in zip(names, records, strict=True) if kept is None]
        if gone:
            self._desk.writer.post(("SREM", keys.members, *gone))
        return {name: kept for name, kept in zip(names, records, strict=True) if kept is not None}

    async def leave(self, member: str) -> None:
        keys = self._desk.keys
        try:
            await self._desk.writer.run(("DEL", keys.member(member)), ("SREM", keys.members, member))
        except StoreError as error:
            log.info("this process is taken off the list when its time is over: %s", error)
