"""The wheel in a clean environment: built, installed with the locked packages, started, asked, stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
UV = Path(sys.executable).with_name("uv")
PATIENCE = 30.0


def uv(*arguments: str | Path) -> None:
    result = subprocess.run(
        [UV, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with the wheel and the packages of requirements.lock, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    uv("build", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder)
    (wheel,) = folder.glob("causeway-*.whl")
    python = folder / "venv" / "bin" / "python"
    uv("venv", "--python", sys.executable, folder / "venv")
    uv("pip", "install", "--python", python, "--require-hashes", "--requirement", "requirements.lock")
    uv("pip", "install", "--python", python, "--no-deps", wheel)
    return folder / "venv"


def clean_env(environment: Path, home: Path) -> dict[str, str]:
    """What a newcomer's shell has: no keys, no proxies, nothing of this test run."""
    return {"PATH": f"{environment}/bin:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}


class Bridge:
    def __init__(self, process: subprocess.Popen[bytes], port: int, output: Path) -> None:
        self.process = process
        self.root = f"http://127.0.0.1:{port}"
        self.output = output

    def get(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.root + path, data=data, headers={"Content-Type": "application/json"} if data else {}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            text = response.read().decode()
        return json.loads(text) if "json" in response.headers.get_content_type() else text

    def wait_for_its_address(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.root not in self.output.read_text():
            assert self.process.poll() is None, f"the bridge ended:\n{self.output.read_text()}"
            assert time.monotonic() < deadline, f"no address printed:\n{self.output.read_text()}"
            time.sleep(0.02)  # between two looks; the deadline ends the wait

    def ask(self, text: str) -> str:
        body = {"model": "causeway", "messages": [{"role": "user", "content": text}]}
        answer: str = self.get("/v1/chat/completions", body)["choices"][0]["message"]["content"]
        return answer


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def bridge(environment: Path, tmp_path: Path) -> Iterator[Bridge]:
    port, output = free_port(), tmp_path / "output"
    config = tmp_path / "config.yaml"
    settings = {"model": {"provider": "demo"}, "server": {"port": port}}
    config.write_text(json.dumps({"workspace": str(tmp_path / "workspace"), **settings}))
    with output.open("wb") as sink:
        process = subprocess.Popen(
            [environment / "bin" / "causeway", "run", "--config", config],
            cwd=tmp_path,
            env=clean_env(environment, tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Bridge(process, port, output)
    finally:
        process.kill()
        process.wait(timeout=PATIENCE)


def test_the_installed_wheel_starts_answers_and_stops_cleanly(bridge: Bridge):
    bridge.wait_for_its_address()
    assert bridge.get("/healthz") == {"ok": True}

    assert "demo" in bridge.ask("hello").lower()
    abilities = bridge.ask("what can you do")
    for skill in builtin_skill_names():
        assert skill in abilities

    bridge.process.send_signal(signal.SIGTERM)
    assert bridge.process.wait(timeout=PATIENCE) == 0, bridge.output.read_text()
    for complaint in ("was destroyed", "Unclosed", "unclosed", "Traceback"):
        assert complaint not in bridge.output.read_text()


def builtin_skill_names() -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "skills").glob("*/SKILL.md"))


def test_the_wheel_carries_the_builtin_skills_and_nothing_of_the_checkout(environment: Path, tmp_path: Path):
    code = (
        "import bridge, bridge.paths, json, sys; skills = bridge.paths.builtin_skills();"
        "print(json.dumps([bridge.__file__, sorted(p.parent.name for p in skills.glob('*/SKILL.md'))]))"
    )
    result = subprocess.run(
        [environment / "bin" / "python", "-c", code],
        cwd=tmp_path,
        env=clean_env(environment, tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    package, skills = json.loads(result.stdout)
    assert package.startswith(os.fspath(environment))
    assert skills == builtin_skill_names() != []
