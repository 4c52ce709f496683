"""`causeway pair`, `sessions`, `usage` and `audit` without a running bridge, on a real store."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.events import Usage
from agent.history import Assistant, ToolCall, ToolOutput, User
from agent.tools.masking import Masker
from bridge.cli import parser
from bridge.cli_people import run
from bridge.cli_records import transcript
from bridge.config import load_config
from bridge.house_admin import HERE, Desk, alone
from bridge.ledger import Ledger
from bridge.pairing import SECONDS
from bridge.texts_cli import terminal_language
from channels.base import Address, Inbound, Sender
from tests.fakes.telegram import TOKEN
from tests.harness import ROOT, clean_environ, write_config

SETTINGS: dict[str, Any] = {"channels": {"web": {}, "telegram": {"token": TOKEN}}}


class Shell:
    """Commands in this process, as `causeway` would run them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._capsys = capsys
        self.error = ""
        self.config(SETTINGS)

    def config(self, settings: dict[str, Any]) -> None:
        write_config(self._folder, settings)

    async def __call__(self, *words: str, language: str = "en") -> tuple[int, str]:
        config = load_config(self._folder / "config.yaml", clean_environ(self._folder))
        options = parser().parse_args([*words, "--language", language])
        self._capsys.readouterr()
        code = await run(config, options, Masker(config.secrets()))
        output, self.error = self._capsys.readouterr()
        return code, output

    async def json(self, *words: str) -> Any:
        code, output = await self(*words, "--json")
        assert code == 0, output
        return json.loads(output)

    @asynccontextmanager
    async def desk(self) -> AsyncIterator[Desk]:
        config = load_config(self._folder / "config.yaml", clean_environ(self._folder))
        async with alone(config, time.time) as desk:
            yield desk

    async def asks(self, person: str, name: str = "Ann", at: float | None = None) -> str:
        """Somebody writes to the bot for the first time; their code."""
        config = load_config(self._folder / "config.yaml", clean_environ(self._folder))
        async with alone(config, time.time if at is None else lambda: at) as desk:
            inbound = Inbound("1", Address("telegram", person), Sender(person, name), "hi")
            return (await desk.pairing.ask(inbound))[1]


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capsys)


# -- people ------------------------------------------------------------------------------------------------


async def test_the_first_person_approved_on_the_machine_becomes_admin_and_the_next_a_member(
    shell: Shell,
) -> None:
    first, second = await shell.asks("7"), await shell.asks("8", "Bob")
    code, output = await shell("pair", "list")
    assert code == 0
    assert first in output
    assert "Bob" in output
    code, output = await shell("pair", "approve", first.lower())
    assert code == 0
    assert "as admin" in output
    assert "telegram had no admin" in output
    assert "not told by itself" in output  # nothing runs that could tell them
    _, output = await shell("pair", "approve", second)
    assert "as member" in output
    assert "had no admin" not in output
    found = await shell.json("pair", "people")
    given = {(one["channel"], one["person"], one["role"], one["by"]) for one in found["people"]}
    assert given == {("telegram", "7", "admin", HERE), ("telegram", "8", "member", HERE)}
    assert found["waiting"] == []


async def test_a_role_that_is_named_counts_even_for_the_first(shell: Shell) -> None:
    code = await shell.asks("7")
    found = await shell.json("pair", "approve", code, "--role", "guest")
    assert (found["role"], found["first"]) == ("guest", False)


async def test_an_admin_of_the_configuration_makes_later_people_members(shell: Shell) -> None:
    shell.config({**SETTINGS, "access": {"telegram": {"admins": ["1"]}}})
    found = await shell.json("pair", "approve", await shell.asks("7"))
    assert found["role"] == "member"


async def test_a_code_that_is_wrong_or_too_old_is_refused_with_what_to_do(shell: Shell) -> None:
    old = await shell.asks("7", at=time.time() - SECONDS - 5)
    for code in (old, "NOSUCHCD"):
        rc, output = await shell("pair", "approve", code)
        assert (rc, output) == (1, "")
        assert "valid for an hour" in shell.error
        assert "causeway pair list" in shell.error
    assert (await shell("pair", "approve", "X", "--json"))[1].startswith('{\n  "error"')


