"""`causeway skills ...` as an admin types it, and a skill that is made in one turn and used in the next."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest

from bridge import cli_skills
from bridge.config import load_config
from bridge.store import open_store
from tests.fakes.llm import Call, Say, ScriptedModel, Seen
from tests.harness import ROOT, bridge, clean_environ, openai_at, write_config
from tests.unit.skills_shop import put, text


def command(*words: str, config: Path | None = None) -> int:
    """Run one command; its exit code."""
    top, common = argparse.ArgumentParser(), argparse.ArgumentParser(add_help=False)
    common.add_argument("--config", type=Path, default=config)
    cli_skills.add_parser(top.add_subparsers(dest="command"), common)
    options = top.parse_args(["skills", *words])
    environ = clean_environ(options.config.parent)
    return asyncio.run(cli_skills.run(load_config(options.config, environ), options))


class Desk:
    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.config = write_config(root, {})
        self.skills = root / "workspace" / "skills"
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str]:
        """The exit code, and all that was printed."""
        code = command(*words, config=self.config)
        captured = self._capsys.readouterr()
        return code, captured.out + captured.err


@pytest.fixture
def causeway(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, capsys)


def test_a_new_skill_passes_lint_is_listed_and_has_a_history(causeway: Desk) -> None:
    code, said = causeway("new", "garden-faq", "--why", "people ask daily")
    assert code == 0
    assert "garden-faq/SKILL.md" in said
    assert causeway("lint", "garden-faq") == (0, "1 checked, 0 findings.\n")
    assert "garden-faq  (yours; offered 0, read 0, used 0)" in causeway("list")[1]
    assert "people ask daily" in causeway("history", "garden-faq")[1]
    code, said = causeway("new", "garden-faq")
    assert code == 1
    assert "already" in said
    assert causeway("new", "../Evil")[0] == 1


def test_the_built_in_skills_pass_lint(causeway: Desk) -> None:
    assert causeway("lint") == (0, "5 checked, 0 findings.\n")


def test_lint_tells_of_faults_likeness_and_unknown_names(causeway: Desk) -> None:
    put(causeway.skills / "bad" / "SKILL.md", "---\nname: bad\n---\n")
    alike = (
        "Writes the minutes of a meeting from a transcript, an agenda with remarks or dictated notes: "
        "attendees, decisions, action items with owner and date. Use when someone hands over a transcript."
    )
    body = "Read references/none.md."
    put(causeway.skills / "call-minutes" / "SKILL.md", text("call-minutes", f'"{alike}"', body=body))
    code, said = causeway("lint")
    assert code == 1
    assert "are easily taken for each other" in said
    assert "references/none.md is named and is not there" in said
    assert "bad/SKILL.md:1: The skill has no description" in said
    code, said = causeway("lint", "translat")
    assert (code, "Did you mean translate?" in said) == (1, True)
    assert causeway("lint", str(causeway.skills / "bad"))[0] == 1


def test_switching_is_kept_and_an_unknown_name_gives_the_nearest(causeway: Desk) -> None:
    assert causeway("disable", "translate") == (0, "translate is switched off.\n")
    listed = json.loads(causeway("list", "--json")[1])["skills"]
    assert {s["name"]: s["state"] for s in listed}["translate"] == "switched off"
    assert causeway("enable", "translate")[0] == 0
    code, said = causeway("enable", "translat")
    assert (code, "Did you mean 'translate'?" in said) == (1, True)


def test_installing_shows_what_comes_and_waits_for_a_yes(causeway: Desk) -> None:
    source = causeway.root / "chart"
    put(
        source / "SKILL.md",
        text("chart", "Draws.", "allowed-tools: read", "metadata: {requires: {bins: [no-such]}}"),
    )
    put(source / "scripts" / "draw.py", "print(1)")
    code, said = causeway("install", str(source))
    assert code == 1
    assert "scripts (run only through the bash tool): scripts/draw.py" in said
    assert "tools it may use without asking: read" in said
    assert not (causeway.skills / "chart").exists()
    code, said = causeway("install", str(source), "--yes", "--why", "for the board")
    assert code == 0
    assert "missing bins: no-such" in said
    assert "for the board" in causeway("history", "chart")[1]
    put(causeway.skills / "chart" / "SKILL.md", text("chart", "Mine."))
    code, said = causeway("install", str(source), "--yes")
    assert (code, "You have chart already" in said) == (1, True)
    assert "Mine." in (causeway.skills / "chart" / "SKILL.md").read_text()
    assert causeway("install", str(source), "--yes", "--replace")[0] == 0
    reasons = causeway("history", "chart")[1]
    assert "changed on disk: SKILL.md" in reasons  # the user's own edit, not put down to the install
    assert causeway("rollback", "chart", "2")[0] == 0
    assert "Mine." in (causeway.skills / "chart" / "SKILL.md").read_text()
    assert causeway("rollback", "chart", "99")[0] == 1


def test_a_refused_source_changes_nothing(causeway: Desk) -> None:
    for source in ("ext::sh -c id", "nowhere.zip", str(causeway.root / "none")):
        assert causeway("install", "--yes", source)[0] == 1
    assert causeway("install", "--yes", "--only", "none", str(ROOT / "skills"))[0] == 1
    assert sorted(path.name for path in causeway.skills.iterdir() if path.is_dir()) == []


def test_the_list_shows_what_a_bridge_has_counted(causeway: Desk) -> None:
    async def count() -> None:
        store = open_store("sqlite:///causeway.db", causeway.root / "workspace")
        await store.open()
        state = store.channel_state(cli_skills.COUNTS_SCOPE)
        await state.put(cli_skills.COUNTS_KEY, {"v": 1, "skills": {"translate": [7, 3, 1]}})
        await store.close()

    asyncio.run(count())
    assert "translate  (built in; offered 7, read 3, used 1)" in causeway("list")[1]


def test_the_script_of_skill_creator_checks_a_folder(tmp_path: Path) -> None:
    script = ROOT / "skills" / "skill-creator" / "scripts" / "check.py"
    checking = [sys.executable, str(script)]
    shown = subprocess.run(checking, capture_output=True, text=True, timeout=30, check=False)
    assert shown.returncode == 2
    assert "new-skills/NAME" in shown.stdout
    stand_in = put(tmp_path / "bin" / "causeway", '#!/bin/sh\necho "$@"; exit 1\n')
    stand_in.chmod(0o755)
    environ = {**os.environ, "PATH": f"{stand_in.parent}:{os.environ['PATH']}"}
    checking.append("new-skills/a")
    done = subprocess.run(checking, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, "skills lint new-skills/a\n")


# -- end to end ------------------------------------------------------------------------------------------

SKILL = text(
    "haiku",
    "Writes a haiku on a garden plant. Use when someone asks for a haiku. Do not use for other poems.",
    body="SECRET-STEP: five, seven, five.",
)


async def test_a_skill_made_by_skill_creator_in_one_turn_is_used_in_the_next(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    run = f"{sys.executable} -m tests.integration.test_skills_cli"
    install = f"{run} install new-skills/haiku --yes --config {config}"

    def answer(seen: Seen) -> Say:
        messages = seen.body["messages"]
        last = max(i for i, message in enumerate(messages) if message["role"] == "user")
        done = sum(message["role"] == "tool" for message in messages[last:])
        if "make" in seen.last_user:
            steps: list[Any] = [
                Call("read", {"path": "/skills/skill-creator/SKILL.md"}),
                Call("write", {"path": "new-skills/haiku/SKILL.md", "content": SKILL}),
                Call("bash", {"command": install}),
            ]
            return Say(calls=(steps[done],)) if done < 3 else Say(f"Made it. {seen.results[-1]}")
        if not done:
            return Say(calls=(Call("read", {"path": "/skills/haiku/SKILL.md"}),))
        return Say(f"By the book: {seen.results[-1]}")

    async with ScriptedModel(answer).running() as model:
        settings = {
            "model": openai_at(model.openai_url),
            "channels": {"api": {}},
            "tools": {"bash": {"enabled": True}, "policy": [{"effect": "allow", "tools": ["bash"]}]},
        }
        async with bridge(tmp_path, settings, PYTHONPATH=str(ROOT)) as app:
            async with openai.AsyncOpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0) as api:

                async def ask(words: str, session: str) -> str:
                    given = await api.chat.completions.create(
                        model="causeway", messages=[{"role": "user", "content": words}], user=session
                    )
                    return given.choices[0].message.content or ""

                assert "Installed haiku." in await ask("make a haiku skill", "s1")
                async with asyncio.timeout(20):
                    await app.maintenance.settled()
                first = json.dumps(model.seen[0].body)
                assert "Writes a new skill" in first
                assert "go through the checklist" not in first
                assert "SECRET-STEP" in await ask("a haiku, please", "s2")
        later = next(seen for seen in model.seen if "a haiku, please" in seen.last_user)
        assert "Writes a haiku on a garden plant" in json.dumps(later.body)
        assert "SECRET-STEP" not in json.dumps(later.body)


if __name__ == "__main__":
    sys.exit(command(*sys.argv[1:]))
