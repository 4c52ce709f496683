"""Questions that a run puts to its person in the chat, and the answers, which are no messages for the agent.

A question waits in memory: it belongs to a call that would not survive a restart either. The next message of
the person who was asked, in the chat where it was asked, is the answer; commands keep working meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent.tools.base import Answer, Question
from bridge.texts import text
from channels.base import Channel, Choice, Inbound, Press, ReplyRef, SendError

log = logging.getLogger("causeway.questions")

_MOST_OPEN = 5  # of one session
_MOST_TRIES = 3  # of one value
_LONGEST = 1500
_POST_DEADLINE = 30.0
_YES = frozenset(("yes", "y", "ok", "okay", "sure", "accept", "/approve", "!approve"))
_YES |= {"是", "好", "好的", "同意", "可以"}
_NO = frozenset(("no", "n", "deny", "decline", "/deny", "!deny", "不", "否", "不要", "拒绝", "取消"))


@dataclass(slots=True)
class _Open:
    """A question that waits for a message of `sender`, or a button of the card that is shown now. `choices`
    are what the buttons mean, by their ids."""

    sender: str
    heard: asyncio.Queue[str] = field(default_factory=lambda: asyncio.Queue(1))
    choices: dict[str, str] = field(default_factory=dict)
    card: tuple[ReplyRef, str] | None = None


class Questions:
    """All open questions of a process."""

    def __init__(self, channels: Mapping[str, Channel], new_id: Callable[[], str]) -> None:
        self._channels = channels
        self._new_id = new_id
        self._open: dict[str, deque[_Open]] = {}

    def waits_for(self, session: str, inbound: Inbound) -> bool:
        """Whether a question waits for a message of this person here."""
        waiting = self._open.get(session, ())
        return any(q.sender == inbound.sender.id and q.heard.empty() for q in waiting)

    def hear(self, session: str, inbound: Inbound) -> bool:
        """Whether this message answers an open question; then it is taken and is nothing for the inbox."""
        for question in self._open.get(session, ()):
            if question.sender == inbound.sender.id and question.heard.empty():
                question.heard.put_nowait(inbound.text.strip())
                return True
        return False

    async def ask(self, session: str, ref: ReplyRef, sender: str, question: Question) -> Answer:
        """Ask the person and wait for the answer; "cancel" when that cannot be done or time runs out."""
        channel = self._channels.get(ref.address.channel)
        waiting = self._open.get(session, deque())
        if channel is None or not channel.asks or len(waiting) >= _MOST_OPEN:
            return Answer("cancel")
        mine = _Open(sender)
        self._open[session] = waiting
        waiting.append(mine)
        try:
            async with asyncio.timeout(question.deadline):
                return await self._talk(channel, ref, mine, question)
        except (SendError, TimeoutError) as error:
            log.info("a question of %s got no answer (%s)", question.source, type(error).__name__)
            return Answer("cancel")
        finally:
            waiting.remove(mine)
            if not waiting:
                self._open.pop(session, None)

    async def _talk(self, channel: Channel, ref: ReplyRef, mine: _Open, question: Question) -> Answer:
        language = ref.language
        head = text("question.head", language, source=question.source, text=question.text[:_LONGEST])
        if question.url:
            head = f"{head}\n\n{question.url}"
        fields = dict(question.schema.get("properties") or {})
        if not fields:
            choices = [text("question.yes", language), text("question.no", language)]
            words = f"{head}\n\n{text('question.confirm', language)}"
            await self._put(channel, ref, mine, words, choices)
            said = (await self._heard(channel, mine, words)).lower()
            if said in _YES:
                return Answer("accept")
            return Answer("decline" if said in _NO else "cancel")
        required = set(question.schema.get("required") or ())
        values: dict[str, Any] = {}
        for number, (name, schema) in enumerate(fields.items(), 1):
            lines = [head] if number == 1 else []
            lines.append(_wording(name, schema, name in required, number, len(fields), language))
            words = "\n\n".join(lines)
            await self._put(channel, ref, mine, words, _choices(schema))
            for _ in range(_MOST_TRIES):
                said = await self._heard(channel, mine, words)
                if said.lower() in ("/deny", "!deny"):
                    return Answer("decline")
                known, value = read_value(said, schema, required=name in required)
                if known:
                    break
                words = text("question.again", language, name=name)
                await self._put(channel, ref, mine, words, _choices(schema))
            else:
                return Answer("cancel")
            if value is not None:
                values[name] = value
        return Answer("accept", values)

    def holds(self, choice: str) -> bool:
        """Whether a button belongs to a question that waits here."""
        return any(choice in question.choices for waiting in self._open.values() for question in waiting)

    def press(self, press: Press) -> str | None:
        """A button of a question's card; None when it is none of ours. Returns the words for who pressed."""
        if not press.choice.startswith("qu:"):
            return None
        language = press.sender.language
        for waiting in self._open.values():
            for question in waiting:
                said = question.choices.get(press.choice)
                if said is None:
                    continue
                if question.sender != press.sender.id:
                    return text("approval.not_you", language)
                if question.heard.full():
                    return text("approval.late", language)
                question.heard.put_nowait(said)
                return ""
        return text("approval.gone", language)

    async def _put(
        self, channel: Channel, ref: ReplyRef, mine: _Open, words: str, choices: Sequence[str]
    ) -> None:
        id = f"q{self._new_id()}"
        own = replace(ref, id=id)
        shown = [Choice(f"qu:{id}:{n}", choice) for n, choice in enumerate(choices)]
        mine.choices = {choice.id: choice.label for choice in shown}
        async with asyncio.timeout(_POST_DEADLINE):
            message = await channel.ask(own, words, shown)
        mine.card = (own, message) if message and shown else None

    async def _heard(self, channel: Channel, mine: _Open, words: str) -> str:
        """The next answer; the card's buttons go."""
        said = await mine.heard.get()
        mine.choices = {}
        if mine.card is not None:
            (own, message), mine.card = mine.card, None
            try:
                async with asyncio.timeout(_POST_DEADLINE):
                    await channel.settle(own, message, f"{words}\n\n→ {said[:200]}")
            except (SendError, TimeoutError) as error:
                log.info("the answer to a question was not shown: %s", error)
        return said


