"""What lint finds, and what it leaves alone."""
# ruff: noqa: E501 (descriptions, and Chinese counts double)

from __future__ import annotations

from pathlib import Path

import pytest

from agent.skills.lint import confusable, inspect, tokens
from agent.skills.skill import Skill
from tests.unit.skills_shop import put, text

GOOD = (
    "Counts rows, columns and indexes of a PostgreSQL table. Use when someone mentions a schema, a column type, "
    "an index or a slow query. Do not use for UPDATE, DELETE or DROP."
)


def rules(folder: Path, description: str = GOOD, *more: str, body: str = "Never write to it.") -> list[str]:
    put(folder / "SKILL.md", text(folder.name, f'"{description}"', *more, body=body))
    return [finding.rule for finding in inspect(folder)[1]]


def test_a_good_skill_has_no_findings(tmp_path: Path) -> None:
    assert rules(tmp_path / "db-inspect") == []


@pytest.mark.parametrize(
    ("description", "rule"),
    [
        ("Counts rows and columns of a PostgreSQL table by schema. Do not use for Oracle.", "when"),
        ("Counts rows of a PostgreSQL table. Use when someone mentions a schema or index.", "when-not"),
        ("Handles data. Use when the user needs to process data. Do not use for other things.", "nouns"),
        ("数据库相关操作技能。需要时使用。不要用于其他。", "nouns"),
        ("Reads and backs up PostgreSQL tables. Use when a table, a dump or a schema is named. Not for MySQL.",
         "one-kind"),
        ("查询表结构并删除过期的数据行。用户提到表结构、字段类型、索引时使用。不要用于建表。", "one-kind"),
    ],
)  # fmt: skip
def test_a_weak_description_is_found(tmp_path: Path, description: str, rule: str) -> None:
    assert rule in rules(tmp_path / "db-inspect", description)


@pytest.mark.parametrize(
    "description",
    [
        "用户提到表结构、字段类型、索引、行数、执行计划时使用。涉及写入、删除、DDL 变更的请求一律不要使用本技能。",
        "Draws bar charts from a CSV file. Use when someone asks for a chart or a graph. Not for photographs.",
    ],
)
def test_a_description_by_the_book_is_left_alone(tmp_path: Path, description: str) -> None:
    assert rules(tmp_path / "db-inspect", description) == []


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("Be careful when you delete rows.", "hard-words"),
        ("删除数据前请谨慎。", "hard-words"),
        ("1. Read the log as carefully as possible.", "empty-words"),
        ("应该尽可能仔细。", "empty-words"),
        ("word " * 2_100, "length"),
        ("\n".join(["| a | b |"] * 70), "split"),
        ("```text\n" + "line\n" * 70 + "```", "split"),
        ("Read references/schema.md first.", "reference"),
        ("See [the rules](rules.md).", "reference"),
        ("Run `python3 scripts/check.py`.", "reference"),
    ],
)
def test_a_weak_text_is_found(tmp_path: Path, body: str, rule: str) -> None:
    assert rule in rules(tmp_path / "db-inspect", body=body)


@pytest.mark.parametrize(
    "body",
    [
        'Never delete rows. "Be careful with delete" is not enough.',
        "## Best practices\n\nIf more than 100 rows come back, stop.",
        "Write `NAME/references/TOPIC.md`; see [the site](https://example.org/a.md) and [below](#steps).",
        "```markdown\nRead references/example.md\n```",
    ],
)
def test_hard_words_conditions_and_examples_are_left_alone(tmp_path: Path, body: str) -> None:
    assert rules(tmp_path / "db-inspect", body=body) == []


def test_references_that_exist_are_good_and_one_that_nobody_names_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "db-inspect"
    put(folder / "references" / "schema.md", "# Schema")
    put(folder / "scripts" / "rows.py", "1")
    body = "Read [the schema](references/schema.md), then run `scripts/rows.py`. Never write."
    assert rules(folder, body=body) == []
    put(folder / "references" / "hidden.md", "x" * 30_000)
    assert rules(folder, body=body) == ["unnamed", "split"]


def test_a_finding_names_its_line_and_its_cure(tmp_path: Path) -> None:
    rules(tmp_path / "db-inspect", body="Steps:\n\nAct appropriately.")
    (finding,) = inspect(tmp_path / "db-inspect")[1]
    assert str(finding).startswith("db-inspect/SKILL.md:8: 'appropriately' tells nothing")
    assert "To mend it: write a condition" in str(finding)


def test_what_the_loader_says_is_a_finding_too(tmp_path: Path) -> None:
    put(tmp_path / "folder" / "SKILL.md", text("other-name", f'"{GOOD}"', body="Never write."))
    (finding,) = inspect(tmp_path / "folder")[1]
    assert finding.rule == "loader"
    assert "not the folder's name" in finding.reason
    put(tmp_path / "none" / "SKILL.md", "no head")
    skill, found = inspect(tmp_path / "none")
    assert skill is None
    assert found[0].severity == "error"


def _skill(name: str, description: str) -> Skill:
    return Skill(name, description, "custom", Path("f"), Path("d"), f"/skills/{name}/SKILL.md")


def test_skills_that_are_easily_confused_are_reported_together_unless_one_names_the_other() -> None:
    current = _skill(
        "config-show", "Shows the server configuration in force. Use when someone asks for a setting."
    )
    old = _skill("config-past", "Shows the past server configuration. Use when someone asks for a setting.")
    other = _skill("translate", "Translates a text between languages. Use when someone writes translate.")
    assert [(a.name, b.name) for a, b, _ in confusable([current, old, other])] == [
        ("config-show", "config-past")
    ]
    apart = _skill("config-past", old.description + " For the one in force use config-show.")
    assert confusable([current, apart, other]) == []


def test_tokens_are_counted_by_script() -> None:
    assert tokens("word " * 400) == 500
    assert tokens("数据" * 300) == 400
