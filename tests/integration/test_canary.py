"""Secrets that tools bring come no further: not to the model, a log, a chat, or the disk.

Over the whole bridge, with a real MCP server, files, a web page, commands and a failing model. Looked for is
each row of twelve characters of each secret, so that half of one is found as well.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import random
import string
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent.tools.base import Caller, ToolContext, ToolResult
from agent.tools.manager import ToolManager
from agent.tools.masking import Masker, MaskingFilter
from agent.tools.settings import ToolSettings
from bridge.app import App
from bridge.config import load_config
from bridge.log import set_up
from tests.fakes.llm import Call, Say, ScriptedModel, Seen
from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.harness import clean_environ, openai_at, write_config
from tests.integration.test_security import everything
from tests.unit.test_agent_loop import Source, tool

_DICE = random.Random(9)
_PIECE = 12


def letters(count: int, more: str = "") -> str:
    return "".join(_DICE.choice(string.ascii_letters + string.digits + more) for _ in range(count))


def pem() -> str:
    body = "\n".join(letters(64, "+/") for _ in range(20))
    return f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----"


KNOWN = "7d5a2c14-93be-4f0a-b1d6-0c8e5f7a9b23"  # only the workspace's .env says that this is a secret
OF_SERVER = f"{letters(10)}.{letters(14)}"  # only mcp.json does
#: Each kind: the text that holds it, and what of the text is secret.
SECRETS: dict[str, tuple[str, str]] = {}
for _kind, _before, _secret, _after in (
    ("openai", "key ", f"sk-proj-a1{letters(30)}", ""),
    ("anthropic", "x-api-key: ", f"sk-ant-api03-b2{letters(40)}", ""),
    ("google", "key=", f"AIza{letters(35)}", ""),
    ("telegram", "https://api.telegram.org/bot7012345678:", f"AA{letters(33)}", "/getMe"),
    ("slack", "token=", f"xoxb-{_DICE.randrange(10**12)}-{letters(24)}", ""),
    ("aws id", "aws_access_key_id=", "AKIA" + letters(16).upper(), ""),
    ("aws key", 'aws_secret_access_key = "', letters(40, "/+"), '"'),
    ("connection", "postgres://app:", f"{letters(9)}!{letters(9)}", "@db.internal:5432/app"),
    ("private key", "", pem(), ""),
    ("jwt", "jwt ", f"eyJ{letters(20)}.eyJ{letters(60)}.{letters(43)}", ""),
    ("github", "remote: ", f"ghp_{letters(36)}", ""),
    ("known", "id ", KNOWN, ""),
    ("of a server", "login ", OF_SERVER, ""),
    ("basic auth", "https://robot:", letters(20), "@git.example.org/x.git"),
    ("header", "Authorization: Basic ", base64.b64encode(letters(24).encode()).decode(), ""),
):
    SECRETS[_kind] = (f"{_before}{_secret}{_after}", _secret)
ALL = "\n".join(text for text, _ in SECRETS.values())


def leaks(text: str) -> dict[str, str]:
    """By kind, the first piece of a secret that stands in the text."""
    found: dict[str, str] = {}
    for kind, (_, secret) in SECRETS.items():
        for line in secret.splitlines():
            rows = (line[at : at + _PIECE] for at in range(len(line) - _PIECE + 1) if "KEY---" not in line)
            for row in rows:
                if row in text:
                    found.setdefault(kind, row)
    return found


def encoded(text: str) -> list[str]:
    """The secrets that the bridge knows by value whose base64 form, or half of it, stands in the text."""
    found = []
    for secret in (KNOWN, OF_SERVER):
        for shift in range(3):
            inside = base64.b64encode(b"\0" * shift + secret.encode()).decode()[4:-4]
            if any(inside[at : at + _PIECE] in text for at in range(len(inside) - _PIECE + 1)):
                found.append(inside)
    return found


def spread(width: int) -> str:
    """A long text in which the cut between head and tail goes through a secret wherever it is."""
    return "\n".join(f"{n} {'.' * (n % width)} {SECRETS['jwt'][0]} {ALL}" for n in range(40))


SERVER = textwrap.dedent(
    """
    import json, os, sys
    said = json.load(open(sys.argv[1]))
    TOOLS = ["result", "structured", "error", "refused", "long", "progress", "embedded", "dies"]

    def send(**message):
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    def call(rid, name, token):
        text = {"content": [{"type": "text", "text": said["all"]}]}
        if name == "dies":
            sys.stderr.write(said["all"] + "\\nlast words: " + said["line"] + "\\n")
            sys.stderr.flush()
            os._exit(3)
        if name == "refused":
            return send(id=rid, error={"code": -32000, "message": said["line"]})
        if name == "error":
            text["isError"] = True
        if name == "structured":
            text = {"content": [], "structuredContent": {"inside": json.dumps({"log": said["all"]})}}
        if name == "long":
            text["content"][0]["text"] = said["long"]
        if name == "embedded":
            text = {"content": [{"type": "resource", "resource": {"uri": "x://1", "text": said["all"]}}]}
        if name == "progress":
            send(method="notifications/progress", params={
                "progressToken": token, "progress": 1, "total": 2, "message": said["line"]})
            send(method="notifications/message", params={"level": "error", "data": said["line"]})
        send(id=rid, result=text)

    for line in sys.stdin:
        request = json.loads(line)
        rid, method, params = request.get("id"), request["method"], request.get("params") or {}
        if method == "initialize":
            able = {"tools": {}, "resources": {}, "prompts": {}, "logging": {}}
            send(id=rid, result={"protocolVersion": "2025-06-18", "capabilities": able,
                                 "serverInfo": {"name": "leak", "version": "1"}})
        elif method == "tools/list":
            send(id=rid, result={"tools": [
                {"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
                for name in TOOLS]})
        elif method == "tools/call":
            call(rid, params["name"], (params.get("_meta") or {}).get("progressToken"))
        elif method == "resources/list":
            send(id=rid, result={"resources": [{"uri": "x://2", "name": "dump"}]})
        elif method == "resources/read":
            send(id=rid, result={"contents": [{"uri": "x://2", "text": said["all"]}]})
        elif method == "prompts/list":
            send(id=rid, result={"prompts": [{"name": "tell"}]})
        elif method == "prompts/get":
            words = {"role": "user", "content": {"type": "text", "text": "tell " + said["all"]}}
            send(id=rid, result={"messages": [words]})
        elif rid is not None:
            send(id=rid, error={"code": -32601, "message": "unknown"})
    """
)
MCP_TOOLS = ("result", "structured", "error", "refused", "long", "progress", "embedded", "dies")


def script(page: str) -> Any:
    """One step after the other: every tool that brings secrets; what it brought is said to the person."""
    colours = "sed 's/^.*$/\\x1b[31m&\\x1b[0m/' dump.txt; cat spread.txt"
    steps = [
        *(Call(f"leak__{name}") for name in MCP_TOOLS),
        Call("read", {"path": "dump.txt"}),
        Call("read", {"path": "dump.txt", "offset": 12, "limit": 14}),
        *(Call("read", {"path": "line.txt", "byte": at}) for at in (1, 30, 60, 200, 420, 640)),
        Call("read", {"path": "spread.txt"}),
        Call("search", {"pattern": "."}),
        Call("search", {"pattern": SECRETS["openai"][1][:9], "literal": True}),
        Call("bash", {"command": colours}),
        Call("bash", {"command": "cat dump.txt >&2; exit 3"}),
        Call("bash", {"command": "for n in id login; do sed -n s/^$n//p dump.txt | base64; done"}),
        Call("web_fetch", {"url": page}),
        Call("web_fetch", {"url": page, "start": 300}),
        Call("web_fetch", {"url": f"{page}/missing"}),
        Call("write", {"path": "../outside.txt", "content": "x"}),
    ]  # fmt: skip

    def answer(seen: Seen) -> Say:
        if seen.last_user.startswith("break"):
            return Say(status=400, text=f"bad request: {SECRETS['openai'][0]}; {SECRETS['connection'][0]}")
        if not seen.last_user.startswith("go"):
            return Say(f"re: {seen.last_user}")
        done = sum(message["role"] == "tool" for message in seen.body["messages"])
        if done == len(steps):
            return Say(f"all done: {''.join(seen.results)}")
        return Say(f"It said: {''.join(seen.results)}"[:3000], calls=(steps[done],))

    return answer, len(steps)


def more_than(fake: FakeTelegram, count: int) -> bool:
    return len(fake.chat(5).shown) > count


def in_chat(fake: FakeTelegram, words: str) -> bool:
    return words in fake.chat(5).text


async def test_secrets_of_ten_kinds_and_more_reach_no_prompt_log_chat_or_disk(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outside, workspace = tmp_path / "outside", tmp_path / "workspace"
    outside.mkdir()
    workspace.mkdir()
    said = {"all": ALL, "line": ALL.replace("\n", " | "), "long": spread(97)}
    (outside / "said.json").write_text(json.dumps(said))
    (outside / "server.py").write_text(SERVER)
    command = {"command": sys.executable, "args": [str(outside / "server.py"), str(outside / "said.json")]}
    entry = {**command, "env": {"LEAK_LOGIN_TOKEN": OF_SERVER}}
    (workspace / "mcp.json").write_text(json.dumps({"mcpServers": {"leak": entry}}))
    (workspace / ".env").write_text(f"NOTES_TOKEN={KNOWN}\n")

    async def page(request: web.Request) -> web.Response:
        return web.Response(text=f"<html><p>{spread(31)}</p></html>", content_type="text/html",
                            status=404 if "missing" in request.path else 200)  # fmt: skip

    server = web.Application()
    server.router.add_get("/{rest:.*}", page)
    runner = web.AppRunner(server)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host = f"127.0.0.1:{runner.addresses[0][1]}"
    answer, steps = script(f"http://{host}/page")
    root, ours = logging.getLogger(), logging.getLogger("causeway")
    before = root.handlers[:], root.level, ours.level
    try:
        async with FakeTelegram() as fake, ScriptedModel(answer).running() as model:
            settings: dict[str, Any] = {
                "model": openai_at(model.openai_url),
                "channels": {"telegram": {"token": TOKEN, "base_url": fake.url}},
                "access": {"default": {"admins": ["5"]}},
                "sessions": {"max_steps": steps + 5},
                "tools": {
                    "bash": {"enabled": True},
                    "web_fetch": {"allow_hosts": [host]},
                    "policy": [{"effect": "allow", "tools": ["*"]}],
                    "result_chars": 6000,
                },
                "log": {"level": "debug"},
            }
            config = load_config(write_config(tmp_path, settings), clean_environ(tmp_path))
            app = App(config)
            set_up("debug", "text", app.masker)
            await app.start()
            try:
                async with asyncio.timeout(30):
                    while not (app.mcp.tools and app.mcp.resources() and app.mcp.prompts()):
                        await app.maintenance.settled()
                folder = app.session_folder("telegram:direct:5")
                folder.mkdir(parents=True)
                planted = [folder / name for name in ("dump.txt", "line.txt", "spread.txt")]
                for file, text in zip(planted, (ALL, said["line"], spread(41)), strict=True):
                    file.write_text(text)
                fake.say(5, "go")
                await fake.wait_for(lambda: "all done" in fake.chat(5).text, 60)
                for words, shown in (
                    ("/resource dump", "attached"),
                    ("/prompt tell", "tell key"),
                    ("what is it?", "what is it?"),
                    ("break", "bad"),
                    ("/mcp", "leak"),
                    ("/tools", "leak__"),
                ):
                    count = len(fake.chat(5).shown)
                    fake.say(5, words)
                    await fake.wait_for(partial(more_than, fake, count), 20)
                    if words != "break":
                        await fake.wait_for(partial(in_chat, fake, shown), 20)
                kept = sorted(path.name for path in (folder / "results").iterdir())
            finally:
                await app.stop()
            prompts = json.dumps([seen.body for seen in model.seen], ensure_ascii=False)
            chat = json.dumps(fake.chat(5).shown, ensure_ascii=False)
    finally:
        root.handlers[:], root.level = before[0], before[1]
        ours.setLevel(before[2])
        await runner.cleanup()
    for file in [*planted, workspace / "mcp.json", workspace / ".env"]:
        file.unlink()
    stored = everything(workspace)
    out, err = capfd.readouterr()
    # Everything really took place.
    assert prompts.count("***") > 100
    assert len(model.seen) >= steps + 4
    assert any(name.startswith("leak__long-") for name in kept)
    assert "aws_access_key_id" in stored
    assert "aws_access_key_id" in chat
    assert "results/" in prompts
    for name, text in {"prompts": prompts, "log": out + err, "chat": chat, "stored": stored}.items():
        assert leaks(text.replace("\\/", "/")) == {}, name
        assert encoded(text) == [], name


async def test_what_a_tool_raises_is_told_without_secrets_in_the_result_and_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def raises(params: dict[str, Any], context: ToolContext) -> ToolResult:
        raise RuntimeError(ALL.replace("\n", " | "))

    masker = Masker([KNOWN, OF_SERVER])
    manager = ToolManager(ToolSettings(), mcp=Source(tool("raises", raises)), masker=masker)
    await manager.start()
    caplog.handler.addFilter(MaskingFilter(masker))
    context = ToolContext("s", "r", tmp_path, Caller("1", admin=True), lambda name: None)
    with caplog.at_level(logging.DEBUG):
        result = await manager.call(manager.catalog, "raises", "c1", {}, context)
    await manager.stop()
    assert result.is_error
    assert "RuntimeError" in result.text
    assert leaks(result.text) == {}
    assert "Traceback" in caplog.text
    assert leaks(caplog.text) == {}
