"""`python -m benchmarks.scale`: what docs/scale.md reckons with. Measured on a Redis server of its own: what
a message asks of it, and what each kind of thing takes in its memory and for how long.

A message goes the way of gateways and workers: into what has arrived, claimed, taken over into the session's
inbox, answered, settled. Then what a platform call costs that a worker asks a gateway for.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import tempfile
from collections import Counter
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from redis.asyncio import Redis

from agent.history import Assistant, User
from benchmarks.store import message, reply
from bridge.cluster.wire import Wire
from bridge.store.base import StoredChunk, UsageRow
from bridge.store.redis import RedisStore
from bridge.store.redis_line import RedisLine
from bridge.store.redis_scripts import Command
from tests.fakes.redis_server import RedisServer


async def one(gateway: RedisStore, worker: RedisStore, session: str, number: int, answer: str) -> None:
    incoming = message(number, session)
    await gateway.arrivals.put(session, incoming.to_json(), 1000)
    await worker.claim_session(session, 15.0)
    await worker.arrivals.read(session, 100)
    await worker.accept(incoming, session, 1000)
    await worker.arrivals.consume(session, 1)
    [waiting] = await worker.next(session)
    run = f"r{waiting.seq}"
    await worker.take([waiting.seq], run)
    await worker.history.append(session, [User(run, incoming.text)])
    await worker.history.append(session, [Assistant(run, answer)])
    whole = replace(reply(run, session), body={"v": 1, "text": answer, "files": []})
    await worker.complete_reply(whole)
    await worker.put_chunk(run, StoredChunk(0, "intent"))
    await worker.put_chunk(run, StoredChunk(0, "sent", "m"))
    await worker.settle_reply(run, "delivered", [waiting.seq])
    used = UsageRow("2026-01-01", session, "telegram", session, "42", "model", "name", 1, 500, 100, 0)
    await worker.add_usage([used])
    await worker.release_session(session)


def kind(key: str) -> str:
    """The last word of a key that names no session, message or day."""
    parts = re.sub(r"\{[^}]*\}:", "", key.split(":", 1)[1]).split(":")
    return "index" if "{index}" in key else parts[0]


async def sizes(client: Redis) -> Mapping[str, tuple[int, int, int]]:
    """Keys, bytes and the longest life in seconds (-1: for ever) of each kind of key."""
    keys, room, life = Counter[str](), Counter[str](), dict[str, int]()
    names = [name async for name in client.scan_iter(count=1000)]
    for start in range(0, len(names), 1000):
        pipe = client.pipeline(transaction=False)
        for name in names[start : start + 1000]:
            pipe.memory_usage(name, samples=0)
            pipe.ttl(name)
        answers = await pipe.execute()
        for name, taken, left in zip(names[start : start + 1000], answers[::2], answers[1::2], strict=True):
            keys[kind(name)] += 1
            room[kind(name)] += taken or 0
            life[kind(name)] = max(left, life.get(kind(name), -1))
    return {name: (keys[name], room[name], life[name]) for name in sorted(keys)}


class Steps:
    """How often the stores waited for the server: a message's round trips when it is alone."""

    def __init__(self) -> None:
        self.count = 0
        run = RedisLine.run

        def counted(line: RedisLine, *commands: Command) -> Coroutine[Any, Any, list[Any]]:
            self.count += 1
            return run(line, *commands)

        RedisLine.run = counted  # type: ignore[method-assign, assignment]


