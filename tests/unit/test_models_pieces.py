"""The pure pieces of the models: schemas, events, pictures, arguments, failures, answers from chunks."""

from __future__ import annotations

import json
import logging
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.history import ImageRef
from agent.models import base, failures, pictures, wire
from agent.models.arguments import parse_arguments
from agent.models.chat import Assembly, render_tool
from agent.models.schema import ToolRenderer, Unmendable, mend
from agent.models.sse import LARGEST_EVENT, Decoder, ServerEvent, TooLarge
from tests.fakes.transcript import check_openai

# -- schemas ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [{"type": "object"}, {"type": "object", "properties": {"l": {"type": "array"}}}, {}, {"$schema": "x"}],
)
def test_mc_11_schemas_that_openai_refuses_are_mended(schema: dict[str, Any]) -> None:
    tool = render_tool(base.ToolSpec("t", "A tool.", {}), mend(schema, "openai"))
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [tool]}
    assert check_openai(body) == []
    assert "properties" in tool["function"]["parameters"]


def test_mc_11_gemini_sees_no_empty_properties_and_typed_items() -> None:
    schema = {
        "type": "object",
        "properties": {"o": {"type": "object", "properties": {}}, "l": {"type": "array"}},
    }
    mended = mend(schema, "gemini")
    assert mended["properties"]["o"] == {"type": "object"}
    assert mended["properties"]["l"]["items"] == {"type": "string"}
    tool = render_tool(base.ToolSpec("t", "A tool.", {}), mend({"type": "object"}, "gemini"))
    assert "parameters" not in tool["function"]


