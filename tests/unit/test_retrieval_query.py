"""What a conversation asks for."""

from __future__ import annotations

import base64

import pytest

from agent.history import Assistant, Entry, ToolCall, ToolOutput, User
from agent.tools.retrieval.query import build_query, query_of
from agent.tools.retrieval.words import split_name, words
from tests.unit.retrieval_support import called, said


def texts(entries: list[Entry]) -> list[str]:
    return [text for text, _ in build_query(entries).texts]


def test_what_a_person_wrote_last_counts_most_and_older_messages_less_and_less() -> None:
    entries: list[Entry] = [
        User("a", "oldest"), Assistant("a", "first answer"), User("b", "older"), Assistant("b", "answer"),
        User("c", "newest"),
    ]  # fmt: skip
    query = build_query(entries)
    assert query.texts[0] == ("newest", 1.0)
    weights = dict(query.texts)
    assert weights["answer"] > weights["older"] > weights["first answer"] > weights["oldest"] > 0


def test_only_the_last_five_messages_with_text_count() -> None:
    entries = [entry for n in range(9) for entry in said(str(n), f"message {n}")]
    assert sorted(texts(entries)) == [f"message {n}" for n in range(4, 9)]


def test_calls_and_results_of_tools_are_no_part_of_the_query() -> None:
    entries: list[Entry] = [
        User("r", "what is the weather"),
        Assistant("r", "", (ToolCall("1", "secret_tool", {"text": "argument"}),)),
        ToolOutput("r", "1", "secret_tool", "payload " * 1000),
    ]
    assert texts(entries) == ["what is the weather"]


def test_after_many_rounds_without_a_word_the_query_is_still_what_the_person_asked() -> None:
    entries = said("r", "convert the report to pdf")
    for n in range(30):
        entries += called("r", f"tool{n}")
    assert texts(entries) == ["convert the report to pdf"]


def test_many_answers_later_the_question_still_counts_most() -> None:
    entries = said("r", "book a table")
    for n in range(9):
        entries += called("r", f"tool{n}", text=f"now step {n}")
    query = build_query(entries)
    assert query.texts[0] == ("book a table", 1.0)
    assert len(query.texts) == 5


def test_nobody_wrote_anything_gives_an_empty_query() -> None:
    assert not build_query([])
    assert not build_query([User("r", "  \n "), *called("r", "x")])
    assert not query_of("")


def test_the_same_words_twice_are_one_text() -> None:
    assert build_query([*said("a", "yes"), *said("b", "yes")]).texts == (("yes", 1.0),)


def test_data_in_a_message_is_left_out_and_a_link_keeps_its_site() -> None:
    data = base64.b64encode(bytes(range(256)) * 20).decode()
    ((text, _),) = query_of(f"What does this picture mean? {data} tell me").texts
    assert text == "What does this picture mean? tell me"
    ((text, _),) = query_of(f"Read https://www.youtube.com/watch?v={'x' * 80} now").texts
    assert text == "Read https://www.youtube.com now"


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    ((text, _),) = query_of("first words " + "filling " * 5000 + "last words").texts
    assert text.startswith("first words")
    assert text.endswith("last words")
    assert len(text) <= 2001


def test_a_long_chinese_text_is_no_data() -> None:
    ((text, _),) = query_of("请帮我把这份很长的报告翻译成英文" * 10).texts
    assert "报告" in text


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("Find the newest paper, then write a summary of it and send it by mail to Anna.",
         ("Find the newest paper", "write a summary of it", "send it by mail to Anna")),
        ("查一下明天北京的天气，然后发邮件给张三。", ("查一下明天北京的天气", "发邮件给张三")),
        ("Find the newest paper", ()),
        ("Well, do it, ok", ()),
    ],
)  # fmt: skip
def test_a_request_for_several_things_has_several_parts(text: str, clauses: tuple[str, ...]) -> None:
    assert query_of(text).clauses == clauses


def test_the_parts_are_bounded() -> None:
    assert len(query_of(". ".join(f"please do thing number {n}" for n in range(100))).clauses) <= 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("getStoryWithComments", ["get", "story", "comment"]),
        ("create_directory", ["create", "directory"]),
        ("convert-to-PDFFile v2", ["convert", "pdf", "file"]),
        ("HTTPServer status", ["http", "server", "status"]),
        ("libraries glass", ["library", "glass"]),
        ("天气预报", ["天气", "气预", "预报"]),
        ("查", ["查"]),
        ("Straße прогноз", ["straße", "прогноз"]),
    ],
)
def test_words_of_names_and_texts(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_a_name_is_split_into_words() -> None:
    assert split_name("getStoryWith-comments_now.v2") == "get Story With comments now v2"
