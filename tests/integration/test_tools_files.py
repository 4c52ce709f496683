"""read, write, edit, ls and send_file on a real disk: what they do, and that they never leave the folder."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.events import FileRef
from agent.history import ImageRef
from agent.tools import paths
from agent.tools.base import Caller, ToolFailure
from agent.tools.manager import ToolManager, ToolSettings
from agent.tools.results import Masker

from .tools_support import SECRET, Bench, make_context

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 100


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    manager = ToolManager(ToolSettings(file_timeout=5), mcp=None, masker=Masker())
    yield Bench(manager, make_context(tmp_path, Caller("1", admin=True)), tmp_path)
    await manager.stop()


# Doing the work ------------------------------------------------------------------------------------------


async def test_a_file_is_written_read_changed_and_listed(bench: Bench) -> None:
    assert await bench.fine("write", path="a/b/notes.txt", content="one\ntwo\nthree\n") == (
        "Created a/b/notes.txt: 14 bytes."
    )
    assert await bench.fine("read", path="a/b/notes.txt") == "one\ntwo\nthree"
    assert "line 2" in await bench.fine("edit", path="a/b/notes.txt", old="two", new="2")
    assert (bench.folder / "a/b/notes.txt").read_text() == "one\n2\nthree\n"
    assert "Replaced" in await bench.fine("write", path="./a/../a/b/notes.txt", content="x")
    assert await bench.fine("ls") == "a/"
    assert await bench.fine("ls", path="a/b") == "notes.txt  1"
    assert sorted(path.name for path in (bench.folder / "a/b").iterdir()) == ["notes.txt"]


async def test_a_long_file_comes_in_parts_that_join_to_the_whole(bench: Bench) -> None:
    lines = [f"{n} " + "x" * (n % 90) for n in range(3_000)]
    (bench.folder / "long.txt").write_text("\n".join(lines) + "\n")
    read: list[str] = []
    while len(read) < len(lines):
        text = await bench.fine("read", path="long.txt", offset=len(read) + 1)
        body, _, note = text.rpartition("\n[")
        assert f"Lines {len(read) + 1} to" in note
        assert len(text) <= 20_000
        read += body.split("\n")
    assert read == lines


async def test_one_huge_line_is_cut_and_the_note_says_so(bench: Bench) -> None:
    (bench.folder / "line.json").write_text("x" * 100_000)
    text = await bench.fine("read", path="line.json")
    assert len(text) < 20_000
    assert "80400 more characters" in text


async def test_a_file_larger_than_the_bound_is_read_in_part(bench: Bench) -> None:
    with (bench.folder / "huge.log").open("wb") as file:
        file.write(b"first line\n")
        file.truncate(50 << 30)
    assert "is no text file" in await bench.refused("read", path="huge.log")
    with (bench.folder / "large.log").open("wb") as file:
        file.write(b"line\n" * 1_200_000)
    assert "only its first 5000000 bytes" in await bench.fine("read", path="large.log", limit=1)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xef\xbb\xbfmark\r\nend\r\n", "mark\nend"),
        ("grüße".encode(), "grüße"),
        (
            b"gr\xfc\xdfe",
            "grüße\n[The file is not UTF-8; it was read as Latin-1, so some characters may be wrong.]",
        ),
        (b"\xff\xfea\0b\0", "ab"),
        (
            b"\xef\xbb\xbfgr\xfc",
            "ï»¿grü\n[The file is not UTF-8; it was read as Latin-1, so some characters may be wrong.]",
        ),
        (b"", "[f is empty.]"),
    ],
)
async def test_encodings_are_recognised(bench: Bench, data: bytes, text: str) -> None:
    (bench.folder / "f").write_bytes(data)
    assert await bench.fine("read", path="f") == text


async def test_an_edit_keeps_the_encoding_the_line_ends_and_the_permissions(bench: Bench) -> None:
    path = bench.folder / "win.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n")
    path.chmod(0o755)
    await bench.fine("edit", path="win.txt", old="one\ntwo", new="1\n2\nzwö")
    assert path.read_bytes() == "\ufeff1\r\n2\r\nzwö\r\nthree\r\n".encode()
    assert path.stat().st_mode & 0o777 == 0o755
    (bench.folder / "latin").write_bytes(b"\xfc")
    assert "lacks a character" in await bench.refused("edit", path="latin", old="ü", new="€")


async def test_an_edit_that_fits_not_once_says_where(bench: Bench) -> None:
    (bench.folder / "f").write_text("a\nb\na\n  c = 1\n")
    assert "2 times, at lines 1, 3" in await bench.refused("edit", path="f", old="a", new="x")
    assert "stands at line 4" in await bench.refused("edit", path="f", old="c = 1\nd", new="x")
    assert "Not even its first line" in await bench.refused("edit", path="f", old="zzz", new="x")
    assert "the same" in await bench.refused("edit", path="f", old="a", new="a")
    assert "2 places" in await bench.fine("edit", path="f", old="a", new="x", all=True)
    assert (bench.folder / "f").read_text() == "x\nb\nx\n  c = 1\n"


async def test_a_picture_is_handed_to_the_model(bench: Bench) -> None:
    (bench.folder / "pic").write_bytes(PNG)
    result = await bench.call("read", path="./pic")
    assert result.images == (ImageRef("pic", "image/png"),)
    (bench.folder / "big.png").write_bytes(PNG + b"\0" * 4_000_000)
    assert "at most 3700000" in (await bench.refused("read", path="big.png")).lower()


async def test_binary_files_and_folders_are_said_to_be_that(bench: Bench) -> None:
    (bench.folder / "bin").write_bytes(b"\x7fELF\0\0\1")
    assert "no text file" in await bench.refused("read", path="bin")
    assert "no text file" in await bench.refused("edit", path="bin", old="E", new="e")
    (bench.folder / "half").write_bytes(b"\xff\xfea\0b")
    assert "no text file" in await bench.refused("read", path="half")
    (bench.folder / "dir").mkdir()
    assert "Use ls" in await bench.refused("read", path="dir")
    assert "is a folder" in await bench.refused("write", path="dir", content="x")
    assert "does not exist" in await bench.refused("read", path="none.txt")
    assert "is a file or a link" in await bench.refused("ls", path="bin/x")


async def test_a_file_over_the_size_is_not_written(bench: Bench) -> None:
    assert "too many" in await bench.refused("write", path="f", content="x" * 5_000_001)
    assert not (bench.folder / "f").exists()


async def test_readers_see_the_old_or_the_new_content_and_never_a_part(bench: Bench) -> None:
    path = bench.folder / "f"
    contents = {letter * 200_000 for letter in "abcdef"}
    path.write_text("a" * 200_000)
    seen: set[str] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.add(path.read_text())

    watching = asyncio.create_task(asyncio.to_thread(watch))
    for _ in range(5):
        for content in sorted(contents):
            await bench.fine("write", path="f", content=content)
    done.set()
    await watching
    assert seen <= contents


async def test_a_folder_with_very_many_entries_is_listed_in_part(bench: Bench) -> None:
    for n in range(600):
        (bench.folder / f"f{n:04}").touch()
    text = await bench.fine("ls")
    assert text.startswith("f0000  0\n")
    assert "500 of 600 entries" in text


# Skills --------------------------------------------------------------------------------------------------


async def test_skills_are_read_and_listed_by_their_virtual_path(bench: Bench) -> None:
    assert await bench.fine("read", path="/skills/notes/SKILL.md") == "# Notes\nHow to take notes."
    assert await bench.fine("read", path="/skills/notes/more/form.txt") == "form for notes"
    assert await bench.fine("ls", path="/skills/notes") == "more/\nSKILL.md  27"
    assert await bench.fine("read", path="/skills/single/SKILL.md") == "# Single"
    assert "single file" in await bench.refused("read", path="/skills/single/../secret.txt")


async def test_skills_are_read_only_and_unknown_ones_are_not_there(bench: Bench) -> None:
    assert "read-only" in await bench.refused("write", path="/skills/notes/SKILL.md", content="x")
    assert "read-only" in await bench.refused("edit", path="/skills/notes/SKILL.md", old="Notes", new="x")
    assert "cannot be sent" in await bench.refused("send_file", path="/skills/notes/SKILL.md")
    for path in ("/skills/other/SKILL.md", "/skills/../secret.txt", "/skills/./notes", "/skills", "/skills/"):
        await bench.refused("read", path=path)
    assert (bench.outside / "skills/notes/SKILL.md").read_text().startswith("# Notes")


async def test_a_skill_does_not_lead_out_of_its_folder(bench: Bench) -> None:
    (bench.outside / "skills/notes/out").symlink_to(bench.outside)
    for path in ("../single.md", "../../secret.txt", "out/secret.txt", "more/../../../secret.txt"):
        assert "outside" in await bench.refused("read", path=f"/skills/notes/{path}")


# Staying inside ------------------------------------------------------------------------------------------

LEADING_OUT = [
    "../../secret.txt",
    "a/../../../secret.txt",
    "OUTSIDE/secret.txt",
    "link.txt",
    "linked/secret.txt",
    "hop/secret.txt",
    "/etc/passwd",
    "/proc/self/environ",
    "//etc/passwd",
    "/skills/../../etc/passwd",
    "~/secret.txt",
    "~root/x",
    "file:///etc/passwd",
]


@pytest.mark.parametrize("path", LEADING_OUT)
@pytest.mark.parametrize("tool", ["read", "write", "edit", "ls", "search", "send_file"])
async def test_sc_07_no_tool_leaves_the_folder(bench: Bench, tool: str, path: str) -> None:
    (bench.folder / "link.txt").symlink_to(bench.outside / "secret.txt")
    (bench.folder / "linked").symlink_to(bench.outside)
    (bench.folder / "hop").symlink_to("linked")
    (bench.folder / "a").mkdir()
    path = path.replace("OUTSIDE", str(bench.outside))
    more = {"write": {"content": "x"}, "edit": {"old": "the", "new": "x"}, "search": {"pattern": "secret"}}
    text = await bench.refused(tool, path=path, **more.get(tool, {}))
    assert "outside" in text or "no skill" in text
    assert (bench.outside / "secret.txt").read_text() == SECRET
    assert sorted(p.name for p in bench.outside.iterdir()) == ["secret.txt", "sessions", "skills"]


async def test_sc_07_a_file_made_in_the_folder_is_sent(bench: Bench) -> None:
    await bench.fine("write", path="out/report.pdf", content="x")
    (bench.folder / "again.pdf").symlink_to("out/report.pdf")
    result = await bench.call("send_file", path="again.pdf", caption="Here")
    assert result.files == (FileRef("out/report.pdf", "report.pdf", "application/pdf", "Here"),)


async def test_sc_07_what_is_no_file_or_too_large_is_not_sent(bench: Bench) -> None:
    (bench.folder / "dir").mkdir()
    (bench.folder / "empty").touch()
    with (bench.folder / "big").open("wb") as file:
        file.truncate(50_000_001)
    assert "folder" in await bench.refused("send_file", path="dir")
    assert "empty" in await bench.refused("send_file", path="empty")
    assert "at most 50000000" in await bench.refused("send_file", path="big")
    assert "folder" in await bench.refused("send_file", path=".")


async def test_the_session_may_be_named_by_its_absolute_path(bench: Bench) -> None:
    await bench.fine("write", path=str(bench.folder / "x.txt"), content="x")
    assert await bench.fine("read", path=str(bench.folder / "x.txt")) == "x"
    await bench.refused("read", path=str(bench.folder / "../../secret.txt"))


@pytest.mark.parametrize("path", ["", "  ", "a\0b", "x" * 300, "y/" * 3_000, "half\ud800"])
async def test_unusable_names_are_refused(bench: Bench, path: str) -> None:
    for tool, more in (("read", {}), ("write", {"content": "x"}), ("ls", {}), ("send_file", {})):
        await bench.refused(tool, path=path, **more)


async def test_pipes_sockets_and_devices_are_refused_at_once(bench: Bench) -> None:
    os.mkfifo(bench.folder / "pipe")
    (bench.folder / "null").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(bench.folder)  # the name of a socket must be short
        try:
            server.bind("sock")
        finally:
            os.chdir(here)
        async with asyncio.timeout(3):
            for name in ("pipe", "sock"):
                assert "no ordinary file" in await bench.refused("read", path=name)
                assert "no ordinary file" in await bench.refused("write", path=name, content="x")
                assert "no ordinary file" in await bench.refused("send_file", path=name)
            await bench.refused("read", path="null")
            assert "pipe  (no ordinary file)" in await bench.fine("ls")
            assert "Nothing was found" in await bench.fine("search", pattern="x")


async def test_a_folder_that_becomes_a_link_after_the_check_is_not_followed(bench: Bench) -> None:
    (bench.folder / "a").mkdir()
    (bench.folder / "a" / "secret.txt").write_text("mine")
    place = paths.locate(bench.context, "a/secret.txt")
    (bench.folder / "a").rename(bench.folder / "b")
    (bench.folder / "a").symlink_to(bench.outside)
    with pytest.raises(ToolFailure), paths.open_file(place):
        pass
    with pytest.raises(ToolFailure):
        paths.replace_file(place, b"x")
    assert (bench.outside / "secret.txt").read_text() == SECRET


async def test_a_link_swapped_in_at_full_speed_never_shows_the_secret(bench: Bench) -> None:
    target = bench.folder / "a"
    target.mkdir()
    (target / "secret.txt").write_text("mine")
    link, kept = bench.folder / "link", bench.folder / "kept"
    link.symlink_to(bench.outside)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            target.rename(kept)
            link.rename(target)
            target.rename(link)
            kept.rename(target)

    swapping = asyncio.create_task(asyncio.to_thread(swap))
    texts = [(await bench.call("read", path="a/secret.txt")).text for _ in range(400)]
    done.set()
    await swapping
    assert not any(SECRET in text for text in texts)
    assert "mine" in texts
