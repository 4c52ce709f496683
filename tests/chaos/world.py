"""A bridge process with people on two channels, a model, a shell and an MCP server; and what must hold.

The process is the real one. It is killed and started again; the people, the platforms and the model live on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.history import Assistant, Ended, Entry, ToolBegun, ToolOutput, User
from bridge.store import open_store
from tests.chaos.page import Page, words
from tests.chaos.story import TASK, Asked, Chat, Kill, Said, Verdict, answer
from tests.fakes.llm import Call, Say, ScriptedModel, Seen, free_port
from tests.fakes.telegram import TOKEN, FakeTelegram, Json
from tests.fakes.transcript import Gate
from tests.harness import Process, openai_at, write_config

#: Chats by what happens in them: queued, put into the answer under way, put together, interrupting, with
#: cards and attachments, with `/stop`; and a group.
QUEUE, STEER, COLLECT, INTERRUPT, CARDS, STOP, GROUP = 1, 2, 3, 4, 5, 6, -100
MODES = {STEER: "steer", COLLECT: "collect", INTERRUPT: "interrupt"}
PEOPLE = (1, 11, 12)  # of the group; 1 is an admin
LEDGER = Path(__file__).parent / "ledger.py"
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 64

_TOOLS = {"shell": "bash", "ledger": "ledger__write", "pay": "ledger__pay", "look": "ledger__look"}
_NOT_RUN = ("There is no tool named", "was not run")
_UNKNOWN = ("outcome is unknown",)


class Watched(FakeTelegram):
    """Remembers when each message came."""

    def __init__(self) -> None:
        super().__init__()
        self.came: dict[int, float] = {}

    def _show(self, chat: Any, message: Json) -> Json:
        shown = super()._show(chat, message)
        self.came[shown["message_id"]] = time.monotonic()
        return shown


@dataclass(slots=True)
class Figures:
    kills: int = 0
    messages: int = 0
    tools: int = 0
    tools_mcp: int = 0
    tools_repeated: int = 0
    outcomes_unknown: int = 0
    not_there: int = 0
    verdict: Verdict = field(default_factory=Verdict)

    def add(self, other: Figures) -> None:
        self.kills += other.kills
        self.messages += other.messages
        self.tools += other.tools
        self.tools_mcp += other.tools_mcp
        self.tools_repeated += other.tools_repeated
        self.outcomes_unknown += other.outcomes_unknown
        self.not_there += other.not_there
        self.verdict.add(other.verdict)

    @property
    def wrong(self) -> list[str]:
        v = self.verdict
        again = [f"{self.tools_repeated} tools ran again"] if self.tools_repeated else []
        return [*v.lost, *v.doubled, *v.disorder, *v.odd, *again]

    def __str__(self) -> str:
        v = self.verdict
        return (
            f"{self.kills} kills, {self.messages} messages: {len(v.lost)} lost, {len(v.doubled)} doubled, "
            f"{len(v.disorder)} out of order, {len(v.odd)} odd; {v.repeated} calls in flight repeated, "
            f"{v.stopped} stopped and {v.dropped} dropped as asked; {self.tools} tool calls "
            f"({self.tools_mcp} by MCP), {self.tools_repeated} repeated, {self.outcomes_unknown} told as "
            f"unknown, {self.not_there} not run since their server had not started"
        )


class World:
    def __init__(self, folder: Path, url: str, fake: Watched, model: ScriptedModel, gate: Gate) -> None:
        self.folder = folder
        self.url = url
        self.fake = fake
        self.model = model
        self.gate = gate
        self.kills: list[Kill] = []
        self.runs = folder / "runs.log"
        self.tool_seconds = 0.05
        self.pace = 0.02  # seconds between two pieces of an answer
        self.held = asyncio.Event()  # answers to tasks of the kind "hold" wait for it
        self.held.set()
        self.holding = 0
        self.denied: set[int] = set()
        self._port = free_port()
        self.page = Page(f"http://127.0.0.1:{self._port}")
        self._number = self._chatter = 0
        self._cards: dict[int, str] = {}  # message -> the question that it puts
        self._pressed: set[str] = set()
        self.asked: dict[str, list[Asked]] = defaultdict(list)
        self.commands: dict[str, Counter[str]] = defaultdict(Counter)
        self.commits = folder / "commits"
        self.bridge = Process(
            write_config(folder, self._settings()),
            folder,
            dev=False,
            module="tests.chaos.entry",
            environ={"CAUSEWAY_COMMITS": str(self.commits)},
        )
        (folder / "workspace").mkdir(exist_ok=True)
        entry = {"command": sys.executable, "args": [str(LEDGER), str(self.runs), str(self.tool_seconds)]}
        (folder / "workspace/mcp.json").write_text(json.dumps({"mcpServers": {"ledger": entry}}))

    def _settings(self) -> dict[str, Any]:
        rules = [
            {"effect": "ask", "tools": ["ledger__pay"]},
            {"effect": "ask", "tools": ["bash"], "chats": [str(CARDS)]},
            {"effect": "allow", "tools": ["bash", "ledger__write", "ledger__look"]},
        ]
        return {
            "model": openai_at(self.gate.openai_url),
            "store": {"url": self.url},
            "server": {"port": self._port},
            "channels": {
                "telegram": {"token": TOKEN, "base_url": self.fake.url, "edits": "correct"},
                "web": {},
            },
            "sessions": {
                "retention_days": 1000,
                "limits": {"person_messages": 10_000, "person_tokens": 1_000_000_000},
            },
            "access": {
                "telegram": {
                    "admins": [str(chat) for chat in (QUEUE, STEER, COLLECT, INTERRUPT, CARDS, STOP)],
                    "allow": [str(GROUP)],
                }
            },
            "tools": {"bash": {"enabled": True}, "policy": rules},
        }

    # -- the model ---------------------------------------------------------------------------------------

    async def think(self, seen: Seen) -> Say:
        """What follows from the messages since the last answer: the tools that they want, then words."""
        messages = seen.body["messages"]
        start = max(
            (n + 1 for n, m in enumerate(messages) if m["role"] == "assistant" and not m.get("tool_calls")),
            default=0,
        )
        tail = messages[start:]
        wanted = {
            int(number): kind
            for message in tail
            if message["role"] == "user"
            for number, kind in TASK.findall(_text(message))
        }
        if not wanted:
            return Say("nothing was asked")
        if "hold" in wanted.values() and not self.held.is_set():
            self.holding += 1
            try:
                await self.held.wait()
            finally:
                self.holding -= 1
        called = {call["id"] for message in tail for call in message.get("tool_calls") or ()}
        first = next(iter(wanted))
        calls = tuple(
            self._call(number, kind, seen.tools)
            for number, kind in wanted.items()
            if kind in _TOOLS and f"call_{number}" not in called
        )
        if calls:
            return Say("" if called else f"working on {first}", calls=calls)
        return Say(answer(first, wanted[first], tuple(wanted)), pieces=5, between=self.pace)

    def _call(self, number: int, kind: str, offered: Sequence[str]) -> Call:
        """A server that is still starting is not offered: the model then takes the shell."""
        name = _TOOLS[kind] if _TOOLS[kind] in offered else "bash"
        if name != "bash":
            return Call(name, {"number": number}, id=f"call_{number}")
        command = f"echo run {number} >> {self.runs}; sleep {self.tool_seconds}; echo ended >> {self.runs}"
        return Call("bash", {"command": command}, id=f"call_{number}")

    # -- people ------------------------------------------------------------------------------------------

    def ask(self, chat: int, kind: str, user: int | None = None) -> int:
        """A message with a task; returns its number."""
        self._number += 1
        words = f"task {self._number} {kind}"
        self.asked[f"telegram {chat}"].append(Asked(self._number, kind))
        if kind == "album":
            parts = [{"photo": [self._photo()]} for _ in range(2)]
            self.fake.album(chat, f"album-{self._number}", *parts, text=words)
        elif kind == "edited":
            first = self.fake.say(chat, f"{words} at first")
            self.fake.rewrite(chat, first["message_id"], f"{words} as corrected")
        elif kind == "file":
            name = f"{self._number}.txt"
            document = {"file_id": self.fake.file(b"some text", name), "file_name": name, "file_size": 9}
            self.fake.say(chat, words, document=document | {"file_unique_id": name})
        else:
            self.fake.say(chat, f"@TheBot {words}" if chat < 0 else words, user)
        return self._number

    def _photo(self) -> Json:
        id = self.fake.file(PNG, "picture.png")
        return {"file_id": id, "file_unique_id": id, "file_size": len(PNG), "width": 1, "height": 1}

    def ask_page(self, kind: str) -> int:
        self._number += 1
        self.asked["page"].append(Asked(self._number, kind))
        self.page.write(f"task {self._number} {kind}")
        return self._number

    def chatter(self) -> None:
        """Words in the group that do not mean the bot."""
        self._chatter += 1
        self.fake.say(GROUP, f"chatter {self._chatter}", 12)

    def command(self, chat: int, text: str) -> None:
        self.commands[f"telegram {chat}"][text.split()[0].lstrip("/")] += 1
        if text == "/stop":
            before = self.asked[f"telegram {chat}"]
            before[:] = [Asked(one.number, one.kind, dropped=True) for one in before]
        self.fake.say(chat, text)

    async def press(self) -> None:
        """People answer each question that is put to them, once."""
        while True:
            for chat in list(self.fake.chats.values()):
                for message in chat.shown[-20:]:
                    for row in message.get("reply_markup", {}).get("inline_keyboard", ()):
                        for button in row:
                            self._look_at(chat.id, message["message_id"], button["callback_data"])
            await asyncio.sleep(0.03)

    def _look_at(self, chat: int, message: int, data: str) -> None:
        _, id, choice = data.split(":")
        self._cards[message] = id
        wanted = "denied" if len(self._pressed) % 3 == 2 else "once"
        if id not in self._pressed and choice == wanted:
            self._pressed.add(id)
            self.fake.press(chat, message, data, 1)

    # -- life and death ----------------------------------------------------------------------------------

    async def kill(self) -> None:
        await self.bridge.kill()
        self.kills.append(Kill(time.monotonic()))

    async def keep_alive(self) -> None:
        """Start the process again whenever it was killed. Raises AssertionError when it ends otherwise."""
        while True:
            assert self.bridge.process is not None
            code = await self.bridge.process.wait()
            assert code == -9, f"the bridge ended with {code}:\n{self.bridge.output}"
            await self._again()

    async def _again(self) -> None:
        self.kills.append(Kill(time.monotonic()))
        await self.bridge._drained()
        self.bridge.environ.pop("CAUSEWAY_DIE", None)
        await self.bridge.start(ready=False)

    async def end(self) -> None:
        """Stop the process in order, also when it kills itself on the way."""
        for _ in range(2):
            assert self.bridge.process is not None
            try:
                code = await self.bridge.terminate()
            except ProcessLookupError:  # it was quicker
                code = await self.bridge.process.wait()
            if code == 0:
                return
            assert code == -9, f"the bridge ended with {code}:\n{self.bridge.output}"
            await self._again()
            await self.bridge.until(self.ready)
        raise AssertionError("the bridge was killed twice while it stopped")

    def ready(self) -> bool:
        return "Ctrl-C stops it." in self.bridge.output

    async def taken(self) -> None:
        """Whatever people wrote in Telegram has been taken in."""
        await self.until(lambda: not self.fake.updates)

    async def rests(self, quiet: float = 0.4) -> None:
        """Nothing is written for a moment: what follows an answer has been done."""
        until = time.monotonic() + 30
        size, since = -1, time.monotonic()
        while time.monotonic() - since < quiet:
            await asyncio.sleep(0.02)
            now = self.commits.stat().st_size
            if now != size or not self.ready():
                assert time.monotonic() < until, "the bridge does not come to rest"
                size, since = now, time.monotonic()

    async def all_answered(self) -> None:
        await self.until(self.answered)

    async def until(self, condition: Any, timeout: float = 30.0) -> None:
        await self.fake.wait_for(condition, timeout)

    @property
    def events(self) -> int:
        """How many things were seen from outside."""
        return len(self.fake.calls) + len(self.model.seen) + len(self.page.entries)

    def answered(self) -> bool:
        return not self.judge().lost

    async def settled(self, timeout: float = 60.0) -> None:
        """All is answered; after a restart in order every chat is still well, and nothing is said again."""
        await self._all_answered(timeout)
        assert await self.bridge.terminate() == 0, self.bridge.output
        await self.bridge.start()
        for name in list(self.asked):
            if name != "page":
                self.ask(int(name.split()[1]), "plain", 1)
        await self._all_answered(timeout)
        assert await self.bridge.terminate() == 0, self.bridge.output

    async def _all_answered(self, timeout: float) -> None:
        with contextlib.suppress(AssertionError):  # what is missing then is told by `judge`
            await self.until(self.answered, timeout)

    # -- what must hold ----------------------------------------------------------------------------------

    def judge(self) -> Verdict:
        verdict = Verdict()
        for name, asked in self.asked.items():
            verdict.add(self._page() if name == "page" else self._chat(int(name.split()[1]), asked))
        return verdict

    def _chat(self, chat: int, asked: Sequence[Asked]) -> Verdict:
        name = f"telegram {chat}"
        said = [
            Said(
                str(m.get("text", "")), self.fake.came[m["message_id"]], self._cards.get(m["message_id"], "")
            )
            for m in self.fake.chat(chat).shown
        ]
        stops = chat in (INTERRUPT, STOP)
        return Chat(name, asked, self.commands[name], said, self.kills, stops=stops).judge()

    def _page(self) -> Verdict:
        """Every entry has one place, so nothing may repeat, whatever was in flight."""
        own = [TASK.search(e["text"]) for e in self.page.entries.values() if e["role"] == "user"]
        entries = [e for e in self.page.entries.values() if e["role"] == "bot"]
        said = [Said(words(e), e["pos"]) for e in sorted(entries, key=lambda entry: entry["pos"])]
        verdict = Chat("page", self.asked["page"], self.commands["page"], said, ()).judge()
        shown = sorted(int(found[1]) for found in own if found)
        if missing := [one.number for one in self.asked["page"] if one.number not in shown]:
            verdict.lost.append(f"page: the person's own messages {missing}")
        return verdict

    def told(self) -> str:
        """What stands in the chats, and the process's last words, for whoever looks for a fault."""
        began = min((call.at for call in self.fake.calls), default=0.0)
        lines = [f"kills: {' '.join(f'{kill.at - began:.2f}' for kill in self.kills)}"]
        for chat in self.fake.chats.values():
            lines.append(f"chat {chat.id}")
            for m in chat.history:
                at = self.fake.came.get(m["message_id"])
                text = str(m.get("text", m.get("caption", "(picture)")))
                short = text if len(text) < 120 else f"{text[:60]} ... {text[-40:]}"
                lines.append(f"  {m['message_id']} {f'{at - began:.2f} bot' if at else 'person'}: {short!r}")
        return "\n".join([*lines, self.bridge.output[-3000:]])

    async def figures(self) -> Figures:
        """Look at everything; the process must have ended."""
        found = Figures(len(self.kills), self._number, verdict=self.judge())
        found.messages += sum(commands.total() for commands in self.commands.values())
        self._judge_tools(found)
        odd = found.verdict.odd
        odd += [f"refused by the provider: {refusal}" for refusal in self.gate.refusals]
        await self._judge_store(odd)
        self._judge_overheard(found.verdict)
        return found

    @property
    def served(self) -> bool:
        """Whether the MCP server has told its tools to some process."""
        return self.runs.exists() and "listed\n" in self.runs.read_text()

    @property
    def ran(self) -> Counter[int]:
        """How often each call that may change something was run."""
        text = self.runs.read_text() if self.runs.exists() else ""
        return Counter(map(int, re.findall(r"^run (\d+)$", text, re.MULTILINE)))

    def _judge_tools(self, found: Figures) -> None:
        """A tool that may change something was run once, or its outcome was told as unknown."""
        runs = self.ran
        results: dict[int, set[str]] = defaultdict(set)
        for body in self.gate.bodies:
            for message in body["messages"]:
                if message["role"] == "tool":
                    results[int(message["tool_call_id"].removeprefix("call_"))].add(_text(message))
        found.tools = len(results)
        found.tools_mcp = sum(": done" in result for said in results.values() for result in said)
        found.tools_repeated = sum(count - 1 for count in runs.values())
        looked = {one.number for asked in self.asked.values() for one in asked if one.kind == "look"}
        for number, said in results.items():
            if len(said) > 1:
                found.verdict.odd.append(f"call {number} had the results {sorted(said)}")
            result = next(iter(said))
            unknown = any(word in result for word in _UNKNOWN)
            not_run = any(word in result for word in _NOT_RUN) and not unknown
            found.outcomes_unknown += unknown
            found.not_there += "There is no tool named" in result
            if runs[number] != 1 and not unknown and not not_run and number not in looked:
                found.verdict.odd.append(f"call {number} ran {runs[number]} times: {result[:200]}")
            if not_run and runs[number]:
                found.verdict.odd.append(f"call {number} was not to run, and did: {result[:200]}")

    async def _judge_store(self, odd: list[str]) -> None:
        store = open_store(self.url, self.folder / "workspace")
        await store.open()
        try:
            channels = ["telegram", "web"]
            if waiting := await store.waiting_sessions(channels):
                odd.append(f"still in the inbox: {waiting}")
            if pending := await store.pending_replies(channels):
                odd.append(f"still in the outbox: {[reply.id for reply in pending]}")
            cards = [card for card in (await store.settings("approval")).values() if isinstance(card, dict)]
            if waiting := [card["id"] for card in cards if card["state"] == "waiting"]:
                odd.append(f"open questions: {waiting}")
            for session in await store.sessions():
                faults = check_history(await store.history.load(session.key))
                odd += [f"history of {session.key}: {fault}" for fault in faults]
        finally:
            await store.close()

    def _judge_overheard(self, verdict: Verdict) -> None:
        """What was said in the group before a question came before the model, at the latest with it."""
        told = {
            word
            for body in self.gate.bodies
            for message in body["messages"]
            if message["role"] == "user"
            for word in re.findall(r"chatter \d+", _text(message))
        }
        history = self.fake.chat(GROUP).history
        last = max((n for n, m in enumerate(history) if TASK.search(m.get("text", ""))), default=0)
        people = [m.get("text", "") for m in history[:last] if not m["from"]["is_bot"]]
        verdict.lost += [
            f"overheard {text}" for text in people if text.startswith("chatter") and text not in told
        ]


