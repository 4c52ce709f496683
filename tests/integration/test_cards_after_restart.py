"""A confirmation whose call ended without it, over a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.fakes.llm import Call, Say, ScriptedModel, Seen
from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.harness import bridge, openai_at


def answer(seen: Seen) -> Say:
    if seen.results:
        return Say(f"it said: {seen.results[-1]}")
    return Say("", calls=(Call("bash", {"command": "echo hello"}, id="c1"),))


async def test_a_card_whose_tool_is_gone_after_a_restart_is_closed_with_its_run(tmp_path: Path) -> None:
    async with FakeTelegram() as fake, ScriptedModel().running() as model:
        model.script = answer

        def settings(shell: bool) -> dict[str, Any]:
            return {
                "model": openai_at(model.openai_url),
                "channels": {"telegram": {"token": TOKEN, "base_url": fake.url}},
                "access": {"telegram": {"admins": ["1"]}},
                "tools": {"bash": {"enabled": shell}},
            }

        def buttons() -> list[Any]:
            rows = (m.get("reply_markup", {}).get("inline_keyboard") for m in fake.chat(1).shown)
            return [row for row in rows if row]

        async with bridge(tmp_path, settings(shell=True)) as app:
            fake.say(1, "run it")
            await fake.wait_for(buttons)
            # The bridge stops while the card waits; its run is parked.
            app.config.sessions.grace_seconds = 0
            await app.sessions.stop(0)
            assert len(await app.approvals.open()) == 1
        async with bridge(tmp_path, settings(shell=False)) as app:
            await fake.wait_for(lambda: "it said" in fake.chat(1).text)
            await fake.wait_for(lambda: not buttons())
            async with asyncio.timeout(10):
                while await app.store.settings("approval"):
                    await asyncio.sleep(0.01)
