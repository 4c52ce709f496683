"""The Redis store against a real server that is restarted, killed, filled up, locked and failed over."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agent.history import User
from bridge.app import App
from bridge.config import load_config
from bridge.store.base import SessionLost, StoredReply, StoreError
from bridge.store.redis import RedisStore
from bridge.store.redis_check import look
from channels.base import Address, Inbound, ReplyRef, Sender
from tests.fakes.llm import Say, ScriptedModel
from tests.fakes.redis_server import RedisServer
from tests.harness import clean_environ, openai_at, write_config

Start = Callable[..., RedisServer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    servers: list[RedisServer] = []

    def begin(*options: str) -> RedisServer:
        servers.append(RedisServer(tmp_path / f"redis{len(servers)}", *options).start())
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[RedisStore]:
    store = RedisStore(url, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def message(id: str, chat: str = "7") -> Inbound:
    return Inbound(id=id, address=Address("telegram", chat), sender=Sender("42"), text="hello " * 10)


def reply(id: str) -> StoredReply:
    return StoredReply(id, "s", asdict(ReplyRef(id, Address("telegram", "7"))), {"text": "x"}, "complete")


async def until(condition: Callable[[], Any], seconds: float = 15.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


# -- restarts ------------------------------------------------------------------------------------------


class Talk:
    """Writes to some sessions until it is stopped, as gateways and workers do, and notes what was
    acknowledged. A write that failed is tried again, as a platform and a runner do."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self.accepted: dict[str, int] = {}
        self.written: dict[str, int] = {}
        self.stopping = False

    async def chat(self, name: str) -> None:
        n = 0
        while not self.stopping:
            while True:
                try:
                    assert await self.store.accept(message(str(n), name), name, 10**6) in ("accepted", "seen")
                    break
                except StoreError:
                    await asyncio.sleep(0.01)
            self.accepted[name] = n
            await self._append(name, n)
            n += 1

    async def _append(self, name: str, n: int) -> None:
        entries = [User("r", f"{n}a"), User("r", f"{n}b")]
        while True:
            try:
                await self.store.history.append(name, entries)
                break
            except StoreError:
                await asyncio.sleep(0.01)
                # As a runner does: what is kept says whether it was written.
                while True:
                    try:
                        kept = await self.store.history.load(name)
                        break
                    except StoreError:
                        await asyncio.sleep(0.01)
                if kept[-2:] == entries:
                    break
        self.written[name] = n

    @property
    def count(self) -> int:
        return sum(self.written.values())


async def test_what_was_acknowledged_survives_kill_9_of_the_server_in_the_middle_of_writes(
    start: Start,
) -> None:
    # "always": with "everysec" a server whose disk is slow answers up to 2 s before it writes.
    server, random = start("--appendonly", "yes", "--appendfsync", "always"), Random(7)
    async with opened(server.url, patience=3.0) as store:
        talk = Talk(store)
        chats = [asyncio.create_task(talk.chat(f"c{n}")) for n in range(8)]
        for _ in range(3):
            wanted = talk.count + random.randint(20, 300)
            await until(lambda wanted=wanted: talk.count > wanted)  # type: ignore[misc]
            server.kill()
            await asyncio.to_thread(server.start)
        wanted = talk.count + 50
        await until(lambda: talk.count > wanted)
        talk.stopping = True
        await asyncio.gather(*chats)
    async with opened(server.url) as store:
        assert len(talk.accepted) == 8
        for name, last in talk.accepted.items():
            ids = [w.inbound.id for w in await store.next(name, 10**6)]
            assert ids == [str(n) for n in range(last + 1)]
            texts = [entry.text for entry in await store.history.load(name) if isinstance(entry, User)]
            assert texts == [f"{n}{part}" for n in range(last + 1) for part in "ab"]
        assert sorted(await store.waiting_sessions(["telegram"])) == sorted(talk.accepted)


async def test_a_server_that_is_away_fails_calls_in_bounded_time_and_is_found_again(start: Start) -> None:
    server = start()
    async with opened(server.url, patience=0.2) as store:
        await store.put_setting("s", "k", 1)
        server.kill()
        async with asyncio.timeout(5):
            results = await asyncio.gather(
                *(store.put_setting("s", str(n), n) for n in range(100)), return_exceptions=True
            )
        assert all(isinstance(r, StoreError) and "cannot be reached" in str(r) for r in results)
        await asyncio.to_thread(server.start)
        await store.put_setting("s", "k", 2)
        assert await store.get_setting("s", "k") == 2
    server.kill()
    async with asyncio.timeout(5):
        with pytest.raises(StoreError, match="cannot be reached"):
            async with opened(server.url, patience=0.0):
                pass


