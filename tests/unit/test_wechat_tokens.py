"""One holder of an access token in all processes, and no loops."""

from __future__ import annotations

import asyncio
import logging

import pytest

from channels.wechat.tokens import NoToken, StaleToken, Tokens
from tests.fakes.channel_env import MemoryState


class Platform:
    """Issues tokens; a new one ends every older one."""

    def __init__(self) -> None:
        self.asked: list[bool] = []
        self.valid = ""
        self.fails = False
        self.sticky = False  # without force it goes on giving out the refused one
        self.gate: asyncio.Event | None = None

    async def issue(self, force: bool) -> tuple[str, float]:
        self.asked.append(force)
        if self.gate is not None:
            await self.gate.wait()
        if self.fails:
            raise ConnectionError("the endpoint is ill")
        if not (self.sticky and not force and self.valid):
            self.valid = f"token-{len(self.asked)}"
        return self.valid, 7200.0

    async def call(self, token: str) -> str:
        await asyncio.sleep(0)
        if token != self.valid or (self.sticky and token == "token-1"):
            raise StaleToken("refused", 40001)
        return "done"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def workers(platform: Platform, state: MemoryState, count: int, clock: Clock | None = None) -> list[Tokens]:
    made = clock or Clock()
    return [Tokens(state, "token", platform.issue, made, deadline=2.0) for _ in range(count)]


async def test_fifty_callers_at_once_ask_for_one_token() -> None:
    platform = Platform()
    (tokens,) = workers(platform, MemoryState(), 1)
    assert set(await asyncio.gather(*(tokens.get() for _ in range(50)))) == {"token-1"}
    assert platform.asked == [False]


async def test_wx_05_two_workers_refused_at_once_renew_once_and_both_succeed() -> None:
    platform, state = Platform(), MemoryState()
    one, two = workers(platform, state, 2)
    assert await one.get() == await two.get() == "token-1"
    platform.valid = ""  # dies early, though everybody's cache calls it valid for two hours
    results = await asyncio.gather(one.call_with_token(platform.call), two.call_with_token(platform.call))
    assert results == ["done", "done"]
    assert platform.asked == [False, False], "the token endpoint was not asked exactly once more"


@pytest.mark.parametrize("code", [40001, 40014, 42001])
async def test_wx_05_after_one_retry_the_refusal_is_passed_on(code: int) -> None:
    platform = Platform()
    (tokens,) = workers(platform, MemoryState(), 1)
    tried: list[str] = []

    async def never(token: str) -> None:
        tried.append(token)
        raise StaleToken("refused", code)

    with pytest.raises(StaleToken):
        await tokens.call_with_token(never)
    assert tried == ["token-1", "token-2"]


async def test_wx_05_a_failing_endpoint_is_asked_once_and_then_left_alone_for_a_while() -> None:
    platform, clock = Platform(), Clock()
    (tokens,) = workers(platform, MemoryState(), 1, clock)
    platform.fails = True
    results = await asyncio.gather(*(tokens.get() for _ in range(50)), return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionError] + [NoToken] * 49
    assert len(platform.asked) == 1
    clock.now += 1.1
    with pytest.raises(ConnectionError):
        await tokens.get()
    clock.now += 1.1  # the second pause is longer
    with pytest.raises(NoToken, match="ill"):
        await tokens.get()
    clock.now += 1.0
    platform.fails = False
    assert await tokens.get() == "token-3"


async def test_a_token_that_the_platform_still_gives_out_is_replaced_by_force() -> None:
    platform = Platform()
    (tokens,) = workers(platform, MemoryState(), 1)
    await tokens.get()
    platform.sticky = True
    assert await tokens.call_with_token(platform.call) == "done"
    assert platform.asked == [False, False, True]


async def test_a_platform_that_refuses_what_it_gives_out_is_not_forced_again_and_again() -> None:
    platform, clock = Platform(), Clock()
    (tokens,) = workers(platform, MemoryState(), 1, clock)

    async def refused(_: str) -> None:
        raise StaleToken("refused", 40001)

    platform.sticky = True
    for _ in range(5):
        with pytest.raises((StaleToken, NoToken)):
            await tokens.call_with_token(refused)
        clock.now += 100
    assert platform.asked.count(True) == 1


async def test_a_token_is_kept_in_the_store_and_renewed_before_it_ends() -> None:
    platform, state, clock = Platform(), MemoryState(), Clock()
    await workers(platform, state, 1, clock)[0].get()
    (restarted,) = workers(platform, state, 1, clock)
    clock.now += 7200 - 301
    assert await restarted.get() == "token-1"
    clock.now += 2
    assert await restarted.get() == "token-2"


async def test_wx_05_a_token_that_another_process_just_renewed_is_taken_and_not_renewed_again() -> None:
    class Slow(MemoryState):
        """Its second caller looks at the notes, and gets the lease only when the first is done."""

        first = asyncio.Event()

        async def claim(self, key: str, holder: str, seconds: float) -> bool:
            if holder == two._holder:
                await self.first.wait()
            return await super().claim(key, holder, seconds)

    platform, state = Platform(), Slow()
    one, two = workers(platform, state, 2)
    waiting = asyncio.create_task(two.get())
    await asyncio.sleep(0)
    assert await one.get() == "token-1"
    state.first.set()
    assert await waiting == "token-1"
    assert platform.asked == [False]


async def test_another_process_that_holds_the_renewal_and_dies_costs_a_bounded_wait() -> None:
    platform, state = Platform(), MemoryState()
    await state.claim("token", "somebody else", 60)
    tokens = Tokens(state, "token", platform.issue, Clock(), deadline=0.15)
    with pytest.raises(NoToken, match="another process"):
        await tokens.get()
    assert platform.asked == []


async def test_tokens_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    platform, state = Platform(), MemoryState()
    (tokens,) = workers(platform, state, 1)
    await tokens.get()
    platform.valid = ""
    await tokens.call_with_token(platform.call)
    assert "new one" in caplog.text
    assert "token-" not in caplog.text