def _choices(schema: Mapping[str, Any]) -> list[str]:
    if schema.get("type") == "boolean":
        return ["yes", "no"]
    of = schema.get("items") if schema.get("type") == "array" else schema
    of = of if isinstance(of, dict) else {}
    options = [str(option) for option in of.get("enum") or ()]
    named = [*(of.get("oneOf") or ()), *(of.get("anyOf") or ())]
    options += [str(o["const"]) for o in named if isinstance(o, dict) and "const" in o]
    return options[:20]


def _wording(
    name: str, schema: Mapping[str, Any], required: bool, number: int, count: int, language: str
) -> str:
    label = str(schema.get("title") or name)
    about = str(schema.get("description") or "")[:300]
    default = schema.get("default")
    parts = [text("question.field", language, number=number, count=count, label=label, about=about).strip()]
    if default is not None:
        parts.append(text("question.default", language, default=default))
    elif not required:
        parts.append(text("question.optional", language))
    return " ".join(parts)


def read_value(said: str, schema: Mapping[str, Any], *, required: bool) -> tuple[bool, Any]:
    """(understood, value) of what a person wrote for a field; the value None means "left out". Pure."""
    if said in ("-", "—", "–"):
        default = schema.get("default")
        return (default is not None or not required), default
    kind = schema.get("type")
    if kind == "boolean":
        return (True, True) if said.lower() in _YES | {"true"} else (said.lower() in _NO | {"false"}, False)
    if kind in ("integer", "number"):
        try:
            number = int(said) if kind == "integer" else float(said)
        except ValueError:
            return False, None
        low, high = schema.get("minimum", number), schema.get("maximum", number)
        return low <= number <= high, number
    options = _choices(schema)
    if options and kind != "array":  # several of them, separated by commas, are checked by whoever asks
        found = [option for option in options if option.lower() == said.lower()]
        return bool(found), found[0] if found else None
    short, long = int(schema.get("minLength", 0)), int(schema.get("maxLength", 10_000))
    return short <= len(said) <= long and bool(said or not required), said
