"""What a chat shows, read as a story: was each message answered, once, in order? Pure.

The model of these tests gives its answers a form from which every piece can be told:

    working on 7                     (only where a tool was called)
    answer 7 takes 7 8               (the messages that it answers)
    line 0 of 7 ... line 5 of 7
    end 7
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

TASK = re.compile(r"\btask (\d+) (\w+)")
SHORT, LONG = 6, 150
#: Seconds before a kill in which a call that is repeated after it may have reached the platform.
IN_FLIGHT = 2.0

_LINE = re.compile(r"(working on|answer|line \d+ of|end) (\d+)\b(?: takes ([\d ]+))?")
_CUT_OFF = "I was restarted while I carried out /"
_COMMANDS = {
    "status": re.compile(r"Conversation: "),
    "queue": re.compile(rf"From now on (messages|a new)|{_CUT_OFF}queue"),
    "new": re.compile(r"Done\. This is a new conversation"),
    "stop": re.compile(rf"Stopped\.|There is nothing to stop|{_CUT_OFF}stop"),
}
_NOTICE = re.compile(r"[↪⏳⏹] ")
_CARD = re.compile(r"(🔐|✅|🚫|⌛) ")


def lines_of(kind: str) -> int:
    return LONG if kind == "long" else SHORT


def answer(first: int, kind: str, takes: Sequence[int]) -> str:
    """The model's answer to some messages."""
    pad = " and so on, and so on, and so on" if kind == "long" else ""
    body = "\n\n".join(f"line {n} of {first}{pad}" for n in range(lines_of(kind)))
    return f"answer {first} takes {' '.join(map(str, takes))}\n\n{body}\n\nend {first}"


@dataclass(frozen=True, slots=True)
class Asked:
    """A message with a task, in the order of the chat. `dropped`: a `/stop` came after it, which may have
    taken it out of the inbox."""

    number: int
    kind: str
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the bot as it is to be seen now. `at`: when it came; `card`: which question it puts."""

    text: str
    at: float
    card: str = ""


@dataclass(frozen=True, slots=True)
class Kill:
    """`at`: when the process was dead; times as those of `Said`."""

    at: float


@dataclass(slots=True)
class Verdict:
    """What is wrong, and how often the one call in flight was repeated, which is not."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    disorder: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    repeated: int = 0
    stopped: int = 0
    dropped: int = 0

    def add(self, other: Verdict) -> None:
        self.lost += other.lost
        self.doubled += other.doubled
        self.disorder += other.disorder
        self.odd += other.odd
        self.repeated += other.repeated
        self.stopped += other.stopped
        self.dropped += other.dropped


@dataclass(slots=True)
class _Reply:
    """`number` is 0 for one that was stopped before it said anything. Ranks: 0 "working on", 1 "answer", then
    the lines, then "end"."""

    number: int
    takes: tuple[int, ...] = ()
    reach: int = -1
    newest: int = -1  # the first rank of its newest message
    at: float = 0.0  # when that came
    stopped: bool = False


