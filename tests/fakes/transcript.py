"""A gate in front of a mock model server that refuses what the real providers refuse.

Mock servers take any history. The real ones answer 400 for a call without its result, a result without its
call, a wrong order, empty content and more, and a chat whose history has such a fault is dead for good. The
rules are pure functions (`check_openai`, `check_anthropic`); `Gate` puts them in front of a server, records
every body, and lets answers through unbuffered.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ID = re.compile(r"[a-zA-Z0-9_-]+")
IMAGES = {"image/png", "image/jpeg", "image/gif", "image/webp"}
_UNANSWERED = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
    "'tool_call_id'. The following tool_call_ids did not have response messages: "
)
HOP_BY_HOP = {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "accept-encoding"}


def check_openai(body: Any) -> list[str]:
    """What OpenAI would refuse in a chat completions request; empty when nothing."""
    if not isinstance(body, dict):
        return ["We could not parse the JSON body of your request."]
    faults: list[str] = []
    if not isinstance(body.get("model"), str) or not body["model"]:
        faults.append("you must provide a model parameter")
    if "stream_options" in body and body.get("stream") is not True:
        faults.append("The 'stream_options' parameter is only allowed when 'stream' is enabled.")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return [*faults, "Invalid 'messages': empty array. Expected an array with minimum length 1"]
    faults += _openai_messages(messages)
    faults += _openai_tools(body)
    return faults


def _openai_messages(messages: list[Any]) -> list[str]:
    faults: list[str] = []
    open_ids: list[str] = []
    for n, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            identity = message.get("tool_call_id")
            if identity in open_ids:
                open_ids.remove(identity)
            else:
                faults.append(
                    f"Invalid parameter: messages[{n}] with role 'tool' must be a response to a preceding "
                    "message with 'tool_calls'."
                )
            faults += _openai_content(n, message.get("content"), {"text"})
            continue
        if open_ids:
            faults.append(_UNANSWERED + ", ".join(open_ids))
            open_ids = []
        if role == "assistant":
            faults += _openai_assistant(n, message)
            open_ids = [str(call.get("id")) for call in message.get("tool_calls") or ()]
        elif role == "user":
            faults += _openai_content(n, message.get("content"), {"text", "image_url"})
        elif role in ("system", "developer"):
            faults += _openai_content(n, message.get("content"), {"text"})
        else:
            faults.append(f"Invalid value: '{role}' at messages[{n}].role")
    if open_ids:
        faults.append(_UNANSWERED + ", ".join(open_ids))
    if all(message.get("role") in ("system", "developer") for message in messages):
        faults.append("messages hold no message of a user")
    return faults


def _openai_content(n: int, content: Any, kinds: set[str]) -> list[str]:
    if isinstance(content, str):
        return [] if content.strip() else [f"Invalid 'messages[{n}].content': empty string"]
    if not isinstance(content, list) or not content:
        return [f"Invalid value for 'content': expected a string or a non-empty array at messages[{n}]"]
    faults = []
    for part in content:
        kind = part.get("type")
        if kind not in kinds:
            faults.append(f"Invalid value: '{kind}' at messages[{n}].content")
        elif kind == "text" and not str(part.get("text", "")).strip():
            faults.append(f"Invalid 'messages[{n}].content': empty text part")
        elif kind == "image_url":
            url = part.get("image_url", {}).get("url", "")
            if not re.match(r"https?://|data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+=*$", url):
                faults.append(f"Invalid 'messages[{n}].content': no valid image url")
    return faults


def _openai_assistant(n: int, message: dict[str, Any]) -> list[str]:
    faults = []
    calls = message.get("tool_calls")
    content = message.get("content")
    if calls is None:
        if not (isinstance(content, str) and content.strip()) and not (isinstance(content, list) and content):
            faults.append(f"messages[{n}]: content is required when there are no tool_calls")
        return faults
    if not isinstance(calls, list) or not calls:
        return [f"[] is too short - 'messages.{n}.tool_calls'"]
    ids = [call.get("id") for call in calls]
    if len(set(ids)) != len(ids):
        faults.append(f"messages[{n}].tool_calls: duplicate ids")
    for call in calls:
        identity, function = call.get("id"), call.get("function", {})
        if not isinstance(identity, str) or not 1 <= len(identity) <= 40:
            faults.append(
                f"Invalid 'messages[{n}].tool_calls[].id': expected a string with a length of 1 to 40"
            )
        if call.get("type") != "function":
            faults.append(f"Missing required parameter: 'messages[{n}].tool_calls[].type'")
        if not NAME.fullmatch(str(function.get("name", ""))):
            faults.append(
                f"Invalid 'messages[{n}].tool_calls[].function.name': string does not match pattern. "
                "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
            )
        try:
            valid = isinstance(json.loads(function.get("arguments")), dict)
        except (ValueError, TypeError):
            valid = False
        if not valid:
            faults.append(f"messages[{n}].tool_calls[].function.arguments: must be the text of a JSON object")
    return faults


def _openai_tools(body: dict[str, Any]) -> list[str]:
    tools = body.get("tools")
    if tools is None:
        return ["'tool_choice' is only allowed when 'tools' are specified."] if "tool_choice" in body else []
    if not isinstance(tools, list) or not tools:
        return ["[] is too short - 'tools'"]
    faults = [] if len(tools) <= 128 else ["Invalid 'tools': array too long. Expected at most 128"]
    names = [str(tool.get("function", {}).get("name", "")) for tool in tools]
    if len(set(names)) != len(names):
        faults.append("tools: Tool names must be unique.")
    for n, tool in enumerate(tools):
        function = tool.get("function", {})
        if tool.get("type") != "function":
            faults.append(f"Missing required parameter: 'tools[{n}].type'")
        if not NAME.fullmatch(names[n]):
            faults.append(
                f"Invalid 'tools[{n}].function.name': string does not match pattern. "
                "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
            )
        if "parameters" in function:
            where = f"Invalid schema for function '{names[n]}'"
            faults += [f"{where}: {fault}" for fault in _schema(function["parameters"], openai=True)]
    return faults


def _schema(schema: Any, *, openai: bool) -> list[str]:
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return ["schema must be a JSON Schema of 'type: \"object\"'"]
    faults = []
    if openai and "properties" not in schema:
        faults.append("In context=(), object schema missing properties")
    faults += [
        f"schema must not have '{key}' at the top level"
        for key in ("oneOf", "anyOf", "allOf", *(("enum", "not") if openai else ()))
        if key in schema
    ]
    if openai:
        faults += _arrays(schema)
    return faults


def _arrays(node: Any) -> list[str]:
    if isinstance(node, list):
        return [fault for part in node for fault in _arrays(part)]
    if not isinstance(node, dict):
        return []
    kind = node.get("type")
    missing = (kind == "array" or (isinstance(kind, list) and "array" in kind)) and "items" not in node
    faults = ["array schema missing items"] if missing else []
    return faults + [fault for part in node.values() for fault in _arrays(part)]


def check_anthropic(body: Any) -> list[str]:
    """What Anthropic would refuse in a messages request; empty when nothing."""
    if not isinstance(body, dict):
        return ["The request body is not valid JSON"]
    faults: list[str] = []
    if not isinstance(body.get("model"), str) or not body["model"]:
        faults.append("model: Field required")
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        faults.append("max_tokens: Field required")
    faults += _anthropic_system(body.get("system"))
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return [*faults, "messages: at least one message is required"]
    faults += _anthropic_messages(messages)
    faults += _anthropic_tools(body, messages)
    marks = json.dumps(body).count('"cache_control"')
    if marks > 4:
        faults.append(f"A maximum of 4 blocks with cache_control may be provided. Found {marks}.")
    return faults


def _anthropic_system(system: Any) -> list[str]:
    if system is None or (isinstance(system, str) and system):
        return []
    if not isinstance(system, list) or not all(
        block.get("type") == "text" and str(block.get("text", "")).strip() for block in system
    ):
        return ["system: text content blocks must be non-empty"]
    return []


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())


def _anthropic_messages(messages: list[Any]) -> list[str]:
    faults: list[str] = []
    if messages[0].get("role") != "user":
        faults.append('messages: first message must use the "user" role')
    if messages[-1].get("role") == "assistant":
        faults.append(
            "This model does not support assistant message prefill: "
            "the conversation must end with a user message."
        )
    seen: set[str] = set()
    open_ids: list[str] = []
    for n, message in enumerate(messages):
        blocks = _blocks(message)
        if message.get("role") not in ("user", "assistant"):
            faults.append(f"messages.{n}.role: Input should be 'user' or 'assistant'")
        if not blocks:
            faults.append(f"messages.{n}: all messages must have non-empty content")
        faults += [fault for block in blocks for fault in _anthropic_block(n, message, block)]
        answered = [str(block.get("tool_use_id")) for block in blocks if block.get("type") == "tool_result"]
        missing = [identity for identity in open_ids if identity not in answered]
        if missing:
            faults.append(
                f"messages.{n}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block "
                "in the next message."
            )
        for identity in answered:
            if identity not in open_ids:
                faults.append(
                    f"messages.{n}: unexpected `tool_use_id` found in `tool_result` blocks: {identity}."
                )
        if len(set(answered)) != len(answered):
            faults.append(f"messages.{n}: each tool_use must have a single result")
        kinds = [block.get("type") == "tool_result" for block in blocks]
        if True in kinds and kinds != sorted(kinds, reverse=True):
            faults.append(f"messages.{n}: tool_result blocks must come first in the content")
        uses = [str(block.get("id")) for block in blocks if block.get("type") == "tool_use"]
        for identity in uses:
            if identity in seen:
                faults.append(f"messages.{n}: `tool_use` ids must be unique")
            seen.add(identity)
        open_ids = uses
    if open_ids:
        faults.append(
            "messages: `tool_use` ids were found without `tool_result` blocks immediately after: "
            + ", ".join(open_ids)
        )
    return faults


def _anthropic_block(n: int, message: dict[str, Any], block: dict[str, Any]) -> list[str]:
    role, where = message.get("role"), f"messages.{n}.content"
    match block.get("type"):
        case "text":
            return (
                []
                if str(block.get("text", "")).strip()
                else [f"{where}: text content blocks must be non-empty"]
            )
        case "image":
            return _anthropic_image(where, block)
        case "tool_use" if role == "assistant":
            faults = []
            if not ID.fullmatch(str(block.get("id", ""))):
                faults.append(f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
            if not NAME.fullmatch(str(block.get("name", ""))):
                faults.append(f"{where}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
            if not isinstance(block.get("input"), dict):
                faults.append(f"{where}.tool_use.input: Input should be a valid dictionary")
            return faults
        case "tool_result" if role == "user":
            content = block.get("content", "")
            parts = content if isinstance(content, list) else []
            if block.get("is_error") and any(part.get("type") != "text" for part in parts):
                return [f'{where}.tool_result: all content must be type "text" if is_error is true']
            return [fault for part in parts for fault in _anthropic_block(n, message, part)]
        case "thinking" if role == "assistant":
            faults = [] if block.get("signature") else [f"{where}.thinking.signature: Field required"]
            return faults + (
                [f"{where}.thinking.cache_control: not allowed"] if "cache_control" in block else []
            )
        case "redacted_thinking" if role == "assistant":
            return [] if block.get("data") else [f"{where}.redacted_thinking.data: Field required"]
        case kind:
            return [f"{where}: `{kind}` blocks are not allowed in {role} messages"]


def _anthropic_image(where: str, block: dict[str, Any]) -> list[str]:
    source = block.get("source", {})
    if source.get("type") == "base64" and source.get("media_type") in IMAGES and source.get("data"):
        return []
    return [f"{where}.image.source.base64: Could not process image"]


def _anthropic_tools(body: dict[str, Any], messages: list[Any]) -> list[str]:
    tools = body.get("tools") or []
    used = any(
        block.get("type") in ("tool_use", "tool_result") for message in messages for block in _blocks(message)
    )
    if not tools:
        return ["Requests which include `tool_use` or `tool_result` blocks must define tools"] if used else []
    faults = []
    names = [str(tool.get("name", "")) for tool in tools]
    if len(set(names)) != len(names):
        faults.append("tools: Tool names must be unique.")
    for n, tool in enumerate(tools):
        if not NAME.fullmatch(names[n]):
            faults.append(f"tools.{n}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
        faults += [
            f"tools.{n}.custom.input_schema: {fault}"
            for fault in _schema(tool.get("input_schema"), openai=False)
        ]
    return faults


@dataclass(slots=True)
class Passed:
    """One request that came to the gate: its protocol, its body, why it was refused (empty: it was not)."""

    protocol: str
    body: Any
    refusals: list[str]
    headers: dict[str, str]


@dataclass(slots=True)
class Gate:
    """The reverse proxy. `openai` and `anthropic` are the bases of the server behind it (ending where
    `/chat/completions` and `/v1/messages` begin); `openai_url` and `anthropic_url` are the gate's own."""

    openai: str = ""
    anthropic: str = ""
    passed: list[Passed] = field(default_factory=list)
    root: str = ""

    @property
    def openai_url(self) -> str:
        return f"{self.root}/v1"

    @property
    def anthropic_url(self) -> str:
        return self.root

    @property
    def bodies(self) -> list[Any]:
        return [one.body for one in self.passed]

    @property
    def refusals(self) -> list[str]:
        return [refusal for one in self.passed for refusal in one.refusals]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Gate]:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/messages", self._messages)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.root = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        refusals = self._record("openai", request, raw, check_openai)
        if not refusals:
            return await self._forward(request, raw, f"{self.openai}/chat/completions")
        error = {"message": refusals[0], "type": "invalid_request_error", "param": "messages", "code": None}
        return web.json_response({"error": error}, status=400)

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        refusals = self._record("anthropic", request, raw, check_anthropic)
        if not refusals:
            return await self._forward(request, raw, f"{self.anthropic}/v1/messages")
        error = {"type": "invalid_request_error", "message": refusals[0]}
        return web.json_response({"type": "error", "error": error, "request_id": "req_1"}, status=400)

    def _record(self, protocol: str, request: web.Request, raw: bytes, check: Any) -> list[str]:
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        refusals: list[str] = check(body)
        self.passed.append(Passed(protocol, body, refusals, dict(request.headers)))
        return refusals

    async def _forward(self, request: web.Request, raw: bytes, url: str) -> web.StreamResponse:
        headers = {key: value for key, value in request.headers.items() if key.lower() not in HOP_BY_HOP}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=60)
        response = web.StreamResponse()
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session,
                session.post(url, data=raw, headers=headers, allow_redirects=False) as answer,
            ):
                kept = {key: value for key, value in answer.headers.items() if key.lower() not in HOP_BY_HOP}
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
        except (TimeoutError, aiohttp.ClientError, ConnectionError):
            # What broke behind the gate breaks in front of it.
            if request.transport is not None:
                request.transport.abort()
        return response
