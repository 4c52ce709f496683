"""A load balancer before several gateways: each channel has a server of its own, requests go round."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import aiohttp
from aiohttp import web

from channels.base import Channel

_HOP = {"connection", "transfer-encoding", "content-length", "content-encoding", "date", "server"}


class Balancer:
    """`add` a channel for each gateway; `url` is where the platform calls. `to`: numbers of the gateways that
    get requests, in turn."""

    def __init__(self) -> None:
        self.to: list[int] = []
        self.served: list[int] = []  # which gateway got which request
        self._gateways: list[tuple[web.AppRunner, str]] = []

    async def __aenter__(self) -> Balancer:
        self._client = aiohttp.ClientSession(auto_decompress=False)
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._forward)
        self._runner, self.url = await _serve(app)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()
        await self._runner.cleanup()
        for runner, _ in self._gateways:
            await runner.cleanup()

    async def add(self, channel: Channel) -> int:
        app = web.Application()
        app.add_routes(channel.routes())
        self._gateways.append(await _serve(app))
        self.to.append(len(self._gateways) - 1)
        return self.to[-1]

    def at(self, number: int) -> str:
        """The address of one gateway."""
        return self._gateways[number][1]

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        number = self.to[0]
        self.to.append(self.to.pop(0))
        self.served.append(number)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        url = self.at(number) + request.raw_path
        more: dict[str, Any] = {"headers": headers, "data": await request.read(), "allow_redirects": False}
        try:
            async with self._client.request(request.method, url, **more) as answer:
                kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
                return web.Response(status=answer.status, body=await answer.read(), headers=kept)
        except (aiohttp.ClientError, ConnectionError):
            # The gateway gave no answer: the platform gets none.
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)


async def _serve(app: web.Application) -> tuple[web.AppRunner, str]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"
