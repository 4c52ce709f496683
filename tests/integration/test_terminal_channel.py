"""The terminal channel on pipes and on a pseudo-terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from channels.base import Inbound, Outbound, OutFile, ReplyRef
from channels.terminal import TerminalChannel, TerminalConfig
from channels.terminal.screen import harmless
from tests.fakes.channel_env import memory_env, until


class Pipes:
    """A channel on pipes, and the bridge's side of it."""

    def __init__(self, folder: Path) -> None:
        self.input, self.write_end = os.pipe()
        self.read_end, self.output = os.pipe()
        os.set_blocking(self.read_end, False)
        self.channel = TerminalChannel(
            "terminal", TerminalConfig(), memory_env(folder), stdin=self.input, stdout=self.output
        )
        self.received: list[Inbound] = []
        self.text = ""

    async def receive(self, inbound: Inbound) -> None:
        self.received.append(inbound)

    def type(self, text: str) -> None:
        os.write(self.write_end, text.encode())

    def end_input(self) -> None:
        os.close(self.write_end)
        self.write_end = -1

    def shown(self) -> str:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.read_end, 65536):
                self.text += data.decode()
        return self.text

    async def show(self, to: Inbound, *texts: str, end: bool = True) -> ReplyRef:
        ref = ReplyRef(f"r-{to.id}", to.address, to.id)
        for i, text in enumerate(texts):
            chunk = self.channel.render(Outbound(text))[0]
            final = end and i == len(texts) - 1
            if i == 0:
                await self.channel.post(ref, 0, chunk, final=final)
            else:
                await self.channel.edit(ref, 0, f"{ref.id}/0", chunk, final=final)
        if end:
            await self.channel.end(ref)
        return ref


@pytest.fixture
async def pipes(tmp_path: Path) -> AsyncIterator[Pipes]:
    pipes = Pipes(tmp_path)
    yield pipes
    await pipes.channel.stop()
    for descriptor in (pipes.input, pipes.write_end, pipes.read_end, pipes.output):
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)


async def test_a_piped_line_is_answered_and_then_the_channel_is_closed(pipes: Pipes) -> None:
    await pipes.channel.start(pipes.receive)
    pipes.type("hello 你好\n")
    pipes.end_input()
    await until(lambda: pipes.received)
    assert pipes.received[0].text == "hello 你好"
    assert not pipes.channel.closed.is_set()
    await pipes.show(pipes.received[0], "Good", "Good day")
    await asyncio.wait_for(pipes.channel.closed.wait(), 5)
    assert pipes.shown() == "Good day\n"


async def test_each_piped_line_is_a_message_and_the_last_needs_no_end(pipes: Pipes) -> None:
    await pipes.channel.start(pipes.receive)
    pipes.type("one\r\n\n  \ntwo\nthree")
    pipes.end_input()
    await until(lambda: len(pipes.received) == 3)
    assert [inbound.text for inbound in pipes.received] == ["one", "two", "three"]
    assert len({inbound.id for inbound in pipes.received}) == 3
    for i, inbound in enumerate(pipes.received):
        assert not pipes.channel.closed.is_set()
        await pipes.show(inbound, f"answer {i}")
    await asyncio.wait_for(pipes.channel.closed.wait(), 5)
    assert pipes.shown() == "answer 0\nanswer 1\nanswer 2\n"


async def test_a_file_as_input_works_too(pipes: Pipes, tmp_path: Path) -> None:
    (tmp_path / "questions").write_text("from a file\n/exit\nnever read\n")
    with (tmp_path / "questions").open() as file:
        pipes.channel._stdin = file.fileno()
        await pipes.channel.start(pipes.receive)
        await until(lambda: pipes.received)
        await pipes.show(pipes.received[0], "ok")
        await asyncio.wait_for(pipes.channel.closed.wait(), 5)
    assert [inbound.text for inbound in pipes.received] == ["from a file"]


async def test_text_that_shrinks_is_not_printed_twice(pipes: Pipes) -> None:
    await pipes.channel.start(pipes.receive)
    pipes.type("go\n")
    await until(lambda: pipes.received)
    await pipes.show(pipes.received[0], "Once upon", "Once", "Once upon a", "Once upon a time")
    assert pipes.shown() == "Once upon a time\n"