async def test_a_server_that_hangs_fails_calls_in_bounded_time(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.store.redis_line._SOCKET_SECONDS", 0.2)
    server = start()
    async with opened(server.url, patience=0.1) as store:
        await store.history.append("s", [User("r", "before")])
        server.signal(signal.SIGSTOP)
        async with asyncio.timeout(5):
            with pytest.raises(StoreError, match="cannot be reached"):
                await store.history.append("s", [User("r", "hung")])
        server.signal(signal.SIGCONT)
        await store.history.append("s", [User("r", "after")])
        texts = [entry.text for entry in await store.history.load("s") if isinstance(entry, User)]
        # The one that hung was in the socket: its outcome was unknown, but it is there at most once.
        assert texts in (["before", "after"], ["before", "hung", "after"])


# -- faults --------------------------------------------------------------------------------------------


async def test_a_server_out_of_memory_keeps_nothing_by_halves_and_goes_on_when_there_is_room(
    start: Start,
) -> None:
    server = start()
    async with opened(server.url) as store:
        await store.history.append("s", [User("r", "x" * 200_000)])
        await store.accept(message("0"), "s", 100)
        [waiting] = await store.next("s")
        assert b"OK" in server.say("CONFIG", "SET", "maxmemory", "1")
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.accept(message("1"), "s", 100),
            lambda: store.mark_seen(message("2"), reply("c1")),
            lambda: store.history.append("s", [User("r", "no")]),
            lambda: store.put_setting("s", "k", 1),
            lambda: store.channel_state("web").append("log", "a", {}),
        ]
        for call in calls:
            with pytest.raises(StoreError, match="maxmemory"):
                await call()
        await store.settle_reply("r", "delivered", [waiting.seq])  # what only removes is done
        assert b"OK" in server.say("CONFIG", "SET", "maxmemory", "0")
        assert await store.accept(message("1"), "s", 100) == "accepted"
        assert await store.mark_seen(message("2"), reply("c1")) is True
        assert [one.id for one in await store.pending_replies(["telegram"])] == ["c1"]
        assert [w.inbound.id for w in await store.next("s", 9)] == ["1"]
        assert len(await store.history.load("s")) == 1


async def test_ids_that_are_no_proper_unicode_harm_nobody(start: Start) -> None:
    async with opened(start().url) as store:
        odd = message("half \ud83d", "chat \ud83d")
        results = await asyncio.gather(store.accept(odd, "s", 9), store.accept(message("1"), "s", 9))
        assert [*results] == ["accepted", "accepted"]
        assert [w.inbound.id for w in await store.next("s", 9)] == ["half \ud83d", "1"]
        assert await store.accept(odd, "s", 9) == "seen"


async def test_a_password_is_asked_for_and_never_shown(start: Start) -> None:
    server = start("--requirepass", "hunter2-secret")
    host = f"127.0.0.1:{server.port}/0"
    for url, words in (
        (f"redis://{host}", "redis://user:password@host"),
        (f"redis://:wrong-secret@{host}", "Correct them in store.url"),
    ):
        with pytest.raises(StoreError, match=words) as caught:
            async with opened(url):
                pass
        assert "secret" not in str(caught.value)
        [finding] = await look(url)
        assert (finding.level, words in finding.what) == ("error", True)
    async with opened(f"redis://:hunter2-secret@{host}") as store:
        await store.put_setting("s", "k", 1)


