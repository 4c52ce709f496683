"""What every store must do. A new backend joins by one line in `BACKENDS`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from agent.events import FileRef
from agent.history import Assistant, Ended, Entry, ImageRef, ToolBegun, ToolCall, ToolOutput, User
from bridge.store import open_store
from bridge.store.base import Store, StoredChunk, StoredReply, StoredSession, StoreError
from channels.base import Address, Attachment, ContextMessage, Inbound, Quote, ReplyRef, Sender


class Clock:
    """Unix seconds that a test moves by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Backend:
    """A place where stores can be opened again and again: as a process does that stops and starts."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder, self.clock = url, folder, Clock()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Store]:
        store = open_store(self.url, self.folder, clock=self.clock)
        await store.open()
        try:
            yield store
        finally:
            await store.close()


BACKENDS = ["sqlite:///store.db"]


@pytest.fixture(params=BACKENDS, ids=lambda url: url.split(":")[0])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return Backend(request.param, tmp_path)


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
        assert await store.forget_before(edge, edge) == 2
        assert await store.forget_before(edge, edge) == 0
        assert await store.reply("ended") is None
        for id in ("open", "complete", "ended late"):
            assert await store.reply(id) is not None
        assert await store.accept(message("new"), "s", 10) == "seen"
        assert await store.accept(message("old"), "s", 10) == "accepted"
        assert await inbox(store) == ["old", "new", "old"]


async def test_forgetting_keeps_to_its_limit(backend: Backend, store: Store) -> None:
    for number in range(7):
        await store.mark_seen(message(str(number)), answer(f"r{number}", state="complete"))
        await store.settle_reply(f"r{number}", "delivered", [])
    backend.clock.now += 100
    counts = [await store.forget_before(backend.clock.now, backend.clock.now, limit=5) for _ in range(4)]
    assert counts == [5, 5, 4, 0]


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
