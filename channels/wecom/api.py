"""Calls to WeCom's server API, and what their failures mean.

wechatpy's client is not used for them: its token address is fixed, it renews tokens without end, it has no
duplicate check, no cards and no update of cards, it garbles Chinese file names, and it blocks. The token is
part of every URL, so nothing that leaves this module (logs, exceptions) contains a URL.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import aiohttp

from channels.base import ChannelState, TooLarge
from channels.wechat.tokens import STALE, NoToken, Tokens

log = logging.getLogger("causeway.wecom")

#: Seconds. A send that WeCom takes usually returns within one.
CALL_TIMEOUT = 15.0
MEDIA_TIMEOUT = 90.0
_CONNECT_TIMEOUT = 5.0
_CONNECTIONS = 64
_MAX_ANSWER = 1024 * 1024
_BLOCK = 256 * 1024
_HINT = re.compile(r",? ?hint: \[[^\]]*\]|,? ?more info at \S+")
_FROM_IP = re.compile(r"from ip: ([0-9a-fA-F.:]+)")

Data: TypeAlias = dict[str, Any]
#: `no`: certainly not; `refused`: the server answered that it did not; `maybe`: the outcome is unknown.
Taken: TypeAlias = Literal["no", "refused", "maybe"]


class ApiError(Exception):
    """A call failed. `code` is WeCom's errcode (0 without one), `ip` the caller's address as WeCom saw it."""

    def __init__(self, call: str, code: int, reason: str, taken: Taken) -> None:
        found = _FROM_IP.search(reason)
        self.ip = found[1].rstrip(".,") if found else ""
        reason = _HINT.sub("", reason)[:200]
        super().__init__(f"WeCom {call}: {reason}" + (f" ({code})" if code else ""))
        self.call = call
        self.code = code
        self.taken = taken


class Api:
    """One application's connection to the API server. `close` releases it."""

    def __init__(
        self,
        root: str,
        corp_id: str,
        secret: str,
        state: ChannelState,
        clock: Callable[[], float],
        *,
        timeout: float = CALL_TIMEOUT,
    ) -> None:
        self._root = f"{root}/cgi-bin/"
        self._corp_id = corp_id
        self._secret = secret
        self._timeout = timeout
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        # A changed secret must not go on with the token of the old one.
        name = hashlib.sha256(f"{corp_id}\n{secret}".encode()).hexdigest()[:16]
        self._tokens = Tokens(state, f"token:{name}", self._request_token, clock)

    async def close(self) -> None:
        await self._session.close()

    # -- calls -------------------------------------------------------------------------------------------

    async def get(self, call: str, timeout: float = 0, **query: str | int) -> Data:
        return await self._with_token("GET", call, query, timeout)

    async def post(self, call: str, body: Mapping[str, Any]) -> Data:
        # WeCom refuses \uXXXX in some fields (40033), so the JSON is written in UTF-8.
        data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        return await self._with_token("POST", call, {}, 0, data=data)

    async def upload(self, kind: str, name: str, content: bytes) -> str:
        """Give WeCom a file; returns its media_id, good for three days (WW 90253)."""

        def form() -> aiohttp.FormData:  # one request each: a form can be sent once
            # WeCom shows the name as it is written here: unquoted, in UTF-8.
            made = aiohttp.FormData(quote_fields=False)
            made.add_field("media", content, filename=name, content_type="application/octet-stream")
            return made

        answer = await self._with_token("POST", "media/upload", {"type": kind}, MEDIA_TIMEOUT, form=form)
        media = answer.get("media_id")
        if not isinstance(media, str) or not media:
            raise ApiError("media/upload", 0, "the answer has no media_id", "refused")
        return media

    async def download(self, media_id: str, target: Path, max_bytes: int) -> None:
        """Write a member's file to `target`. Raises ApiError, TooLarge."""
        token = await self._token()
        try:
            await self._download(token, media_id, target, max_bytes)
        except ApiError as error:
            if error.code not in STALE:
                raise
            await self._download(await self._token(token), media_id, target, max_bytes)

    # -- inside ------------------------------------------------------------------------------------------

    async def _with_token(
        self,
        method: str,
        call: str,
        query: Mapping[str, str | int],
        timeout: float,
        *,
        data: bytes | None = None,
        form: Callable[[], aiohttp.FormData] | None = None,
    ) -> Data:
        """One call, and once again with a new token when the one in use is refused."""
        token = await self._token()
        for last in (False, True):
            body = form() if form else data
            try:
                return await self._call(method, call, {**query, "access_token": token}, timeout, body)
            except ApiError as error:
                if last or error.code not in STALE:
                    raise
                log.info("WeCom %s: the access token is no longer good (%d); renewing it", call, error.code)
            token = await self._token(token)
        raise AssertionError("unreachable")

    async def _token(self, stale: str = "") -> str:
        """The access token, or another one than `stale`. Whatever fails here, the call was not made."""
        try:
            return await (self._tokens.renew(stale) if stale else self._tokens.get())
        except (NoToken, TimeoutError) as error:
            raise ApiError("gettoken", 0, str(error) or "no answer in time", "no") from None
        except ApiError as error:
            error.taken = "no" if error.taken == "maybe" else error.taken
            raise

    async def _request_token(self, _force: bool) -> tuple[str, float]:
        """gettoken gives the same token while that is good; there is nothing to force (WW 91039)."""
        query = {"corpid": self._corp_id, "corpsecret": self._secret}
        answer = await self._call("GET", "gettoken", query, 0, None)
        token = answer.get("access_token")
        if not isinstance(token, str) or not token:
            raise ApiError("gettoken", 0, "the answer has no token", "refused")
        return token, float(answer.get("expires_in") or 7200)

    async def _call(
        self, method: str, call: str, query: Mapping[str, str | int], timeout: float, body: Any
    ) -> Data:
        limits = aiohttp.ClientTimeout(total=timeout or self._timeout, sock_connect=_CONNECT_TIMEOUT)
        headers = {"Content-Type": "application/json; charset=utf-8"} if isinstance(body, bytes) else {}
        try:
            async with self._session.request(
                method,
                self._root + call,
                params=query,
                data=body,
                headers=headers,
                timeout=limits,
                allow_redirects=False,
            ) as response:
                raw = await _read(response)
        except aiohttp.ClientConnectorError as error:
            raise ApiError(call, 0, f"no connection ({type(error).__name__})", "no") from None
        except aiohttp.ConnectionTimeoutError:
            raise ApiError(call, 0, "no connection in time", "no") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(call, 0, f"no answer ({type(error).__name__})", "maybe") from None
        return _answer(call, response.status, raw)

    async def _download(self, token: str, media_id: str, target: Path, max_bytes: int) -> None:
        call, query = "media/get", {"access_token": token, "media_id": media_id}
        limits = aiohttp.ClientTimeout(total=MEDIA_TIMEOUT, sock_connect=_CONNECT_TIMEOUT)
        try:
            async with self._session.get(self._root + call, params=query, timeout=limits) as response:
                if response.status != 200 or "Content-Disposition" not in response.headers:
                    _answer(call, response.status, await _read(response))
                    raise ApiError(call, 0, "the answer is no file", "refused")
                if (response.content_length or 0) > max_bytes:
                    raise TooLarge(f"the file has {response.content_length} bytes; {max_bytes} are let in")
                await _save(response, target, max_bytes)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(call, 0, f"the file did not come ({type(error).__name__})", "no") from None


