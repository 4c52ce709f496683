"""What people were shown, held against what they asked: lost, torn, doubled, out of order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.roles_stage import NOTE, Stage, answer_to, command_of, session_of

#: A message that was shown not longer than so many seconds before a kill may not have been written down yet.
#: After it, it can only come from a call that was at a gateway: the session is nobody's for a lease.
BEFORE, AFTER = 1.0, 12.0


@dataclass(slots=True)
class Kill:
    """`sessions`: those that the killed worker had (None: any; of a gateway, or not known)."""

    at: float
    what: str
    sessions: frozenset[str] | None = None


@dataclass(slots=True)
class Outage:
    """Redis was away. What was shown then could not be written down."""

    begin: float
    end: float


@dataclass(slots=True)
class Repeat:
    chat: int
    words: str
    first: float
    why: str = ""

    @property
    def is_command(self) -> bool:
        return self.words.startswith("/")


@dataclass(slots=True)
class Verdict:
    lost: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    doubled: list[Repeat] = field(default_factory=list)
    repeated: list[Repeat] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)

    def figures(self) -> str:
        names = ("lost", "torn", "doubled", "repeated", "disordered", "strange")
        return ", ".join(f"{name} {len(getattr(self, name))}" for name in names)


@dataclass(slots=True)
class _Piece:
    task: str
    words: list[str]
    first: float


class Judge:
    def __init__(self, stage: Stage, kills: Sequence[Kill] = (), outages: Sequence[Outage] = ()) -> None:
        self.stage = stage
        self.kills = kills
        self.outages = outages
        self._explained: set[tuple[int, bool, int]] = set()

    def judge(self, said: Mapping[int, Sequence[str]]) -> Verdict:
        """`said`: what was said in each chat, in order: tasks and commands."""
        verdict = Verdict()
        for chat, words in said.items():
            self._chat(chat, words, verdict)
        return verdict

    def _chat(self, chat: int, said: Sequence[str], verdict: Verdict) -> None:
        known = self.stage.telegram.chats[chat]
        pieces: list[_Piece] = []
        order: list[str] = []
        commands: Counter[str] = Counter()
        seen_commands: dict[str, list[float]] = {}
        for message in known.shown:
            text, came = str(message.get("text", "")), self.stage.telegram.came[message["message_id"]]
            found = re.match(r"answer (\d+)|(\d+)w\d+", text)
            if found is None:
                name = command_of(text)
                if not name:
                    verdict.strange.append(f"chat {chat}: {text[:60]!r}")
                    continue
                commands[name] += 1
                seen_commands.setdefault(name, []).append(came)
                if name == "/new":
                    order.append("/new")
                continue
            task = found[1] or found[2]
            words = text.replace(NOTE, "").split()
            twin = next((p for p in pieces if p.task == task and _overlap(p.words, words)), None)
            if twin is not None:
                self._repeat(Repeat(chat, text[:40], twin.first), verdict)
                if len(words) > len(twin.words):
                    twin.words = words
                twin.first = came
                continue
            pieces.append(_Piece(task, words, came))
            if task not in order:
                order.append(task)
        self._tasks(chat, said, pieces, verdict)
        self._commands(chat, said, commands, seen_commands, order, verdict)
        self._order(chat, said, order, verdict)

    def _tasks(self, chat: int, said: Sequence[str], pieces: list[_Piece], verdict: Verdict) -> None:
        for words in said:
            found = re.match(r"task (\d+) (\w+)", words)
            if found is None:
                continue
            task, kind = found.groups()
            shown = [word for piece in pieces if piece.task == task for word in piece.words]
            wanted = answer_to(task, kind).split()
            if kind == "halted":  # a stop may have come before, in or after it
                if not " ".join(wanted).startswith(" ".join(shown)):
                    verdict.torn.append(f"chat {chat}: {words}")
            elif not shown:
                verdict.lost.append(f"chat {chat}: {words}")
            elif shown != wanted:
                verdict.torn.append(f"chat {chat}: {words} ({len(shown)} of {len(wanted)} words)")

    def _commands(
        self,
        chat: int,
        said: Sequence[str],
        shown: Counter[str],
        came: Mapping[str, Sequence[float]],
        order: list[str],
        verdict: Verdict,
    ) -> None:
        wanted = Counter(words for words in said if words.startswith("/"))
        for name in wanted.keys() | (shown.keys() - {NOTE}):
            less = wanted[name] - shown[name]
            verdict.lost += [f"chat {chat}: {name}"] * less
            if less < 0:  # which of them was the repeat is not known: whichever a kill explains
                repeats = [Repeat(chat, name, first) for first in came[name][:-1]]
                repeats.sort(key=lambda one: self._kill_of(one) is None)
                for repeat in repeats[:-less]:
                    self._repeat(repeat, verdict)
            if name == "/new" and less < 0:
                for _ in range(-less):
                    order.reverse()
                    order.remove("/new")
                    order.reverse()

    def _order(self, chat: int, said: Sequence[str], order: list[str], verdict: Verdict) -> None:
        asked = [_mark(words) for words in said if words == "/new" or words.startswith("task")]
        there = iter(asked)
        if not all(any(one == mark for mark in there) for one in order):
            verdict.disordered.append(f"chat {chat}: asked {asked}, answered {order}")

    def _repeat(self, repeat: Repeat, verdict: Verdict) -> None:
        kill = self._kill_of(repeat)
        if kill is None:
            verdict.doubled.append(repeat)
            return
        self._explained.add((repeat.chat, repeat.is_command, id(kill)))
        repeat.why = f"{kill.what} killed {kill.at - repeat.first:+.2f} s after it was shown"
        verdict.repeated.append(repeat)

    def around(self, repeat: Repeat) -> str:
        """The kills that came next after something was shown, for the person who reads the failure."""
        session = session_of(repeat.chat)
        told = [
            f"{kill.what} {kill.at - repeat.first:+.2f} s"
            + ("" if kill.sessions is None else " (had it)" if session in kill.sessions else " (had it not)")
            for kill in self.kills
            if -AFTER < kill.at - repeat.first < 2 * AFTER
        ]
        told += [
            f"Redis away {outage.begin - repeat.first:+.2f} to {outage.end - repeat.first:+.2f} s"
            for outage in self.outages
        ]
        return "; ".join(told)

    def _kill_of(self, repeat: Repeat) -> Kill | None:
        """The kill that the first showing was in flight at; a kill explains one repeat of a
        chat's run, and one of the answer to a command beside it."""
        for kill in self.kills:
            if kill.sessions is not None and session_of(repeat.chat) not in kill.sessions:
                continue
            if (repeat.chat, repeat.is_command, id(kill)) in self._explained:
                continue
            late = AFTER if kill.sessions is not None else 1.0
            if -late <= kill.at - repeat.first <= BEFORE:
                return kill
            for outage in self.outages:
                if outage.begin - BEFORE <= repeat.first <= kill.at <= outage.end + BEFORE:
                    return kill
        return None


def _mark(words: str) -> str:
    return words.split()[1] if words.startswith("task") else words


def _overlap(one: list[str], other: list[str]) -> bool:
    """Whether one is the beginning of the other; growing text may end within a word."""
    return " ".join(one).startswith(" ".join(other)) or " ".join(other).startswith(" ".join(one))
