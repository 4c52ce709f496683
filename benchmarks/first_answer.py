"""The first answer of a bridge beside an MCP server that takes 10 s to start, and without it, in one run."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from tests.fakes.llm import Say, ScriptedModel
from tests.harness import bridge, openai_at

ROUNDS = 7
_SLOW = "import runpy, time; time.sleep(10); runpy.run_module('mcp_server_time', run_name='__main__')"


async def once(folder: Path, model: ScriptedModel, slow: bool) -> float:
    """Milliseconds from the question to the answer, on a bridge that has just started."""
    (folder / "workspace").mkdir(parents=True)
    if slow:
        servers = {"slow": {"command": sys.executable, "args": ["-c", _SLOW]}}
        (folder / "workspace" / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    body = {"model": "causeway", "messages": [{"role": "user", "content": "hello"}]}
    settings = {"model": openai_at(model.openai_url), "channels": {"api": {}}}
    async with bridge(folder, settings) as app, aiohttp.ClientSession() as client:
        began = time.perf_counter()
        async with client.post(f"{app.url}/v1/chat/completions", json=body) as response:
            await response.json()
        taken = (time.perf_counter() - began) * 1000
        assert not slow or [server.state for server in app.mcp.status] == ["starting"]
    return taken


async def main() -> None:
    alone, beside = [], []
    with tempfile.TemporaryDirectory() as place:
        async with ScriptedModel([Say("hi", delay=0.2)]).running() as model:
            await once(Path(place) / "warm", model, slow=True)
            for number in range(ROUNDS):  # in turn, so that a busy moment touches both
                alone.append(await once(Path(place) / f"alone-{number}", model, slow=False))
                beside.append(await once(Path(place) / f"beside-{number}", model, slow=True))
    one, other = statistics.median(alone), statistics.median(beside)
    print(f"model waits 200 ms: {one:.0f} ms; beside a server that starts for 10 s: {other:.0f} ms; "
          f"ratio of medians {other / one:.2f} (aim: below 1.2)")  # fmt: skip