def test_arrays_are_mended_wherever_they_are() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"anyOf": [{"type": "array"}, {"type": "null"}]},
            "b": {"type": ["array", "null"]},
            "c": {"type": "array", "items": {"type": "array"}},
            "d": {"$ref": "#/$defs/d"},
        },
        "$defs": {"d": {"type": "object", "properties": {"e": {"type": "array", "items": True}}}},
    }
    before = json.dumps(schema)
    tool = render_tool(base.ToolSpec("t", "", {}), mend(schema, "openai"))
    assert (
        check_openai({"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [tool]}) == []
    )
    assert json.dumps(schema) == before


def test_alternatives_at_the_outermost_level_become_optional_properties() -> None:
    mended = mend(
        {"anyOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {}}}]}, "anthropic"
    )
    assert mended == {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}}


def test_mc_11_a_tool_that_cannot_be_mended_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    endless: dict[str, Any] = {"type": "object", "properties": {}}
    endless["properties"]["self"] = endless
    tools = [
        base.ToolSpec("good", "", {"type": "object"}),
        base.ToolSpec("text", "", {"type": "string"}),
        base.ToolSpec("endless", "", endless),
        base.ToolSpec("bad.name", "", {"type": "object"}),
        base.ToolSpec("good", "again", {"type": "object"}),
    ]
    with caplog.at_level(logging.WARNING, "causeway.models"):
        rendered = ToolRenderer("openai", render_tool)(tools)
    assert [tool["function"]["name"] for tool in rendered] == ["good"]
    assert len(caplog.records) == 3
    with pytest.raises(Unmendable):
        mend([], "openai")


def test_rendered_tools_are_kept_and_changed_ones_are_rendered_anew() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    render = ToolRenderer("openai", render_tool)
    first = render([base.ToolSpec("t", "one", schema)])
    assert render([base.ToolSpec("t", "one", schema)])[0] is first[0]
    assert render([base.ToolSpec("t", "two", schema)])[0]["function"]["description"] == "two"


def test_more_tools_than_the_provider_takes_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    tools = [base.ToolSpec(f"t{n}", "", {"type": "object"}) for n in range(5)]
    assert len(ToolRenderer("openai", render_tool, most=3)(tools)) == 3
    assert "2 tools are left out" in caplog.text


# -- server-sent events ----------------------------------------------------------------------------

STREAM = (
    'event: a\r\ndata: {"x": "ü"}\r\n\r\n: note\ndata:two\ndata: lines\n\n'
    "id: 7\revent: b\rdata: z\r\rdata\n\n"
)
EVENTS = [
    ServerEvent("a", '{"x": "ü"}'.encode()),
    ServerEvent("", b"two\nlines"),
    ServerEvent("b", b"z"),
    ServerEvent("", b""),
]


@given(st.lists(st.integers(0, len(STREAM.encode()) + 3), max_size=8), st.booleans())
def test_events_are_the_same_however_the_bytes_are_cut(cuts: list[int], mark: bool) -> None:
    data = (b"\xef\xbb\xbf" if mark else b"") + STREAM.encode()
    decoder, found = Decoder(), []
    for start, end in pairwise([0, *sorted(cuts), len(data)]):
        found += decoder.feed(data[start:end])
    assert found + decoder.finish() == EVENTS


def test_an_event_without_its_last_empty_line_comes_at_the_end() -> None:
    decoder = Decoder()
    assert decoder.feed(b"data: x") == []
    assert decoder.finish() == [ServerEvent("", b"x")]
    assert decoder.finish() == []


def test_an_endless_event_is_refused() -> None:
    decoder = Decoder()
    decoder.feed(b"data: " + b"x" * (LARGEST_EVENT - 100) + b"\n")
    with pytest.raises(TooLarge):
        decoder.feed(b"data: " + b"x" * 200)


# -- pictures --------------------------------------------------------------------------------------

HEADS = {
    b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff\xe0": "image/jpeg", b"GIF89a": "image/gif",
    b"RIFF\0\0\0\0WEBP": "image/webp", b"<svg": "", b"": "",
}  # fmt: skip


@pytest.mark.parametrize("head", HEADS)
def test_the_type_of_a_picture_is_told_by_its_first_bytes(head: bytes) -> None:
    assert pictures.sniff(head + b"rest") == HEADS[head]


def test_pictures_beyond_the_bounds_become_sentences_and_the_newest_stay() -> None:
    refs = [ImageRef(f"{n}.png", "image/png") for n in range(pictures.MOST + 3)]
    found = pictures.load(refs, lambda ref: b"\x89PNG\r\n\x1a\n")
    kept = [ref for ref in refs if isinstance(found[ref], pictures.Picture)]
    assert kept == refs[8:]  # they go eight at a time, so that the cached beginning changes seldom
    assert "0.png is left out" in str(found[refs[0]])
    large = pictures.load(refs[:1], lambda ref: b"\x89PNG\r\n\x1a\n" + b"0" * pictures.LARGEST)
    assert "too many" in str(large[refs[0]])


def test_an_unreadable_picture_becomes_a_sentence_without_its_folder() -> None:
    def load(ref: ImageRef) -> bytes:
        raise PermissionError(13, "Permission denied")

    ref = ImageRef("deep/folder/cat.png", "image/png")
    assert pictures.load([ref], load)[ref] == "[The picture cat.png could not be read: Permission denied.]"


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cut", "expected"),
    [
        ('{"a": 1}', False, {"a": 1}), ("", False, {}), ("null", False, {}), (' {"a": 1} ', True, {"a": 1}),
        ('{"a": "x\ny"}', False, {"a": "x\ny"}), ('"{\\"a\\": 1}"', False, {"a": 1}),
        ('{"a": NaN}', False, {"a": None}),
    ],
)  # fmt: skip
def test_arguments_are_read(text: str, cut: bool, expected: dict[str, Any]) -> None:
    assert parse_arguments(text, cut=cut) == (expected, "")


@pytest.mark.parametrize(
    "text", ['{"a": "half', "{", "[1]", "7", '"text"', "{}{}", "[" * 100_000, '{"a": 1', "not json"]
)
def test_ag_04_arguments_that_cannot_be_read_are_a_fault(text: str) -> None:
    arguments, fault = parse_arguments(text, cut=False)
    assert arguments == {}
    assert fault


def test_ag_04_no_arguments_at_the_output_limit_are_a_fault() -> None:
    assert parse_arguments("", cut=True)[1]


# -- answers from chunks ---------------------------------------------------------------------------


def assembled(*deltas: dict[str, Any], finish: str = "tool_calls") -> base.Completed:
    assembly = Assembly()
    for delta in deltas:
        assembly.add({"choices": [{"delta": delta}]})
    assembly.add({"choices": [{"delta": {}, "finish_reason": finish}]})
    return assembly.completed("m", set())


def piece(index: int | None, **parts: Any) -> dict[str, Any]:
    function = {key: parts[key] for key in ("name", "arguments") if key in parts}
    call: dict[str, Any] = {"function": function}
    if index is not None:
        call["index"] = index
    if "id" in parts:
        call["id"] = parts["id"]
    return {"tool_calls": [call]}


def calls_of(completed: base.Completed) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in completed.calls]


