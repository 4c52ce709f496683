"""The bridge as tests run it: in this process, or as a process of its own that can be killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from bridge.app import App
from bridge.config import load_config

ROOT = Path(__file__).resolve().parent.parent


def clean_environ(home: Path, **more: str) -> dict[str, str]:
    """An environment without keys of the person who runs the tests."""
    keep = {name: os.environ[name] for name in ("PATH", "LANG", "VIRTUAL_ENV") if name in os.environ}
    return {**keep, "HOME": str(home), "PYTHONPATH": str(ROOT), "NO_PROXY": "*", **more}


def write_config(folder: Path, settings: Mapping[str, Any]) -> Path:
    """Write a config.yaml; without a model the demo is taken, without a port any free one."""
    base: dict[str, Any] = {
        "workspace": str(folder / "workspace"),
        "model": {"provider": "demo"},
        "server": {"port": 0},
        "log": {"level": "info"},
    }
    path = folder / "config.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({**base, **settings}), encoding="utf-8")
    return path


def openai_at(url: str, **more: Any) -> dict[str, Any]:
    return {
        "provider": "openai",
        "name": "test-model",
        "base_url": url,
        "api_key": "sk-test-key-000000",
        **more,
    }


@asynccontextmanager
async def bridge(folder: Path, settings: Mapping[str, Any], **environ: str) -> AsyncIterator[App]:
    """A started App in this process; stopped at the end."""
    config = load_config(write_config(folder, settings), clean_environ(folder, **environ))
    app = App(config)
    await app.start()
    try:
        yield app
    finally:
        await app.stop(grace=5)


class Process:
    """`causeway run` as a process. `output` is all that it printed so far, both streams; `dev` switches
    Python's own checks for forgotten tasks and unclosed things on."""

    def __init__(
        self,
        config: Path | None,
        home: Path,
        *command: str,
        environ: Mapping[str, str] | None = None,
        dev: bool = True,
        module: str = "bridge.cli",
    ) -> None:
        self.module = module
        self.config = config
        self.home = home
        self.command = command or ("run",)
        self.environ = {**clean_environ(home), **(environ or {})}
        self.dev = dev
        self.output = ""
        self.process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def start(self, *, ready: bool = True) -> None:
        self.output = ""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(("-X", "dev") if self.dev else ()),
            "-m",
            self.module,
            *self.command,
            *(("--config", str(self.config)) if self.config else ()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self.environ,
            cwd=self.home,
            start_new_session=True,
        )
        self._reader = asyncio.create_task(self._read())
        if ready:
            await self.until(lambda: "Ctrl-C stops it." in self.output)

    async def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        while data := await self.process.stdout.read(65536):
            self.output += data.decode(errors="replace")
            self._changed.set()
        self._changed.set()

    async def until(self, condition: Callable[[], bool], timeout: float = 30.0) -> None:
        try:
            async with asyncio.timeout(timeout):
                while not condition():
                    self._changed.clear()
                    if self._reader is not None and self._reader.done() and not condition():
                        raise AssertionError(f"the bridge ended:\n{self.output}")
                    if not condition():
                        await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"the bridge did not get there:\n{self.output}") from None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def url(self) -> str:
        match = re.search(r"http://[\d.]+:\d+", self.output)
        assert match, self.output
        return match.group(0)

    async def kill(self) -> None:
        """SIGKILL: the process alone, as the kernel or an operator would."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._drained()

    async def terminate(self, timeout: float = 30.0) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout):
                code = await self.process.wait()
        except TimeoutError:
            self.process.kill()
            raise AssertionError(f"the bridge did not stop:\n{self.output}") from None
        await self._drained()
        return code

    async def _drained(self) -> None:
        if self._reader is not None:
            # Children that outlive the bridge may hold the pipe: they are looked for elsewhere.
            await asyncio.wait({self._reader}, timeout=2)
            self._reader.cancel()

    async def close(self) -> None:
        if self.process is not None and self.process.returncode is None:
            await self.kill()


async def say_by_api(bridge: Process | App, text: str, session: str = "s1") -> str:
    """What the bridge answers over its API, as raw JSON; a broken connection's words when there is none."""
    body = {"model": "causeway", "user": session, "messages": [{"role": "user", "content": text}]}
    async with aiohttp.ClientSession() as client:
        try:
            async with client.post(f"{bridge.url}/v1/chat/completions", json=body) as response:
                return await response.text()
        except aiohttp.ClientError as error:
            return str(error)
