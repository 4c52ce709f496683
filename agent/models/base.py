"""The contract of a model: one stream of deltas an answer, and a small tree of errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from agent.events import Usage as Usage
from agent.history import Entry, ImageRef, ToolCall


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it. `parameters` is a JSON Schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Completed:
    """The answer is whole; always the last item of a stream that did not raise.

    `stop`: "end", "tools" (calls are to be run), "length" (the output limit cut it), "refused".
    A call whose argument text is no JSON object has `fault` set and `arguments` {}.
    """

    text: str
    calls: tuple[ToolCall, ...]
    stop: Literal["end", "tools", "length", "refused"]
    usage: Usage = Usage()
    opaque: dict[str, Any] = field(default_factory=dict)


Delta: TypeAlias = Text | Completed
#: Reads a picture's bytes; runs in a thread. Raises OSError.
LoadImage: TypeAlias = Callable[[ImageRef], bytes]


@dataclass(frozen=True, slots=True)
class Request:
    """One model call. `entries` may hold kinds that models do not see (`ToolBegun`, `Ended`): they are
    skipped; neighbouring `User` entries become one message. `key` names the session, for providers that
    cache by it."""

    system: str
    entries: Sequence[Entry]
    tools: Sequence[ToolSpec]
    load_image: LoadImage
    key: str = ""


class Model(Protocol):
    @property
    def name(self) -> str: ...

    def stream(self, request: Request) -> AsyncIterator[Delta]:
        """Ask for one answer. Yields `Text` pieces as they arrive, then one `Completed`. Raises ModelError.

        Closing the iterator or cancelling its task closes the connection at once. No retries inside: the
        agent decides about those.
        """
        ...

    async def warm(self) -> None:
        """Import and prepare what the first call needs, off the event loop. Raises ModelError."""
        ...

    async def close(self) -> None: ...


class ModelError(Exception):
    """A model call failed. `detail` is for the admin's log; `retryable` says whether trying again may help.

    ModelError
     ├─ RateLimited    `retry_after` seconds when the provider said so
     ├─ Overloaded     the provider is busy (529, 5xx); may carry `retry_after`
     ├─ Connection     refused, reset, timed out, or the stream broke before its end
     ├─ ContextTooLong the request does not fit
     ├─ Unauthorised   the key is missing, wrong, or not allowed (401, 403)
     ├─ Refused        the provider will not answer this content
     └─ BadRequest     anything else that will fail the same way again
    """

    kind: Literal[
        "rate_limited", "overloaded", "connection", "context", "unauthorised", "refused", "bad_request"
    ] = "bad_request"
    retryable = False

    def __init__(self, detail: str, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after = retry_after


class RateLimited(ModelError):
    kind = "rate_limited"
    retryable = True


class Overloaded(ModelError):
    kind = "overloaded"
    retryable = True


class Connection(ModelError):
    kind = "connection"
    retryable = True


class ContextTooLong(ModelError):
    kind = "context"


class Unauthorised(ModelError):
    kind = "unauthorised"


class Refused(ModelError):
    kind = "refused"


class BadRequest(ModelError):
    kind = "bad_request"
