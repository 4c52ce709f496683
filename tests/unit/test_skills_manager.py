from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from agent.skills import manager as manager_module
from agent.skills.discovery import Found
from agent.skills.formatter import skills_section
from agent.skills.loader import Loaded, load
from agent.skills.manager import SkillManager, UnknownSkill
from tests.unit.skills_shop import Shop, names, put, symlink, text


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that the manager opens, in order."""
    opened: list[str] = []

    def counting(found: Found) -> Loaded:
        opened.append(found.hint)
        return load(found)

    monkeypatch.setattr(manager_module, "load", counting)
    monkeypatch.setattr(manager_module, "_YOUNG_NS", 0)
    return opened


async def test_both_sources_are_offered_and_the_custom_one_wins_by_name(shop: Shop) -> None:
    shop.skill("a", text("a", "Built in."), source="builtin")
    shop.skill("b", text("b", "Built in."), source="builtin")
    shop.skill("zz", text("b", "The user's."))
    manager = shop.manager()
    assert len(manager.current) == 0
    assert await manager.refresh()
    assert [(s.name, s.source, s.description) for s in manager.current.available] == [
        ("a", "builtin", "Built in."),
        ("b", "custom", "The user's."),
    ]


async def test_missing_folders_are_no_failure(shop: Shop) -> None:
    manager = SkillManager(shop.root / "none", shop.custom, environ=dict)
    await manager.refresh()
    assert names(manager.current.available) == []
    assert "does not exist" in manager.current.diagnostics[0].reason
    assert not await manager.refresh()
    shop.skill("new")
    assert await manager.refresh()
    assert names(manager.current.available) == ["new"]


async def test_a_custom_folder_that_cannot_be_made_leaves_the_built_in_skills(shop: Shop) -> None:
    put(shop.custom, "a file")
    shop.skill("a", source="builtin")
    manager = shop.manager()
    await manager.refresh()
    assert names(manager.current.available) == ["a"]
    reasons = " ".join(diagnostic.reason for diagnostic in manager.current.diagnostics)
    assert "no folder" in reasons
    assert "cannot be saved" in reasons


async def test_a_set_in_hand_never_changes(shop: Shop) -> None:
    file = shop.skill("a")
    manager = shop.manager()
    await manager.refresh()
    before = manager.current
    shutil.rmtree(file.parent)
    shop.skill("b")
    await manager.refresh()
    assert (names(before.available), names(manager.current.available)) == (["a"], ["b"])


async def test_an_unchanged_tree_opens_no_file_and_a_change_only_its_own(
    shop: Shop, reads: list[str]
) -> None:
    for name in ("a", "b", "c"):
        shop.skill(name)
    manager = shop.manager()
    await manager.refresh()
    assert sorted(reads) == ["a", "b", "c"]
    reads.clear()
    assert not await manager.refresh()
    assert reads == []
    shop.skill("b", text("b", "Does another thing."))
    shop.skill("d")
    assert await manager.refresh()
    assert sorted(reads) == ["b", "d"]
    found = manager.current.get("b")
    assert found
    assert found.description == "Does another thing."


async def test_an_edit_that_keeps_size_and_time_is_noticed(shop: Shop) -> None:
    file = shop.skill("a", text("a", "Old words."))
    os.utime(file, ns=(10**18, 10**18))
    manager = shop.manager()
    await manager.refresh()
    put(file, text("a", "New words."))
    os.utime(file, ns=(10**18, 10**18))
    assert await manager.refresh()
    assert manager.current.available[0].description == "New words."


async def test_names_that_clash_in_one_source_are_settled_by_path_and_told(shop: Shop) -> None:
    shop.skill("one", text("same", "First."))
    shop.skill("two", text("same", "Second."))
    manager = shop.manager()
    await manager.refresh()
    assert [skill.description for skill in manager.current.available] == ["First."]
    assert any(
        "taken by" in d.reason and d.file.endswith("two/SKILL.md") for d in manager.current.diagnostics
    )


async def test_a_skill_that_becomes_bad_keeps_its_last_good_version_until_it_goes(shop: Shop) -> None:
    good = text("a", "Good.")
    file = shop.skill("a", good)
    shop.skill("b")
    manager = shop.manager()
    await manager.refresh()
    put(file, good[: len(good) // 3])
    await manager.refresh()
    found = manager.current.get("a")
    assert found
    assert found.description == "Good."
    reasons = [diagnostic.reason for diagnostic in manager.current.diagnostics]
    assert any("never closed" in reason for reason in reasons)
    assert any("last good version" in reason for reason in reasons)
    file.unlink()
    await manager.refresh()
    assert names(manager.current.available) == ["b"]


async def test_each_fault_is_logged_once(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "causeway.skills")
    shop.skill("bad", "---\nname: bad\n---\n")
    manager = shop.manager()
    await manager.refresh()
    shop.skill("good")
    await manager.refresh()
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "bad/SKILL.md" in warnings[0]
    assert "To mend it" in warnings[0]


async def test_sk_07_none_is_offered_each_tells_its_reason_and_a_set_variable_counts_at_once(
    shop: Shop,
    reads: list[str],
) -> None:
    shop.skill("prog", text("prog", "d", "metadata:", "  requires:", "    bins: [nope]"))
    shop.skill("env", text("env", "d", 'metadata: {"openclaw": {"requires": {"env": ["KEY"]}}}'))
    shop.skill("any", text("any", "d", 'metadata: \'{"requires": {"anyBins": ["x", "y"]}}\''))
    shop.skill("os", text("os", "d", "metadata: {os: [windows], requires: {env: [KEY]}}"))
    manager = shop.manager()
    await manager.refresh()
    assert manager.current.available == ()
    assert {skill.name: str(missing) for skill, missing in manager.current.unavailable} == {
        "any": "anyBins: x, y",
        "env": "env: KEY",
        "os": "os: windows; env: KEY",
        "prog": "bins: nope",
    }
    prompt = skills_section(manager.current, "read")
    assert "<available_skills>" not in prompt
    assert [name for name in ("prog", "env", "any", "os") if f"<name>{name}</name>" in prompt] == [
        "prog",
        "env",
        "any",
    ]
    assert manager.current.get("env") is None
    assert manager.current.folder("env") is None
    reads.clear()
    shop.environ["KEY"] = "x"
    assert await manager.refresh()
    assert names(manager.current.available) == ["env"]
    assert reads == []
    assert not await manager.refresh()
    shop.programs.add("y")
    assert await manager.refresh()
    assert names(manager.current.available) == ["any", "env"]


async def test_sk_04_a_disabled_skill_is_gone_at_once_and_stays_so_through_restart_and_update(
    shop: Shop,
) -> None:
    file = shop.skill("a", text("a", "Version 1."))
    shop.skill("b")
    manager = shop.manager()
    await manager.refresh()
    assert await manager.set_enabled("a", False)
    for current in (manager.current,):
        assert names(current.available) == ["b"]
        assert names(current.disabled) == ["a"]
        assert (current.get("a"), current.folder("a"), current.teachable("a")) == (None, None, None)
        assert current.find("a")
    restarted = shop.manager()
    await restarted.refresh()
    assert names(restarted.current.available) == ["b"]
    # The update is seen half-way: the old folder is gone and the new one not there yet.
    shutil.rmtree(file.parent)
    await restarted.refresh()
    shop.skill("a", text("a", "Version 2."))
    await restarted.refresh()
    assert names(restarted.current.disabled) == ["a"]
    assert restarted.current.disabled[0].description == "Version 2."


async def test_sk_04_a_switch_set_in_the_file_while_the_program_is_down_counts(shop: Shop) -> None:
    shop.skill("a")
    manager = shop.manager()
    await manager.refresh()
    entries = json.loads(shop.config.read_text())
    entries["a"]["enabled"] = False
    shop.config.write_text(json.dumps(entries))
    restarted = shop.manager()
    await restarted.refresh()
    assert names(restarted.current.disabled) == ["a"]
    assert await manager.refresh()
    assert names(manager.current.disabled) == ["a"]


async def test_a_choice_about_a_removed_skill_is_forgotten_after_a_week(shop: Shop) -> None:
    file = shop.skill("a")
    manager = shop.manager()
    await manager.refresh()
    await manager.set_enabled("a", False)
    shutil.rmtree(file.parent)
    await manager.refresh()
    assert "a" not in json.loads(shop.config.read_text())
    shop.now += 8 * 24 * 3600
    shop.skill("a")
    await manager.refresh()
    assert names(manager.current.available) == ["a"]


async def test_the_file_of_switches_follows_the_skills_and_keeps_what_is_the_users(shop: Shop) -> None:
    saved = {
        "known": {
            "enabled": False,
            "description": "old",
            "source": "hub",
            "category": "x",
            "display_name": "K",
            "mine": 1,
        },
        "gone": {"enabled": True},
        "plain": False,
    }
    put(shop.config, "\ufeff" + json.dumps(saved))
    shop.skill("known", text("known", "new"))
    shop.skill("plain")
    shop.skill("off", text("off", "d", "metadata: {default_enabled: 'false'}"))
    shop.skill("on")
    manager = shop.manager()
    await manager.refresh()
    entries = json.loads(shop.config.read_text("utf-8"))
    assert list(entries) == ["known", "off", "on", "plain"]
    assert {name: entry["enabled"] for name, entry in entries.items()} == {
        "known": False, "off": False, "on": True, "plain": False,
    }  # fmt: skip
    known = entries["known"]
    assert (known["description"], known["source"], known["category"]) == ("new", "hub", "x")
    assert (known["display_name"], known["mine"]) == ("K", 1)
    assert (entries["on"]["source"], entries["on"]["category"]) == ("custom", "skill")
    assert '\n    "known": {' in shop.config.read_text("utf-8")


async def test_the_file_of_switches_is_written_only_when_something_changed(shop: Shop) -> None:
    shop.skill("a")
    manager = shop.manager()
    await manager.refresh()
    before = shop.config.stat()
    for fresh in (manager, shop.manager()):
        await fresh.refresh()
        await fresh.refresh()
    after = shop.config.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("torn", ["", "{", '{"a": {"enabled": fal', "[]", "\x00\x00", "[" * 100_000])
async def test_a_torn_file_of_switches_switches_nothing_on_and_is_not_overwritten(
    shop: Shop, torn: str
) -> None:
    shop.skill("a")
    shop.skill("b")
    manager = shop.manager()
    await manager.refresh()
    await manager.set_enabled("a", False)
    whole = shop.config.read_text()
    put(shop.config, torn)
    restarted = shop.manager()
    for one in (manager, restarted):
        await one.refresh()
        assert names(one.current.disabled) == ["a"]
        assert names(one.current.available) == ["b"]
        assert any(d.file.endswith("skills_config.json") and d.cure for d in one.current.diagnostics)
        with pytest.raises(manager_module.SwitchesBroken, match="mend"):
            await one.set_enabled("a", True)
    assert shop.config.read_text() == torn
    put(shop.config, whole)
    await restarted.refresh()
    assert restarted.current.diagnostics == ()
    await restarted.set_enabled("a", True)
    assert names(restarted.current.available) == ["a", "b"]


async def test_a_torn_file_of_switches_without_a_good_one_leaves_everything_off(shop: Shop) -> None:
    shop.skill("a")
    put(shop.config, "{")
    manager = shop.manager()
    await manager.refresh()
    assert names(manager.current.disabled) == ["a"]
    put(shop.config, "{}")
    await manager.refresh()
    assert names(manager.current.available) == ["a"]


async def test_a_file_of_switches_that_goes_away_while_running_is_written_again(shop: Shop) -> None:
    shop.skill("a")
    manager = shop.manager()
    await manager.refresh()
    await manager.set_enabled("a", False)
    shop.config.unlink()
    await manager.refresh()
    assert names(manager.current.disabled) == ["a"]
    assert json.loads(shop.config.read_text())["a"]["enabled"] is False


async def test_a_file_that_is_bad_for_a_while_loses_no_switch(shop: Shop) -> None:
    good = text("called-otherwise")
    file = shop.skill("a", good)
    manager = shop.manager()
    await manager.refresh()
    await manager.set_enabled("called-otherwise", False)
    put(file, "broken")
    for one in (manager, shop.manager()):
        await one.refresh()
        shop.now += 8 * 24 * 3600
        assert names(one.current.available) == []
    put(file, good)
    restarted = shop.manager()
    await restarted.refresh()
    assert names(restarted.current.disabled) == ["called-otherwise"]


async def test_two_managers_that_switch_different_skills_lose_nothing(shop: Shop) -> None:
    for name in ("a", "b", "c", "d"):
        shop.skill(name)
    one, two = shop.manager(), shop.manager()
    await one.refresh()
    await two.refresh()
    await asyncio.gather(
        one.set_enabled("a", False),
        two.set_enabled("b", False),
        one.set_enabled("c", False),
        two.set_enabled("d", False),
    )
    await asyncio.gather(one.refresh(), two.refresh())
    assert names(one.current.disabled) == names(two.current.disabled) == ["a", "b", "c", "d"]


async def test_a_crash_while_writing_leaves_the_old_file_whole(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.skill("a")
    manager = shop.manager()
    await manager.refresh()
    before = shop.config.read_bytes()

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(manager_module.SwitchesBroken, match="No space left"):
        await manager.set_enabled("a", False)
    assert shop.config.read_bytes() == before
    monkeypatch.undo()
    await manager.set_enabled("a", False)
    assert names(manager.current.disabled) == ["a"]


async def test_a_linked_file_of_switches_stays_a_link(shop: Shop) -> None:
    target = put(shop.root / "shared.json", "{}")
    symlink(shop.config, target)
    shop.skill("a")
    manager = shop.manager()
    await manager.refresh()
    assert shop.config.is_symlink()
    assert "a" in json.loads(target.read_text())
    assert not await manager.refresh()


async def test_an_unknown_name_cannot_be_switched(shop: Shop) -> None:
    shop.skill("translate")
    manager = shop.manager()
    with pytest.raises(UnknownSkill, match="Did you mean 'translate'"):
        await manager.set_enabled("translat", False)
    await manager.refresh()
    assert names(manager.current.available) == ["translate"]


async def test_a_failing_environment_switches_nothing_and_the_next_refresh_makes_up_for_it(
    shop: Shop,
) -> None:
    shop.skill("a")
    working = {"yes": False}

    def environ() -> dict[str, str]:
        if not working["yes"]:
            raise OSError("the .env file cannot be read")
        return {}

    manager = SkillManager(shop.builtin, shop.custom, environ=environ, platform="linux")
    with pytest.raises(OSError, match="env file"):
        await manager.refresh()
    working["yes"] = True
    assert await manager.refresh()
    assert names(manager.current.available) == ["a"]


async def test_a_single_file_skill_gives_the_read_tool_that_file_alone(shop: Shop) -> None:
    file = put(shop.custom / "note.md", text("note"))
    folder = shop.skill("a").parent
    manager = shop.manager()
    await manager.refresh()
    assert manager.current.folder("note") == file
    assert manager.current.folder("a") == folder
    assert manager.current.folder("other") is None


async def test_a_skill_called_as_a_tool_is_recognised_in_a_tools_spelling(shop: Shop) -> None:
    shop.skill("my-notes")
    shop.skill("hidden", text("hidden", "d", "disable-model-invocation: true"))
    shop.skill("off")
    manager = shop.manager()
    await manager.refresh()
    await manager.set_enabled("off", False)
    found = {
        name: manager.current.teachable(name)
        for name in ("my-notes", "my_notes", "MyNotes", "hidden", "off", "x")
    }
    assert [name for name, skill in found.items() if skill] == ["my-notes", "my_notes", "MyNotes"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look into every folder")
async def test_a_folder_that_cannot_be_looked_into_keeps_what_was_known(shop: Shop) -> None:
    file = shop.skill("team/a")
    manager = shop.manager()
    await manager.refresh()
    await manager.set_enabled("a", False)
    file.parent.parent.chmod(0)
    try:
        await manager.refresh()
        assert names(manager.current.disabled) == ["a"]
    finally:
        file.parent.parent.chmod(0o755)


async def test_a_walk_that_meets_an_error_keeps_what_was_known(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.skill("team/a")
    shop.skill("b")
    manager = shop.manager()
    await manager.refresh()
    await manager.set_enabled("a", False)
    real = os.scandir

    def failing(path: Any) -> Any:
        if str(path).endswith("team"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", failing)
    for one in (manager, shop.manager()):
        await one.refresh()
        assert names(one.current.available) == ["b"]
        assert any("Permission denied" in d.reason for d in one.current.diagnostics)
    assert names(manager.current.disabled) == ["a"]
    monkeypatch.undo()
    restarted = shop.manager()
    await restarted.refresh()
    assert names(restarted.current.disabled) == ["a"]


async def test_refreshing_is_off_the_event_loop(shop: Shop) -> None:
    import threading

    threads: list[int] = []
    shop.skill("a", text("a", "d", "metadata: {requires: {bins: [git]}}"))

    def which(name: str) -> str | None:
        threads.append(threading.get_ident())
        return None

    await shop.manager(which).refresh()
    assert threads
    assert threading.get_ident() not in threads
