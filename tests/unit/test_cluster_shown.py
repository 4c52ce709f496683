"""What a gateway does with a chunk that two workers want shown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bridge.cluster.shown import Shown
from channels.base import Address, Channel, Choice, Chunk, Lost, NotSent, Outbound, Receive, ReplyRef
from tests.fakes.channel_env import memory_env

REF = ReplyRef("r1", Address("chat", "7"), "1")


class Board(Channel):
    """Shows messages in a list; `fault` is raised by the next call."""

    type = "board"

    def __init__(self, folder: Path) -> None:
        super().__init__("chat", None, memory_env(folder))
        self.messages: list[str] = []
        self.fault: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def start(self, receive: Receive) -> None: ...

    async def stop(self) -> None: ...

    def render(self, outbound: Outbound) -> list[Chunk]:
        return [Chunk(outbound.text)]

    def _raise(self) -> None:
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault

    async def post(self, ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        if self.gate is not None:
            await self.gate.wait()
        self._raise()
        self.messages.append(chunk.text)
        return "" if chunk.text == "draft" else str(len(self.messages) - 1)

    async def edit(self, ref: ReplyRef, n: int, message_id: str, chunk: Chunk, *, final: bool) -> None:
        self._raise()
        self.messages[int(message_id)] = chunk.text

    async def ask(self, ref: ReplyRef, question: str, choices: Sequence[Choice]) -> str:
        return await self.post(ref, 0, Chunk(question), final=True)


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


async def post(shown: Shown, board: Board, text: str, n: int = 0, **more: Any) -> str:
    return await shown.post(board, REF, n, Chunk(text), final=more.get("final", True))


async def test_a_chunk_that_comes_again_is_the_message_that_is_there(board: Board) -> None:
    shown = Shown()
    first = await post(shown, board, "hello")
    assert await post(shown, board, "hello") == first
    assert await post(shown, board, "hello, written anew") == first, "the heir's text is another one"
    assert board.messages == ["hello, written anew"]
    assert await post(shown, board, "more", n=1) != first


async def test_one_that_is_still_on_its_way_is_waited_for(board: Board) -> None:
    shown, board.gate = Shown(), asyncio.Event()
    both = [asyncio.create_task(post(shown, board, "hello")) for _ in range(2)]
    await asyncio.sleep(0)
    board.gate.set()
    assert len(set(await asyncio.gather(*both))) == 1
    assert board.messages == ["hello"]


async def test_what_was_not_shown_or_is_there_no_more_is_shown(board: Board) -> None:
    shown = Shown()
    board.fault = NotSent("no")
    with pytest.raises(NotSent):
        await post(shown, board, "hello")
    await post(shown, board, "hello")
    board.fault = Lost("deleted")
    with pytest.raises(Lost):
        await shown.edit(board, REF, 0, "0", Chunk("more"), final=True)
    await post(shown, board, "more")  # as delivery does after that
    assert board.messages == ["hello", "more"]
    board.fault = Lost("deleted")
    await post(shown, board, "once more")
    assert board.messages == ["hello", "more", "once more"]


async def test_drafts_leave_no_message_and_come_again_as_they_grow(board: Board) -> None:
    shown = Shown()
    for _ in range(2):
        assert await post(shown, board, "draft", final=False) == ""
    assert board.messages == ["draft", "draft"]


async def test_a_question_is_asked_once_and_the_memory_is_bounded(board: Board) -> None:
    shown = Shown(most=2)
    first = await shown.ask(board, REF, "May I?", ())
    assert await shown.ask(board, REF, "May I?", ()) == first
    for n in range(2):
        await post(shown, board, "x", n=n)
    assert await shown.ask(board, REF, "May I?", ()) != first
    assert len(shown._messages) == 2
    assert not shown._at_work
