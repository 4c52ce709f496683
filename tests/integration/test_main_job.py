"""The main job on the whole bridge: a message in, an agent's answer out."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest

from bridge.app import App
from channels.base import Inbound
from tests.fakes.llm import Call, Say, ScriptedModel, Seen, aimock_server, llmock_server
from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.fakes.transcript import Gate
from tests.harness import bridge, clean_environ, openai_at, write_config

TIME = {"mcpServers": {"time": {"command": sys.executable, "args": ["-m", "mcp_server_time"]}}}
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
API = {"channels": {"api": {}}}


def client(app: App) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0)


async def ask(app: App, text: str, session: str = "s1") -> str:
    async with client(app) as api:
        answer = await api.chat.completions.create(
            model="causeway", messages=[{"role": "user", "content": text}], user=session
        )
    return answer.choices[0].message.content or ""


async def ready(app: App, name: str) -> None:
    async with asyncio.timeout(30):
        while not any(s.name == name and s.state == "ready" for s in app.mcp.status):
            await app.maintenance.settled()


# -- 2: every channel ----------------------------------------------------------------------------------


async def test_a_telegram_message_gets_the_right_reply(tmp_path: Path) -> None:
    async with FakeTelegram() as fake, ScriptedModel([Say("It is **noon**, `5 < 6`.")]).running() as model:
        settings = {
            "model": openai_at(model.openai_url),
            "channels": {"telegram": {"token": TOKEN, "base_url": fake.url}},
            "access": {"telegram": {"allow": ["5"]}},
        }
        async with bridge(tmp_path, settings):
            fake.say(5, "what time is it")
            await fake.wait_for(lambda: fake.chat(5).texts == ["It is noon, 5 < 6."])
            (message,) = fake.chat(5).shown
            assert [e["type"] for e in message["entities"]] == ["bold", "code"]
            assert fake.called("sendChatAction", 5)


async def test_strangers_are_told_their_id_once_and_never_reach_the_model(tmp_path: Path) -> None:
    async with FakeTelegram() as fake, ScriptedModel([Say("hi")]).running() as model:
        settings = {
            "model": openai_at(model.openai_url),
            "channels": {"telegram": {"token": TOKEN, "base_url": fake.url}},
        }
        async with bridge(tmp_path, settings):
            fake.say(6, "hello")
            await fake.wait_for(lambda: fake.chat(6).texts)
            assert "Your id is 6" in fake.chat(6).text
            fake.say(6, "hello?")
            fake.say(6, "/status")
            fake.say(6, "/whoami")  # the one thing that is answered again: it is how the id is found
            await fake.wait_for(lambda: len(fake.chat(6).texts) == 2)
        assert len(fake.chat(6).texts) == 2
        assert model.seen == []


@pytest.mark.parametrize("stream", [False, True])
async def test_the_official_openai_client_is_answered(tmp_path: Path, stream: bool) -> None:
    async with ScriptedModel([Say("Hello from the bridge", pieces=4)]).running() as model:
        async with bridge(tmp_path, {"model": openai_at(model.openai_url), **API}) as app, client(app) as api:
            if stream:
                text = ""
                async for chunk in await api.chat.completions.create(
                    model="causeway", messages=[{"role": "user", "content": "hi"}], stream=True
                ):
                    text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            else:
                whole = await api.chat.completions.create(
                    model="causeway", messages=[{"role": "user", "content": "hi"}]
                )
                text = whole.choices[0].message.content or ""
            assert text == "Hello from the bridge"
            assert "causeway" in [model.id async for model in api.models.list()]


async def test_a_session_remembers_over_a_restart_and_new_forgets(tmp_path: Path) -> None:
    def echo(seen: Seen) -> Say:
        people = [m for m in seen.body["messages"] if m["role"] == "user"]
        return Say(f"{len(people)} so far")

    async with ScriptedModel(echo).running() as model:
        settings = {"model": openai_at(model.openai_url), **API}
        async with bridge(tmp_path, settings) as app:
            assert await ask(app, "one") == "1 so far"
            assert await ask(app, "two") == "2 so far"
            assert await ask(app, "other", session="s2") == "1 so far"
        async with bridge(tmp_path, settings) as app:
            assert await ask(app, "three") == "3 so far"
            assert "new conversation" in await ask(app, "/new")
            assert await ask(app, "four") == "1 so far"


async def test_commands_answer_in_both_languages_without_the_model(tmp_path: Path) -> None:
    async with ScriptedModel([Say("hi")]).running() as model:
        async with bridge(tmp_path, {"model": openai_at(model.openai_url), **API}) as app:
            for command, word in {
                "/help": "/whoami",
                "/status": "test-model",
                "/tools": "`read`",
                "/skills": "skill-creator",
                "/mcp": "mcp.json",
                "/whoami": "admin",
                "/stop": "nothing to stop",
                "!help": "/stop",
            }.items():
                assert word in await ask(app, command), command
            assert await ask(app, "/imagine a cat") == "hi"
        assert len(model.seen) == 1


# -- 3: mock servers nobody here wrote ------------------------------------------------------------------


def settings_for(protocol: str, gate: Gate) -> dict[str, Any]:
    url = gate.openai_url if protocol == "openai" else gate.anthropic_url
    return {
        "provider": protocol,
        "name": "gpt-test" if protocol == "openai" else "claude-test",
        "base_url": url,
        "api_key": "sk-test-key-000000",
    }


async def two_calls(tmp_path: Path, protocol: str, gate: Gate) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "mcp.json").write_text(json.dumps(TIME))
    async with bridge(tmp_path, {"model": settings_for(protocol, gate), **API}) as app:
        await ready(app, "time")
        answer = await ask(app, "list the files and tell me the time in Tokyo")
    assert gate.refusals == []
    assert answer.strip()
    last = json.dumps(gate.bodies[-1])
    assert "Asia/Tokyo" in last
    assert "datetime" in last  # the real server's result came back to the model


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
async def test_aimock_drives_a_turn_with_two_tool_calls(tmp_path: Path, protocol: str) -> None:
    calls = [
        {"name": "ls", "arguments": json.dumps({"path": "."})},
        {"name": "time__get_current_time", "arguments": json.dumps({"timezone": "Asia/Tokyo"})},
    ]
    fixtures = [
        {"match": {"hasToolResult": True}, "response": {"content": "No files; it is late in Tokyo."}},
        {"match": {"userMessage": "list the files"}, "response": {"toolCalls": calls}},
    ]
    with aimock_server(fixtures) as server:
        async with Gate(openai=server.openai, anthropic=server.anthropic).running() as gate:
            await two_calls(tmp_path, protocol, gate)


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
async def test_llmock_drives_a_turn_with_two_tool_calls(tmp_path: Path, protocol: str) -> None:
    with llmock_server() as server:
        await asyncio.to_thread(server.control, "/_llmock/scenario", LLMOCK_SCENARIO)
        async with Gate(openai=server.openai, anthropic=server.anthropic).running() as gate:
            await two_calls(tmp_path, protocol, gate)


LLMOCK_SCENARIO: dict[str, Any] = {
    "behaviors": [
        {
            "type": "reply",
            "tool_calls": [
                {"name": "ls", "arguments": {"path": "."}},
                {"name": "time__get_current_time", "arguments": {"timezone": "Asia/Tokyo"}},
            ],
        },
        {"type": "reply", "text": "No files; it is late in Tokyo."},
    ]
}


# -- 4: servers come and go -----------------------------------------------------------------------------


def slow_server(seconds: float) -> dict[str, Any]:
    code = (
        f"import runpy, time; time.sleep({seconds}); runpy.run_module('mcp_server_time', run_name='__main__')"
    )
    return {"command": sys.executable, "args": ["-c", code]}


async def test_a_server_that_takes_10_s_to_start_holds_back_no_first_message(tmp_path: Path) -> None:
    """The answer is there while the server is still starting. How fast it is in proportion: `make bench`."""
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "mcp.json").write_text(json.dumps({"mcpServers": {"slow": slow_server(10)}}))
    async with ScriptedModel([Say("hi")]).running() as model:
        async with bridge(tmp_path, {"model": openai_at(model.openai_url), **API}) as app:
            assert await ask(app, "hello") == "hi"
            assert [s.state for s in app.mcp.status] == ["starting"]


async def test_tools_follow_mcp_json_while_the_bridge_runs(tmp_path: Path) -> None:
    def use_time(seen: Seen) -> Say:
        if seen.results:
            return Say(f"result: {seen.results[-1]}")
        if "time__get_current_time" in seen.tools:
            return Say(calls=(Call("time__get_current_time", {"timezone": "Europe/Paris"}),))
        return Say("no clock")

    file = tmp_path / "workspace" / "mcp.json"
    async with ScriptedModel(use_time).running() as model:
        async with bridge(tmp_path, {"model": openai_at(model.openai_url), **API}) as app:
            assert await ask(app, "time?") == "no clock"
            file.write_text(json.dumps(TIME))
            await app.maintenance.settled()
            assert "Europe/Paris" in await ask(app, "time?")
            file.write_text(json.dumps(TIME)[:40])
            await app.maintenance.settled()
            assert "Europe/Paris" in await ask(app, "and now?")
            reported = await ask(app, "/mcp")
            assert re.search(r"mcp\.json.*line 1|mcp\.json:1", reported), reported
            file.write_text(json.dumps({"mcpServers": {}}))
            await app.maintenance.settled()
            assert await ask(app, "time?") == "no clock"
            assert "mcp.json" in await ask(app, "/mcp")


# -- 6: order and independence --------------------------------------------------------------------------


async def test_quick_messages_keep_their_order_while_200_chats_write_at_once(tmp_path: Path) -> None:
    slow = asyncio.Event()

    async def answer(seen: Seen) -> Say:
        if "slow" in seen.last_user:
            await slow.wait()
        return Say(f"re: {seen.last_user}")

    async with FakeTelegram() as fake, ScriptedModel(answer).running() as model:
        settings = {
            "model": openai_at(model.openai_url),
            "channels": {"telegram": {"token": TOKEN, "base_url": fake.url}},
            "access": {"telegram": {"direct": "open"}},
        }
        async with bridge(tmp_path, settings):
            fake.say(999, "slow question")
            for chat in range(1, 201):
                fake.say(chat, f"hello {chat}")
                if chat in (50, 100, 150):
                    fake.say(1000, f"quick {chat}")
            await fake.wait_for(
                lambda: all(fake.chat(chat).texts == [f"re: hello {chat}"] for chat in range(1, 201)), 60
            )
            await fake.wait_for(lambda: len(fake.chat(1000).texts) == 3)
            assert fake.chat(1000).texts == ["re: quick 50", "re: quick 100", "re: quick 150"]
            assert fake.chat(999).texts == []
            slow.set()
            await fake.wait_for(lambda: fake.chat(999).texts == ["re: slow question"])


async def test_the_same_message_delivered_twice_is_answered_once(tmp_path: Path) -> None:
    async with FakeTelegram() as fake, ScriptedModel([Say("once")]).running() as model:
        settings = {
            "model": openai_at(model.openai_url),
            "channels": {"telegram": {"token": TOKEN, "base_url": fake.url}},
            "access": {"telegram": {"direct": "open"}},
        }
        async with bridge(tmp_path, settings):
            message = fake.say(5, "hello")
            await fake.wait_for(lambda: fake.chat(5).texts == ["once"])
            fake.push({"message": message})
            fake.say(6, "marker")
            await fake.wait_for(lambda: fake.chat(6).texts == ["once"])
            assert fake.chat(5).texts == ["once"]


async def test_a_stop_is_heard_while_the_model_and_a_tool_are_at_work(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "channels": {"telegram": {"token": TOKEN}},
        "access": {"telegram": {"admins": ["5"]}},
        "tools": {"bash": {"enabled": True}, "policy": [{"effect": "allow", "tools": ["bash"]}]},
    }

    def answer(seen: Seen) -> Say:
        if seen.last_user == "sleep" and not seen.results:
            return Say(calls=(Call("bash", {"command": "sleep 60; echo done"}),))
        return Say(f"re: {seen.last_user}")

    async with FakeTelegram() as fake, ScriptedModel(answer).running() as model:
        settings["channels"]["telegram"]["base_url"] = fake.url
        async with bridge(tmp_path, {"model": openai_at(model.openai_url), **settings}) as app:
            fake.say(5, "sleep")
            await model.until(lambda: len(model.seen) == 1)
            fake.say(5, "behind it")
            await fake.wait_for(lambda: app.sessions.busy("telegram:direct:5"))
            began = time.monotonic()
            fake.say(5, "/stop")
            await fake.wait_for(lambda: "Stopped" in fake.chat(5).text)
            assert time.monotonic() - began < 2
            fake.say(5, "hello")
            await fake.wait_for(lambda: "re: hello" in fake.chat(5).text)
            assert "behind it" not in fake.chat(5).text
            fake.say(5, "/stop")
            await fake.wait_for(lambda: "nothing to stop" in fake.chat(5).text)


# -- 7: skills ------------------------------------------------------------------------------------------


async def test_a_skill_dropped_in_is_offered_next_and_read_when_needed(tmp_path: Path) -> None:
    secret = "Steep for exactly 217 seconds."

    def answer(seen: Seen) -> Say:
        if seen.results:
            return Say(f"It says: {seen.results[-1]}")
        prompt = json.dumps(seen.body["messages"][0])
        if "tea-timer" in prompt:
            return Say(calls=(Call("read", {"path": "/skills/tea-timer/SKILL.md"}),))
        return Say("no such skill")

    async with ScriptedModel(answer).running() as model:
        async with bridge(tmp_path, {"model": openai_at(model.openai_url), **API}) as app:
            assert await ask(app, "tea") == "no such skill"
            folder = tmp_path / "workspace" / "skills" / "tea-timer"
            folder.mkdir()
            (folder / "SKILL.md").write_text(
                f"---\nname: tea-timer\ndescription: Times tea. Use for tea questions.\n---\n{secret}\n"
            )
            await app.maintenance.settled()
            assert secret in await ask(app, "tea")
            for seen in model.seen:
                assert secret not in json.dumps(seen.body["messages"][0])


# -- a failing model ------------------------------------------------------------------------------------


async def test_a_failure_is_one_human_sentence_and_the_next_message_works(tmp_path: Path) -> None:
    script: Sequence[Say] = [
        Say(status=401, kind="invalid_api_key", text="Incorrect API key sk-test-key-000000"),
        Say("fine"),
    ]
    async with ScriptedModel(script).running() as model:
        async with bridge(tmp_path, {"model": openai_at(model.openai_url), **API}) as app:
            answer = await ask(app, "hi")
            assert "does not accept my key" in answer
            assert "sk-test" not in answer
            assert await ask(app, "again") == "fine"


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
async def test_ag_10_an_overloaded_service_is_waited_out_and_an_empty_answer_asked_again(
    tmp_path: Path, protocol: str
) -> None:
    script = [
        Say(status=529, kind="overloaded_error"),
        Say(status=529, kind="overloaded_error"),
        Say("first"),
        *[Say(status=429, headers={"retry-after": "0.2"})] * 4,
        Say(""),
        Say("third"),
    ]
    async with (
        ScriptedModel(script).running() as model,
        Gate(openai=model.openai_url, anthropic=model.anthropic_url).running() as gate,
    ):
        url = gate.openai_url if protocol == "openai" else gate.anthropic_url
        settings = {"model": {**openai_at(url), "provider": protocol}, **API}
        async with bridge(tmp_path, settings) as app:
            assert await ask(app, "one") == "first"
            assert "slow down" in await ask(app, "two")
            assert await ask(app, "three") == "third"
        assert gate.refusals == []
        assert len(model.seen) == len(script)


async def test_ag_11_eight_new_chats_are_answered_though_another_process_locks_the_database(
    tmp_path: Path,
) -> None:
    code = (
        "import sqlite3, sys, time\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('BEGIN IMMEDIATE'); print('locked', flush=True); time.sleep(3); db.execute('COMMIT')\n"
    )
    async with (
        FakeTelegram() as fake,
        ScriptedModel(lambda seen: Say(f"re: {seen.last_user}")).running() as model,
    ):
        settings = {
            "model": openai_at(model.openai_url),
            "channels": {"telegram": {"token": TOKEN, "base_url": fake.url}},
            "access": {"telegram": {"direct": "open"}},
        }
        async with bridge(tmp_path, settings):
            other = await asyncio.create_subprocess_exec(
                sys.executable, "-c", code, str(tmp_path / "workspace" / "causeway.db"),
                stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert other.stdout is not None
            assert await asyncio.wait_for(other.stdout.readline(), 10) == b"locked\n"
            for chat in range(1, 9):
                fake.say(chat, f"hello {chat}")
            ticks = [time.monotonic()]
            while other.returncode is None and len(ticks) < 10_000:
                await asyncio.sleep(0.01)
                ticks.append(time.monotonic())
            await fake.wait_for(
                lambda: all(fake.chat(chat).texts == [f"re: hello {chat}"] for chat in range(1, 9)), 20
            )
            fake.say(1, "again")  # the store is in use afterwards
            await fake.wait_for(lambda: fake.chat(1).texts[-1] == "re: again")
    stalls = sorted(later - sooner for sooner, later in pairwise(ticks))
    assert stalls[-1] < 1.0, "the event loop stood still"


async def test_causeway_chat_answers_what_is_piped_in(tmp_path: Path) -> None:
    async with ScriptedModel([Say("from the **model**")]).running() as model:
        config = write_config(tmp_path, {"model": openai_at(model.openai_url)})
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bridge.cli", "chat", "--config", str(config),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=clean_environ(tmp_path), cwd=tmp_path,
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(b"hello\n"), 30)
    assert process.returncode == 0, err
    assert "from the" in out.decode()
    assert "model" in out.decode()
    assert err == b""
    assert model.seen[0].last_user == "hello"


async def test_pictures_reach_the_model(tmp_path: Path) -> None:
    async with FakeTelegram() as fake, ScriptedModel([Say("a dot")]).running() as model:
        settings = {
            "model": openai_at(model.openai_url),
            "channels": {"telegram": {"token": TOKEN, "base_url": fake.url}},
            "access": {"telegram": {"direct": "open"}},
        }
        async with bridge(tmp_path, settings):
            photo = {"file_id": fake.file(PIXEL, "p.png"), "file_unique_id": "u", "width": 1, "height": 1}
            fake.say(5, "what is this?", photo=[photo])
            await fake.wait_for(lambda: fake.chat(5).texts == ["a dot"])
        sent = json.dumps(model.seen[0].body["messages"][-1])
        assert "what is this?" in sent
        assert "data:image/" in sent


def test_inbound_survives_the_disk() -> None:
    from tests.fakes.channel import message

    one = message("hi")
    assert Inbound.from_json(json.loads(json.dumps(one.to_json()))) == one
