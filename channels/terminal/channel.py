"""The terminal: a conversation with line editing, or a pipe (`echo hello | causeway chat`).

While nothing runs there is a prompt with line editing. While a reply is being written, lines typed ahead are
messages too, and Ctrl-C stops the run. `closed` is set when input has ended and every reply was shown.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
from contextlib import suppress
from typing import Any

from channels.base import (
    Activity,
    Address,
    Channel,
    ChannelConfig,
    Chunk,
    Env,
    Inbound,
    Limits,
    Outbound,
    Receive,
    ReplyRef,
    Sender,
)
from channels.growing import Growing
from channels.terminal.lines import Prompt, lines, pasted, read_some
from channels.terminal.screen import Screen, harmless

log = logging.getLogger("causeway.terminal")

CHAT = "terminal"
_LEAVE = ("/exit", "/quit")
_RECEIVE_TIMEOUT = 30.0
#: Seconds without any sign of a run after which a message is no longer waited for (it was dropped).
SILENCE = 60.0
#: Seconds within which a second Ctrl-C leaves.
_TWICE = 2.0
_PROMPT = "\001\x1b[1;36m\002>\001\x1b[0m\002 "
_DIM, _PLAIN, _CLEAR_LINE = "\x1b[2m", "\x1b[0m", "\r\x1b[K"


class TerminalConfig(ChannelConfig):
    pass


class TerminalChannel(Channel):
    """`stdin` and `stdout` are file descriptors; line editing needs both to be the process's own terminal."""

    type = "terminal"
    Config = TerminalConfig
    #: Idempotent: what an earlier process showed is gone with its window, so a reply is shown whole again.
    limits = Limits(streams=True, update_interval=0.05, typing_interval=5.0, idempotent=True)
    local = True

    def __init__(self, name: str, config: Any, env: Env, *, stdin: int = 0, stdout: int = 1) -> None:
        super().__init__(name, config, env)
        self.closed = asyncio.Event()
        self._stdin = stdin
        self._dialogue = (stdin, stdout) == (0, 1) and os.isatty(0) and os.isatty(1)
        self._colours = self._dialogue and not os.environ.get("NO_COLOR")
        self._screen = Screen(stdout)
        self._prompt = Prompt()
        self._receive: Receive | None = None
        self._pending: dict[str, None] = {}
        self._settled = asyncio.Event()
        self._ended = False
        self._life = 0.0
        self._last_interrupt = float("-inf")
        self._interrupts = asyncio.Semaphore(0)
        self._tasks: list[asyncio.Task[None]] = []
        self._texts: dict[tuple[str, int], Growing] = {}
        self._current: tuple[str, int] | None = None
        self._line_open = False

    # -- lifecycle -------------------------------------------------------------------------------------

    async def start(self, receive: Receive) -> None:
        self._receive = receive
        self._screen.start()
        loop = asyncio.get_running_loop()
        if self._dialogue:
            await asyncio.to_thread(self._prompt.start)
            await self._screen.write(self._dim(self.env.text("terminal.welcome", self._language())) + "\n\n")
        with suppress(ValueError, RuntimeError):  # not the main thread (tests): then without Ctrl-C
            loop.add_signal_handler(signal.SIGINT, self.interrupt)
        self._tasks = [
            asyncio.create_task(self._read(), name="terminal input"),
            asyncio.create_task(self._handle_interrupts(), name="terminal interrupts"),
        ]

    async def pause(self) -> None:
        self._receive = None

    async def stop(self) -> None:
        self._receive = None
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks = []
        with suppress(ValueError, RuntimeError):
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
        if self._dialogue:
            self._prompt.restore()
            if self._prompt.open or self._line_open:
                self._screen.put("\n")
        self._screen.stop()
        self.closed.set()

    # -- input -----------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            if self._dialogue:
                await self._converse()
            else:
                async for line in lines(self._stdin):
                    if not await self._enter(line):
                        break
            self._ended = True
            await self._answered()
        except Exception:
            # Without input the program would hang for ever: it ends, and the log says why.
            log.exception("reading the terminal failed")
        finally:
            self._ended = True
            self.closed.set()

    async def _converse(self) -> None:
        while True:
            if self._pending:
                text = await self._while_running()
            else:
                text = await self._prompt.ask(_PROMPT if self._colours else "> ")
                if text is None:
                    return
            if text is None:
                continue
            if not await self._enter(text):
                return

    async def _while_running(self) -> str | None:
        """What is typed while a reply is being written; None when the reply is complete."""
        reading = asyncio.create_task(read_some(self._stdin), name="terminal typed ahead")
        answered = asyncio.create_task(self._answered(), name="terminal answered")
        try:
            await asyncio.wait({reading, answered}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, answered):
                task.cancel()
            await asyncio.wait({reading, answered})
        if reading.cancelled():
            return None
        data = reading.result()
        if not data:  # Ctrl-D while a reply is written: it is shown first
            await self._answered()
            return _LEAVE[0]
        return await pasted(self._stdin, data)

    async def _answered(self) -> None:
        """Wait until every message was answered, or nothing has shown that one still will be."""
        clock = asyncio.get_running_loop().time
        self._life = clock()
        while self._pending and not self._screen.broken:
            self._settled.clear()
            silent = clock() - self._life
            if silent >= SILENCE:
                note = self.env.text("terminal.no_answer", self._language(), seconds=round(silent))
                log.warning("no answer and no sign of one for %d s", silent)
                self._pending.clear()
                await self._print_line(note)
                return
            try:
                async with asyncio.timeout(min(SILENCE - silent, 1.0)):
                    await self._settled.wait()
            except TimeoutError:
                continue

    async def _enter(self, text: str) -> bool:
        """Take one entry. False: the person wants to leave."""
        text = text.strip()
        if text in _LEAVE:
            return False
        if text:
            await self._submit(text)
        return True

    async def _submit(self, text: str) -> None:
        if self._receive is None:
            return
        inbound = Inbound(
            id=secrets.token_hex(16),
            address=Address(self.name, CHAT),
            sender=Sender("local", language=self._language()),
            text=text,
            sent_at=self.env.clock(),
        )
        self._pending[inbound.id] = None
        self._alive()
        try:
            async with asyncio.timeout(_RECEIVE_TIMEOUT):
                await self._receive(inbound)
        except Exception as error:  # the person is told whatever kept their message from being taken
            log.exception("a message could not be taken")
            self._pending.pop(inbound.id, None)
            await self._print_line(f"! {type(error).__name__}: {error}")

    def interrupt(self) -> None:
        """Ctrl-C: stop the run; with none, say how to leave, and leave at the second one."""
        self._interrupts.release()

    async def _handle_interrupts(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await self._interrupts.acquire()
            twice = clock() - self._last_interrupt < _TWICE
            if self._ended or not self._dialogue:
                self.closed.set()
            elif self._pending:
                self._last_interrupt = float("-inf")
                await self._print_line("")
                await self._submit("/stop")
            elif twice:
                self.closed.set()
            else:
                self._last_interrupt = clock()
                await self._print_line(self._dim(self.env.text("terminal.interrupt", self._language())))

    def _language(self) -> str:
        for variable in ("LC_ALL", "LC_MESSAGES", "LANG"):
            value = os.environ.get(variable, "")
            if value:
                tag = value.split(".")[0].replace("_", "-")
                return "" if tag in ("C", "POSIX") else tag
        return ""

    # -- output ----------------------------------------------------------------------------------------

    def render(self, outbound: Outbound) -> list[Chunk]:
        files = [self.env.text("terminal.file", "", path=file.path) for file in outbound.files]
        text = "\n\n".join(part for part in (outbound.text, "\n".join(files)) if part)
        return [Chunk(text)] if text else []

    async def post(self, ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        key = (ref.id, n)
        self._alive()
        growing = self._texts.setdefault(key, Growing())
        more = harmless(growing.more(chunk.text, final=final))
        if more or final:
            await self._print(key, more, final)
        return f"{ref.id}/{n}"

    async def edit(self, ref: ReplyRef, n: int, message_id: str, chunk: Chunk, *, final: bool) -> None:
        await self.post(ref, n, chunk, final=final)

    async def end(self, ref: ReplyRef) -> None:
        for key in [key for key in self._texts if key[0] == ref.id]:
            del self._texts[key]
        if self._line_open and self._current is not None and self._current[0] == ref.id:
            await self._print(self._current, "", final=True)
        self._pending.pop(ref.to, None)
        self._settled.set()

    def activity(self, ref: ReplyRef, activity: Activity) -> None:
        self._alive()
        if not self._dialogue:
            return
        key = f"terminal.{activity.state}"
        detail = " ".join(harmless(activity.detail).split())
        if len(detail) > 100:
            detail = detail[:99] + "…"
        line = self.env.text(key, ref.language, name=harmless(activity.name))
        line = self._dim(f"· {line}: {detail}" if detail else f"· {line}")
        self._screen.put(f"{self._to_line_start()}{line}\n{self._prompt_again()}")

    async def typing(self, ref: ReplyRef) -> None:
        self._alive()

    def _alive(self) -> None:
        self._life = asyncio.get_running_loop().time()

    async def _print(self, key: tuple[str, int], text: str, final: bool) -> None:
        start = self._to_line_start() if key != self._current or not self._line_open else ""
        self._current = None if final else key
        if final:
            text = text.rstrip("\n") + ("\n\n" if self._dialogue else "\n")
        self._line_open = not (text or start or "\n").endswith("\n")
        await self._screen.write(start + text + self._prompt_again())

    async def _print_line(self, line: str) -> None:
        await self._screen.write(f"{self._to_line_start()}{line}\n{self._prompt_again()}")

    def _to_line_start(self) -> str:
        """What brings the cursor to an empty line: past an unfinished text, or over the open prompt."""
        start = "\n" if self._line_open else ""
        self._line_open = False
        return _CLEAR_LINE + start if self._prompt.open else start

    def _prompt_again(self) -> str:
        if not self._prompt.open:
            return ""
        return ("\n" if self._line_open else "") + f"> {self._prompt.typed}"

    def _dim(self, text: str) -> str:
        return f"{_DIM}{text}{_PLAIN}" if self._colours else text
