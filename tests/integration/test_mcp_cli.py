"""`causeway mcp`: its commands against real servers, good and broken ones, and a running bridge."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from agent.tools.masking import Masker
from bridge.app import App
from bridge.cli import parser
from bridge.cli_mcp import run
from bridge.config import load_config
from bridge.http import Guard, Server
from bridge.mcp_admin import routes
from tests.fakes.mcp_bench import FAKES, living, plain, until
from tests.fakes.mcp_oauth import browse, guarded
from tests.harness import bridge, clean_environ, write_config

TIME = {"command": sys.executable, "args": ["-m", "mcp_server_time"]}


def python(code: str, **entry: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-c", code], **entry}


def behind(noise: str) -> dict[str, Any]:
    """The plain fake, after a line that is no message."""
    fake = f"runpy.run_path({str(FAKES / 'mcp_plain.py')!r}, run_name='__main__')"
    return python(f"print({noise!r}, flush=True)\nimport runpy,sys\nsys.argv=['x']\n{fake}")


def write(folder: Path, servers: Mapping[str, Any] | str) -> Path:
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    text = servers if isinstance(servers, str) else json.dumps({"mcpServers": servers}, indent=1)
    (workspace / "mcp.json").write_text(text)
    return write_config(folder, {})


class Shell:
    """Commands in this process, as `causeway` would run them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._capsys = capsys
        self.error = ""

    async def __call__(self, *words: str, **environ: str) -> tuple[int, str]:
        config = load_config(self._folder / "config.yaml", clean_environ(self._folder, **environ))
        options = parser().parse_args(["mcp", *words])
        self._capsys.readouterr()
        code = await run(config, options, Masker(config.secrets()))
        output, self.error = self._capsys.readouterr()
        self.error = " ".join(self.error.split())
        return code, output

    async def walks(self, *words: str, **environ: str) -> tuple[int, dict[str, Any], list[Any]]:
        """`mcp test --json`: the exit code, each server's walk, the hints."""
        code, output = await self("test", "--json", *words, **environ)
        found = json.loads(output)
        return code, {server["name"]: server for server in found["servers"]}, found["hints"]


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capsys)


def broken(walk: dict[str, Any]) -> tuple[str, str]:
    """The link at which a walk ended, and all that is said about it."""
    last = walk["steps"][-1]
    assert last["state"] == "broken", walk["steps"]
    assert not walk["ok"]
    return last["link"], f"{last['text']} {last['cure']}"


# Testing ------------------------------------------------------------------------------------------------


async def test_a_good_server_is_walked_up_to_a_call(tmp_path: Path, shell: Shell) -> None:
    write(tmp_path, {"time": TIME})
    words = ("--call", "get_current_time", "--args", '{"timezone": "Asia/Tokyo"}')
    code, output = await shell("test", "time", *words)
    assert code == 0
    lines = output.splitlines()
    assert lines[0] == "time"
    assert re.findall(r"^  ok +(\w+)", output, re.MULTILINE) == [
        "entry", "process", "handshake", "tools", "call"]  # fmt: skip
    assert re.search(r"agreed on protocol 20\d\d-\d\d-\d\d", output)
    assert '|   "timezone": "Asia/Tokyo",' in output
    assert re.search(r"ready in [\d.]+ m?s; 2 tools, about \d+ tokens", output)


async def test_each_fault_is_named_at_its_link_with_what_to_do(tmp_path: Path, shell: Shell) -> None:
    soon = {"start_timeout": 2.5}
    servers: dict[str, Any] = {
        "good": plain(),
        "missing": {"command": "npx-is-not-here"},
        "spaced": {"command": "python3 server.py"},
        "no-folder": plain(cwd="nowhere"),
        "not-a-program": {"command": str(tmp_path / "config.yaml")},
        "banner": python("print('Listening on 3000', flush=True)\nimport time\ntime.sleep(60)", **soon),
        "prints-and-ends": python("print('usage: server [--stdio]')"),
        "endless": {"command": "yes"},
        "hangs": plain("--hang", **soon),
        "dies": plain("--refuse-to-start"),
        "dies-on-list": plain("--die-on-list"),
        "unset": plain(env={"K": "${NOT_SET_ANYWHERE}"}),
        "off": {"command": "never-looked-at", "disabled": True},
    }
    write(tmp_path, servers)
    code, walks, _ = await shell.walks()
    assert code == 1
    assert set(walks) == set(servers) - {"off"}
    assert walks["good"]["ok"]
    found = {name: broken(walk) for name, walk in walks.items() if name != "good"}
    for name, link, *words in (
        ("missing", "process", "npx-is-not-here", "not found", "full path"),
        ("spaced", "process", "arguments go into 'args'"),
        ("no-folder", "process", "'cwd'", "nowhere", "Create"),
        ("not-a-program", "process", "not found", "may be executed"),
        ("banner", "process", "Listening on 3000", "stderr"),
        ("prints-and-ends", "process", "exit code 0", "usage: server", "stdio"),
        ("endless", "process", "1000 lines", "'y'"),
        ("hangs", "process", "2.5 s", "start_timeout", '"-u" first'),
        ("dies", "process", "exit code 7", "no database at", "by hand"),
        ("dies-on-list", "tools", "exit code 5", "fault of the server"),
        ("unset", "entry", "NOT_SET_ANYWHERE", "line "),
    ):
        at, text = found[name]
        assert at == link, (name, at, text)
        assert all(word in text for word in words), (name, text)


