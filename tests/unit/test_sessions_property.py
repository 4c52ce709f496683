"""Any order of messages, steering, stops, answers to confirmations, modes and restarts in a shared session.

`CAUSEWAY_EXAMPLES=2000` looks at more orders than the usual ones.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.history import Entry, ToolOutput, User
from agent.models.base import Delta, Request
from agent.tools.base import Annotations, FunctionTool, ToolContext, ToolResult
from agent.tools.policy import PolicyRule
from bridge.access import AccessRule
from bridge.router import notice_id
from bridge.store.base import Waiting
from bridge.texts import text
from channels.base import Inbound, Limits
from tests.fakes.channel import Room, RoomConfig
from tests.fakes.hall import Hall
from tests.fakes.scripted import Answer, Scripted, calls, check, says

SESSION = "room:group:g1"
PEOPLE = {"root": "admin", "ann": "member", "bob": "member", "gus": "guest"}
MODES = ("queue", "steer", "collect", "interrupt")
RULES = (
    PolicyRule(effect="allow", tools=("shop__sell",), roles=("admin", "member")),
    PolicyRule(effect="ask", tools=("shop__wipe",), roles=("admin", "member")),
)
MAY_WRITE = {who for who, role in PEOPLE.items() if role != "guest"}
TOKEN = re.compile(r"\b(look|sell|wipe|hello)-(\d+)-(\w+)\b")
CAP = 6
EXAMPLES = int(os.environ.get("CAUSEWAY_EXAMPLES", "60"))


def tokens(words: str) -> list[str]:
    return [match.group(0) for match in TOKEN.finditer(words)]


def author(token: str) -> str:
    return token.rsplit("-", 1)[1]


class Gate:
    """Lets as many through as it was told to, and everybody once it is open."""

    def __init__(self) -> None:
        self.permits, self.is_open, self.waiting = 0, False, 0
        self._changed = asyncio.Condition()

    async def wait(self) -> None:
        async with self._changed:
            self.waiting += 1
            try:
                await self._changed.wait_for(lambda: self.permits > 0 or self.is_open)
                self.permits -= 0 if self.is_open else 1
            finally:
                self.waiting -= 1

    async def let(self, *, everybody: bool = False) -> None:
        async with self._changed:
            self.permits += 1
            self.is_open = self.is_open or everybody
            self._changed.notify_all()


class Judged(Scripted):
    """A model that keeps what a provider would have refused, and what was offered to whom."""

    def __init__(self, world: World) -> None:
        super().__init__(world.answer)
        self.world = world

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        try:
            check(request.entries)
        except AssertionError as fault:
            self.world.faults.append(f"invalid history: {fault}")
        people = {author(token) for token in tokens(" ".join(said_in_run(request.entries)))}
        offered = {tool.name for tool in request.tools}
        if offered & {"shop__sell", "shop__wipe"} and not people <= MAY_WRITE:
            self.world.faults.append(f"{sorted(offered)} offered in a run of {sorted(people)}")
        if people <= MAY_WRITE and not {"shop__sell", "shop__wipe"} <= offered:
            self.world.faults.append(f"writing tools not offered in a run of {sorted(people)}")
        async for delta in super().stream(request):
            yield delta


def said_in_run(entries: Sequence[Entry]) -> list[str]:
    """What people wrote in the newest run: a calculation of the test's own, from the text alone."""
    run = next(e.run for e in reversed(entries) if isinstance(e, User))
    return [e.text for e in entries if isinstance(e, User) and e.run == run]


