"""Buttons under a question, and the command menu, as the Bot API writes them down."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from channels.base import Choice, MenuEntry
from channels.text import display_width

Data: TypeAlias = dict[str, Any]

#: Columns of text that a row of buttons shows on a phone without cutting labels.
ROW_COLUMNS = 36
ROW_BUTTONS = 8
MAX_BUTTONS = 100
MAX_DATA = 64
MAX_LABEL = 64
MAX_COMMANDS, MAX_ABOUT = 100, 256
_NAME = re.compile(r"[a-z0-9_]{1,32}")
_STYLES = {"primary": "primary", "danger": "danger"}


def keyboard(choices: Sequence[Choice]) -> Data:
    """An inline keyboard: short labels side by side. Raises ValueError for what no keyboard can hold."""
    if len(choices) > MAX_BUTTONS:
        raise ValueError(f"{len(choices)} choices; a keyboard holds {MAX_BUTTONS}")
    rows: list[list[Data]] = []
    room = 0
    for choice in choices:
        if not 1 <= len(choice.id.encode()) <= MAX_DATA:
            raise ValueError(f"the choice {choice.label!r} has an id that is not 1 to {MAX_DATA} bytes long")
        label = choice.label if len(choice.label) <= MAX_LABEL else choice.label[: MAX_LABEL - 1] + "…"
        button = {"text": label or choice.id, "callback_data": choice.id}
        if choice.style in _STYLES:  # Bot API 9.4; older servers ignore it
            button["style"] = _STYLES[choice.style]
        width = display_width(label) + 4
        if rows and width <= room and len(rows[-1]) < ROW_BUTTONS:
            rows[-1].append(button)
            room -= width
        else:
            rows.append([button])
            room = ROW_COLUMNS - width
    return {"inline_keyboard": rows}


def commands(entries: Sequence[MenuEntry], language: str) -> list[Data]:
    """The entries that a menu can show, in order, described in `language` ("en" or "zh")."""
    shown = []
    for entry in entries:
        about = (entry.about.get(language) or entry.about.get("en") or entry.name).strip()
        if _NAME.fullmatch(entry.name) and about:
            shown.append({"command": entry.name, "description": about[:MAX_ABOUT]})
    return shown[:MAX_COMMANDS]
