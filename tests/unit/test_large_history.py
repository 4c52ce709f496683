"""A long history costs what its newest part costs, and shows a model the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.conversation import Conversation
from agent.history import Assistant, Entry, Tail, ToolCall, ToolOutput, User, window
from tests.fakes.history import MemoryHistory
from tests.fakes.scripted import check


def run_of(name: str, steps: int) -> list[Entry]:
    entries: list[Entry] = [User(name, f"do {name}")]
    for step in range(steps):
        id = f"{name}-{step}"
        entries += [Assistant(name, "", (ToolCall(id, "ls", {}),)), ToolOutput(name, id, "ls", "x")]
    return [*entries, Assistant(name, f"done {name}")]


class Counted(MemoryHistory):
    """Remembers how much was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    async def load(self, session: str) -> list[Entry]:
        raise AssertionError("a whole history was asked for")

    async def tail(self, session: str, least: int) -> Tail:
        tail = await super().tail(session, least)
        self.read += len(tail.entries)
        return tail


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(4, 40), st.booleans())
async def test_a_model_sees_the_same_of_a_tail_as_of_the_whole(
    steps: list[int], limit: int, goes_on: bool
) -> None:
    store = Counted()
    whole: list[Entry] = []
    for number, count in enumerate(steps):
        whole += run_of(f"r{number}", count)
    run = f"r{len(steps) - 1}" if goes_on else "new"
    if not goes_on:
        whole.append(User("new", "and now?"))
    await store.append("s", whole)
    conversation = Conversation("s", store, limit)
    tail = await conversation.entries()
    view = window(tail, run, limit, conversation.before)
    assert view == window(whole, run, limit)
    check(view)
    assert await conversation.of_run(run) == [entry for entry in whole if entry.run == run]


async def test_a_conversation_of_ten_thousand_entries_loads_only_its_end() -> None:
    store = Counted()
    for number in range(2500):
        await store.append("s", run_of(f"r{number}", 1))
    conversation = Conversation("s", store, 200)
    assert len(await conversation.entries()) == 200
    assert conversation.before == 9800
    assert store.read == 200


async def test_a_conversation_that_never_rests_stays_small_and_its_view_the_same() -> None:
    store, whole = Counted(), []
    conversation = Conversation("s", store, 20)
    most = 0
    for number in range(300):
        for entry in run_of(f"r{number}", number % 4):
            whole.append(entry)
            await conversation.add(entry)
            known = await conversation.entries()
            most = max(most, len(known))
            assert known == whole[conversation.before :]
            assert window(known, entry.run, 20, conversation.before) == window(whole, entry.run, 20)
    assert most <= 2 * 20
    assert store.read == 0  # it knew of each entry, and read nothing back


async def test_a_run_that_is_longer_than_the_tail_stays_whole() -> None:
    store = Counted()
    await store.append("s", run_of("r0", 3))
    conversation = Conversation("s", store, 10)
    long = run_of("r1", 60)
    await conversation.add(*long)
    await conversation.add(*run_of("r2", 1)[:1])
    assert await conversation.of_run("r1") == long
    woken = Conversation("s", store, 10)
    await woken.entries()
    assert await woken.of_run("r1") == long
