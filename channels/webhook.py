"""What every webhook needs: a body of bounded size, and a comparison in constant time."""

from __future__ import annotations

import hmac

from aiohttp import web

MIB = 1024 * 1024


async def read_body(request: web.Request, limit: int = MIB) -> bytes:
    """The raw body. Raises HTTPRequestEntityTooLarge for more than `limit` bytes and reads no further."""
    if (request.content_length or 0) > limit:
        raise web.HTTPRequestEntityTooLarge(max_size=limit, actual_size=request.content_length or 0)
    body = bytearray()
    async for block in request.content.iter_chunked(64 * 1024):
        body += block
        if len(body) > limit:
            raise web.HTTPRequestEntityTooLarge(max_size=limit, actual_size=len(body))
    return bytes(body)


def same(given: str, expected: str) -> bool:
    """Whether two secrets are equal, in constant time. An empty expectation equals nothing."""
    return bool(expected) and hmac.compare_digest(
        given.encode("utf-8", "replace"), expected.encode("utf-8", "replace")
    )
