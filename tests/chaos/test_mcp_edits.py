"""`mcp.json` edited at random while many chats call tools without pause.

60 edits in the ordinary run; `CAUSEWAY_EDITS=300` for the whole storm. What must hold at every moment:

- A call ends with its own right answer or with an error that says what happened and what to do.
- Of one name at most two process trees live: the one that serves, and one that comes or leaves. Of one
  version of an entry, and of a name that is stop-first throughout, at most one.
- After the storm the catalog is what the file says, no process is left over, and memory has not grown.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.tools.base import Caller, ToolContext
from agent.tools.manager import ToolManager, UnknownTool
from agent.tools.mcp.hub import McpHub
from agent.tools.results import Masker
from agent.tools.settings import ToolSettings
from tests.fakes.mcp_bench import QUICK, alive, plain, until

EDITS = int(os.environ.get("CAUSEWAY_EDITS", "60"))
CHATS = 20
NAMES = ("alpha", "beta", "gamma", "delta", "solo")  # solo cannot run twice
LEAVING = 20.0  # seconds for everything to have left after the storm
GROWTH = 12 * 2**20  # bytes of memory between the first third of the storm and its end

pytestmark = pytest.mark.timeout(600)


@dataclass(slots=True)
class Trees:
    """Every process tree that was ever started, and the most that lived at once."""

    folder: Path
    groups: dict[int, tuple[str, str]] = field(default_factory=dict)  # living ones: name and version
    seen: set[int] = field(default_factory=set)
    too_many: list[str] = field(default_factory=list)
    most: Counter[str] = field(default_factory=Counter)

    def look(self) -> None:
        for file in self.folder.iterdir():
            name, version = file.name.split(".")
            for pid in map(int, file.read_text().split()):
                if pid not in self.seen:
                    self.seen.add(pid)
                    self.groups[pid] = (name, version)
            if file.stat().st_size and time.time() - file.stat().st_mtime > 60:
                file.unlink()  # all of its processes are known; the look stays cheap
        self.groups = {pid: of for pid, of in self.groups.items() if alive(pid)}
        for name, count in Counter(name for name, _ in self.groups.values()).items():
            self.most[name] = max(self.most[name], count)
            if count > (1 if name == "solo" else 2):
                self.too_many.append(f"{count} trees of {name}: {self.groups}")
        for (name, version), count in Counter(self.groups.values()).items():
            if count > 1:
                self.too_many.append(f"{count} trees of version {version} of {name}")

    async def watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(0.015)


class Storm:
    """The file, and what it says: one edit after the other."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.file = folder / "mcp.json"
        self.pids = folder / "pids"
        self.pids.mkdir()
        self.pick = random.Random(seed)
        self.wanted: dict[str, dict[str, Any]] = {}
        self.kinds: Counter[str] = Counter()
        self._version = 0

    def entry(self, name: str, *, good: bool = False) -> dict[str, Any]:
        self._version += 1
        words = ["--pids", str(self.pids / f"{name}.{self._version}"), "--tag", str(self._version)]
        words += self.pick.choice([[], [], [], ["--delay", "0.2"], ["--stderr", "70"], ["--noise"]])
        if not good and self.pick.random() < 0.1:
            words.append("--refuse-to-start")
        restart = "stop-first" if name == "solo" or self.pick.random() < 0.2 else "new-first"
        return plain(*words, restart=restart, timeout=5)

    def edit(self) -> None:
        """Change the file in one way; the next edit writes it whole again if it was left broken."""
        name = self.pick.choice(NAMES)
        kind = self.pick.choice(["add", "change", "change", "remove", "rename", "switch", "break", "half"])
        self.kinds[kind] += 1
        if kind in ("add", "change"):
            self.wanted[name] = self.entry(name)
        elif kind == "remove":
            self.wanted.pop(name, None)
        elif kind == "rename" and name in self.wanted and name != "solo":
            # A version belongs to one name, so that trees can be told apart: under the other it is a new one.
            self.wanted.pop(name)
            other = self.pick.choice([other for other in NAMES if other not in (name, "solo")])
            self.wanted[other] = self.entry(other)
        elif kind == "switch" and name in self.wanted:
            entry = self.wanted[name]
            self.wanted[name] = {**self.entry(name), "disabled": not entry.get("disabled", False)}
        text = self.text()
        if kind == "break":
            at = self.pick.choice([place for place, letter in enumerate(text) if letter == "\n"])
            text = text[:at] + "}{" + text[at:]
        elif kind == "half":
            text = text[: self.pick.randrange(len(text))]
        self.file.write_text(text)

    def text(self) -> str:
        return json.dumps({"mcpServers": self.wanted}, indent=1)

    def mend(self) -> None:
        """The last edit: the file is whole, and no entry in it refuses to start (an older would stay)."""
        for name, entry in self.wanted.items():
            if "--refuse-to-start" in entry["args"]:
                self.wanted[name] = self.entry(name, good=True)
        self.file.write_text(self.text())

    def serving(self) -> list[str]:
        return sorted(name for name, entry in self.wanted.items() if not entry.get("disabled"))


