"""Questions as cards with buttons (101032), and what becomes of them.

A card can be changed only in the five seconds after somebody pressed one of its buttons, and only once; there
is no button that cannot be pressed, so a decided question shows a single grey one that does nothing.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from channels.base import ChannelState, Choice
from channels.wecom_bot.api import Data

_LOG = "cards"
_MOST = 500
MOST_BUTTONS = 6
#: Advice of the platform, in characters; longer text is cut by its clients.
MOST_TITLE, MOST_TEXT, _MOST_LABEL = 26, 112, 10
_STYLES = {"primary": 1, "": 2, "danger": 3}
_GREY = 4
#: The key of the button of a decided question.
DONE = "causeway-done"
_MARKS = re.compile(r"[*_`#>~]+")


@dataclass(slots=True)
class Card:
    """A question in a chat. `outcome` is set once it is decided."""

    task: str
    title: str
    text: str
    choices: tuple[tuple[str, str, str], ...]
    language: str
    outcome: str = ""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    pressing: int = 0
    marked: bool = False

    def label(self, choice: str) -> str:
        return next((label for id, label, _ in self.choices if id == choice), choice)


def new_card(title: str, question: str, choices: Sequence[Choice], language: str) -> Card:
    """The id of a card must never have been used by this bot; letters, digits and `_-@`."""
    if len(choices) > MOST_BUTTONS:
        raise ValueError(f"a card has room for {MOST_BUTTONS} buttons, not for {len(choices)}")
    return Card(
        f"q{secrets.token_hex(16)}",
        title,
        plain(question),
        tuple((choice.id, choice.label, choice.style) for choice in choices),
        language,
    )


def plain(text: str) -> str:
    """Cards show no Markdown."""
    return _MARKS.sub("", text).strip()


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def asked(card: Card, note: str = "") -> Data:
    """The card with its buttons."""
    buttons = [
        {"text": cut(label, _MOST_LABEL), "style": _STYLES.get(style, 2), "key": id}
        for id, label, style in card.choices
    ]
    return _card(card, note, buttons)


def decided(card: Card, outcome: str, label: str) -> Data:
    """The card with what came of it."""
    button = {"text": cut(f"✓ {label}" if label else "✓", _MOST_LABEL), "style": _GREY, "key": DONE}
    return _card(card, outcome, [button])


def _card(card: Card, note: str, buttons: list[dict[str, object]]) -> Data:
    shown: Data = {
        "card_type": "button_interaction",
        "main_title": {"title": cut(card.title, MOST_TITLE)},
        "button_list": buttons,
        "task_id": card.task,
    }
    text = f"{cut(plain(note), MOST_TEXT)}\n{card.text}" if note else card.text
    shown["sub_title_text"] = cut(text, MOST_TEXT)
    return shown


def update(card: Data, only: str = "") -> Data:
    """The answer to a pressed button; `only`: the one person of a group who is to see it."""
    answer: Data = {"response_type": "update_template_card", "template_card": card}
    return answer | {"userids": [only]} if only else answer


class Cards:
    """The open questions; they outlive a restart, so that a press later on still finds its card."""

    def __init__(self, state: ChannelState) -> None:
        self._state = state
        self._all: dict[str, Card] = {}
        self._seq = 0

    async def load(self) -> None:
        self._all, self._seq = {}, 0
        await self.sync()

    async def sync(self) -> None:
        """Take up the questions that were noted since the last look, by whatever process."""
        for entry in await self._state.read(_LOG, self._seq, _MOST):
            self._seq = max(self._seq, entry.seq)
            value = entry.value
            choices = tuple((str(i), str(label), str(style)) for i, label, style in value["choices"])
            card = Card(entry.id, value["title"], value["text"], choices, value["language"])
            self._all.setdefault(entry.id, card)

    def get(self, task: str) -> Card | None:
        return self._all.get(task)

    async def add(self, card: Card) -> None:
        self._all[card.task] = card
        kept = {
            "title": card.title,
            "text": card.text,
            "choices": [list(choice) for choice in card.choices],
            "language": card.language,
        }
        await self._state.append(_LOG, card.task, kept)
        while len(self._all) > _MOST:
            await self.drop(next(iter(self._all)))

    async def drop(self, task: str) -> None:
        if self._all.pop(task, None) is not None:
            await self._state.remove(_LOG, task)
