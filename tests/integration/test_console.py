"""The console over the whole bridge: what it shows, what it does, and whom it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent.tools.stats import text_tokens
from bridge.app import App
from bridge.console.state import GROUPS, caller_of, usage
from bridge.store.base import UsageRow
from tests.fakes.channel_env import until
from tests.fakes.llm import Call, Say, ScriptedModel, Seen
from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.harness import bridge, openai_at

PRIVATE = "CANARY the doctor said"


def answer(seen: Seen) -> Say:
    if "clean" in seen.last_user and not seen.results:
        return Say(calls=(Call("bash", {"command": "echo gone"}),))
    return Say(f"{PRIVATE} no. {seen.results}")


@dataclass
class House:
    app: App
    telegram: FakeTelegram
    model: ScriptedModel
    http: aiohttp.ClientSession
    seen: list[str] = field(default_factory=list)

    async def get(self, path: str = "state", status: int = 200) -> dict[str, Any]:
        async with self.http.get(f"{self.app.url}/console/{path}") as response:
            assert response.status == status, await response.text()
            self.seen.append(await response.text())
            found: dict[str, Any] = json.loads(self.seen[-1])
            return found

    async def post(self, path: str, body: object, **headers: str) -> tuple[int, str]:
        address = f"{self.app.url}/console/{path}"
        async with self.http.post(address, json=body, headers=headers) as response:
            if response.content_type != "application/json":
                return response.status, await response.text()
            told = await response.json()
            return response.status, told.get("said") or told["error"]

    async def says(self, chat: int, text: str, user: int | None = None) -> None:
        """A person writes, and something comes back."""
        before = len(self.telegram.chat(chat).shown)
        self.telegram.say(chat, text, user)
        await self.telegram.wait_for(lambda: len(self.telegram.chats[chat].shown) > before)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    workspace = tmp_path / "workspace"
    (workspace / "skills" / "bad").mkdir(parents=True)
    (workspace / "skills" / "bad" / "SKILL.md").write_text("---\nname: bad\n---\nno description")
    broken = {"command": "no-such-program", "env": {"API_TOKEN": "CANARY-token-0123456789"}}
    (workspace / "mcp.json").write_text(json.dumps({"mcpServers": {"broken": broken}}))
    async with FakeTelegram() as telegram, ScriptedModel(answer).running() as model:
        settings = {
            "model": {
                **openai_at(model.openai_url),
                "prices": {"test-model": {"input": 1000.0, "output": 2000.0}},
            },
            "channels": {
                "telegram": {"token": TOKEN, "base_url": telegram.url},
                "wrong": {"type": "telegram", "token": "0:not-a-token-but-long-enough", "base_url": "x:y"},
                "web": {},
            },
            "access": {"telegram": {"admins": ["5"], "allow": ["6"]}, "wrong": {"direct": "off"}},
            "tools": {"bash": {"enabled": True}},
            "sessions": {"limits": {"person_tokens": 5000}},
        }
        async with bridge(tmp_path, settings) as app, aiohttp.ClientSession() as http:
            yield House(app, telegram, model, http)


async def test_the_console_shows_how_everything_stands(house: House) -> None:
    await house.says(6, PRIVATE)
    await until(lambda: house.app.mcp.status[0].state == "failed")
    await until(lambda: not house.app.sessions.busy("telegram:direct:6"))  # use is noted after the answer
    now = await house.get()
    channels = {one["name"]: one for one in now["channels"]}
    assert (channels["telegram"]["ok"], channels["web"]["ok"]) == (True, True)
    assert not channels["wrong"]["ok"]
    assert channels["wrong"]["reason"]
    assert "test-model" in now["model"]
    (server,) = now["servers"]
    assert (server["name"], server["state"]) == ("broken", "failed")
    assert "no-such-program" in server["reason"]
    assert {"read", "bash"} <= {tool["name"] for tool in now["builtin"]}
    assert all(tool["tokens"] > 20 for tool in now["builtin"])
    assert {skill["state"] for skill in now["skills"]} == {"available"}
    assert "bad/SKILL.md" in now["diagnostics"][0]["text"]
    roles = {one["person"]: (one["role"], one["by"]) for one in now["people"]}
    assert roles == {"5": ("admin", "config.yaml"), "6": ("member", "config.yaml")}
    assert now["sessions"] == [{"key": "telegram:direct:6", "entries": 2}]
    today = now["usage"]["today"]
    assert (today["answers"], today == now["usage"]["month"]) == (1, True)
    assert today["cost"] == pytest.approx((today["input"] * 1000 + today["output"] * 2000) / 1e6)
    assert now["usage"]["by"]["person"][0]["name"] == "telegram:6"
    assert now["usage"]["by"]["session"][0]["name"] == "telegram:direct:6"
    assert now["usage"]["by"]["model"][0]["name"] == "test-model"
    assert now["limits"] == {"person_tokens": 5000, "total_runs": 1000}


async def test_the_parts_of_a_prompt_are_those_that_the_model_was_sent(house: House) -> None:
    await house.says(6, "hello")
    body = house.model.seen[-1].body
    told = await house.get("session?key=telegram%3Adirect%3A6")
    offered = [tool["function"]["name"] for tool in body["tools"]]
    assert sorted(part["name"] for part in told["parts"] if part["kind"] == "tools") == sorted(offered)
    assert "bash" not in offered  # this person is no admin
    sums = told["sums"]
    assert abs(sums["system"] + sums["skills"] - text_tokens(body["messages"][0]["content"])) <= 1
    assert sums["skills"] > 100
    before = sums["history"]
    assert before > text_tokens("hello") + text_tokens(PRIVATE)
    await house.says(6, "and now a longer message " * 40)
    after = await house.get("session?key=telegram%3Adirect%3A6")
    assert after["sums"]["history"] > before + 200
    assert {**after["sums"], "history": 0} == {**sums, "history": 0}
    await house.get("session?key=nobody", 404)


async def test_what_people_say_and_what_is_secret_is_not_shown(house: House) -> None:
    await house.says(6, PRIVATE)
    await house.says(9, PRIVATE)
    await until(lambda: house.app.mcp.status[0].state == "failed")
    await house.get()
    await house.get("session?key=telegram%3Adirect%3A6")
    for secret in ("CANARY", TOKEN, "sk-test-key"):
        assert secret not in "".join(house.seen)


async def test_somebody_is_let_in_from_the_console_and_told_so(house: House) -> None:
    await house.says(9, "may I?")
    (waiting,) = (await house.get())["waiting"]
    assert (waiting["channel"], waiting["person"], waiting["first"]) == ("telegram", "9", False)
    before = len(house.telegram.chats[9].shown)
    asked = {"code": waiting["code"], "yes": True, "role": "guest", "language": "zh-CN"}
    assert await house.post("pair", asked) == (200, "已批准 User 9,身份:访客。")
    await house.telegram.wait_for(lambda: len(house.telegram.chats[9].shown) > before)
    assert "let in" in house.telegram.chats[9].texts[-1]
    now = await house.get()
    assert now["waiting"] == []
    assert ("9", "guest") in {(one["person"], one["role"]) for one in now["people"]}
    await house.says(9, "hello")
    assert PRIVATE in house.telegram.chats[9].texts[-1]
    assert (await house.post("pair", asked))[0] == 404  # the code is used up
    status, said = await house.post("revoke", {"channel": "telegram", "person": "9", "language": "en"})
    assert (status, said) == (200, "9 is no longer let in.")
    await house.says(9, "still there?")
    assert "I do not know you yet" in house.telegram.chats[9].texts[-1]


async def test_a_request_is_refused_and_a_configured_person_is_not_revoked(house: House) -> None:
    await house.says(9, "may I?")
    (waiting,) = (await house.get())["waiting"]
    assert (await house.post("pair", {"code": waiting["code"], "yes": False}))[0] == 200
    assert (await house.get())["waiting"] == []
    status, said = await house.post("revoke", {"channel": "telegram", "person": "6"})
    assert (status, "config.yaml" in said) == (404, True)
    assert (await house.post("revoke", {"channel": "telegram", "person": "77"}))[0] == 404
    assert (await house.post("pair", {"code": "x", "yes": True, "role": "owner"}))[0] == 404


@pytest.mark.parametrize(("yes", "outcome"), [(True, "allowed by console"), (False, "denied console")])
async def test_a_waiting_call_is_decided_in_the_console(house: House, yes: bool, outcome: str) -> None:
    house.telegram.say(5, "clean up", 5)
    await house.telegram.wait_for(lambda: any("bash" in text for text in house.telegram.chat(5).texts))
    (card,) = (await house.get())["approvals"]
    assert (card["tool"], card["source"], card["asker"]) == ("bash", "builtin", "5")
    assert json.loads(card["arguments"]) == {"command": "echo gone"}
    status, said = await house.post("approval", {"id": card["id"], "yes": yes})
    assert (status, said) == (200, "Allowed: bash." if yes else "Denied: bash.")
    # The card in the chat shows it, and the run goes on.
    await house.telegram.wait_for(lambda: any(outcome in text for text in house.telegram.chats[5].texts))
    await house.telegram.wait_for(lambda: any(PRIVATE in text for text in house.telegram.chats[5].texts))
    assert any("gone" in text for text in house.telegram.chats[5].texts if PRIVATE in text) is yes
    now = await house.get()
    assert now["approvals"] == []
    entry = now["audit"][0]
    assert (entry["what"], entry["by"], entry["asker"]) == ("once" if yes else "denied", "console", "5")
    # The first answer has won.
    assert (await house.post("approval", {"id": card["id"], "yes": True}))[0] == 404


async def test_a_post_must_be_small_json_with_a_plain_answer(house: House) -> None:
    for path in ("pair", "revoke", "approval"):
        address = f"{house.app.url}/console/{path}"
        for data, status in (("{}", 415), (b"x" * 5000, 415)):
            async with house.http.post(address, data=data) as response:
                assert response.status == status
        json_type = {"Content-Type": "application/json"}
        for data, status in (("{", 400), ("[]", 400), ("[" * 4000, 400), ("x" * 5000, 413)):
            async with house.http.post(address, data=data, headers=json_type) as response:
                assert response.status == status, (path, data[:9])
        async with house.http.get(address) as response:
            assert response.status == 404
    assert (await house.post("approval", {"id": "x", "yes": "true"}))[0] == 400
    assert (await house.post("approval", {"id": ["x"], "yes": True}))[0] == 404


# -- who is refused -----------------------------------------------------------------------------------------


async def raw(app: App, path: str, *headers: str) -> tuple[int, str]:
    """One request as it is written, which no client has tidied up."""
    assert app.server is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", app.server.port)
    lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{app.server.port}", "Connection: close", *headers]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    async with asyncio.timeout(10):
        answered = (await reader.read()).decode(errors="replace")
    writer.close()
    return int(answered.split()[1]), answered


TRICKS = [
    "/console/../../../../etc/passwd",
    "/console/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "/console/..%2f..%2f..%2fetc%2fpasswd",
    "/console//etc/passwd",
    "/console/%2fetc%2fpasswd",
    "/console/..%5c..%5cetc%5cpasswd",
    "/console/console.html",
    "/console/../console/state.py",
    "/console/%2e%2e/state.py",
    "/console/console.js%00.txt",
]


async def test_sc_02_no_path_trick_reaches_a_file(house: House) -> None:
    for trick in TRICKS:
        status, answered = await raw(house.app, trick)
        assert status in (400, 403, 404), trick
        assert "root:" not in answered
        assert "import" not in answered, trick
    assert (await raw(house.app, "/console/console.js"))[0] == 200


async def test_sc_02_another_site_reaches_nothing_through_a_visitors_browser(house: House) -> None:
    await house.says(9, "may I?")
    (waiting,) = (await house.get())["waiting"]
    asked = {"code": waiting["code"], "yes": True, "role": "admin"}
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        assert (await house.post("pair", asked, Origin=origin))[0] == 403
        assert (await raw(house.app, "/console/state", f"Origin: {origin}"))[0] == 403
    # A picture, a frame or a script of another page, where the browser sends no origin.
    assert (await raw(house.app, "/console/state", "Sec-Fetch-Site: cross-site"))[0] == 403
    assert (await house.post("pair", asked, Host="evil.example"))[0] == 403
    assert len((await house.get())["waiting"]) == 1
    own = house.app.url
    assert (await house.post("pair", {**asked, "yes": False}, Origin=own))[0] == 200


async def test_sc_02_another_address_needs_the_key(tmp_path: Path) -> None:
    settings = {"channels": {"web": {}}, "server": {"port": 0, "host": "0.0.0.0"}}
    async with bridge(tmp_path, settings) as app, aiohttp.ClientSession() as http:
        paths = [("GET", path) for path in ("", "/state", "/session?key=x", "/console.js")]
        paths += [("POST", path) for path in ("/pair", "/revoke", "/approval")]
        for method, path in paths:
            async with http.request(method, f"{app.url}/console{path}") as response:
                assert response.status == 401, path
                assert "model" not in await response.text()
        async with http.get(f"{app.url}/console?key=wrong") as response:
            assert response.status == 401
        bearer = {"Authorization": f"Bearer {app.key}"}
        async with http.get(f"{app.url}/console/state", headers=bearer) as response:
            assert response.status == 200
            assert str(app.key) not in await response.text()
        async with http.get(f"{app.url}/console?key={app.key}", allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (303, "/console")


# -- pure parts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session", "expected"),
    [
        ("telegram:direct:5", ("5", "admin", "direct", "5")),
        ("telegram:direct:6", ("6", "member", "direct", "6")),
        ("telegram:direct:7", ("7", "guest", "direct", "7")),
        ("telegram:group:-100:12", ("", "member", "group", "-100")),
        ("telegram:group:-100:by=6", ("6", "member", "group", "-100")),
        ("telegram:person=5", ("5", "admin", "direct", "")),
        ("web:direct:abc", ("abc", "admin", "direct", "abc")),
        ("telegram:direct:a%3Ab%3D", ("a:b=", "guest", "direct", "a:b=")),
        ("odd", ("", "member", "direct", "")),
    ],
)
async def test_a_sessions_key_tells_who_talks_there(
    house: House, session: str, expected: tuple[str, ...]
) -> None:
    caller = caller_of(house.app, session)
    assert (caller.id, caller.role, caller.chat_kind, caller.chat) == expected


def test_use_is_summed_by_day_person_chat_model_and_tool() -> None:
    rows = [
        UsageRow("2026-01-30", "s", "tg", "c1", "p1", "model", "m1", 2, 100, 10, 50),
        UsageRow("2026-01-31", "s", "tg", "c1", "p2", "model", "m1", 1, 10, 1),
        UsageRow("2026-01-31", "s", "tg", "c2", "p2", "model", "m2", 1, 1000, 1),
        UsageRow("2026-01-31", "s", "tg", "c2", "p2", "tool", "bash", 7),
    ]
    found = usage(dict.fromkeys(GROUPS, rows), rows[1:], lambda row: row.input / 10)
    assert found["month"] == {
        "answers": 4, "input": 1110, "output": 12, "cached": 50, "tools": 7, "cost": 111.0,
    }  # fmt: skip
    assert (found["today"]["answers"], found["today"]["input"]) == (2, 1010)
    assert [one["name"] for one in found["by"]["person"]] == ["tg:p2", "tg:p1"]
    assert [one["name"] for one in found["by"]["model"]] == ["m2", "m1"]
    assert [(one["name"], one["tools"]) for one in found["by"]["tool"]] == [("bash", 7)]
    many = [UsageRow("2026-01-31", "s", "tg", "c", f"p{n}", "model", "m", 1, n) for n in range(100)]
    assert len(usage(dict.fromkeys(GROUPS, many), many, lambda row: 0.0)["by"]["person"]) == 12
