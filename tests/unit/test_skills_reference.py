"""The reference validator of the public format beside our loader: the same verdict, but where said why."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.skills.lint import inspect
from tests.harness import ROOT
from tests.unit.skills_shop import put, text

skills_ref = pytest.importorskip("skills_ref")

#: Why one of the two minds and the other does not.
STRICT_YAML = "it reads a subset of YAML without flow style"
UNKNOWN_FIELD = "it refuses fields that the format does not name; other programs' skills have them"
LENIENT = "we read what people write, and say nothing when nothing is in doubt"
ANY_SCRIPT = "letters of any script are in the format; they stand in no tool's name here, so we note it"


def verdicts(folder: Path) -> tuple[bool, bool, bool]:
    """Whether the reference minds, whether our loader says anything, and whether it refuses."""
    skill, findings = inspect(folder)
    return bool(skills_ref.validate(folder)), any(f.rule == "loader" for f in findings), skill is None


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "skills").iterdir()))
def test_the_reference_finds_our_built_in_skills_valid(name: str) -> None:
    assert skills_ref.validate(ROOT / "skills" / name) == []
    assert verdicts(ROOT / "skills" / name) == (False, False, False)


GOOD = text("a")
AGREED = {
    "plain": (GOOD, False),
    "all fields": (text("a", "Does.", "license: MIT", "compatibility: any", "metadata:", "  x: y"), False),
    "tools as text": (text("a", "Does.", "allowed-tools: Read Bash(git:*)"), False),
    "no frontmatter": ("# Title", True),
    "never closed": ("---\nname: a\n", True),
    "no description": ("---\nname: a\n---\n", True),
    "empty description": ("---\nname: a\ndescription: ''\n---\n", True),
    "another name": (text("b"), True),
    "capital letters": (text("A"), True),
    "two hyphens": (text("a--b"), True),
    "a blank": (text("a b"), True),
    "too long a name": (text("a" * 65), True),
    "too long a description": (text("a", "x" * 1_025), True),
    "a list as frontmatter": ("---\n- a\n---\n", True),
}


@pytest.mark.parametrize("sample", AGREED)
def test_both_mind_the_same(tmp_path: Path, sample: str) -> None:
    content, minded = AGREED[sample]
    put(tmp_path / "a" / "SKILL.md", content)
    assert verdicts(tmp_path / "a")[:2] == (minded, minded)


DIFFERENT = {
    "flow style": (text("a", "Does.", 'metadata: {"x": {"y": 1}}'), (True, False, False), STRICT_YAML),
    "tools as list": (text("a", "Does.", "allowed-tools: [read, write]"), (True, False, False), STRICT_YAML),
    "unknown field": (
        text("a", "Does.", "homepage: https://example.org"),
        (True, False, False),
        UNKNOWN_FIELD,
    ),
    "no name": ("---\ndescription: Does.\n---\n", (True, False, False), LENIENT),
    "byte order mark": ("\ufeff" + GOOD, (True, False, False), LENIENT),
    "an open colon": (text("a", "Plans: goals"), (True, True, False), "both mind; we repair it and go on"),
}


@pytest.mark.parametrize("sample", DIFFERENT)
def test_each_difference_is_meant(tmp_path: Path, sample: str) -> None:
    content, verdict, why = DIFFERENT[sample]
    put(tmp_path / "a" / "SKILL.md", content)
    assert verdicts(tmp_path / "a") == verdict, why


def test_a_name_in_another_script_is_valid_there_and_noted_here(tmp_path: Path) -> None:
    put(tmp_path / "翻译" / "SKILL.md", text("翻译"))
    assert verdicts(tmp_path / "翻译") == (False, True, False), ANY_SCRIPT
