"""What every store must do. A new backend joins by one line in `BACKENDS`.

"redis" is a real server, "cluster" the same in cluster mode, where a step that touches two slots is refused.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import fakeredis
import pytest

from agent.events import FileRef
from agent.history import Assistant, Ended, Entry, ImageRef, Tail, ToolBegun, ToolCall, ToolOutput, User
from bridge.store import open_store
from bridge.store.base import (
    REPLY_SECONDS,
    SEEN_SECONDS,
    Bound,
    Reached,
    Store,
    StoredChunk,
    StoredReply,
    StoredSession,
    StoreError,
    UsageRow,
)
from bridge.store.redis import RedisStore
from channels.base import Address, Attachment, ContextMessage, Inbound, Quote, ReplyRef, Sender
from tests.fakes.redis_server import RedisServer


class Clock:
    """Unix seconds that a test moves by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Backend:
    """A place where stores can be opened again and again: as a process does that stops and starts."""

    #: Marks and replies end by themselves, by the server's own clock.
    forgets_alone = False

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, Clock()

    def store(self) -> Store:
        return open_store("sqlite:///store.db", self.folder, clock=self.clock)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Store]:
        store = self.store()
        await store.open()
        try:
            yield store
        finally:
            await store.close()


class FakeRedis(Backend):
    """A server in this process."""

    forgets_alone = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = fakeredis.FakeServer()

    def _client(self, _place: Any) -> Any:
        return fakeredis.FakeAsyncRedis(server=self.server, decode_responses=True, protocol=2)

    def store(self) -> Store:
        return RedisStore("redis://fake", clock=self.clock, connect=self._client)


class RealRedis(Backend):
    """A real server; each test has a prefix of its own."""

    forgets_alone = True
    count = itertools.count()

    def __init__(self, folder: Path, server: RedisServer) -> None:
        super().__init__(folder)
        self.url = f"{server.url}?prefix=test{next(self.count)}"

    def store(self) -> Store:
        return open_store(self.url, self.folder, clock=self.clock)


@pytest.fixture(scope="module")
def real_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """It refuses every step whose keys do not lie in one slot."""
    folder = tmp_path_factory.mktemp("cluster")
    server = RedisServer(folder, "--cluster-enabled", "yes").start().one_node_cluster()
    yield server
    server.stop()