EXPECTED = [("f", {"a": 1}), ("g", {"b": 2})]


def test_calls_that_come_interleaved_are_put_together_by_index() -> None:
    done = assembled(
        piece(0, id="x", name="f", arguments=""), piece(1, id="y", name="g", arguments='{"b"'),
        piece(0, arguments='{"a": 1}'), piece(1, arguments=": 2}"),
    )  # fmt: skip
    assert calls_of(done) == EXPECTED


@pytest.mark.parametrize("index", [0, None])
def test_calls_of_servers_that_do_not_number_them_are_told_apart_by_id(index: int | None) -> None:
    done = assembled(
        piece(index, id="x", name="f", arguments='{"a": 1}'),
        piece(index, id="y", name="g", arguments='{"b": 2}'),
    )
    assert calls_of(done) == EXPECTED


def test_pieces_without_number_and_id_go_to_the_last_call() -> None:
    done = assembled(piece(None, id="x", name="f", arguments='{"a"'), piece(None, arguments=": 1}"))
    assert calls_of(done) == EXPECTED[:1]


def test_a_name_that_is_sent_again_with_each_piece_does_not_grow() -> None:
    done = assembled(
        piece(0, id="x", name="f", arguments='{"a"'), piece(0, id="x", name="f", arguments=": 1}")
    )
    assert calls_of(done) == EXPECTED[:1]


def test_arguments_given_as_an_object_are_taken() -> None:
    assert calls_of(assembled(piece(0, id="x", name="f", arguments={"a": 1}))) == EXPECTED[:1]


def test_calls_count_though_the_server_says_stop() -> None:
    assert assembled(piece(0, name="f", arguments="{}"), finish="stop").stop == "tools"


def test_a_call_that_names_no_tool_is_a_fault() -> None:
    assert assembled(piece(0, id="x", arguments="{}")).calls[0].fault


def test_the_signatures_of_calls_are_kept_for_their_model() -> None:
    call = piece(0, id="x", name="f", arguments="{}")
    call["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": "s"}}
    kept = assembled(call).opaque["openai"]
    assert kept["calls"] == {"x": {"google": {"thought_signature": "s"}}}


# -- failures --------------------------------------------------------------------------------------


def openai_says(message: str, **rest: Any) -> Any:
    return {"error": {"message": message, **rest}}


def anthropic_says(kind: str, message: str) -> Any:
    return {"type": "error", "error": {"type": kind, "message": message}}


QUOTA = "You exceeded your current quota, please check your plan and billing details."
CONTEXT: list[tuple[int, Any]] = [
    (
        400,
        openai_says("This model's maximum context length is 128000 tokens.", code="context_length_exceeded"),
    ),
    (400, anthropic_says("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")),
    (400, anthropic_says("invalid_request_error", "input length and `max_tokens` exceed context limit")),
    (413, anthropic_says("request_too_large", "Request exceeds the maximum size")),
    # llama.cpp, vLLM, Ollama, DeepSeek, Qwen, Gemini, and OpenAI's bound by the minute that can never be met
    (400, openai_says("the request exceeds the available context size", type="exceed_context_size_error")),
    (400, {"object": "error", "message": "This model's maximum context length is 4096 tokens.", "code": 400}),
    (500, openai_says("prompt too long; exceeded max context length by 10 tokens")),
    (400, openai_says("This model's maximum context length is 65536 tokens", type="invalid_request_error")),
    (
        400,
        openai_says("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]"),
    ),
    (400, [openai_says("The input token count (12) exceeds the maximum number of tokens allowed (10).")]),
    (429, openai_says("Request too large for gpt-x on tokens per min (TPM): Limit 30000, Requested 50000.")),
]


@pytest.mark.parametrize(("status", "body"), CONTEXT)
def test_a_request_that_does_not_fit_is_recognised_in_every_server_s_words(status: int, body: object) -> None:
    error = failures.classify(status, json.dumps(body).encode(), {}, provider="m")
    assert isinstance(error, base.ContextTooLong)


