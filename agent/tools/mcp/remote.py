"""Remote servers: streamable HTTP and SSE through the SDK, over a client that fails by the call.

Imports the SDK and its HTTP library; load it lazily.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import httpx2
from mcp_types import CONNECTION_CLOSED

# The library logs each address, and an address may hold a credential. A level that somebody set stays.
if logging.getLogger("httpx2").level == logging.NOTSET:
    logging.getLogger("httpx2").setLevel(logging.WARNING)

LOST = "not sent"  # the `data` of an error that stands for a request that failed on its way
_TIMEOUT = httpx2.Timeout(30.0, connect=10.0, read=None)  # answers are awaited under each call's own deadline


class CallBoundClient(httpx2.AsyncClient):
    """An HTTP client in which a failed POST fails its own call, not the session.

    The SDK ends a whole session, with every call under way in it, when one request cannot be sent; here
    that request gets a JSON-RPC error instead. `refused` is the last 401 or 403, `status` the last status
    of 400 or more.
    """

    def __init__(self, *, on_fault: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self._on_fault = on_fault
        self.refused = 0
        self.status = 0

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as fault:
            if request.method != "POST":
                raise
            self._on_fault()
            error = {"code": CONNECTION_CLOSED, "message": describe(fault), "data": LOST}
            body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
            headers = {"content-type": "application/json"}
            return httpx2.Response(502, headers=headers, content=body, request=request)
        if response.status_code in (401, 403):
            self.refused = response.status_code
        if response.status_code >= 400:
            self.status = response.status_code
        return response


def http_client(
    headers: dict[str, str], on_fault: Callable[[], None], options: dict[str, Any] | None = None
) -> CallBoundClient:
    """A client with an entry's headers. Redirects are followed by the SDK, within the entry's origin only."""
    return CallBoundClient(on_fault=on_fault, headers=headers, timeout=_TIMEOUT, **(options or {}))


def describe(fault: httpx2.HTTPError) -> str:
    """A transport fault in words, without the address: it may hold credentials."""
    if isinstance(fault, httpx2.ConnectTimeout):
        return "no connection within 10 s"
    if isinstance(fault, httpx2.ConnectError):
        return f"no connection ({_first_line(fault)})"
    if isinstance(fault, httpx2.HTTPStatusError):
        return f"HTTP status {fault.response.status_code}"
    return f"the connection broke ({type(fault).__name__})"


def _first_line(fault: Exception) -> str:
    return (str(fault).splitlines() or [type(fault).__name__])[0][:120]
