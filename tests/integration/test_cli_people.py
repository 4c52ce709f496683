"""`causeway pair` and `causeway sessions delete` beside a running bridge."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent.tools.masking import Masker
from bridge.app import App
from bridge.cli import parser
from bridge.cli_people import run
from bridge.config import load_config
from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.harness import bridge, clean_environ


class House:
    """A bridge with a Telegram bot, and a shell beside it."""

    def __init__(self, folder: Path, app: App, telegram: FakeTelegram, capsys: Any) -> None:
        self.folder, self.app, self.telegram = folder, app, telegram
        self._capsys = capsys
        self.error = ""

    @property
    def port(self) -> int:
        assert self.app.server is not None
        return self.app.server.port

    async def shell(self, *words: str, port: int | None = None) -> tuple[int, str]:
        config = load_config(self.folder / "config.yaml", clean_environ(self.folder))
        if words[0] == "pair" or words[1] == "delete":
            words = (*words, "--port", str(port or self.port))
        options = parser().parse_args([*words, "--language", "en"])
        self._capsys.readouterr()
        code = await run(config, options, Masker(config.secrets()))
        output, self.error = self._capsys.readouterr()
        return code, output

    async def asks(self, person: int, text: str = "hello") -> str:
        """Somebody unknown writes; their code."""
        self.telegram.say(person, text)
        await self.telegram.wait_for(lambda: "your code is" in self.telegram.chats[person].text)
        waiting = json.loads((await self.shell("pair", "list", "--json"))[1])["waiting"]
        return next(str(one["code"]) for one in waiting if one["person"] == str(person))


@asynccontextmanager
async def house(folder: Path, capsys: Any) -> AsyncIterator[House]:
    async with FakeTelegram() as telegram:
        channels = {"web": {}, "telegram": {"token": TOKEN, "base_url": telegram.url}}
        async with bridge(folder, {"channels": channels}) as app:
            yield House(folder, app, telegram, capsys)


async def test_who_is_approved_is_told_at_once_and_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with house(tmp_path, capsys) as here:
        code, output = await here.shell("pair", "approve", await here.asks(7))
        assert code == 0
        assert "as admin" in output
        assert "has been told" in output
        chat = here.telegram.chats[7]
        await here.telegram.wait_for(lambda: "let in (as admin)" in chat.text)
        here.telegram.say(7, "hello again")
        await here.telegram.wait_for(lambda: "demo model" in chat.text)
        _, output = await here.shell("pair", "approve", await here.asks(8), "--role", "guest")
        assert "as guest" in output
        code, _ = await here.shell("pair", "revoke", "telegram", "7")
        assert code == 0
        shown = len(chat.texts)
        here.telegram.say(7, "and now?")
        await here.telegram.wait_for(lambda: len(chat.texts) > shown)
        assert "do not know you" in chat.texts[-1]
        assert (await here.shell("pair", "deny", "NOSUCHCD"))[0] == 1
        assert "valid for an hour" in here.error


async def test_a_conversation_is_deleted_while_the_bridge_holds_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with house(tmp_path, capsys) as here:
        await here.shell("pair", "approve", await here.asks(7))
        here.telegram.say(7, "remember the word heron")
        await here.telegram.wait_for(lambda: "only a demo" in here.telegram.chats[7].text)
        folder = here.app.session_folder("telegram:direct:7")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "a.txt").write_text("mine")
        assert "heron" in (await here.shell("sessions", "show", "direct:7"))[1]
        code, output = await here.shell("sessions", "delete", "direct:7", "--yes")
        assert (code, output) == (0, "Deleted: telegram:direct:7\n")
        assert not folder.exists()
        assert await here.app.store.history.load("telegram:direct:7") == []
        assert "No conversations" in (await here.shell("sessions", "list"))[1]


async def test_a_bridge_that_is_not_found_is_passed_by_and_deleting_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with house(tmp_path, capsys) as here:
        code = await here.asks(7)
        rc, output = await here.shell("pair", "approve", code, port=9)
        assert rc == 0
        assert "within a minute" in here.error
        assert "not told by itself" in output
        here.telegram.say(7, "hello")  # who writes is looked up anew
        await here.telegram.wait_for(lambda: "demo model" in here.telegram.chats[7].text)
        assert (await here.shell("sessions", "delete", "direct:7", "--yes", port=9))[0] == 1
        assert "--port" in here.error
        assert await here.app.store.history.load("telegram:direct:7") != []


async def test_only_this_machine_may_let_people_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with house(tmp_path, capsys) as here, aiohttp.ClientSession() as client:
        code = await here.asks(7)
        url = f"http://127.0.0.1:{here.port}/pair/approve"
        for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            async with client.post(url, json={"code": code}, headers=headers) as answer:
                assert answer.status == 403
        for body in (b"", b"[]", b"{", b"x" * 5000):
            async with client.post(url, data=body) as answer:
                assert answer.status == 400
        async with client.post(url, json={"code": code, "role": "king"}) as answer:
            assert answer.status == 404
            assert (await answer.json())["error"] == "role"
        async with client.get(f"http://127.0.0.1:{here.port}/people") as answer:
            found = await answer.json()
        assert [one["code"] for one in found["waiting"]] == [code]
        assert found["workspace"] == str(here.app.workspace)
