"""kill -9 just before and just after every commit of the store.

The list of commits is not written by hand: one run in which nobody is killed notes them, by scene. Then each
scene is played again for each of its commits, and the process dies there. The ordinary run takes a few of
them (by `CAUSEWAY_CHAOS_SEED`); with `CAUSEWAY_POINTS=all` each is taken (`make chaos`).
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from tests.chaos.entry import writing
from tests.chaos.world import CARDS, COLLECT, GROUP, INTERRUPT, QUEUE, STEER, STOP, Figures, World, world

POINTS = os.environ.get("CAUSEWAY_POINTS", "10")
SEED = os.environ.get("CAUSEWAY_CHAOS_SEED", "10")
#: Scenes played at the same time when all are taken.
SIDE_BY_SIDE = 2

pytestmark = pytest.mark.timeout(6 * 3600 if POINTS == "all" else 300)

#: What these scenes cannot reach in one process on these channels, and why.
OUT_OF_REACH: dict[str, str] = {
    "claims.claim_session": "claims are for workers beside others (test_roles_chaos.py)",
    "claims.renew_session": "claims are for workers beside others (test_roles_chaos.py)",
    "claims.release_session": "claims are for workers beside others (test_roles_chaos.py)",
    "state.remove": "only WeChat's passive replies are taken out of a log",
}


# -- scenes: each begins with nothing under way and ends when all is answered ------------------------------


async def a_tool(here: World) -> None:
    here.ask(QUEUE, "shell")


async def a_tool_of_a_server(here: World) -> None:
    await here.until(lambda: here.served)
    here.ask(QUEUE, "ledger")


async def a_long_answer(here: World) -> None:
    here.ask(QUEUE, "long")


async def the_page(here: World) -> None:
    here.ask_page("shell")


async def an_album(here: World) -> None:
    here.ask(CARDS, "album")


async def a_card(here: World) -> None:
    here.ask(CARDS, "pay")


async def a_group(here: World) -> None:
    here.chatter()
    here.chatter()
    here.ask(GROUP, "plain", 11)


async def put_together(here: World) -> None:
    here.command(COLLECT, "/queue collect")
    await here.all_answered()
    here.held.clear()
    here.ask(COLLECT, "hold")
    await here.until(lambda: here.holding)
    here.ask(COLLECT, "edited")
    here.ask(COLLECT, "plain")
    await here.taken()
    here.held.set()


async def steered(here: World) -> None:
    here.command(STEER, "/queue steer")
    await here.all_answered()
    here.tool_seconds = 0.5
    number = here.ask(STEER, "shell")
    await here.until(lambda: number in here.ran or here.answered())
    here.ask(STEER, "plain")


async def interrupted(here: World) -> None:
    here.command(INTERRUPT, "/queue interrupt")
    await here.all_answered()
    here.held.clear()
    here.ask(INTERRUPT, "hold")
    await here.until(lambda: here.holding)
    here.ask(INTERRUPT, "plain")
    await here.taken()
    here.held.set()


async def stopped(here: World) -> None:
    here.held.clear()
    here.ask(STOP, "hold")
    await here.until(lambda: here.holding)
    here.ask(STOP, "plain")
    here.command(STOP, "/stop")
    await here.taken()
    here.held.set()
    here.ask(STOP, "plain")


async def begun_anew(here: World) -> None:
    here.ask(QUEUE, "plain")
    here.command(QUEUE, "/new")
    here.ask(QUEUE, "plain")
    here.command(QUEUE, "/status")


#: Scenes with one reply; nothing is in flight but between a message's sending and the note of its id.
ONE_REPLY = {"a_tool", "a_tool_of_a_server", "a_long_answer", "an_album", "a_card", "a_group"}
IN_FLIGHT = ("store.put_chunk sent", "store.put_setting approval")

Scene = Callable[[World], Awaitable[None]]
SCENES: dict[str, Scene] = {
    scene.__name__: scene
    for scene in (
        a_tool, a_tool_of_a_server, a_long_answer, the_page, an_album, a_card, a_group, put_together, steered,
        interrupted, stopped, begun_anew,
    )
}  # fmt: skip


# -- the list ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Point:
    """Die `side` the `nth` commit of that name of the process, in a scene that is played alone."""

    scene: str
    side: Literal["before", "after"]
    name: str
    nth: int

    def __str__(self) -> str:
        return f"{self.scene}: {self.side} {self.name} {self.nth}"


async def play(here: World, scene: Scene) -> None:
    """Play a scene until all is answered and written down, whatever dies meanwhile."""
    living = asyncio.create_task(here.keep_alive())
    playing = asyncio.create_task(_to_its_end(here, scene))
    try:
        await asyncio.wait({living, playing}, return_when=asyncio.FIRST_COMPLETED)
        for task in (living, playing):
            if task.done():
                await task
    finally:
        living.cancel()
        playing.cancel()
        await asyncio.wait({living, playing})


async def _to_its_end(here: World, scene: Scene) -> None:
    await scene(here)
    await here.all_answered()
    await here.rests()


async def record(folder: Path, url: str) -> list[Point]:
    """Play all scenes one after the other, and note which commits each passes."""
    async with world(folder, url) as here:
        noted = here.commits
        here.pace = 0.0
        await here.bridge.start()
        await here.taken()
        starts = Counter(noted.read_text().splitlines())
        seen = starts.copy()
        points = [
            Point("a_tool", side, name, n) for name in starts for n in _to(starts[name]) for side in _SIDES
        ]
        for name, scene in SCENES.items():
            await play(here, scene)
            now = Counter(noted.read_text().splitlines())
            for commit, count in (now - seen).items():
                begin = starts[commit]
                points += [Point(name, side, commit, begin + n) for n in _to(count) for side in _SIDES]
            seen = now
        await here.end()
        ends = Counter(noted.read_text().splitlines()) - seen
        assert not here.kills
        found = await here.figures()
        assert not found.wrong, "\n".join([*found.wrong, here.told()])
    points += [Point("a_tool", side, name, starts[name] + 1) for name in ends for side in _SIDES]
    return list(dict.fromkeys(points))


_SIDES: tuple[Literal["before", "after"], ...] = ("before", "after")


def _to(count: int) -> range:
    return range(1, count + 1)


async def die_at(point: Point, folder: Path, url: str) -> Figures:
    """Play a scene in which the process dies at the point; what was found. No kills: it was not reached."""
    async with world(folder, url) as here:
        here.pace = 0.0
        here.bridge.environ["CAUSEWAY_DIE"] = f"{point.side} {point.name} {point.nth}"
        await here.bridge.start(ready=False)
        await play(here, SCENES[point.scene])
        await here.end()
        found = await here.figures()
        assert not found.wrong, "\n".join([*found.wrong, here.told()])
        if point.scene in ONE_REPLY and not (point.side == "before" and point.name.startswith(IN_FLIGHT)):
            assert not found.verdict.repeated, f"no call was in flight\n{here.told()}"
        return found


def chosen(points: list[Point]) -> list[Point]:
    """All, or a few of different names; not those where the method had nothing to write."""
    points = [point for point in points if not point.name.endswith("/0")]
    if POINTS == "all":
        return points
    dice = random.Random(SEED)
    mixed = dice.sample(points, len(points))
    few = {point.name: point for point in mixed}
    return dice.sample(list(few.values()), min(int(POINTS), len(few)))


async def test_every_commit_can_be_the_last(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = store.partition(":")[0]
    points = await record(tmp_path / "recorded", _own(store, "recorded"))
    reached = {point.name.partition(" ")[0].partition("/")[0] for point in points}
    assert writing() - reached == set(OUT_OF_REACH), "OUT_OF_REACH names what no scene reaches"
    total, missed, faults = Figures(), list[str](), list[str]()
    hit = set[tuple[str, str]]()
    room = asyncio.Semaphore(SIDE_BY_SIDE if POINTS == "all" else 1)

    async def one(number: int, point: Point) -> None:
        async with room:
            try:
                found = await die_at(point, tmp_path / str(number), _own(store, str(number)))
            except AssertionError as fault:  # the other points are of interest too
                faults.append(f"{point}\n{fault}")
                with capsys.disabled():  # a run of all takes long: whoever looks on is to see it now
                    print(f"\n{kind}: {faults[-1]}", flush=True)
                return
        total.add(found)
        if found.kills:
            hit.add((point.name, point.side))
        else:
            missed.append(str(point))

    async with asyncio.TaskGroup() as group:
        for number, point in enumerate(wanted := chosen(points)):
            group.create_task(one(number, point))
    with capsys.disabled():
        print(f"\n{kind}, {len(wanted)} of {len(points)} points (seed {SEED}), {len(missed)} not reached:")
        print(f"{kind}: {total}", *missed, sep="\n  ", flush=True)
    assert not faults, f"{len(faults)} of {len(wanted)} points:\n" + "\n\n".join(faults)
    assert len(missed) <= len(wanted) // 4, "the list is not that of the scenes when they are played alone"
    if POINTS == "all":
        assert {(p.name, p.side) for p in wanted} == hit


@pytest.mark.parametrize(
    ("store", "point"),
    [
        # A person's yes was forgotten between its card's end and the call's beginning, and asked for again.
        ("sqlite", Point("a_card", "before", "history.append begun", 1)),
        # A command that changes something was marked as seen and never answered.
        ("sqlite", Point("steered", "after", "store.mark_seen answered", 1)),
        ("sqlite", Point("stopped", "before", "store.complete_reply", 1)),
        # A message was in the inbox, but not in the index of those that wait; its repetition woke nobody.
        ("redis", Point("a_tool", "after", "store.accept/2", 1)),
    ],
    ids=str,
    indirect=["store"],
)
async def test_what_was_once_lost_is_lost_no_more(store: str, point: Point, tmp_path: Path) -> None:
    assert (await die_at(point, tmp_path / "here", store)).kills == 1


def _own(store: str, name: str) -> str:
    """A place of its own in the store."""
    return store if store.startswith("sqlite") else f"{store}?prefix={name}"
