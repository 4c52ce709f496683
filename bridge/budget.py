"""What a conversation's next request costs, part by part: the tokens of the prompt, the skills, each tool and
the history. Estimates (see `agent.tools.stats.text_tokens`), meant for seeing what is large."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agent.history import Assistant, Entry, HistoryStore, ToolOutput, User, window
from agent.prompt import READ, SystemPrompt
from agent.skills.formatter import section
from agent.skills.manager import SkillManager
from agent.tools.base import Caller
from agent.tools.builtin.skills import NAME as FIND_SKILLS
from agent.tools.manager import ToolManager
from agent.tools.retrieval import Injected, Retrieval
from agent.tools.stats import definition_tokens, text_tokens

Kind = Literal["system", "skills", "tools", "history"]
#: Tokens around each message, and of a picture (both vendors: between 85 and 1,600, by its size).
_AROUND, _PICTURE = 4, 1000
#: The run that has written nothing yet.
_NEXT = "\0"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the request. `name` is the tool's, else empty."""

    kind: Kind
    name: str
    tokens: int


def parts(prompt: str, skills: str, tools: Mapping[str, int], entries: Sequence[Entry]) -> tuple[Part, ...]:
    """The parts of a request, dearest tool first. `prompt` is the whole system prompt and `skills` what of
    it lists the skills; `tools` are the tokens of each definition, `entries` what of the history is sent."""
    listed = text_tokens(skills)
    found = [Part("system", "", max(text_tokens(prompt) - listed, 0)), Part("skills", "", listed)]
    dearest = sorted(tools.items(), key=lambda one: (-one[1], one[0]))
    found += [Part("tools", name, tokens) for name, tokens in dearest]
    return (*found, Part("history", "", sum(map(entry_tokens, entries))))


def entry_tokens(entry: Entry) -> int:
    """About how many tokens an entry of the history costs; 0 for one that models are not shown."""
    match entry:
        case User():
            return _AROUND + text_tokens(entry.text) + _PICTURE * len(entry.images)
        case Assistant():
            calls = sum(_AROUND + text_tokens(call.name) + _json(call.arguments) for call in entry.calls)
            return _AROUND + text_tokens(entry.text) + calls + (_json(entry.opaque) if entry.opaque else 0)
        case ToolOutput():
            return _AROUND + text_tokens(entry.text) + _PICTURE * len(entry.images)
        case _:
            return 0


def sums(found: Sequence[Part]) -> dict[Kind, int]:
    """The tokens of each kind, all four named."""
    total: Counter[Kind] = Counter({"system": 0, "skills": 0, "tools": 0, "history": 0})
    for part in found:
        total[part.kind] += part.tokens
    return dict(total)


async def measure(
    session: str,
    caller: Caller,
    *,
    tools: ToolManager,
    prompt: SystemPrompt,
    skills: SkillManager,
    history: HistoryStore,
    retrieval: Retrieval,
    longest: int,
) -> tuple[Part, ...]:
    """The parts of the next request that this caller makes in a session, chosen as its agent chooses them.
    `longest` is how many entries of the history are sent (`sessions.history_messages`)."""
    tail = await history.tail(session, longest)
    view = window(tail.entries, _NEXT, longest, tail.before)
    catalog, current = tools.catalog, skills.current
    offered = tools.offered(catalog, caller, session)
    names = {tool.name for tool in offered}
    made = prompt.made(names, in_group=caller.chat_kind != "direct")
    if not made.left_out:
        offered = tuple(tool for tool in offered if tool.name != FIND_SKILLS)
    chosen = (await retrieval.choose(catalog, offered, view, _NEXT, Injected())).tools

    def count() -> tuple[Part, ...]:
        listed = section(current, READ, FIND_SKILLS if FIND_SKILLS in names else "").text.strip()
        known = {row.name: row.tokens for row in tools.usage()}
        costs = {
            tool.name: (known.get(tool.name) if tool is catalog.get(tool.name) else None)
            or definition_tokens(tool)
            for tool in chosen
        }
        return parts(made.text, listed if READ in names else "", costs, view)

    return await asyncio.to_thread(count)


def _json(value: object) -> int:
    return text_tokens(json.dumps(value, ensure_ascii=False, default=str))
