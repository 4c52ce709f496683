"""What both protocols do alike with an answer that streams in pieces."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

from agent.models.base import Completed, Delta, ModelError, Refused, Request, Text
from agent.models.pictures import Pictures
from agent.models.schema import ToolRenderer
from agent.models.sse import ServerEvent
from agent.models.transcript import call_ids
from agent.models.wire import Wire, build, checked_key, http_client


class Assembly(Protocol):
    """An answer that is being put together. `finish` is the provider's reason once it is whole."""

    finish: str

    def add(self, piece: dict[str, Any], /) -> str:
        """Take a piece in; returns the text that it brings."""
        ...

    def completed(self, model: str, taken: set[str], /) -> Completed: ...


class StreamedModel(ABC):
    """A model behind a server. Subclasses know the protocol's words, and the `path` of its requests.

    `timeout` is the longest silence in seconds, before the first piece and between pieces. Raises ValueError
    for a key that no header can hold.
    """

    path: str
    _assembly: type[Assembly]
    _render_tools: ToolRenderer

    def __init__(self, name: str, base_url: str, api_key: str | None, timeout: float) -> None:
        self.name = name
        self._base_url = base_url
        self._host = (urlsplit(base_url).hostname or "").lower()
        self._key = checked_key(api_key)
        self._timeout = timeout
        self._wire = Wire(f"{name} at {self._host}", self._make, secrets=(self._key,))

    def _make(self) -> Any:
        """The SDK's client. Imports the SDK; blocks."""
        kind, transport = self._sdk()
        return kind(
            api_key=self._key or "none",  # local servers want none, the SDKs want some
            base_url=self._base_url,
            max_retries=0,
            http_client=http_client(transport, self._timeout),
        )

    @abstractmethod
    def _sdk(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The SDK's client and its aiohttp transport."""

    async def warm(self) -> None:
        """Load the SDK beforehand, so that the first message does not wait for it. Raises ModelError."""
        await self._wire.warm()

    async def close(self) -> None:
        await self._wire.close()

    @abstractmethod
    def _body(self, request: Request, tools: list[dict[str, Any]], pictures: Pictures) -> dict[str, Any]:
        """The request in the protocol's words."""

    @abstractmethod
    def _is_last(self, event: ServerEvent) -> bool: ...

    async def _pieces(self, request: Request) -> AsyncGenerator[dict[str, Any], None]:
        """The answer's pieces as they come. Raises ModelError."""
        tools = self._render_tools(request.tools)
        body = await build(request, partial(self._body, request, tools))
        async with aclosing(self._wire.events(self.path, body, last=self._is_last)) as events:
            async for event in events:
                if piece := self._parse(event):
                    yield piece

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """See `Model.stream`. A refusal with text ends in `Completed(stop="refused")`, one without raises."""
        assembly = self._assembly()
        try:
            async with aclosing(self._pieces(request)) as pieces:
                async for piece in pieces:
                    try:
                        text = assembly.add(piece)
                    except (TypeError, AttributeError, KeyError, IndexError, ValueError) as error:
                        raise self._wire.broken(f"a piece that is none ({type(error).__name__})") from None
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

    def _parse(self, event: ServerEvent) -> dict[str, Any]:
        """An event's content. Raises ModelError for what is no JSON object, and for an error in it."""
        try:
            content = json.loads(event.data)
        except (ValueError, RecursionError):
            raise self._wire.broken("a piece of the stream is no JSON") from None
        if not isinstance(content, dict):
            raise self._wire.broken("a piece of the stream is no JSON object")
        if content.get("error") or event.name == "error" or content.get("type") == "error":
            raise self._wire.problem(content)
        return content
