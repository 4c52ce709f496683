"""One conversation of five people with two roles and a guest, the same on every platform (issue 8, item 2).

The conversation is data: who writes or presses what, and what people see, what the model was sent, and what
ran. It runs on Telegram, Slack, the WeCom AI bot and the web page, each through the whole bridge, with a real
MCP server over stdio.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from agent.prompt import NO_REPLY
from bridge.app import App
from tests.fakes.llm import Call, Say, ScriptedModel, Seen
from tests.harness import bridge, openai_at
from tests.integration.group_stage import STAGES, Stage, quicken, until

Needs = Literal["", "group", "overhear", "told", "direct"]


@dataclass(frozen=True, slots=True)
class Act:
    """`who` writes `text`; with `press` they press that button; `gate` lets the model's answer go on; `waits`
    is the part of a request that has to have reached the model before the next act."""

    who: str = ""
    text: str = ""
    press: str = ""
    told: str = ""
    gate: str = ""
    waits: str = ""
    to_bot: bool = True
    needs: Needs = ""


@dataclass(frozen=True, slots=True)
class Step:
    """`sees`: the bot's new messages; `words`: its words about a busy bot, where it says those; `cards`: what
    became of questions; `asked`: what the model was sent, request by request; `knows`: what else stood in the
    last of these; `offered`: the shop's tools in it; `ran`: what the shop did."""

    name: str
    acts: tuple[Act, ...]
    sees: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    knows: tuple[str, ...] = ()
    offered: tuple[str, ...] | None = None
    ran: tuple[str, ...] = ()
    needs: Needs = ""


RESULTS = "(results)"
STEER = "↪ I take this into what I am doing."
COLLECT = "⏳ I answer this together with what else waits."
INTERRUPT = "⏹ I stop and turn to this."
#: What the model says by what it was sent; a gate holds the answer back.
LINES = {
    "we meet on Friday": NO_REPLY,
    "at the lake": NO_REPLY,
    "what did we decide?": "You meet on Friday at the lake.",
    "thanks, all": NO_REPLY,
    "a long job": "It is done.",
    "one after the other": "This is the first answer.",
    "another question": "This is the second answer.",
    "the first thing": "First things first.",
    "the third thing": "Both together.",
    "without an end": "never",
    "something short": "Shortly.",
}
GATES = ("a long job", "one after the other", "bake a cake", "the first thing", "without an end")

CONVERSATION = (
    Step(
        "overheard talk comes with the question",
        (
            Act("Ben", "we meet on Friday", to_bot=False),
            Act("Cid", "at the lake", to_bot=False),
            Act("Dee", "what did we decide?"),
        ),
        sees=("You meet on Friday at the lake.",),
        asked=(
            "[Overheard since then, not said to you] [Ben] we meet on Friday [Cid] at the lake "
            "[End of what was overheard] [Dee writes] what did we decide?",
        ),
        knows=("we meet on Friday", "at the lake"),
        offered=("shop__look", "shop__wipe"),
        needs="overhear",
    ),
    Step(
        "what people had to tell it is known as well",
        (
            Act("Ben", "we meet on Friday"),
            Act("Cid", "at the lake", waits="we meet on Friday"),
            Act("Dee", "what did we decide?", waits="at the lake"),
        ),
        sees=("You meet on Friday at the lake.",),
        asked=(
            "[Ben writes] we meet on Friday",
            "[Cid writes] at the lake",
            "[Dee writes] what did we decide?",
        ),
        knows=("we meet on Friday", "at the lake"),
        offered=("shop__look", "shop__wipe"),
        needs="told",
    ),
    Step(
        "nothing is posted when the model has nothing to say",
        (Act("Ben", "thanks, all"),),
        asked=("[Ben writes] thanks, all",),
        needs="group",
    ),
    Step(
        "a dangerous call waits for the right person",
        (
            Act("Ben", "please wipe the board"),
            Act("Ben", press="Yes, once", told="You may not decide this.", needs="group"),
            Act("Cid", press="Yes, always here", told="You may not decide this.", needs="group"),
            Act("Ada", press="Yes, once"),
        ),
        sees=("The board is clean.",),
        cards=("shopwipe: allowed by Ada",),
        asked=("[Ben writes] please wipe the board", RESULTS),
        offered=("shop__look", "shop__wipe"),
        ran=("call wipe",),
    ),
    Step(
        "a no reaches the model and nothing runs",
        (Act("Cid", "please wipe the board"), Act("Ada", press="No")),
        sees=("That was not allowed.",),
        cards=("shopwipe: denied Ada",),
        asked=("[Cid writes] please wipe the board", RESULTS),
    ),
    Step(
        "a guest is offered no tool that writes, and gets none that the model calls anyway",
        (Act("Gus", "please wipe the board"),),
        sees=("That was not allowed.",),
        asked=("[Gus writes] please wipe the board", RESULTS),
        offered=("shop__look",),
        needs="group",
    ),
    Step(
        "a bystander stops nothing",
        (
            Act("Ben", "a long job"),
            Act("Cid", "{sign}stop", waits="a long job", needs="group"),
        ),
        sees=("This answer is for somebody else. They or an admin can stop it.",),
        asked=("[Ben writes] a long job",),
        needs="group",
    ),
    Step("the asker does", (Act("Ben", "{sign}stop"),), sees=("Stopped.", "(stopped)"), needs="group"),
    Step(
        "the asker stops an answer",
        (Act("Ben", "a long job"), Act("Ben", "{sign}stop", waits="a long job")),
        sees=("Stopped.", "(stopped)"),
        asked=("[Ben writes] a long job",),
        needs="direct",
    ),
    Step(
        "only an admin changes how a group is queued",
        (Act("Cid", "{sign}queue steer"),),
        sees=("Only an admin may do that here.",),
        needs="group",
    ),
    Step(
        "queue",
        (
            Act("Ada", "{sign}queue queue"),
            Act("Ben", "one after the other"),
            Act("Cid", "another question", waits="one after the other"),
            Act(gate="one after the other"),
        ),
        sees=(
            "From now on messages wait and are answered one by one.",
            "This is the first answer.",
            "This is the second answer.",
        ),
        asked=("[Ben writes] one after the other", "[Cid writes] another question"),
    ),
    Step(
        "steer",
        (
            Act("Ada", "{sign}queue steer"),
            Act("Ben", "bake a cake"),
            Act("Cid", "with cherries", waits="bake a cake"),
            Act(gate="bake a cake"),
        ),
        sees=("From now on messages go into the answer under way.", "A cake with cherries."),
        words=(STEER,),
        asked=("[Ben writes] bake a cake", "[Cid writes] with cherries"),
        ran=("call look",),
    ),
    Step(
        "collect",
        (
            Act("Ada", "{sign}queue collect"),
            Act("Ben", "the first thing"),
            Act("Cid", "the second thing", waits="the first thing"),
            Act("Dee", "the third thing"),
            Act(gate="the first thing"),
        ),
        sees=(
            "From now on messages that wait are answered together.",
            "First things first.",
            "Both together.",
        ),
        words=(COLLECT, COLLECT),
        asked=(
            "[Ben writes] the first thing",
            "[Cid writes] the second thing [Dee writes] the third thing",
        ),
    ),
    Step(
        "interrupt",
        (
            Act("Ada", "{sign}queue interrupt"),
            Act("Ben", "without an end"),
            Act("Cid", "something short", waits="without an end"),
        ),
        sees=("From now on a new message stops the answer under way.", "(stopped)", "Shortly."),
        words=(INTERRUPT,),
        asked=("[Ben writes] without an end", "[Cid writes] something short"),
    ),
)

