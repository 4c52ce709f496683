"""The skills that are delivered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.skills.discovery import scan
from agent.skills.loader import load

ROOT = Path(__file__).parents[2] / "skills"
FOUND = {found.hint: found for found in scan(ROOT, "builtin").found}


def test_the_delivered_skills_are_there_and_the_tree_is_clean() -> None:
    assert {"skill-creator", "summarize-chat", "translate"} <= FOUND.keys()
    assert scan(ROOT, "builtin").diagnostics == ()


@pytest.mark.parametrize("name", sorted(FOUND))
def test_a_delivered_skill_loads_without_a_word_and_is_short(name: str) -> None:
    loaded = load(FOUND[name])
    assert loaded.diagnostics == ()
    assert loaded.skill
    assert loaded.skill.name == name
    assert len(loaded.skill.description) <= 1_024
    assert "Use when" in loaded.skill.description
    assert "Do not use" in loaded.skill.description
    assert len(loaded.skill.read_body().split()) <= 1_500


def test_the_example_in_skill_creator_is_itself_a_valid_skill(tmp_path: Path) -> None:
    body = (ROOT / "skill-creator" / "SKILL.md").read_text("utf-8")
    example = re.search(r"```markdown\n(.*?)```", body, re.DOTALL)
    assert example
    file = tmp_path / "release-notes" / "SKILL.md"
    file.parent.mkdir()
    file.write_text(example[1], "utf-8")
    loaded = load(scan(tmp_path, "custom").found[0])
    assert loaded.skill
    assert loaded.diagnostics == ()