async def test_a_user_with_the_rights_that_the_message_names_can_do_everything(start: Start) -> None:
    server = start()
    rights = ["~causeway:*", "&causeway:*", "+@all", "-@dangerous", "+info", "+config|get"]
    assert b"OK" in server.say("ACL", "SETUSER", "bot", "on", ">pw", *rights)
    async with opened(f"redis://bot:pw@127.0.0.1:{server.port}/0") as store:
        assert await store.accept(message("1"), "s", 9) == "accepted"
        await store.drop([w.seq for w in await store.next("s")])
        await store.history.append("s", [User("r", "x")])
        assert len(await store.sessions()) == 1
        assert await store.forget_sessions(4e9) == ["s"]
        heard = store.relay.listen(["me"])
        assert await anext(heard) is None
        assert await store.relay.publish("me", "hello") == 1
        assert await anext(heard) == "hello"
        assert await store.relay.keep_alive("me", "{}", 5) == {"me": "{}"}
        await heard.aclose()  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match="ACL SETUSER"):
        async with opened(f"redis://bot:pw@127.0.0.1:{server.port}/0?prefix=other"):
            pass


async def test_a_cluster_without_its_slots_is_told(start: Start) -> None:
    server = start("--cluster-enabled", "yes")
    with pytest.raises(StoreError, match="CLUSTERDOWN"):
        async with opened(server.url, patience=0.0):
            pass
    assert "cluster" in "".join(finding.what.lower() for finding in await look(server.url))


# -- replicas ------------------------------------------------------------------------------------------


@pytest.fixture
def pair(start: Start) -> tuple[RedisServer, RedisServer]:
    """A primary and its replica, connected."""
    primary = start("--appendonly", "yes", "--repl-diskless-sync-delay", "0")
    return primary, start("--replicaof", f"127.0.0.1 {primary.port}")


async def _connected(replica: RedisServer) -> None:
    await until(lambda: b"master_link_status:up" in replica.say("INFO", "replication"))


async def test_a_replica_is_told_and_taken_when_it_is_promoted(pair: tuple[RedisServer, RedisServer]) -> None:
    _, replica = pair
    await _connected(replica)
    with pytest.raises(StoreError, match="replica that may only be read"):
        async with opened(replica.url, patience=0.0):
            pass
    assert next(finding.level for finding in await look(replica.url)) == "error"
    opening = asyncio.create_task(_once(replica.url))
    await asyncio.sleep(0)
    assert b"OK" in replica.say("REPLICAOF", "NO", "ONE")
    assert await opening == 1


async def _once(url: str) -> Any:
    async with opened(url) as store:
        await store.put_setting("s", "k", 1)
        return await store.get_setting("s", "k")


async def test_what_replicas_have_confirmed_survives_the_loss_of_the_primary(
    pair: tuple[RedisServer, RedisServer],
) -> None:
    primary, replica = pair
    await _connected(replica)
    async with opened(f"{primary.url}?replicas=1", patience=0.0) as store:
        talk = Talk(store)
        chats = [asyncio.create_task(talk.chat(f"c{n}")) for n in range(4)]
        await until(lambda: talk.count > 40)
        primary.kill()
        talk.stopping = True
        for chat in chats:
            chat.cancel()
        await asyncio.wait(chats)
    assert b"OK" in replica.say("REPLICAOF", "NO", "ONE")
    async with opened(replica.url) as store:
        for name, last in talk.accepted.items():
            ids = [w.inbound.id for w in await store.next(name, 10**6)]
            assert ids[: last + 1] == [str(n) for n in range(last + 1)]
            assert len(ids) <= last + 2  # and perhaps one whose answer was lost