SHOP_TOOLS = [
    {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "wipe", "inputSchema": {"type": "object", "properties": {"what": {"type": "string"}}},
     "annotations": {"readOnlyHint": False, "destructiveHint": True}},
]  # fmt: skip


class Play:
    """The conversation on one stage."""

    def __init__(self, stage: Stage, app: App, model: ScriptedModel, log: Path, gates: Gates) -> None:
        self.stage, self.app, self.model, self.log, self.gates = stage, app, model, log, gates
        self.before: Counter[str] = Counter()
        self.cards = self.asked = self.runs = 0

    async def perform(self, step: Step) -> None:
        self.waiting = 0
        for act in step.acts:
            if not act.needs or act.needs in self.stage.has:
                await self.act(act)
        expected = Counter(step.sees) + Counter(step.words if "words" in self.stage.has else ())

        async def done() -> bool:
            return (
                await self.new() == expected
                and await self.outcomes() == list(step.cards)
                and len(self.requests()) == len(step.asked)
            )

        there = await until(done)
        assert there, f"{step.name}: {await self.new()}, {await self.outcomes()}, {self.requests()}"
        self.check(step)
        self.before += expected
        self.cards += len(step.cards)
        self.asked, self.runs = len(self.model.seen), len(self.lines())

    async def act(self, act: Act) -> None:
        if act.waits:
            assert await until(lambda: self.reached(act.waits)), f"not asked: {act.waits}"
        if act.gate:
            assert await until(self.all_taken), "messages are not taken in"
            self.gates.open(act.gate)
        elif act.press:
            assert await until(self.open_card), "no card is shown"
            told = len([words for words in await self.stage.private() if act.told in words])
            await self.stage.press(act.who, act.press)
            assert not act.told or await until(lambda: self.told(act.told, told)), f"not told: {act.told}"
        else:
            text = act.text.format(sign=self.stage.sign)
            self.waiting += text == act.text  # commands do not wait
            await self.stage.say(act.who, text, to_bot=act.to_bot)

    # -- what is so now --

    async def reached(self, text: str) -> bool:
        return any(text in seen.last_user for seen in self.model.seen[self.asked :])

    async def all_taken(self) -> bool:
        """Whether all that was written in this step is in the inbox, where it is until it is answered."""
        store = self.app.store
        sessions = await store.waiting_sessions(list(self.app.channels))
        return sum([await store.waiting_count(session) for session in sessions]) == self.waiting

    async def open_card(self) -> bool:
        return any(shown.card == "open" for shown in await self.stage.shown())

    async def told(self, words: str, before: int) -> bool:
        # The same words to two people are two signs on most platforms, and may be one card on another.
        found = [one for one in await self.stage.private() if words in one]
        return len(found) > before

    async def new(self) -> Counter[str]:
        return Counter(one.text for one in await self.stage.shown() if not one.card) - self.before

    async def outcomes(self) -> list[str]:
        return [one.card for one in await self.stage.shown() if one.card][self.cards :]

    def requests(self) -> list[str]:
        """What people said anew in each request to the model."""
        found = []
        for seen in self.model.seen[self.asked :]:
            last = seen.body["messages"][-1]
            found.append(RESULTS if last["role"] == "tool" else self.stage.plain(seen.last_user))
        return found

    def lines(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith("call")]

    def check(self, step: Step) -> None:
        asked = step.asked
        if "group" not in self.stage.has:  # who writes stands only where several people write
            asked = tuple(" ".join(w for w in _without_speakers(one).split()) for one in asked)
        assert tuple(self.requests()) == asked, step.name
        assert tuple(self.lines()[self.runs :]) == step.ran, step.name
        if not asked:
            return
        last = self.model.seen[-1]
        said = json.dumps(last.body["messages"])
        assert all(words in said for words in step.knows), step.name
        if step.offered is not None:
            assert tuple(t for t in last.tools if t.startswith("shop__")) == step.offered, step.name


