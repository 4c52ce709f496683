"""Calls to the official account API by wechatpy's client, in threads.

Guarded hazards of that client: it renews a refused token without end (switched off: `Tokens` renews), takes
its token from another endpoint (never asked), and reads whole files into memory (downloads are streamed
here). Its exceptions and the ones below it hold URLs with the token: nothing of them leaves this module.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from channels.base import ChannelState, TooLarge
from channels.wechat.tokens import STALE, NoToken, StaleToken, Tokens

log = logging.getLogger("causeway.wechat")

_CONNECT, _READ, _UPLOAD = 5.0, 20.0, 60.0
_THREADS = 8
_BLOCK = 256 * 1024
#: Where the platform keeps pictures that people sent.
_PICTURE_HOSTS = (".qpic.cn", ".qlogo.cn")

#: `refused`: the platform answered with an error code; `no`: certainly not taken; `maybe`: unknown.
Taken: TypeAlias = Literal["refused", "no", "maybe"]


class ApiError(Exception):
    """A call failed. `code` is the platform's errcode, 0 when it gave none."""

    def __init__(self, what: str, reason: str, code: int = 0, taken: Taken = "refused") -> None:
        super().__init__(f"{what}: {reason}" + (f" (errcode {code})" if code else ""))
        self.what = what
        self.reason = reason
        self.code = code
        self.taken = taken


