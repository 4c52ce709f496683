"""Calls to Slack's Web API through slack_sdk, and what their failures mean.

Tokens travel in a header only. slack_sdk is not allowed to repeat a call by itself (a repeated post would
show twice) nor to log (its debug lines hold message bodies).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from channels.base import ChannelError, Health, TooLarge

if TYPE_CHECKING:
    from slack_sdk.web.async_client import AsyncWebClient

log = logging.getLogger("causeway.slack")

#: Seconds for one call, for a file up, for a file down; connecting is part of each.
CALL_TIMEOUT = 30.0
UPLOAD_TIMEOUT = 75.0
DOWNLOAD_TIMEOUT = 300.0
_CONNECT_TIMEOUT = 10.0
_CONNECTIONS = 64
_BLOCK = 256 * 1024
_REDIRECTS = 3
#: These take JSON; every method takes a form, reading methods take nothing else (docs.slack.dev, Web API).
_JSON = ("chat.", "views.", "assistant.", "agents.")

#: `no`: certainly not; `refused`: the server answered that it did not; `maybe`: the outcome is unknown.
Taken: TypeAlias = Literal["no", "refused", "maybe"]
#: Slack says of these that a part may have been done before the error.
_UNSURE = frozenset({"fatal_error", "internal_error"})


class ApiError(Exception):
    """A call failed. `error` is Slack's word for it (`ratelimited`, `channel_not_found`, …), or ours when
    there was no answer; `retry_after` in seconds, 0 when not said; `needed` and `provided` are the scopes
    that `missing_scope` names."""

    def __init__(
        self,
        method: str,
        error: str,
        taken: Taken,
        retry_after: float = 0.0,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        answer = data or {}
        self.error, self.taken, self.retry_after = error, taken, retry_after
        self.needed = str(answer.get("needed") or "")
        self.provided = str(answer.get("provided") or "")
        super().__init__(f"Slack {method}: {error}" + (f" (needed: {self.needed})" if self.needed else ""))


class Api:
    """The Web API as one bot. Made by `connect`, which does no network traffic.

    `client` is the SDK's, for libraries that want one; `session` sends no token by itself. `scopes` are those
    that the last answer named for the token (empty before the first call).
    """

    def __init__(self, client: AsyncWebClient, session: aiohttp.ClientSession, root: str) -> None:
        self.client, self.session = client, session
        self._host = urlsplit(root).netloc
        self.scopes: frozenset[str] = frozenset()

    @classmethod
    async def connect(cls, token: str, root: str) -> Api:
        """Load the SDK in a thread (it takes a quarter of a second). Raises ChannelError without it."""
        try:
            kind = await asyncio.to_thread(_client_class)
        except ImportError as error:
            raise ChannelError(
                f"The slack channel needs slack-bolt ({error}): pip install 'causeway[slack]'"
            ) from None
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=True,
        )
        client = kind(token=token, base_url=f"{root}/api/", session=session, retry_handlers=[])
        # The session reads the proxy from the environment, and unlike the SDK it honours NO_PROXY.
        client.proxy = None
        return cls(client, session, root)

    async def close(self) -> None:
        await self.session.close()

    async def call(
        self, method: str, /, _timeout: float = CALL_TIMEOUT, _token: str = "", **params: Any
    ) -> dict[str, Any]:
        """One API call; parameters that are None are left out. `_token` goes in place of the bot's.

        Raises ApiError.
        """
        from slack_sdk.errors import SlackApiError

        given = {name: value for name, value in params.items() if value is not None}
        headers = {"Authorization": f"Bearer {_token}"} if _token else None
        body = {"json": given} if method.startswith(_JSON) else {"data": _form(given)}
        try:
            with no_outcome(method):
                async with asyncio.timeout(_timeout):
                    answer = await self.client.api_call(method, headers=headers, **body)
        except SlackApiError as error:
            raise _refusal(method, error.response) from None
        except AttributeError:  # the SDK's own, for an answer that is no JSON object: a proxy's
            raise ApiError(method, "unreadable answer", "maybe") from None
        if not _token and (scopes := answer.headers.get("x-oauth-scopes")):
            self.scopes = frozenset(name.strip() for name in scopes.split(","))
        data = answer.data
        return data if isinstance(data, dict) else {}

    async def pages(self, method: str, key: str, most: int, **params: Any) -> AsyncIterator[dict[str, Any]]:
        """The entries under `key` of at most `most` pages. Raises ApiError."""
        cursor = None
        for _ in range(most):
            answer = await self.call(method, cursor=cursor, **params)
            for entry in answer.get(key) or ():
                if isinstance(entry, dict):
                    yield entry
            cursor = (answer.get("response_metadata") or {}).get("next_cursor")
            if not cursor:
                break

    async def upload(self, url: str, path: Path) -> None:
        """Send a file's bytes to an address of `files.getUploadURLExternal`. Raises ApiError, and
        OSError for a file that cannot be opened."""
        file = await asyncio.to_thread(path.open, "rb")
        try:
            with no_outcome("upload"):
                async with asyncio.timeout(UPLOAD_TIMEOUT), self.session.post(url, data=file) as response:
                    if response.status != 200:
                        raise ApiError("upload", f"http_{response.status}", "refused")
        finally:
            await asyncio.to_thread(file.close)

    def trusted(self, url: URL) -> bool:
        """Whether an address is Slack's (or the configured server's): only such ones are sent the token."""
        if url.authority == self._host:
            return True
        host = url.host or ""
        return url.scheme == "https" and (host == "slack.com" or host.endswith(".slack.com"))

    async def download(self, address: str, target: Path, max_bytes: int, *, html: bool = False) -> None:
        """Write a private file to `target`, following redirects within Slack only.

        A web page in its place (`html`: the file is one itself) means that Slack asked us to log in.
        Raises TooLarge or ApiError (`not_slack`, `login_page`, `http_404`, …).
        """
        url = URL(address)
        part = target.with_name(target.name + ".part")
        headers = {"Authorization": f"Bearer {self.client.token}"}
        try:
            async with asyncio.timeout(DOWNLOAD_TIMEOUT):
                for hop in range(_REDIRECTS + 1):
                    if not self.trusted(url):
                        raise ApiError("download", "not_slack", "refused")
                    async with self.session.get(url, headers=headers, allow_redirects=False) as response:
                        if response.status in (301, 302, 303, 307, 308):
                            url = url.join(URL(response.headers.get("Location", "")))
                            continue
                        _check_download(response, html=html and hop == 0)
                        await _save(response, part, max_bytes)
                        break
                else:
                    raise ApiError("download", "too_many_redirects", "refused")
            await asyncio.to_thread(part.replace, target)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError("download", _no_answer(error), "no") from None
        finally:
            await asyncio.to_thread(part.unlink, missing_ok=True)


@contextmanager
def no_outcome(method: str) -> Iterator[None]:
    """An answer that did not come, as ApiError."""
    try:
        yield
    except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
        raise ApiError(method, _no_answer(error), "no") from None
    except TimeoutError:
        raise ApiError(method, "no answer in time", "maybe") from None
    except (aiohttp.ClientError, OSError) as error:
        raise ApiError(method, _no_answer(error), "maybe") from None


def _check_download(response: aiohttp.ClientResponse, *, html: bool) -> None:
    if response.status == 429:
        raise ApiError("download", "ratelimited", "refused", _seconds(response.headers))
    if response.status != 200:
        raise ApiError("download", f"http_{response.status}", "refused")
    if response.content_type == "text/html" and not html:
        raise ApiError("download", "login_page", "refused")


async def _save(response: aiohttp.ClientResponse, part: Path, max_bytes: int) -> None:
    if (response.content_length or 0) > max_bytes:
        raise TooLarge(f"the file is larger than {max_bytes} bytes")
    size = 0
    with await asyncio.to_thread(part.open, "wb") as file:
        async for block in response.content.iter_chunked(_BLOCK):
            size += len(block)
            if size > max_bytes:
                raise TooLarge(f"the file is larger than {max_bytes} bytes")
            await asyncio.to_thread(file.write, block)


def _form(params: dict[str, Any]) -> dict[str, str]:
    """Parameters as form fields: lists and objects as JSON, as Slack wants them there."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in params.items()
    }


