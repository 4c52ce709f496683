"""Histories of every shape become messages that both providers accept."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.history import Assistant, Ended, Entry, ImageRef, ToolBegun, ToolCall, ToolOutput, User
from agent.models import anthropic, chat
from agent.models.base import Request
from agent.models.pictures import Picture
from agent.models.transcript import INTERRUPTED, Answer, Said, turns, unused_id
from tests.fakes.transcript import check_anthropic, check_openai

PICTURE = ImageRef("a.png", "image/png")
LOST = ImageRef("lost.png", "image/png")
PICTURES: dict[ImageRef, Picture | str] = {
    PICTURE: Picture("image/png", "aGVsbG8="),
    LOST: "[could not be read]",
}

texts = st.sampled_from(["", " ", "\n", "hello", "two words", "你好", "x" * 50])
ids = st.sampled_from(["", "call_0", "call_1", "toolu_01", "weird:id/1", "y" * 70, "空"])
names = st.sampled_from(["read", "a__b", "", "skills/pdf", "名", "n" * 80])
images = st.lists(st.sampled_from([PICTURE, LOST, ImageRef("new.gif", "image/gif")]), max_size=2).map(tuple)
calls = st.builds(ToolCall, ids, names, st.just({"a": "b"}), texts)
opaques = st.sampled_from(
    [
        {},
        {"anthropic": {"model": "m", "content": [{"type": "thinking", "thinking": "x", "signature": "s"}]}},
        {"anthropic": {"model": "m", "content": "nonsense"}, "openai": 7},
        {"openai": {"model": "m", "reasoning_content": "thought", "calls": {"call_0": {"google": 1}}}},
    ]
)
entry = st.one_of(
    st.builds(User, st.just("r"), texts, images),
    st.builds(Assistant, st.just("r"), texts, st.lists(calls, max_size=3).map(tuple), opaques),
    st.builds(ToolOutput, st.just("r"), ids, names, texts, st.booleans(), st.just(()), images),
    st.builds(ToolBegun, st.just("r"), ids),
    st.builds(Ended, st.just("r"), st.just("stopped")),
)
histories = st.lists(entry, max_size=12)


def openai_body(entries: list[Entry]) -> dict[str, Any]:
    messages = chat.render_messages(entries, PICTURES, system="You help.", model="m")
    return {"model": "m", "messages": messages, "stream": True}


def anthropic_body(entries: list[Entry]) -> dict[str, Any]:
    request = Request("You help.", entries, (), lambda ref: b"")
    return anthropic.render_body(request, PICTURES, [], model="m", max_tokens=100)


@settings(max_examples=300, deadline=None)
@given(histories)
def test_whatever_the_history_holds_openai_would_accept_it(entries: list[Entry]) -> None:
    assert check_openai(openai_body(entries)) == []


@settings(max_examples=300, deadline=None)
@given(histories)
def test_whatever_the_history_holds_anthropic_would_accept_it(entries: list[Entry]) -> None:
    assert check_anthropic(anthropic_body(entries)) == []


@settings(max_examples=100, deadline=None)
@given(histories)
def test_rendering_leaves_the_history_as_it_was(entries: list[Entry]) -> None:
    before = copy.deepcopy(entries)
    openai_body(entries)
    anthropic_body(entries)
    assert entries == before


@settings(max_examples=100, deadline=None)
@given(histories)
def test_nothing_that_a_person_or_the_model_said_gets_lost(entries: list[Entry]) -> None:
    sent = (
        json.dumps(openai_body(entries), ensure_ascii=False),
        json.dumps(anthropic_body(entries), ensure_ascii=False),
    )
    for one in entries:
        # An answer that kept its thinking speaks through its kept blocks.
        if isinstance(one, User) or (isinstance(one, Assistant) and not one.opaque):
            for body in sent:
                assert one.text.strip() in body


def test_ag_01_a_message_that_came_while_a_tool_ran_stands_after_the_result() -> None:
    entries: list[Entry] = [
        User("r", "start the job"),
        Assistant("r", "", (ToolCall("c1", "job", {}),)),
        ToolBegun("r", "c1"),
        User("r", "ping"),
        ToolOutput("r", "c1", "job", "finished"),
    ]
    messages = chat.render_messages(entries, {})
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "user"]
    assert messages[3]["content"] == "ping"
    blocks = anthropic.render_messages(entries, {})[2]["content"]
    assert [b["type"] for b in blocks] == ["tool_result", "text"]


def test_ag_01_a_call_without_its_result_gets_an_interrupted_one() -> None:
    entries: list[Entry] = [
        User("r", "go"),
        Assistant("r", "", (ToolCall("c1", "job", {}),)),
        User("s", "ping"),
    ]
    messages = chat.render_messages(entries, {})
    assert messages[2] == {"role": "tool", "tool_call_id": "c1", "content": INTERRUPTED}
    result = anthropic.render_messages(entries, {})[2]["content"][0]
    assert result["is_error"] is True
    assert "interrupted" in result["content"]


def test_a_result_belongs_to_the_answer_before_it_when_ids_repeat() -> None:
    call = ToolCall("call_0", "clock", {})
    entries: list[Entry] = [
        User("r", "go"),
        Assistant("r", "", (call,)),
        ToolOutput("r", "call_0", "clock", "first"),
        Assistant("r", "", (call,)),
        ToolOutput("r", "call_0", "clock", "second"),
    ]
    found = [turn for turn in turns(entries) if isinstance(turn, Answer)]
    assert [turn.calls[0].result.text for turn in found] == ["first", "second"]
    assert found[0].calls[0].id != found[1].calls[0].id


def test_neighbouring_messages_of_people_become_one() -> None:
    entries: list[Entry] = [User("r", "one"), Ended("r", "stopped"), User("s", "two", (PICTURE,))]
    assert turns(entries) == [Said("one\n\ntwo", (PICTURE,))]


def test_ag_10_an_answer_without_text_and_calls_is_not_sent() -> None:
    entries: list[Entry] = [User("r", "one"), Assistant("r", ""), Assistant("r", " \n"), User("s", "two")]
    assert [m["role"] for m in chat.render_messages(entries, {})] == ["user"]


def test_a_picture_in_a_result_is_in_the_result_for_anthropic_and_after_the_results_for_openai() -> None:
    calls = (ToolCall("c1", "shot", {}), ToolCall("c2", "shot", {}))
    entries: list[Entry] = [
        User("r", "look"),
        Assistant("r", "", calls),
        ToolOutput("r", "c1", "shot", "here", images=(PICTURE,)),
        ToolOutput("r", "c2", "shot", "lost", images=(LOST,)),
    ]
    messages = chat.render_messages(entries, PICTURES)
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "tool", "user"]
    assert [part["type"] for part in messages[4]["content"]] == ["text", "image_url", "text", "text"]
    results = anthropic.render_messages(entries, PICTURES)[2]["content"]
    assert [part["type"] for part in results[0]["content"]] == ["text", "image"]
    assert results[1]["content"][1]["text"] == "[could not be read]"


def test_a_failed_result_is_marked_for_both() -> None:
    entries: list[Entry] = [
        User("r", "go"),
        Assistant("r", "", (ToolCall("c1", "job", {}),)),
        ToolOutput("r", "c1", "job", "no such file", is_error=True),
    ]
    assert chat.render_messages(entries, {})[2]["content"] == "Error: no such file"
    assert anthropic.render_messages(entries, {})[2]["content"][0]["is_error"] is True


def test_calls_in_the_history_declare_their_tools_when_none_are_offered() -> None:
    entries: list[Entry] = [
        User("r", "go"),
        Assistant("r", "", (ToolCall("c1", "job", {}),)),
        ToolOutput("r", "c1", "job", "done"),
    ]
    body = anthropic_body(entries)
    assert [tool["name"] for tool in body["tools"]] == ["job"]
    assert body["tool_choice"] == {"type": "none"}


def test_the_cache_is_marked_at_system_tools_and_the_end_of_the_history() -> None:
    request = Request("You help.", [User("r", "hi")], (), lambda ref: b"")
    tools = [{"name": "a"}, {"name": "b"}]
    body = anthropic.render_body(request, {}, tools, model="m", max_tokens=5)
    marked = [body["system"][-1], body["tools"][-1], body["messages"][-1]["content"][-1]]
    assert all(block["cache_control"] == {"type": "ephemeral"} for block in marked)
    assert tools == [{"name": "a"}, {"name": "b"}], "the rendered tools are shared and stay as they are"


@pytest.mark.parametrize(
    ("wanted", "taken", "expected"),
    [
        ("x", set(), "x"),
        ("x", {"x"}, "x_2"),
        ("x", {"x", "x_2"}, "x_3"),
        ("", set(), "call_1"),
        ("", {"call_1"}, "call_2"),
    ],
)
def test_an_id_is_made_free(wanted: str, taken: set[str], expected: str) -> None:
    assert unused_id(wanted, taken) == expected
    assert expected in taken


HELLO = {"role": "user", "content": "x"}


def asks(name: str = "f", identity: str = "c") -> dict[str, Any]:
    function = {"name": name, "arguments": "{}"}
    call = {"id": identity, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


GIVES = {"role": "tool", "tool_call_id": "c", "content": "r"}
OPENAI_FAULTS: dict[str, list[dict[str, Any]]] = {
    "a call without its result": [HELLO, asks(), HELLO],
    "a call at the end": [HELLO, asks()],
    "a result without its call": [HELLO, GIVES],
    "a result not directly after": [HELLO, asks(), HELLO, GIVES],
    "a result given twice": [HELLO, asks(), GIVES, GIVES],
    "an empty assistant": [HELLO, {"role": "assistant", "content": ""}],
    "empty content": [{"role": "user", "content": ""}],
    "no calls in tool_calls": [HELLO, {"role": "assistant", "content": "a", "tool_calls": []}],
    "an illegal name": [HELLO, asks("a.b"), GIVES],
    "an id of 41 letters": [HELLO, asks("f", "c" * 41), {**GIVES, "tool_call_id": "c" * 41}],
    "an unknown role": [HELLO, {"role": "robot", "content": "x"}],
    "no message": [],
}


@pytest.mark.parametrize("name", OPENAI_FAULTS)
def test_the_gate_refuses_what_openai_refuses(name: str) -> None:
    assert check_openai({"model": "m", "messages": OPENAI_FAULTS[name]})


USE = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "r"}
TEXT = {"type": "text", "text": "y"}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


ANTHROPIC_FAULTS: dict[str, list[dict[str, Any]]] = {
    "a call without its result": [HELLO, assistant(USE), HELLO],
    "a result without its call": [user(RESULT)],
    "a result not directly after": [HELLO, assistant(USE), HELLO, user(RESULT)],
    "a result given twice": [HELLO, assistant(USE), user(RESULT, RESULT)],
    "text before the results": [HELLO, assistant(USE), user(TEXT, RESULT)],
    "an assistant first": [assistant(TEXT), HELLO],
    "an assistant last": [HELLO, assistant(TEXT)],
    "blank text": [user({"type": "text", "text": " "})],
    "no content": [user()],
    "an illegal id": [HELLO, assistant({**USE, "id": "a:b"}), user({**RESULT, "tool_use_id": "a:b"})],
    "an id used twice": [HELLO, assistant(USE), user(RESULT), assistant(USE), user(RESULT)],
    "thinking without its signature": [HELLO, assistant({"type": "thinking", "thinking": "x"}, TEXT), HELLO],
    "a system message": [{"role": "system", "content": "x"}, HELLO],
}


@pytest.mark.parametrize("name", ANTHROPIC_FAULTS)
def test_the_gate_refuses_what_anthropic_refuses(name: str) -> None:
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    assert check_anthropic(
        {"model": "m", "max_tokens": 5, "messages": ANTHROPIC_FAULTS[name], "tools": tools}
    )


def test_the_gate_refuses_bad_tools_and_missing_fields() -> None:
    hello = [HELLO]
    assert check_openai({"messages": hello})
    assert check_anthropic({"model": "m", "messages": hello})
    for names_ in (["a.b"], ["same", "same"], ["n" * 65]):
        openai_tools = [{"type": "function", "function": {"name": name}} for name in names_]
        assert check_openai({"model": "m", "messages": hello, "tools": openai_tools})
        anthropic_tools = [{"name": name, "input_schema": {"type": "object"}} for name in names_]
        assert check_anthropic({"model": "m", "max_tokens": 5, "messages": hello, "tools": anthropic_tools})
