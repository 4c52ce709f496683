"""Secrets and files, over the whole bridge."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from bridge.app import App
from bridge.config import load_config
from bridge.log import set_up
from tests.fakes.llm import Call, Say, ScriptedModel, Seen, free_port
from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.harness import bridge, clean_environ, openai_at, write_config

CANARY = "123:CANARY"


def everything(folder: Path) -> str:
    """All that was stored: the database's tables and the files of the workspace."""
    parts = []
    for file in folder.rglob("*"):
        if file.suffix == ".db":
            with sqlite3.connect(file) as db:
                for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                    parts += [repr(row) for row in db.execute(f"SELECT * FROM {name}").fetchall()]
        elif file.is_file() and file.name != "config.yaml":
            parts.append(file.read_bytes().decode(errors="replace"))
    return "\n".join(parts)


async def test_sc_05_the_bot_token_is_in_no_log_answer_prompt_or_history(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def answer(seen: Seen) -> Say:
        if not seen.results:
            failing = Call("bash", {"command": "cat notes.txt; exit 1"})
            return Say(calls=(Call("read", {"path": "notes.txt"}), failing))
        return Say(f"It said: {seen.results}")

    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.getLogger("causeway").level
    try:
        async with FakeTelegram(token=CANARY) as fake, ScriptedModel(answer).running() as model:
            settings: dict[str, Any] = {
                "model": openai_at(model.openai_url),
                "channels": {
                    "telegram": {"token": CANARY, "base_url": fake.url},
                    "rejected": {"type": "telegram", "token": CANARY + "2", "base_url": fake.url},
                    "dead": {
                        "type": "telegram", "token": CANARY, "base_url": f"http://127.0.0.1:{free_port()}",
                    },
                    "api": {},
                },
                "access": {"default": {"admins": ["5"]}},
                "tools": {"bash": {"enabled": True}, "policy": [{"effect": "allow", "tools": ["bash"]}]},
                "log": {"level": "debug"},
            }  # fmt: skip
            config = load_config(write_config(tmp_path, settings), clean_environ(tmp_path))
            app = App(config)
            set_up("debug", "text", app.masker)
            await app.start()
            notes = app.session_folder("telegram:direct:5") / "notes.txt"
            notes.parent.mkdir(parents=True)
            notes.write_text(f"failed: https://api.telegram.org/bot{CANARY}/getMe")
            try:
                fake.cut("sendChatAction", times=1)
                photo = {"file_id": fake.file(b"x", "p.png"), "file_unique_id": "u", "width": 1, "height": 1}
                fake.say(5, "go", photo=[photo])
                await fake.wait_for(lambda: "It said" in fake.chat(5).text, 20)
                fake.say(5, "/status")
                await fake.wait_for(lambda: "rejected" in fake.chat(5).text, 20)
                health = json.dumps([str(channel.health()) for channel in app.channels.values()])
            finally:
                await app.stop()
            notes.unlink()
            prompts = json.dumps([seen.body for seen in model.seen])
            shown = fake.chat(5).text
    finally:
        root.handlers[:], root.level = before[0], before[1]
        logging.getLogger("causeway").setLevel(before[2])
    out, err = capfd.readouterr()
    assert "getUpdates" in err or "telegram" in err  # the debug log really was on
    results = [m for s in model.seen for m in s.body["messages"] if m["role"] == "tool"]
    assert len(results) >= 2
    for name, text in {
        "log": out + err,
        "chat": shown,
        "results": json.dumps(results),
        "health": health,
    }.items():
        assert "CANARY" not in text, name
    assert "CANARY" not in prompts
    assert "CANARY" not in everything(tmp_path)


async def test_sc_07_a_file_outside_the_session_is_never_sent(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("TOPSECRET")

    def answer(seen: Seen) -> Say:
        if seen.results:
            return Say("Here: ![x](../../secret.txt) ![y](made.png)")
        return Say(
            calls=(
                Call("send_file", {"path": "../../../secret.txt"}),
                Call("send_file", {"path": str(secret)}),
                Call("bash", {"command": f"ln -s {secret} inside.txt; printf PNG > made.png"}),
                Call("send_file", {"path": "inside.txt"}),
                Call("write", {"path": "mine.txt", "content": "made here"}),
                Call("send_file", {"path": "mine.txt"}),
            )
        )

    async with FakeTelegram() as fake, ScriptedModel(answer).running() as model:
        settings = {
            "model": openai_at(model.openai_url),
            "channels": {"telegram": {"token": TOKEN, "base_url": fake.url}},
            "access": {"telegram": {"admins": ["5"]}},
            "tools": {"bash": {"enabled": True}, "policy": [{"effect": "allow", "tools": ["bash"]}]},
        }
        async with bridge(tmp_path, settings):
            fake.say(5, "send it")
            await fake.wait_for(lambda: len(fake.chat(5).shown) >= 3, 20)
        assert "cannot be sent from here" in fake.chat(5).text
        sent = [m["document"]["file_name"] for m in fake.chat(5).shown if "document" in m]
        assert sent == ["mine.txt", "made.png"] or sent == ["mine.txt"]
        assert all(b"TOPSECRET" not in data for data in fake.files.values())
        tool_results = json.dumps([m for m in model.seen[-1].body["messages"] if m["role"] == "tool"])
        assert "TOPSECRET" not in tool_results


async def test_a_message_that_comes_while_a_tool_runs_is_answered_after_it_ag_01(tmp_path: Path) -> None:
    def answer(seen: Seen) -> Say:
        if seen.last_user == "work" and not seen.results:
            return Say(calls=(Call("bash", {"command": "sleep 1"}),))
        return Say(f"re: {seen.last_user}")

    async with FakeTelegram() as fake, ScriptedModel(answer).running() as model:
        settings = {
            "model": openai_at(model.openai_url),
            "channels": {"telegram": {"token": TOKEN, "base_url": fake.url}},
            "access": {"telegram": {"admins": ["5"]}},
            "tools": {"bash": {"enabled": True}, "policy": [{"effect": "allow", "tools": ["bash"]}]},
        }
        async with bridge(tmp_path, settings) as app:
            fake.say(5, "work")
            await model.until(lambda: len(model.seen) == 1)
            fake.say(5, "ping")
            await fake.wait_for(lambda: fake.chat(5).texts == ["re: work", "re: ping"])
            async with asyncio.timeout(5):
                while app.sessions.busy("telegram:direct:5"):
                    await asyncio.sleep(0.01)
        roles = [m["role"] for m in model.seen[-1].body["messages"]]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