class Api:
    """One account's API. Build it with `connect`; close it once."""

    def __init__(
        self, app_id: str, secret: str, root: str, state: ChannelState, clock: Callable[[], float]
    ) -> None:
        self._app_id = app_id
        self._secret = secret
        self._root = root
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="wechat")
        self._local = threading.local()
        self.tokens = Tokens(state, "token", self._ask_token, clock)

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)

    # -- what is called -----------------------------------------------------------------------------------

    async def send_text(self, user: str, text: str) -> None:
        await self._call("message/custom/send", lambda client: client.message.send_text(user, text))

    async def send_media(self, user: str, kind: str, media_id: str) -> None:
        """`kind`: image, voice or video."""
        what = "message/custom/send"
        await self._call(what, lambda client: getattr(client.message, f"send_{kind}")(user, media_id))

    async def typing(self, user: str) -> None:
        data = {"touser": user, "command": "Typing"}
        await self._call(
            "message/custom/typing", lambda client: client.post("message/custom/typing", data=data)
        )

    async def upload(self, kind: str, name: str, data: bytes, mime: str) -> str:
        """Temporary media (three days); returns its media_id."""
        file = (name, data, mime)
        found = await self._call("media/upload", lambda client: client.media.upload(kind, file), _UPLOAD)
        return str(found["media_id"])

    async def service_accounts(self) -> None:
        """A harmless call that needs the customer-service permission."""
        await self._call("customservice/getkflist", lambda client: client.get("customservice/getkflist"))

    async def callback_check(self) -> dict[str, Any]:
        """Let the platform resolve and ping the host of the configured callback URL."""
        data = {"action": "all", "check_operator": "DEFAULT"}
        found = await self._call(
            "callback/check", lambda client: client.post("callback/check", data=data), 40.0
        )
        return found if isinstance(found, dict) else {}

    async def download(self, media_id: str, target: Path, max_bytes: int) -> None:
        """media/get. Raises TooLarge or ApiError."""

        def work(client: Any) -> None:
            url = f"{client.API_BASE_URL}media/get"
            token = client.session.get(client.access_token_key)
            self._fetch(client, url, {"access_token": token, "media_id": media_id}, target, max_bytes)

        await self._call("media/get", work, _UPLOAD)

    async def picture(self, url: str, target: Path, max_bytes: int) -> None:
        """A picture by its address, which only the platform's own hosts may have. Needs no permission."""
        host = urlsplit(url).hostname or ""
        if not host.endswith(_PICTURE_HOSTS) and host != urlsplit(self._root).hostname:
            raise ApiError("picture", "its address is not the platform's")

        def work(client: Any) -> None:
            self._fetch(client, url, {}, target, max_bytes)

        await self._run("picture", work, "", _READ)

    # -- how ------------------------------------------------------------------------------------------------

    async def _ask_token(self, force: bool) -> tuple[str, float]:
        data = {
            "grant_type": "client_credential",
            "appid": self._app_id,
            "secret": self._secret,
            "force_refresh": force,
        }

        def work(client: Any) -> Any:
            # Parameters that are no dict keep the client from adding (and for that fetching) a token.
            return client.post("stable_token", params=(), data=data)

        found = await self._run("stable_token", work, "", _READ)
        if not isinstance(found, dict) or not found.get("access_token"):
            raise ApiError("stable_token", "the answer holds no access_token")
        return str(found["access_token"]), float(found.get("expires_in", 7200))

    async def _call(self, what: str, work: Callable[[Any], Any], timeout: float = 0.0) -> Any:
        async def once(token: str) -> Any:
            return await self._run(what, work, token, timeout or _READ)

        try:
            return await self.tokens.call_with_token(once)
        except StaleToken as error:
            raise ApiError(what, "a new access token was refused too", error.code) from None
        except NoToken as error:
            raise ApiError(what, str(error), taken="no") from None
        except TimeoutError:
            raise ApiError(what, "no access token came in time", taken="no") from None

    async def _run(self, what: str, work: Callable[[Any], Any], token: str, timeout: float) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._sync, what, work, token, timeout)

    def _sync(self, what: str, work: Callable[[Any], Any], token: str, timeout: float) -> Any:
        """Runs in a thread of the pool, with that thread's own client."""
        import requests
        from wechatpy.exceptions import WeChatClientException  # type: ignore[import-untyped]

        client = self._client()
        client.timeout = (_CONNECT, timeout)
        client.session.set(client.access_token_key, token)
        try:
            return work(client)
        except WeChatClientException as error:
            code = int(error.errcode or 0)
            if code in STALE and token:
                raise StaleToken(f"{what}: the access token was refused", code) from None
            if not code:  # an HTTP status that is no success
                status = getattr(error.response, "status_code", 0)
                raise ApiError(what, f"HTTP {status}", taken="no") from None
            raise ApiError(what, str(error.errmsg), code) from None
        except requests.RequestException as error:
            raise ApiError(what, type(error).__name__, taken=_taken(error)) from None

    def _client(self) -> Any:
        client = getattr(self._local, "client", None)
        if client is None:
            from wechatpy import WeChatClient  # type: ignore[import-untyped]

            client = self._local.client = WeChatClient(self._app_id, self._secret, auto_retry=False)
            client.API_BASE_URL = f"{self._root}/cgi-bin/"
        return client

    def _fetch(self, client: Any, url: str, params: dict[str, str], target: Path, max_bytes: int) -> None:
        with client._http.get(url, params=params, stream=True, timeout=client.timeout) as answer:
            if answer.status_code != 200:
                raise ApiError("download", f"HTTP {answer.status_code}", taken="no")
            if answer.headers.get("Content-Type", "").startswith(("application/json", "text/plain")):
                self._no_file(client, answer, target, max_bytes)
                return
            if int(answer.headers.get("Content-Length") or 0) > max_bytes:
                raise TooLarge(f"the file has more than {max_bytes} bytes")
            size = 0
            with target.open("wb") as file:
                for block in answer.iter_content(_BLOCK):
                    size += len(block)
                    if size > max_bytes:
                        raise TooLarge(f"the file has more than {max_bytes} bytes")
                    file.write(block)

    def _no_file(self, client: Any, answer: Any, target: Path, max_bytes: int) -> None:
        """Not the file itself: an error, or for videos where the file is."""
        data = json.loads(next(answer.iter_content(_BLOCK), b"{}").decode("utf-8", "replace"))
        code = int(data.get("errcode") or 0)
        if code in STALE:
            raise StaleToken("media/get: the access token was refused", code)
        video = str(data.get("video_url") or "")
        if not video.startswith(("http://", "https://")):
            raise ApiError("media/get", str(data.get("errmsg", "no file")), code)
        self._fetch(client, video, {}, target, max_bytes)


def _taken(error: Exception) -> Taken:
    """Whether a request can have reached the platform."""
    import requests

    if isinstance(error, requests.ConnectTimeout):
        return "no"
    if isinstance(error, requests.ConnectionError) and "NewConnectionError" in repr(error):
        return "no"
    return "maybe"


def import_slow_parts() -> None:
    """What `Api` and `Envelope` need, about 0.3 s of imports. Call it in a thread."""
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # below that it logs URLs, which hold the token
    for module in ("wechatpy", "wechatpy.crypto", "wechatpy.replies", "xmltodict"):
        import_module(module)


async def close_quietly(api: Api) -> None:
    """Close within a bound: a thread that waits for the platform ends by its own time-outs."""
    try:
        async with asyncio.timeout(5.0):
            await api.close()
    except TimeoutError:
        log.info("a call to the platform is still under way; it ends by itself")
