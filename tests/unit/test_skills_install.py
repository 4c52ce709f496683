"""Skills from elsewhere: what is let in, and what is refused before anything is in place."""

from __future__ import annotations

import os
import stat
import subprocess
import zipfile
from pathlib import Path

import pytest

from agent.skills import install
from agent.skills.install import InstallError, contents, fetch, place, replaceable, shown_source
from tests.unit.skills_shop import put, symlink, text


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    folder = tmp_path / "staging"
    folder.mkdir()
    return folder


def skill_folder(root: Path, name: str = "chart") -> Path:
    put(root / name / "SKILL.md", text(name))
    put(root / name / "scripts" / "draw.py", "print(1)")
    put(root / name / "run", "#!/bin/sh\n")
    put(root / name / "references" / "colours.md", "# Colours")
    return root / name


def archive(path: Path, *entries: tuple[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in entries:
            packed.writestr(name, data)
    return path


def names(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


def test_a_folder_is_shown_with_its_files_and_scripts_and_put_in_place(tmp_path: Path, staging: Path) -> None:
    found = contents(fetch(str(skill_folder(tmp_path)), staging))
    (offer,) = found.offers
    assert offer.name == "chart"
    assert set(offer.scripts) == {"run", "scripts/draw.py"}
    assert dict(offer.files)["scripts/draw.py"] == 8
    target = place(offer, tmp_path / "skills", None)
    assert names(target) == {"SKILL.md", "scripts/draw.py", "run", "references/colours.md"}
    assert [entry.name for entry in (tmp_path / "skills").iterdir()] == ["chart"]


def test_a_collection_gives_each_skill_and_says_why_another_is_left_out(
    tmp_path: Path, staging: Path
) -> None:
    skill_folder(tmp_path / "many", "one")
    put(tmp_path / "many" / "group" / "two" / "SKILL.md", text("two"))
    put(tmp_path / "many" / "page.md", text("page"))
    put(tmp_path / "many" / "CHANGELOG.md", "no skill")
    put(tmp_path / "many" / "bad" / "SKILL.md", "---\nname: bad\n---\n")
    put(tmp_path / "many" / ".git" / "config", "x")
    found = contents(fetch(str(tmp_path / "many"), staging))
    assert sorted(offer.name for offer in found.offers) == ["one", "page", "two"]
    assert any("no description" in reason for reason in found.refused)
    assert str(staging) not in " ".join(found.refused)


def test_a_zip_with_one_folder_inside_is_that_skill(tmp_path: Path, staging: Path) -> None:
    file = archive(
        tmp_path / "pack.zip", ("chart/SKILL.md", text("chart")), ("chart/a/b.md", "x"), ("chart/e/", "")
    )
    (offer,) = contents(fetch(str(file), staging)).offers
    assert offer.name == "chart"
    assert not [finding for finding in offer.findings if finding.rule == "loader"]
    assert names(offer.folder) == {"SKILL.md", "a/b.md"}


def linked(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


@pytest.mark.parametrize(
    "name",
    ["../evil", "/etc/evil", "a/../../evil", "..\\evil", "C:\\evil", "C:evil", "a\n/b", "a/" * 11 + "b"],
)
def test_an_archive_that_leads_out_is_refused_and_writes_nothing(
    tmp_path: Path, staging: Path, name: str
) -> None:
    file = archive(tmp_path / "evil.zip", ("SKILL.md", text("evil")), (name, "x"))
    with pytest.raises(InstallError):
        fetch(str(file), staging)
    assert not any("evil" in path.name and path.suffix != ".zip" for path in tmp_path.iterdir())
    assert {path.parent.name for path in tmp_path.rglob("*") if path.is_file()} <= {tmp_path.name, "evil"}


def test_links_in_archives_and_folders_are_refused(tmp_path: Path, staging: Path) -> None:
    with zipfile.ZipFile(tmp_path / "links.zip", "w") as packed:
        packed.writestr("SKILL.md", text("links"))
        packed.writestr(linked("out"), "/etc/passwd")
    with pytest.raises(InstallError, match="link"):
        fetch(str(tmp_path / "links.zip"), staging)
    folder = skill_folder(tmp_path)
    for link, target in (("out", "/etc/passwd"), ("up", ".."), ("dead", "nowhere")):
        symlink(folder / link, target)
        with pytest.raises(InstallError, match="is a link"):
            fetch(str(folder), staging / link)
        (folder / link).unlink()


def test_a_pipe_is_refused_without_waiting(tmp_path: Path, staging: Path) -> None:
    os.mkfifo(skill_folder(tmp_path) / "pipe")
    with pytest.raises(InstallError, match="no regular file"):
        fetch(str(tmp_path / "chart"), staging)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([("SKILL.md", text("a")), ("bomb", b"\0" * 5_000_000)], "times its size"),
        ([("SKILL.md", text("a")), ("skill.MD", "x")], "twice"),
        ([(f"f{n}", "") for n in range(301)], "more than"),
    ],
)
def test_oversized_and_dishonest_archives_are_refused(
    tmp_path: Path,
    staging: Path,
    monkeypatch: pytest.MonkeyPatch,
    entries: list[tuple[str, str | bytes]],
    reason: str,
) -> None:
    monkeypatch.setattr(install, "MAX_FILES", 300)
    with pytest.raises(InstallError, match=reason):
        fetch(str(archive(tmp_path / "big.zip", *entries)), staging)


def test_bounds_count_what_is_unpacked_and_not_what_is_said(
    tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "MAX_FILE_BYTES", 1_000)
    folder = skill_folder(tmp_path)
    put(folder / "big.bin", b"x" * 1_001)
    with pytest.raises(InstallError, match="larger than allowed"):
        fetch(str(folder), staging)
    file = archive(tmp_path / "big.zip", ("SKILL.md", text("a")), ("big", "y" * 1_001))
    with pytest.raises(InstallError, match="larger than allowed"):
        fetch(str(file), staging)


@pytest.mark.parametrize(
    "source",
    ["--upload-pack=id", "-x", "ext::sh -c id", "http://example.org/a.git", "git://example.org/a", "a\0b",
     "https://a b/c", "none"],
)  # fmt: skip
def test_a_source_that_is_none_is_refused(staging: Path, source: str) -> None:
    with pytest.raises(InstallError):
        fetch(source, staging)


@pytest.mark.parametrize("ref", ["--upload-pack=id", "-b", "a b"])
def test_a_ref_cannot_be_an_option(staging: Path, ref: str) -> None:
    with pytest.raises(InstallError, match="no name of a branch"):
        fetch("file:///nowhere", staging, ref)


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    subprocess.run(["git", *who, "-C", str(folder), *arguments], check=True, capture_output=True)


def test_a_git_address_is_cloned_and_its_hooks_and_links_do_nothing(tmp_path: Path, staging: Path) -> None:
    folder = skill_folder(tmp_path)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "x")
    git(folder, "branch", "other")
    (offer,) = contents(fetch(f"file://{folder}", staging, "other")).offers
    assert ".git" not in {path.name for path in offer.folder.iterdir()}
    assert "run" in offer.scripts
    symlink(folder / "out", "/etc")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "link")
    with pytest.raises(InstallError, match="is a link"):
        fetch(f"file://{folder}", staging / "b")
    with pytest.raises(InstallError, match="could not fetch"):
        fetch(f"file://{tmp_path}/nowhere.git", staging / "c")