async def _save(response: aiohttp.ClientResponse, target: Path, max_bytes: int) -> None:
    got = 0
    file = await asyncio.to_thread(target.open, "wb")
    try:
        async for block in response.content.iter_chunked(_BLOCK):
            got += len(block)
            if got > max_bytes:
                raise TooLarge(f"the file has more than {max_bytes} bytes")
            await asyncio.to_thread(file.write, block)
    finally:
        await asyncio.to_thread(file.close)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    raw = bytearray()
    async for block in response.content.iter_chunked(_BLOCK):
        raw += block
        if len(raw) > _MAX_ANSWER:
            raise aiohttp.ClientPayloadError("the answer is too long")
    return bytes(raw)


def _answer(call: str, status: int, raw: bytes) -> Data:
    """The answer's JSON when it says success. A gateway's error page may follow a call that was taken."""
    try:
        data = json.loads(raw.decode("utf-8", "replace"), strict=False)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise ApiError(call, 0, f"HTTP {status} without a readable answer", "maybe")
    code = data.get("errcode", 0)
    if code:
        code = code if isinstance(code, int) else -1
        raise ApiError(call, code, str(data.get("errmsg", "")), "refused")
    if status != 200:
        raise ApiError(call, 0, f"HTTP {status}", "maybe")
    return data
