"""Gateways, workers and Redis killed under load, replaced under load, cut off for a while: what was taken
from the platform is answered once and in order.

`CAUSEWAY_CHATS` (2000 for the whole) and `CAUSEWAY_KILLS` set the size; `CAUSEWAY_CHAOS_SEED` repeats what
one run did, as far as the speed of the machine lets it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from bridge.batch import run_of
from bridge.store.redis import RedisStore
from tests.chaos.roles_load import Chaos, Load, judged
from tests.chaos.roles_stage import Stage, answer_to, name_of, session_of, stage, until

KILLS = int(os.environ.get("CAUSEWAY_KILLS", "8"))
CHATS = int(os.environ.get("CAUSEWAY_CHATS", "240"))


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(tmp_path) as made:
        yield made


@pytest.fixture
def dice() -> random.Random:
    seed = int(os.environ.get("CAUSEWAY_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    print(f"CAUSEWAY_CHAOS_SEED={seed}")
    return random.Random(seed)


@pytest.mark.timeout(300 + 30 * KILLS + CHATS)
async def test_workers_gateways_and_redis_killed_under_load_lose_nothing_and_double_nothing(
    house: Stage, dice: random.Random
) -> None:
    began = time.monotonic()
    await house.start(gateways=2, workers=4)
    load = Load(house, dice, CHATS, rounds=2)
    chaos = Chaos(house, load, dice)
    talking = asyncio.create_task(load.talk())
    await chaos.run(KILLS, outages=2)
    await talking
    await load.quiet(120)
    print(
        f"{load.total} messages in {CHATS} chats, {len(chaos.kills)} kills, {chaos.restarts} restarts, "
        f"{len(chaos.outages)} restarts of Redis, {time.monotonic() - began:.0f} s"
    )
    await judged(house, load, chaos.kills, chaos.outages)


class Callers:
    """Programs that use the API of whichever gateway takes their requests. Each request is answered."""

    def __init__(self, house: Stage) -> None:
        self.house = house
        self.answered = 0
        self.stopping = False

    async def call(self, caller: int) -> None:
        async with aiohttp.ClientSession() as client:
            number = 100_000 * caller
            while not self.stopping:
                number += 1
                await self._ask(client, f"caller {caller}", str(number))
                self.answered += 1

    async def _ask(self, client: aiohttp.ClientSession, who: str, task: str) -> None:
        body = {
            "model": "causeway",
            "user": who,
            "messages": [{"role": "user", "content": f"task {task} slow"}],
        }
        for _ in range(200):
            for url in list(self.house.front.gateways.values()):
                try:
                    async with client.post(f"{url}/v1/chat/completions", json=body) as answer:
                        if answer.status == 503:  # "The bridge is stopping."
                            continue
                        said = await answer.json()
                        assert answer.status == 200, said
                        assert said["choices"][0]["message"]["content"] == answer_to(task, "slow")
                        return
                except aiohttp.ClientConnectorError:
                    continue
            await asyncio.sleep(0.05)
        raise AssertionError("no gateway took the request")


@pytest.mark.timeout(400)
async def test_a_rolling_restart_under_load_loses_and_repeats_nothing(
    house: Stage, dice: random.Random
) -> None:
    house.add_server()
    await house.start(gateways=2, workers=4)
    load, callers = Load(house, dice, min(CHATS, 80), rounds=2), Callers(house)
    steps = [(house.workers, n) for n in range(4)] + [(house.gateways, n) for n in range(2)]
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        talking = group.create_task(load.talk())
        for n in range(1, 4):
            group.create_task(callers.call(n))
        for number, (places, place) in enumerate(steps):
            due = load.total * (number + 1) / (len(steps) + 2)
            await until(lambda due=due: load.answered >= due, 60)  # type: ignore[misc]
            await house.terminate(places, place)
            await (house.start_worker if places is house.workers else house.start_gateway)(place)
        await talking
        callers.stopping = True
    await load.quiet(60)
    print(f"{load.total} messages, {callers.answered} requests, {time.monotonic() - began:.0f} s")
    assert len(house.ours()) == 2 + 4 * 2  # a worker has its server
    verdict = await judged(house, load)
    assert verdict.repeated == []
    for places in (house.workers, house.gateways):
        for place in list(places):
            await house.terminate(places, place)
    assert house.ours() == []


async def test_a_gateway_that_is_told_to_stop_answers_the_requests_held_open(house: Stage) -> None:
    house.dev = True
    await house.start(gateways=1, workers=1)
    gateway = house.gateways[0]
    body = {"model": "causeway", "messages": [{"role": "user", "content": "task 1 held"}]}
    async with aiohttp.ClientSession() as client:
        asked = asyncio.create_task(client.post(f"{gateway.url}/v1/chat/completions", json=body))
        await until(lambda: "1" in house.gates, 20)
        stopping = asyncio.create_task(house.terminate(house.gateways, 0))
        await gateway.until(lambda: "Stopping" in gateway.output)
        house.gates["1"].set()
        answer = await asked
        assert answer.status == 200
        assert (await answer.json())["choices"][0]["message"]["content"] == answer_to("1", "held")
        await stopping
    await house.terminate(house.workers, 0)


async def test_a_worker_cut_off_for_longer_than_its_lease_shows_and_writes_nothing_more(
    house: Stage,
) -> None:
    house.shorten_leases()
    await house.start(gateways=1, workers=2)
    chats = [n if n % 2 else -1000 - n for n in range(1, 25)]
    for n, chat in enumerate(chats):
        house.say(chat, f"task {n} held")
    await until(lambda: len(house.gates) == len(chats), 20)
    async with house.store() as store:
        await until(lambda: all(house.telegram.chats[c].shown for c in chats if c < 0), 20)
        for chat in chats:  # what is shown is written down
            while chat < 0 and not await shown_of(store, session_of(chat)):
                await asyncio.sleep(0.02)
        holders = await store.arrivals.holders([session_of(chat) for chat in chats])
    cut_off = house.workers[0]
    its = {chat for chat, holder in zip(chats, holders, strict=True) if holder == name_of(cut_off)}
    assert 3 < len(its) < len(chats) - 3
    os.kill(cut_off.pid, signal.SIGSTOP)
    try:
        for n, chat in enumerate(chats):
            if chat not in its:
                house.gates[str(n)].set()
        await until(lambda: set(map(str, range(len(chats)))) <= house.telegram.answered, 40)
        async with house.store() as store:
            while await store.waiting_sessions(["telegram"]):
                await asyncio.sleep(0.05)
            before = [await store.history.count(session_of(chat)) for chat in chats]
        calls = len(house.telegram.calls)
    finally:
        os.kill(cut_off.pid, signal.SIGCONT)
    for gate in house.gates.values():
        gate.set()
    await cut_off.until(lambda: all(f"session {session_of(chat)}" in lost(cut_off.output) for chat in its))
    house.say(500, "task 500 plain")
    house.say(-1501, "task 501 plain")
    await until(lambda: {"500", "501"} <= house.telegram.answered, 20)
    shown = [c for c in house.telegram.calls[calls:] if c.chat in chats]
    assert [(c.method, c.chat) for c in shown] == []
    async with house.store() as store:
        assert [await store.history.count(session_of(chat)) for chat in chats] == before
    for n, chat in enumerate(chats):
        assert house.telegram.chats[chat].texts == [answer_to(str(n), "held")]
    await house.terminate(house.workers, 0)


async def shown_of(store: RedisStore, session: str) -> bool:
    """Whether it is written down that the chat has the beginning of the answer under way."""
    [waiting] = await store.next(session)
    reply = await store.reply(run_of(waiting))
    return reply is not None and [chunk.state for chunk in reply.chunks] == ["sent"]


def lost(output: str) -> str:
    """What a worker says of sessions that it lost."""
    return "\n".join(line for line in output.splitlines() if "another worker" in line or "lost the" in line)


@pytest.mark.timeout(200)
async def test_the_gateway_that_polls_is_killed_and_another_one_goes_on(
    house: Stage, dice: random.Random
) -> None:
    house.write(mode="polling")
    await house.start(gateways=2, workers=2)
    load = Load(house, dice, 40, rounds=2)
    chaos = Chaos(house, load, dice)
    async with asyncio.TaskGroup() as group:
        group.create_task(load.talk())
        for place in (0, 1):
            await until(lambda at=load.answered: load.answered >= at + load.total / 4, 60)  # type: ignore[misc]
            await chaos.kill_gateway(place)
            await chaos.started()
    await load.quiet(60)
    await judged(house, load, chaos.kills)