@dataclass
class World:
    """What stays over restarts, and what was seen."""

    folder: Path
    faults: list[str] = field(default_factory=list)
    begun: Counter[str] = field(default_factory=Counter)
    agreed: set[str] = field(default_factory=set)
    sent: dict[str, Inbound] = field(default_factory=dict)
    seqs: dict[int, str] = field(default_factory=dict)
    settled: dict[str, tuple[str, str]] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    drops: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.room = Room("room", RoomConfig(), None, Limits(max_text=0))
        self.model_gate, self.tool_gate = Gate(), Gate()
        self.number = itertools.count(1)

    # -- the model and its tools --

    def answer(self, request: Request) -> Answer:
        """Does what the run's people asked for, call by call, also what was not offered; then says so."""
        wanted = tokens(" ".join(said_in_run(request.entries)))
        done = {e.call for e in request.entries if isinstance(e, ToolOutput)}
        for token in wanted:
            kind = token.split("-")[0]
            if kind != "hello" and f"call-{token}" not in done:
                name = "look" if kind == "look" else f"shop__{kind}"
                made = calls((name, {"what": token}))
                named = [type(call)(f"call-{token}", call.name, call.arguments) for call in made.calls]
                return [self.model_gate.wait, type(made)("", tuple(named), "tools")]
        return [self.model_gate.wait, says("answered: " + " ".join(wanted))]

    def tool(self, name: str, source: str, notes: Annotations) -> FunctionTool:
        async def run(params: dict[str, Any], context: ToolContext) -> ToolResult:
            token = params["what"]
            self.begun[token] += 1
            history = await self.hall.store.history.load(context.session)
            words = " ".join(e.text for e in history if isinstance(e, User) and e.run == context.run)
            people = {author(one) for one in tokens(words)}
            if not notes.read_only and not people <= MAY_WRITE:
                self.faults.append(f"{name} ran for {sorted(people)}")
            if name == "shop__wipe" and token not in self.agreed:
                self.faults.append(f"{token} ran without a yes")
            await self.tool_gate.wait()
            return ToolResult(f"did {token}")

        schema = {"type": "object", "properties": {"what": {"type": "string"}}}
        return FunctionTool(name, "a tool", schema, run, notes, source=source)

    # -- the bridge --

    async def start(self) -> None:
        hall = self.hall = Hall(self.folder, ())
        hall.room, hall.model = self.room, Judged(self)
        hall.rules = {
            "room": AccessRule.model_validate(
                {
                    "groups": "open",
                    "admins": ["root"],
                    "allow": ["ann", "bob"],
                    "guests": ["gus"],
                }
            )
        }
        hall.policy, hall.cap = RULES, CAP
        hall.more_tools = (
            self.tool("look", "builtin", Annotations(True, False, False)),
            self.tool("shop__sell", "shop", Annotations(False, False, False)),
            self.tool("shop__wipe", "shop", Annotations(False, True, False)),
        )
        self.watch(hall)
        await hall.start()
        for reply in await hall.store.pending_replies(["room"]):
            if reply.id.startswith("c"):  # as the process does at its start
                hall.delivery.deliver(reply)

    def watch(self, hall: Hall) -> None:
        """Note what becomes of each message in the inbox."""
        store = hall.store
        take_next, settle, drop = store.next, store.settle_reply, store.drop

        async def following(session: str, limit: int = 1) -> list[Waiting]:
            found = await take_next(session, limit)
            for one in found:
                if said := tokens(one.inbound.text):
                    self.seqs[one.seq] = said[0]
            return found

        async def settling(id: str, state: Any, seqs: Sequence[int]) -> None:
            for seq in seqs:  # noted first: a restart may cut off the wait for a write that is carried out
                if seq in self.seqs:
                    self.settled[self.seqs[seq]] = (id, state)
            await settle(id, state, seqs)

        async def dropping(seqs: Sequence[int]) -> None:
            await drop(seqs)
            self.dropped |= {self.seqs[seq] for seq in seqs if seq in self.seqs}
            self.drops.append(len(seqs))

        store.next, store.settle_reply, store.drop = following, settling, dropping  # type: ignore[method-assign]

    async def quiet(self) -> None:
        """Wait until nothing moves any more by itself."""
        before, same = None, 0
        async with asyncio.timeout(10):
            while same < 3:
                await asyncio.sleep(0.001)
                now = (
                    len(self.room.calls), len(self.room.ended), len(self.hall.model.requests),
                    self.model_gate.waiting, self.tool_gate.waiting, self.begun.total(),
                    len(self.hall.approvals.waiting(SESSION)), len(self.settled), len(self.dropped),
                )  # fmt: skip
                same, before = (same + 1 if now == before else 0), now

    # -- what happens --

    async def do(self, what: str, who: str, detail: str) -> None:
        match what:
            case "say":
                token = f"{detail}-{next(self.number)}-{who}"
                self.sent[token] = await self.hall.write(f"please {token}", who)
            case "stop":
                await self.hall.write("/stop" + (" all" if detail == "all" else ""), who, cue="command")
            case "mode":
                await self.hall.write(f"/queue {detail}", who, cue="command")
            case "new":
                await self.hall.write("/new", who, cue="command")
            case "decide":
                await self.decide(who, detail)
            case "go":
                await self.model_gate.let()
            case "tool":
                await self.tool_gate.let()
            case "restart":
                await self.hall.stop(grace=0)
                await self.start()

    async def decide(self, who: str, detail: str) -> None:
        waiting = self.hall.approvals.waiting(SESSION)
        if not waiting:
            return
        if PEOPLE[who] == "admin" and detail == "approve":
            self.agreed.add(re.search(TOKEN, waiting[0].arguments)[0])  # type: ignore[index]
        await self.hall.write(f"/{detail} {waiting[0].code}", who, cue="command")

    async def finish(self) -> None:
        """Let everything come to its end."""
        await self.model_gate.let(everybody=True)
        await self.tool_gate.let(everybody=True)
        async with asyncio.timeout(20):
            while await self.hall.store.next(SESSION) or self.hall.sessions.busy(SESSION):
                await self.decide("root", "deny")
                await asyncio.sleep(0.002)
            await self.quiet()
        await self.hall.stop()

    # -- what must hold --

    def judge(self) -> None:
        assert self.faults == []
        shown = self.room.seen.get("g1", [])
        assert text("failure.internal", "en") not in " ".join(shown)
        # Only what reads may be done anew after a restart.
        assert [t for t, times in self.begun.items() if times > 1 and not t.startswith("look")] == []
        said = Counter(token for words in shown if "answered:" in words for token in tokens(words))
        assert [token for token, times in said.items() if times > 1] == []
        replies = {reply: words for kind, reply, _, words in self.room.calls}
        for token, inbound in self.sent.items():
            if token not in self.settled and token not in self.dropped:
                assert replies.get(notice_id(inbound)) == text("inbox.full", "en", cap=CAP), token
        for token, (reply, state) in self.settled.items():
            assert state == "delivered"
            words = replies[reply]
            assert token in words or text("stopped.note", "en") in words, f"{token} in {words!r}"
        for count in filter(None, self.drops):
            stop = (text("stop.dropped", "en", count=count), text("stop.others_dropped", "en", count=count))
            assert any(words in stop for words in shown), f"{count} dropped without a word"