async def test_an_answer_to_a_command_does_not_mix_with_a_text_that_streams(pipes: Pipes) -> None:
    await pipes.channel.start(pipes.receive)
    pipes.type("go\n/status\n")
    await until(lambda: len(pipes.received) == 2)
    await pipes.show(pipes.received[0], "half", end=False)
    await pipes.show(pipes.received[1], "all is well")
    ref = ReplyRef(f"r-{pipes.received[0].id}", pipes.received[0].address, pipes.received[0].id)
    chunk = pipes.channel.render(Outbound("half and half"))[0]
    await pipes.channel.edit(ref, 0, "", chunk, final=True)
    assert pipes.shown() == "half\nall is well\n and half\n"


async def test_text_of_a_model_cannot_steer_the_terminal(pipes: Pipes) -> None:
    await pipes.channel.start(pipes.receive)
    pipes.type("go\n")
    await until(lambda: pipes.received)
    await pipes.show(pipes.received[0], "a\x1b]0;title\x07b\x1b[2Jc\x9b31md\re\x08\tf\ng")
    assert pipes.shown() == "a]0;titleb[2Jc31mde\tf\ng\n"
    assert harmless("你好 😀é") == "你好 😀é"


async def test_a_message_that_cannot_be_taken_is_told_and_not_waited_for(pipes: Pipes) -> None:
    async def full(inbound: Inbound) -> None:
        raise OSError("disk full")

    await pipes.channel.start(full)
    pipes.type("hello\n")
    pipes.end_input()
    await asyncio.wait_for(pipes.channel.closed.wait(), 5)
    assert "disk full" in pipes.shown()


