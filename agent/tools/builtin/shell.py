"""`bash`: run a command in the session's folder. Off unless configured, and for admins only.

The command runs as the user of this process, so this tool is no wall against what that user may do. What
is kept is order: nothing the command starts outlives the call.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent.tools.base import Annotations, FunctionTool, ToolContext, ToolFailure, ToolResult
from agent.tools.builtin import schema
from agent.tools.masking import LONGEST
from agent.tools.settings import BashSettings

#: Seconds that a command's processes have between the request to end and the kill.
_TERM_GRACE = 2.0
#: Seconds that output is awaited after the command itself has ended (its children may hold the pipe).
_DRAIN = 0.5
#: Seconds that the tool's deadline lies behind the command's, so that a partial result can be shown.
_MARGIN = 8.0
_MARKER = "CAUSEWAY_CALL"
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


def bash_tool(settings: BashSettings, result_chars: int) -> FunctionTool:
    """The tool. The shell is bash where there is one, else sh."""

    async def run(params: dict[str, Any], context: ToolContext) -> ToolResult:
        seconds = min(float(params["timeout"] or settings.timeout), settings.timeout)
        output = _Output(4 * (result_chars + LONGEST), settings.output_bytes)
        return await _Command(context.folder, output).run(params["command"], seconds)

    return FunctionTool(
        "bash",
        "Run a shell command in this session's folder and get its output and exit code. It can change or "
        f"delete files and reach the network. No input; ends after {settings.timeout:g} s; background "
        "processes end with the call. For reading, changing or finding files use read, edit and search.",
        schema.arguments(
            ("command",),
            command=schema.text("The command line", minLength=1, maxLength=50_000),
            timeout=schema.integer("Seconds after which it is stopped; 0 for the most allowed", 0, 0),
        ),
        run,
        Annotations(read_only=False, destructive=True, open_world=True),
        settings.timeout + _MARGIN,
        admin_only=True,
    )


class _Output(asyncio.Protocol):
    """Takes what a command prints and keeps its beginning and its end."""

    def __init__(self, keep: int, most: int) -> None:
        self._keep = keep
        self._most = most
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        self.closed = asyncio.Event()
        self.flooded = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.total += len(data)
        room = self._keep - len(self._head)
        self._head += data[: max(room, 0)]
        self._tail += data[max(room, 0) :]
        if len(self._tail) > 2 * self._keep:
            del self._tail[: -self._keep]
        if self.total > self._most:
            self.flooded.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    @property
    def text(self) -> str:
        head, tail, gap = bytes(self._head), bytes(self._tail[-self._keep :]), b""
        if self.total > len(head) + len(tail):
            # Whole lines only: half of a secret at the gap would not be known for one.
            head, tail = head[: head.rfind(b"\n") + 1], tail[tail.find(b"\n") + 1 :]
            gap = f"[... {self.total - len(head) - len(tail)} bytes were not kept ...]\n".encode()
        return (head + gap + tail).decode("utf-8", "replace").replace("\r\n", "\n")


class _Command:
    """One command with everything it starts. `run` leaves nothing behind, however it ends."""

    def __init__(self, folder: Path, output: _Output) -> None:
        self._folder = folder
        self._output = output
        self._marker = f"{_MARKER}={uuid.uuid4().hex}"

    async def run(self, command: str, seconds: float) -> ToolResult:
        """Run the command for at most `seconds`. Raises ToolFailure when it cannot be started."""
        began = time.monotonic()
        process, pipe = await self._start(command)
        try:
            ending = await self._watch(process, seconds)
            if ending:
                _signal_group(process.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._output.closed.wait(), _TERM_GRACE if ending else _DRAIN)
        finally:
            pipe.close()
            await self._kill(process)
        failed = bool(ending) or process.returncode != 0
        text = self._output.text.rstrip("\n")
        status = f"{ending or _status(process.returncode)} after {time.monotonic() - began:.1f} s"
        note = f"[{status}; {self._output.total} bytes of output]"
        return ToolResult(f"{text}\n{note}" if text else note, is_error=failed)

    async def _start(self, command: str) -> tuple[asyncio.subprocess.Process, asyncio.BaseTransport]:
        reading, writing = os.pipe()
        source = os.fdopen(reading, "rb", 0)
        try:
            try:
                pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self._output, source)
            except BaseException:
                source.close()
                raise
            starting = asyncio.ensure_future(self._spawn(command, writing))
            try:
                # Shielded: a process that is half started when the call is cancelled must be killed too.
                return await asyncio.shield(starting), pipe
            except asyncio.CancelledError:
                pipe.close()
                with suppress(OSError, ValueError):
                    await self._kill(await starting)
                raise
            except (OSError, ValueError) as error:
                pipe.close()
                why = error.strerror if isinstance(error, OSError) else "It holds a NUL character"
                raise ToolFailure("The command could not be started.", f"{why}.") from error
        finally:
            os.close(writing)

    async def _spawn(self, command: str, writing: int) -> asyncio.subprocess.Process:
        marker, _, value = self._marker.partition("=")
        return await asyncio.create_subprocess_exec(
            shutil.which("bash") or "/bin/sh",
            "-c",
            command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            cwd=self._folder,
            env={
                "PATH": os.environ.get("PATH", _DEFAULT_PATH),
                "HOME": str(self._folder),
                "LANG": "C.UTF-8",
                marker: value,
            },
            start_new_session=True,
        )

    async def _watch(self, process: asyncio.subprocess.Process, seconds: float) -> str:
        """Wait for the command to end by itself: returns "". Else why it must be ended."""
        exited = asyncio.create_task(process.wait())
        flooded = asyncio.create_task(self._output.flooded.wait())
        try:
            done, _ = await asyncio.wait(
                {exited, flooded}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in (exited, flooded):
                task.cancel()
            await asyncio.gather(exited, flooded, return_exceptions=True)
        if exited in done:
            return ""
        if flooded in done:
            return "stopped: it printed too much; send its output to a file"
        return f"stopped: it did not end within {seconds:g} s"

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        # The signal goes out before anything is awaited, so that a second cancellation cannot prevent it.
        _signal_group(process.pid, signal.SIGKILL)
        # A process that has left the group (setsid, a daemon) still carries the marker in its environment.
        await asyncio.to_thread(_kill_marked, self._marker.encode())
        await process.wait()


def _signal_group(leader: int, number: signal.Signals) -> None:
    # The group lives on while any member does, also when its leader has ended; its number is not given
    # to another process as long.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _kill_marked(marker: bytes) -> None:
    """Kill what carries the marker, until nothing does. Only where there is a /proc (Linux)."""
    proc = Path("/proc")
    for _ in range(20):
        marked = [entry for entry in proc.glob("[0-9]*") if _carries(entry, marker)]
        if not marked:
            return
        for entry in marked:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(entry.name), signal.SIGKILL)
        time.sleep(0.02)


def _carries(entry: Path, marker: bytes) -> bool:
    try:
        return marker in (entry / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return False


def _status(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