BACKENDS = ["sqlite", "fakeredis", "redis", "cluster"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    if request.param in ("sqlite", "fakeredis"):
        return (Backend if request.param == "sqlite" else FakeRedis)(tmp_path)
    return RealRedis(tmp_path, request.getfixturevalue(f"real_{request.param}"))


@pytest.fixture
async def store(backend: Backend) -> AsyncIterator[Store]:
    async with backend.opened() as opened:
        yield opened


def message(id: str = "1", chat: str = "7", channel: str = "telegram", text: str = "hello") -> Inbound:
    return Inbound(id=id, address=Address(channel, chat), sender=Sender("42", "Ann"), text=text, sent_at=5.0)


def answer(
    id: str = "r1", session: str = "s", channel: str = "telegram", state: Any = "open", **body: Any
) -> StoredReply:
    return StoredReply(id, session, asdict(ReplyRef(id, Address(channel, "7"), "1")), body, state)


async def inbox(store: Store, session: str = "s") -> list[str]:
    return [waiting.inbound.id for waiting in await store.next(session, 10_000)]


# -- inbox -------------------------------------------------------------------------------------------


async def test_a_message_comes_out_of_the_inbox_as_it_went_in(store: Store) -> None:
    whole = Inbound(
        id="m/1",
        address=Address("tg-2", "-100", "group", "17"),
        sender=Sender("42", "Ünal 王 👩‍👩‍👧", is_bot=False, language="zh-Hans"),
        text='line\nwith "quotes", \\ and \u2028 and \x07',
        addressed=False,
        quote=Quote("earlier", "Bo", "99"),
        attachments=(Attachment("image", "file-1", "image/png", "a.png", 12),),
        context=(ContextMessage("assistant", "before", "bot"),),
        sent_at=1234.5,
    )
    assert await store.accept(whole, "s", 10) == "accepted"
    [waiting] = await store.next("s")
    assert waiting.inbound == whole
    assert (waiting.session, waiting.run) == ("s", None)


async def test_text_that_is_no_proper_unicode_is_kept_as_it_came(store: Store) -> None:
    broken = message(text="half a pair \ud83d, a NUL \x00, and 你好")
    assert await store.accept(broken, "s", 10) == "accepted"
    [waiting] = await store.next("s")
    assert waiting.inbound == broken


async def test_the_inbox_keeps_the_order_of_arrival_and_counts_on_over_all_sessions(store: Store) -> None:
    for number in range(6):
        await store.accept(message(str(number)), f"s{number % 2}", 10)
    assert await inbox(store, "s0") == ["0", "2", "4"]
    assert await inbox(store, "s1") == ["1", "3", "5"]
    seqs = {w.inbound.id: w.seq for s in ("s0", "s1") for w in await store.next(s, 9)}
    assert [seqs[str(n)] for n in range(6)] == sorted(seqs.values())
    assert len(await store.next("s0", 2)) == 2
    assert await store.next("nobody") == []


async def test_a_message_seen_before_writes_nothing(store: Store) -> None:
    assert await store.accept(message(text="first"), "s", 10) == "accepted"
    assert await store.accept(message(text="again"), "s", 10) == "seen"
    assert await store.accept(message(text="again"), "other", 10) == "seen"
    assert [w.inbound.text for w in await store.next("s", 9)] == ["first"]
    assert await store.waiting_count("other") == 0


async def test_the_same_id_in_another_chat_or_channel_is_another_message(store: Store) -> None:
    for channel, chat in (("telegram", "7"), ("telegram", "8"), ("second", "7")):
        assert await store.accept(message("1", chat, channel), "s", 10) == "accepted"
    assert await store.waiting_count("s") == 3


async def test_a_message_stays_seen_after_its_answer_is_delivered(store: Store) -> None:
    await store.accept(message(), "s", 10)
    await store.open_reply(answer())
    [waiting] = await store.next("s")
    await store.settle_reply("r1", "delivered", [waiting.seq])
    assert await store.accept(message(), "s", 10) == "seen"


async def test_a_full_inbox_refuses_but_remembers_the_message(store: Store) -> None:
    for number in range(3):
        assert await store.accept(message(str(number)), "s", 3) == "accepted"
    assert await store.accept(message("3"), "s", 3) == "full"
    assert await store.accept(message("3"), "s", 100) == "seen"
    assert await store.accept(message("4"), "other", 3) == "accepted"
    assert await inbox(store) == ["0", "1", "2"]


async def test_the_cap_holds_when_messages_come_at_once(store: Store) -> None:
    results = await asyncio.gather(*(store.accept(message(str(n)), "s", 10) for n in range(50)))
    assert (results.count("accepted"), results.count("full")) == (10, 40)
    assert await store.waiting_count("s") == 10


async def test_of_many_deliveries_of_one_message_one_is_accepted(store: Store) -> None:
    results = await asyncio.gather(*(store.accept(message(), f"s{n}", 10) for n in range(100)))
    assert (results.count("accepted"), results.count("seen")) == (1, 99)


async def test_a_taken_message_stays_and_names_its_run(backend: Backend) -> None:
    async with backend.opened() as store:
        for number in range(3):
            await store.accept(message(str(number)), "s", 10)
        first, second, _ = await store.next("s", 3)
        await store.take([first.seq, second.seq], "run-1")
    async with backend.opened() as store:
        assert [w.run for w in await store.next("s", 3)] == ["run-1", "run-1", None]
        assert await store.waiting_count("s") == 3


async def test_dropping_removes_exactly_the_named_messages(store: Store) -> None:
    for number in range(4):
        await store.accept(message(str(number)), "s", 10)
    waiting = await store.next("s", 4)
    await store.drop([waiting[1].seq, waiting[3].seq, 999_999])
    await store.drop([])
    assert await inbox(store) == ["0", "2"]


async def test_a_number_is_never_given_to_a_second_message(backend: Backend) -> None:
    async with backend.opened() as store:
        await store.accept(message("1"), "s", 10)
        [first] = await store.next("s")
        await store.drop([first.seq])
    async with backend.opened() as store:
        await store.accept(message("2"), "s", 10)
        await store.drop([first.seq])  # a late call for a message that is gone
        assert await inbox(store) == ["2"]


async def test_waiting_sessions_come_longest_waiting_first_and_only_of_the_named_channels(
    store: Store,
) -> None:
    await store.accept(message("1", channel="web"), "web-b", 10)
    await store.accept(message("2"), "tg-z", 10)
    await store.accept(message("3"), "tg-a", 10)
    await store.accept(message("4", channel="web"), "web-a", 10)
    await store.accept(message("5", channel="web"), "web-b", 10)
    assert await store.waiting_sessions(["web", "telegram"]) == ["web-b", "tg-z", "tg-a", "web-a"]
    assert await store.waiting_sessions(["telegram"]) == ["tg-z", "tg-a"]
    assert await store.waiting_sessions([]) == []
    [oldest, _] = await store.next("web-b", 2)
    await store.drop([oldest.seq])
    assert await store.waiting_sessions(["web"]) == ["web-a", "web-b"]


async def test_a_correction_takes_the_place_of_a_message_that_still_waits(store: Store) -> None:
    for number in range(3):
        await store.accept(message(str(number)), "s", 10)
    before = await store.next("s", 3)
    await store.take([before[0].seq], "run")
    better = replace(message("e1", text="better"), replaces="1")
    assert await store.amend(better, "s") is True
    after = await store.next("s", 3)
    assert [(w.seq, w.inbound.id) for w in after] == [(w.seq, w.inbound.id) for w in before]
    assert [w.inbound.text for w in after] == ["hello", "better", "hello"]
    assert after[1].inbound.replaces == ""
    assert await store.amend(replace(better, replaces="0"), "s") is False  # a run has it
    assert await store.amend(replace(better, replaces="9"), "s") is False
    assert await store.amend(replace(message("e2", "8"), replaces="1"), "s") is False  # of another chat
    assert await store.amend(better, "other") is False


# -- seen without a run ------------------------------------------------------------------------------


async def test_mark_seen_writes_the_mark_and_the_answer_together(store: Store) -> None:
    assert await store.mark_seen(message(), answer("cmd-1", state="complete", text="hi")) is True
    assert await store.mark_seen(message(), answer("cmd-2", state="complete", text="hi")) is False
    assert await store.accept(message(), "s", 10) == "seen"
    assert [r.id for r in await store.pending_replies(["telegram"])] == ["cmd-1"]
    assert await store.reply("cmd-2") is None
    assert await store.mark_seen(message("2")) is True
    assert await store.waiting_count("s") == 0


# -- outbox ------------------------------------------------------------------------------------------


async def test_a_reply_is_read_back_as_it_was_written(store: Store) -> None:
    written = answer(text="Grüße 你好", files=[{"path": "a.png"}], n=None)
    await store.open_reply(written)
    assert await store.reply("r1") == written
    assert await store.reply("r2") is None


async def test_opening_a_reply_again_changes_nothing(store: Store) -> None:
    first = answer(text="first")
    await store.open_reply(first)
    await store.put_chunk("r1", StoredChunk(0, "sent", "m0"))
    await store.open_reply(answer(text="second", state="complete"))
    assert await store.reply("r1") == replace(first, chunks=(StoredChunk(0, "sent", "m0"),))


async def test_completing_keeps_chunks_and_makes_the_reply_pending(store: Store) -> None:
    await store.open_reply(answer())
    assert await store.pending_replies(["telegram"]) == []
    await store.put_chunk("r1", StoredChunk(0, "intent"))
    await store.complete_reply(answer(text="whole"))
    [pending] = await store.pending_replies(["telegram"])
    assert pending.body == {"text": "whole"}
    assert pending.state == "complete"
    assert pending.chunks == (StoredChunk(0, "intent"),)


async def test_completing_inserts_a_reply_that_was_never_opened(store: Store) -> None:
    await store.complete_reply(answer(text="whole"))
    assert [r.body for r in await store.pending_replies(["telegram"])] == [{"text": "whole"}]


@pytest.mark.parametrize("end", ["delivered", "failed"])
async def test_a_reply_that_has_ended_cannot_go_out_again(store: Store, end: Any) -> None:
    await store.complete_reply(answer(text="whole"))
    await store.settle_reply("r1", end, [])
    await store.complete_reply(answer(text="again"))
    await store.open_reply(answer(text="again"))
    assert await store.pending_replies(["telegram"]) == []
    stored = await store.reply("r1")
    assert stored is not None
    assert (stored.state, stored.body) == (end, {"text": "whole"})


async def test_a_second_end_does_not_replace_the_first(store: Store) -> None:
    await store.complete_reply(answer())
    await store.settle_reply("r1", "delivered", [])
    await store.settle_reply("r1", "failed", [])
    stored = await store.reply("r1")
    assert stored is not None
    assert stored.state == "delivered"


async def test_chunks_are_inserted_or_replaced_and_come_in_order(store: Store) -> None:
    await store.open_reply(answer())
    for chunk in (StoredChunk(1, "intent"), StoredChunk(0, "sent", "m0"), StoredChunk(10, "rejected")):
        await store.put_chunk("r1", chunk)
    await store.put_chunk("r1", StoredChunk(1, "unknown"))
    await store.put_chunk("r1", StoredChunk(1, "sent", "m1"))
    stored = await store.reply("r1")
    assert stored is not None
    assert stored.chunks == (
        StoredChunk(0, "sent", "m0"),
        StoredChunk(1, "sent", "m1"),
        StoredChunk(10, "rejected"),
    )


async def test_settling_takes_the_answered_messages_out_in_the_same_step(store: Store) -> None:
    for number in range(3):
        await store.accept(message(str(number)), "s", 10)
    waiting = await store.next("s", 2)
    await store.complete_reply(answer())
    await store.settle_reply("r1", "delivered", [w.seq for w in waiting])
    assert await inbox(store) == ["2"]
    assert await store.pending_replies(["telegram"]) == []


async def test_messages_leave_the_inbox_even_when_their_reply_was_never_written(store: Store) -> None:
    await store.accept(message(), "s", 10)
    [waiting] = await store.next("s")
    await store.settle_reply("never-written", "failed", [waiting.seq])
    assert await inbox(store) == []
    assert await store.reply("never-written") is None


async def test_a_chunk_of_a_reply_that_was_never_written_is_an_error(store: Store) -> None:
    with pytest.raises(ValueError, match="never-written"):
        await store.put_chunk("never-written", StoredChunk(0, "sent"))


async def test_pending_replies_come_oldest_first_and_only_of_the_named_channels(store: Store) -> None:
    for id, channel in (("r3", "telegram"), ("r1", "web"), ("r2", "telegram"), ("r0", "telegram")):
        await store.open_reply(answer(id, channel=channel))
    for id, channel in (("r0", "telegram"), ("r2", "telegram"), ("r1", "web")):
        await store.complete_reply(answer(id, channel=channel))
    assert [r.id for r in await store.pending_replies(["telegram"])] == ["r2", "r0"]
    assert [r.id for r in await store.pending_replies(["telegram", "web"])] == ["r1", "r2", "r0"]
    assert await store.pending_replies([]) == []


# -- history -----------------------------------------------------------------------------------------

ENTRIES: list[Entry] = [
    User("run", "what is on the picture?", (ImageRef("in/a.png", "image/png"),)),
    Assistant(
        "run", "I look", (ToolCall("c1", "read", {"path": "a"}, ""),), {"anthropic": [{"type": "thinking"}]}
    ),
    ToolBegun("run", "c1"),
    ToolOutput(
        "run", "c1", "read", "text", False, (FileRef("b.txt", "b.txt"),), (ImageRef("c.png", "image/png"),)
    ),
    Ended("run", "stopped"),
]


async def test_a_history_comes_back_whole_and_in_order(backend: Backend) -> None:
    async with backend.opened() as store:
        await store.history.append("s", ENTRIES[:2])
        await store.history.append("other", [User("x", "y")])
        await store.history.append("s", ENTRIES[2:])
        await store.history.append("s", [])
    async with backend.opened() as store:
        assert await store.history.load("s") == ENTRIES
        assert await store.history.load("other") == [User("x", "y")]
        assert await store.history.load("nobody") == []


async def test_clearing_a_history_leaves_the_others_and_starts_anew(store: Store) -> None:
    await store.history.append("s", ENTRIES)
    await store.history.append("other", ENTRIES)
    await store.history.clear("s")
    assert await store.history.load("s") == []
    await store.history.append("s", [User("new", "again")])
    assert await store.history.load("s") == [User("new", "again")]
    assert await store.history.load("other") == ENTRIES


async def test_a_tail_has_the_newest_entries_and_never_parts_a_run(store: Store) -> None:
    runs = [("a", 3), ("", 2), ("b", 1), ("c", 7), ("d", 2), ("", 1)]
    entries: list[Entry] = [User(run, f"{run}{n}") for run, count in runs for n in range(count)]
    for entry in entries:
        await store.history.append("s", [entry])
    await store.history.append("other", ENTRIES)
    starts = {1: 15, 2: 13, 3: 13, 4: 6, 10: 6, 11: 5, 12: 4, 13: 3, 14: 0, 16: 0, 99: 0}
    for least, before in starts.items():
        assert await store.history.tail("s", least) == Tail(before, entries[before:]), least
    assert await store.history.count("s") == 16
    assert await store.history.tail("nobody", 5) == Tail(0, [])
    assert await store.history.count("nobody") == 0
    await store.history.clear("s")
    await store.history.append("s", entries[:2])
    assert await store.history.tail("s", 1) == Tail(0, entries[:2])
    assert await store.history.count("s") == 2


async def test_entries_of_many_sessions_written_at_once_keep_each_their_order(store: Store) -> None:
    async def talk(session: str) -> None:
        for number in range(10):
            await store.history.append(session, [User("r", f"{number}a"), User("r", f"{number}b")])

    await asyncio.gather(*(talk(f"s{n}") for n in range(100)))
    expected = [User("r", f"{number}{part}") for number in range(10) for part in "ab"]
    for n in (0, 42, 99):
        assert await store.history.load(f"s{n}") == expected


async def test_a_faulty_entry_keeps_the_whole_append_out(store: Store) -> None:
    with pytest.raises(TypeError):
        await store.history.append("s", [User("r", "fine"), Assistant("r", "x", opaque={"bad": object()})])
    assert await store.history.load("s") == []


# -- notes -------------------------------------------------------------------------------------------


async def test_sessions_with_a_history_are_listed_in_pages(store: Store) -> None:
    for key, entries in (("b:1", 1), ("a:1", 3), ("a:2", 2)):
        await store.history.append(key, [User("r", str(number)) for number in range(entries)])
    await store.accept(message(), "c:only-waiting", 10)
    every = [StoredSession("a:1", 3), StoredSession("a:2", 2), StoredSession("b:1", 1)]
    assert await store.sessions() == every
    assert await store.sessions(2) == every[:2]
    assert await store.sessions(2, "a:2") == every[2:]
    await store.history.clear("a:1")
    assert await store.sessions() == every[1:]


async def test_a_long_conversation_is_cleared_and_forgotten_whole(backend: Backend, store: Store) -> None:
    long: list[Entry] = []
    for number in range(600):
        long += [User(f"r{number}", "and?"), Assistant(f"r{number}", "so.")]
    for session in ("cleared", "old", "stays"):
        await store.history.append(session, long)
    assert [one.entries for one in await store.sessions()] == [1200] * 3
    await store.history.clear("cleared")
    assert await store.history.load("cleared") == []
    await store.history.append("cleared", [User("new", "again")])
    assert await store.history.load("cleared") == [User("new", "again")]
    backend.clock.now += 1000
    await store.history.append("stays", [User("new", "again")])
    await store.history.append("cleared", [User("new", "again")])
    assert await store.forget_sessions(backend.clock.now - 500) == ["old"]
    assert await store.history.load("old") == []
    assert await store.history.load("stays") == [*long, User("new", "again")]
    kept = {one.key: (one.entries, one.active) for one in await store.sessions()}
    assert kept == {"cleared": (2, backend.clock.now), "stays": (1201, backend.clock.now)}


async def test_settings_are_kept_by_scope_and_key(backend: Backend) -> None:
    values: list[Any] = [{"a": [1, 2.5, None, True]}, "text", 0, False, [], ""]
    async with backend.opened() as store:
        for number, value in enumerate(values):
            await store.put_setting("scope", str(number), value)
        await store.put_setting("other", "0", "mine")
        await store.put_setting("other", "a\0b", "with")
        await store.put_setting("other", "a\0c", "NUL")
        await store.put_setting("scope", "1", "newer")
        await store.put_setting("scope", "gone", "x")
        await store.put_setting("scope", "gone", None)
    async with backend.opened() as store:
        assert await store.get_setting("scope", "0") == values[0]
        assert await store.get_setting("scope", "1") == "newer"
        assert [await store.get_setting("scope", str(n)) for n in range(2, 6)] == values[2:]
        assert await store.get_setting("other", "0") == "mine"
        assert await store.get_setting("other", "a\0b") == "with"
        assert await store.get_setting("scope", "gone") is None
        assert await store.get_setting("scope", "never") is None


async def test_a_channels_notes_are_its_own(backend: Backend) -> None:
    async with backend.opened() as store:
        await store.channel_state("a").put("offset", 12)
        await store.channel_state("b").put("offset", {"x": 1})
        await store.channel_state("a").put("offset", 13)
    async with backend.opened() as store:
        assert await store.channel_state("a").get("offset") == 13
        assert await store.channel_state("b").get("offset") == {"x": 1}
        assert await store.channel_state("c").get("offset") is None


async def test_a_log_entry_written_again_moves_to_the_end_with_a_new_number(backend: Backend) -> None:
    async with backend.opened() as store:
        state = store.channel_state("web")
        seqs = [await state.append("chat:1", id, {"text": id}) for id in ("a", "b", "c")]
        again = await state.append("chat:1", "a", {"text": "a2"})
        assert [*seqs, again] == sorted({*seqs, again})
        entries = await state.read("chat:1")
        assert [(e.id, e.value) for e in entries] == [
            ("b", {"text": "b"}),
            ("c", {"text": "c"}),
            ("a", {"text": "a2"}),
        ]
        assert [e.seq for e in entries] == [seqs[1], seqs[2], again]
    async with backend.opened() as store:
        assert await store.channel_state("web").append("chat:1", "d", {}) > again


async def test_reading_a_log_gives_the_newest_after_a_number_oldest_first(store: Store) -> None:
    state = store.channel_state("web")
    seqs = [await state.append("log", str(n), {"n": n}) for n in range(10)]
    await state.append("other", "x", {})
    await store.channel_state("web2").append("log", "y", {})
    assert [e.id for e in await state.read("log", limit=3)] == ["7", "8", "9"]
    assert [e.id for e in await state.read("log", after=seqs[6])] == ["7", "8", "9"]
    assert [e.id for e in await state.read("log", after=seqs[2], limit=2)] == ["8", "9"]
    assert await state.read("log", after=seqs[9]) == []
    assert await state.read("nothing") == []


async def test_a_log_is_cut_and_single_entries_go_to_one_caller(store: Store) -> None:
    state = store.channel_state("web")
    seqs = [await state.append("log", str(n), {"n": n}) for n in range(6)]
    await state.trim("log", seqs[1])
    assert [e.id for e in await state.read("log")] == ["2", "3", "4", "5"]
    found = await asyncio.gather(*(state.remove("log", "3") for _ in range(10)))
    assert sorted(found) == [False] * 9 + [True]
    assert await state.remove("log", "0") is False
    await state.trim("log", 2**62)
    assert await state.read("log") == []
    assert await state.append("log", "new", {}) > seqs[-1]


async def test_a_note_that_is_put_to_nothing_is_gone(store: Store) -> None:
    state = store.channel_state("web")
    await state.put("key", {"a": 1})
    await state.put("key", None)
    await state.put("never", None)
    assert await state.get("key") is None


async def test_a_lease_has_one_holder_until_it_ends_or_is_given_back(backend: Backend, store: Store) -> None:
    state = store.channel_state("telegram")
    assert await state.claim("poll", "a", 60) is True
    assert await state.claim("poll", "b", 60) is False
    assert await store.channel_state("other").claim("poll", "b", 60) is True
    await state.release("poll", "b")
    assert await state.claim("poll", "b", 60) is False
    assert await state.claim("poll", "a", 0.05) is True  # renewed, and shorter
    async with asyncio.timeout(10):
        while not await state.claim("poll", "b", 60):
            backend.clock.now += 0.01
            await asyncio.sleep(0.01)
    assert await state.claim("poll", "a", 60) is False
    await state.release("poll", "b")
    assert await state.claim("poll", "a", 60) is True


async def test_all_settings_of_a_scope_are_read_together(store: Store) -> None:
    await store.put_setting("scope", "a", 1)
    await store.put_setting("scope", "b\0c", {"x": [None]})
    await store.put_setting("other", "d", 2)
    assert await store.settings("scope") == {"a": 1, "b\0c": {"x": [None]}}
    assert await store.settings("nothing") == {}


async def test_use_is_summed_by_day_session_person_and_name(store: Store) -> None:
    row = UsageRow("2026-01-02", "s", "telegram", "7:8", "42", "model", "gpt", 1, 10, 5, 2)
    tool = UsageRow("2026-01-03", "s", "telegram", "7:8", "42", "tool", "read: a", 3)
    await store.add_usage([row, tool])
    await store.add_usage([row, replace(row, person="43"), replace(row, day="2026-01-01")])
    await store.add_usage([])
    found = await store.usage("2026-01-02")
    assert [one.day for one in found] == ["2026-01-02", "2026-01-02", "2026-01-03"]
    assert set(found) == {
        replace(row, calls=2, input=20, output=10, cached=4),
        replace(row, person="43"),
        tool,
    }
    assert len(await store.usage("2026-01-01")) == 4
    assert await store.usage("2027-01-01") == []
    since = "2026-01-01"
    blank = replace(row, day="", session="", channel="", chat="")
    assert {one.person: one for one in await store.usage(since, ("person",)) if one.kind == "model"} == {
        "42": replace(blank, calls=3, input=30, output=15, cached=6),
        "43": replace(blank, person="43"),
    }
    whole = await store.usage(since, ())
    assert {(one.kind, one.name, one.calls) for one in whole} == {("model", "gpt", 4), ("tool", "read: a", 3)}
    assert [one.calls for one in await store.usage(since, ("person",), most=2)] == [3, 1]
    own = await store.usage(since, (), ("telegram", "43"))
    assert own == [replace(blank, person="")]
    assert await store.usage(since, (), ("slack", "43")) == []


# -- forgetting --------------------------------------------------------------------------------------


async def test_forgetting_takes_old_marks_and_ended_replies_and_nothing_else(backend: Backend) -> None:
    async with backend.opened() as store:
        await store.accept(message("old"), "s", 10)
        for id in ("ended", "open", "complete"):
            await store.open_reply(answer(id))
            await store.put_chunk(id, StoredChunk(0, "sent", "m"))
        await store.complete_reply(answer("complete"))
        await store.settle_reply("ended", "failed", [])
        backend.clock.now += 100
        await store.accept(message("new"), "s", 10)
        await store.open_reply(answer("ended late"))
        await store.settle_reply("ended late", "delivered", [])
        edge = backend.clock.now - 50
        assert await store.forget_before(edge, edge) == (0 if backend.forgets_alone else 2)
        assert await store.forget_before(edge, edge) == 0
        for id in ("open", "complete", "ended late"):
            assert await store.reply(id) is not None
        assert await store.accept(message("new"), "s", 10) == "seen"
        if not backend.forgets_alone:
            assert await store.reply("ended") is None
            assert await store.accept(message("old"), "s", 10) == "accepted"


async def test_a_mark_lasts_longer_than_any_platform_repeats_and_not_for_ever(
    backend: Backend, store: Store
) -> None:
    day = 86_400
    await store.mark_seen(message("first"))
    backend.clock.now += 13 * day
    await store.forget_before(backend.clock.now - SEEN_SECONDS, backend.clock.now - REPLY_SECONDS)
    assert await store.mark_seen(message("first")) is False
    backend.clock.now += 2 * day
    await store.forget_before(backend.clock.now - SEEN_SECONDS, backend.clock.now - REPLY_SECONDS)
    assert await store.mark_seen(message("first")) is True


async def test_sessions_in_which_nothing_has_happened_for_long_are_forgotten(
    backend: Backend, store: Store
) -> None:
    for session in ("old", "waiting", "lately"):
        await store.history.append(session, ENTRIES)
    await store.accept(message(), "waiting", 10)
    backend.clock.now += 1000
    edge = backend.clock.now - 500
    await store.history.append("lately", [User("r", "again")])
    assert await store.forget_sessions(edge) == ["old"]
    assert await store.forget_sessions(edge) == []
    assert await store.history.load("old") == []
    assert [one.key for one in await store.sessions()] == ["lately", "waiting"]
    await store.history.append("old", [User("r", "back")])
    assert [one.key for one in await store.sessions()] == ["lately", "old", "waiting"]
    await store.drop([w.seq for w in await store.next("waiting")])
    backend.clock.now += 1000
    assert sorted(await store.forget_sessions(backend.clock.now)) == ["lately", "old", "waiting"]
    assert await store.sessions() == []


async def test_forgetting_sessions_keeps_to_its_limit(backend: Backend, store: Store) -> None:
    for number in range(7):
        await store.history.append(f"s{number}", [User("r", "x")])
    backend.clock.now += 1000
    counts = [len(await store.forget_sessions(backend.clock.now, limit=3)) for _ in range(4)]
    assert counts == [3, 3, 1, 0]


async def test_upkeep_harms_nothing(store: Store) -> None:
    await store.history.append("s", ENTRIES)
    await store.channel_state("web").append("log", "a", {"n": 1})
    await store.tidy()
    assert await store.history.load("s") == ENTRIES
    assert len(await store.channel_state("web").read("log")) == 1
    assert store.notice() == ""


async def test_forgetting_keeps_to_its_limit(backend: Backend, store: Store) -> None:
    for number in range(7):
        await store.mark_seen(message(str(number)), answer(f"r{number}", state="complete"))
        await store.settle_reply(f"r{number}", "delivered", [])
    backend.clock.now += 100
    counts = [await store.forget_before(backend.clock.now, backend.clock.now, limit=5) for _ in range(4)]
    assert counts == ([0] * 4 if backend.forgets_alone else [5, 5, 4, 0])


# -- many at once, and the end -----------------------------------------------------------------------


async def test_a_hundred_chats_at_once_each_go_their_whole_way(store: Store) -> None:
    async def chat(n: int) -> None:
        session = f"s{n}"
        for number in range(3):
            incoming, run = message(str(number), chat=session), f"{session}-{number}"
            assert await store.accept(incoming, session, 10) == "accepted"
            [waiting] = await store.next(session)
            assert waiting.inbound == incoming
            await store.take([waiting.seq], run)
            await store.open_reply(answer(run, session))
            await store.history.append(session, [User(run, incoming.text), Assistant(run, "ok")])
            await store.complete_reply(answer(run, session, text="ok"))
            await store.put_chunk(run, StoredChunk(0, "intent"))
            await store.put_chunk(run, StoredChunk(0, "sent", "m"))
            await store.settle_reply(run, "delivered", [waiting.seq])
        assert len(await store.history.load(session)) == 6

    await asyncio.gather(*(chat(n) for n in range(100)))
    assert await store.waiting_sessions(["telegram"]) == []
    assert await store.pending_replies(["telegram"]) == []


async def test_calls_made_together_by_one_task_take_effect_in_their_order(store: Store) -> None:
    await asyncio.gather(
        store.open_reply(answer()),
        *(store.put_chunk("r1", StoredChunk(0, "sent", str(n))) for n in range(20)),
        store.complete_reply(answer(text="whole")),
    )
    stored = await store.reply("r1")
    assert stored is not None
    assert (stored.state, stored.chunks) == ("complete", (StoredChunk(0, "sent", "19"),))


async def test_closing_finishes_what_was_begun_and_refuses_what_comes_after(backend: Backend) -> None:
    async with backend.opened() as store:
        begun = [asyncio.ensure_future(store.put_setting("s", str(n), n)) for n in range(200)]
        await asyncio.sleep(0)  # each has handed its write in
    await asyncio.gather(*begun)
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: store.put_setting("s", "late", 1),
        lambda: store.get_setting("s", "0"),
        lambda: store.accept(message(), "s", 10),
    ]
    for call in calls:
        with pytest.raises(StoreError):
            await call()
    async with backend.opened() as again:
        assert [await again.get_setting("s", str(n)) for n in (0, 199)] == [0, 199]
        assert await again.get_setting("s", "late") is None