async def test_a_refused_request_is_gone(shell: Shell) -> None:
    code = await shell.asks("7")
    assert (await shell("pair", "deny", code))[0] == 0
    assert (await shell("pair", "approve", code))[0] == 1
    assert (await shell.json("pair", "people"))["people"] == []


async def test_the_invitation_is_for_an_admin_while_there_is_none(shell: Shell) -> None:
    found = await shell.json("pair", "invite")
    assert (found["channel"], found["role"]) == ("telegram", "admin")
    async with shell.desk() as desk:
        inbound = Inbound("1", Address("telegram", "7"), Sender("7"), f"/start {found['code']}")
        assert await desk.pairing.accept(found["code"], inbound) == "admin"
    _, output = await shell("pair", "invite")
    assert "as member" in output
    assert "/start " in output


async def test_an_invitation_needs_a_channel_that_people_write_on(shell: Shell) -> None:
    assert (await shell("pair", "invite", "--channel", "telegarm"))[0] == 1
    assert "There are: telegram." in shell.error
    shell.config(
        {"channels": {"a": {"type": "telegram", "token": TOKEN}, "b": {"type": "telegram", "token": "1:x"}}}
    )
    assert (await shell("pair", "invite"))[0] == 1
    assert "--channel: a, b" in shell.error
    shell.config({})
    assert (await shell("pair", "invite"))[0] == 1
    assert "causeway init" in shell.error


async def test_what_was_granted_is_taken_back_and_what_stands_in_the_file_is_said(shell: Shell) -> None:
    await shell("pair", "approve", await shell.asks("7"))
    shell.config({**SETTINGS, "access": {"telegram": {"allow": ["7"], "guests": ["9"]}}})
    code, output = await shell("pair", "revoke", "telegram", "7")
    assert code == 0
    assert "as member: see `access: telegram`" in output
    assert (await shell("pair", "revoke", "telegram", "7"))[0] == 1
    assert "config.yaml" in shell.error
    assert (await shell("pair", "revoke", "telegram", "8"))[0] == 1
    assert "Nothing was granted" in shell.error
    found = await shell.json("pair", "people")
    assert {(one["person"], one["role"], one["by"]) for one in found["people"]} == {
        ("7", "member", "config.yaml"), ("9", "guest", "config.yaml")}  # fmt: skip


async def test_names_cannot_steer_the_terminal_and_chinese_is_spoken(shell: Shell) -> None:
    await shell.asks("7", "Eve\x1b[2J\u202eevil")
    _, output = await shell("pair", "list", language="zh")
    assert "代码" in output
    assert "\x1b" not in output
    assert "\u202e" not in output


@pytest.mark.parametrize(
    ("environ", "chosen", "language"),
    [
        ({}, None, "en"),
        ({"LANG": "zh_CN.UTF-8"}, None, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, None, "en"),
        ({"LC_MESSAGES": "zh_TW", "LANG": "de_DE"}, None, "zh"),
        ({"LANG": "zh_CN.UTF-8"}, "en", "en"),
    ],
)
def test_the_language_is_that_of_the_locale(
    environ: dict[str, str], chosen: str | None, language: str
) -> None:
    assert terminal_language(environ, chosen) == language


# -- conversations -----------------------------------------------------------------------------------------

TALK = [
    User("r1", "what is in it?", messages=(1,)),
    Assistant("r1", "I look.", (ToolCall("c1", "read", {"path": "a.md"}),)),
    ToolOutput("r1", "c1", "read", "x" * 1000 + "```"),
    Assistant("r1", "Much.", opaque={"anthropic": []}),
]


