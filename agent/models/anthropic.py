"""Messages: Anthropic's protocol, through its official SDK.

Protocol: https://docs.anthropic.com/en/api/messages. The prompt is marked for the provider's cache at
the ends of the system text, of the tools, of the history, and of what the request before held of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agent.history import Entry
from agent.models.arguments import finished_call
from agent.models.base import Completed, Request, ToolSpec, Usage
from agent.models.chat import framed
from agent.models.pictures import Picture, Pictures, show
from agent.models.schema import ToolRenderer
from agent.models.sse import ServerEvent
from agent.models.streamed import StreamedModel
from agent.models.transcript import EARLIER, GO_ON, NO_TEXT, Answer, Call, Said, turns, unused_id

DEFAULT_BASE_URL = "https://api.anthropic.com"
#: The protocol wants a bound on each answer; what all models in use accept.
DEFAULT_MAX_TOKENS = 8192
#: Blocks of one answer that are read; more are a model gone astray.
MOST_BLOCKS = 512
PROTOCOL = "anthropic"
_CACHE = {"type": "ephemeral"}


def render_messages(entries: Sequence[Entry], pictures: Pictures, *, model: str = "") -> list[dict[str, Any]]:
    """The messages for a history, valid by the protocol's rules whatever the entries are.

    Users and the model take turns, a person begins and a person (or a result) ends. `model` gives an
    answer's thinking back to the model that it came from.
    """
    messages: list[dict[str, Any]] = []
    for turn in turns(entries):
        if isinstance(turn, Said):
            _add_user(messages, _said(turn, pictures))
            continue
        if not messages or messages[-1]["role"] == "assistant":
            _add_user(messages, [_text(GO_ON if messages else EARLIER)])
        messages.append({"role": "assistant", "content": _answer(turn, model)})
        if turn.calls:
            _add_user(messages, [_result(call, pictures) for call in turn.calls])
    # An answer at the end would be taken for the beginning of the next one, which new models refuse.
    if not messages or messages[-1]["role"] == "assistant":
        _add_user(messages, [_text(GO_ON if messages else NO_TEXT)])
    return messages


def _add_user(messages: list[dict[str, Any]], blocks: list[dict[str, Any]]) -> None:
    if messages and messages[-1]["role"] == "user":
        messages[-1]["content"] += blocks
    else:
        messages.append({"role": "user", "content": blocks})


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _said(turn: Said, pictures: Pictures) -> list[dict[str, Any]]:
    blocks = [_picture(show(ref, pictures)) for ref in turn.images]
    if turn.text or not blocks:
        blocks.append(_text(turn.text or NO_TEXT))
    return blocks


def _picture(picture: Picture | str) -> dict[str, Any]:
    if isinstance(picture, str):
        return _text(picture)
    source = {"type": "base64", "media_type": picture.mime, "data": picture.data}
    return {"type": "image", "source": source}


def _answer(turn: Answer, model: str) -> list[dict[str, Any]]:
    kept = turn.opaque.get(PROTOCOL)
    if isinstance(kept, dict) and kept.get("model") == model and isinstance(kept.get("content"), list):
        given_back = _given_back(kept["content"], turn)
        if given_back is not None:
            return given_back
    blocks = [_text(turn.text)] if turn.text else []
    return blocks + [_tool_use(call) for call in turn.calls]


def _given_back(content: list[Any], turn: Answer) -> list[dict[str, Any]] | None:
    """The answer's own blocks, thinking unchanged and in place; None when they do not fit its calls."""
    calls = iter(turn.calls)
    blocks: list[dict[str, Any]] = []
    for block in content:
        if not isinstance(block, dict):
            return None
        if block.get("type") == "tool_use":
            call = next(calls, None)
            if call is None or block.get("id") != call.original_id:
                return None
            blocks.append(_tool_use(call))
        elif block.get("type") != "text" or str(block.get("text", "")).strip():
            blocks.append(block)
    return blocks if next(calls, None) is None and blocks else None


def _tool_use(call: Call) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}


def _result(call: Call, pictures: Pictures) -> dict[str, Any]:
    result, text = call.result, framed(call)
    content: str | list[dict[str, Any]] = text
    if result.images:
        content = [_text(text), *(_picture(show(ref, pictures)) for ref in result.images)]
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call.id, "content": content}
    if result.is_error:
        # The protocol takes only text in a failed result.
        block |= {"is_error": True, "content": text}
    return block


def render_tool(spec: ToolSpec, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"name": spec.name, "description": spec.description, "input_schema": parameters}


def render_body(
    request: Request, pictures: Pictures, tools: list[dict[str, Any]], *, model: str, max_tokens: int
) -> dict[str, Any]:
    """The whole request with its cache marks."""
    messages = render_messages(request.entries, pictures, model=model)
    body: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "messages": messages, "stream": True}
    if request.system.strip():
        body["system"] = [{**_text(request.system), "cache_control": _CACHE}]
    if tools:
        body["tools"] = [*tools[:-1], {**tools[-1], "cache_control": _CACHE}]
    elif used := _names_used(messages):
        # Calls in the history want their tools declared, also when none may be called any more.
        body["tools"] = [
            {"name": name, "description": "No longer offered.", "input_schema": {"type": "object"}}
            for name in used
        ]
        body["tool_choice"] = {"type": "none"}
    _mark(messages)
    return body


def _mark(messages: list[dict[str, Any]]) -> None:
    """Mark the end of the history for the cache, and where the request before ended. The provider looks for
    what it has cached only 20 blocks back from a mark, and one step with parallel calls may bring more."""
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    for place in {len(messages) - 1, answers[-1] - 1 if answers else len(messages) - 1}:
        blocks = messages[place]["content"]
        blocks[-1] = {**blocks[-1], "cache_control": _CACHE}


