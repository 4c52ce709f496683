"""Questions as template cards with buttons (按钮交互型), and what is noted of them until they are settled."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from channels.base import ChannelState, Choice
from channels.wechat.plain import plain

#: What a card shows whole, in characters, and how many buttons it has (WW 90236, 按钮交互型).
_TITLE, _BODY, MOST_BUTTONS = 36, 160, 6
_STYLES = {"primary": 1, "danger": 2}


def card_texts(question: str) -> tuple[str, str] | None:
    """Title and body of a card that shows the whole question, or None when a card would cut it."""
    title, _, body = plain(question).strip().partition("\n")
    body = body.strip()
    return (title, body) if 0 < len(title) <= _TITLE and len(body) <= _BODY else None


def card(task: str, title: str, body: str, choices: Sequence[Choice]) -> dict[str, Any]:
    """A template card with one button a choice."""
    buttons = [
        {"text": choice.label, "style": _STYLES.get(choice.style, 4), "key": choice.id} for choice in choices
    ]
    made = {"card_type": "button_interaction", "main_title": {"title": title}, "task_id": task}
    return {**made, **({"sub_title_text": body} if body else {}), "button_list": buttons}


def task_id(call: str, choices: Sequence[Choice]) -> str:
    """The card's task_id, which no other card of the application may have; the same for another try."""
    ids = "\n".join((call, *(choice.id for choice in choices)))
    return "q" + hashlib.sha256(ids.encode()).hexdigest()[:31]


#: A response code is good once and for 72 hours (WW 94888); we stop a little earlier.
_LIFE = 71 * 3600.0
_LOG = "cards"


class Cards:
    """Each card's note: `person`, `code` (the newest response code, "" none), `at` (when that came), `done`.

    At most the newest 500 are seen; they are forgotten when their codes are.
    """

    def __init__(self, state: ChannelState, clock: Callable[[], float]) -> None:
        self._state = state
        self._clock = clock

    async def get(self, task: str) -> dict[str, Any] | None:
        return next((entry.value for entry in await self._state.read(_LOG) if entry.id == task), None)

    async def put(self, task: str, person: str, code: str) -> None:
        """Note a card that was shown or pressed. One that is settled stays so."""
        done = False
        for entry in await self._state.read(_LOG):
            if entry.id == task:
                done = bool(entry.value["done"])
            elif self._clock() - float(entry.value["at"]) > _LIFE:
                await self._state.remove(_LOG, entry.id)
        note = {"person": person, "code": code, "at": self._clock(), "done": done}
        await self._state.append(_LOG, task, note)

    async def settled(self, task: str, note: dict[str, Any]) -> None:
        await self._state.append(_LOG, task, {**note, "done": True})

    def code(self, note: dict[str, Any]) -> str:
        """The response code with which the card can still be changed, or ""."""
        return str(note["code"]) if self._clock() - float(note["at"]) < _LIFE else ""
