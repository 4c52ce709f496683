"""Every built-in tool has the time that its kind of work may take."""

from __future__ import annotations

from pathlib import Path

from agent.tools.settings import ToolSettings
from tests.harness import bridge

FILES, PROCESS, REMOTE = 10.0, 60.0, 30.0
#: Files 10 s, local processes 60 s, remote 30 s. What takes longer goes on as a background task, which
#: `task_status` waits for: at most two minutes a look, and a margin for the answer.
TABLE = {
    "read": FILES, "write": FILES, "edit": FILES, "ls": FILES, "search": FILES, "send_file": FILES,
    "bash": PROCESS, "web_fetch": REMOTE, "task_status": 135.0,
}  # fmt: skip
#: What a person is asked in between, who may take minutes.
ASKS = {"install_skill"}


async def test_every_built_in_tool_has_the_deadline_of_its_kind(tmp_path: Path) -> None:
    async with bridge(tmp_path, {"channels": {"api": {}}, "tools": {"bash": {"enabled": True}}}) as app:
        tools = {tool.name: tool.timeout for tool in app.tools.catalog if tool.source == "builtin"}
    assert TABLE.items() <= tools.items()
    rest = {name: seconds for name, seconds in tools.items() if name not in TABLE and name not in ASKS}
    assert all(seconds <= REMOTE for seconds in rest.values()), rest
    assert ToolSettings().background.enabled
