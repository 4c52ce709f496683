"""The next model takes over when one is down, and gives back when it is well again."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agent.history import User
from agent.models.base import (
    BadRequest,
    Completed,
    Connection,
    Delta,
    Model,
    ModelError,
    Overloaded,
    Request,
    Text,
    Unauthorised,
)
from agent.models.failover import REST, FailoverModel

ASK = Request("", [User("r", "hi")], (), lambda ref: b"")


class Played:
    """A model that plays a list: an error is raised, a word is said, "word!" breaks after the word."""

    def __init__(self, name: str, *acts: str | ModelError) -> None:
        self.name = name
        self.acts = list(acts)
        self.closed = False

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        act = self.acts.pop(0) if len(self.acts) > 1 else self.acts[0]
        if isinstance(act, ModelError):
            raise act
        yield Text(act)
        if act.endswith("!"):
            raise Connection("broke")
        yield Completed(act, (), "end")

    async def close(self) -> None:
        self.closed = True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def said(model: FailoverModel) -> str:
    return "".join([delta.text async for delta in model.stream(ASK) if isinstance(delta, Text)])


def both(*acts: str | ModelError) -> tuple[FailoverModel, Clock, list[Model]]:
    clock, models = Clock(), [Played("first", *acts), Played("second", "second")]
    return FailoverModel(models, clock), clock, list(models)


async def test_one_failure_is_raised_and_the_second_in_a_row_asks_the_next_model() -> None:
    model, _, _ = both(Overloaded("busy"))
    with pytest.raises(Overloaded):
        await said(model)
    assert await said(model) == "second"
    assert model.name == "second"


async def test_a_refused_key_asks_the_next_model_at_once() -> None:
    model, _, _ = both(Unauthorised("no"))
    assert await said(model) == "second"


async def test_a_rested_model_is_asked_again() -> None:
    model, clock, _ = both(Unauthorised("no"), "first")
    assert await said(model) == "second"
    clock.now += REST + 1
    assert await said(model) == "first"
    assert model.name == "first"


async def test_a_success_forgets_earlier_failures() -> None:
    model, _, _ = both(Overloaded("busy"), "first", Overloaded("busy"), "first")
    for expected in ("", "first", "", "first"):
        if expected:
            assert await said(model) == expected
        else:
            with pytest.raises(Overloaded):
                await said(model)


async def test_a_fault_of_the_request_is_raised_and_costs_no_rest() -> None:
    model, _, _ = both(BadRequest("odd"), BadRequest("odd"), "first")
    for _ in range(2):
        with pytest.raises(BadRequest):
            await said(model)
    assert await said(model) == "first"


async def test_text_that_was_said_is_not_said_again_by_another_model() -> None:
    model, _, _ = both(Connection("down"), "half!", "first")
    for _ in range(2):
        with pytest.raises(Connection):
            await said(model)
    assert await said(model) == "second"


async def test_when_all_rest_the_one_that_rests_least_is_asked() -> None:
    clock = Clock()
    model = FailoverModel([Played("a", Unauthorised("no")), Played("b", Unauthorised("no"), "b")], clock)
    with pytest.raises(Unauthorised):
        await said(model)
    clock.now += 1
    with pytest.raises(Unauthorised):
        await FailoverModel([Played("c", Unauthorised("no"))], clock).stream(ASK).__anext__()
    assert await said(model) == "b"


async def test_closing_closes_all() -> None:
    model, _, models = both("first")
    await model.close()
    assert all(isinstance(one, Played) and one.closed for one in models)