async def test_a_banner_on_stdout_is_told_though_the_server_works(tmp_path: Path, shell: Shell) -> None:
    write(tmp_path, {"noisy": behind("Welcome to my server")})
    code, walks, _ = await shell.walks("noisy")
    assert code == 0
    step = walks["noisy"]["steps"][1]
    assert (step["link"], step["state"]) == ("process", "odd")
    assert "'Welcome to my server'" in step["text"]
    assert "stderr" in step["cure"]
    assert len(walks["noisy"]["tools"]) == 7


async def test_a_faulty_tool_is_left_out_and_filters_are_counted(tmp_path: Path, shell: Shell) -> None:
    tools = [{"name": f"t{n}", "description": "Use it.", "inputSchema": {"type": "object"}} for n in range(5)]
    listing = tmp_path / "tools.json"
    listing.write_text(json.dumps([*tools, {"name": "bad", "inputSchema": {"type": "array"}}]))
    pages = plain("--tools", str(listing), "--page", "2", excludeTools=["t0"])
    write(tmp_path, {"a": pages, "none": plain(tools=["nothing-like-it"])})
    code, walks, _ = await shell.walks()
    assert code == 0
    assert [tool["original"] for tool in walks["a"]["tools"]] == ["t1", "t2", "t3", "t4"]
    listed = walks["a"]["steps"][-1]
    assert listed["state"] == "odd"
    assert "'bad'" in listed["text"]
    assert "filters let 4 through" in listed["text"]
    assert "'tools'" in walks["none"]["steps"][-1]["cure"]


async def test_confusable_names_are_found_across_servers(tmp_path: Path, shell: Shell) -> None:
    write(tmp_path, {"one": plain(tools=["echo"]), "two": plain(tools=["echo", "pid"])})
    code, walks, hints = await shell.walks()
    assert code == 0
    assert {hint["kind"]: hint["tools"] for hint in hints} == {
        "no-when": ["one/echo", "two/echo", "two/pid"],
        "confusable": ["one/echo ~ two/echo"],
    }
    _, output = await shell("list", "--json")
    for server in json.loads(output)["servers"]:
        walk = walks[server["name"]]
        assert server["tokens"] == walk["tokens"] > 10, "the list and the test weigh the same tools otherwise"
        assert [tool["name"] for tool in server["tools"]] == [tool["name"] for tool in walk["tools"]]


async def test_a_call_that_goes_wrong_says_what_the_tool_takes(tmp_path: Path, shell: Shell) -> None:
    write(tmp_path, {"p": plain()})
    _, walks, _ = await shell.walks("p", "--call", "p__shapes", "--args", '{"kind": "error"}')
    link, text = broken(walks["p"])
    assert link == "call"
    assert "It takes kind (string)." in text
    assert walks["p"]["answer"] == "no"
    _, walks, _ = await shell.walks("p", "--call", "ecco")
    assert "Did you mean 'echo'?" in broken(walks["p"])[1]
    _, walks, _ = await shell.walks("p", "--call", "die")
    assert "exit code 3" in broken(walks["p"])[1]
    _, walks, _ = await shell.walks("p", "--call", "refused")
    assert broken(walks["p"])[0] == "call"


