"""kill -9 at random moments under load, on both stores: nothing is lost, nothing is said twice, all in order.

`CAUSEWAY_KILLS=500` for the whole storm (`make chaos`); `CAUSEWAY_CHAOS_SEED` repeats the choices of one.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from tests.chaos.world import (
    CARDS,
    COLLECT,
    GROUP,
    INTERRUPT,
    MODES,
    PEOPLE,
    QUEUE,
    STEER,
    STOP,
    Figures,
    World,
    world,
)

KILLS = int(os.environ.get("CAUSEWAY_KILLS", "25"))
SEED = os.environ.get("CAUSEWAY_CHAOS_SEED", "10")
#: Kills of one life of a workspace; more make another, so that requests do not grow without end.
ROUND = 25
SIDE_BY_SIDE = 2
PAGE = 0

pytestmark = pytest.mark.timeout(120 + 8 * KILLS)


def speak(here: World, dice: random.Random) -> None:
    """Somebody writes something."""
    place = dice.choice((QUEUE, STEER, COLLECT, INTERRUPT, CARDS, STOP, GROUP, PAGE))
    if place == PAGE:
        here.ask_page(dice.choice(("plain", "shell", "ledger", "look")))
    elif place == GROUP:
        if dice.random() < 0.5:
            here.chatter()
        here.ask(GROUP, dice.choice(("plain", "shell", "long", "ledger")), dice.choice(PEOPLE))
    elif place == CARDS:
        here.ask(CARDS, dice.choice(("pay", "pay", "album", "file")))
    elif place == STOP:
        here.ask(STOP, dice.choice(("plain", "shell", "long")))
        if dice.random() < 0.3:
            here.command(STOP, "/stop")
    elif place == QUEUE:
        here.ask(QUEUE, dice.choice(("plain", "shell", "long", "ledger", "look")))
        if dice.random() < 0.4:
            here.command(QUEUE, dice.choice(("/status", "/new")))
    else:
        here.ask(place, dice.choice(("plain", "shell", "ledger", "plain")))
        if dice.random() < 0.2:
            here.command(place, f"/queue {MODES[place]}")


async def storm(here: World, dice: random.Random, kills: int) -> Figures:
    began = time.monotonic()
    await here.bridge.start()
    takes = time.monotonic() - began
    for chat, mode in MODES.items():
        here.command(chat, f"/queue {mode}")
    await here.until(here.answered)
    while len(here.kills) < kills:
        for _ in range(dice.randint(1, 4)):
            speak(here, dice)
        kind = dice.random()
        if kind < 0.5:  # after so many things seen from outside, and a little more
            target = here.events + dice.randint(1, 16)
            await here.until(lambda target=target: here.events >= target or here.answered())
            await asyncio.sleep(dice.random() * 0.03)
        elif kind < 0.75:
            await asyncio.sleep(dice.random())
        else:  # in the middle of coming back
            await here.kill()
            await here.bridge.start(ready=False)
            await asyncio.sleep(takes * (0.5 + dice.random()))
        await here.kill()
        await here.bridge.start(ready=dice.random() < 0.7)
    await here.settled()
    return await here.figures()


async def test_random_kills_lose_nothing_double_nothing_and_change_no_order(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = store.partition(":")[0]
    total, faults = Figures(), list[str]()
    room = asyncio.Semaphore(SIDE_BY_SIDE)

    async def one(number: int, kills: int) -> None:
        seed = f"{SEED}-{number}"
        url = store if kind == "sqlite" else f"{store}?prefix=r{number}"
        async with room, world(tmp_path / str(number), url) as here:
            try:
                found = await storm(here, random.Random(seed), kills)
            except AssertionError as fault:  # the other rounds are of interest too
                faults.append(f"seed {seed} on {kind}:\n{fault}\n{here.told()}")
                return
        total.add(found)
        if found.wrong:
            faults.append(f"seed {seed} on {kind}:\n" + "\n".join([*found.wrong, here.told()]))
        with capsys.disabled():
            print(f"\n{kind}, seed {seed}: {found}", end="", flush=True)

    async with asyncio.TaskGroup() as group:
        for number, begin in enumerate(range(0, KILLS, ROUND)):
            group.create_task(one(number, min(ROUND, KILLS - begin)))
    with capsys.disabled():
        print(f"\n{kind}, all: {total}", flush=True)
    assert not faults, "\n\n".join(faults)
    assert total.tools_mcp, "the MCP server was never reached, so nothing is shown about it"
