"""Hot reload after a reply: after it is settled, also after a failure, for all sessions (PEERS 2.12)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai

from agent.tools.mcp.hub import RefreshReport
from bridge.app import App
from tests.fakes.llm import Say, ScriptedModel, Seen
from tests.fakes.mcp_bench import plain, until
from tests.harness import bridge, openai_at

API: dict[str, Any] = {"channels": {"api": {}}}


async def ask(app: App, text: str, session: str) -> str:
    async with openai.AsyncOpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0) as api:
        answer = await api.chat.completions.create(
            model="causeway", messages=[{"role": "user", "content": text}], user=session
        )
    return answer.choices[0].message.content or ""


async def test_peers_2_12_a_failed_run_is_followed_by_upkeep_that_reaches_every_session(
    tmp_path: Path,
) -> None:
    def answer(seen: Seen) -> Say:
        if "fail" in str(seen.body["messages"][-1]):
            return Say(status=401, kind="invalid_api_key", text="no")
        return Say(f"{len([name for name in seen.tools if name.startswith('p__')])} tools")

    async with ScriptedModel(answer).running() as model:
        async with bridge(tmp_path, {"model": openai_at(model.openai_url), **API}) as app:
            assert await ask(app, "hi", "quiet") == "0 tools"
            await app.maintenance.settled()
            (app.workspace / "mcp.json").write_text(json.dumps({"mcpServers": {"p": plain()}}))
            assert "key" in await ask(app, "fail", "loud")
            # No message and no call of ours begins this pass; the slow timer's next one is 15 s away.
            await until(lambda: any(server.state == "ready" for server in app.mcp.status), 12)
            assert await ask(app, "hi", "quiet") != "0 tools"


async def test_peers_2_12_upkeep_begins_when_the_reply_is_settled_and_holds_up_none(tmp_path: Path) -> None:
    waiting: list[int] = []
    release = asyncio.Event()

    async with ScriptedModel([Say("fine")]).running() as model:
        async with bridge(tmp_path, {"model": openai_at(model.openai_url), **API}) as app:
            await app.maintenance.settled()

            async def refresh() -> RefreshReport:
                sessions = await app.store.waiting_sessions(["api"])
                waiting.append(len(sessions))
                await release.wait()
                return RefreshReport()

            app.mcp.refresh = refresh  # type: ignore[method-assign]
            assert await ask(app, "one", "s") == "fine"
            await until(lambda: waiting)
            assert waiting == [0], "the message was still in the inbox, so its reply was not settled"
            for number in range(5):  # upkeep hangs, and nobody notices
                assert await ask(app, f"more {number}", "s") == "fine"
            assert len(waiting) == 1
            assert sum(task.get_name() == "maintenance" for task in asyncio.all_tasks()) == 1
            release.set()
            await until(lambda: len(waiting) == 2)
            await app.maintenance.settled()
            assert len(waiting) <= 4, "replies that went out during a pass share one more"
