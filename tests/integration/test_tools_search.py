"""search on a real disk: what it finds, what bounds it, and that no pattern holds anything up."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.tools.base import Caller
from agent.tools.manager import ToolManager, ToolSettings
from agent.tools.results import Masker

from .tools_support import Bench, make_context


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    manager = ToolManager(ToolSettings(file_timeout=10), mcp=None, masker=Masker())
    bench = Bench(manager, make_context(tmp_path, Caller("1")), tmp_path)
    (bench.folder / "src" / "deep").mkdir(parents=True)
    (bench.folder / "a.txt").write_text("alpha\nBeta (x)\ngamma\n")
    (bench.folder / "src" / "b.py").write_text("def alpha():\r\n    return 1\r\n")
    (bench.folder / "src" / "deep" / "c.py").write_text("beta = 2\n")
    (bench.folder / "bin").write_bytes(b"alpha\0\1\2")
    yield bench
    await manager.stop()


async def test_matching_lines_are_shown_with_file_and_number(bench: Bench) -> None:
    text = await bench.fine("search", pattern="^(def )?alpha")
    assert text.startswith("a.txt:1: alpha\nsrc/b.py:1: def alpha():\n[")
    assert "1 files were skipped" in text


async def test_text_case_glob_and_place_narrow_the_search(bench: Bench) -> None:
    assert await bench.fine("search", pattern="(x)", literal=True, path="a.txt") == "a.txt:2: Beta (x)"
    assert (
        await bench.fine("search", pattern="BETA", ignore_case=True, glob="*.py")
        == "src/deep/c.py:1: beta = 2"
    )
    assert await bench.fine("search", pattern="a", path="src/deep") == "src/deep/c.py:1: beta = 2"
    assert await bench.fine("search", pattern="notes", path="/skills/notes", glob="more/*") == (
        "/skills/notes/more/form.txt:1: form for notes"
    )
    assert "Nothing was found. 4 files" in await bench.fine("search", pattern="zzz")


async def test_without_a_pattern_files_are_listed(bench: Bench) -> None:
    assert await bench.fine("search", glob="*.py") == "src/b.py\nsrc/deep/c.py"
    assert await bench.fine("search", glob="**/deep/*.py") == "src/deep/c.py"
    assert "No file fits" in await bench.fine("search", glob="*.rs")


async def test_links_are_not_followed(bench: Bench) -> None:
    (bench.folder / "out").symlink_to(bench.outside)
    (bench.folder / "loop").symlink_to(bench.folder)
    (bench.folder / "secret").symlink_to(bench.outside / "secret.txt")
    assert "Nothing was found" in await bench.fine("search", pattern="the-secret")


async def test_a_long_line_is_shown_around_its_matches(bench: Bench) -> None:
    (bench.folder / "min.js").write_text("x" * 50_000 + "needle" + "y" * 50_000 + "needle")
    text = await bench.fine("search", pattern="needle")
    assert text.count("needle") == 2
    assert "(character 50001)" in text
    assert len(text) < 1_000


async def test_many_matches_are_cut_and_the_note_says_so(bench: Bench) -> None:
    (bench.folder / "many").write_text("hit\n" * 10_000)
    text = await bench.fine("search", pattern="hit")
    assert text.count("many:") == 200
    assert "There is more" in text


@pytest.mark.parametrize("pattern", ["(", "[a", "a{99999999999999}", "(" * 900, r"\L<x>"])
async def test_a_pattern_that_is_none_is_explained(bench: Bench, pattern: str) -> None:
    assert "literal" in await bench.refused("search", pattern=pattern)


@pytest.mark.parametrize("pattern", ["^(a|aa)+$", "(?=.*.*.*.*x)", r"(?e)(?:bbbbbbbbbbbbbbbbbbbb){e<=10}"])
async def test_a_pattern_that_takes_for_ever_ends_and_holds_nothing_up(bench: Bench, pattern: str) -> None:
    (bench.folder / "evil").write_text("a" * 5_000 + "!\n")
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.005)

    ticking = asyncio.create_task(tick())
    async with asyncio.timeout(15):
        assert "takes too long" in await bench.refused("search", pattern=pattern)
    ticking.cancel()
    assert max(later - sooner for sooner, later in itertools.pairwise(ticks)) < 0.25


async def test_a_search_that_is_cancelled_ends_its_thread(bench: Bench) -> None:
    for n in range(40):
        (bench.folder / f"f{n}").write_text(("a" * 40 + "\n") * 100_000)
    searching = asyncio.create_task(bench.call("search", pattern="(a?){30}b"))
    pool = bench.manager._workers._pool
    while pool._work_queue.qsize() or not pool._threads:
        await asyncio.sleep(0.001)
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching
    # Unless the thread had noticed, it would search for many seconds more.
    await asyncio.wait_for(asyncio.to_thread(pool.shutdown, wait=True), 3)
