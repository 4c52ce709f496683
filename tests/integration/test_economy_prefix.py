"""What a provider has cached stays usable: each request begins with nearly all of the one before.

Measured is what providers compare, in the order in which they do: the tools, the system prompt, the
messages, as JSON. Anthropic's cache marks say where to write to the cache and are no part of what is
compared, so they are taken out first. The figure is the common beginning of two requests in bytes, over the
length of the first.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.llm import Call, Say, ScriptedModel, Seen
from tests.harness import bridge, openai_at
from tests.integration.test_main_job import ask, ready

TURNS = 20
PLAIN = {"mcpServers": {"plain": {"command": sys.executable, "args": ["-m", "tests.fakes.mcp_plain"]}}}


def unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: unmarked(inner) for key, inner in value.items() if key != "cache_control"}
    return [unmarked(inner) for inner in value] if isinstance(value, list) else value


def compared(body: dict[str, Any]) -> bytes:
    parts = [*body.get("tools", []), body.get("system", ""), *body["messages"]]
    return "\n".join(json.dumps(unmarked(part), ensure_ascii=False) for part in parts).encode()


def kept(before: bytes, after: bytes) -> float:
    same = next((at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
    return min(same, len(after)) / len(before)


def marks(value: Any) -> int:
    if isinstance(value, dict):
        return ("cache_control" in value) + sum(map(marks, value.values()))
    return sum(map(marks, value)) if isinstance(value, list) else 0


def worker(seen: Seen) -> Say:
    """Each turn: two calls side by side, one call, an answer."""
    turn = seen.last_user
    if len(seen.results) == 2:
        return Say(thinking="Now the other.", calls=(Call("plain__echo", {"text": f"more for {turn}"}),))
    if len(seen.results) == 1:
        return Say(f"Done: {turn}.")
    calls = (Call("ls", {"path": "."}), Call("read", {"path": f"{turn}.txt"}))
    return Say("I look.", thinking=f"Thinking about {turn}.", calls=calls)


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
async def test_over_twenty_turns_with_calls_each_request_begins_with_the_one_before(
    tmp_path: Path, protocol: str
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "mcp.json").write_text(json.dumps(PLAIN))
    async with ScriptedModel(worker).running() as model:
        where = openai_at(model.openai_url)
        if protocol == "anthropic":
            where = {**where, "provider": "anthropic", "base_url": model.anthropic_url}
        settings = {"model": where, "channels": {"api": {}}}
        async with bridge(tmp_path, settings) as app:
            await ready(app, "plain")
            for turn in range(TURNS):
                assert await ask(app, f"t{turn}") == f"I look.\n\nDone: t{turn}."
    bodies = [seen.body for seen in model.seen]
    assert len(bodies) == 3 * TURNS
    assert {seen.protocol for seen in model.seen} == {protocol}
    shares = [kept(compared(one), compared(other)) for one, other in pairwise(bodies)]
    assert min(shares) >= 0.95, [round(share, 3) for share in shares]
    if protocol == "anthropic":
        assert all(2 <= marks(body) <= 4 for body in bodies)
        # What one request wrote to the cache is marked in the next one too.
        for one, other in pairwise(bodies):
            at = len(one["messages"]) - 1
            assert "cache_control" in other["messages"][at]["content"][-1]
    else:
        assert not any(map(marks, bodies))


async def test_the_last_step_s_order_to_answer_leaves_the_beginning_as_it_was(tmp_path: Path) -> None:
    def endless(seen: Seen) -> Say:
        if "Do not call a tool now" in seen.last_user:
            return Say("As far as I got.")
        return Say(calls=(Call("ls", {"path": str(seen.number)}),))

    async with ScriptedModel(endless).running() as model:
        settings = {
            "model": openai_at(model.openai_url),
            "channels": {"api": {}},
            "sessions": {"max_steps": 4},
        }
        async with bridge(tmp_path, settings) as app:
            assert "As far as I got." in await ask(app, "go")
    shares = [kept(compared(one.body), compared(other.body)) for one, other in pairwise(model.seen)]
    assert min(shares) >= 0.95, shares
