"""Calls to the Bot API through python-telegram-bot, and what their failures mean.

The token is part of every URL. Nothing that leaves this module (logs, exceptions) contains it: the libraries
below, which log URLs, are silenced, and their exceptions are replaced by `ApiError`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from channels.base import ChannelError, TooLarge

if TYPE_CHECKING:
    import httpx

log = logging.getLogger("causeway.telegram")

#: Seconds for one call, connecting and waiting for a free connection included.
CALL_TIMEOUT = 30.0
UPLOAD_TIMEOUT = 75.0
DOWNLOAD_TIMEOUT = 300.0
_CONNECT_TIMEOUT = 10.0
_CONNECTIONS = 128
_BLOCK = 256 * 1024

#: `no`: certainly not; `refused`: the server answered that it did not; `maybe`: the outcome is unknown.
Taken: TypeAlias = Literal["no", "refused", "maybe"]


class ApiError(Exception):
    """A call failed. `code` is the HTTP status, 0 without an answer; `reason` the server's description."""

    def __init__(
        self,
        method: str,
        code: int,
        reason: str,
        taken: Taken,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"Telegram {method}: {reason}" + (f" ({code})" if code else ""))
        self.code = code
        self.reason = reason
        self.taken = taken
        numbers = parameters or {}
        self.retry_after = float(numbers.get("retry_after") or 0)
        self.migrate_to = int(numbers.get("migrate_to_chat_id") or 0)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file to send along as one parameter."""

    data: bytes
    name: str


#: (method, parameters, seconds for the answer) -> the server's result. Raises an exception of the library.
_Post: TypeAlias = Callable[[str, dict[str, Any], float], Awaitable[Any]]


class Api:
    """The Bot API of one bot. Made by `connect`, which does no network traffic."""

    def __init__(
        self,
        token: str,
        root: str,
        post: _Post,
        files: httpx.AsyncClient,
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self._token = token
        self._root = root
        self._post = post
        self._files = files
        self._close = close

    @classmethod
    async def connect(cls, token: str, root: str, proxy: str = "") -> Api:
        """Load the library in a thread (it takes a fifth of a second). Raises ChannelError without it."""
        if proxy.startswith("socks") and importlib.util.find_spec("socksio") is None:
            raise ChannelError(
                "A SOCKS proxy for Telegram needs one more package: pip install 'httpx[socks]'"
            )
        try:
            return await asyncio.to_thread(_build, token, root, proxy)
        except ImportError as error:
            raise ChannelError(
                f"The telegram channel needs python-telegram-bot ({error}): pip install 'causeway[telegram]'"
            ) from None

    async def close(self) -> None:
        await self._close()

    async def call(self, method: str, /, _timeout: float = CALL_TIMEOUT, **params: Any) -> Any:
        """One API call; parameters that are None are left out. Raises ApiError."""
        from telegram import InputFile

        for name, value in params.items():
            if isinstance(value, Upload):
                params[name] = InputFile(value.data, filename=value.name)
        try:
            # The library's own limits end each phase; this one is for what they do not see.
            async with asyncio.timeout(_timeout + CALL_TIMEOUT + _CONNECT_TIMEOUT):
                return await self._post(method, params, _timeout)
        except TimeoutError:
            raise ApiError(method, 0, "no answer in time", "maybe") from None
        except _telegram_error() as error:
            raise self._explain(method, error) from None

    async def download(self, file_path: str, target: Path, max_bytes: int) -> None:
        """Write a file of `getFile` to `target`. Raises TooLarge or ApiError."""
        import httpx

        url = f"{self._root}/file/bot{self._token}/{file_path}"
        part = target.with_name(target.name + ".part")
        try:
            async with asyncio.timeout(DOWNLOAD_TIMEOUT), self._files.stream("GET", url) as response:
                if response.status_code != 200:
                    raise ApiError("download", response.status_code, "the file was not given out", "refused")
                await _save(response, part, max_bytes)
            await asyncio.to_thread(part.replace, target)
        except (httpx.HTTPError, TimeoutError) as error:
            raise ApiError("download", 0, type(error).__name__, "no") from None
        finally:
            await asyncio.to_thread(part.unlink, missing_ok=True)

    def _explain(self, method: str, error: Exception) -> ApiError:
        if isinstance(error, _refused_type()):
            return self._read_refusal(method, error.code, error.payload)
        cause = error.__cause__
        kind = type(cause or error).__name__
        # Before a connection stands, nothing can have reached the server.
        early = ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError")
        reason = {
            "ConnectError": "cannot connect",
            "ConnectTimeout": "cannot connect in time",
            "ProxyError": "the proxy does not let it through",
        }.get(kind, kind)
        return ApiError(method, 0, self._mask(reason), "no" if kind in early else "maybe")

    def _read_refusal(self, method: str, code: int, payload: bytes) -> ApiError:
        try:
            body = json.loads(payload)
            reason, parameters = str(body.get("description", "")), body.get("parameters") or {}
        except (ValueError, AttributeError):
            reason, parameters = "", {}
        # 504 is a proxy that gave up waiting: the server behind it may still do it.
        taken: Taken = "maybe" if code == 504 else "refused"
        return ApiError(method, code, self._mask(reason) or "no reason given", taken, parameters)

    def _mask(self, text: str) -> str:
        return text.replace(self._token, "***")


async def _save(response: httpx.Response, part: Path, max_bytes: int) -> None:
    size = 0
    with await asyncio.to_thread(part.open, "wb") as file:
        async for block in response.aiter_bytes(_BLOCK):
            size += len(block)
            if size > max_bytes:
                raise TooLarge(f"the file is larger than {max_bytes} bytes")
            await asyncio.to_thread(file.write, block)


def _telegram_error() -> type[Exception]:
    from telegram.error import TelegramError

    return TelegramError


_refused: list[type[Any]] = []


def _refused_type() -> type[Any]:
    """An answer that is not 2xx, kept as it came: the library's own exceptions drop parts of it."""
    if not _refused:
        from telegram.error import TelegramError

        class Refused(TelegramError):
            def __init__(self, code: int, payload: bytes) -> None:
                super().__init__(f"HTTP {code}")
                self.code = code
                self.payload = payload

        _refused.append(Refused)
    return _refused[0]