def _refusal(method: str, response: Any) -> ApiError:
    """What an answer that is not `ok` means."""
    # aiohttp's own response where the body could not be read.
    status = int(getattr(response, "status_code", 0) or response.status)
    data = getattr(response, "data", None)
    data = data if isinstance(data, dict) else {}
    error = str(data.get("error") or "")
    if status == 429 or error in ("ratelimited", "rate_limited"):
        return ApiError(method, "ratelimited", "refused", _seconds(response.headers), data)
    if error:
        return ApiError(method, error, "maybe" if error in _UNSURE else "refused", 0.0, data)
    # No JSON, or none of Slack's: a proxy answered. 503 is said before anything was taken.
    return ApiError(method, f"http_{status}", "refused" if status == 503 or 400 <= status < 500 else "maybe")


def _seconds(headers: Mapping[str, str]) -> float:
    try:
        return max(float(headers.get("Retry-After", "1")), 0.0)
    except ValueError:
        return 1.0


def _no_answer(error: BaseException) -> str:
    """A failure's kind; its own words may hold addresses with keys in them."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect ({error.os_error.strerror or type(error.os_error).__name__})"
    return type(error).__name__


#: What to do about an error that is the settings' fault, whatever was called.
CURES = {
    "invalid_auth": "the token is wrong: copy it again from api.slack.com/apps",
    "not_authed": "the token is empty: copy it from api.slack.com/apps",
    "not_allowed_token_type": "bot_token takes the xoxb-… token and app_token the xapp-… one",
    "token_revoked": "the app was removed or its token withdrawn: install it again and copy the new token",
    "token_expired": "the token has run out: install the app again and copy the new token",
    "account_inactive": "the app was removed from the workspace: install it again and copy the new token",
    "forbidden_team": "switch Socket Mode on in the app's settings, or set mode: http",
    "access_denied": "ask an owner of the workspace to approve the app",
}


def trouble(error: ApiError) -> Health:
    """The state of a channel that cannot sign in or connect because of `error`."""
    if error.error == "missing_scope":
        cure = f"give the token the scope {error.needed or 'that is missing'} and install the app again"
    elif error.error == "ratelimited":
        cure = "nothing to do: it goes on by itself"
    elif error.error in CURES:
        cure = CURES[error.error]
    elif error.taken == "refused":
        cure = "see status.slack.com; it is tried again"
    else:
        cure = "check the network, a proxy, and base_url; it is tried again"
    return Health(False, str(error), cure)


def _client_class() -> type[AsyncWebClient]:
    """Runs in a thread: the import. Libraries that log bodies are kept quiet."""
    from slack_sdk.web.async_client import AsyncWebClient

    for name in ("slack_sdk", "slack_bolt"):
        logger = logging.getLogger(name)
        logger.setLevel(max(logging.WARNING, logger.level))
    return AsyncWebClient