async def test_a_cancelled_caller_harms_no_other(store: Store) -> None:
    tasks = [asyncio.ensure_future(store.put_setting("s", str(n), n)) for n in range(100)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(r, asyncio.CancelledError) for r in results[::2])
    assert results[1::2] == [None] * 50
    assert [await store.get_setting("s", str(n)) for n in range(1, 100, 2)] == list(range(1, 100, 2))


# -- use limits --------------------------------------------------------------------------------------

TODAY, TOMORROW = 1_000_000.0, 1_086_400.0


async def test_messages_of_a_minute_are_counted_and_make_room_again(store: Store) -> None:
    bounds = [Bound("person/7", messages=2), Bound("chat/é{x}", messages=5)]
    assert await store.meter.admit("a", TODAY, bounds) is None
    assert await store.meter.admit("b", TODAY + 20, bounds) is None
    assert await store.meter.admit("c", TODAY + 20, bounds) == Reached("person/7", "messages", 40.0)
    assert await store.meter.admit("c", TODAY + 20, [Bound("person/8", messages=2)]) is None
    assert await store.meter.admit("c", TODAY + 60, bounds) is None
    assert await store.meter.admit("d", TODAY + 60, bounds) == Reached("person/7", "messages", 20.0)


async def test_a_message_that_is_counted_again_counts_once(store: Store) -> None:
    bounds = [Bound("person/7", messages=2), Bound("total", messages=2)]
    for _ in range(4):
        assert await store.meter.admit("a", TODAY, bounds) is None
    assert await store.meter.admit("b", TODAY, bounds) is None
    assert await store.meter.admit("a", TODAY, bounds) is None
    assert await store.meter.admit("c", TODAY, bounds) is not None