async def figures(client: Redis, server: psutil.Process, steps: Steps) -> dict[str, float]:
    info: dict[str, Any] = await client.info("all")
    cpu, own = server.cpu_times(), psutil.Process().cpu_times()
    return {
        "round trips": steps.count,
        "scripts": info["cmdstat_evalsha"]["calls"] if "cmdstat_evalsha" in info else 0,
        "commands, those inside scripts too": info["total_commands_processed"],
        "bytes in": info["total_net_input_bytes"],
        "bytes out": info["total_net_output_bytes"],
        "bytes of the append-only file": info["aof_current_size"],
        "milliseconds of the server's CPU": (cpu.user + cpu.system) * 1000,
        "milliseconds of ours, gateway and worker": (own.user + own.system) * 1000,
    }


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--each", type=int, default=10, help="messages in each session")
    parser.add_argument("--answer", type=int, default=400, help="characters of an answer; a question has 28")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Not rewritten meanwhile, so that its growth can be read off.
        durable = ("--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0")
        server = RedisServer(Path(folder), *durable).start()
        assert server.process is not None
        client: Redis = Redis.from_url(server.url, decode_responses=True)
        gateway, worker = RedisStore(server.url), RedisStore(server.url, worker="w")
        await gateway.open()
        await worker.open()
        try:
            process = psutil.Process(server.process.pid)
            await measure(client, gateway, worker, process, options)
            await calls(client, gateway, worker, process, options.answer)
        finally:
            await gateway.close()
            await worker.close()
            await client.aclose()
            server.stop()


async def measure(
    client: Redis, gateway: RedisStore, worker: RedisStore, server: psutil.Process, options: Any
) -> None:
    answer, steps = "Fine. " * (options.answer // 6), Steps()

    async def go(first: int, rounds: range) -> None:
        for number in rounds:
            for n in range(first, options.sessions, 50):
                await one(gateway, worker, f"telegram:direct:{n}", number, answer)

    empty = (await client.info("memory"))["used_memory"]
    for rounds in (range(1), range(1, options.each)):
        before = await figures(client, server, steps)
        await asyncio.gather(*(go(first, rounds) for first in range(50)))
        after = await figures(client, server, steps)
        count = options.sessions * len(rounds)
        print(f"{count} messages in {options.sessions} sessions; each, on average:")
        for name, value in after.items():
            print(f"    {(value - before[name]) / count:10.2f} {name}")
        async for name in client.scan_iter("*:op:*", count=1000):  # would end by themselves in two minutes
            await client.unlink(name)
        done = rounds.stop * options.sessions
        taken = (await client.info("memory"))["used_memory"] - empty
        print(
            f"  memory: {taken / options.sessions:.0f} bytes a session with {rounds.stop} messages, of them"
        )
        for name, (keys, room, life) in (await sizes(client)).items():
            lasts = "for ever" if life < 0 else f"{life / 86_400:.1f} days"
            print(f"    {room / done:10.1f} bytes a message, {keys / options.sessions:6.2f} keys a session, "
                  f"{lasts:>10}  {name}")  # fmt: skip


async def calls(
    client: Redis, gateway: RedisStore, worker: RedisStore, server: psutil.Process, answer: int
) -> None:
    """Calls with the text of an answer, each fenced by its session's claim as `Gateway` does it."""
    there, here = Wire(gateway.relay, "gateway", "gateway"), Wire(worker.relay, "worker", "worker")

    async def post(args: list[Any]) -> str:
        await gateway.claimed_with(args[0], args[1])
        return "12345"

    there.on("channel", post)
    await there.start()
    await here.start()
    steps, each, count = Steps(), 50, 5000
    token = await worker.claim_session("s", 600.0)
    while not here.members("gateway"):
        await asyncio.sleep(0.1)

    async def some() -> None:
        for _ in range(count // each):
            await here.call("gateway", "channel", ["s", token, "x" * answer], seconds=20)

    before = await figures(client, server, steps)
    await asyncio.gather(*(some() for _ in range(each)))
    after = await figures(client, server, steps)
    await here.stop()
    await there.stop()
    print(f"{count} platform calls of a worker by a gateway, {answer} characters; each, on average:")
    for name, value in after.items():
        print(f"    {(value - before[name]) / count:10.2f} {name}")


if __name__ == "__main__":
    asyncio.run(main())
