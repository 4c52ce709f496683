"""Whether a message means the bot, and its text without the bot's name.

Offsets and lengths of entities count UTF-16 code units (Bot API, MessageEntity).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from channels.base import Cue

Data: TypeAlias = Mapping[str, Any]

_BLANK = " ".encode("utf-16-le")


@dataclass(frozen=True, slots=True)
class Said:
    """`text` as the agent reads it; `cue`: "command", "mention" or "". `elsewhere`: another bot's command."""

    text: str
    cue: Cue = ""
    elsewhere: bool = False


def read_text(message: Data, bot_id: int, username: str) -> Said:
    """The text or caption of a message."""
    name = "text" if "text" in message else "caption"
    text = str(message.get(name, ""))
    entities = message.get("entities" if name == "text" else "caption_entities") or ()
    if not entities:
        return Said(text.strip())
    reader = _Reader(bot_id, username)
    units = text.encode("utf-16-le", "surrogatepass")
    # From the last to the first, so that earlier offsets stay true.
    for entity in sorted(entities, key=lambda e: int(e["offset"]), reverse=True):
        start, end = 2 * entity["offset"], 2 * (entity["offset"] + entity["length"])
        word = units[start:end].decode("utf-16-le", "replace")
        kept = reader.kept(entity, word)
        if not kept and units[start - 2 : start] == units[end : end + 2] == _BLANK:
            end += 2
        if kept != word:
            units = units[:start] + kept.encode("utf-16-le", "surrogatepass") + units[end:]
    shown = units.decode("utf-16-le", "replace")
    if reader.cue:
        shown = re.sub(r"^[\s,:，：、]+", "", shown)
    # The bot's name alone is a message too: somebody calls it.
    return Said(shown.strip() or text.strip(), reader.cue, reader.elsewhere)


class _Reader:
    def __init__(self, bot_id: int, username: str) -> None:
        self.bot_id = bot_id
        self.username = username.casefold()
        self.cue: Cue = ""
        self.elsewhere = False

    def kept(self, entity: Data, word: str) -> str:
        """What stays in the text in place of an entity's word."""
        kind = entity["type"]
        if kind == "mention":
            return word if word.casefold() != f"@{self.username}" else self._mentioned()
        if kind == "text_mention":
            return word if (entity.get("user") or {}).get("id") != self.bot_id else self._mentioned()
        if kind == "bot_command":
            return self._command(word, at_start=entity["offset"] == 0)
        if kind == "text_link" and entity.get("url") and entity["url"].rstrip("/") != word.rstrip("/"):
            return f"{word} ({entity['url']})"
        return word

    def _mentioned(self, kept: str = "") -> str:
        self.cue = self.cue or "mention"
        return kept

    def _command(self, word: str, *, at_start: bool) -> str:
        """`/cmd@bot`: ours without the name; another bot's makes the message none of our business."""
        command, _, name = word.partition("@")
        if name and name.casefold() != self.username:
            self.elsewhere = self.elsewhere or at_start
            return word
        if at_start:
            self.cue = "command"
            return command
        return self._mentioned(command) if name else word