async def talked(shell: Shell, folder: Path) -> None:
    async with shell.desk() as desk:
        await desk.store.history.append("telegram:direct:7", TALK)
        await desk.store.history.append("web:direct:7", TALK[:1])
        inbound = Inbound("2", Address("telegram", "9"), Sender("9"), "waits")
        await desk.store.accept(inbound, "telegram:direct:9", 5)
    files = folder / "workspace" / "sessions" / "telegram:direct:7" / "files"
    files.mkdir(parents=True)
    (files / "a.md").write_text("private")


async def test_conversations_are_listed_with_what_waits(shell: Shell, tmp_path: Path) -> None:
    await talked(shell, tmp_path)
    found = {
        one["key"]: (one["entries"], one["waiting"])
        for one in (await shell.json("sessions", "list"))["sessions"]
    }
    assert found == {"telegram:direct:7": (4, 0), "web:direct:7": (1, 0), "telegram:direct:9": (0, 1)}
    _, output = await shell("sessions", "list", "--channel", "web")
    assert "web:direct:7" in output
    assert "telegram" not in output


async def test_a_conversation_is_shown_by_a_part_of_its_key(shell: Shell, tmp_path: Path) -> None:
    await talked(shell, tmp_path)
    code, output = await shell("sessions", "show", "telegram:direct:7")
    assert code == 0
    assert output.index("what is in it?") < output.index("I look.") < output.index("Much.")
    assert "(+" in output  # a long result is cut
    assert "- files/a.md" in output
    assert (await shell("sessions", "show", "direct:7"))[0] == 1
    assert "web:direct:7" in shell.error
    assert (await shell("sessions", "show", "web"))[0] == 0
    assert (await shell("sessions", "show", "nobody"))[0] == 1


async def test_an_export_is_whole_and_only_for_who_asked(shell: Shell, tmp_path: Path) -> None:
    await talked(shell, tmp_path)
    target = tmp_path / "out.json"
    code, output = await shell("sessions", "export", "telegram:direct:7", "-o", str(target))
    assert code == 0
    assert "1 files" in output
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    whole = json.loads(target.read_text("utf-8"))
    assert [entry["kind"] for entry in whole["entries"]] == ["user", "assistant", "output", "assistant"]
    assert whole["files"] == ["files/a.md"]
    _, output = await shell("sessions", "export", "telegram:direct:7", "--format", "md")
    assert "x" * 1000 in output
    assert (await shell("sessions", "export", "web", "-o", str(tmp_path / "no" / "out.json")))[0] == 1
    assert "cannot be written" in shell.error


def test_a_result_with_fences_stays_inside_its_own() -> None:
    words = transcript("k", TALK, ())
    assert "\n````\n" + "x" * 1000 + "```\n````\n" in words


async def test_deleting_takes_history_files_and_what_waits(shell: Shell, tmp_path: Path) -> None:
    await talked(shell, tmp_path)
    assert (await shell("sessions", "delete", "telegram:direct:7", "--yes"))[0] == 0
    assert (await shell("sessions", "delete", "telegram:direct:9", "--yes"))[0] == 0
    assert [one["key"] for one in (await shell.json("sessions", "list"))["sessions"]] == ["web:direct:7"]
    assert not (tmp_path / "workspace" / "sessions" / "telegram:direct:7").exists()


