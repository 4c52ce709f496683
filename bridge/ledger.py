"""What people use, and what they may use: tokens and calls by day, messages by the minute."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from agent.events import Usage
from agent.models.resolve import Price
from bridge.store.base import Store, UsageRow

_MINUTE = 60.0
_REMEMBERED = 10_000

Whose = Literal["person", "chat", "total"]


class UseLimits(BaseModel):
    """`sessions.limits`; 0 is no limit. `…_messages` are messages a minute, `…_tokens` tokens a day (UTC),
    `…_runs` answers under way at once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    person_messages: int = Field(default=0, ge=0)
    chat_messages: int = Field(default=0, ge=0)
    total_messages: int = Field(default=0, ge=0)
    person_tokens: int = Field(default=0, ge=0)
    chat_tokens: int = Field(default=0, ge=0)
    total_tokens: int = Field(default=0, ge=0)
    person_runs: int = Field(default=0, ge=0)
    chat_runs: int = Field(default=0, ge=0)
    total_runs: int = Field(default=1000, ge=1)


@dataclass(frozen=True, slots=True)
class Over:
    """A limit that is reached: whose, which kind, its value, and the seconds until it is over. `told`: the
    person has been told already."""

    whose: Whose
    kind: Literal["messages", "tokens"]
    limit: int
    seconds: int
    told: bool


def owner(channel: str, id: str) -> str:
    return f"{channel}\0{id}"


class Ledger:
    """Counts in memory for the limits, and keeps sums by day in the store. `prices` by model name."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float],
        limits: UseLimits | None = None,
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self.limits = limits or UseLimits()
        self._prices = prices or {}
        self._messages: OrderedDict[tuple[Whose, str], deque[float]] = OrderedDict()
        self._tokens: Counter[tuple[Whose, str]] = Counter()
        self._day = self._today()
        self._told: OrderedDict[tuple[str, str], float] = OrderedDict()

    def _today(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self._clock()))

    async def load(self) -> None:
        """Take up today's sums, so that a restart gives nobody a second day."""
        for row in await self._store.usage(self._today()):
            if row.kind == "model":
                self._count(row.channel, row.chat, row.person, row.input + row.output)

    def _count(self, channel: str, chat: str, person: str, tokens: int) -> None:
        today = self._today()
        if today != self._day:
            self._day = today
            self._tokens.clear()
        self._tokens["person", owner(channel, person)] += tokens
        self._tokens["chat", owner(channel, chat)] += tokens
        self._tokens["total", ""] += tokens

    # -- limits ----------------------------------------------------------------------------------------

    def admit(self, channel: str, chat: str, person: str) -> Over | None:
        """Count a message. None: it may be taken; else the limit that forbids it (it counts for nothing)."""
        now = self._clock()
        keys: tuple[tuple[Whose, str, int, int], ...] = (
            ("person", owner(channel, person), self.limits.person_messages, self.limits.person_tokens),
            ("chat", owner(channel, chat), self.limits.chat_messages, self.limits.chat_tokens),
            ("total", "", self.limits.total_messages, self.limits.total_tokens),
        )
        for whose, key, messages, tokens in keys:
            if tokens and self._day == self._today() and self._tokens[whose, key] >= tokens:
                left = 86_400 - int(now) % 86_400
                return Over(whose, "tokens", tokens, left, self._tell(whose, key, now, left))
            if messages:
                recent = self._recent(whose, key, now)
                if len(recent) >= messages:
                    left = max(1, round(recent[0] + _MINUTE - now))
                    return Over(
                        whose,
                        "messages",
                        messages,
                        left,
                        self._tell(whose, owner(channel, person), now, left),
                    )
        for whose, key, messages, _ in keys:
            if messages:
                self._recent(whose, key, now).append(now)
        return None

    def _recent(self, whose: Whose, key: str, now: float) -> deque[float]:
        recent = self._messages.setdefault((whose, key), deque())
        self._messages.move_to_end((whose, key))
        while recent and recent[0] <= now - _MINUTE:
            recent.popleft()
        if len(self._messages) > _REMEMBERED:
            self._messages.popitem(last=False)
        return recent

    def _tell(self, whose: str, key: str, now: float, seconds: float) -> bool:
        """Whether this was told already for the time that the limit lasts."""
        until = self._told.get((whose, key), 0.0)
        if until > now:
            return True
        self._told[whose, key] = now + seconds
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        return False

    # -- use -------------------------------------------------------------------------------------------

    async def record(
        self,
        session: str,
        channel: str,
        chat: str,
        person: str,
        models: Mapping[str, Usage],
        tools: Mapping[str, int],
    ) -> None:
        """Add what one run used."""
        day = self._today()
        rows = [
            UsageRow(
                day, session, channel, chat, person, "model", name, 1, used.input, used.output, used.cached
            )
            for name, used in models.items()
        ]
        rows += [
            UsageRow(day, session, channel, chat, person, "tool", name, calls)
            for name, calls in tools.items()
        ]
        for row in rows:
            if row.kind == "model":
                self._count(channel, chat, person, row.input + row.output)
        if rows:
            await self._store.add_usage(rows)

    def cost(self, row: UsageRow) -> float:
        """What a row cost by the configured prices; 0 for a model without one."""
        price = self._prices.get(row.name)
        if row.kind != "model" or price is None:
            return 0.0
        cached = price.input if price.cached is None else price.cached
        fresh = max(row.input - row.cached, 0)
        return (fresh * price.input + row.cached * cached + row.output * price.output) / 1_000_000

    async def rows(self, days: int) -> Sequence[UsageRow]:
        """The use of the last `days` days, today included."""
        since = time.strftime("%Y-%m-%d", time.gmtime(self._clock() - (days - 1) * 86_400))
        return await self._store.usage(since)
