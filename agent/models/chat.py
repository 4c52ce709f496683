"""Chat completions as pure functions: a history to messages, chunks to an answer.

Protocol: https://platform.openai.com/docs/api-reference/chat.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agent.history import Entry
from agent.models.arguments import finished_call
from agent.models.base import Completed, ToolSpec, Usage
from agent.models.pictures import Picture, Pictures, show
from agent.models.transcript import NO_TEXT, Answer, Call, Said, turns, unused_id

#: OpenAI refuses longer tool call ids.
LONGEST_ID = 40
#: Tool calls of one answer that are read; more are a model gone astray.
MOST_CALLS = 128
#: Characters of a tool's description where a server bounds it.
LONGEST_DESCRIPTION = 1024
PROTOCOL = "openai"
#: The built-in tools that bring what others wrote. MCP tools do too: their names hold two underlines.
_OUTSIDE = frozenset({"read", "search", "ls", "bash", "web_fetch", "task_status"})
_FRAME = "tool_data"
_FRAME_INSIDE = re.compile(r"([<\uff1c])(?=[\s/\uff0f\\]{0,5}tool[\s_-]?data)", re.IGNORECASE)


def render_messages(
    entries: Sequence[Entry], pictures: Pictures, *, system: str = "", model: str = ""
) -> list[dict[str, Any]]:
    """The messages for a history, valid by the protocol's rules whatever the entries are.

    `model` gives an answer's reasoning back to the model that it came from.
    """
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    shown: list[dict[str, Any]] = []  # pictures of results, which only a user message can hold
    for turn in turns(entries, longest_id=LONGEST_ID):
        if isinstance(turn, Said):
            messages.append({"role": "user", "content": _content(turn, pictures, shown)})
            shown = []
            continue
        if shown:
            messages.append({"role": "user", "content": shown})
            shown = []
        messages.append(_assistant(turn, model))
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


def framed(call: Call) -> str:
    """The result's text; what others wrote stands in a frame that marks it as data.

    Nothing in the text can end the frame. The bridge's own words and the files of skills, which are there to
    be followed, have none.
    """
    path = call.arguments.get("path")
    of_skill = isinstance(path, str) and path.startswith("/skills/")
    if "__" not in call.name and (call.name not in _OUTSIDE or of_skill):
        return call.result.text
    return f"<{_FRAME}>\n{_FRAME_INSIDE.sub(r'&lt;', call.result.text)}\n</{_FRAME}>"


def _result(call: Call) -> str:
    text = framed(call)
    # The protocol has no mark for a failed call.
    said = call.result.text.lower().startswith("error")
    return f"Error: {text}" if call.result.is_error and not said else text


def _result_pictures(call: Call, pictures: Pictures) -> list[dict[str, Any]]:
    if not call.result.images:
        return []
    label = {"type": "text", "text": f"[Pictures from the result of {call.name}:]"}
    return [label, *(_part(show(ref, pictures)) for ref in call.result.images)]


def _assistant(turn: Answer, model: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    kept = turn.opaque.get(PROTOCOL)
    kept = kept if isinstance(kept, dict) and kept.get("model") == model else {}
    if turn.calls:
        message["tool_calls"] = [_tool_call(call, kept.get("calls")) for call in turn.calls]
        # Reasoning models want it back while their calls go on. It is given back later, too: those that do
        # not want it then pass it over, and without it the cached beginning of the request would end here.
        if isinstance(kept.get("reasoning_content"), str):
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


def render_short_tool(spec: ToolSpec, parameters: dict[str, Any]) -> dict[str, Any]:
    """The same for servers that bound a tool's description."""
    about = spec.description
    if len(about) > LONGEST_DESCRIPTION:
        about = about[: LONGEST_DESCRIPTION - 1] + "…"
    return render_tool(ToolSpec(spec.name, about, spec.parameters), parameters)


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
        identity, name = str(piece.get("id") or ""), str(function.get("name") or "")
        slot = self._slot(piece.get("index"), identity, bool(name))
        slot.id = slot.id or identity
        slot.name = slot.name or name
        if arguments := function.get("arguments"):
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
            calls.append(finished_call(identity, slot.name, "".join(slot.pieces), cut=cut and last))
            if slot.extra is not None:
                extras[identity] = slot.extra
        stop = "length" if cut else "tools" if calls else "end"
        opaque: dict[str, Any] = {}
        if calls and (self.reasoning or extras):
            thought = {"reasoning_content": "".join(self.reasoning)} if self.reasoning else {}
            opaque[PROTOCOL] = {"model": model, **thought, "calls": extras}
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