async def test_deleting_asks_first_and_silence_is_no(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talked(shell, tmp_path)
    monkeypatch.setattr("sys.stdin", (tmp_path / "config.yaml").open())
    code, output = await shell("sessions", "delete", "telegram:direct:7")
    assert code == 1
    assert "4 entries and 1 files" in output
    assert "Nothing was deleted." in output
    assert (await shell("sessions", "show", "telegram:direct:7"))[0] == 0


async def test_a_folder_outside_is_never_deleted(shell: Shell, tmp_path: Path) -> None:
    from bridge.house_admin import Refusal, forget

    (tmp_path / "workspace" / "skills" / "mine").mkdir(parents=True)
    async with shell.desk() as desk:
        for key in ("../skills", "..", ".", "", "/etc"):
            with pytest.raises(Refusal):
                await forget(desk, {"session": key})
    assert (tmp_path / "workspace" / "skills" / "mine").is_dir()


# -- use and confirmations ---------------------------------------------------------------------------------


async def test_use_is_summed_with_its_cost_by_the_prices(shell: Shell) -> None:
    prices = {"big": {"input": 2.0, "output": 8.0, "cached": 0.5}}
    shell.config({**SETTINGS, "model": {"provider": "demo", "prices": prices}})
    async with shell.desk() as desk:
        ledger = Ledger(desk.store, time.time)
        used = {"big": Usage(input=1_000_000, output=500_000, cached=400_000), "free": Usage(input=5)}
        await ledger.record("s1", "telegram", "-1", "7", used, {"read": 3})
        await ledger.record("s2", "telegram", "-1", "8", {"free": Usage(input=10)}, {})
    found = await shell.json("usage")
    by = {one["person"]: one for one in found["rows"]}
    assert by["telegram:7"]["cost"] == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.5 * 8)
    assert (by["telegram:7"]["answers"], by["telegram:7"]["calls"]) == (2, 3)
    assert found["total"]["input"] == 1_000_015
    _, output = await shell("usage", "--by", "model")
    assert output.splitlines()[1].startswith("big")
    assert "5.4000" in output
    assert "Without a price, and so without a cost: free" in output
    _, output = await shell("usage", "--by", "tool")
    assert "read" in output


async def test_use_before_the_days_asked_for_is_left_out(shell: Shell) -> None:
    async with shell.desk() as desk:
        ledger = Ledger(desk.store, lambda: time.time() - 3 * 86_400)
        await ledger.record("s1", "telegram", "-1", "7", {"m": Usage(input=5)}, {})
    assert "Nothing was used" in (await shell("usage", "--days", "3"))[1]
    assert "telegram:7" in (await shell("usage", "--days", "4"))[1]


async def test_the_audit_log_shows_who_decided_what_newest_last(shell: Shell) -> None:
    async with shell.desk() as desk:
        audit = desk.store.channel_state("~audit")
        for number, what in enumerate(("refused", "once", "timeout")):
            entry = {
                "at": 1_800_000_000.0 + number,
                "what": what,
                "tool": "bash",
                "arguments": '{"command": "ls"}',
                "session": "telegram:direct:7",
                "asker": "7",
                "by": "7" if what == "once" else "",
            }
            await audit.append("approvals", f"c{number}", entry)
    _, output = await shell("audit")
    shown = [line for line in output.splitlines() if "bash" in line]
    assert ["not accepted" in shown[0], "allowed once" in shown[1], "no answer in time" in shown[2]] == [
        True
    ] * 3
    assert '{"command": "ls"}' in output
    assert [one["what"] for one in (await shell.json("audit", "-n", "2"))["approvals"]] == ["once", "timeout"]


async def test_looking_leaves_nothing_behind(shell: Shell, tmp_path: Path) -> None:
    for words in (("sessions", "list"), ("usage",), ("audit",)):
        assert (await shell(*words))[0] == 0
    assert not (tmp_path / "workspace").exists()


@pytest.mark.parametrize("page", ["setup.md", "setup.zh.md"])
def test_the_page_names_every_command_and_flag(page: str) -> None:
    words = (ROOT / "docs" / page).read_text("utf-8")
    commands = next(action for action in parser()._actions if isinstance(action.choices, dict)).choices
    assert isinstance(commands, dict)
    for name in ("init", "doctor", "usage", "audit"):
        assert f"`causeway {name}" in words
        flags = {flag for action in commands[name]._actions for flag in action.option_strings if "--" in flag}
        assert [flag for flag in flags - {"--help", "--config"} if flag not in words] == []
    for name in ("pair", "sessions"):
        below = next(action for action in commands[name]._actions if isinstance(action.choices, dict)).choices
        assert [what for what in below if f"{name} {what}" not in words and f"`{what} " not in words] == []
