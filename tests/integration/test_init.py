"""`causeway init`: from nothing to a bridge with an admin, by hand, by a pipe and by flags."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import signal
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

from bridge import cli_init
from bridge.cli import parser
from bridge.config import load_config
from bridge.config_source import read_dotenv
from bridge.config_write import write_dotenv
from tests.fakes.llm import Say, ScriptedModel
from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.harness import Process, clean_environ

KEY = "sk-a-key-of-0123456789"


@pytest.fixture
async def telegram() -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram() as server:
        yield server


Captured: TypeAlias = pytest.CaptureFixture[str]


def at(server: FakeTelegram, name: str = "telegram") -> tuple[str, ...]:
    """Flags that lead a bot to this server, and not into the world."""
    return (f"--set={name}.base_url={server.url}",)


class Init:
    """`causeway init` in this process: lines as from a pipe, flags, an environment."""

    def __init__(
        self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.folder = folder
        self.file = folder / "config.yaml"
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        self.output = self.error = ""

    async def __call__(self, *lines: str, flags: tuple[str, ...] = (), **environ: str) -> int:
        self._monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        options = parser().parse_args(["init", "--config", str(self.file), *flags])
        code = await asyncio.to_thread(cli_init.run, options, clean_environ(self.folder, **environ))
        self.output, self.error = self._capsys.readouterr()
        return code

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(self.file.read_text("utf-8"))
        return found

    @property
    def secrets(self) -> dict[str, str]:
        return read_dotenv(self.folder / "workspace" / ".env")

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def init(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Init:
    return Init(tmp_path, capsys, monkeypatch)


# -- the whole way -----------------------------------------------------------------------------------------


async def test_a_newcomer_gets_from_nothing_to_an_admin_who_is_answered(
    init: Init, telegram: FakeTelegram
) -> None:
    code = await init("4", "telegram", TOKEN, "", flags=at(telegram))
    assert code == 0, init.output + init.error
    assert "@TheBot" in init.output
    assert "Start it: causeway run --config" in init.output
    [link] = [line.strip() for line in init.output.splitlines() if "https://t.me/TheBot?start=" in line]
    invitation = link.partition("start=")[2]
    assert f"/start {invitation}" in init.output
    assert TOKEN not in init.output + init.error + init.file.read_text()
    data = init.data
    data["server"] = {"port": 0}
    init.file.write_text(yaml.safe_dump(data))
    bridge = Process(init.file, init.folder)
    try:
        await bridge.start()
        telegram.say(7, f"/start {invitation}")
        await telegram.wait_for(lambda: "as admin" in telegram.chats[7].text)
        telegram.say(7, "hello")
        await telegram.wait_for(lambda: "demo model" in telegram.chats[7].text)
    finally:
        await bridge.close()


async def test_a_model_and_a_channel_are_tried_and_their_keys_kept_apart(
    init: Init, telegram: FakeTelegram
) -> None:
    async with ScriptedModel([Say("OK")]).running() as model:
        lines = ("3", model.openai_url, KEY, "big-1", "1", TOKEN, "42")
        assert await init(*lines, flags=at(telegram)) == 0, init.output + init.error
        assert len(model.seen) == 1
    assert init.data == {
        "model": {
            "provider": "openai",
            "base_url": model.openai_url,
            "api_key": "${MODEL_API_KEY}",
            "name": "big-1",
        },
        "channels": {
            "web": {},
            "api": {},
            "telegram": {"token": "${TELEGRAM_TOKEN}", "base_url": telegram.url},
        },
        "access": {"telegram": {"admins": ["42"]}},
    }
    assert "- '42'" in init.file.read_text()  # an id is text
    assert init.secrets == {"MODEL_API_KEY": KEY, "TELEGRAM_TOKEN": TOKEN}
    assert stat.S_IMODE((init.folder / "workspace" / ".env").stat().st_mode) == 0o600
    assert KEY not in init.output + init.error
    config = load_config(init.file, clean_environ(init.folder))
    assert config.model.api_key is not None
    assert config.model.api_key.get_secret_value() == KEY
    assert "/start" not in init.output  # there is an admin already


async def test_flags_answer_everything_and_nothing_is_asked(init: Init, telegram: FakeTelegram) -> None:
    flags = (
        "--channel=team=telegram",
        "--set=token=${TEAM_BOT}",
        f"--set=team.base_url={telegram.url}",
        "--set=model.provider=demo",
        "--admin=42",
        "--yes",
    )
    assert await init(flags=flags, TEAM_BOT=TOKEN) == 0, init.error
    assert init.data["channels"]["team"] == {
        "type": "telegram",
        "token": "${TEAM_BOT}",
        "base_url": telegram.url,
    }
    assert init.data["access"] == {"team": {"admins": ["42"]}}
    assert not (init.folder / "workspace" / ".env").exists()  # the reference was given, so nothing is kept
    assert "[Y/n]" not in init.output


async def test_without_flags_yes_writes_the_defaults(init: Init) -> None:
    assert await init(flags=("--yes",)) == 0
    assert init.data == {"model": {}, "channels": {"web": {}, "api": {}}}


# -- what goes wrong ---------------------------------------------------------------------------------------


async def test_a_bad_token_is_said_and_asked_for_again(init: Init, telegram: FakeTelegram) -> None:
    lines = ("4", "telegram", "no token", "", "123:wrong", "", TOKEN, "42")
    assert await init(*lines, flags=at(telegram)) == 0, init.output + init.error
    assert "@BotFather" in init.output
    assert init.secrets == {"TELEGRAM_TOKEN": TOKEN}
    assert "123:wrong" not in init.output + init.error


async def test_another_setting_can_be_given_when_the_check_fails(init: Init) -> None:
    lines = ("4", "slack", "xoxb-1-2-abcdef", "", "a-signing-secret", "mode=http", "example.org",
             "https://bot.example.org/", "k", "U1")  # fmt: skip
    assert (
        await init(*lines, flags=("--set=slack.base_url=http://127.0.0.1:9",)) == 1
    )  # kept, but it does not work
    assert init.output.count("app_token:") == 1  # what was answered is not asked again
    slack = init.data["channels"]["slack"]
    assert (slack["mode"], slack["signing_secret"]) == ("http", "${SLACK_SIGNING_SECRET}")
    assert init.data["server"] == {"public_url": "https://bot.example.org"}
    assert "does not work yet" in init.output


async def test_a_refused_key_is_explained_and_may_be_kept(init: Init) -> None:
    async with ScriptedModel([Say(status=401)]).running() as model:
        assert await init("3", model.openai_url, KEY, "big-1", "k", "") == 1
    assert "the key is refused" in init.output
    assert init.data["model"]["name"] == "big-1"
    async with ScriptedModel([Say(status=401)]).running() as model:
        assert await init("y", "n", "3", model.openai_url, KEY, "big-2", "s", "") == 0
    assert init.data["model"]["name"] == "big-1"  # left out: it stays as it was


async def test_settings_that_fit_no_channel_are_not_kept(init: Init) -> None:
    flags = ("--channel=wecom", "--set=corp_id=c", "--set=agent_id=x", "--set=secret=s", "--set=token=t",
             "--set=aes_key=k", "--yes")  # fmt: skip
    assert await init(flags=flags) == 1
    assert "channels.wecom.agent_id" in init.error
    assert "Nothing was written." in init.error
    assert init.left == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--channel=telegram",), "--set telegram.token="),
        (("--channel=telegarm",), "There are: telegram"),
        (("--set=token=x",), "of which channel"),
        (("--set=token",), "KEY=VALUE"),
        (("--admin=5",), "CHANNEL:5"),
        (("--set=telegarm.token=x",), "telegarm.token"),
        (("--admin=telegarm:5",), "--admin telegarm:"),
    ],
)
async def test_flags_that_do_not_suffice_write_nothing(
    init: Init, flags: tuple[str, ...], words: str
) -> None:
    assert await init(flags=(*flags, "--yes")) == 1
    assert words in init.error
    assert init.left == []


async def test_an_input_that_ends_in_the_middle_writes_nothing(init: Init) -> None:
    assert await init("4", "telegram") == 1
    assert "--yes" in init.error
    assert init.left == []


# -- what is there already ---------------------------------------------------------------------------------

OLD = """# mine
workspace: ./elsewhere
model: {provider: demo, timeout: 33}
channels:
  web: {}
  old: {type: telegram, token: "${OLD_TOKEN}", enabled: off}
