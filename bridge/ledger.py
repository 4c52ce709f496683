"""What people use, and what they may use: tokens and calls by day, messages by the minute."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from agent.events import Usage
from agent.models.resolve import Price
from bridge.store.base import Bound, Store, UsageField, UsageRow

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
    """Asks the store's meter about the limits, and keeps sums by day in the store. `prices` by model name.

    Who was told of a limit is this process's own memory: another one may tell them once more.
    """

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
        self._told: OrderedDict[tuple[str, str], float] = OrderedDict()

    def _today(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self._clock()))

    async def load(self) -> None:
        """Take up today's sums, so that a restart gives nobody a second day."""
        if not any((self.limits.person_tokens, self.limits.chat_tokens, self.limits.total_tokens)):
            return
        today, used = self._today(), Counter[str]()
        for row in await self._store.usage(today, ("channel", "chat", "person")):
            if row.kind == "model":
                used.update(self._tokens(row.channel, row.chat, row.person, row.input + row.output))
        await self._store.meter.begin(self._clock(), used)

    def _bounds(self, channel: str, chat: str, person: str) -> list[tuple[Whose, Bound]]:
        """The limits that are set, in the order in which they are looked at."""
        limits = self.limits
        found: tuple[tuple[Whose, str, int, int], ...] = (
            ("person", owner(channel, person), limits.person_messages, limits.person_tokens),
            ("chat", owner(channel, chat), limits.chat_messages, limits.chat_tokens),
            ("total", "", limits.total_messages, limits.total_tokens),
        )
        return [
            (whose, Bound(f"{whose}\0{key}", messages, tokens))
            for whose, key, messages, tokens in found
            if messages or tokens
        ]

    def _tokens(self, channel: str, chat: str, person: str, tokens: int) -> dict[str, int]:
        """What tokens of a run add to which counters."""
        if not tokens:
            return {}
        bounds = self._bounds(channel, chat, person)
        return {bound.counter: tokens for _, bound in bounds if bound.tokens}

    # -- limits ----------------------------------------------------------------------------------------

    async def admit(self, channel: str, chat: str, person: str, message: str) -> Over | None:
        """Count a message by its id. None: it may be taken; else the limit that forbids it (it counts for
        nothing)."""
        bounds, now = self._bounds(channel, chat, person), self._clock()
        if not bounds:
            return None
        name = f"{owner(channel, chat)}\0{message}"
        reached = await self._store.meter.admit(name, now, [bound for _, bound in bounds])
        if reached is None:
            return None
        whose, bound = next(pair for pair in bounds if pair[1].counter == reached.counter)
        if reached.kind == "tokens":
            left = 86_400 - int(now) % 86_400
            # A whole chat is told once; of what is used up for all, everybody hears.
            hears = owner(channel, chat if whose == "chat" else person)
            return Over(whose, "tokens", bound.tokens, left, self._tell(f"{whose} tokens", hears, now, left))
        left = max(1, round(reached.seconds))
        told = self._tell(whose, owner(channel, person), now, left)
        return Over(whose, "messages", bound.messages, left, told)

    def _tell(self, whose: str, key: str, now: float, seconds: float) -> bool:
        """Whether this was told already for the time that the limit lasts."""
        until = self._told.get((whose, key), 0.0)
        if now < until <= now + seconds + 1:  # later: from before the clock was set back
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
        if not rows:
            return
        await self._store.add_usage(rows)
        spent = self._tokens(channel, chat, person, sum(row.input + row.output for row in rows))
        if spent:
            await self._store.meter.spend(self._clock(), spent)

    def cost(self, row: UsageRow) -> float:
        """What a row cost by the configured prices; 0 for a model without one."""
        price = self._prices.get(row.name)
        if row.kind != "model" or price is None:
            return 0.0
        cached = price.input if price.cached is None else price.cached
        fresh = max(row.input - row.cached, 0)
        return (fresh * price.input + row.cached * cached + row.output * price.output) / 1_000_000

    async def rows(
        self, days: int, *per: UsageField, of: tuple[str, str] | None = None, most: int = 0
    ) -> Sequence[UsageRow]:
        """The use of the last `days` days, today included, summed per these fields (see `Store.usage`)."""
        since = time.strftime("%Y-%m-%d", time.gmtime(self._clock() - (days - 1) * 86_400))
        return await self._store.usage(since, per, of, most)
