"""Chat completions: OpenAI's protocol, which most other servers speak too, through its official SDK.

Where servers differ (`stream_options`, `max_tokens`, bounds of tools) the differences are met here; what
the protocol's words are is in `chat`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from agent.models.base import BadRequest, Request
from agent.models.chat import Assembly, render_messages, render_short_tool, render_tool
from agent.models.pictures import Pictures
from agent.models.schema import Dialect, ToolRenderer
from agent.models.sse import ServerEvent
from agent.models.streamed import StreamedModel

DEFAULT_BASE_URL = "https://api.openai.com/v1"
#: Tools that OpenAI takes in one request.
MOST_TOOLS = 128
_UNKNOWN = re.compile(
    r"unsupported|unknown|unrecogni[sz]ed|unexpected|extra|not (supported|permitted|allowed)|no such|instead"
    r"|invalid (parameter|argument|field)",
    re.IGNORECASE,
)


class OpenAIModel(StreamedModel):
    """A model behind a chat completions server.

    `base_url` ends where `/chat/completions` begins. `max_tokens` bounds an answer (None: the server's own
    bound).
    """

    path = "/chat/completions"
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
        super().__init__(name, (base_url or DEFAULT_BASE_URL).strip().rstrip("/"), api_key, timeout)
        self._max_tokens = max_tokens
        self._official = self._host == "api.openai.com" or self._host.endswith(".openai.azure.com")
        #: What this server turned out not to know.
        self._without: set[str] = set()
        google = self._host.endswith(".googleapis.com")
        gemini = google or name.lower().rpartition("/")[2].startswith("gemini")
        self._dialect: Dialect = "gemini" if gemini else "openai"
        self._most_tools = MOST_TOOLS if self._official else None
        self._render_tools = ToolRenderer(self._dialect, render_tool, most=self._most_tools)

    def _sdk(self) -> tuple[Any, Any]:
        from openai import AsyncOpenAI, DefaultAioHttpClient

        return AsyncOpenAI, DefaultAioHttpClient

    async def _pieces(self, request: Request) -> AsyncGenerator[dict[str, Any], None]:
        """The answer's chunks, asking once more without an option that the server turns out not to know."""
        while True:  # ends: each turn leaves out one more of five things
            try:
                async with aclosing(super()._pieces(request)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                return
            except BadRequest as error:
                if not self._learn(error.detail):
                    raise

    def _learn(self, detail: str) -> bool:
        """Whether the error names something of ours that this server does not take; it is left out from then
        on. That is no repetition of a failed call: it was refused at once and is asked in other words."""
        if "description" in detail and "too long" in detail and "descriptions" not in self._without:
            self._without.add("descriptions")
            self._render_tools = ToolRenderer(self._dialect, render_short_tool, most=self._most_tools)
            return True
        if not _UNKNOWN.search(detail):
            return False
        for option in ("stream_options", "prompt_cache_key", "max_completion_tokens", "max_tokens"):
            if option in detail and option in self._options() and option not in self._without:
                self._without.add(option)
                return True
        return False

    def _options(self, key: str = "") -> dict[str, Any]:
        options: dict[str, Any] = {}
        if "stream_options" not in self._without:
            options["stream_options"] = {"include_usage": True}
        if self._official and "prompt_cache_key" not in self._without:
            # A hash: the session's key names people.
            options["prompt_cache_key"] = hashlib.sha256(key.encode()).hexdigest()[:32]
        if self._max_tokens is not None:
            # OpenAI's newer models refuse the old name, other servers do not know the new one.
            new = self._official == self._without.isdisjoint({"max_completion_tokens", "max_tokens"})
            options["max_completion_tokens" if new else "max_tokens"] = self._max_tokens
        return options

    def _body(self, request: Request, tools: list[dict[str, Any]], pictures: Pictures) -> dict[str, Any]:
        messages = render_messages(request.entries, pictures, system=request.system, model=self.name)
        body = {"model": self.name, "messages": messages, "stream": True, **self._options(request.key)}
        return {**body, "tools": tools} if tools else body

    def _is_last(self, event: ServerEvent) -> bool:
        return event.data.startswith(b"[DONE]")

    def _parse(self, event: ServerEvent) -> dict[str, Any]:
        return {} if self._is_last(event) else super()._parse(event)