def _without_speakers(asked: str) -> str:
    for who in ("Ada", "Ben", "Cid", "Dee", "Gus"):
        asked = asked.replace(f"[{who} writes]", "")
    return asked


class Gates:
    """Answers of the model that wait until the conversation lets them go."""

    def __init__(self) -> None:
        self._gates = {name: asyncio.Event() for name in GATES}

    def open(self, name: str) -> None:
        self._gates[name].set()

    def answer(self, seen: Seen) -> Say:
        said = seen.last_user
        gate = next((gate for name, gate in self._gates.items() if name in said), None)
        if "wipe the board" in said:
            if not seen.results:
                return Say(calls=(Call("shop__wipe", {"what": "the board"}),))
            return Say("The board is clean." if "wipe: " in seen.results[-1] else "That was not allowed.")
        if "bake a cake" in said and not seen.results:
            return Say(calls=(Call("shop__look", {}),), gate=gate)
        if "with cherries" in said:
            return Say("A cake with cherries.", pieces=3)
        words = next((answer for words, answer in reversed(LINES.items()) if words in said), "What?")
        return Say(words, gate=gate, pieces=4)


def settings(stage: Stage, model: ScriptedModel) -> dict[str, Any]:
    ids = stage.ids
    rule: dict[str, Any] = {"direct": "allowlist", "allow": ["local"]}
    if "group" in stage.has:
        members = [ids[who] for who in ("Ben", "Cid", "Dee")]
        rule = {"groups": "open", "admins": [ids["Ada"]], "allow": members, "guests": [ids["Gus"]]}
    ask = {"effect": "ask", "tools": ["shop__wipe"], "roles": ["admin", "member"]}
    return {
        "model": openai_at(model.openai_url),
        "channels": {stage.name: stage.channel()},
        "access": {stage.name: rule},
        "tools": {"policy": [ask]},
    }


@pytest.mark.parametrize("make", STAGES, ids=lambda make: make.name)
async def test_one_conversation_has_the_same_outcome_on_every_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: type[Stage]
) -> None:
    quicken(monkeypatch)
    stage, gates = make(), Gates()
    workspace, log = tmp_path / "workspace", tmp_path / "shop.log"
    workspace.mkdir()
    log.touch()
    (tmp_path / "tools.json").write_text(json.dumps(SHOP_TOOLS))
    options = ["--tools", str(tmp_path / "tools.json"), "--log", str(log)]
    shop = {"command": sys.executable, "args": ["-m", "tests.fakes.mcp_plain", *options]}
    (workspace / "mcp.json").write_text(json.dumps({"mcpServers": {"shop": shop}}))
    async with stage.open(), ScriptedModel(gates.answer).running() as model:
        async with bridge(tmp_path, settings(stage, model)) as app:
            await stage.connected(app)

            async def ready() -> bool:
                return any(server.state == "ready" for server in app.mcp.status)

            assert await until(ready, 30)
            play = Play(stage, app, model, log, gates)
            for step in CONVERSATION:
                if not step.needs or step.needs in stage.has:
                    await play.perform(step)
            last = await stage.shown()
        assert Counter(one.text for one in last if not one.card) == play.before
        assert len(play.lines()) == 2


def test_every_platform_plays_most_of_the_conversation() -> None:
    """What a stage leaves out is said in its words, and is what its platform does not have."""
    played = {
        make.name: [s.name for s in CONVERSATION if not s.needs or s.needs in make.has] for make in STAGES
    }
    assert {len(steps) for name, steps in played.items() if name != "web"} == {len(CONVERSATION) - 2}
    assert played["web"] == [
        "a dangerous call waits for the right person",
        "a no reaches the model and nothing runs",
        "the asker stops an answer",
        "queue",
        "steer",
        "collect",
        "interrupt",
    ]
