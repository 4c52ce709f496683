"""The Redis store's own ways: urls, faults told with their cure, retries that do nothing twice, claims."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import fakeredis
import pytest
from redis import exceptions

from agent.history import User
from bridge.store import check_url, open_store
from bridge.store.base import REPLY_SECONDS, SEEN_SECONDS, SessionLost, StoredChunk, StoredReply, StoreError
from bridge.store.redis import RedisStore
from bridge.store.redis_line import MAX_BATCH, MAX_QUEUED, RedisLine, place
from bridge.store.redis_scripts import ALL
from channels.base import Address, Inbound, ReplyRef, Sender


def message(id: str = "1", chat: str = "7") -> Inbound:
    return Inbound(id=id, address=Address("telegram", chat), sender=Sender("42"), text="hello")


def answer(id: str = "r1", session: str = "s", state: Any = "open") -> StoredReply:
    return StoredReply(id, session, asdict(ReplyRef(id, Address("telegram", "7"), "1")), {"text": id}, state)


class Flaky:
    """A client of a server in this process, whose round trips can fail before or after they are done."""

    def __init__(self, server: fakeredis.FakeServer) -> None:
        self.real = fakeredis.FakeAsyncRedis(server=server, decode_responses=True, protocol=2)
        self.connection_pool = self.real.connection_pool
        self.faults: list[tuple[str, Exception]] = []
        self.round_trips: list[list[tuple[Any, ...]]] = []

    def pipeline(self, transaction: bool) -> _Pipe:
        assert not transaction
        return _Pipe(self)

    async def aclose(self) -> None:
        await self.real.aclose()


class _Pipe:
    def __init__(self, client: Flaky) -> None:
        self.client = client
        self.pipe = client.real.pipeline(transaction=False)
        self.commands: list[tuple[Any, ...]] = []

    def execute_command(self, *command: Any) -> None:
        self.commands.append(command)
        self.pipe.execute_command(*command)

    async def execute(self, raise_on_error: bool) -> list[Any]:
        when, fault = self.client.faults.pop(0) if self.client.faults else ("", None)
        self.client.round_trips.append(self.commands)
        if when == "answered":
            assert fault is not None
            return [fault] * len(self.commands)
        if when == "before":
            assert fault is not None
            raise fault
        answers = await self.pipe.execute(raise_on_error=raise_on_error)
        if when == "after":
            assert fault is not None
            raise fault
        return list(answers)


class House:
    """Stores on one server in this process."""

    def __init__(self) -> None:
        self.server = fakeredis.FakeServer()
        self.stores: list[RedisStore] = []
        self.clients: list[Flaky] = []

    def _connect(self, _place: Any) -> Any:
        self.clients.append(Flaky(self.server))
        return self.clients[-1]

    async def open(self, **options: Any) -> tuple[RedisStore, Flaky]:
        """A store, and the client that it writes with."""
        store = RedisStore("redis://here", connect=self._connect, **options)
        await store.open()
        self.stores.append(store)
        return store, self.clients[-2]

    async def keys(self, pattern: str = "*") -> dict[str, int]:
        """The keys there are, each with its seconds to live (-1: for ever)."""
        client = fakeredis.FakeAsyncRedis(server=self.server, decode_responses=True)
        found = {str(key): await client.ttl(key) for key in await client.keys(pattern)}
        await client.aclose()
        return found


@pytest.fixture
async def house() -> Any:
    house = House()
    yield house
    for store in house.stores:
        await store.close()


LOST: Exception = exceptions.ConnectionError("Connection closed by server.")

# -- addresses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown", "prefix", "replicas"),
    [
        ("redis://localhost", "localhost:6379/0", "causeway", 0),
        ("redis://me:hunter2@host:7000/3?prefix=bot-2&replicas=1", "host:7000/3", "bot-2", 1),
        ("rediss://:hunter2@host/?ssl_cert_reqs=none&db=4", "host:6379/4", "causeway", 0),
        ("unix:///run/redis.sock?db=2", "unix:/run/redis.sock", "causeway", 0),
    ],
)
def test_an_address_names_server_database_and_prefix(
    url: str, shown: str, prefix: str, replicas: int
) -> None:
    found = place(url)
    assert (found.shown, found.prefix, found.replicas) == (shown, prefix, replicas)
    assert "prefix" not in found.url
    assert isinstance(open_store(url, Path("/w")), RedisStore)
    check_url(url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://", "host is missing"),
        ("redis://u:hunter2@host:99999999/0", "host or port"),
        ("redis://u:hunter2@host/mine", "must be a number"),
        ("redis://u:hunter2@host?db=x", "must be a number"),
        ("redis://u:hunter2@host/0?prefx=a", "'prefx' is unknown"),
        ("redis://u:hunter2@host/0?prefix=a{b}", "prefix may have only"),
        ("redis://u:hunter2@host/0?prefix=", "prefix may have only"),
        ("redis://u:hunter2@host/0?replicas=-1", "replicas must be"),
        ("unix://?db=1", "socket is missing"),
    ],
)
def test_a_wrong_address_is_refused_with_what_to_write_and_without_its_secret(url: str, words: str) -> None:
    for call in (lambda: open_store(url, Path("/w")), lambda: check_url(url)):
        with pytest.raises(StoreError) as caught:
            call()
        assert words in str(caught.value)
        assert "redis://user:password@host:6379/0" in str(caught.value)
        assert "hunter2" not in str(caught.value)


def test_the_client_library_is_not_imported_before_a_store_is_opened() -> None:
    code = (
        "import sys\nfrom pathlib import Path\nimport bridge.store\n"
        "bridge.store.open_store('redis://localhost', Path())\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'redis'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ}
    )
    assert done.stdout == "[]\n", done.stderr


# -- round trips -------------------------------------------------------------------------------------


async def test_calls_made_together_share_round_trips(house: House) -> None:
    store, client = await house.open()
    client.round_trips.clear()
    await asyncio.gather(*(store.put_setting("s", str(n), n) for n in range(3 * MAX_BATCH)))
    assert len(client.round_trips) == 3
    assert max(map(len, client.round_trips)) == MAX_BATCH


async def test_a_script_that_the_server_has_forgotten_is_loaded_again(house: House) -> None:
    store, client = await house.open()
    assert await store.accept(message("1"), "s", 10) == "accepted"
    await client.real.script_flush()
    assert await store.accept(message("2"), "s", 10) == "accepted"
    assert [w.inbound.id for w in await store.next("s", 9)] == ["1", "2"]


def test_every_script_names_all_its_keys_in_one_slot_and_is_known_by_its_source() -> None:
    assert len(ALL) == len({script.sha for script in ALL}) >= 20


async def test_callers_beyond_the_bound_wait_for_room_and_all_are_served(house: House) -> None:
    store, _ = await house.open()
    line, calls = store._writer, [store.put_setting("s", str(n), n) for n in range(MAX_QUEUED + 50)]
    tasks = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0)
    assert len(line._queue) <= MAX_QUEUED
    assert await asyncio.gather(*tasks) == [None] * (MAX_QUEUED + 50)
    assert len(await store.settings("s")) == MAX_QUEUED + 50


# -- an answer that is lost --------------------------------------------------------------------------

Step = Callable[[RedisStore], Awaitable[Any]]


async def _accept(store: RedisStore) -> Any:
    result = await store.accept(message("new"), "s", 10)
    return (
        result,
        [w.inbound.id for w in await store.next("s", 9)],
        await store.waiting_sessions(["telegram"]),
    )


async def _mark(store: RedisStore) -> Any:
    return await store.mark_seen(message("new")), await store.mark_seen(message("new"))


async def _answered(store: RedisStore) -> Any:
    first = await store.mark_seen(message("new"), answer("c1", state="complete"))
    return first, [r.id for r in await store.pending_replies(["telegram"])]


async def _append(store: RedisStore) -> Any:
    await store.history.append("s", [User("r", "a"), User("r", "b")])
    return await store.history.load("s")


async def _usage(store: RedisStore) -> Any:
    from bridge.store.base import UsageRow

    await store.add_usage([UsageRow("2026-01-01", "s", "telegram", "7", "42", "model", "gpt", 1, 10, 5)])
    return await store.usage("2026-01-01")


async def _log(store: RedisStore) -> Any:
    state = store.channel_state("web")
    await state.append("log", "a", {"n": 1})
    return [e.id for e in await state.read("log")], await state.remove("log", "a"), await state.read("log")


async def _chunk(store: RedisStore) -> Any:
    await store.open_reply(answer())
    await store.put_chunk("r1", StoredChunk(0, "sent", "m"))
    await store.complete_reply(answer())
    await store.settle_reply("r1", "delivered", [])
    return await store.reply("r1")


async def _lease(store: RedisStore) -> Any:
    state = store.channel_state("web")
    first = await state.claim("k", "a", 60)
    await state.release("k", "a")
    return first, await state.claim("k", "b", 60)


@pytest.mark.parametrize("step", [_accept, _mark, _answered, _append, _usage, _log, _chunk, _lease])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_lost_answer_changes_neither_what_is_kept_nor_what_is_said(step: Step, when: str) -> None:
    smooth = House()
    store, _ = await smooth.open()
    expected = await step(store)
    for broken in range(8):  # the round trip of the step that breaks
        house = House()
        store, client = await house.open()
        client.faults = [("", LOST)] * broken + [(when, LOST)]
        assert await step(store) == expected, broken
        await store.close()
    await smooth.stores[0].close()


async def test_a_message_whose_acceptance_broke_off_is_accepted_once_when_it_comes_again(
    house: House,
) -> None:
    """At every round trip of `accept` the process dies; another one is given the message."""
    for broken in range(3):
        store, client = await house.open(patience=0.0)
        other, _ = await house.open()
        incoming, session = message("1", chat=f"c{broken}"), f"s{broken}"
        for when in ("before", "after"):
            client.faults = [("", LOST)] * broken + [(when, LOST)]
            with pytest.raises(StoreError):
                await store.accept(incoming, session, 10)
        results = [await other.accept(incoming, session, 10) for _ in range(3)]
        assert results[1:] == ["seen", "seen"]
        assert [w.inbound for w in await other.next(session, 9)] == [incoming]
        assert session in await other.waiting_sessions(["telegram"])
        [waiting] = await other.next(session)
        await other.settle_reply("r", "delivered", [waiting.seq])
        assert await other.accept(incoming, session, 10) == "seen"
        assert await other.waiting_sessions(["telegram"]) == []


async def test_a_gateway_that_comes_late_puts_an_answered_message_in_no_second_time(house: House) -> None:
    slow, client = await house.open(patience=0.0)
    other, _ = await house.open()
    client.faults = [("", LOST), ("before", LOST)]
    with pytest.raises(StoreError):
        await slow.accept(message(), "s", 10)  # marked, and on its way to the inbox
    late = client.round_trips[-1]
    assert await other.accept(message(), "s", 10) == "accepted"
    [waiting] = await other.next("s")
    await other.settle_reply("r", "delivered", [waiting.seq])
    await slow._writer.run(*late)  # what was on the wire all the time
    assert await other.next("s") == []


# -- faults ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), "noeviction"),
        (exceptions.ReadOnlyError("You can't write against a read only replica."), "Point store.url"),
        (exceptions.AuthenticationError("invalid username-password pair"), "Correct them in store.url"),
        (exceptions.ResponseError("NOAUTH Authentication required."), "redis://user:password@host"),
        (exceptions.NoPermissionError("this user has no permissions"), "ACL SETUSER"),
        (exceptions.MovedError("3999 127.0.0.1:6381"), "Redis Cluster"),
        (
            exceptions.ResponseError("MISCONF Errors writing to the AOF file: No space left"),
            "Free disk space",
        ),
        (exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."), "min-replicas"),
        (exceptions.BusyLoadingError("Redis is loading the dataset in memory"), "loading"),
        (exceptions.ConnectionError("Error 111 connecting to 127.0.0.1:1."), "cannot be reached"),
        (exceptions.TimeoutError("Timeout reading from socket"), "cannot be reached"),
        (exceptions.ResponseError("ERR something new"), "see both logs"),
    ],
)
async def test_a_fault_is_told_with_its_reason_and_cure_and_passes(
    said: Exception, words: str, house: House
) -> None:
    store, client = await house.open(patience=0.0)
    when = "before" if isinstance(said, exceptions.ConnectionError | exceptions.TimeoutError) else "answered"
    client.faults = [(when, said)]
    with pytest.raises(StoreError, match=words) as caught:
        await store.put_setting("s", "secret-value", "x")
    assert "here:6379" in str(caught.value)
    assert "secret-value" not in str(caught.value)
    await store.put_setting("s", "k", 1)
    assert await store.get_setting("s", "k") == 1


@pytest.mark.parametrize("said", [exceptions.ReadOnlyError("x"), exceptions.BusyLoadingError("x"), LOST])
async def test_what_passes_by_itself_is_waited_for(said: Exception, house: House) -> None:
    store, client = await house.open()
    client.faults = [("before" if said is LOST else "answered", said)] * 3
    await store.put_setting("s", "k", 1)
    assert await store.get_setting("s", "k") == 1


async def test_a_server_that_stays_away_fails_all_callers_once_after_a_bounded_time() -> None:
    server, slept = fakeredis.FakeServer(), 0.0
    flaky = Flaky(server)

    async def sleep(seconds: float) -> None:
        nonlocal slept
        slept += seconds
        await asyncio.sleep(0)

    line = RedisLine(place("redis://here"), connect=lambda _: flaky, patience=0.05, sleep=sleep)  # type: ignore[arg-type, return-value]
    await line.start()
    flaky.faults = [("before", LOST)] * 1_000_000
    async with asyncio.timeout(10):
        results = await asyncio.gather(
            *(line.one(("SET", f"k{n}", n)) for n in range(2000)), return_exceptions=True
        )
    assert all(isinstance(result, StoreError) for result in results)
    flaky.faults.clear()
    assert await line.one(("SET", "k", 1)) is True
    await line.stop()


async def test_callers_are_told_when_the_store_closes_before_the_server_comes_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.store.redis_line.STOP_SECONDS", 0.05)
    monkeypatch.setattr("bridge.store.redis_line.MAX_BATCH", 4)
    store, client = await house.open()
    client.faults = [("before", LOST)] * 1_000_000
    calls = [asyncio.ensure_future(store.put_setting("s", str(n), n)) for n in range(10)]
    await asyncio.sleep(0)
    with pytest.raises(StoreError, match="may be missing"):
        await store.close()
    async with asyncio.timeout(5):
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, StoreError) for result in results)
    with pytest.raises(StoreError, match="closed"):
        await store.get_setting("s", "0")


async def test_closing_finishes_an_acceptance_that_was_begun(house: House) -> None:
    store, _ = await house.open()
    accepting = asyncio.ensure_future(store.accept(message(), "s", 10))
    await asyncio.sleep(0)
    await store.close()
    assert await accepting == "accepted"
    other, _ = await house.open()
    assert await other.waiting_sessions(["telegram"]) == ["s"]
    assert await other.accept(message(), "s", 10) == "seen"


async def test_data_of_a_newer_version_is_refused(house: House) -> None:
    store, client = await house.open()
    await client.real.set("causeway:format", 99)
    with pytest.raises(StoreError, match="newer version of Causeway"):
        await house.open()
    await store.put_setting("s", "k", 1)


# -- what is kept for how long -----------------------------------------------------------------------


async def test_an_idle_session_leaves_its_history_and_nothing_else_that_lasts(house: House) -> None:
    store, _ = await house.open()
    await store.accept(message(), "s", 10)
    [waiting] = await store.next("s")
    await store.history.append("s", [User("r", "x")])
    await store.complete_reply(answer())
    await store.put_chunk("r1", StoredChunk(0, "sent", "m"))
    await store.settle_reply("r1", "delivered", [waiting.seq])
    await store.put_setting("s", "wait", 1)  # behind what is tidied up
    keys = await house.keys()
    lasting = {key for key, seconds in keys.items() if seconds == -1}
    assert lasting == {
        "causeway:format",
        "causeway:numbers",
        "causeway:setting:s",
        "causeway:{index}:active",
        "causeway:{index}:sessions",
        "causeway:{s}:history",
    }
    [seen] = [seconds for key, seconds in keys.items() if key.endswith(":seen")]
    assert SEEN_SECONDS - 60 < seen <= SEEN_SECONDS
    [reply] = [seconds for key, seconds in keys.items() if ":reply:" in key]
    assert REPLY_SECONDS - 60 < reply <= REPLY_SECONDS


async def test_a_log_keeps_its_newest_entries(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.store.redis_state.LOG_MOST", 5)
    store, _ = await house.open()
    state = store.channel_state("web")
    for n in range(12):
        await state.append("log", str(n), {"n": n})
    assert [e.id for e in await state.read("log")] == ["7", "8", "9", "10", "11"]


async def test_a_reply_is_found_by_a_process_that_did_not_write_it(house: House) -> None:
    store, _ = await house.open()
    await store.open_reply(answer())
    other, _ = await house.open()
    assert await other.reply("r1") == answer()
    await other.put_chunk("r1", StoredChunk(0, "sent", "m"))
    third, _ = await house.open()
    await third.settle_reply("r1", "failed", [])
    found = await store.reply("r1")
    assert found is not None
    assert (found.state, found.chunks) == ("failed", (StoredChunk(0, "sent", "m"),))


# -- claims ------------------------------------------------------------------------------------------


async def _claimed(house: House, worker: str, seconds: float = 60) -> RedisStore:
    store, _ = await house.open(worker=worker)
    assert await store.claim_session("s", seconds) is not None
    return store


async def test_a_session_is_claimed_by_one_worker_and_renewed_by_it_alone(house: House) -> None:
    first = await _claimed(house, "w1")
    second, _ = await house.open(worker="w2")
    assert await second.claim_session("s", 60) is None
    assert await second.renew_session("s", 60) is False
    token = await first.claim_session("s", 60)
    assert await first.renew_session("s", 60) is True
    assert await first.claim_session("s", 60) == token  # claimed again, it is the same claim
    await first.release_session("s")
    taken = await second.claim_session("s", 60)
    assert taken is not None
    assert token is not None
    assert taken > token
    await first.release_session("s")  # a second time: another has it now
    assert await second.renew_session("s", 60) is True


WRITES: list[Step] = [
    lambda store: store.next("s"),
    lambda store: store.take([1], "run"),
    lambda store: store.drop([1]),
    lambda store: store.open_reply(answer("r2")),
    lambda store: store.complete_reply(answer("r1")),
    lambda store: store.put_chunk("r1", StoredChunk(0, "sent", "late")),
    lambda store: store.settle_reply("r1", "delivered", [1]),
    lambda store: store.history.append("s", [User("r", "late")]),
    lambda store: store.history.clear("s"),
]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("knows", ["knows nothing", "was told"])
async def test_a_worker_that_lost_a_session_can_write_nothing_to_it(
    write: Step, knows: str, house: House
) -> None:
    gateway, _ = await house.open()
    await gateway.accept(message(), "s", 10)
    stale = await _claimed(house, "w1")
    [waiting] = await stale.next("s")
    assert waiting.seq == 1
    await stale.open_reply(answer())
    await stale.history.append("s", [User("r", "before")])
    second, _ = await house.open(worker="w2")
    assert await stale.claim_session("s", 0.001) is not None  # the last that it renews
    async with asyncio.timeout(10):
        while await second.claim_session("s", 60) is None:
            await asyncio.sleep(0.005)
    if knows == "was told":
        assert await stale.renew_session("s", 60) is False
    await second.take([w.seq for w in await second.next("s")], "taken over")
    before = await _all_of(second)
    with pytest.raises(SessionLost, match="lost the session"):
        await write(stale)
    assert await _all_of(second) == before
    await write(second)  # the one who has the claim may


async def _all_of(store: RedisStore) -> Any:
    return (
        await store.next("s", 9),
        await store.reply("r1"),
        await store.reply("r2"),
        await store.history.load("s"),
    )


async def test_a_claim_that_ran_out_is_still_its_workers_until_another_takes_it(house: House) -> None:
    store = await _claimed(house, "w1", seconds=0.001)
    await store.history.append("s", [User("r", "x")])
    await until(lambda: store.arrivals.holders(["s"]), [""])
    await store.history.append("s", [User("r", "y")])  # nobody else has been at work on it
    assert await store.renew_session("s", 60)
    assert await store.arrivals.holders(["s", "t"]) == ["w1", ""]


async def until(look: Callable[[], Awaitable[object]], wanted: object) -> None:
    async with asyncio.timeout(10):
        while await look() != wanted:
            await asyncio.sleep(0.002)


async def test_what_arrives_is_kept_in_order_and_calls_whoever_has_the_session(house: House) -> None:
    gateway, _ = await house.open()
    other, _ = await house.open()
    assert await gateway.arrivals.put("s", {"n": 1}, 3) == ""
    assert await other.arrivals.unclaimed(10) == ["s"]
    worker = await _claimed(house, "w1")
    assert await other.arrivals.put("s", {"n": 2}, 3) == "w1"
    assert await gateway.arrivals.put("s", {"n": 3}, 3) == "w1"
    assert await gateway.arrivals.put("s", {"n": 4}, 3) is None, "the bound"
    assert await other.arrivals.unclaimed(10) == []
    assert await worker.arrivals.read("s", 2) == [{"n": 1}, {"n": 2}]
    assert not await worker.arrivals.consume("s", 2)
    assert await worker.arrivals.read("s", 9) == [{"n": 3}]
    assert await worker.arrivals.consume("s", 1)
    await worker.release_session("s")
    assert await gateway.arrivals.unclaimed(10) == []
    assert await gateway.arrivals.put("s", {"n": 5}, 3) == ""
    assert await gateway.arrivals.unclaimed(10) == ["s"]
    with pytest.raises(SessionLost):
        await worker.arrivals.read("s", 9)


async def test_a_session_with_messages_that_no_worker_has_is_found(house: House) -> None:
    gateway, _ = await house.open()
    for n in range(7):
        await gateway.accept(message(str(n)), f"s{n}", 10)
    found: list[str] = []
    for _ in range(4):  # in parts: each look goes on where the last one stopped
        found += await gateway.arrivals.unclaimed(2)
    assert sorted(set(found)) == [f"s{n}" for n in range(7)]


async def test_a_worker_works_on_no_session_that_it_has_not_claimed(house: House) -> None:
    store, _ = await house.open(worker="w1")
    assert await store.accept(message(), "s", 10) == "accepted"  # a gateway's part, claimed by nobody
    with pytest.raises(SessionLost, match="no claim"):
        await store.next("s")
    plain, _ = await house.open()
    with pytest.raises(StoreError, match="without a worker's name"):
        await plain.claim_session("s", 60)
    assert len(await plain.next("s")) == 1


async def test_a_claimed_session_is_not_forgotten(house: House) -> None:
    gateway, _ = await house.open()
    await gateway.history.append("s", [User("r", "x")])
    worker = await _claimed(house, "w1")
    later = 4e9
    assert await gateway.forget_sessions(later) == []
    await worker.release_session("s")
    assert await gateway.forget_sessions(later) == ["s"]


# -- doctor ------------------------------------------------------------------------------------------

GOOD_INFO = {"redis_version": "7.2.4", "role": "master", "aof_enabled": 1, "maxmemory_policy": "noeviction"}
GOOD_CONFIG = {
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
}


@pytest.mark.parametrize(
    ("info", "config", "options", "levels", "words"),
    [
        ({}, {}, {}, ["ok"], "7.2.4"),
        ({"aof_enabled": 0}, {"appendonly": "no"}, {}, ["error"], "appendonly yes"),
        ({}, {"appendfsync": "no"}, {}, ["warning"], "30 s"),
        ({}, {"appendfsync": "everysec"}, {}, ["warning"], "2 s"),
        ({"aof_last_write_status": "err"}, {}, {}, ["error"], "disk"),
        ({}, {"maxmemory": "1000", "maxmemory-policy": "volatile-lru"}, {}, ["error"], "noeviction"),
        ({}, {"maxmemory-policy": "allkeys-lru"}, {}, ["ok"], "7.2.4"),  # without a limit nothing is evicted
        ({"used_memory": 900}, {"maxmemory": "1000"}, {}, ["warning"], "90 %"),
        ({"role": "slave"}, {}, {}, ["error"], "primary"),
        ({"cluster_enabled": 1}, {}, {}, ["error"], "holds all keys"),
        ({"redis_version": "5.0.7"}, {}, {}, ["error"], "6.2"),
        ({"connected_slaves": 1}, {}, {"replicas": 2}, ["error"], "1 replicas"),
        ({"connected_slaves": 2}, {}, {"replicas": 2}, ["ok"], "7.2.4"),
        (
            {"role": "slave", "aof_enabled": 0, "maxmemory": 10, "maxmemory_policy": "allkeys-lfu"},
            None,
            {},
            ["error"] * 3,
            "primary",
        ),
    ],
)
def test_doctor_judges_a_server_by_what_it_says_of_itself(
    info: dict[str, Any], config: dict[str, str] | None, options: Any, levels: list[str], words: str
) -> None:
    """`config` None: a managed server that keeps its settings to itself."""
    from bridge.store.redis_check import judge

    settings = {} if config is None else {**GOOD_CONFIG, **config}
    found = judge({**GOOD_INFO, **info}, settings, where="here", language="en", **options)
    assert [finding.level for finding in found] == levels
    assert words in " ".join(f"{finding.what} {finding.cure}" for finding in found)
    assert all(finding.cure for finding in found if finding.level != "ok")