def _build(token: str, root: str, proxy: str) -> Api:
    """Runs in a thread: imports, TLS context."""
    import httpx
    from telegram import Bot
    from telegram.request import HTTPXRequest

    _silence()
    refused = _refused_type()
    # One context for all three clients; a server without TLS (a local one) needs no certificates loaded.
    tls = httpx.create_ssl_context() if root.startswith("https:") else False

    class Request(HTTPXRequest):
        async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:
            code, payload = await super().do_request(*args, **kwargs)
            if not 200 <= code <= 299:
                raise refused(code, payload)
            return code, payload

    class CausewayBot(Bot):
        async def post(self, method: str, params: dict[str, Any], seconds: float) -> Any:
            # Plain JSON comes back: the library's objects cost more than the call, and one odd update
            # would spoil a whole batch of them.
            return await self._post(method, params, read_timeout=seconds, write_timeout=seconds)

        def _insert_defaults(self, data: dict[str, object]) -> None:
            """Parameters are plain here, and the library expects objects of its own in an album."""

    def request(size: int) -> Request:
        return Request(
            connection_pool_size=size,
            connect_timeout=_CONNECT_TIMEOUT,
            pool_timeout=CALL_TIMEOUT,
            media_write_timeout=UPLOAD_TIMEOUT,
            proxy=proxy or None,
            httpx_kwargs={"verify": tls},
        )

    calls, polls = request(_CONNECTIONS), request(1)
    files = httpx.AsyncClient(
        verify=tls, proxy=proxy or None, timeout=httpx.Timeout(30.0, connect=_CONNECT_TIMEOUT)
    )
    bot = CausewayBot(
        token,
        base_url=f"{root}/bot",
        base_file_url=f"{root}/file/bot",
        request=calls,
        get_updates_request=polls,
    )

    async def close() -> None:
        await calls.shutdown()
        await polls.shutdown()
        await files.aclose()

    return Api(token, root, bot.post, files, close)


def _silence() -> None:
    """Keep the libraries from logging URLs (with the token) and messages (bodies of chats)."""
    for name, level in (
        ("httpx", logging.WARNING),
        ("httpcore", logging.WARNING),
        ("telegram", logging.CRITICAL),
    ):
        logger = logging.getLogger(name)
        logger.setLevel(max(level, logger.level))
