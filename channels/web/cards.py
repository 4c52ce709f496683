"""Questions with buttons. A card is an entry of the page's log like any other, so it outlives reloads and
restarts, and all open pages show the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from channels.base import ChannelState, Choice
from channels.web.stream import HISTORY


def card(place: dict[str, Any], question: str, choices: Sequence[Choice], at: float) -> dict[str, Any]:
    """The entry of an open card. `place` says in which reply it stands."""
    return {**place, "text": question, "at": at, "choices": [asdict(choice) for choice in choices]}


def settled(value: dict[str, Any], outcome: str) -> dict[str, Any]:
    """The same card with its outcome. The choices stay known, so that a late press gets an answer."""
    return {**value, "outcome": outcome, "choices": value.get("choices", [])}


async def find(state: ChannelState, chat: str, id: str) -> dict[str, Any] | None:
    """A card of a chat, if it is among the entries that pages show."""
    entries = await state.read(f"chat:{chat}", 0, HISTORY)
    return next((entry.value for entry in entries if entry.id == id and "choices" in entry.value), None)
