"""Variables that are set or changed in the workspace's .env while the bridge runs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from agent.tools.base import Caller, ToolContext
from bridge.app import App
from tests.harness import ROOT, bridge


async def state(app: App) -> tuple[str, str]:
    await app.maintenance.settled()
    (server,) = app.mcp.status
    return server.state, server.reason


async def pid(app: App) -> str:
    server = app.mcp.find("s")
    assert server is not None
    context = ToolContext("s", "r", app.workspace, Caller("u"), lambda name: None)
    return str((await server.call("whoami", {}, 10, context)).content[0]["text"])


async def test_mc_22_sk_07_a_variable_set_later_starts_its_server_and_offers_its_skill(
    tmp_path: Path,
) -> None:
    workspace = tmp_path / "workspace"
    skill = workspace / "skills" / "weather"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(
        "---\nname: weather\ndescription: Tells the weather. Use for weather.\n"
        "metadata: {requires: {env: [WEATHER_KEY]}}\n---\nAsk the service.\n"
    )
    server = {
        "command": sys.executable,
        "args": ["-m", "tests.fakes.mcp_sdk"],
        "cwd": str(ROOT),
        "env": {"KEY": "${WEATHER_KEY}"},
    }
    (workspace / "mcp.json").write_text(json.dumps({"mcpServers": {"s": server}}))
    dotenv = workspace / ".env"
    async with bridge(tmp_path, {"channels": {"api": {}}}) as app:
        failed, reason = await state(app)
        assert failed == "failed"
        assert "WEATHER_KEY" in reason
        assert [s.name for s, _ in app.skills.current.unavailable] == ["weather"]

        dotenv.write_text("WEATHER_KEY=first-secret-value\n")
        assert (await state(app))[0] == "ready"
        assert "weather" in [s.name for s in app.skills.current.available]
        first = await pid(app)
        await app.maintenance.settled()
        assert await pid(app) == first  # nothing changed: not touched
        assert "first-secret-value" not in app.masker.mask("it is first-secret-value")

        dotenv.write_text("WEATHER_KEY=second-secret-value\n")
        os.utime(dotenv, ns=(1, 1))
        assert (await state(app))[0] == "ready"
        assert await pid(app) != first  # changed credentials are a changed entry

        dotenv.write_text("this is no variable\n")
        second = await pid(app)
        assert (await state(app))[0] == "ready"
        assert await pid(app) == second
