"""Remote servers: streamable HTTP and SSE through the SDK, over a client that fails by the call.

Imports the SDK and its HTTP library; load it lazily.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import httpx2
from mcp.client.auth.utils import extract_field_from_www_auth
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR

# The library logs each address, and an address may hold a credential. A level that somebody set stays.
if logging.getLogger("httpx2").level == logging.NOTSET:
    logging.getLogger("httpx2").setLevel(logging.WARNING)

LOST = "not sent"  # the `data` of an error that stands for a request that failed on its way
REFUSED = "not let in"  # the `data` of an error that stands for a 401 or 403
_TIMEOUT = httpx2.Timeout(30.0, connect=10.0, read=None)  # answers are awaited under each call's own deadline


class RenewalFailed(httpx2.TransportError):
    """A token is over and could not be renewed now. The message is fit for people."""


class CallBoundClient(httpx2.AsyncClient):
    """An HTTP client in which a failed POST fails its own call, not the session.

    The SDK ends a whole session, with every call under way in it, when one request cannot be sent; here
    that request gets a JSON-RPC error instead, and so does one that is refused (401, 403), in words that end
    with `cure`. `refused` is the last 401 or 403, `refusal` those words, `status` the last status of 400 or
    more.
    """

    def __init__(
        self, headers: dict[str, str], on_fault: Callable[[], None], *, auth: httpx2.Auth | None, cure: str
    ) -> None:
        """`headers` are the entry's; `cure` is what to do when the server refuses us. Redirects are followed
        by the SDK, within the entry's origin only."""
        super().__init__(headers=headers, timeout=_TIMEOUT, auth=auth)
        self._on_fault = on_fault
        self._cure = cure
        self.refused = 0
        self.refusal = ""
        self.status = 0

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as fault:
            if request.method != "POST":
                raise
            self._on_fault()
            return _error(request, 502, CONNECTION_CLOSED, describe(fault), LOST)
        if response.status_code >= 400:
            self.status = response.status_code
        if response.status_code in (401, 403):
            self.refused = response.status_code
            self.refusal = self._words(response)
            if request.method == "POST":
                await response.aclose()
                if response.status_code == 401:
                    self._on_fault()  # is it this call alone, or are we let in no more?
                return _error(request, response.status_code, INTERNAL_ERROR, self.refusal, REFUSED)
        return response

    def _words(self, response: httpx2.Response) -> str:
        challenge = challenge_of(response)
        if challenge is None:
            return f"the server forbids it to our login (HTTP {response.status_code}); {self._cure}"
        if challenge[0] == 401:
            return f"the server asks for a login (HTTP 401); {self._cure}"
        scope = extract_field_from_www_auth(response, "scope") or "not named"
        return f"the server wants more rights (HTTP 403, scope {scope[:200]}); {self._cure}"


def challenge_of(response: httpx2.Response) -> tuple[int, str] | None:
    """Status and WWW-Authenticate of an answer that a login would change: 401, or 403 for want of a scope."""
    header = response.headers.get("WWW-Authenticate", "")
    if response.status_code == 401:
        return 401, header
    if response.status_code == 403 and extract_field_from_www_auth(response, "error") == "insufficient_scope":
        return 403, header
    return None


def _error(request: httpx2.Request, status: int, code: int, message: str, data: str) -> httpx2.Response:
    error = {"code": code, "message": message, "data": data}
    return httpx2.Response(status, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)


def describe(fault: httpx2.HTTPError) -> str:
    """A transport fault in words, without the address: it may hold credentials."""
    if isinstance(fault, RenewalFailed):
        return str(fault)
    if isinstance(fault, httpx2.ConnectTimeout):
        return "no connection within 10 s"
    if isinstance(fault, httpx2.ConnectError):
        return f"no connection ({(str(fault).splitlines() or [type(fault).__name__])[0][:120]})"
    if isinstance(fault, httpx2.HTTPStatusError):
        return f"HTTP status {fault.response.status_code}"
    return f"the connection broke ({type(fault).__name__})"
