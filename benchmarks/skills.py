"""500 skills: the first load, a refresh without and with one change, and how long the event loop waits."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from agent.skills.formatter import skills_section
from agent.skills.lint import confusable
from agent.skills.manager import SkillManager
from bridge.paths import builtin_skills
from bridge.skill_shelf import VERSIONS_SCOPE, StoreShelf
from bridge.skill_versions import SkillVersions
from bridge.store.sqlite import SqliteStore

COUNT = 500


def make(root: Path) -> None:
    for number in range(COUNT):
        folder = root / f"group-{number % 10}" / f"skill-{number:03}"
        (folder / "references").mkdir(parents=True)
        (folder / "references" / "more.md").write_text("more\n" * 50)
        head = f"name: skill-{number:03}\ndescription: Answers questions on topic {number}. Use when asked."
        (folder / "SKILL.md").write_text(f"---\n{head}\nmetadata:\n  os: [linux]\n---\n" + "Step.\n" * 100)


class Watch:
    """The longest time between two turns of the event loop, beyond the millisecond that was asked for."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, time.perf_counter() - began - 0.001)


async def timed(work: Callable[[], Awaitable[object]], times: int = 1) -> float:
    """The median of some runs, in milliseconds."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        custom = Path(folder) / "skills"
        make(custom)
        await asyncio.sleep(0.05)  # files this young are read twice, which is not what is measured
        manager = SkillManager(builtin_skills(), custom, environ=dict)
        store = SqliteStore(Path(folder) / "versions.db")
        await store.open()
        shelf = StoreShelf(store.channel_state(VERSIONS_SCOPE), asyncio.get_running_loop())
        versions = SkillVersions(custom, shelf)
        watch = Watch()
        watching = asyncio.create_task(watch.run())

        async def change() -> None:
            with (custom / "group-0" / "skill-000" / "SKILL.md").open("a") as file:
                file.write("One more step.\n")
            await manager.refresh()

        async def keep() -> None:
            await asyncio.to_thread(versions.record, tuple(manager.current))

        first = await timed(manager.refresh)
        await manager.refresh()  # writes the switches
        same = await timed(manager.refresh, 20)
        one = await timed(change, 5)
        kept, unchanged = await timed(keep), await timed(keep, 5)
        block = watch.longest * 1000
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await store.close()
        began = time.perf_counter()
        skills_section(manager.current, "read")
        prompt = (time.perf_counter() - began) * 1000
        began = time.perf_counter()
        confusable(manager.current)
        alike = (time.perf_counter() - began) * 1000
        print(f"{COUNT} skills: first load {first:.0f} ms; unchanged {same:.1f} ms; one changed {one:.1f} ms")
        print(f"  longest wait of the event loop {block:.1f} ms; prompt section {prompt:.1f} ms, once a set")
        print(f"  versions: all kept the first time {kept:.0f} ms; nothing changed {unchanged:.1f} ms")
        print(f"  lint, comparing all pairs {alike:.0f} ms")


if __name__ == "__main__":
    asyncio.run(main())
