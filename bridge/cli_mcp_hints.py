"""What makes a model choose wrong tools, or makes tools dear: found in names and descriptions. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from agent.tools.mcp.schema import LONGEST_DESCRIPTION
from agent.tools.retrieval.confusable import DEAR

#: Longer descriptions are told: they are paid for in every request to the model.
LONG_DESCRIPTION = 1_000
#: With more tools than about this, models begin to choose the wrong one.
MANY_TOOLS = 15
_MOST_PAIRS = 10
_WHEN = re.compile(
    r"\b(?:use[ds]?|useful|using|when|whenever|if|instead|before|after|prefer|only|for example|e\.g)\b"
    r"|用于|用来|适用|场景|当|如果|需要|请勿|不要|仅",
    re.IGNORECASE,
)
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+|[^\W\d_A-Za-z]+")


@dataclass(frozen=True, slots=True)
class Definition:
    """A tool as a model gets it, and who offers it. `name` is the server's own name for it; `tokens` is what
    its definition costs in each request, about."""

    server: str
    name: str
    description: str
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Hint:
    """Something to mend. `tools` are `server/name`, or the bare names when all are of one server;
    of those that are confused, pairs."""

    kind: str
    text: str
    tools: tuple[str, ...]


def hints(tools: Sequence[Definition]) -> list[Hint]:
    """What to mend in these tools, taken together."""
    several = len({tool.server for tool in tools}) > 1

    def label(tool: Definition) -> str:
        return f"{tool.server}/{tool.name}" if several else tool.name

    found: list[Hint] = []

    def about(kind: str, text: str, those: list[Definition]) -> None:
        if those:
            found.append(Hint(kind, text, tuple(label(tool) for tool in those)))

    blank = [tool for tool in tools if not tool.description.strip()]
    vague = [tool for tool in tools if tool.description.strip() and not _WHEN.search(tool.description)]
    long = [tool for tool in tools if len(tool.description) > LONG_DESCRIPTION]
    about("no-description", "no description: the model has only the name to go by", blank)
    about("no-when", "the description does not say when to use it", vague)
    cut = f"{LONG_DESCRIPTION:,} characters (over {LONGEST_DESCRIPTION:,} it is cut)"
    about("long-description", f"the description has more than {cut}", long)
    dear = [tool for tool in tools if tool.tokens >= DEAR]
    about("dear", f"the definition costs {DEAR} tokens or more in every request", dear)
    if pairs := _confusable(tools):
        text = "easily taken for each other; let each description name the other tool"
        found.append(Hint("confusable", text, tuple(f"{label(a)} ~ {label(b)}" for a, b in pairs)))
    if len(tools) > MANY_TOOLS:
        text = (
            f"{len(tools)} tools: above about {MANY_TOOLS} models begin to choose wrong ones; leave out what "
            "nobody needs ('tools' or 'excludeTools' in mcp.json)"
        )
        found.append(Hint("many-tools", text, ()))
    return found


def _confusable(tools: Sequence[Definition]) -> list[tuple[Definition, Definition]]:
    """Pairs whose names are the same words, or, within one server, the same words and one more; unless a
    description tells them apart by naming the other tool."""
    by_words: dict[frozenset[str], list[Definition]] = defaultdict(list)
    for tool in tools:
        by_words[_words(tool.name)].append(tool)
    pairs: list[tuple[Definition, Definition]] = []
    for words, same in by_words.items():
        pairs += [(one, other) for place, one in enumerate(same) for other in same[place + 1 :]]
        for word in words:
            for other in by_words.get(words - {word}, ()) if len(words) > 1 else ():
                pairs += [(other, tool) for tool in same if tool.server == other.server]
    return [(one, other) for one, other in pairs if not _told_apart(one, other)][:_MOST_PAIRS]


def _told_apart(one: Definition, other: Definition) -> bool:
    if one.name == other.name:
        return False
    return _names(one.description, other.name) or _names(other.description, one.name)


def _names(description: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", description) is not None


def _words(name: str) -> frozenset[str]:
    words = (word.lower() for word in _WORD.findall(name))
    return frozenset(word[:-1] if len(word) > 3 and word.endswith("s") else word for word in words)
