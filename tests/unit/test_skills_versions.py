"""Versions of the workspace's skills, in zip files and in git."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from agent.skills.manager import SkillManager
from bridge import skill_versions
from bridge.skill_versions import SkillVersions, VersionError
from tests.unit.skills_shop import Shop, put, symlink, text


class Desk:
    """A workspace whose skills are recorded as upkeep does it."""

    def __init__(self, root: Path, kind: str) -> None:
        self.shop = Shop(root)
        self.shop.custom.mkdir(parents=True)
        folder = {"zip": None, "git": self.shop.custom, "git above": self.shop.custom.parent}[kind]
        if folder:
            subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
        self.kind = kind
        self.manager: SkillManager = self.shop.manager()
        self.versions = SkillVersions(self.shop.custom, clock=lambda: self.shop.now)

    async def keep(self, who: str = "", why: str = "") -> list[str]:
        await self.manager.refresh()
        return [version.skill for version in self.versions.record(self.manager.current, who, why)]

    def history(self, name: str) -> list[tuple[str, str]]:
        found = self.versions.history(name, self.manager.current.find(name))
        return [(version.who, version.why) for version in found]

    def back(self, name: str, index: int) -> None:
        skill = self.manager.current.find(name)
        versions = self.versions.history(name, skill)
        self.versions.rollback(name, versions[index].id, skill, "ann")


@pytest.fixture(params=["zip", "git", "git above"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    return Desk(tmp_path, request.param)


async def test_each_change_is_kept_once_with_who_and_why(desk: Desk) -> None:
    file = desk.shop.skill("a", text("a", "First."))
    desk.shop.skill("b")
    desk.shop.skill("built-in", source="builtin")
    assert await desk.keep("ann", "made it") == ["a", "b"]
    assert await desk.keep() == []
    put(file.parent / "references" / "more.md", "more")
    assert await desk.keep() == ["a"]
    (owner, why), first = desk.history("a")
    assert why == "changed on disk: references/more.md"
    assert owner == file.owner()
    assert first == ("ann", "made it")
    again = SkillVersions(desk.shop.custom)
    assert again.record(desk.manager.current) == []


async def test_an_earlier_version_comes_back_whole_and_what_was_there_is_kept(desk: Desk) -> None:
    file = desk.shop.skill("a", text("a", "First."))
    script = put(file.parent / "scripts" / "run.sh", "#!/bin/sh\n")
    script.chmod(0o755)
    await desk.keep()
    put(file, text("a", "Second."))
    script.unlink()
    put(file.parent / "new.md", "new")
    desk.back("a", 0)  # the change has not been kept yet
    assert "First." in file.read_text()
    assert script.stat().st_mode & 0o100
    assert not (file.parent / "new.md").exists()
    assert len(desk.history("a")) == 3
    desk.back("a", 1)
    assert "Second." in file.read_text()
    assert not script.exists()
    await desk.keep()
    skill = desk.manager.current.get("a")
    assert skill
    assert skill.description == "Second."


async def test_a_removed_skill_is_told_and_can_be_had_again(desk: Desk) -> None:
    file = desk.shop.skill("a", text("a", "First."))
    desk.shop.skill("b")
    await desk.keep("ann", "made it")
    shutil.rmtree(file.parent)
    assert await desk.keep() == ["a"]
    assert await desk.keep() == []
    assert [why for _, why in desk.history("a")] == ["removed", "made it"]
    with pytest.raises(VersionError, match="was removed"):
        desk.back("a", 0)
    desk.back("a", 1)
    assert "First." in file.read_text()


async def test_an_unknown_version_is_refused_and_changes_nothing(desk: Desk) -> None:
    file = desk.shop.skill("a", text("a", "First."))
    await desk.keep()
    for wrong in ("99", "HEAD", "--help", "../1", ""):
        with pytest.raises(VersionError, match="no version"):
            desk.versions.rollback("a", wrong, desk.manager.current.find("a"), "ann")
    assert "First." in file.read_text()


async def test_a_skill_in_a_group_and_a_single_page_have_versions_too(desk: Desk) -> None:
    deep = desk.shop.skill("group/deep", text("deep", "First."))
    page = put(desk.shop.custom / "page.md", text("page", "First."))
    assert await desk.keep() == ["deep", "page"]
    put(deep, text("deep", "Second."))
    put(page, text("page", "Second."))
    assert await desk.keep() == ["deep", "page"]
    for name, file in (("deep", deep), ("page", page)):
        desk.back(name, 1)
        assert "First." in file.read_text()


async def test_a_commit_holds_the_skill_alone(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "git above")
    other = put(desk.shop.custom.parent / "mcp.json", "{}")
    git = ["git", "-C", str(other.parent)]
    subprocess.run([*git, "add", "mcp.json"], check=True)
    desk.shop.skill("a")
    await desk.keep()
    shown = subprocess.run(
        [*git, "show", "--name-only", "--format="], check=True, capture_output=True, text=True
    )
    assert shown.stdout.split() == ["skills/a/SKILL.md"]
    staged = subprocess.run(
        [*git, "diff", "--cached", "--name-only"], check=True, capture_output=True, text=True
    )
    assert staged.stdout.split() == ["mcp.json"]


async def test_a_repository_further_up_or_one_that_ignores_the_skills_is_left_alone(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    desk = Desk(tmp_path, "zip")
    desk.shop.skill("a")
    await desk.keep()
    assert (desk.shop.custom / ".history" / "a" / "1.zip").is_file()
    ignoring = Desk(tmp_path / "second", "git above")
    put(ignoring.shop.custom.parent / ".gitignore", "skills/\n")
    ignoring.shop.skill("a")
    await ignoring.keep()
    assert (ignoring.shop.custom / ".history" / "a" / "1.zip").is_file()


async def test_versions_stay_bounded_and_numbers_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skill_versions, "MAX_VERSIONS", 3)
    desk = Desk(tmp_path, "zip")
    for number in range(5):
        desk.shop.skill("a", text("a", f"Number {number} {'x' * number}."))
        await desk.keep()
    assert [version.id for version in desk.versions.history("a")] == ["5", "4", "3"]


async def test_linked_oversized_and_strange_skills_cost_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skill_versions, "MAX_SKILL_BYTES", 2_000)
    desk = Desk(tmp_path, "zip")
    put(tmp_path / "elsewhere" / "SKILL.md", text("linked"))
    symlink(desk.shop.custom / "linked", tmp_path / "elsewhere")
    put(desk.shop.skill("big").parent / "data.bin", b"x" * 3_000)
    symlink(desk.shop.skill("a").parent / "passwd", "/etc/passwd")
    assert await desk.keep() == ["a"]
    assert not (desk.shop.custom / ".history" / "linked").exists()
    assert b"root:" not in (desk.shop.custom / ".history" / "a" / "1.zip").read_bytes()


async def test_a_damaged_version_is_told_and_the_others_remain(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "zip")
    file = desk.shop.skill("a", text("a", "First."))
    await desk.keep()
    put(file, text("a", "Second."))
    await desk.keep()
    put(desk.shop.custom / ".history" / "a" / "2.zip", "torn")
    assert desk.history("a")[0][1] == "(damaged)"
    with pytest.raises(VersionError, match="damaged"):
        desk.back("a", 0)
    desk.back("a", -1)
    assert "First." in file.read_text()