KINDS = st.sampled_from(["hello", "look", "sell", "wipe"])
WHO = st.sampled_from(list(PEOPLE))
OPS = st.one_of(
    st.tuples(st.just("say"), WHO, KINDS),
    st.tuples(st.just("say"), WHO, KINDS),
    st.tuples(st.just("go"), st.just("root"), st.just("")),
    st.tuples(st.just("go"), st.just("root"), st.just("")),
    st.tuples(st.just("tool"), st.just("root"), st.just("")),
    st.tuples(st.just("stop"), WHO, st.sampled_from(["", "", "all"])),
    st.tuples(st.just("mode"), WHO, st.sampled_from(MODES)),
    st.tuples(st.just("decide"), WHO, st.sampled_from(["approve", "approve", "deny"])),
    st.tuples(st.just("new"), WHO, st.just("")),
    st.tuples(st.just("restart"), st.just("root"), st.just("")),
)
#: Each with whether the next one waits until nothing moves.
PLAYS = st.lists(st.tuples(OPS, st.booleans()), min_size=12, max_size=30)


async def play(mode: str, ops: Sequence[tuple[tuple[str, str, str], bool]]) -> World:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        await world.start()
        await world.do("mode", "root", mode)
        for (what, who, detail), wait in ops:
            await world.do(what, who, detail)
            if wait:
                await world.quiet()
        await world.finish()
    return world


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
    print_blob=True,
)
@given(st.sampled_from(MODES), PLAYS)
def test_no_order_of_events_in_a_shared_session_loses_leaks_or_repeats_anything(
    mode: str, ops: list[tuple[tuple[str, str, str], bool]]
) -> None:
    world = asyncio.run(play(mode, ops))
    world.judge()