async def test_wrong_usage_is_explained(tmp_path: Path, shell: Shell) -> None:
    write(tmp_path, {"weather": plain(), "bad": {"command": "x", "url": "http://y"}})
    for words, expected in (
        (("test", "wether"), "Did you mean 'weather'?"),
        (("login", "wether"), "Did you mean 'weather'?"),
        (("login", "bad"), "keep one of them"),
        (("test", "--call", "echo"), "NAME --call echo"),
        (("test", "weather", "--args", "{}"), "--call"),
        (("test", "weather", "--call", "echo", "--args", "{city}"), "no JSON"),
        (("test", "weather", "--call", "echo", "--args", "[1]"), "no JSON object"),
    ):
        code, output = await shell(*words)
        assert (code, output) == (1, ""), words
        assert expected in shell.error, words
    write(tmp_path, '{"mcpServers": {"a": ')
    code, _ = await shell("test")
    assert code == 1
    assert "mcp.json:1" in shell.error
    assert "half written" in shell.error
    (tmp_path / "workspace" / "mcp.json").unlink()
    for words in (("test",), ("list",)):
        code, output = await shell(*words)
        assert code == 0
        assert "mcpServers" in output


async def test_a_secret_and_the_terminal_are_safe_from_what_a_server_writes(
    tmp_path: Path, shell: Shell
) -> None:
    tools = tmp_path / "tools.json"
    evil = "\x1b[31mred\x1b]0;title\x07"
    tools.write_text(json.dumps([{"name": evil, "inputSchema": {"type": "object"}}]))
    noisy = behind("token is hunter2-hunter2 \x1b[2J")
    noisy["env"] = {"SERVICE_TOKEN": "${SERVICE_TOKEN}"}
    write(tmp_path, {"noisy": noisy, "evil": plain("--tools", str(tools))})
    code, output = await shell("test", SERVICE_TOKEN="hunter2-hunter2")
    assert code == 0
    assert "token is ***" in output
    assert "hunter2" not in output
    assert "\x1b" not in output
    assert "\x07" not in output
    assert "red" in output


# Remote servers -----------------------------------------------------------------------------------------


@asynccontextmanager
async def answering(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    app = web.Application()

    async def handler(request: web.Request) -> web.StreamResponse:
        return await answer(request)

    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Remote:
    """Answers each path with one kind of fault, and `/mcp` as a server of the 2025 protocol."""

    def __init__(self) -> None:
        self.sessions: set[str] = set()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        status = request.path.strip("/")
        if status.isdigit():
            return web.Response(status=int(status), headers={"Location": "/mcp"})
        if status == "page":
            return web.Response(text="<html>hello</html>", content_type="text/html")
        if status == "slow":
            await asyncio.sleep(30)
        if request.method == "DELETE":
            self.sessions.discard(request.headers["Mcp-Session-Id"])
            return web.Response()
        if request.method != "POST" or not request.can_read_body:
            return web.Response(status=405)
        message = await request.json()
        if message.get("id") is None:
            return web.Response(status=202)
        if message["method"] == "tools/list":
            result: dict[str, Any] = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
        elif message["method"] == "initialize":
            self.sessions.add(session := f"s{len(self.sessions)}")
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                      "serverInfo": {"name": "r", "version": "1"}}  # fmt: skip
            whole = {"jsonrpc": "2.0", "id": message["id"], "result": result}
            return web.json_response(whole, headers={"Mcp-Session-Id": session})
        else:
            error = {"code": -32601, "message": "unknown method"}
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error})
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})


async def test_a_remote_fault_is_told_from_its_address_and_its_answer(tmp_path: Path, shell: Shell) -> None:
    remote = Remote()
    async with answering(remote) as url:
        servers: dict[str, Any] = {
            "good": {"url": f"{url}/mcp"},
            "wrong-path": {"url": f"{url}/404"},
            "older": {"url": f"{url}/405"},
            "login": {"url": f"{url}/401"},
            "stale": {"url": f"{url}/401", "headers": {"Authorization": "Bearer wrong-wrong-wrong"}},
            "down": {"url": f"{url}/503"},
            "page": {"url": f"{url}/page"},
            "slow": {"url": f"{url}/slow", "start_timeout": 1},
            "no-sse": {"url": f"{url}/page", "type": "sse"},
            "no-name": {"url": "http://no-such-name.invalid/mcp"},
            "refused": {"url": "http://127.0.0.1:9/mcp"},
            "plain-port": {"url": f"{url.replace('http:', 'https:')}/mcp"},
        }
        write(tmp_path, servers)
        code, walks, _ = await shell.walks()
    assert code == 1
    assert walks["good"]["ok"], walks["good"]
    assert remote.sessions == set(), "a session was left open at the server"
    for name, link, *words in (
        ("wrong-path", "address", "HTTP 404", "path", "/mcp"),
        ("older", "address", "HTTP 405", '"type": "sse"'),
        ("login", "handshake", "HTTP 401", "causeway mcp login login"),
        ("stale", "handshake", "HTTP 401", "Authorization"),
        ("down", "address", "HTTP 503", "try again later"),
        ("page", "address", "a web page"),
        ("slow", "address", "did not answer within 1 s"),
        ("no-sse", "address", "a web page", "leave out 'type'"),
        ("no-name", "address", "no-such-name.invalid", "resolved"),
        ("refused", "address", "127.0.0.1:9", "Start the server"),
        ("plain-port", "address", "https://"),
    ):
        at, text = broken(walks[name])
        assert at == link, (name, at, text)
        assert all(word in text for word in words), (name, text)
        assert "wrong-wrong" not in text


