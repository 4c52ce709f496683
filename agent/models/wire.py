"""The connection to a provider, shared by both protocols.

The vendors' SDKs make the requests (addresses, keys, versions, proxies, their own headers, typed errors).
Two things are ours, since together they cost five times the rest: the request's body is built as bytes,
and the stream is read as plain JSON objects. Measured for one call with 12 tools and an answer of 20
pieces, CPU: openai 5.8 ms through `chat.completions.create` and httpx2, 1.3 ms this way; anthropic 2.5 and
0.9 ms. The SDKs walk the whole history on the event loop before they send it, so long chats gain most.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from agent.history import Assistant, Entry, ToolOutput, User
from agent.models import failures, pictures
from agent.models.base import BadRequest, Connection, ModelError, Request, Unauthorised
from agent.models.sse import LARGEST_EVENT, Decoder, ServerEvent, TooLarge

if TYPE_CHECKING:
    import httpx2

log = logging.getLogger("causeway.models")

#: Seconds to wait for a connection to be made.
CONNECT = 10.0
#: Seconds of one whole answer, however many signs of life come: a stalled server may ping for ever.
LONGEST_ANSWER = 1800.0
#: Seconds that an idle connection is kept for the next call.
KEEP_ALIVE = 30.0
#: Characters of a request above which it is built in a thread: 40 times less than what takes 50 ms.
INLINE = 100_000
#: Bytes of one whole answer.
LARGEST_ANSWER = 64 * 1024 * 1024
#: Seconds that a server may take to end a stream after its last event.
LONGEST_FAREWELL = 0.25
#: Bytes of an error page that are read.
LARGEST_ERROR = 64 * 1024


class Client(Protocol):
    """What `AsyncOpenAI` and `AsyncAnthropic` have in common."""

    async def post(
        self, path: str, *, cast_to: type[httpx2.Response], content: bytes, stream: bool
    ) -> httpx2.Response: ...

    async def close(self) -> None: ...


class Wire:
    """Posts requests and yields the events of their answers, with every failure as a `ModelError`."""

    def __init__(self, provider: str, make: Callable[[], Client], *, secrets: tuple[str, ...]) -> None:
        """`make` imports the SDK and builds its client; it blocks for up to a second."""
        self._provider = provider
        self._make = make
        self._secrets = secrets

        self._client: Client | None = None
        self._making = asyncio.Lock()
        self._closed = False

    async def warm(self) -> Client:
        """Import the SDK and build the client in a thread, once. Raises ModelError."""
        if self._client is not None:
            return self._client
        async with self._making:
            if self._closed:
                raise Connection(f"{self._provider}: the model was closed")
            if self._client is None:
                try:
                    self._client = await asyncio.to_thread(self._make)
                except ImportError as error:
                    raise BadRequest(f"{self._provider}: its SDK cannot be used: {error}") from error
                except (ValueError, TypeError) as error:
                    reason = f"{self._provider}: the connection's settings are refused: {error}"
                    raise BadRequest(failures.clean(reason, self._secrets)) from error
            return self._client

    async def close(self) -> None:
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def events(
        self, path: str, body: bytes, *, last: Callable[[ServerEvent], bool]
    ) -> AsyncGenerator[ServerEvent, None]:
        """Post `body` and yield the answer's events up to the one that is `last`. Raises ModelError.

        An answer in one piece of JSON comes as one event without a name.
        """
        client = await self.warm()
        with self._failures():
            import httpx2

            response = await client.post(path, cast_to=httpx2.Response, content=body, stream=True)
        deadline = time.monotonic() + LONGEST_ANSWER
        decoder = Decoder()
        try:
            if self._is_whole(response):
                with self._failures():
                    answer = await self._read(response)
                yield ServerEvent("", answer)
                return
            chunks = response.aiter_bytes()
            size = 0
            while True:
                with self._failures():
                    chunk = await anext(chunks, None)
                    found = decoder.finish() if chunk is None else decoder.feed(chunk)
                for event in found:
                    yield event
                    if last(event):
                        await self._drain(chunks)
                        return
                if chunk is None:
                    return
                size += len(chunk)
                if size > LARGEST_ANSWER or time.monotonic() > deadline:
                    raise self.broken(f"still answering after {size} bytes or {LONGEST_ANSWER:.0f} s")
        finally:
            # Also reached when the consumer stops or is cancelled: an unread rest closes the connection.
            with contextlib.suppress(*_closing_noise()):
                await response.aclose()

    async def _drain(self, chunks: AsyncIterator[bytes]) -> None:
        """Read the end of a finished stream, so that its connection serves the next call."""
        with contextlib.suppress(TimeoutError, *_closing_noise()):
            async with asyncio.timeout(LONGEST_FAREWELL):
                async for _ in chunks:
                    continue

    def _is_whole(self, response: httpx2.Response) -> bool:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in ("text/html", "application/xhtml+xml"):
            raise BadRequest(
                f"{self._provider} answered with a web page, not a model's answer. Look at base_url: "
                "it is likely that a part such as /v1 is missing."
            )
        return bool(kind == "application/json")

    async def _read(self, response: httpx2.Response) -> bytes:
        parts, size = [], 0
        async for chunk in response.aiter_bytes():
            parts.append(chunk)
            size += len(chunk)
            if size > LARGEST_EVENT:
                raise TooLarge(f"an answer of more than {LARGEST_EVENT} bytes")
        return b"".join(parts)

    def problem(self, body: object, status: int = 200, headers: Mapping[str, str] = {}) -> ModelError:
        """The error that a refused request, or a stream's own error event, tells."""
        return failures.classify(status, body, headers, provider=self._provider, secrets=self._secrets)

    def broken(self, what: str) -> Connection:
        """The error for a stream that breaks the protocol."""
        return Connection(failures.clean(f"{self._provider}: {what}", self._secrets))

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn what the SDK, its transport and the network raise into a ModelError."""
        try:
            yield
        except ModelError:
            raise
        except Exception as error:  # noqa: BLE001 - the SDKs leak their transports' errors; all are sorted
            # No cause is kept: transports quote headers and proxy addresses, which hold secrets.
            raise self._sort(error) from None

    def _sort(self, error: Exception) -> ModelError:
        import aiohttp
        import httpx2

        response = getattr(error, "response", None)
        if isinstance(response, httpx2.Response):
            try:
                body: object = response.content[:LARGEST_ERROR]
            except httpx2.StreamError:
                body = getattr(error, "body", None)
            return self.problem(body, response.status_code, response.headers)
        # The SDKs wrap their transport's error; what happened is told by the inner one.
        cause = error.__cause__ or error
        reason = failures.clean(f"{type(cause).__name__}: {cause}".rstrip(": "), self._secrets)
        if isinstance(cause, httpx2.UnsupportedProtocol | httpx2.InvalidURL | httpx2.LocalProtocolError):
            return BadRequest(f"{self._provider} cannot be asked: {reason}. Look at base_url and api_key.")
        if isinstance(cause, UnicodeEncodeError):
            return Unauthorised(
                f"{self._provider}: api_key or base_url has a character that a header cannot hold"
            )
        # Only these: the aiohttp transport calls every failure to connect a ConnectTimeout.
        if isinstance(cause, httpx2.ReadTimeout | httpx2.WriteTimeout | TimeoutError):
            return Connection(f"{self._provider} was silent for too long ({reason})")
        if isinstance(
            cause, httpx2.HTTPError | httpx2.StreamError | aiohttp.ClientError | OSError | TooLarge
        ) or type(error).__name__.startswith(("APIConnection", "APITimeout", "APIResponse")):
            return Connection(f"{self._provider}: the connection failed ({reason})")
        # Nothing that is known: a bug here or there. Told as what it is, with its trace in the log.
        where = "".join(traceback.format_tb(error.__traceback__))
        log.error("Unexpected %s while asking %s\n%s", reason, self._provider, where)
        return BadRequest(f"{self._provider}: unexpected {reason}")


def _closing_noise() -> tuple[type[BaseException], ...]:
    """What closing a broken connection may raise: the connection is gone either way."""
    import aiohttp
    import httpx2

    return (httpx2.HTTPError, httpx2.StreamError, aiohttp.ClientError, OSError)


def http_client(make: Callable[..., Any], silence: float) -> Any:
    """The SDK's aiohttp client with our bounds. It follows no redirect, which would carry the key along."""
    import httpx2

    return make(
        timeout=httpx2.Timeout(silence, connect=CONNECT, pool=CONNECT),
        limits=httpx2.Limits(
            max_connections=1000, max_keepalive_connections=100, keepalive_expiry=KEEP_ALIVE
        ),
        follow_redirects=False,
    )