class Chat:
    """One conversation. `stops`: answers may be stopped there, by a new message or by `/stop`."""

    def __init__(
        self,
        name: str,
        asked: Sequence[Asked],
        commands: Counter[str],
        said: Sequence[Said],
        kills: Sequence[Kill],
        *,
        stops: bool = False,
    ) -> None:
        self._name = name
        self._kinds = {one.number: one.kind for one in asked}
        self._asked = [one.number for one in asked]
        self._dropped = {one.number for one in asked if one.dropped}
        self._commands = commands
        self._said = said
        self._kills = kills
        self._stops = stops
        self._repeats: set[tuple[float, object]] = set()
        self._replies: list[_Reply] = []
        self.verdict = Verdict()

    def judge(self) -> Verdict:
        others: dict[str, list[Said]] = {}
        for said in self._said:
            what = self._kind(said)
            if what == "reply":
                self._read(said)
            else:
                others.setdefault(what, []).append(said)
        self._completeness()
        for name in {*others, *self._commands}:
            if name == "notice":
                self._at_most(name, others[name], len(self._asked))
            elif name.startswith("card"):
                self._at_most(name, others[name], 1)
            elif name == "odd":
                self.verdict.odd += [f"{self._name}: {said.text[:200]!r}" for said in others[name]]
            else:
                shown, wanted = others.get(name, []), self._commands[name]
                if len(shown) < wanted:
                    self.verdict.lost.append(f"{self._name}: {wanted - len(shown)} answers to /{name}")
                self._at_most(name, shown, wanted)
        self.verdict.repeated = len(self._repeats)
        return self.verdict

    def _kind(self, said: Said) -> str:
        if said.card:
            return f"card {said.card}"
        if _CARD.match(said.text):
            return "odd"
        if _NOTICE.match(said.text):
            return "notice"
        for name, pattern in _COMMANDS.items():
            if pattern.search(said.text) and not _LINE.search(said.text):
                return name
        return "reply" if _LINE.search(said.text) or "(stopped)" in said.text else "odd"

    # -- replies -----------------------------------------------------------------------------------------

    def _read(self, said: Said) -> None:
        """One message of a reply: it goes on where the one before ended, or repeats that one."""
        ranks: list[int] = []
        number, takes = 0, tuple[int, ...]()
        for what, tag, taken in _LINE.findall(said.text):
            number = number or int(tag)
            if int(tag) != number:
                self.verdict.disorder.append(f"{self._name}: {number} and {tag} in one message")
            ranks.append(self._rank(what, int(tag)))
            takes = takes or tuple(map(int, taken.split()))
        stopped = "(stopped)" in said.text
        reply = self._replies[-1] if self._replies else None
        if reply is None or (number and reply.number != number) or (not number and self._over(reply)):
            reply = _Reply(number)
            self._replies.append(reply)
        if takes:
            reply.takes = takes
        reply.stopped = reply.stopped or stopped
        if ranks:
            self._place(reply, ranks, said)
        reply.at = said.at

    def _over(self, reply: _Reply) -> bool:
        return reply.stopped or reply.reach == 2 + lines_of(self._kinds.get(reply.number, ""))

    def _rank(self, what: str, tag: int) -> int:
        lines = lines_of(self._kinds.get(tag, ""))
        ends = {"working on": 0, "answer": 1, "end": 2 + lines}
        return ends[what] if what in ends else 2 + int(what.split()[1])

    def _place(self, reply: _Reply, ranks: list[int], said: Said) -> None:
        if ranks != list(range(ranks[0], ranks[-1] + 1)):
            self.verdict.disorder.append(f"{self._name}: reply {reply.number} has {ranks}")
        goes_on = ranks[0] == reply.reach + 1 or (reply.reach == -1 and ranks[0] == 1)
        if goes_on:
            reply.newest, reply.reach = ranks[0], ranks[-1]
        elif ranks[0] == reply.newest:
            reply.reach = max(reply.reach, ranks[-1])
            if not self._repeat(reply.at, said.at, reply.number):
                self.verdict.doubled.append(f"{self._name}: reply {reply.number} from {ranks[0]}")
        else:
            self.verdict.disorder.append(
                f"{self._name}: reply {reply.number} goes on at {ranks[0]} after {reply.reach}"
            )

    def _repeat(self, first: float, again: float, what: object) -> bool:
        """Whether a kill explains a second sending: the first was in flight then, and it is the only call of
        its reply that this kill repeats."""
        for kill in self._kills:
            explains = first - 0.3 < kill.at < again and kill.at - first < IN_FLIGHT
            if explains and (kill.at, what) not in self._repeats:
                self._repeats.add((kill.at, what))
                return True
        return False

    def _at_most(self, name: str, shown: Sequence[Said], wanted: int) -> None:
        surplus = len(shown) - wanted
        for number, (one, other) in enumerate(itertools.pairwise(shown)):
            if surplus > 0 and self._repeat(one.at, other.at, (name, number)):
                surplus -= 1
        if surplus > 0:
            self.verdict.doubled.append(f"{self._name}: {name} {surplus} times too often")

    def _completeness(self) -> None:
        """Each message is in one reply, in the order in which they were written."""
        told: list[int] = []
        silent: list[float] = []  # replies that were stopped before they said a word
        for reply in self._replies:
            if reply.stopped:
                self.verdict.stopped += 1
                if not self._stops:
                    self.verdict.odd.append(f"{self._name}: reply {reply.number} was stopped")
            elif not self._over(reply):
                self.verdict.lost.append(f"{self._name}: the end of reply {reply.number}")
            if reply.number:
                told += reply.takes or (reply.number,)
            else:
                silent.append(reply.at)
        for number, count in Counter(told).items():
            if count > 1:
                self.verdict.doubled.append(f"{self._name}: message {number} in {count} replies")
        missing = [number for number in self._asked if number not in told]
        if strange := [number for number in told if number not in self._kinds]:
            self.verdict.odd.append(f"{self._name}: nobody asked {strange}")
        if [n for n in told if n in self._kinds] != [n for n in self._asked if n in told]:
            self.verdict.disorder.append(f"{self._name}: asked {self._asked}, told {told}")
        surplus = len(silent) - len(missing)
        for first, again in itertools.pairwise(silent):
            surplus -= surplus > 0 and self._repeat(first, again, "stopped")
        if surplus > 0:
            self.verdict.doubled.append(f"{self._name}: {surplus} stops too many")
        wanted = [number for number in missing if number not in self._dropped]
        stopped = len(silent)
        if self._dropped:
            self.verdict.dropped = max(len(missing) - len(wanted) - stopped, 0)
            stopped = 0
        if len(wanted) > stopped:
            self.verdict.lost.append(f"{self._name}: {len(wanted) - stopped} of {wanted}")
