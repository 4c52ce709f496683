"""Reads the body of a chat completion request by hand: this path is hot, and its errors name the field.

What is done with what the API knows and the bridge does not: settings that only shape the style of an
answer (temperature, max_tokens, stop, seed, ...) and unknown fields are ignored. `tools` are ignored as
well, since a model is free not to call them and the bridge has tools of its own. What would break the caller
if it were ignored is refused: n > 1, a tool choice that demands a call, a response format other than text,
log probabilities, spoken answers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from channels.api.wire import MODEL, Fault, RequestError, invalid
from channels.base import ContextMessage

MAX_IMAGES = 10
MAX_ID = 200
_ROLES: dict[str, Literal["user", "assistant", "system"]] = {
    "user": "user", "assistant": "assistant", "system": "system", "developer": "system",
}  # fmt: skip
#: Results of calls that the caller's own tools made: read past in what came before, refused as the last word.
_TOOL_ROLES = ("tool", "function")


@dataclass(frozen=True, slots=True)
class Image:
    """A picture from a data URL; `data` is still base64."""

    mime: str
    data: str
    param: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    text: str
    images: tuple[Image, ...]
    context: tuple[ContextMessage, ...]
    user: str
    stream: bool
    include_usage: bool


def parse(body: bytes) -> ChatRequest:
    """Raises RequestError (400, or 404 for another model) that names the field."""
    try:
        data = json.loads(body)
    except ValueError as error:  # also bytes that are no UTF-8
        raise invalid(
            f"The body is not JSON ({error}). Send a JSON object with model and messages."
        ) from None
    except RecursionError:
        raise invalid("The body is nested too deeply. Send a JSON object with model and messages.") from None
    if not isinstance(data, dict):
        raise invalid("The body must be a JSON object with model and messages.")
    _check_model(data)
    _check_settings(data)
    stream = _boolean(data, "stream", "stream")
    options = data.get("stream_options") or {}
    if not isinstance(options, dict):
        raise invalid("stream_options must be an object.", "stream_options")
    include_usage = _boolean(options, "include_usage", "stream_options.include_usage")
    if options and not stream:
        raise invalid("stream_options is only allowed when stream is true.", "stream_options")
    user = data.get("user")
    if user is not None:
        user = session_id(user, "user")
    text, images, context = _messages(data.get("messages"))
    return ChatRequest(text, images, context, user or "", stream, include_usage)


def session_id(value: object, name: str) -> str:
    """A name chosen by the caller, used as it is. Raises RequestError."""
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_ID or not value.isprintable():
        raise invalid(f"{name} must be 1 to {MAX_ID} printable characters.", name)
    return value.strip()


def _check_model(data: dict[str, Any]) -> None:
    model = data.get("model")
    if model is None:
        raise invalid(f"You must provide a model; this server has one, {MODEL!r}.", "model")
    if not isinstance(model, str):
        raise invalid("model must be a string.", "model")
    if model != MODEL:
        shown = model if len(model) <= 100 else model[:100] + "…"
        message = f"The model {shown!r} does not exist; this server has one, {MODEL!r}."
        raise RequestError(Fault(404, message, param="model", code="model_not_found"))


def _check_settings(data: dict[str, Any]) -> None:
    n = data.get("n")
    if n is not None and (n != 1 or isinstance(n, bool)):
        raise invalid("n must be 1: one message gets one answer here.", "n", "unsupported_value")
    choice = data.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise invalid(
            "tool_choice must be auto or none: the bridge runs its own tools and never calls the caller's.",
            "tool_choice",
            "unsupported_value",
        )
    form = data.get("response_format")
    if form is not None and not (isinstance(form, dict) and form.get("type") == "text"):
        raise invalid(
            'response_format must be {"type": "text"}: an agent\'s answer cannot be forced into JSON.',
            "response_format",
            "unsupported_value",
        )
    if data.get("logprobs"):
        raise invalid("logprobs are not supported.", "logprobs", "unsupported_value")
    modalities = data.get("modalities")
    if modalities is not None and modalities != ["text"]:
        raise invalid('modalities must be ["text"].', "modalities", "unsupported_value")


def _boolean(data: dict[str, Any], key: str, param: str) -> bool:
    value = data.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise invalid(f"{param} must be true or false.", param)
    return value


def _messages(messages: object) -> tuple[str, tuple[Image, ...], tuple[ContextMessage, ...]]:
    if not isinstance(messages, list) or not messages:
        raise invalid("messages must be a list with at least one message.", "messages")
    last = _last_user(messages)
    context = []
    for i, message in enumerate(messages):
        if i == last or message["role"] in _TOOL_ROLES:
            continue
        text, images = _content(message, f"messages[{i}]")
        if images:
            text = "\n".join([text, *["[image]"] * len(images)]).strip()
        if text:
            name = message.get("name")
            name = name[:MAX_ID] if isinstance(name, str) else ""
            context.append(ContextMessage(_ROLES[message["role"]], text, name))
    text, pictures = _content(messages[last], f"messages[{last}]")
    if not text.strip() and not pictures:
        raise invalid("The last user message is empty.", f"messages[{last}].content")
    if len(pictures) > MAX_IMAGES:
        raise invalid(f"A message may bring at most {MAX_IMAGES} images.", f"messages[{last}].content")
    return text, tuple(pictures), tuple(context)


def _last_user(messages: list[Any]) -> int:
    """Index of the message to answer. Checks the shape of all messages on the way."""
    last = -1
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            raise invalid(f"messages[{i}] must be an object with role and content.", f"messages[{i}]")
        role = message.get("role")
        if not isinstance(role, str) or (role not in _ROLES and role not in _TOOL_ROLES):
            known = ", ".join([*_ROLES, *_TOOL_ROLES])
            raise invalid(f"messages[{i}].role must be one of: {known}.", f"messages[{i}].role")
        if role == "user":
            last = i
    if last < 0:
        raise invalid("messages must contain a message with the role user.", "messages")
    for i in range(last + 1, len(messages)):
        if _ROLES.get(messages[i]["role"]) != "system":
            raise invalid(
                "The last message must be the user's: the bridge can neither continue an assistant's words "
                "nor take results of the caller's tools.",
                f"messages[{i}].role",
            )
    return last


def _content(message: dict[str, Any], where: str) -> tuple[str, list[Image]]:
    content = message.get("content")
    if isinstance(content, str):
        return content, []
    if content is None and message["role"] == "assistant":  # a message that only held tool calls
        return "", []
    if not isinstance(content, list):
        raise invalid(f"{where}.content must be a string or a list of parts.", f"{where}.content")
    texts: list[str] = []
    images: list[Image] = []
    for k, part in enumerate(content):
        param = f"{where}.content[{k}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "refusal") and isinstance(part.get(kind), str):
            texts.append(part[kind])
        elif kind == "image_url":
            images.append(_image(part.get("image_url"), f"{param}.image_url"))
        elif kind in ("text", "refusal"):
            raise invalid(f"{param}.{kind} must be a string.", f"{param}.{kind}")
        else:
            raise invalid(f"{param}.type must be text or image_url.", f"{param}.type")
    return "\n".join(texts), images


def _image(value: object, param: str) -> Image:
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str):
        raise invalid(f"{param}.url must be a string.", f"{param}.url")
    if not url.startswith("data:"):
        raise invalid(
            "Pictures are only taken as data URLs (data:image/png;base64,...): the bridge does not fetch "
            "addresses on a caller's behalf.",
            f"{param}.url",
            "unsupported_value",
        )
    head, comma, data = url.partition(",")
    mime, *parameters = head[len("data:") :].lower().split(";")
    if not comma or not mime.startswith("image/") or "base64" not in parameters:
        raise invalid(f"{param}.url must look like data:image/png;base64,...", f"{param}.url")
    return Image(mime, data, f"{param}.url")