@dataclass(slots=True)
class Chats:
    """Chats that call tools without pause, each turn with the catalog that it began with."""

    manager: ToolManager
    folder: Path
    begun: int = 0
    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0

    async def chat(self, number: int) -> None:
        pick = random.Random(number)
        folder = self.folder / f"chat-{number}"
        folder.mkdir()
        context = ToolContext(f"s{number}", "r", folder, Caller("u"), lambda name: None)
        while True:
            catalog = self.manager.catalog
            names = [tool.name for tool in catalog if tool.name.endswith(("__echo", "__sleep"))]
            for turn in range(3 if names else 0):
                name = pick.choice(names)
                say = f"{number}-{turn}-{pick.randrange(10**9)}"
                arguments = {"text": say} if name.endswith("echo") else {"seconds": pick.random() * 0.2}
                await self._call(catalog, name, arguments, context)
            await asyncio.sleep(pick.random() * 0.02)

    async def _call(self, catalog: Any, name: str, arguments: dict[str, Any], context: ToolContext) -> None:
        self.begun += 1
        began = time.monotonic()
        try:
            result = await self.manager.call(catalog, name, "call", arguments, context)
        except UnknownTool as fault:
            self.wrong.append(f"{name} is in the catalog and unknown: {fault}")
            return
        self.slowest = max(self.slowest, time.monotonic() - began)
        tool = name.partition("__")[2]
        if result.is_error:
            # What happened, by the tool's name, and a second sentence that says what to do.
            if not re.match(rf"{name} (failed|is gone).+\. .+\.$", result.text, re.DOTALL):
                self.wrong.append(f"an error that explains nothing: {result.text!r}")
            self.failed[re.sub(r"\d+", "N", result.text.partition(":")[2])[:60]] += 1
        elif result.text != f"{tool}: {json.dumps(arguments)}":
            self.wrong.append(f"{name} {arguments} brought {result.text[:100]!r}")
        else:
            self.answered += 1


def _memory() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


@pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX")
async def test_a_storm_of_edits_loses_no_call_and_leaves_no_process(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    storm = Storm(tmp_path, seed=20)
    storm.wanted = {name: storm.entry(name) for name in NAMES[:3]}
    storm.file.write_text(storm.text())
    hub = McpHub(
        storm.file,
        environ=os.environ,
        log_dir=tmp_path / "logs",
        cwd_default=tmp_path,
        patience=QUICK,
        drain=2.0,
    )
    manager = ToolManager(ToolSettings(), mcp=hub, masker=Masker())
    trees, chats = Trees(storm.pids), Chats(manager, tmp_path)
    await manager.start()
    tasks = [asyncio.create_task(chats.chat(number)) for number in range(CHATS)]
    tasks.append(asyncio.create_task(trees.watch()))
    memory = began = 0.0
    try:
        began = time.monotonic()
        for number in range(EDITS):
            storm.edit()
            await manager.refresh()
            await asyncio.sleep(storm.pick.random() * 0.3)
            if number == EDITS // 3:
                memory = _memory()
        storm.mend()
        await manager.refresh()
        assert await hub.settle(LEAVING)
        await until(lambda: sorted(name for name, _ in trees.groups.values()) == storm.serving(), LEAVING)
        grown = _memory() - memory
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [end for end in ends if not isinstance(end, asyncio.CancelledError)] == []
    figures = (
        f"{EDITS} edits in {time.monotonic() - began:.1f} s {dict(storm.kinds)}; {chats.begun} calls, "
        f"{chats.answered} answered, {sum(chats.failed.values())} failed with a reason, slowest "
        f"{chats.slowest:.2f} s; {len(trees.seen)} processes, at most {dict(trees.most)} trees of a name; "
        f"memory grew by {grown / 2**20:.1f} MiB"
    )
    print(figures, *chats.failed.most_common(8), sep="\n  ")
    record_property("figures", figures)
    sources = sorted({tool.source for tool in manager.catalog if tool.source != "builtin"})
    assert sources == storm.serving()
    assert [status.name for status in hub.status] == sorted(storm.wanted)
    assert chats.wrong == []
    assert chats.begun - CHATS <= chats.answered + sum(chats.failed.values()) <= chats.begun
    assert chats.answered > 5 * EDITS, "the chats hardly called anything"
    assert trees.too_many == []
    await manager.stop()
    trees.look()
    assert trees.groups == {}, "a process outlived the manager"
    assert grown < GROWTH, figures
