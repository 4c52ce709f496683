"""Chat completions: OpenAI's protocol, which most other servers speak too, through its official SDK.

Protocol: https://platform.openai.com/docs/api-reference/chat. Where servers differ (`stream_options`,
`max_tokens`, how tool calls are numbered, which schemas pass) the differences are met here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

from agent.history import Entry
from agent.models import wire
from agent.models.base import (
    BadRequest,
    Completed,
    Delta,
    ModelError,
    Refused,
    Request,
    Text,
    ToolSpec,
    Usage,
)
from agent.models.pictures import Picture, Pictures, show
from agent.models.schema import Dialect, ToolRenderer
from agent.models.sse import ServerEvent
from agent.models.transcript import NO_TEXT, Answer, Call, Said, call_ids, turns, unused_id

DEFAULT_BASE_URL = "https://api.openai.com/v1"
#: OpenAI refuses longer tool call ids.
LONGEST_ID = 40
#: Tool calls of one answer that are read; more are a model gone astray.
MOST_CALLS = 128
PROTOCOL = "openai"
_UNKNOWN = re.compile(
    r"unsupported|unknown|unrecogni[sz]ed|unexpected|extra|not (supported|permitted|allowed)|no such|instead"
    r"|invalid (parameter|argument|field)",
    re.IGNORECASE,
)


def render_messages(
    entries: Sequence[Entry], pictures: Pictures, *, system: str = "", model: str = ""
) -> list[dict[str, Any]]:
    """The messages for a history, valid by the protocol's rules whatever the entries are.

    `model` gives an answer's reasoning back to the model that it came from.
    """
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    found = turns(entries, longest_id=LONGEST_ID)
    last_said = max((n for n, turn in enumerate(found) if isinstance(turn, Said)), default=-1)
    shown: list[dict[str, Any]] = []  # pictures of results, which only a user message can hold
    for number, turn in enumerate(found):
        if isinstance(turn, Said):
            messages.append({"role": "user", "content": _content(turn, pictures, shown)})
            shown = []
            continue
        if shown:
            messages.append({"role": "user", "content": shown})
            shown = []
        messages.append(_assistant(turn, model, current=number > last_said))
        for call in turn.calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": _result(call)})
            shown += _result_pictures(call, pictures)
    if shown:
        messages.append({"role": "user", "content": shown})
    if len(messages) == bool(system):
        messages.append({"role": "user", "content": NO_TEXT})
    return messages


def _content(turn: Said, pictures: Pictures, before: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    parts = [*before]
    if turn.text or not (turn.images or before):
        parts.append({"type": "text", "text": turn.text or NO_TEXT})
    parts += [_part(show(ref, pictures)) for ref in turn.images]
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts


def _part(picture: Picture | str) -> dict[str, Any]:
    if isinstance(picture, str):
        return {"type": "text", "text": picture}
    return {"type": "image_url", "image_url": {"url": f"data:{picture.mime};base64,{picture.data}"}}


def _result(call: Call) -> str:
    text = call.result.text
    # The protocol has no mark for a failed call.
    return f"Error: {text}" if call.result.is_error and not text.lower().startswith("error") else text


def _result_pictures(call: Call, pictures: Pictures) -> list[dict[str, Any]]:
    if not call.result.images:
        return []
    label = {"type": "text", "text": f"[Pictures from the result of {call.name}:]"}
    return [label, *(_part(show(ref, pictures)) for ref in call.result.images)]


def _assistant(turn: Answer, model: str, *, current: bool) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    kept = turn.opaque.get(PROTOCOL)
    kept = kept if isinstance(kept, dict) and kept.get("model") == model else {}
    if turn.calls:
        message["tool_calls"] = [_tool_call(call, kept.get("calls")) for call in turn.calls]
        # Reasoning models want it back while their calls go on, and only then.
        if current and isinstance(kept.get("reasoning_content"), str):
            message["reasoning_content"] = kept["reasoning_content"]
    return message


def _tool_call(call: Call, extras: object) -> dict[str, Any]:
    rendered = {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
    }
    extra = extras.get(call.original_id) if isinstance(extras, dict) else None
    if extra is not None:
        rendered["extra_content"] = extra
    return rendered


def render_tool(spec: ToolSpec, parameters: dict[str, Any]) -> dict[str, Any]:
    function: dict[str, Any] = {"name": spec.name, "description": spec.description}
    # Gemini refuses an object without properties; a function without parameters is what it takes.
    if "properties" in parameters:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def _is_last(event: ServerEvent) -> bool:
    return event.data.startswith(b"[DONE]")


@dataclass(slots=True)
class _Slot:
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    extra: Any = None


@dataclass(slots=True)
class Assembly:
    """An answer put together from its chunks. Pure: chunks in, text out."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    slots: list[_Slot] = field(default_factory=list)
    by_index: dict[int, _Slot] = field(default_factory=dict)
    finish: str = ""
    refused: bool = False
    usage: Usage = Usage()

    def add(self, chunk: dict[str, Any]) -> str:
        """Take one chunk; returns the text that it added. Raises TypeError or AttributeError for nonsense."""
        if usage := chunk.get("usage"):
            self.usage = _usage(usage)
        choices = chunk.get("choices")
        if not choices:
            return ""
        choice = choices[0]
        if reason := choice.get("finish_reason"):
            self.finish = str(reason)
        # A server that does not stream gives the whole message at once.
        delta = choice.get("delta") or choice.get("message") or {}
        if reasoning := delta.get("reasoning_content"):
            self.reasoning.append(str(reasoning))
        for piece in delta.get("tool_calls") or ():
            self._tool(piece)
        text = _text_of(delta.get("content"))
        if refusal := delta.get("refusal"):
            self.refused = True
            text += str(refusal)
        if text:
            self.text.append(text)
        return text

    def _tool(self, piece: dict[str, Any]) -> None:
        function = piece.get("function") or {}
        identity, name, arguments = (
            piece.get("id") or "",
            function.get("name") or "",
            function.get("arguments"),
        )
        slot = self._slot(piece.get("index"), str(identity), bool(name))
        slot.id = slot.id or str(identity)
        slot.name = slot.name or str(name)
        if arguments:
            slot.pieces.append(arguments if isinstance(arguments, str) else json.dumps(arguments))
        if extra := piece.get("extra_content"):
            slot.extra = extra

    def _slot(self, index: object, identity: str, named: bool) -> _Slot:
        """Where a piece belongs: by its index, but some servers give each call the index 0 or none."""
        slot = self.by_index.get(index) if isinstance(index, int) else None
        if not isinstance(index, int) and self.slots and (not named or identity == self.slots[-1].id != ""):
            slot = self.slots[-1]
        if slot is not None and not (named and identity and slot.id and identity != slot.id):
            return slot
        slot = _Slot()
        if len(self.slots) < MOST_CALLS:
            self.slots.append(slot)
        if isinstance(index, int):
            self.by_index[index] = slot
        return slot

    def completed(self, model: str, taken: set[str]) -> Completed:
        """The whole answer. `taken` holds the ids of calls before it."""
        stop: Literal["end", "tools", "length", "refused"]
        if self.refused or self.finish == "content_filter":
            return Completed("".join(self.text), (), "refused", self.usage)
        cut = self.finish == "length"
        calls, extras = [], {}
        for number, slot in enumerate(self.slots):
            last = number == len(self.slots) - 1
            identity = unused_id(slot.id, taken)
            calls.append(wire.finished_call(identity, slot.name, "".join(slot.pieces), cut=cut and last))
            if slot.extra is not None:
                extras[identity] = slot.extra
        stop = "length" if cut else "tools" if calls else "end"
        opaque: dict[str, Any] = {}
        if calls and (self.reasoning or extras):
            opaque[PROTOCOL] = {"model": model, "reasoning_content": "".join(self.reasoning), "calls": extras}
            if not self.reasoning:
                del opaque[PROTOCOL]["reasoning_content"]
        return Completed("".join(self.text), tuple(calls), stop, self.usage, opaque)


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):  # some servers give parts
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return ""