async def test_a_write_that_too_few_replicas_confirm_does_not_count(
    pair: tuple[RedisServer, RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.store.redis_line._CONFIRM_MS", 50)
    primary, replica = pair
    await _connected(replica)
    async with opened(f"{primary.url}?replicas=1", patience=0.0) as store:
        await store.put_setting("s", "k", 1)
        replica.kill()
        with pytest.raises(StoreError, match="Too few of its replicas"):
            await store.put_setting("s", "k", 2)


# -- claims --------------------------------------------------------------------------------------------


async def test_a_dead_workers_session_is_taken_over_within_its_lease_and_it_can_write_no_more(
    start: Start,
) -> None:
    server = start()
    async with opened(server.url) as gateway, opened(server.url, worker="w1") as dead, \
            opened(server.url, worker="w2") as heir:  # fmt: skip
        for n in range(3):
            await gateway.accept(message(str(n)), "s", 10)
        first = await dead.claim_session("s", 60)
        [taken] = await dead.next("s")
        await dead.take([taken.seq], "run-1")
        await dead.history.append("s", [User("run-1", "begun")])
        assert await heir.claim_session("s", 5) is None
        assert await dead.claim_session("s", 0.3) == first  # the last that it renews
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(5):
            while (second := await heir.claim_session("s", 5)) is None:
                await asyncio.sleep(0.01)
        assert asyncio.get_running_loop().time() - began < 1.0
        assert first is not None
        assert second > first
        with pytest.raises(SessionLost):
            await dead.history.append("s", [User("run-1", "late")])
        with pytest.raises(SessionLost):
            await dead.settle_reply("run-1", "delivered", [taken.seq])
        waiting = await heir.next("s", 9)
        assert [(w.inbound.id, w.run) for w in waiting] == [("0", "run-1"), ("1", None), ("2", None)]
        assert await heir.history.load("s") == [User("run-1", "begun")]


async def test_of_many_gateways_with_one_message_one_takes_it(start: Start) -> None:
    server = start()
    async with opened(server.url) as one, opened(server.url) as two, opened(server.url) as three:
        for n in range(50):
            results = await asyncio.gather(*(s.accept(message(str(n)), "s", 100) for s in (one, two, three)))
            # The one that put it in says so; the one that marked it first may say so too (it only wakes).
            assert results.count("accepted") in (1, 2)
        assert [w.inbound.id for w in await one.next("s", 100)] == [str(n) for n in range(50)]
        seen = await asyncio.gather(
            *(s.mark_seen(message("x")) for s in (one, two, three) for _ in range(20))
        )
        assert seen.count(True) == 1


# -- doctor --------------------------------------------------------------------------------------------


async def test_doctor_says_whether_a_server_keeps_what_it_is_given(start: Start) -> None:
    server = start("--appendonly", "yes", "--appendfsync", "always")
    [fine] = await look(server.url)
    assert (fine.level, str(server.port) in fine.what) == ("ok", True)
    server.say("CONFIG", "SET", "appendonly", "no")
    server.say("CONFIG", "SET", "maxmemory", "1gb")
    server.say("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    found = await look(server.url, language="en")
    assert [finding.level for finding in found] == ["error", "error"]
    assert "appendonly yes" in found[0].cure
    assert "noeviction" in found[1].cure
    server.kill()
    [away] = await look(server.url)
    assert away.level == "error"


# -- the whole bridge ----------------------------------------------------------------------------------


async def test_the_bridge_answers_and_goes_on_where_it_was_with_its_store_in_redis(
    start: Start, tmp_path: Path
) -> None:
    import aiohttp

    server = start("--appendonly", "yes", "--appendfsync", "always")
    model = ScriptedModel([Say("hello from redis"), Say("and again")])
    async with model.running():
        settings = {"model": openai_at(model.openai_url), "channels": {"api": {}}}
        config_file = write_config(tmp_path, settings)

        async def ask(app: App) -> str:
            body = {"model": "causeway", "user": "u", "messages": [{"role": "user", "content": "hi"}]}
            async with aiohttp.ClientSession() as client:
                async with client.post(f"{app.url}/v1/chat/completions", json=body) as response:
                    return str((await response.json())["choices"][0]["message"]["content"])

        said = []
        for _ in range(2):
            config = load_config(config_file, clean_environ(tmp_path))
            config.store.url = server.url
            app = App(config)
            await app.start()
            said.append(await ask(app))
            await app.stop(grace=5)
            server.kill()
            await asyncio.to_thread(server.start)
    assert said == ["hello from redis", "and again"]
    assert not (tmp_path / "workspace" / "causeway.db").exists()
    async with opened(server.url) as store:
        [session] = await store.sessions()
        assert session.entries == 4


async def test_a_second_bridge_on_the_same_store_is_refused_and_the_first_comes_back(
    start: Start, tmp_path: Path
) -> None:
    from bridge.app import StartError

    server = start("--appendonly", "yes", "--appendfsync", "always")

    def bridge(name: str) -> App:
        folder = tmp_path / name
        config = load_config(write_config(folder, {"channels": {"api": {}}}), clean_environ(folder))
        config.store.url = server.url
        return App(config)

    first = bridge("one")
    await first.start()
    try:
        with pytest.raises(StartError, match="Another bridge works with this store"):
            await bridge("two").start()
        await first.hold()  # the refused one took nothing with it
    finally:
        await first.stop(grace=1)
    second = bridge("two")
    await second.start()  # the first gave its claim back
    await second.stop(grace=1)
