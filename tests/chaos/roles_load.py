"""People who talk in many chats, whoever has just been killed; and what must be true when all is quiet."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

from agent.history import Assistant, User
from tests.chaos.roles_judge import Judge, Kill, Outage, Verdict
from tests.chaos.roles_stage import Stage, name_of, session_of, until

#: Messages of which people wait for the answer at once.
_AT_ONCE = 80


class Load:
    """Each chat says `rounds` messages or so, in its order; chats in any order."""

    def __init__(self, stage: Stage, dice: random.Random, chats: int, rounds: int) -> None:
        self.stage = stage
        self.dice = dice
        self.said: dict[int, list[str]] = {}
        self.plan: list[int] = []
        self.words: dict[int, list[str]] = {}
        self.number = 0
        self.awaited: set[str] = set()
        for n in range(1, chats + 1):
            chat = n if n % 4 else -1000 - n
            self.words[chat] = self._words(chat, n, rounds)
            self.plan += [chat] * len(self.words[chat])
        dice.shuffle(self.plan)
        self.total = len(self.plan)

    def _words(self, chat: int, n: int, rounds: int) -> list[str]:
        if n % 20 == 7:
            return ["task {} halted", "/stop", "task {} plain"]
        kinds = ["task {} plain", "task {} tool", "task {} slow", "task {} long"]
        words = self.dice.choices(kinds, (5, 4, 2, 1), k=rounds)
        if n % 10 == 3:
            words.insert(self.dice.randrange(rounds), "/new")
        if n % 20 == 1:
            words.insert(self.dice.randrange(rounds), "/queue")
        return words

    @property
    def answered(self) -> int:
        return len(self.stage.telegram.answered & self.awaited)

    @property
    def open(self) -> int:
        return len(self.awaited) - self.answered

    @property
    def done(self) -> bool:
        return not self.plan and self.open == 0

    async def talk(self) -> None:
        while self.plan:
            chat = self.plan.pop()
            said = self.said.setdefault(chat, [])
            words = self.words[chat][len(said)]
            self.number += 1
            words = words.format(self.number)
            said.append(words)
            if words.startswith("/"):
                self.awaited.add(f"{chat} {words}")
            elif "halted" not in words:
                self.awaited.add(str(self.number))
            self.stage.say(chat, words)
            await until(lambda: self.open < _AT_ONCE, 120)

    async def quiet(self, timeout: float) -> None:
        """All is answered, and nothing is left to be done."""
        try:
            await until(lambda: self.done and not self.stage.telegram.updates, timeout)
        except AssertionError:
            print(f"not quiet: {self.open} of {self.total} wait")
            return
        channels, end = ["telegram", "api"], time.monotonic() + 60
        async with self.stage.store() as store:
            while True:
                left = [
                    *await store.waiting_sessions(channels),
                    *await store.arrivals.unclaimed(5000),
                    *(one.id for one in await store.pending_replies(channels) if one.state == "complete"),
                ]
                if not left:
                    return
                assert time.monotonic() < end, f"all is answered, and yet there is work: {left}"
                await asyncio.sleep(0.1)

    async def histories(self) -> list[str]:
        """What is wrong with what is kept of conversations: each task once, in order, with one answer."""
        wrong = []
        async with self.stage.store() as store:
            for chat, said in self.said.items():
                if any(words.startswith(("/new", "/stop")) for words in said):
                    continue
                entries = await store.history.load(session_of(chat))
                asked = [words.split()[1] for words in said if words.startswith("task")]
                heard = [e.text for e in entries if isinstance(e, User)]
                if len(heard) != len(asked) or any(
                    f"task {task} " not in text for task, text in zip(asked, heard, strict=False)
                ):
                    wrong.append(f"chat {chat}: asked {asked}, history has {heard}")
                answers = [e.text.split()[1:2] for e in entries if isinstance(e, Assistant) and e.text]
                if answers != [[task] for task in asked]:
                    wrong.append(f"chat {chat}: asked {asked}, history answers {answers}")
        return wrong


class Chaos:
    """Kills, as the work goes on."""

    def __init__(self, stage: Stage, load: Load, dice: random.Random) -> None:
        self.stage = stage
        self.load = load
        self.dice = dice
        self.kills: list[Kill] = []
        self.outages: list[Outage] = []
        self.restarts = 0
        self._starting: set[asyncio.Task[object]] = set()

    async def run(self, kills: int, outages: int) -> None:
        moments = [*("process",) * kills]
        for n in range(outages):
            moments.insert((n + 1) * len(moments) // (outages + 1), "redis")
        for number, what in enumerate(moments):
            due = self.load.total * (number + 1) / (len(moments) + 2)
            await self._until(due, 5.0)
            await (self._redis() if what == "redis" else self._process())
        await self.started()

    async def started(self) -> None:
        """Whoever was killed is there again."""
        while self._starting:
            await asyncio.gather(*self._starting)

    async def _until(self, answered: float, most: float) -> None:
        end = time.monotonic() + most * (0.5 + self.dice.random())
        await until(lambda: self.load.answered >= answered or time.monotonic() >= end, 600, 0.005)

    async def _process(self) -> None:
        gateway = self.dice.random() < 0.2
        places = self.stage.gateways if gateway else self.stage.workers
        await until(lambda: len(places) > 1 or not self._starting, 60)
        place = self.dice.choice(sorted(places))
        await (self.kill_gateway(place) if gateway else self.kill_worker(place))

    async def kill_gateway(self, place: int) -> None:
        self.kills.append(Kill(time.monotonic(), f"gateway {place}", None))
        await self.stage.kill(self.stage.gateways, place)
        self._again(self.stage.start_gateway(place))

    async def kill_worker(self, place: int) -> None:
        kill = await self._dead_worker(place)
        await self._note(kill)
        self._again(self.stage.start_worker(place))

    async def _dead_worker(self, place: int) -> Kill:
        kill = Kill(time.monotonic(), name_of(self.stage.workers[place]))
        await self.stage.kill(self.stage.workers, place)
        return kill

    async def _note(self, kill: Kill) -> None:
        """Which sessions it had: its claims last for a while yet."""
        sessions = [session_of(chat) for chat in self.load.said]
        async with self.stage.store() as store:
            holders = await store.arrivals.holders(sessions)
        kill.sessions = frozenset(s for s, h in zip(sessions, holders, strict=True) if h == kill.what)
        self.kills.append(kill)

    def _again(self, start: object) -> None:
        task: asyncio.Task[object] = asyncio.ensure_future(start)  # type: ignore[call-overload]
        self._starting.add(task)

        def started(done: asyncio.Task[object]) -> None:
            self._starting.discard(done)
            self.restarts += 1

        task.add_done_callback(started)

    async def _redis(self) -> None:
        """Redis dies and comes again; from the second time on a worker dies while it is away."""
        begin, place, kill = time.monotonic(), -1, None
        self.stage.redis.kill()
        if self.outages:
            place = self.dice.choice(sorted(self.stage.workers))
            await asyncio.sleep(self.dice.uniform(0.0, 1.0))
            kill = await self._dead_worker(place)
        await asyncio.sleep(self.dice.uniform(0.1, 2.0))
        await asyncio.to_thread(self.stage.redis.start)
        self.outages.append(Outage(begin, time.monotonic()))
        if kill is not None:
            await self._note(kill)
            self._again(self.stage.start_worker(place))


async def judged(
    stage: Stage, load: Load, kills: Sequence[Kill] = (), outages: Sequence[Outage] = ()
) -> Verdict:
    """Look at everything; what is wrong is printed with what people saw."""
    judge = Judge(stage, kills, outages)
    verdict = judge.judge(load.said)
    ran = stage.tool_runs()
    twice = [task for task, count in ran.items() if count > 1]
    tools = {w.split()[1] for said in load.said.values() for w in said if w.endswith(" tool")}
    unrun = [task for task in tools if not ran[task] and task not in stage.unknown]
    histories = await load.histories()
    faults = stage.faults + histories
    faults += [f"the tool of task {task} ran {ran[task]} times" for task in twice]
    faults += [f"the tool of task {task} never ran, and nobody was told" for task in unrun]
    print(f"{verdict.figures()}, tools {sum(ran.values())} run, {len(stage.unknown)} of unknown outcome")
    for repeat in verdict.repeated:
        print(f"  in flight: chat {repeat.chat}: {repeat.words!r}: {repeat.why}")
    wrong = [
        *(f"lost {one}" for one in verdict.lost),
        *(f"torn {one}" for one in verdict.torn),
        *(f"doubled chat {one.chat}: {one.words!r}: {judge.around(one)}" for one in verdict.doubled),
        *(f"out of order {one}" for one in verdict.disordered),
        *(f"strange {one}" for one in verdict.strange),
        *faults,
    ]
    if wrong:
        places = [stage.folder / name for name in ("processes.log", "chats.json")]
        await asyncio.to_thread(_keep, stage, places)
        wrong.append(f"what processes printed and people saw: {' '.join(map(str, places))}")
    assert not wrong, "\n".join(wrong)
    return verdict


def _keep(stage: Stage, places: Sequence[Path]) -> None:
    places[0].write_text(stage.logs(), encoding="utf-8")
    chats = {
        chat.id: [[stage.telegram.came.get(m["message_id"]), m.get("text", "")[:200]] for m in chat.history]
        for chat in stage.telegram.chats.values()
    }
    places[1].write_text(json.dumps(chats, indent=1), encoding="utf-8")