def _usage(usage: dict[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or 0
    return Usage(int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0), int(cached))


class OpenAIModel:
    """A model behind a chat completions server.

    `base_url` ends where `/chat/completions` begins. `max_tokens` bounds an answer (None: the server's own
    bound). `timeout` is the longest silence in seconds, before the first piece and between pieces.
    Raises ValueError for a key that no header can hold.
    """

    def __init__(
        self,
        name: str,
        *,
        api_key: str | None,
        base_url: str | None = None,
        max_tokens: int | None = None,
        timeout: float = 120.0,
    ) -> None:
        self.name = name
        self._key = wire.checked_key(api_key)
        self._base_url = (base_url or DEFAULT_BASE_URL).strip().rstrip("/")
        self._host = wire.host_of(self._base_url)
        self._max_tokens = max_tokens
        self._timeout = timeout
        self._official = self._host == "api.openai.com" or self._host.endswith(".openai.azure.com")
        #: What this server turned out not to know.
        self._without: set[str] = set()
        dialect: Dialect = "gemini" if self._is_gemini() else "openai"
        self._render_tools = ToolRenderer(dialect, render_tool)
        self._wire = wire.Wire(f"{name} at {self._host}", self._make, secrets=(self._key,))

    def _is_gemini(self) -> bool:
        google = self._host.endswith(".googleapis.com")
        return google or self.name.lower().rpartition("/")[2].startswith("gemini")

    def _make(self) -> wire.Client:
        from openai import AsyncOpenAI, DefaultAioHttpClient

        client: Any = AsyncOpenAI(
            api_key=self._key or "none",  # local servers want none, the SDK wants some
            base_url=self._base_url,
            max_retries=0,
            http_client=wire.http_client(DefaultAioHttpClient, self._timeout),
        )
        made: wire.Client = client
        return made

    async def warm(self) -> None:
        """Load the SDK beforehand, so that the first message does not wait for it. Raises ModelError."""
        await self._wire.warm()

    async def close(self) -> None:
        await self._wire.close()

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """See `Model.stream`. A refusal with text ends in `Completed(stop="refused")`, one without raises."""
        assembly = Assembly()
        try:
            async with aclosing(self._chunks(request)) as chunks:
                async for chunk in chunks:
                    try:
                        text = assembly.add(chunk)
                    except (TypeError, AttributeError, KeyError, IndexError, ValueError) as error:
                        raise self._wire.broken(f"a chunk that is none ({type(error).__name__})") from None
                    if text:
                        yield Text(text)
        except ModelError as error:
            # The answer was whole; only the farewell was lost.
            if not (assembly.finish and error.kind == "connection"):
                raise
        if not assembly.finish:
            raise self._wire.broken("the stream ended before the answer did")
        completed = assembly.completed(self.name, call_ids(request.entries))
        if completed.stop == "refused" and not completed.text:
            raise Refused(f"{self.name} at {self._host} refused to answer ({assembly.finish})")
        yield completed

    async def _chunks(self, request: Request) -> AsyncGenerator[dict[str, Any], None]:
        """The answer's chunks, asking once more without an option that the server turns out not to know."""
        while True:  # ends: each turn leaves out one more of four options
            try:
                async with aclosing(self._ask(request)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                return
            except BadRequest as error:
                if not self._learn(error.detail):
                    raise

    def _learn(self, detail: str) -> bool:
        """Whether the error says that an option of ours is unknown; it is left out from then on."""
        if not _UNKNOWN.search(detail):
            return False
        for option in ("stream_options", "prompt_cache_key", "max_completion_tokens", "max_tokens"):
            if option in detail and option in self._options() and option not in self._without:
                self._without.add(option)
                return True
        return False

    def _options(self, key: str = "") -> dict[str, Any]:
        options: dict[str, Any] = {"stream_options": {"include_usage": True}}
        if self._official and "prompt_cache_key" not in self._without:
            # A hash: the session's key names people.
            options["prompt_cache_key"] = hashlib.sha256(key.encode()).hexdigest()[:32]
        if self._max_tokens is not None:
            # OpenAI's newer models refuse the old name, other servers do not know the new one.
            new = self._official != (
                "max_completion_tokens" in self._without or "max_tokens" in self._without
            )
            options["max_completion_tokens" if new else "max_tokens"] = self._max_tokens
        return {
            name: value
            for name, value in options.items()
            if name != "stream_options" or name not in self._without
        }

    async def _ask(self, request: Request) -> AsyncGenerator[dict[str, Any], None]:
        tools = self._render_tools(request.tools)

        def render(pictures: Pictures) -> dict[str, Any]:
            body: dict[str, Any] = {
                "model": self.name,
                "messages": render_messages(
                    request.entries, pictures, system=request.system, model=self.name
                ),
                "stream": True,
                **self._options(request.key),
            }
            if tools:
                body["tools"] = tools
            return body

        body = await wire.build(request, render)
        async with aclosing(self._wire.events("/chat/completions", body, last=_is_last)) as events:
            async for event in events:
                if not _is_last(event):
                    yield self._parse(event)

    def _parse(self, event: ServerEvent) -> dict[str, Any]:
        try:
            chunk = json.loads(event.data)
        except (ValueError, RecursionError):
            raise self._wire.broken("a piece of the stream is no JSON") from None
        if not isinstance(chunk, dict):
            raise self._wire.broken("a piece of the stream is no JSON object")
        if chunk.get("error"):
            raise self._wire.problem(chunk)
        return chunk
