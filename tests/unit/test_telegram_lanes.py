"""Lanes, the condition of receiving, the lease: the parts that polling and webhook share."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from channels.base import Health
from channels.telegram.api import ApiError
from channels.telegram.condition import Condition, Trouble, diagnose
from channels.telegram.lanes import Busy, Lanes, lane_of
from channels.telegram.lease import Lease
from tests.fakes.channel_env import MemoryState

TROUBLE = Trouble(Health(False, "it is broken", "mend it"))


async def test_a_lane_lets_one_through_in_the_order_of_arrival() -> None:
    lanes, order, go = Lanes(10), list[str](), asyncio.Event()

    async def pass_through(key: str, number: int) -> None:
        async with lanes.turn(key):
            if (key, number) == ("a", 0):
                await go.wait()
            order.append(f"{key}{number}")

    async with asyncio.TaskGroup() as group:
        for number, key in itertools.product(range(3), "ab"):
            group.create_task(pass_through(key, number))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        while order != ["b0", "b1", "b2"]:
            await asyncio.sleep(0)
        go.set()
    assert order == ["b0", "b1", "b2", "a0", "a1", "a2"]
    assert (len(lanes), lanes._locks, lanes._waiting) == (0, {}, {})  # nothing is kept


async def test_a_full_lane_refuses_at_once_and_a_failure_lets_the_next_through() -> None:
    lanes = Lanes(1)

    async def fail() -> None:
        async with lanes.turn("a"):
            with pytest.raises(Busy):
                await lanes.turn("b").__aenter__()
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        await fail()
    async with lanes.turn("b"):
        assert len(lanes) == 1


def test_a_chat_a_business_chat_and_a_press_have_lanes_of_their_own() -> None:
    chat = {"id": 5, "type": "private"}
    plain = {"update_id": 1, "message": {"chat": chat}}
    edited = {"update_id": 2, "edited_message": {"chat": chat}}
    business = {"update_id": 3, "business_message": {"chat": chat, "business_connection_id": "B"}}
    press = {"update_id": 4, "callback_query": {"id": "1", "message": {"chat": chat}}}
    other = {"update_id": 5, "something_new": {}}
    lanes = [lane_of(update) for update in (plain, edited, business, press, other)]
    assert lanes[0] == lanes[1]
    assert len(set(lanes)) == 4


async def test_before_the_first_success_and_when_it_is_grave_trouble_is_shown_at_once() -> None:
    condition = Condition("poll")
    condition.failed(TROUBLE)
    assert condition.health == TROUBLE.health
    condition.succeeded()
    condition.failed(diagnose(ApiError("getUpdates", 401, "Unauthorized", "refused"), "tg"))
    assert not condition.health.ok


async def test_one_failure_is_tolerated_and_only_a_success_clears_the_count() -> None:
    condition = Condition("poll")
    condition.succeeded()
    condition.failed(TROUBLE)
    assert condition.health.ok
    condition.failed(TROUBLE)
    assert condition.health == TROUBLE.health
    condition.succeeded()
    assert condition.health == Health(True)


async def test_pauses_grow_to_a_limit_and_what_the_server_asks_is_kept() -> None:
    condition = Condition("poll")
    pauses = []
    for _ in range(12):
        condition.failed(TROUBLE)
        pauses.append(condition.pause())
    assert pauses[0] < 1
    assert 11 < pauses[-1] < 19
    condition.failed(diagnose(ApiError("getUpdates", 429, "x", "refused", {"retry_after": 40}), "tg"))
    assert condition.pause() >= 40


@pytest.mark.parametrize(
    ("error", "reason", "cure"),
    [
        (ApiError("getUpdates", 401, "Unauthorized", "refused"), "does not know", "channels.tg.token"),
        (ApiError("getUpdates", 409, "terminated by other getUpdates", "refused"), "another program", "stop"),
        (ApiError("getUpdates", 409, "webhook is active", "refused"), "webhook", "deleteWebhook"),
        (ApiError("getUpdates", 0, "cannot connect", "no"), "cannot be reached", "channels.tg.proxy"),
        (ApiError("getUpdates", 502, "Bad Gateway", "refused"), "Bad Gateway (502)", "log"),
    ],
)
def test_each_failure_is_told_with_its_cure(error: ApiError, reason: str, cure: str) -> None:
    health = diagnose(error, "tg").health
    assert reason in health.reason
    assert cure in health.cure


async def test_after_a_kill_the_next_process_of_the_workspace_polls_at_once(tmp_path: Path) -> None:
    state = MemoryState()
    killed = Lease(state, tmp_path / "one")
    assert await killed.take()
    living = Lease(state, tmp_path / "one")  # the same folder, but the first still lives
    elsewhere = Lease(state, tmp_path / "two")
    assert not await living.take()
    assert not await elsewhere.take()
    killed.close()  # as the kernel closes the files of a killed process; nothing was given back
    successor = Lease(state, tmp_path / "one")
    assert await successor.take()
    assert not await elsewhere.take()
    await successor.release()
    assert await elsewhere.take()
    for lease in (living, elsewhere, successor):
        lease.close()


async def test_without_a_folder_that_can_be_written_the_lease_works_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    lease = Lease(MemoryState(), tmp_path / "file")
    assert await lease.take()
    await lease.release()
    lease.close()


async def test_keeping_ends_when_the_store_cannot_be_asked_for_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.telegram.lease.SECONDS", 0.15)

    class Broken(MemoryState):
        broken = False

        async def claim(self, key: str, holder: str, seconds: float) -> bool:
            if self.broken:
                raise OSError("the store is away")
            return await super().claim(key, holder, seconds)

    state = Broken()
    lease = Lease(state, tmp_path)
    assert await lease.take()
    keeping = asyncio.create_task(lease.keep())
    state.broken = True
    await asyncio.wait_for(keeping, 5)
    lease.close()
