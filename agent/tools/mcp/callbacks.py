"""The client's side of what a server asks and tells: questions, samples, roots, logging.

The same callbacks serve both protocol eras: requests of the server itself until 2025-11-25, inputs that a
result asks for from 2026-07-28 on. Imports the SDK; load it lazily.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any
from urllib.parse import urlsplit

import mcp_types as types
from mcp.client.session import ClientRequestContext
from pydantic import ValidationError

from agent.tools.arguments import ArgumentChecker
from agent.tools.base import Answer, Question, Sample, ToolFailure
from agent.tools.mcp.names import file_stem
from agent.tools.mcp.primitives import cut
from agent.tools.mcp.requests import Calls

log = logging.getLogger("causeway.mcp")

_LONGEST_QUESTION = 4_000
_LARGEST_SCHEMA = 32 * 1024  # characters of JSON
_MOST_PAGES = 3  # to open before one call
_LONGEST_LINE = 500
_LINES = (60, 60.0)  # at most so many log lines in so many seconds
_LEVELS = {"notice": logging.INFO, "alert": logging.CRITICAL, "emergency": logging.CRITICAL}


class Callbacks:
    """Answers one server. Nothing here raises but CancelledError."""

    def __init__(self, calls: Calls, *, local: bool, sampling: bool) -> None:
        self._calls = calls
        self._local = local
        self._sampling = sampling
        self._log = logging.getLogger(f"causeway.mcp.{file_stem(calls.server)}")
        self._window = 0.0
        self._lines = 0

    def options(self) -> dict[str, Any]:
        """Arguments of the SDK's client; what is None is not announced as a capability."""
        return {
            "elicitation_callback": self.elicit,
            "logging_callback": self.note,
            "log_level": "info",
            "sampling_callback": self.sample if self._sampling else None,
            # A folder of this host is of no use elsewhere, and its path nobody's business.
            "list_roots_callback": self.roots if self._local else None,
        }

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Put a server's question to the person. A form's answer has the schema's defaults filled in."""
        if isinstance(params, types.ElicitRequestURLParams):
            if not _is_page(params.url):
                return _invalid("the url is no http:// or https:// address")
            return types.ElicitResult(action=(await self._open(params)).action)
        schema = params.requested_schema
        if fault := _schema_fault(schema):
            return _invalid(fault)
        question = Question(self._calls.server, params.message[:_LONGEST_QUESTION], schema)
        answer = await self._calls.ask(question)
        if answer.action != "accept":
            return types.ElicitResult(action=answer.action)
        known = schema.get("properties") or {}
        values = {key: _picked(known[key], value) for key, value in answer.values.items() if key in known}
        try:
            # In a thread: the checker imports its library when it is first used.
            content = await asyncio.to_thread(ArgumentChecker().check, "the question", schema, values)
        except ToolFailure:
            log.warning("MCP server %s: an answer does not fit its question's schema", self._calls.server)
            return types.ElicitResult(action="cancel")
        return types.ElicitResult(action="accept", content=content)

    async def open_pages(self, data: object) -> bool:
        """Have the person open the pages that a refused call needs first; whether all were accepted."""
        try:
            wanted = types.ElicitationRequiredErrorData.model_validate(data).elicitations
        except ValidationError:
            return False
        if not 0 < len(wanted) <= _MOST_PAGES or not all(_is_page(page.url) for page in wanted):
            return False
        for page in wanted:
            if (await self._open(page)).action != "accept":
                return False
        return True

    async def _open(self, page: types.ElicitRequestURLParams) -> Answer:
        text = page.message[:_LONGEST_QUESTION]
        return await self._calls.ask(Question(self._calls.server, text, url=page.url))

    async def sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        """Text from the configured model, under the desk's budget."""
        messages = tuple((message.role, _said(message)) for message in params.messages[-100:])
        system, most = cut(params.system_prompt or ""), max(1, params.max_tokens)
        try:
            said = await self._calls.sample(Sample(self._calls.server, messages, system, most))
        except ToolFailure as failure:
            return types.ErrorData(code=types.INTERNAL_ERROR, message=str(failure)[:500])
        content = types.TextContent(type="text", text=said)
        return types.CreateMessageResult(
            role="assistant", content=content, model="causeway", stop_reason="endTurn"
        )

    async def roots(self, context: ClientRequestContext) -> types.ListRootsResult:
        """The folder of the session whose call is under way, or none."""
        folder = self._calls.folder()
        if folder is None:
            return types.ListRootsResult(roots=[])
        root = {"uri": folder.absolute().as_uri(), "name": "session"}
        return types.ListRootsResult.model_validate({"roots": [root]})

    async def note(self, params: types.LoggingMessageNotificationParams) -> None:
        """One log line, cut; a server that tells too many is cut short, and it is said once a minute."""
        level = _LEVELS.get(params.level) or logging.getLevelNamesMapping()[params.level.upper()]
        if not self._log.isEnabledFor(level):
            return
        most, seconds = _LINES
        now = asyncio.get_running_loop().time()
        if now - self._window >= seconds:
            self._window, self._lines = now, 0
        self._lines += 1
        if self._lines > most:
            if self._lines == most + 1:
                text = "more than %d lines in %g s; the others of this time are left out"
                self._log.warning(text, most, seconds)
            return
        data = params.data
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, default=str)
        self._log.log(level, "%s", " ".join(text[: 4 * _LONGEST_LINE].split())[:_LONGEST_LINE])


def _invalid(why: str) -> types.ErrorData:
    return types.ErrorData(code=types.INVALID_PARAMS, message=f"The question cannot be shown: {why}.")


def _is_page(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and len(url) <= 4_000


def _schema_fault(schema: dict[str, Any]) -> str:
    """Why a form cannot be shown in a chat, if so."""
    properties = schema.get("properties", {})
    if schema.get("type", "object") != "object" or not isinstance(properties, dict):
        return "its schema describes no object"
    if not all(isinstance(part, dict) for part in properties.values()):
        return "its schema has a field that is no schema"
    if any(part.get("type") == "object" for part in properties.values()):
        return "its schema has an object inside; a form is flat"
    return "its schema is too large" if len(json.dumps(schema)) > _LARGEST_SCHEMA else ""


def _picked(schema: dict[str, Any], value: Any) -> Any:
    """A person writes several choices as one text, with commas."""
    if schema.get("type") == "array" and isinstance(value, str) and not value.lstrip().startswith("["):
        return [word for part in value.replace("\uff0c", ",").split(",") if (word := part.strip())]
    return value


def _said(message: types.SamplingMessage) -> str:
    parts = message.content if isinstance(message.content, list) else [message.content]
    texts = (
        part.text if isinstance(part, types.TextContent) else f"[a part of type {part.type} was left out]"
        for part in parts
    )
    return cut("\n".join(texts))
