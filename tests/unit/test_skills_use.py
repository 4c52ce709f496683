"""How skills are used: limits of tools, calls by name, counts, and finding those that are not listed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.history import Assistant, ToolCall, User
from agent.skills.counts import Count, SkillCounts
from agent.skills.formatter import section
from agent.skills.invocation import Invoked, Refused, invocation
from agent.skills.limits import consent, in_use, refusing
from agent.skills.requirements import Missing
from agent.skills.skill import Skill, SkillSet
from agent.tools.base import Answer, Caller, Question, Sample, ToolContext
from agent.tools.builtin.skills import find_skills_tool


def skill(name: str, description: str = "Does it.", **more: Any) -> Skill:
    return Skill(name, description, "custom", Path("f"), Path("d"), f"/skills/{name}/SKILL.md", **more)


READER = skill("reader", allowed_tools=("Read", "grep", "Bash(git log:*)", "github_*"))
FREE = skill("free")
NONE = skill("none", allowed_tools=())
SKILLS = SkillSet(available=(FREE, NONE, READER))


def reads(name: str) -> Assistant:
    return Assistant("r", "", (ToolCall("1", "read", {"path": f"/skills/{name}/SKILL.md"}),))


@pytest.mark.parametrize(
    ("tool", "arguments", "free"),
    [
        ("read", {"path": "a.txt"}, True),
        ("search", {"query": "x"}, True),
        ("write", {"path": "a.txt"}, False),
        ("github_list", {}, True),
        ("bash", {"command": "git log --oneline"}, True),
        ("bash", {"command": "git log"}, True),
        ("bash", {"command": "git logger"}, False),
        ("bash", {"command": "git log; rm -r ."}, False),
        ("bash", {"command": "git log $(id)"}, False),
        ("bash", {"command": "git log\nid"}, False),
        ("bash", {"command": "id"}, False),
        ("bash", {}, False),
    ],
)
def test_a_skills_list_narrows_what_runs_unasked(tool: str, arguments: dict[str, Any], free: bool) -> None:
    assert (refusing([READER], tool, arguments) is None) is free


def test_an_empty_list_allows_nothing_but_reading_skills_and_no_list_limits_nothing() -> None:
    assert refusing([NONE], "read", {"path": "a.txt"}) is NONE
    assert refusing([NONE], "read", {"path": "/skills/none/references/a.md"}) is None
    assert refusing([FREE], "bash", {"command": "id"}) is None
    assert refusing([], "bash", {"command": "id"}) is None


def test_a_second_skill_never_widens_the_limit_of_the_first() -> None:
    writer = skill("writer", allowed_tools=("write",))
    assert refusing([READER, FREE, writer], "write", {}) is READER
    assert refusing([READER, writer], "read", {"path": "a"}) is writer


def test_a_limit_that_is_not_understood_allows_nothing() -> None:
    odd = skill("odd", allowed_tools=("Read(*.md)", "Bash(git *)"))
    assert refusing([odd], "read", {"path": "a.md"}) is odd
    assert refusing([odd], "bash", {"command": "git status"}) is None


def test_skills_in_use_are_known_from_what_the_run_wrote_down() -> None:
    taught = Assistant("r", "", (ToolCall("2", "Reader", {}),))
    called = invocation(SKILLS, "none", "go")
    assert isinstance(called, Invoked)
    assert in_use([User("r", "hello"), reads("reader")], SKILLS) == (READER,)
    assert in_use([taught], SKILLS) == (READER,)
    assert in_use([User("r", called.text)], SKILLS) == (NONE,)
    assert in_use([reads("unknown"), Assistant("r", "", (ToolCall("3", "read", {"path": 3}),))], SKILLS) == ()
    off = SkillSet(disabled=(READER,))
    assert in_use([reads("reader")], off) == (READER,)  # switched off in the middle of a run


class Person:
    """A desk with a person who answers as told."""

    def __init__(self, action: Any) -> None:
        self.action = action
        self.asked: list[Question] = []

    async def ask(self, question: Question) -> Answer:
        self.asked.append(question)
        return Answer(self.action)

    def progress(self, done: float, total: float | None, message: str) -> None:
        raise AssertionError

    async def sample(self, sample: Sample) -> str:
        raise AssertionError


async def test_the_person_is_asked_and_decides() -> None:
    entries = [reads("reader")]
    yes, no = Person("accept"), Person("decline")
    call = ("bash", {"command": "rm x"})
    assert await consent(entries, SKILLS, *call, yes) is None
    assert "rm x" in yes.asked[0].text
    refused = await consent(entries, SKILLS, *call, no)
    assert refused
    assert refused.is_error
    assert "not run" in refused.text
    assert await consent(entries, SKILLS, *call, None) is not None
    assert await consent(entries, SKILLS, "read", {"path": "a"}, no) is None
    assert len(no.asked) == 1


def test_a_person_calls_a_skill_by_its_name() -> None:
    hidden = skill("deploy", model_invocable=False)
    called = invocation(SkillSet(available=(hidden,)), "Deploy", "the site, now")
    assert isinstance(called, Invoked)
    assert called.skill is hidden
    assert "/skills/deploy/SKILL.md" in called.text
    assert called.text.endswith("the site, now")
    whole = invocation(SkillSet(available=(hidden,)), "deploy", "", "Step one.")
    assert isinstance(whole, Invoked)
    assert "Step one." in whole.text
    assert in_use([User("r", whole.text)], SkillSet(available=(hidden,))) == (hidden,)


def test_a_call_that_cannot_be_is_refused_with_its_reason() -> None:
    skills = SkillSet(
        available=(skill("translate"), skill("inner", user_invocable=False)),
        unavailable=((skill("weather"), Missing(env=("KEY",))),),
        disabled=(skill("off"),),
    )
    assert invocation(skills, "inner", "") == Refused("skill.not_for_people", "inner")
    assert invocation(skills, "weather", "") == Refused("skill.missing", "weather", "env: KEY")
    assert invocation(skills, "off", "") == Refused("skill.disabled", "off")
    assert invocation(skills, "tranlate", "") == Refused("skill.unknown", "tranlate", "translate")
    assert invocation(skills, "inne", "") == Refused(
        "skill.unknown", "inne"
    )  # names nobody may call stay unnamed


def test_counts_go_on_from_what_was_saved_and_stay_bounded() -> None:
    counts = SkillCounts()
    counts.offered(["a", "b"])
    counts.offered(["a"])
    counts.read("a")
    counts.used("a")
    saved = json.loads(json.dumps(counts.saved()))
    again = SkillCounts(saved)
    again.read("a")
    assert again.of("a") == Count(2, 2, 1)
    assert str(again.of("b")) == "offered 1, read 0, used 0"
    assert again.of("never") == Count()
    again.offered(f"n{number}" for number in range(3_000))
    assert len(again.saved()["skills"]) <= 2_000
    assert again.of("a") == Count(2, 2, 1)


@pytest.mark.parametrize(
    "saved", [None, [], {"v": 2, "skills": {"a": [1, 1, 1]}}, {"v": 1, "skills": {"a": [-1, 0, True]}}]
)
def test_saved_counts_of_another_form_are_passed_over(saved: Any) -> None:
    assert SkillCounts(saved).of("a") == Count()


def many() -> SkillSet:
    numbered = [skill(f"s{n:03}", f"Topic {n:03} " + "x" * 190) for n in range(300)]
    wanted = skill("zoo-tickets", "Orders zoo tickets for giraffes. Use when someone names the zoo.")
    return SkillSet(available=(*numbered, wanted, skill("zz-hidden", "Giraffes.", model_invocable=False)))


async def test_skills_without_room_are_told_of_and_found_by_words() -> None:
    part = section(many(), "read", "find_skills")
    assert part.left_out == 301 - len(part.offered) > 0
    assert "zoo-tickets" not in part.offered
    assert f"{part.left_out} more skills are not listed" in part.text
    assert "`find_skills`" in part.text
    tool = find_skills_tool(many)
    context = ToolContext("s", "r", Path(), Caller("u"), lambda name: None)
    found = await tool.execute({"query": "giraffe tickets"}, context)
    assert found.text.startswith("- zoo-tickets: Orders zoo tickets")
    assert "/skills/zoo-tickets/SKILL.md" in found.text
    assert "zz-hidden" not in found.text
    assert (await tool.execute({"query": "quantum"}, context)).text.startswith("No skill fits")


def test_where_all_skills_have_room_nothing_is_said_of_finding() -> None:
    part = section(SKILLS, "read", "find_skills")
    assert (part.left_out, part.offered) == (0, ("free", "none", "reader"))
    assert "find_skills" not in part.text
    hidden = SkillSet(available=(replace(FREE, model_invocable=False),))
    assert section(hidden, "read").offered == ()