async def build(request: Request, render: Callable[[pictures.Pictures], dict[str, Any]]) -> bytes:
    """The request's body; pictures are read and long histories are rendered in a thread."""
    refs = pictures.wanted(request.entries)

    def work() -> bytes:
        return encode(render(pictures.load(refs, request.load_image)))

    if refs or size(request.system, request.entries) > INLINE:
        return await asyncio.to_thread(work)
    return work()


def encode(body: dict[str, Any]) -> bytes:
    """The body as JSON. Lists are written item by item: one call for a long history would hold the
    interpreter, and with it the event loop, for as long as it takes."""
    parts = []
    for key, value in body.items():
        whole = b"[" + b",".join(map(_json, value)) + b"]" if isinstance(value, list) else _json(value)
        parts.append(_json(key) + b":" + whole)
    return b"{" + b",".join(parts) + b"}"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def size(system: str, entries: Sequence[Entry]) -> int:
    """About how many characters a request has; enough to tell short from long."""
    total = len(system)
    for entry in entries:
        if isinstance(entry, User | ToolOutput | Assistant):
            total += len(entry.text) + 200
            if isinstance(entry, Assistant):
                total += 200 * len(entry.opaque)
                for call in entry.calls:
                    total += 200 + sum(len(v) if isinstance(v, str) else 20 for v in call.arguments.values())
    return total


def checked_key(key: str | None) -> str:
    """The key without surrounding space. Raises ValueError when it cannot be sent in a header."""
    key = (key or "").strip()
    if any(not 33 <= ord(letter) <= 126 for letter in key):
        raise ValueError(
            "api_key holds a space, a line end or a letter outside ASCII, so it cannot be right. "
            "Copy it again from the provider's page."
        )
    return key
