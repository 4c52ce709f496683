"""A skill that is made in the chat: written, agreed to, installed, and used with the next message."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.fakes.llm import Call, Say, ScriptedModel, Seen
from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.harness import bridge, openai_at

SKILL = """---
name: tea-timer
description: Times tea by its kind. Use when someone asks how long tea steeps. Do not use for coffee.
---

# Time tea

1. Green tea steeps for 121 seconds.
"""


def answer(seen: Seen) -> Say:
    asked = seen.last_user
    prompt = json.dumps(seen.body["messages"][0])
    if asked == "make a tea skill":
        steps = [
            Say(calls=(Call("read", {"path": "/skills/skill-creator/SKILL.md"}),)),
            Say(calls=(Call("write", {"path": "new-skills/tea-timer/SKILL.md", "content": SKILL}),)),
            Say(calls=(Call("install_skill", {"path": "new-skills/tea-timer", "reason": "tea"}),)),
        ]
        done = len(seen.results) if seen.results else 0
        results = sum(1 for m in seen.body["messages"] if m["role"] == "tool")
        return steps[results] if results < len(steps) else Say(f"Done: {seen.results[-1]} ({done})")
    if "how long" in asked:
        if seen.results and "121 seconds" in seen.results[-1]:
            return Say("Two minutes and one second.")
        assert "Times tea by its kind" in prompt
        assert "121 seconds" not in prompt
        return Say(calls=(Call("read", {"path": "/skills/tea-timer/SKILL.md"}),))
    return Say("install_skill" if "install_skill" in seen.tools else "no such tool")


async def test_a_skill_made_in_one_turn_is_used_in_the_next(tmp_path: Path) -> None:
    async with FakeTelegram() as fake, ScriptedModel(answer).running() as model:
        settings = {
            "model": openai_at(model.openai_url),
            "channels": {"telegram": {"token": TOKEN, "base_url": fake.url}},
            "access": {"telegram": {"admins": ["5"], "allow": ["6"]}},
        }
        async with bridge(tmp_path, settings) as app:
            fake.say(6, "which tools?")
            await fake.wait_for(lambda: fake.chat(6).texts == ["no such tool"])  # members cannot install
            fake.say(5, "make a tea skill")
            await fake.wait_for(lambda: "Install the skill tea-timer for everybody?" in fake.chat(5).text, 20)
            assert not (tmp_path / "workspace" / "skills" / "tea-timer").exists()
            fake.say(5, "yes")
            await fake.wait_for(lambda: "is installed" in fake.chat(5).text, 20)
            fake.say(5, "how long for green tea?")
            await fake.wait_for(lambda: "Two minutes and one second." in fake.chat(5).text, 20)
            tea = app.skills.current.get("tea-timer")
            (version,) = await asyncio.to_thread(app.versions.history, "tea-timer", tea)
            assert (version.who, version.why) == ("5", "tea")
            assert app.counts.of("tea-timer").read == 1
            fake.say(5, "/skill tea-timer how long for green tea?")
            await fake.wait_for(lambda: fake.chat(5).text.count("Two minutes and one second.") == 2, 20)
            assert app.counts.of("tea-timer").used == 1
            fake.say(5, "/skill tea-time")
            await fake.wait_for(lambda: "Did you mean tea-timer?" in fake.chat(5).text, 20)


async def test_without_a_yes_nothing_is_installed(tmp_path: Path) -> None:
    async with FakeTelegram() as fake, ScriptedModel(answer).running() as model:
        settings = {
            "model": openai_at(model.openai_url),
            "channels": {"telegram": {"token": TOKEN, "base_url": fake.url}},
            "access": {"telegram": {"admins": ["5"]}},
        }
        async with bridge(tmp_path, settings):
            fake.say(5, "make a tea skill")
            await fake.wait_for(lambda: "Install the skill tea-timer for everybody?" in fake.chat(5).text, 20)
            fake.say(5, "no")
            await fake.wait_for(lambda: "did not agree" in fake.chat(5).text, 20)
        assert not (tmp_path / "workspace" / "skills" / "tea-timer").exists()


async def test_a_change_to_a_skill_that_is_switched_off_is_in_the_history_too(tmp_path: Path) -> None:
    folder = tmp_path / "workspace" / "skills" / "tea-timer"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(SKILL)
    async with bridge(tmp_path, {"channels": {"api": {}}}) as app:
        await app.maintenance.settled()  # the first pass keeps what is there
        await app.skills.set_enabled("tea-timer", False)
        (folder / "SKILL.md").write_text(SKILL.replace("121", "122"))
        await app.skills.refresh()
        await app.record_skills()
        tea = app.skills.current.find("tea-timer")
        found = await asyncio.to_thread(app.versions.history, "tea-timer", tea)
        assert len(found) == 2