async def test_a_message_that_nobody_answers_does_not_keep_the_program_for_ever(
    pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.terminal.channel.SILENCE", 0.1)
    await pipes.channel.start(pipes.receive)
    pipes.type("hello\n")
    pipes.end_input()
    await asyncio.wait_for(pipes.channel.closed.wait(), 5)
    assert "terminal.no_answer" in pipes.shown()


async def test_signs_of_life_keep_a_long_run_waited_for(
    pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.terminal.channel.SILENCE", 0.3)
    await pipes.channel.start(pipes.receive)
    pipes.type("hello\n")
    pipes.end_input()
    await until(lambda: pipes.received)
    ref = ReplyRef("r", pipes.received[0].address, pipes.received[0].id)
    until_time = time.monotonic() + 0.8
    while time.monotonic() < until_time:
        await pipes.channel.typing(ref)
        await asyncio.sleep(0.02)
    assert not pipes.channel.closed.is_set()
    await pipes.show(pipes.received[0], "at last")
    await asyncio.wait_for(pipes.channel.closed.wait(), 5)


async def test_a_reader_that_goes_away_ends_the_program(pipes: Pipes) -> None:
    await pipes.channel.start(pipes.receive)
    pipes.type("hello\n")
    pipes.end_input()
    await until(lambda: pipes.received)
    os.close(pipes.read_end)
    pipes.read_end = -1
    await pipes.show(pipes.received[0], "nobody reads", end=False)
    await asyncio.wait_for(pipes.channel.closed.wait(), 5)


async def test_a_reader_that_does_not_read_holds_up_only_the_reply(pipes: Pipes) -> None:
    await pipes.channel.start(pipes.receive)
    pipes.type("hello\n")
    await until(lambda: pipes.received)
    big = asyncio.create_task(pipes.show(pipes.received[0], "x" * 1_000_000))
    pipes.type("second\n")
    await until(lambda: len(pipes.received) == 2)
    assert not big.done()
    await until(lambda: len(pipes.shown()) >= 1_000_001)
    await big


async def test_files_of_a_reply_are_named_with_their_path(pipes: Pipes) -> None:
    (chunk,) = pipes.channel.render(Outbound("See:", (OutFile("/tmp/a/report.pdf", "report.pdf"),)))
    assert chunk.text == "See:\n\nterminal.file /tmp/a/report.pdf"
    assert pipes.channel.render(Outbound("")) == []


# -- on a pseudo-terminal --------------------------------------------------------------------------------

PROGRAM = """
import asyncio, pathlib, signal, sys
from channels.base import Activity, Outbound, ReplyRef
from channels.terminal import TerminalChannel, TerminalConfig
from tests.fakes.channel_env import memory_env

async def main():
    channel = TerminalChannel("terminal", TerminalConfig(), memory_env(pathlib.Path(".")))
    tasks = []
    async def answer(inbound):
        ref = ReplyRef("r-" + inbound.id, inbound.address, inbound.id)
        async def show(text, final=True):
            await channel.post(ref, 0, channel.render(Outbound(text))[0], final=final)
        if inbound.text == "slow":
            channel.activity(ref, Activity("c", "bash", "running", "sleep 60"))
            await show("begun", final=False)
            slow.append(ref)
            return
        if inbound.text == "/stop":
            for old in slow:
                await channel.end(old)
        await show(f"<{inbound.text!r}>")
        await channel.end(ref)
    slow = []
    async def receive(inbound):
        tasks.append(asyncio.create_task(answer(inbound)))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await channel.start(receive)
    waits = [asyncio.create_task(ended.wait()), asyncio.create_task(channel.closed.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*tasks)
    await channel.stop()
    print("ended well")

asyncio.run(main())
"""


class Terminal:
    """A program on a pseudo-terminal, as a person would use it."""

    def __init__(self, program: Path) -> None:
        self.master, slave = pty.openpty()
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path.cwd()),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
        }
        self.process = subprocess.Popen(
            [sys.executable, str(program)], stdin=slave, stdout=slave, stderr=slave, env=environment,
            start_new_session=True, preexec_fn=self._take_terminal,
        )  # fmt: skip
        self.screen = ""

    @staticmethod
    def _take_terminal() -> None:
        import fcntl

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    async def sees(self, pattern: str, seconds: float = 15.0) -> None:
        """Wait for `pattern` in what was shown since the last one that was seen."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.screen)):
            assert time.monotonic() < deadline, f"{pattern!r} did not come: {self.screen!r}"
            await asyncio.to_thread(self._read)
        self.screen = self.screen[found.end() :]

    def _read(self) -> None:
        if select.select([self.master], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):
                self.screen += os.read(self.master, 65536).decode(errors="replace")

    async def ends(self) -> int:
        await self.sees("ended well")
        return await asyncio.to_thread(self.process.wait, 10)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(tmp_path: Path) -> AsyncIterator[Terminal]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    terminal = Terminal(program)
    yield terminal
    terminal.close()


async def test_a_person_edits_a_line_is_answered_and_leaves_with_control_d(terminal: Terminal) -> None:
    await terminal.sees("terminal.welcome")
    await terminal.sees(">")
    terminal.type("helo\x1b[Dl\r")  # cursor left, then the missing letter
    await terminal.sees("<'hello'>")
    await terminal.sees(">")
    terminal.type("\x1b[A\r")  # the line before, from the history
    await terminal.sees("<'hello'>")
    await terminal.sees(">")
    terminal.type("\x04")
    assert await terminal.ends() == 0
    assert termios.tcgetattr(terminal.slave) == terminal.before


async def test_a_paste_of_several_lines_is_one_message(terminal: Terminal) -> None:
    await terminal.sees("terminal.welcome")
    await terminal.sees(">")
    terminal.type("\x1b[200~one\rtwo\rthree\x1b[201~\r")
    await terminal.sees(r"<'one\\ntwo\\nthree'>")
    await terminal.sees(">")
    terminal.type("/exit\r")
    assert await terminal.ends() == 0


async def test_control_c_stops_a_run_and_lines_typed_meanwhile_are_messages(terminal: Terminal) -> None:
    await terminal.sees("terminal.welcome")
    await terminal.sees(">")
    terminal.type("slow\r")
    await terminal.sees("terminal.running bash: sleep 60")
    await terminal.sees("begun")
    terminal.type("typed ahead\n")
    await terminal.sees("<'typed ahead'>")
    terminal.type("\x03")
    await terminal.sees("<'/stop'>")
    await terminal.sees(">")
    terminal.type("\x03")
    await terminal.sees("terminal.interrupt")
    terminal.type("\x03")
    assert await terminal.ends() == 0


async def test_a_signal_ends_the_program_while_the_prompt_is_open_and_the_terminal_is_whole(
    terminal: Terminal,
) -> None:
    await terminal.sees("terminal.welcome")
    await terminal.sees(">")
    terminal.type("half a li")
    await terminal.sees("half a li")
    os.kill(terminal.process.pid, signal.SIGTERM)
    assert await terminal.ends() == 0
    assert termios.tcgetattr(terminal.slave) == terminal.before