access:
  default: {direct: off, allow: [007, -100123]}
"""


async def test_an_old_configuration_is_kept_but_for_what_was_asked(
    init: Init, telegram: FakeTelegram
) -> None:
    init.file.write_text(OLD)
    init.file.chmod(0o640)
    (init.folder / "elsewhere").mkdir()
    (init.folder / "elsewhere" / ".env").write_text("# keep\nOLD_TOKEN=abc\nTELEGRAM_TOKEN='1:before'\n")
    code = await init("y", "y", "telegram", TOKEN, "42", flags=at(telegram))
    assert code == 0, init.output + init.error
    assert init.data["channels"]["old"] == {"type": "telegram", "token": "${OLD_TOKEN}", "enabled": "off"}
    assert init.data["access"]["default"] == {"direct": "off", "allow": ["007", -100123]}
    assert init.data["access"]["telegram"] == {"admins": ["42"]}
    assert init.data["model"] == {"provider": "demo", "timeout": 33}
    assert "api" not in init.data["channels"]  # it was off
    assert (init.folder / "config.yaml.bak").read_text() == OLD
    assert stat.S_IMODE(init.file.stat().st_mode) == 0o640
    assert (init.folder / "elsewhere" / ".env").read_text().splitlines() == [
        "# keep", "OLD_TOKEN=abc", f"TELEGRAM_TOKEN={TOKEN}"]  # fmt: skip
    load_config(init.file, clean_environ(init.folder))


async def test_a_second_bot_is_added_beside_the_first(init: Init, telegram: FakeTelegram) -> None:
    flags = ("--channel=telegram", f"--set=token={TOKEN}", f"--set=base_url={telegram.url}", "--yes")
    assert await init(flags=flags) == 0
    lines = ("y", "n", "4", "telegram", "second", TOKEN, "")
    code = await init(*lines, flags=at(telegram, "second"), LANG="zh_CN.UTF-8")
    assert code == 0, init.output + init.error
    assert "已有渠道 telegram" in init.output
    assert list(init.data["channels"]) == ["web", "api", "telegram", "second"]
    assert set(init.secrets) == {"TELEGRAM_TOKEN", "SECOND_TOKEN"}


async def test_a_variable_of_the_environment_does_not_hide_the_new_value(
    init: Init, telegram: FakeTelegram
) -> None:
    flags = ("--channel=telegram", f"--set=token={TOKEN}", f"--set=base_url={telegram.url}", "--yes")
    assert await init(flags=flags, TELEGRAM_TOKEN="5:another") == 0, init.output
    assert init.data["channels"]["telegram"]["token"] == "${TELEGRAM_TOKEN_2}"


async def test_a_configuration_with_a_fault_elsewhere_is_not_replaced(init: Init) -> None:
    init.file.write_text("modle: {}\n")
    assert await init("y", "4", "") == 1
    assert "modle" in init.error
    assert init.file.read_text() == "modle: {}\n"
    assert init.left == ["config.yaml"]


def test_a_secret_with_any_characters_survives_the_env_file(tmp_path: Path) -> None:
    values = {"A_KEY": "a'b\"c\\d #e $f", "B_KEY": " 王 ", "C_KEY": "", "D_KEY": "plain-1"}
    write_dotenv(tmp_path / ".env", values)
    write_dotenv(tmp_path / ".env", {"D_KEY": "other"})
    assert read_dotenv(tmp_path / ".env") == {**values, "D_KEY": "other"}


# -- a person at a terminal --------------------------------------------------------------------------------


class Screen:
    """`causeway init` at a real terminal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = ""
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Screen:
        self._master, slave = pty.openpty()
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bridge.cli", "init", "--config", str(self.folder / "config.yaml"),
            stdin=slave, stdout=slave, stderr=slave, cwd=self.folder, env=clean_environ(self.folder),
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        asyncio.get_running_loop().add_reader(self._master, self._read)
        return self

    def _read(self) -> None:
        try:
            self.text += os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # the program has gone
            asyncio.get_running_loop().remove_reader(self._master)
        self._changed.set()

    async def until(self, words: str) -> None:
        async with asyncio.timeout(30):
            while words not in self.text:
                self._changed.clear()
                await self._changed.wait()

    def type(self, line: str) -> None:
        os.write(self._master, f"{line}\n".encode())

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._master)
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        os.close(self._master)


async def test_a_secret_is_not_shown_while_it_is_typed_and_ctrl_c_leaves_no_trace(tmp_path: Path) -> None:
    async with Screen(tmp_path) as screen:
        await screen.until("Which model")
        screen.type("1")
        await screen.until("not shown)\r\n> ")
        screen.type(KEY)
        await screen.until("The model's name")
        assert KEY not in screen.text
        screen.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(10):
            assert await screen.process.wait() == 130
        assert "Traceback" not in screen.text
    assert list(tmp_path.iterdir()) == []