OTHERS: list[tuple[int, Any, str]] = [
    (401, openai_says("Incorrect API key provided", code="invalid_api_key"), "unauthorised"),
    (403, b"<html><title>Forbidden</title></html>", "unauthorised"),
    (400, [openai_says("API key not valid. Invalid API key", status="INVALID_ARGUMENT")], "unauthorised"),
    (402, openai_says("Insufficient Balance"), "unauthorised"),
    (429, openai_says(QUOTA, code="insufficient_quota"), "unauthorised"),
    (429, [openai_says(QUOTA, code=429, status="RESOURCE_EXHAUSTED")], "rate_limited"),
    (400, anthropic_says("invalid_request_error", "Your credit balance is too low"), "unauthorised"),
    (429, b"", "rate_limited"),
    (429, openai_says("Rate limit reached: context window tokens per minute"), "rate_limited"),
    (529, anthropic_says("overloaded_error", "Overloaded"), "overloaded"),
    (500, b"Internal Server Error", "overloaded"),
    (503, {"error": "loading model"}, "overloaded"),
    (504, b"<html><body>Gateway", "connection"),
    (408, b"", "connection"),
    (409, b"", "overloaded"),
    (400, openai_says("The prompt triggered content management policy", code="content_filter"), "refused"),
    (400, openai_says("Input data may contain ...", code="data_inspection_failed"), "refused"),
    (400, openai_says("Content Exists Risk"), "refused"),
    (404, {"error": "model 'x' not found, try pulling it first"}, "bad_request"),
    (400, {"detail": [{"loc": ["body", "x"], "msg": "field required"}]}, "bad_request"),
    (422, b"\xff\xfe", "bad_request"),
    (301, b"", "bad_request"),
    (200, anthropic_says("overloaded_error", "Overloaded"), "overloaded"),
    (200, openai_says("Provider returned error", code=502), "overloaded"),
    (200, openai_says("slow down", code=429), "rate_limited"),
    (200, anthropic_says("rate_limit_error", "slow down"), "rate_limited"),
    (200, openai_says("something"), "connection"),
    (200, openai_says("no", type="invalid_request_error"), "bad_request"),
]


@pytest.mark.parametrize(("status", "body", "kind"), OTHERS)
def test_each_failure_gets_its_kind(status: int, body: object, kind: str) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert failures.classify(status, raw, {}, provider="m").kind == kind


@pytest.mark.parametrize(
    ("headers", "message", "expected"),
    [
        ({"retry-after": "7"}, "", 7.0),
        ({"retry-after": "0.5"}, "", 0.5),
        ({"retry-after": "-3"}, "", 0.0),
        ({"retry-after-ms": "1500", "retry-after": "7"}, "", 1.5),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, "", 40.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:10 GMT"}, "", 0.0),
        ({"retry-after": "nan"}, "", None),
        ({"retry-after": "soon"}, "", None),
        ({"retry-after": "soon"}, "Please try again in 250ms.", 0.25),
        ({}, "Please try again in 7.5s. Visit", 7.5),
        ({}, '"retryDelay": "17s"', 17.0),
        ({}, "nothing", None),
    ],
)
def test_the_time_to_wait_is_read(headers: dict[str, str], message: str, expected: float | None) -> None:
    assert failures.retry_after(headers, message, now=lambda: 60.0) == expected


@given(st.binary(max_size=200), st.sampled_from([200, 400, 429, 500]))
def test_any_body_makes_an_error_of_bounded_length(body: bytes, status: int) -> None:
    error = failures.classify(status, body, {}, provider="m")
    assert len(error.detail) < failures.LONGEST_DETAIL + 200


def test_sc_05_keys_and_passwords_are_taken_out_of_details() -> None:
    text = "key sk-ant-api03-CANARY123 and mycanary at https://user:CANARY@host/v1 Bearer CANARYTOKEN"
    cleaned = failures.clean(text, ("mycanary",))
    assert "canary" not in cleaned.lower()
    assert "host/v1" in cleaned


@pytest.mark.parametrize("key", ["sk-a b", "sk-a\nb", "sk-ключ", "sk-\x00"])
def test_a_key_that_no_header_can_hold_is_refused_at_once(key: str) -> None:
    with pytest.raises(ValueError, match="api_key") as caught:
        wire.checked_key(key)
    assert key not in str(caught.value)
    assert wire.checked_key(" sk-good\n") == "sk-good"
