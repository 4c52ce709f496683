"""`causeway doctor`: what it finds, on real files, real servers and a running bridge."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent.tools.masking import Masker
from bridge import doctor, doctor_checks, doctor_outside
from bridge.cli import parser
from bridge.cli_terminal import Terminal
from bridge.config import load_config
from bridge.doctor import Group, examine
from channels.base import Finding
from tests.fakes.llm import Say, ScriptedModel
from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.harness import Process, bridge, clean_environ, openai_at, write_config


@pytest.fixture
async def telegram() -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram() as server:
        yield server


async def look(
    folder: Path, settings: Mapping[str, Any], *, language: str = "en", probe: bool = False
) -> dict[str, list[Finding]]:
    """The findings by group."""
    config = load_config(write_config(folder, settings), clean_environ(folder))
    groups = await examine(config, language, probe=probe)
    return {group.name: list(group.findings) for group in groups}


def bad(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.level != "ok"]


def said(findings: list[Finding], level: str) -> str:
    return "\n".join(f"{one.what} → {one.cure}" for one in findings if one.level == level)


# -- the house ---------------------------------------------------------------------------------------------


async def test_a_fresh_folder_is_well_but_for_the_model_and_is_left_untouched(tmp_path: Path) -> None:
    found = await look(tmp_path, {})
    assert {name for name, findings in found.items() if bad(findings)} == {"model"}
    assert "no real model" in said(found["model"], "warning")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml"]


async def test_a_workspace_that_cannot_be_used_is_an_error_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = await look(tmp_path, {"workspace": str(tmp_path / "file" / "workspace")})
    assert "file" in said(found["workspace"], "error")
    assert "chown" in said(found["workspace"], "error")


async def test_files_with_secrets_that_others_can_read_are_told(tmp_path: Path) -> None:
    settings = {"channels": {"tg": {"type": "telegram", "token": TOKEN, "base_url": "http://127.0.0.1:9"}}}
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / ".env").write_text("A_TOKEN=abcdefghijklmnop\n")
    for file in (write_config(tmp_path, settings), tmp_path / "workspace" / ".env"):
        file.chmod(0o644)
    found = await look(tmp_path, settings)
    assert f"chmod 600 {tmp_path / 'config.yaml'}" in said(found["configuration"], "warning")
    assert f"chmod 600 {tmp_path / 'workspace' / '.env'}" in said(found["workspace"], "warning")


async def test_databases_that_cannot_be_used_are_told_apart(tmp_path: Path) -> None:
    async def database(name: str) -> str:
        return said((await look(tmp_path, {"store": {"url": f"sqlite:///{name}"}}))["store"], "error")

    workspace = tmp_path / "workspace"
    async with bridge(tmp_path, {"store": {"url": "sqlite:///ours.db"}}):
        assert await database("ours.db") == ""  # also while a bridge works with it
    assert await database("ours.db") == ""
    (workspace / "noise.db").write_bytes(b"no database at all" * 1000)
    assert "damaged" in await database("noise.db")
    with closing(sqlite3.connect(workspace / "other.db")) as db:
        db.execute("CREATE TABLE t (x)")
    assert "another program" in await database("other.db")
    whole = (workspace / "ours.db").read_bytes()
    (workspace / "torn.db").write_bytes(whole[:8192] + b"\xff" * 4096 + whole[12288:])
    assert "damaged" in await database("torn.db")
    with closing(sqlite3.connect(workspace / "ours.db")) as db:
        db.execute("PRAGMA user_version = 99")
    assert "newer" in await database("ours.db")
    with closing(sqlite3.connect(workspace / "ours.db")) as db:  # it was only looked at
        assert db.execute("PRAGMA user_version").fetchone() == (99,)


async def test_a_database_of_an_older_version_is_not_brought_up_to_date(tmp_path: Path) -> None:
    settings = {"channels": {"tg": {"type": "telegram", "token": "no token"}}}
    async with bridge(tmp_path, settings):
        pass
    file = tmp_path / "workspace" / "causeway.db"
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA user_version = 1")
    found = await look(tmp_path, settings)
    assert "older version" in said(found["access"], "warning")
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)


async def test_a_port_that_another_program_has_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        found = await look(tmp_path, {"server": {"port": other.getsockname()[1]}})
    assert "Another program listens" in said(found["bridge"], "error")


async def test_a_server_for_all_networks_without_tls_is_warned_of(tmp_path: Path) -> None:
    found = await look(tmp_path, {"server": {"host": "0.0.0.0", "port": 0}})
    assert "without TLS" in said(found["server"], "warning")
    whole = {"host": "0.0.0.0", "port": 0, "public_url": "https://bot.example.org"}
    assert bad((await look(tmp_path, {"server": whole}))["server"]) == []


# -- model and channels ------------------------------------------------------------------------------------


async def test_a_probe_gets_a_real_answer_or_says_why_not(tmp_path: Path) -> None:
    async with ScriptedModel([Say("OK")]).running() as model:
        found = await look(tmp_path, {"model": openai_at(model.openai_url)}, probe=True)
        assert bad(found["model"]) == []
        assert "answers (" in found["model"][0].what
        assert len(model.seen) == 1
        found = await look(tmp_path, {"model": openai_at(model.openai_url)})
        assert len(model.seen) == 1  # without --probe nothing is paid for
    fallback = openai_at("http://127.0.0.1:9/v1")
    found = await look(tmp_path, {"model": {"provider": "demo", "fallbacks": [fallback]}}, probe=True)
    assert "model.fallbacks[0]: " in said(found["model"], "error")
    assert "base_url" in said(found["model"], "error")
    assert "sk-test" not in str(found)


async def test_each_channel_is_checked_with_its_groups_and_its_people(
    tmp_path: Path, telegram: FakeTelegram
) -> None:
    telegram.chat(-100123, type="supergroup", title="Team")
    channel = {"type": "telegram", "token": TOKEN, "base_url": telegram.url}
    settings = {
        "channels": {"tg": channel, "off": {**channel, "token": "1:wrong"}, "web": {}},
        "access": {"tg": {"direct": "open", "groups": "open", "chats": {"-100123/7": {}, "-100999": {}}}},
    }
    found = await look(tmp_path, settings)
    assert "@TheBot" in said(found["channel:tg"], "ok")
    assert "/setprivacy" in said(found["channel:tg"], "warning")
    assert "Team" in "".join(one.what for one in found["channel:tg"])
    assert "-100999" in said(found["channel:tg"], "error")
    assert "BotFather" in said(found["channel:off"], "error")
    people = said(found["access"], "warning")
    assert "causeway pair invite --channel tg --role admin" in people
    assert "nothing limits" in people
    assert "groups: open" in people
    assert "channel:web" not in found


async def test_a_channel_that_hangs_holds_nobody_up(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    from channels.telegram.channel import TelegramChannel

    async def never(self: TelegramChannel, language: str = "") -> list[Finding]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(TelegramChannel, "check", never)
    monkeypatch.setattr(doctor_outside, "CHANNEL", 0.05)
    found = await look(tmp_path, {"channels": {"tg": {"type": "telegram", "token": TOKEN}}})
    assert "No answer within" in said(found["channel:tg"], "error")
    assert found["machine"]


async def test_a_check_with_a_fault_of_its_own_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(scene: doctor_checks.Scene) -> list[Finding]:
        raise ZeroDivisionError("oh")

    monkeypatch.setitem(doctor_checks.CHECKS, "skills", broken)
    found = await look(tmp_path, {})
    assert "ZeroDivisionError" in said(found["skills"], "error")
    assert found["machine"]


async def test_packages_that_a_channel_lacks_are_named_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor_outside.missing_packages("telegram") == []
    monkeypatch.setattr(doctor_outside, "_installed", lambda name: name != "wechatpy")
    settings = {"corp_id": "c", "agent_id": 1, "secret": "s", "token": "t", "aes_key": "k"}
    found = await look(tmp_path, {"channels": {"wecom": settings}})
    assert "wechatpy" in said(found["channel:wecom"], "error")
    assert "causeway[wechat]" in said(found["channel:wecom"], "error")


async def test_a_clock_that_is_wrong_is_told(
    tmp_path: Path, telegram: FakeTelegram, monkeypatch: Any
) -> None:
    async def ahead(root: str) -> float:
        assert root == telegram.url
        return 300.0

    settings = {"channels": {"tg": {"type": "telegram", "token": TOKEN, "base_url": telegram.url}}}
    assert bad((await look(tmp_path, settings))["machine"]) == []
    monkeypatch.setattr(doctor_checks, "_drift", ahead)
    assert "300 s" in said((await look(tmp_path, settings))["machine"], "error")


# -- tools and skills --------------------------------------------------------------------------------------


async def test_faults_of_mcp_json_and_of_skills_are_found_with_their_lines(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "skills" / "empty").mkdir(parents=True)
    (workspace / "skills" / "empty" / "SKILL.md").write_text("---\nname: empty\n---\nno description")
    text = """{"mcpServers": {
      "gone": {"command": "no-such-program-here"},
      "gone": {"command": "no-such-program-here", "colour": 1},
      "odd": {"args": []}
    }}"""
    (workspace / "mcp.json").write_text(text)
    found = await look(tmp_path, {})
    errors = said(found["mcp"], "error")
    assert "no-such-program-here" in errors
    assert "causeway mcp test gone" in errors
    assert "mcp.json:4" in errors
    assert "given twice" in said(found["mcp"], "warning")
    assert "empty" in said(found["skills"], "error")
    (workspace / "mcp.json").write_text('{"mcpServers": {')
    assert "mcp.json" in said((await look(tmp_path, {}))["mcp"], "error")


# -- a running bridge --------------------------------------------------------------------------------------


async def test_a_running_bridge_tells_how_its_channels_and_servers_are(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "workspace").mkdir()
    servers = {"gone": {"command": "no-such-program-here"}}
    (tmp_path / "workspace" / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    channel = {"type": "telegram", "token": TOKEN, "base_url": "http://127.0.0.1:9"}
    settings = {"server": {"port": port}, "channels": {"web": {}, "tg": channel}}
    async with bridge(tmp_path, settings) as app:
        await app.mcp.settle(10)
        async with asyncio.timeout(10):
            while app.channels["tg"].health().ok:
                await asyncio.sleep(0.01)
        more = {**channel, "token": "2:b"}
        found = await look(tmp_path, {**settings, "channels": {"web": {}, "tg": channel, "new": more}})
    assert f"http://127.0.0.1:{port}" in said(found["bridge"], "ok")
    assert "tg: " in said(found["bridge"], "error")
    assert "no channel new" in said(found["bridge"], "warning")
    assert "gone does not work" in said(found["mcp"], "error")
    found = await look(tmp_path, settings)
    assert "No bridge runs" in said(found["bridge"], "ok")


# -- what is printed ---------------------------------------------------------------------------------------


def ran(capsys: pytest.CaptureFixture[str], folder: Path, *words: str, **environ: str) -> tuple[int, str]:
    options = parser().parse_args(["doctor", "--config", str(folder / "config.yaml"), *words])
    code = doctor.run(options, clean_environ(folder, **environ))
    return code, capsys.readouterr().out


def test_a_configuration_that_does_not_load_is_shown_with_its_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("modle: {}\nserver:\n  port: x\n")
    code, output = ran(capsys, tmp_path, LC_ALL="zh_CN.UTF-8")
    assert code == 1
    assert "config.yaml:1: modle" in output
    assert "config.yaml:3: server.port" in output
    assert "Python 3" in output
    assert "2 个错误" in output


def test_json_is_for_programs_and_holds_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "sk-secret-0123456789"
    write_config(tmp_path, {"model": {"provider": "openai", "name": secret, "api_key": secret}})
    code, output = ran(capsys, tmp_path, "--json")
    whole = json.loads(output)
    assert (code, whole["ok"], whole["errors"]) == (0, True, 0)
    assert {"level", "what", "cure"} == set(whole["groups"][0]["findings"][0])
    assert secret not in output
    (tmp_path / "config.yaml").write_text("x: 1")
    code, output = ran(capsys, tmp_path, "--json")
    assert (code, json.loads(output)["ok"]) == (1, False)


def test_only_what_is_to_be_changed_is_shown_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    groups = [
        Group("a", "A", (Finding("ok", "fine"), Finding("warning", "odd\nindeed", "do this"))),
        Group("b", "B", (Finding("ok", "fine"),)),
    ]
    terminal = Terminal("en", {}, Masker(["hidden-secret"]))
    assert doctor.show(groups, terminal, brief=True)
    output = capsys.readouterr().out
    assert "fine" not in output
    assert "B\n" not in output
    assert output.startswith("A\n  ! odd\n    indeed\n      → do this\n")
    assert not doctor.show([Group("a", "A", (Finding("error", "hidden-secret"),))], terminal)
    assert "✗ ***" in capsys.readouterr().out


async def test_the_command_works_in_a_terminal_without_unicode(tmp_path: Path) -> None:
    process = Process(write_config(tmp_path, {}), tmp_path, "doctor", environ={"PYTHONIOENCODING": "ascii"})
    await process.start(ready=False)
    assert process.process is not None
    async with asyncio.timeout(30):
        assert await process.process.wait() == 0
    await process.close()
    assert "  ok " in process.output
    assert "0 error(s), 1 warning(s)." in process.output
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
