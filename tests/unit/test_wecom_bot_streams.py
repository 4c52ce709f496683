"""How a WeCom AI bot's text is cut, closed and continued."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.base import Flooded
from channels.wecom_bot.exchanges import Pace
from channels.wecom_bot.streams import MAX_CHUNK, Shown, closed, hand_over, open_fence, rest, split, stream_id

words = st.text(alphabet="ab 中文。😀\n`~#", max_size=400)


def test_wx_04_pieces_are_counted_in_bytes_and_joined_give_the_text() -> None:
    text = "这是一个很长的回答。" * 1500 + "😀" * 10
    pieces = split(text)
    assert len(pieces) == 3
    assert all(len(piece.encode()) <= MAX_CHUNK for piece in pieces)
    assert "".join(pieces) == text


def test_a_code_block_that_is_cut_is_closed_and_opened_again() -> None:
    text = "before\n```python\n" + "x = 1\n" * 60 + "```\nafter"
    pieces = split(text, 250)
    assert len(pieces) > 1
    assert all(not open_fence(piece) for piece in pieces)
    assert all(piece.startswith("```python\n") for piece in pieces[1:])
    code = "".join(piece.replace("```python\n", "").replace("```", "") for piece in pieces)
    assert code.count("x = 1\n") == 60


@given(words)
@settings(max_examples=200, deadline=None)
def test_pieces_never_exceed_the_limit_and_stay_while_the_text_grows(text: str) -> None:
    pieces = split(text, 300)
    assert all(len(piece.encode()) <= 300 for piece in pieces)
    half = split(text[: len(text) // 2], 300)
    assert half[:-1] == pieces[: len(half) - 1] if half else True


@pytest.mark.parametrize(
    "text", ["one\ntwo\nthr", "no line end", "# a\n```py\nx = 1\ny", "a\n\n", "多行\n文字"]
)
def test_what_was_shown_and_the_rest_are_the_whole_text(text: str) -> None:
    shown = hand_over(text)
    whole = text + " and more\n```\nend" if "```" in text else text + " and more"
    left = rest(whole, shown)
    fence = open_fence(text[: shown.length])
    assert left.startswith(f"{fence}\n") if fence else True
    plain = left.removeprefix(f"{fence}\n") if fence else left
    assert (text[: shown.length].rstrip("\n") + plain).replace("\n", "") == whole.replace("\n", "")
    assert not open_fence(closed(text[: shown.length]))


def test_a_text_that_does_not_go_on_from_what_was_shown_is_shown_whole() -> None:
    shown = hand_over("first line\nsecond")
    assert rest("first line\nsecond and third", shown) == "second and third"
    assert rest("quite another text", shown) == "quite another text"
    assert rest("first", shown) == "first"
    assert rest("anything", Shown()) == "anything"


def test_the_same_chunk_always_has_the_same_stream() -> None:
    assert stream_id("r1", 0) == stream_id("r1", 0)
    assert len({stream_id("r1", 0), stream_id("r1", 1), stream_id("r10", ""), stream_id("r", "10")}) == 4


class Chat:
    """Writes into one chat while a held clock runs; `waits` are the seconds that were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pace = Pace(lambda: self.now)
        self.waits: list[float] = []

    def write(self, *, growing: bool = False) -> int:
        try:
            self.pace.take("c", growing=growing)
        except Flooded as error:
            self.waits.append(error.retry_after)
            return 0
        return 1


def test_a_chat_gets_at_most_thirty_messages_a_minute_and_the_end_has_room() -> None:
    chat, growing = Chat(), 0
    while chat.now < 60:
        growing += chat.write(growing=True)
        chat.now += 0.5
    final = sum(chat.write() for _ in range(40))
    assert 10 <= growing <= 18
    assert final >= 10
    assert growing + final <= 30
    assert all(0 < wait <= 60 for wait in chat.waits)
    chat.pace.take("another chat")
    chat.pace.hold("another chat", 15)
    with pytest.raises(Flooded):
        chat.pace.take("another chat")


def test_a_chat_gets_at_most_a_thousand_messages_an_hour() -> None:
    chat, sent = Chat(), 0
    while chat.now < 3600:
        sent += chat.write()
        chat.now += 1.0
    assert 900 < sent <= 1000
