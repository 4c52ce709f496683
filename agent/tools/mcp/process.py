"""A server's child process: its own session and group, a small environment, stderr in a bounded file.

It is stopped politely and then surely: stdin closed, a wait, SIGTERM to the group, a wait, SIGKILL to the
group. What a wrapper (npx, a shell) leaves behind in the group goes too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent.tools.mcp.orphans import MARK

log = logging.getLogger("causeway.mcp")

#: What a child inherits; everything else comes from its entry's `env`.
INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ",
             MARK)  # fmt: skip
_LARGEST_LOG = 512 * 1024  # bytes; one older file of the same size is kept beside it
_LONGEST_LINE = 65_536
_TAIL = 2_000  # bytes of stderr kept in memory for the reason of a failure


@dataclass(frozen=True, slots=True)
class Grace:
    """Seconds that each way of stopping gets before the next one."""

    eof: float = 2.0
    term: float = 2.0
    kill: float = 1.0


def child_environment(environ: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    return {**{key: environ[key] for key in INHERITED if key in environ}, **extra}


class StderrLog:
    """Keeps the last part of what a server writes to stderr, in a file of bounded size and in memory."""

    def __init__(self, path: Path | None, mask: Callable[[str], str] = lambda text: text) -> None:
        """`mask` hides secrets; it is given whole lines, of those longer than 64 KiB parts."""
        self._path = path
        self._mask = mask
        self._tail = b""
        self._line = b""  # the beginning of a line whose end has not come yet
        self._broken = False

    async def write(self, chunk: bytes) -> None:
        """Take what the server wrote; empty at its end."""
        chunk = self._line + chunk
        ended = len(chunk) > _LONGEST_LINE or chunk == self._line
        whole = chunk if ended else chunk[: chunk.rfind(b"\n") + 1]
        self._line = chunk[len(whole) :]
        if whole:
            await self._keep(self._mask(whole.decode("utf-8", "replace")).encode("utf-8", "replace"))

    async def _keep(self, chunk: bytes) -> None:
        self._tail = (self._tail + chunk)[-_TAIL:]
        if self._path is not None and not self._broken:
            try:
                await asyncio.to_thread(self._append, self._path, chunk)
            except OSError as fault:
                # The log is a help, the server must go on without it: told once, stderr is still drained.
                self._broken = True
                log.warning(
                    "cannot write %s (%s); the server's stderr is not kept", self._path, fault.strerror
                )

    def last_words(self) -> str:
        """The last non-empty line of stderr, at most 300 characters, as the end of a sentence; or nothing."""
        said = self._tail.decode("utf-8", "replace") + self._mask(self._line.decode("utf-8", "replace"))
        lines = [line for line in map(str.strip, said.splitlines()) if line]
        return f"; its last words: {lines[-1][-300:]}" if lines else ""

    def forget(self) -> None:
        """Begin anew in memory: a new process does not answer for the words of the last one."""
        self._tail = self._line = b""

    @staticmethod
    def _append(path: Path, chunk: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.stat().st_size >= _LARGEST_LOG:
            path.replace(path.with_name(path.name + ".1"))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(chunk[-_LARGEST_LOG:])


class Child:
    """A running server process and everything in its process group."""

    def __init__(self, process: asyncio.subprocess.Process, stderr: StderrLog, grace: Grace) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise ValueError("a server's process needs three pipes")
        self.stdin = process.stdin
        self.stdout = process.stdout
        self._stderr = process.stderr
        self._process = process
        self._grace = grace
        self._log = stderr
        self._drain = asyncio.create_task(self._pump(), name=f"mcp-stderr-{process.pid}")

    @classmethod
    async def spawn(
        cls, argv: tuple[str, ...], *, env: Mapping[str, str], cwd: str, stderr: StderrLog, grace: Grace
    ) -> Child:
        """Start the process. Raises OSError when it cannot be started, ValueError for a NUL in its words."""
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,  # its pid names a group that reaches every descendant at once
            limit=1024 * 1024,
        )
        return cls(process, stderr, grace)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def exit_code(self, wait: float) -> int | None:
        """The exit code once the process has ended, or None if it has not within `wait` seconds."""
        # Polled: waiting for the process object would also wait for its pipes.
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                while self._process.returncode is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        return self._process.returncode

    async def stop(self) -> None:
        """End the process and its group within the grace times. Cancelling it kills the group at once.

        `release` comes after it in every case.
        """
        try:
            with suppress(OSError, RuntimeError):
                self.stdin.close()
            await self.exit_code(self._grace.eof)
            await self._end_group()
        except asyncio.CancelledError:
            self.kill_now()
            raise

    async def release(self) -> None:
        """Let go of the pipes and of the task that drains stderr."""
        # A daemon that left the group may hold our pipes open; asyncio has no public way to let go of them.
        transport = getattr(self._process, "_transport", None)
        if transport is not None:
            with suppress(PermissionError):  # close() may try to kill a child that changed its user
                transport.close()
        self._drain.cancel()
        await asyncio.gather(self._drain, return_exceptions=True)

    def kill_now(self) -> None:
        """SIGKILL to the whole group, without waiting."""
        self._signal(signal.SIGKILL)

    async def _end_group(self) -> None:
        for number, patience in ((signal.SIGTERM, self._grace.term), (signal.SIGKILL, self._grace.kill)):
            if not await self._group_lives():
                return
            self._signal(number)
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    while await self._group_lives():  # noqa: ASYNC110 - nobody tells us when it ends
                        await asyncio.sleep(0.02)
        if await self._group_lives():
            log.error("process group %d of an MCP server survives SIGKILL", self.pid)

    async def _group_lives(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        # Signal 0 reaches the dead too: an orphan that PID 1 has not reaped yet keeps the group's name.
        return await asyncio.to_thread(_has_living_member, self.pid)

    def _signal(self, number: int) -> None:
        # The group keeps the leader's pid as its name after the leader is gone.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def _pump(self) -> None:
        while chunk := await self._stderr.read(65_536):
            await self._log.write(chunk)
        await self._log.write(b"")


def _has_living_member(group: int) -> bool:
    proc = Path("/proc")
    if not proc.is_dir():
        return True
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _, owner = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue  # it ended while we looked
        if int(owner) == group and state not in "ZX":
            return True
    return False
