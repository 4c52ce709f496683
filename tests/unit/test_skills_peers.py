"""The peers' rules for skills: what is matched, and what goes wrong there and must not here.

Each test is one row. Rows that have tests of their own by a plain name are not repeated.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.skills.formatter import section, teaching
from agent.skills.skill import SkillSet
from tests.unit.skills_shop import Shop, names, put, symlink, text


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


async def loaded(shop: Shop) -> SkillSet:
    manager = shop.manager()
    await manager.refresh()
    return manager.current


# -- 2.1 discovery


async def test_peers_2_1_root_pages_folders_and_groups_are_skills_and_nothing_below_one(shop: Shop) -> None:
    put(shop.custom / "page.md", text("page"))
    put(shop.custom / "ReadMe.MD", text("readme"))
    shop.skill("group/deep")
    shop.skill("a/inner/b")
    shop.skill("a")
    for hidden in (".x", "node_modules", "__pycache__", "venv"):
        shop.skill(f"{hidden}/no")
    put(shop.custom / "group" / "other.md", text("other"))
    assert names((await loaded(shop)).available) == ["a", "deep", "page"]


async def test_peers_2_1_names_and_descriptions_may_be_lists_or_be_missing(shop: Shop) -> None:
    shop.skill("one", "---\nname: [first, second]\ndescription: [Does, it]\n---\n")
    shop.skill("two", "---\ndescription: Does.\n---\n")
    shop.skill("three", "---\nname: three\ndescription: '  '\n---\n")
    shop.skill("four", "---\nname: [3]\ndescription: Does.\n---\n")
    skills = await loaded(shop)
    assert {s.name: s.description for s in skills.available} == {
        "first": "Does it",
        "two": "Does.",
        "3": "Does.",
    }
    assert "description is empty" in " ".join(d.reason for d in skills.diagnostics)
    assert "<name>3</name>" in section(skills, "read").text


async def test_peers_2_1_a_malformed_install_hint_costs_nobody_anything(shop: Shop) -> None:
    shop.skill("a")
    shop.skill("bad", text("bad", "Does.", "metadata:", "  install: [{kind: null}, null, 3]"))
    assert names((await loaded(shop)).available) == ["a", "bad"]


async def test_peers_2_1_root_pages_without_a_name_do_not_collide(shop: Shop) -> None:
    for page in ("one", "two"):
        put(shop.custom / f"{page}.md", "---\ndescription: Does.\n---\n")
    assert names((await loaded(shop)).available) == ["one", "two"]


async def test_peers_2_1_one_name_twice_is_settled_by_path_and_told(shop: Shop) -> None:
    shop.skill("b", text("same", "Second."))
    shop.skill("a", text("same", "First."))
    skills = await loaded(shop)
    assert [s.description for s in skills.available] == ["First."]
    assert "taken by" in str(skills.diagnostics[-1])


async def test_peers_2_1_links_do_not_lead_around_or_away(shop: Shop) -> None:
    shop.skill("a")
    symlink(shop.custom / "around", shop.custom)
    symlink(shop.custom / "away", "/")
    put(shop.custom / "huge" / "SKILL.md", text("huge", body="x" * 300_000))
    assert names((await loaded(shop)).available) == ["a"]


# -- 2.2 frontmatter


@pytest.mark.parametrize(
    ("content", "usable"),
    [
        ("\ufeff" + text("v"), True),
        ("---\nname: v\ndescription: Does.\n---", True),
        (
            text("v", "Plans: goals", "metadata:", "  name: other", "  requires:", "    bins: [no-such]"),
            False,
        ),
        (text("v", "Does.", 'metadata: \'{"requires": {"bins": ["no-such"]}}\''), False),
        (text("v", "Does.", "metadata: {openclaw: {requires: {bins: [no-such]}}}"), False),
        (text("v", "Does.", "metadata: {x: 1, openclaw: {requires: {bins: [no-such]}}}"), False),
        (text("v", "Does.", "metadata: {always: 'false', requires: {bins: [no-such]}}"), False),
        (text("v", "Does.", "metadata: {default_enabled: 'false'}"), False),
    ],
)
async def test_peers_2_2_a_head_is_read_whole_and_requirements_never_fail_open(
    shop: Shop, content: str, usable: bool
) -> None:
    shop.skill("v", content)
    skills = await loaded(shop)
    assert names(skills.available) == (["v"] if usable else [])
    assert skills.find("v") is not None


# -- 2.3 switches


async def test_peers_2_3_entries_keep_what_is_the_users_and_follow_the_file(shop: Shop) -> None:
    shop.skill("a", text("a", "New words."))
    old: dict[str, Any] = {
        "enabled": False,
        "description": "Old.",
        "source": "hub",
        "category": "x",
        "display_name": "A",
    }
    put(shop.config, json.dumps({"a": old, "gone": {"enabled": False}}))
    await loaded(shop)
    entries = json.loads(shop.config.read_text())
    assert {key: entries["a"][key] for key in old} == {**old, "description": "New words."}
    assert "gone" not in entries


async def test_peers_2_3_no_switch_is_lost_by_tearing_by_two_owners_or_by_a_bad_moment(shop: Shop) -> None:
    file = shop.skill("a")
    shop.skill("b")
    first, second = shop.manager(), shop.manager()
    await first.refresh()
    await second.refresh()
    await first.set_enabled("a", False)
    await second.set_enabled("b", False)
    await first.refresh()
    assert names(first.current.disabled) == names(second.current.disabled) == ["a", "b"]
    put(file, "torn")
    await first.refresh()
    put(file, text("a"))
    put(shop.config, '{"a": ')
    third = shop.manager()
    await third.refresh()
    assert names(third.current.disabled) == ["a", "b"]


# -- 2.4 requirements


async def test_peers_2_4_systems_in_all_spellings_and_always_never_skips_the_system(shop: Shop) -> None:
    for system in ("windows", "macos", "Linux"):
        shop.skill(
            system.lower(), text(system.lower(), "Does.", f"metadata: {{os: [{system}], always: true}}")
        )
    shop.skill("always", text("always", "Does.", "metadata: {always: true, requires: {bins: [no-such]}}"))
    assert names((await loaded(shop)).available) == ["always", "linux"]


async def test_peers_2_4_a_blank_variable_is_none_and_the_workspaces_variables_count(shop: Shop) -> None:
    shop.skill("a", text("a", "Does.", "metadata: {requires: {env: [KEY], anyEnv: [X, Y], anyBins: [p, q]}}"))
    manager = shop.manager()
    shop.environ = {"KEY": " ", "Y": "1"}
    await manager.refresh()
    assert str(manager.current.unavailable[0][1]) == "anyBins: p, q; env: KEY"
    shop.environ["KEY"] = "1"
    shop.programs.add("q")
    await manager.refresh()
    assert names(manager.current.available) == ["a"]


# -- 2.5 the list, 2.6 what cannot be used


async def test_peers_2_5_the_list_is_ordered_escaped_bounded_and_shows_no_path_of_the_host(
    shop: Shop,
) -> None:
    shop.skill("b", text("b", "\"A & B < C > 'D' \" ".replace('"', "") + "x" * 3_000))
    shop.skill("a")
    shop.skill("hidden", text("hidden", "Does.", "disable-model-invocation: true"))
    shown = section(await loaded(shop), "open_file").text
    assert shown.index("<name>a</name>") < shown.index("<name>b</name>")
    assert "A &amp; B &lt; C &gt; &apos;D&apos;" in shown
    assert len(shown) < 3_500
    assert "hidden" not in shown
    assert str(shop.root) not in shown
    assert "`open_file`" in shown
    assert "several are needed" in shown  # composing skills is not forbidden
    assert section(SkillSet(), "read").text == ""


async def test_peers_2_6_only_what_can_be_mended_is_told_as_missing_and_keys_are_never_asked_for(
    shop: Shop,
) -> None:
    needs = "requires: {env: [KEY]}"
    shop.skill(
        "fixable",
        text("fixable", "Does.", f"metadata: {{{needs}}}", body="## Setup\n\nGet a key.\n\nSet it."),
    )
    shop.skill("never", text("never", "Does.", f"metadata: {{os: [plan9], {needs}}}"))
    shop.skill("hidden", text("hidden", "Does.", "disable-model-invocation: true", f"metadata: {{{needs}}}"))
    shown = section(await loaded(shop), "read").text
    assert "<missing>env: KEY</missing>" in shown
    assert "<setup>Get a key. Set it.</setup>" in shown
    assert "never" not in shown.split("<unavailable_skills>")[1]
    assert "hidden" not in shown
    assert "Never ask for a key" in shown


# -- 2.7 a skill called as a tool


async def test_peers_2_7_only_a_usable_skill_is_taught_once_and_with_the_tools_there_are(shop: Shop) -> None:
    shop.skill("do-it", text("do-it", "Does.", body="Step " * 10_000))
    shop.skill("off", text("off", "Does.", "metadata: {default_enabled: false}"))
    shop.skill("lacking", text("lacking", "Does.", "metadata: {requires: {env: [K]}}"))
    shop.skill("hidden", text("hidden", "Does.", "disable-model-invocation: true"))
    skills = await loaded(shop)
    assert [skills.teachable(name) for name in ("off", "lacking", "hidden", "unknown")] == [None] * 4
    skill = skills.teachable("Do_It")
    assert skill
    taught = teaching(skill, "Do_It", ["read", "bash"])
    assert "--- SKILL: do-it (path: /skills/do-it/SKILL.md) ---" in taught
    assert taught.count("--- END SKILL ---") == 1
    assert "Tools you can call: read, bash." in taught
    assert len(taught) < 26_000
    assert len(teaching(skill, "Do_It", ["read"], again=True)) < 400