async def test_what_one_limit_forbids_counts_for_none(store: Store) -> None:
    person, chat = Bound("person/7", messages=3), Bound("chat/1", messages=1)
    assert await store.meter.admit("a", TODAY, [person, chat]) is None
    for number in range(5):
        reached = await store.meter.admit(f"b{number}", TODAY, [person, chat])
        assert reached is not None
        assert reached.counter == "chat/1"
    assert await store.meter.admit("c", TODAY, [person]) is None
    assert await store.meter.admit("d", TODAY, [person]) is None
    assert await store.meter.admit("e", TODAY, [person]) is not None


async def test_tokens_of_a_day_are_added_up_and_end_with_it(store: Store) -> None:
    bounds = [Bound("person/7", tokens=100), Bound("total", messages=9)]
    await store.meter.spend(TODAY, {"person/7": 60, "total": 60})
    assert await store.meter.admit("a", TODAY, bounds) is None
    await store.meter.spend(TODAY, {"person/7": 40})
    assert await store.meter.admit("b", TODAY, bounds) == Reached("person/7", "tokens")
    assert await store.meter.admit("b", TODAY, [Bound("total", tokens=100)]) is None
    assert await store.meter.admit("c", TOMORROW, bounds) is None


async def test_a_days_sums_are_taken_up_only_by_counters_that_have_none(store: Store) -> None:
    await store.meter.spend(TODAY, {"a": 5})
    await store.meter.begin(TODAY, {"a": 50, "b": 50})
    await store.meter.begin(TODAY, {"b": 50})
    await store.meter.begin(TODAY, {})
    assert await store.meter.admit("1", TODAY, [Bound("a", tokens=50)]) is None
    assert await store.meter.admit("2", TODAY, [Bound("b", tokens=50)]) == Reached("b", "tokens")
    await store.meter.spend(TODAY, {"b": 1})
    assert await store.meter.admit("3", TODAY, [Bound("b", tokens=52)]) is None
    assert await store.meter.admit("4", TODAY, [Bound("b", tokens=51)]) is not None


@pytest.mark.parametrize("kind", ["fakeredis", "redis", "cluster"])
async def test_the_limits_of_all_processes_are_one(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    backend = (
        FakeRedis(tmp_path)
        if kind == "fakeredis"
        else RealRedis(tmp_path, request.getfixturevalue(f"real_{kind}"))
    )
    bounds = [Bound("person/7", messages=10, tokens=1000), Bound("total", messages=50)]
    async with backend.opened() as one, backend.opened() as two:
        asked = [(one, two)[n % 2].meter.admit(str(n), TODAY, bounds) for n in range(40)]
        taken = [reached for reached in await asyncio.gather(*asked) if reached is None]
        assert len(taken) == 10
        await asyncio.gather(*(store.meter.spend(TODAY, {"person/7": 250}) for store in (one, two, one, two)))
        assert await one.meter.admit("x", TODAY, bounds) == Reached("person/7", "tokens")
