"""The arguments of a tool call, read from the text that a model wrote."""

from __future__ import annotations

import json
from typing import Any

from agent.history import ToolCall


def _loads(text: str) -> Any:
    # Not strict: models write raw line ends inside strings. NaN and Infinity are no JSON for providers.
    return json.loads(text, strict=False, parse_constant=lambda _: None)


def parse_arguments(text: str, *, cut: bool) -> tuple[dict[str, Any], str]:
    """A call's arguments and what is wrong with them ("" when nothing is).

    `cut` says that the output limit ended the answer inside this call, so empty text is no "no arguments".
    """
    text = text.strip()
    if not text:
        return {}, "the call was cut off before its arguments" if cut else ""
    try:
        value = _loads(text)
        if isinstance(value, str):  # some models encode twice
            value = _loads(value)
    except RecursionError:
        return {}, "the arguments are nested too deeply"
    except ValueError as error:
        what = f"no complete JSON ({len(text)} characters: {error})"
        return {}, f"the arguments are {what}; the call was cut off"
    if value is None:
        return {}, ""
    if not isinstance(value, dict):
        return {}, f"the arguments are a JSON {type(value).__name__}, not an object"
    return value, ""


def finished_call(identity: str, name: str, text: str, *, cut: bool) -> ToolCall:
    arguments, fault = parse_arguments(text, cut=cut)
    if not name:
        fault = fault or "the call names no tool"
    return ToolCall(identity, name, arguments, fault)