def _names_used(messages: list[dict[str, Any]]) -> list[str]:
    blocks = (block for message in messages for block in message["content"])
    return list(dict.fromkeys(block["name"] for block in blocks if block["type"] == "tool_use"))


@dataclass(slots=True)
class _Block:
    start: dict[str, Any]
    pieces: list[str] = field(default_factory=list)
    signature: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Assembly:
    """An answer put together from its events. Pure: events in, text out."""

    blocks: dict[int, _Block] = field(default_factory=dict)
    finish: str = ""
    usage: Usage = Usage()

    def add(self, event: dict[str, Any]) -> str:
        """Take one event; returns the text that it added. Raises TypeError, KeyError or AttributeError for
        nonsense. Events and blocks of unknown kinds are passed over: the protocol promises more of them."""
        match event.get("type"):
            case "message_start":
                self._count(event["message"].get("usage") or {})
            case "content_block_start":
                if len(self.blocks) < MOST_BLOCKS:
                    self.blocks[int(event["index"])] = _Block(dict(event["content_block"]))
                    return str(event["content_block"].get("text") or "")
            case "content_block_delta":
                return self._delta(int(event["index"]), event["delta"])
            case "message_delta":
                if reason := event["delta"].get("stop_reason"):
                    self.finish = str(reason)
                self._count(event.get("usage") or {})
        return ""

    def _delta(self, index: int, delta: dict[str, Any]) -> str:
        block = self.blocks.get(index)
        if block is None:
            return ""
        match delta.get("type"):
            case "text_delta":
                block.pieces.append(delta["text"])
                return str(delta["text"])
            case "input_json_delta":
                block.pieces.append(delta["partial_json"])
            case "thinking_delta":
                block.pieces.append(delta["thinking"])
            case "signature_delta":
                block.signature.append(delta["signature"])
        return ""

    def _count(self, usage: dict[str, Any]) -> None:
        kinds = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
        fresh, cached, stored, given = (int(usage.get(kind) or 0) for kind in kinds)
        taken, old = fresh + cached + stored, self.usage
        # Each message says the sum so far; some servers say the input only at the end.
        self.usage = Usage(max(taken, old.input), max(given, old.output), max(cached, old.cached))

    def completed(self, model: str, taken: set[str]) -> Completed:
        """The whole answer. `taken` holds the ids of calls before it."""
        texts, calls, content, thought = [], [], [], False
        uses = [index for index, block in self.blocks.items() if block.start.get("type") == "tool_use"]
        cut = self.finish in ("max_tokens", "model_context_window_exceeded")
        for index, block in sorted(self.blocks.items()):
            pieces = "".join(block.pieces)
            match block.start.get("type"):
                case "text":
                    text = str(block.start.get("text") or "") + pieces
                    texts.append(text)
                    content.append(_text(text))
                case "thinking":
                    thought = True
                    content.append(_thinking(block, pieces))
                case "redacted_thinking":
                    thought = True
                    content.append(block.start)
                case "tool_use":
                    if not pieces and block.start.get("input"):
                        pieces = json.dumps(block.start["input"])
                    identity = unused_id(str(block.start.get("id") or ""), taken)
                    name = str(block.start.get("name") or "")
                    call = finished_call(identity, name, pieces, cut=cut and index == uses[-1])
                    calls.append(call)
                    content.append(
                        {"type": "tool_use", "id": identity, "name": name, "input": call.arguments}
                    )
        stop: Literal["end", "tools", "length", "refused"]
        if self.finish == "refusal":
            return Completed("".join(texts), (), "refused", self.usage)
        stop = "length" if cut else "tools" if calls else "end"
        opaque = {PROTOCOL: {"model": model, "content": content}} if thought else {}
        return Completed("".join(texts), tuple(calls), stop, self.usage, opaque)


def _thinking(block: _Block, pieces: str) -> dict[str, Any]:
    thinking = str(block.start.get("thinking") or "") + pieces
    signature = str(block.start.get("signature") or "") + "".join(block.signature)
    return {**block.start, "thinking": thinking, "signature": signature}


class AnthropicModel(StreamedModel):
    """A model behind a messages server.

    `base_url` ends where `/v1/messages` begins (a `/v1` at its end is tolerated). `max_tokens` bounds an
    answer.
    """

    path = "/v1/messages"
    _assembly = Assembly

    def __init__(
        self,
        name: str,
        *,
        api_key: str | None,
        base_url: str | None = None,
        max_tokens: int | None = None,
        timeout: float = 120.0,
    ) -> None:
        url = (base_url or DEFAULT_BASE_URL).strip().rstrip("/").removesuffix("/v1")
        super().__init__(name, url, api_key, timeout)
        self._max_tokens = max_tokens or DEFAULT_MAX_TOKENS
        self._render_tools = ToolRenderer("anthropic", render_tool)

    def _sdk(self) -> tuple[Any, Any]:
        from anthropic import AsyncAnthropic, DefaultAioHttpClient

        return AsyncAnthropic, DefaultAioHttpClient

    def _body(self, request: Request, tools: list[dict[str, Any]], pictures: Pictures) -> dict[str, Any]:
        return render_body(request, pictures, tools, model=self.name, max_tokens=self._max_tokens)

    def _is_last(self, event: ServerEvent) -> bool:
        return event.name == "message_stop"

    def _parse(self, event: ServerEvent) -> dict[str, Any]:
        content = super()._parse(event)
        if content.get("type") == "message":
            raise self._wire.broken("the server answered in one piece, not in a stream")
        return content