# As a program -------------------------------------------------------------------------------------------


async def program(folder: Path, *words: str, through: str = "") -> tuple[int, str]:
    """`causeway mcp …` in a shell, both streams; `through` is what its output is piped into."""
    command = f"{sys.executable} -m bridge.cli mcp {' '.join(words)} --config {folder / 'config.yaml'} 2>&1"
    process = await asyncio.create_subprocess_exec(
        "/bin/bash", "-o", "pipefail", "-c", command + through,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        env={**clean_environ(folder), "COLUMNS": "80"}, cwd=folder,
    )  # fmt: skip
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_the_output_fits_80_columns_and_survives_a_pipe(tmp_path: Path) -> None:
    write(tmp_path, {"plain": plain(), "hangs": plain("--hang", start_timeout=1), "no": {"command": "no-no"}})
    whole, cut = await asyncio.gather(
        program(tmp_path, "list"), program(tmp_path, "test", "plain", through=" 2>errors | head -n 1")
    )
    code, output = whole
    assert code == 1
    assert "No bridge runs in" in output
    assert re.search(r"^plain +ready +7 tools +\d+ tokens +[\d.]+ m?s$", output, re.MULTILINE)
    assert re.search(r"^hangs +failed$", output, re.MULTILINE)
    assert "1 of 3 ready; 7 tools" in output
    assert max(len(line) for line in output.splitlines() if str(tmp_path) not in line) < 80
    assert "\x1b" not in output
    assert cut[1] == "plain\n"
    assert (tmp_path / "errors").read_text() == ""


async def test_a_test_that_is_terminated_leaves_no_process(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    write(tmp_path, {"h": plain("--hang", "--child", "--pids", str(pids))})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bridge.cli", "mcp", "test", "--config", str(tmp_path / "config.yaml"),
        stdout=asyncio.subprocess.DEVNULL, env=clean_environ(tmp_path), cwd=tmp_path,
    )  # fmt: skip
    try:
        await until(lambda: len(living(pids)) == 2, 30)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await process.wait() == 143
        assert living(pids) == []
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


# With a running bridge ----------------------------------------------------------------------------------


class _Mounted:
    """The admin's routes as a local channel would bring them."""

    local = True

    def __init__(self, app: App) -> None:
        self._app = app

    def routes(self) -> Any:
        return routes(self._app)


@asynccontextmanager
async def running(folder: Path, key: str | None = None) -> AsyncIterator[tuple[App, str]]:
    """A bridge with the admin's routes behind the guard, and their port."""
    async with bridge(folder, {}) as app:
        guard = Guard("127.0.0.1", key, ())
        server = Server("127.0.0.1", 0, guard, {"mcp": _Mounted(app)})  # type: ignore[dict-item]
        await server.start()
        try:
            yield app, str(server.port)
        finally:
            await server.stop()