def test_a_password_in_an_address_is_not_shown() -> None:
    assert shown_source("https://me:secret@example.org/a.git") == "https://example.org/a.git"


def test_a_users_copy_is_never_touched_unless_it_is_to_be_replaced(tmp_path: Path, staging: Path) -> None:
    custom = tmp_path / "skills"
    put(custom / "group" / "mine" / "SKILL.md", text("chart", "Mine."))
    put(custom / "other" / "SKILL.md", text("other"))
    (offer,) = contents(fetch(str(skill_folder(tmp_path)), staging)).offers
    mine = replaceable("chart", custom)
    assert mine
    assert replaceable("absent", custom) is None
    put(custom / "chart" / "notes.txt", "in the way")
    with pytest.raises(InstallError, match="is there already"):
        place(offer, custom, None)
    assert (custom / "chart" / "notes.txt").read_text() == "in the way"
    assert place(offer, custom, mine) == custom / "group" / "mine"
    assert "run" in names(custom / "group" / "mine")
    assert replaceable("other", custom)
    assert not list(custom.rglob(".*"))


def test_a_failed_placing_leaves_the_old_copy(
    tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    custom = tmp_path / "skills"
    put(custom / "chart" / "SKILL.md", text("chart", "Mine."))
    (offer,) = contents(fetch(str(skill_folder(tmp_path)), staging)).offers
    rename = Path.rename

    def failing(path: Path, target: Path) -> Path:
        if path.name.endswith(".new"):
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(InstallError, match="No space"):
        place(offer, custom, replaceable("chart", custom))
    assert names(custom) == {"chart/SKILL.md"}
    assert "Mine." in (custom / "chart" / "SKILL.md").read_text()
