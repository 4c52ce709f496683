"""Vectors: computed in upkeep, kept by model and text, and no reply ever waits for a service that is dead."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from agent.tools.base import FunctionTool
from agent.tools.retrieval.lexical import Index
from agent.tools.retrieval.query import Query
from agent.tools.retrieval.vectors import BATCH, Vectors
from tests.unit.retrieval_support import Clock, Encoder, Shelf, crowd, query, tool

RAIN = tool("meteo", "outlook", "The weather of the coming days.")


class House:
    """Vectors over some tools, with an encoder, a store and a clock."""

    def __init__(
        self, *tools: FunctionTool, shelf: Shelf | None = None, encoder: Encoder | None = None
    ) -> None:
        self.encoder = encoder or Encoder(alike={"umbrella": "weather"})
        self.shelf = shelf or Shelf()
        self.clock = Clock()
        self.index = Index(tools or (*crowd(40), RAIN))
        self.vectors = Vectors(self.encoder, self.shelf, query_deadline=0.05, clock=self.clock)

    async def refresh(self) -> int:
        return await self.vectors.refresh(self.index.documents)

    async def near(self, text: str = "umbrella") -> dict[str, float]:
        return await self.vectors.similar(query(text), self.index)


async def test_upkeep_computes_every_vector_once_in_batches_and_stores_it() -> None:
    house = House()
    assert await house.refresh() == 0
    assert max(map(len, house.encoder.batches)) <= BATCH
    assert len(house.shelf.kept["m"]) == 41
    before = len(house.encoder.batches)
    assert await house.refresh() == 0
    assert len(house.encoder.batches) == before


async def test_a_query_is_near_to_what_means_the_same() -> None:
    house = House()
    await house.refresh()
    near = await house.near()
    assert len(near) == 41
    assert max(near, key=lambda name: near[name]) == RAIN.name


async def test_before_the_first_upkeep_nothing_is_asked() -> None:
    house = House()
    assert await house.near() == {}
    assert house.encoder.batches == []


async def test_a_query_s_vector_is_computed_once() -> None:
    """PEERS 2.10: one uncached embedding call for every call of the model."""
    house = House()
    await house.refresh()
    before = len(house.encoder.batches)
    for _ in range(5):
        assert await house.near()
    assert len(house.encoder.batches) == before + 1
    await house.near("umbrella of my aunt, and then her yellow hat too")
    assert len(house.encoder.batches) == before + 2, "the whole and its parts are one request"


async def test_a_restart_takes_up_what_is_stored() -> None:
    first = House()
    await first.refresh()
    second = House(shelf=first.shelf)
    assert await second.refresh() == 0
    assert len(second.encoder.texts) == 1, "only a look whether the service is there"
    assert await second.near()


async def test_a_changed_description_gets_a_new_vector_and_a_removed_tool_none() -> None:
    house = House()
    await house.refresh()
    changed = tool("meteo", "outlook", "Prices of shares.")
    house.index = Index((*crowd(39), changed))
    before = len(house.encoder.texts)
    assert await house.refresh() == 0
    assert house.encoder.texts[before:] == ["meteo outlook: Prices of shares."]
    near = await house.near("shares")
    assert max(near, key=lambda name: near[name]) == changed.name
    assert "crowd4__lamp_39" not in near


async def test_another_model_gets_vectors_of_its_own() -> None:
    house = House()
    await house.refresh()
    house.encoder.model = "other"
    assert await house.near() == {}, "vectors of two models are never compared"
    assert await house.refresh() == 0
    assert len(house.shelf.kept["other"]) == 41
    assert await house.near()


async def test_another_width_under_the_same_name_is_found_and_computed_anew() -> None:
    """PEERS 2.10: with vectors of another dimension every turn injected everything until a restart."""
    house = House()
    await house.refresh()
    house.encoder.width = 256
    assert await house.near("a new question") == {}
    assert await house.refresh() == 0
    near = await house.near("umbrella")
    assert max(near, key=lambda name: near[name]) == RAIN.name
    again = House(shelf=house.shelf, encoder=Encoder(width=512))
    assert await again.refresh() == 0
    assert len(await again.near("a question")) == 41


@pytest.mark.parametrize("mood", ["dead", "hangs", "raises", "short"])
async def test_a_dead_service_costs_one_query_and_then_rests_until_upkeep_finds_it_well(mood: Any) -> None:
    """PEERS 2.10: a failure was kept until the restart. MC-20: a reply waits the deadline and no more."""
    house = House()
    await house.refresh()
    house.encoder.mood = mood
    parts = "where is my umbrella, and then where is my hat"
    began = asyncio.get_running_loop().time()
    assert await house.near(parts) == {}
    assert asyncio.get_running_loop().time() - began < 1
    calls = len(house.encoder.batches)
    for n in range(20):
        assert await house.near(f"question {n}") == {}
    await house.refresh()
    assert len(house.encoder.batches) == calls, "neither replies nor upkeep ask while it rests"
    house.encoder.mood = "well"
    house.clock.now += 61
    assert await house.near() == {}, "a reply is never the one to find out"
    assert await house.refresh() == 0
    assert await house.near()


async def test_queries_that_find_the_same_outage_count_once() -> None:
    house = House()
    await house.refresh()
    house.encoder.mood = "hangs"
    await asyncio.gather(*(house.near(f"question {n}") for n in range(10)))
    house.encoder.mood = "well"
    house.clock.now += 61
    assert await house.refresh() == 0
    assert house.vectors.works


async def test_the_rest_grows_and_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    house = House()
    house.encoder.mood = "dead"
    tries = []
    with caplog.at_level(logging.INFO, "causeway.retrieval"):
        for _ in range(4 * 60):  # four hours of upkeep every minute
            before = len(house.encoder.batches)
            await house.refresh()
            tries.append(len(house.encoder.batches) - before)
            house.clock.now += 60
        assert max(tries) == 1
        assert 15 <= sum(tries) <= 24
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == 1, "one line an outage"
        assert "the connection was refused" in (house.vectors.fault or "")
        house.encoder.mood = "well"
        house.clock.now += 900
        assert await house.refresh() == 0
    assert house.vectors.fault is None
    assert "answers again" in caplog.text


async def test_one_text_that_is_refused_costs_no_other_tool_its_vector() -> None:
    """PEERS 2.10: one batch error left all of a batch out."""
    house = House()
    house.encoder.poison = "lamp 17"
    assert await house.refresh() == 1
    near = await house.near("a question")
    assert "crowd2__lamp_17" not in near
    assert len(near) == 40
    before = len(house.encoder.batches)
    assert await house.refresh() == 1
    assert len(house.encoder.batches) == before, "it is not tried again and again"


async def test_a_query_that_is_refused_is_no_outage() -> None:
    house = House()
    await house.refresh()
    house.encoder.poison = "hat"
    assert await house.near("my hat") == {}
    assert await house.near("my umbrella")


async def test_a_service_that_refuses_everything_is_not_asked_for_ever() -> None:
    house = House()
    await house.refresh()
    house.index = Index(crowd(600, servers=3))
    house.encoder.mood = "refuses"
    before = len(house.encoder.batches)
    assert await house.refresh() > 500
    assert len(house.encoder.batches) - before < 60
    calls = len(house.encoder.batches)
    await house.refresh()
    assert len(house.encoder.batches) == calls


async def test_a_batch_that_fails_half_way_keeps_what_was_there() -> None:
    house = House(*crowd(100))
    real, count = house.encoder.embed, 0

    async def embed(texts: Any) -> Any:
        nonlocal count
        count += 1
        house.encoder.mood = "dead" if count == 3 else "well"
        return await real(texts)

    house.encoder.embed = embed  # type: ignore[method-assign]
    assert await house.refresh() == 100 - BATCH
    house.clock.now += 61
    assert await house.refresh() == 0


async def test_upkeep_leaves_off_after_a_while_and_goes_on_the_next_time() -> None:
    house = House(*crowd(200))
    real = house.encoder.embed

    async def slowly(texts: Any) -> Any:
        house.clock.now += 9
        return await real(texts)

    house.encoder.embed = slowly  # type: ignore[method-assign]
    missing = [await house.refresh() for _ in range(4)]
    assert 0 < missing[0] < 200
    assert missing[-1] == 0


async def test_a_broken_store_costs_the_stored_vectors_and_nothing_else() -> None:
    house = House()
    house.shelf.broken = True
    for _ in range(3):
        with pytest.raises(OSError, match="no disk"):
            await house.refresh()
    assert await house.refresh() == 0
    assert len(await house.near()) == 41


async def test_odd_bytes_in_the_store_are_computed_anew() -> None:
    shelf = Shelf()
    first = House(shelf=shelf)
    await first.refresh()
    for key in list(shelf.kept["m"])[:5]:
        shelf.kept["m"][key] = b"odd"
    second = House(shelf=shelf)
    assert await second.refresh() == 0
    assert len(second.encoder.texts) == 1 + 5


async def test_what_nobody_has_any_more_is_dropped_when_it_is_much() -> None:
    house = House(*crowd(1500))
    await house.refresh()
    house.index = Index(crowd(10))
    await house.refresh()
    assert len(house.shelf.kept["m"]) == 10
    await house.shelf.save("old model", {"k": b"1234"})
    house.index = Index(crowd(1300))
    await house.refresh()
    house.index = Index(crowd(10))
    await house.refresh()
    assert list(house.shelf.kept) == ["m"]


async def test_the_vectors_of_a_server_that_is_down_for_a_while_are_kept() -> None:
    house = House()
    await house.refresh()
    whole = house.index
    house.index = Index(crowd(10))
    await house.refresh()
    house.index = whole
    before = len(house.encoder.texts)
    assert await house.refresh() == 0
    assert len(house.encoder.texts) == before


async def test_an_empty_query_and_an_empty_index_ask_for_nothing() -> None:
    house = House()
    await house.refresh()
    before = len(house.encoder.batches)
    assert await house.vectors.similar(Query(), house.index) == {}
    assert await house.vectors.similar(query("hat"), Index([])) == {}
    assert len(house.encoder.batches) == before
