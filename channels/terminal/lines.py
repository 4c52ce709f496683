"""Reads what a person types or a pipe brings; blocks neither the event loop nor the end of the process."""

from __future__ import annotations

import asyncio
import codecs
import logging
import os
import select
import sys
import termios
import threading
from collections.abc import AsyncIterator
from typing import Any

log = logging.getLogger("causeway.terminal")

_BLOCK = 65_536
#: Bytes of a line without an end, after which it counts as ended.
_MAX_LINE = 400_000
#: Seconds within which lines that follow each other were pasted, not typed.
_PASTE_GAP = 0.03


async def read_some(descriptor: int) -> bytes:
    """The next bytes, b"" at the end. May be cancelled: nothing is read then."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not readable.done():
            readable.set_result(None)

    try:
        loop.add_reader(descriptor, wake)
    except OSError:  # a regular file cannot be waited for, and needs no waiting
        return await asyncio.to_thread(os.read, descriptor, _BLOCK)
    try:
        await readable
    finally:
        loop.remove_reader(descriptor)
    try:
        return os.read(descriptor, _BLOCK)
    except OSError as error:  # the terminal was closed
        log.debug("input ended: %s", error)
        return b""


async def lines(descriptor: int) -> AsyncIterator[str]:
    """Each line of a pipe or file, without its end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    while data := await read_some(descriptor):
        *whole, rest = (rest + decoder.decode(data)).split("\n")
        if len(rest) > _MAX_LINE:
            whole.append(rest)
            rest = ""
        for line in whole:
            yield line.removesuffix("\r")
    rest += decoder.decode(b"", final=True)
    if rest:
        yield rest


async def pasted(descriptor: int, data: bytes) -> str:
    """`data` from a terminal's own line mode, with the lines that were pasted together with it."""
    while data.endswith(b"\n"):
        await asyncio.sleep(_PASTE_GAP)
        if not select.select([descriptor], [], [], 0)[0]:
            break
        more = os.read(descriptor, _BLOCK)
        if not more:
            break
        data += more
    return data.decode("utf-8", "replace")


class Prompt:
    """A line edited with readline, in a daemon thread that the end of the process need not wait for."""

    def __init__(self) -> None:
        self._attributes: list[Any] | None = None
        self._readline: Any = None
        self.open = False

    def start(self) -> None:
        """Load readline (blocks for some milliseconds) and note how the terminal is set."""
        try:
            import readline
        except ImportError:  # a Python without it: the terminal's own line mode remains
            log.info("line editing is plain: this Python has no readline")
        else:
            # A paste of several lines is then one text, not one message a line.
            readline.parse_and_bind("set enable-bracketed-paste on")
            self._readline = readline
        self._attributes = termios.tcgetattr(sys.stdin.fileno())

    @property
    def typed(self) -> str:
        """What stands in the open prompt."""
        return str(self._readline.get_line_buffer()) if self.open and self._readline is not None else ""

    async def ask(self, prompt: str) -> str | None:
        """One entry, which may have several lines; None at the end of input (Ctrl-D)."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str | None] = loop.create_future()

        def settle(text: str | None) -> None:
            if not answer.done():
                answer.set_result(text)

        def read() -> None:
            try:
                text = input(prompt)
            except (EOFError, OSError, ValueError):
                text = None
            try:
                loop.call_soon_threadsafe(settle, text)
            except RuntimeError:  # the loop is closed: the program is ending
                return

        self.open = True
        threading.Thread(target=read, name="terminal input", daemon=True).start()
        try:
            return await answer
        finally:
            self.open = False

    def restore(self) -> None:
        """Give the terminal back as it was: a thread that still reads cannot do it."""
        if self._attributes is not None:
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._attributes)
