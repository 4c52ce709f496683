"""A running web channel with a bridge that the test plays, for the tests of the page."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from channels.base import Activity, Choice, Inbound, Outbound, OutFile, Press, ReplyRef
from channels.web import WebChannel, WebConfig
from tests.fakes.channel_env import MemoryState, key_text, memory_env


class WebHouse:
    """Start, stop and start again: the port and the channel's notes stay, as over a restart of the bridge."""

    def __init__(self, folder: Path, text: Any = key_text) -> None:
        self.folder = folder
        self.text = text
        self.state = MemoryState()
        self.port = unused_port()
        self.received: list[Inbound] = []
        self.fault: Exception | None = None
        self.presses: list[Press] = []
        self.answer: str | Exception = "noted"
        self.shared = False

    async def start(self) -> WebHouse:
        env = replace(memory_env(self.folder, self.state, self.text, shared=self.shared), press=self.press)
        self.channel = WebChannel("web", WebConfig(), env)
        app = web.Application()
        app.add_routes(self.channel.routes())
        await self.channel.start(self.receive)
        self.server = TestServer(app, port=self.port)
        await self.server.start_server(shutdown_timeout=0.2)
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def stop(self) -> None:
        await self.channel.pause()
        await self.channel.stop()
        await self.server.close()

    async def receive(self, inbound: Inbound) -> None:
        """As the router does: what was seen before is dropped."""
        if self.fault is not None:
            raise self.fault
        if inbound.id not in [seen.id for seen in self.received]:
            self.received.append(inbound)

    async def press(self, press: Press) -> str:
        if isinstance(self.answer, Exception):
            raise self.answer
        self.presses.append(press)
        return self.answer


class Reply:
    """What the bridge does with one reply."""

    def __init__(self, house: WebHouse, to: Inbound, id: str = "") -> None:
        self.house = house
        self.ref = ReplyRef(id or f"r-{to.id}", to.address, to.id)
        self._posted: set[int] = set()

    async def show(self, text: str, *, final: bool = False, files: tuple[OutFile, ...] = ()) -> None:
        channel = self.house.channel
        for n, chunk in enumerate(channel.render(Outbound(text, files))):
            if n in self._posted:
                await channel.edit(self.ref, n, f"{self.ref.id}/{n}", chunk, final=final)
            else:
                await channel.post(self.ref, n, chunk, final=final)
                self._posted.add(n)

    def tool(self, call: str, name: str, state: Any, detail: str = "") -> None:
        self.house.channel.activity(self.ref, Activity(call, name, state, detail))

    async def ask(self, question: str, id: str = "a1", *labels: str) -> str:
        """Put a question with buttons, as an approval does: under an id of its own."""
        choices = [Choice(f"ap:{id}:{n}", label) for n, label in enumerate(labels or ("Yes", "No"))]
        return await self.house.channel.ask(replace(self.ref, id=id), question, choices)

    async def settle(self, card: str, outcome: str) -> None:
        await self.house.channel.settle(replace(self.ref, id=card.partition("/")[0]), card, outcome)

    async def typing(self) -> None:
        await self.house.channel.typing(self.ref)

    async def finish(self, text: str, files: tuple[OutFile, ...] = ()) -> None:
        await self.show(text, final=True, files=files)
        await self.house.channel.end(self.ref)


class Visitor:
    """A page without a browser: the same requests, one cookie jar."""

    def __init__(self, house: WebHouse) -> None:
        self.house = house
        self.http = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def __aenter__(self) -> Visitor:
        async with self.http.post(self.house.url + "/web/session") as response:
            assert response.status == 200
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()

    async def send(self, id: str, text: str) -> int:
        async with self.http.post(self.house.url + "/web/send", json={"id": id, "text": text}) as response:
            return response.status

    async def press(self, card: object, choice: object) -> tuple[int, dict[str, Any]]:
        body = {"card": card, "choice": choice}
        async with self.http.post(self.house.url + "/web/press", json=body) as response:
            return response.status, await response.json()

    async def events(self, after: str = "") -> AsyncIterator[tuple[str, str, dict[str, Any]]]:
        """(event, id, data) as they come."""
        headers = {"Last-Event-ID": after} if after else {}
        async with self.http.get(self.house.url + "/web/events", headers=headers) as response:
            assert response.status == 200, await response.text()
            fields: dict[str, str] = {}
            async for line in response.content:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name:
                    fields[name] = value
                elif fields:
                    yield fields["event"], fields.get("id", ""), json.loads(fields["data"])
                    fields = {}

    async def catch_up(self, after: str = "") -> list[tuple[str, str, dict[str, Any]]]:
        """What a page is told when it connects."""
        found = []
        events = self.events(after)
        async for event in events:
            if event[0] == "ready":
                break
            found.append(event)
        # What had not been finished follows at once; a mark of our own shows where it ends.
        await events.aclose()  # type: ignore[attr-defined]
        return found
