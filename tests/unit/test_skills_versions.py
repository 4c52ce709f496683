"""Versions of the workspace's skills, in the store and in git."""

from __future__ import annotations

import asyncio
import io
import shutil
import subprocess
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.skills.manager import SkillManager
from bridge import skill_versions
from bridge.skill_shelf import VERSIONS_SCOPE, StoreShelf
from bridge.skill_versions import SkillVersions, Version, VersionError
from bridge.store.sqlite import SqliteStore
from tests.unit.skills_shop import Shop, put, symlink, text


class Desk:
    """A workspace whose skills are recorded as upkeep does it."""

    def __init__(self, root: Path, kind: str) -> None:
        self.shop = Shop(root)
        self.shop.custom.mkdir(parents=True)
        folder = {"store": None, "git": self.shop.custom, "git above": self.shop.custom.parent}[kind]
        if folder:
            subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
        self.kind = kind
        self.manager: SkillManager = self.shop.manager()
        self.store = SqliteStore(root / "versions.db")
        _opened.append(self.store)

    async def open(self) -> SkillVersions:
        """Versions as a process that has just started has them."""
        if not self.notes:
            await self.store.open()
            self.notes = True
        shelf = StoreShelf(self.store.channel_state(VERSIONS_SCOPE), asyncio.get_running_loop())
        return SkillVersions(self.shop.custom, shelf, clock=lambda: self.shop.now)

    notes = False
    kept: SkillVersions | None = None

    async def versions(self) -> SkillVersions:
        self.kept = self.kept or await self.open()
        return self.kept

    async def keep(self, who: str = "", why: str = "") -> list[str]:
        await self.manager.refresh()
        record = (await self.versions()).record
        made = await asyncio.to_thread(record, tuple(self.manager.current), who, why)
        return [version.skill for version in made]

    async def listed(self, name: str) -> list[Version]:
        return await asyncio.to_thread((await self.versions()).history, name, self.manager.current.find(name))

    async def history(self, name: str) -> list[tuple[str, str]]:
        return [(version.who, version.why) for version in await self.listed(name)]

    async def stored(self) -> dict[str, list[int]]:
        shelf = StoreShelf(self.store.channel_state(VERSIONS_SCOPE), asyncio.get_running_loop())
        await self.versions()
        return await asyncio.to_thread(shelf.index)

    async def back(self, name: str, index: int) -> None:
        skill = self.manager.current.find(name)
        versions = await self.listed(name)
        await asyncio.to_thread((await self.versions()).rollback, name, versions[index].id, skill, "ann")


_opened: list[SqliteStore] = []


@pytest.fixture(autouse=True)
async def _close() -> AsyncIterator[None]:
    yield
    while _opened:
        await _opened.pop().close()


@pytest.fixture(params=["store", "git", "git above"])
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
    (owner, why), first = await desk.history("a")
    assert why == "changed on disk: references/more.md"
    assert owner == file.owner()
    assert first == ("ann", "made it")
    again = await desk.open()
    assert await asyncio.to_thread(again.record, tuple(desk.manager.current)) == []


async def test_an_earlier_version_comes_back_whole_and_what_was_there_is_kept(desk: Desk) -> None:
    file = desk.shop.skill("a", text("a", "First."))
    script = put(file.parent / "scripts" / "run.sh", "#!/bin/sh\n")
    script.chmod(0o755)
    await desk.keep()
    put(file, text("a", "Second."))
    script.unlink()
    put(file.parent / "new.md", "new")
    await desk.back("a", 0)  # the change has not been kept yet
    assert "First." in file.read_text()
    assert script.stat().st_mode & 0o100
    assert not (file.parent / "new.md").exists()
    assert len(await desk.history("a")) == 3
    await desk.back("a", 1)
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
    assert [why for _, why in await desk.history("a")] == ["removed", "made it"]
    with pytest.raises(VersionError, match="was removed"):
        await desk.back("a", 0)
    await desk.back("a", 1)
    assert "First." in file.read_text()


async def test_an_unknown_version_is_refused_and_changes_nothing(desk: Desk) -> None:
    file = desk.shop.skill("a", text("a", "First."))
    await desk.keep()
    versions = await desk.versions()
    for wrong in ("99", "HEAD", "--help", "../1", ""):
        with pytest.raises(VersionError, match="no version"):
            await asyncio.to_thread(versions.rollback, "a", wrong, desk.manager.current.find("a"), "ann")
    assert "First." in file.read_text()


async def test_a_skill_in_a_group_and_a_single_page_have_versions_too(desk: Desk) -> None:
    deep = desk.shop.skill("group/deep", text("deep", "First."))
    page = put(desk.shop.custom / "page.md", text("page", "First."))
    assert await desk.keep() == ["deep", "page"]
    put(deep, text("deep", "Second."))
    put(page, text("page", "Second."))
    assert await desk.keep() == ["deep", "page"]
    for name, file in (("deep", deep), ("page", page)):
        await desk.back(name, 1)
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
    desk = Desk(tmp_path, "store")
    desk.shop.skill("a")
    await desk.keep()
    assert await desk.stored() == {"a": [1]}
    ignoring = Desk(tmp_path / "second", "git above")
    put(ignoring.shop.custom.parent / ".gitignore", "skills/\n")
    ignoring.shop.skill("a")
    await ignoring.keep()
    assert await ignoring.stored() == {"a": [1]}


async def test_versions_stay_bounded_and_numbers_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skill_versions, "MAX_VERSIONS", 3)
    desk = Desk(tmp_path, "store")
    for number in range(5):
        desk.shop.skill("a", text("a", f"Number {number} {'x' * number}."))
        await desk.keep()
    assert [version.id for version in await desk.listed("a")] == ["5", "4", "3"]


async def test_linked_oversized_and_strange_skills_cost_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skill_versions, "MAX_SKILL_BYTES", 2_000)
    desk = Desk(tmp_path, "store")
    put(tmp_path / "elsewhere" / "SKILL.md", text("linked"))
    symlink(desk.shop.custom / "linked", tmp_path / "elsewhere")
    put(desk.shop.skill("big").parent / "data.bin", b"x" * 3_000)
    symlink(desk.shop.skill("a").parent / "passwd", "/etc/passwd")
    assert await desk.keep() == ["a"]
    assert await desk.stored() == {"a": [1]}
    shelf = StoreShelf(desk.store.channel_state(VERSIONS_SCOPE), asyncio.get_running_loop())
    body = await asyncio.to_thread(shelf.read, "a", 1)
    assert zipfile.ZipFile(io.BytesIO(body)).namelist() == ["a/SKILL.md"]


async def test_a_damaged_version_is_told_and_the_others_remain(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "store")
    file = desk.shop.skill("a", text("a", "First."))
    await desk.keep()
    put(file, text("a", "Second."))
    await desk.keep()
    await desk.store.channel_state(VERSIONS_SCOPE).put("a/2", "dG9ybg==")
    assert (await desk.history("a"))[0][1] == "(damaged)"
    with pytest.raises(VersionError, match="damaged"):
        await desk.back("a", 0)
    await desk.back("a", -1)
    assert "First." in file.read_text()
