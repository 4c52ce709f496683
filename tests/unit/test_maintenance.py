"""Upkeep: coalesced, one pass at a time, and no fault or hang of one chore keeps the next pass away."""

from __future__ import annotations

import asyncio

from bridge.maintenance import Chore, Maintenance


async def test_many_replies_lead_to_one_running_and_one_waiting_pass() -> None:
    gate = asyncio.Event()
    running = most = 0

    async def chore() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    maintenance = Maintenance([Chore("slow", chore)], idle_interval=3600, spacing=0)
    maintenance.start()
    maintenance.trigger()
    async with asyncio.timeout(5):
        while not running:
            await asyncio.sleep(0)
    for _ in range(100):
        maintenance.trigger()
    gate.set()
    await maintenance.settled()
    assert most == 1
    assert maintenance.passes <= 3
    await maintenance.stop()


async def test_chores_run_in_order_and_a_failing_one_stops_neither_the_others_nor_the_next_pass() -> None:
    order: list[str] = []

    async def fails() -> None:
        order.append("fails")
        raise ValueError("broken")

    async def works() -> None:
        order.append("works")

    maintenance = Maintenance([Chore("fails", fails), Chore("works", works)], idle_interval=3600, spacing=0)
    maintenance.start()
    await maintenance.settled()
    await maintenance.settled()
    assert order == ["fails", "works"] * 2
    await maintenance.stop()


async def test_something_that_hangs_at_the_end_of_a_pass_does_not_hold_up_the_next() -> None:
    passes = 0
    lingering = asyncio.Event()

    async def chore() -> None:
        nonlocal passes
        passes += 1

    async def hang() -> None:
        lingering.set()
        await asyncio.Event().wait()

    maintenance = Maintenance([Chore("count", chore)], linger=hang, idle_interval=3600, spacing=0)
    maintenance.start()
    maintenance.trigger()
    await lingering.wait()
    maintenance.trigger()
    async with asyncio.timeout(5):
        while passes < 2:
            await asyncio.sleep(0)
    await maintenance.stop()


async def test_an_idle_bridge_follows_edits_too() -> None:
    done = asyncio.Event()

    async def chore() -> None:
        done.set()

    maintenance = Maintenance([Chore("tick", chore)], idle_interval=0.01)
    maintenance.start()
    await asyncio.wait_for(done.wait(), 5)
    await maintenance.stop()


async def test_a_rare_chore_is_not_run_on_each_pass() -> None:
    runs = 0

    async def chore() -> None:
        nonlocal runs
        runs += 1

    maintenance = Maintenance([Chore("rare", chore, every=3600)], idle_interval=3600, spacing=0)
    maintenance.start()
    for _ in range(3):
        await maintenance.settled()
    assert runs == 1
    await maintenance.stop()


async def test_a_chore_that_takes_long_holds_up_no_other_and_never_runs_twice_at_a_time() -> None:
    begun = ended = short = 0
    free = asyncio.Event()

    async def long() -> None:
        nonlocal begun, ended
        begun += 1
        await free.wait()
        ended += 1

    async def quick() -> None:
        nonlocal short
        short += 1

    chores = [Chore("long", long, apart=True), Chore("quick", quick)]
    maintenance = Maintenance(chores, idle_interval=3600, spacing=0)
    maintenance.start()
    for _ in range(3):
        await maintenance.settled()
    assert (begun, ended, short) == (1, 0, 3)
    free.set()
    for _ in range(2):  # the first one ends in the pass that finds it still at work
        await maintenance.settled()
    assert begun >= 2
    free.clear()
    await maintenance.settled()
    left = begun - ended
    await maintenance.stop()
    assert (left, begun - ended) == (1, 1)  # cancelled with the others