async def test_reload_says_what_changed_and_restart_starts_anew(tmp_path: Path, shell: Shell) -> None:
    pids = tmp_path / "pids"
    write(tmp_path, {"a": plain("--pids", str(pids))})
    async with running(tmp_path) as (app, port):
        assert await app.mcp.settle(20)
        write(
            tmp_path, {"a": plain("--pids", str(pids)), "b": plain(tools=["echo"]), "c": {"command": "no-no"}}
        )
        skill = tmp_path / "workspace" / "skills" / "brew"
        skill.mkdir()
        (skill / "SKILL.md").write_text("---\nname: brew\ndescription: Brew tea. Use for tea.\n---\nx\n")
        code, output = await shell("reload", "--port", port)
        assert code == 0
        assert "added: b, c\ntools added: b__echo\nskills added: brew\n" in output
        assert re.search(r"^c +failed\n +the command 'no-no' was not found", output, re.MULTILINE)
        code, output = await shell("reload", "--port", port)
        assert code == 0
        assert output.startswith("Nothing has changed")

        before = living(pids)
        code, output = await shell("restart", "a", "--port", port)
        assert code == 0
        assert re.match(r"a +ready +7 tools", output)
        assert len(living(pids)) == 1
        assert living(pids) != before
        code, output = await shell("restart", "c", "--port", port)
        assert code == 1
        assert "was not found" in output

        code, output = await shell("list", "--json", "--port", port)
        assert code == 1
        states = {server["name"]: server["state"] for server in json.loads(output)["servers"]}
        assert states == {"a": "ready", "b": "ready", "c": "failed"}
        assert len(pids.read_text().split()) == 2, "the list started a server of its own"

        write(tmp_path, '{"mcpServers": {"a": ')
        code, output = await shell("reload", "--port", port)
        assert code == 1
        assert "half written" in " ".join(output.split())
        assert re.search(r"^a +ready", output, re.MULTILINE)


async def test_restart_of_an_unknown_a_disabled_or_a_faulty_server_is_explained(
    tmp_path: Path, shell: Shell
) -> None:
    write(tmp_path, {"weather": plain(), "off": plain(disabled=True), "bad": {"command": "x", "url": "y"}})
    async with running(tmp_path) as (_, port):
        for name, expected in (
            ("wether", "Did you mean 'weather'?"),
            ("off", "switched off"),
            ("bad", "faulty"),
        ):
            assert await shell("restart", name, "--port", port) == (1, "")
            assert expected in shell.error


async def test_without_the_right_bridge_the_reason_is_told(tmp_path: Path, shell: Shell) -> None:
    write(tmp_path, {"a": plain()})
    assert (await shell("reload"))[0] == 1
    assert "No bridge runs in" in shell.error
    async with running(tmp_path) as (_, port), answering(Remote()) as other:
        assert (await shell("reload", "--port", "9"))[0] == 1
        assert "A bridge runs in" in shell.error
        assert "--port" in shell.error
        assert (await shell("reload", "--port", other.rpartition(":")[2]))[0] == 1
        assert "is no bridge" in shell.error
        elsewhere = tmp_path / "elsewhere"
        write_config(elsewhere, {})
        stranger = Shell(elsewhere, shell._capsys)
        assert (await stranger("reload", "--port", port))[0] == 1
        assert str(tmp_path / "workspace" / "mcp.json") in stranger.error


async def test_the_routes_are_closed_to_other_sites_and_ask_for_the_key(tmp_path: Path, shell: Shell) -> None:
    write(tmp_path, {"a": plain()})
    async with running(tmp_path, key="a-long-enough-key-0123") as (_, port):
        assert (await shell("reload", "--port", port))[0] == 1
        assert "refuses" in shell.error
        key = tmp_path / "workspace" / "server.key"
        key.write_text("a-long-enough-key-0123\n")
        assert (await shell("reload", "--port", port))[0] == 0
    async with running(tmp_path) as (_, port), ClientSession() as client:
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            async with client.post(f"http://127.0.0.1:{port}/mcp/reload", headers=headers) as answer:
                assert answer.status == 403


async def test_after_a_login_in_the_shell_the_server_is_tested_and_listed_as_ready(
    tmp_path: Path, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    async with guarded() as pair:
        write(tmp_path, {"g": {"url": f"{pair.server}/mcp"}})
        code, walks, _ = await shell.walks("g")
        assert code == 1
        assert "causeway mcp login g" in broken(walks["g"])[1]
        task, said = asyncio.create_task(shell("login", "g")), ""

        def shown() -> bool:
            nonlocal said
            said += capsys.readouterr().out
            return "http" in said

        await until(shown)
        await browse(next(word for word in said.split() if word.startswith("http")))
        code, output = await task
        assert code == 0
        assert "Logged in to g." in said + output
        code, walks, _ = await shell.walks("g")
        assert code == 0, walks
        code, output = await shell("list")
        assert code == 0
        assert re.search(r"^g +ready", output, re.MULTILINE)