def check_history(entries: Sequence[Entry]) -> list[str]:
    """What is wrong in a history: each call has exactly one result, behind it and before anything else; no
    message was taken in twice."""
    faults: list[str] = []
    due: list[str] = []
    taken: Counter[int] = Counter()
    begun: Counter[str] = Counter()
    for entry in entries:
        if isinstance(entry, ToolOutput):
            if entry.call in due:
                due.remove(entry.call)
            else:
                faults.append(f"a result of {entry.call} that nobody waits for")
        elif isinstance(entry, ToolBegun):
            begun[entry.call] += 1
        elif not isinstance(entry, Ended) and due:
            faults.append(f"no results of {due}")
            due = []
        if isinstance(entry, Assistant):
            due = [call.id for call in entry.calls]
        if isinstance(entry, User):
            taken.update(entry.messages)
    if due:
        faults.append(f"no results of {due}")
    faults += [f"message {number} was taken in {count} times" for number, count in taken.items() if count > 1]
    faults += [f"{call} was begun {count} times" for call, count in begun.items() if count > 1]
    return faults


def _text(message: Json) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content or () if part.get("type") == "text")


@contextlib.asynccontextmanager
async def world(folder: Path, url: str) -> AsyncIterator[World]:
    """A world whose bridge is not started yet."""
    folder.mkdir(parents=True, exist_ok=True)
    fake = Watched()
    async with fake, ScriptedModel().running() as model:
        async with Gate(openai=model.openai_url).running() as gate:
            made = World(folder, url, fake, model, gate)
            model.script = made.think
            async with made.page.open():
                pressing = asyncio.create_task(made.press())
                try:
                    yield made
                finally:
                    pressing.cancel()
                    await asyncio.wait({pressing})
                    await made.bridge.close()
