"""Cutting styled text into messages that Telegram takes.

A message holds 1 to 4096 UTF-16 units (Bot API, sendMessage, "after entities parsing") and about 100
entities (undocumented; the server drops the others). Blanks at its ends are removed by the server, so a cut
is put where that loses nothing: a line end that the border between two messages stands for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from channels.telegram.styled import PLAIN, Entity, Run, Style, is_empty, spans
from channels.text import good_cut, reach

MAX_TEXT = 4096
MAX_ENTITIES = 100


def split(
    runs: Sequence[Run], limit: int = MAX_TEXT, max_entities: int = MAX_ENTITIES
) -> list[tuple[str, list[Entity]]]:
    """Pieces (text, entities) of at most `limit` UTF-16 units. Entities are closed and opened again at a cut.

    Raises ValueError for a limit below 2, which could not hold an emoji.
    """
    if limit < 2:
        raise ValueError(f"a limit of {limit} UTF-16 units cannot hold every character; use a larger one")
    page = _Text(runs)
    pieces = []
    start = page.skip_blanks(0)
    while start < len(page.text):
        end = page.cut(start, reach(page.text, start, limit, "utf16"))
        stop = page.without_trailing_blanks(start, end)
        found = spans(page.between(start, stop))
        if len(found) > max_entities:
            # The first entity that is too many begins the next message, or the one after a better cut.
            end = page.cut(start, max(start + 1, found[max_entities].start + start))
            stop = page.without_trailing_blanks(start, end)
            found = spans(page.between(start, stop))[:max_entities]
        text = page.text[start:stop]
        if not is_empty(text):
            pieces.append((text, [span.entity for span in found]))
        start = page.skip_blanks(end)
    return pieces


class _Text:
    """The whole text with its runs, addressed by character."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = [run for run in runs if run[0]]
        self.text = "".join(text for text, _ in self.runs)
        self.starts: list[int] = []
        at = 0
        for text, _ in self.runs:
            self.starts.append(at)
            at += len(text)

    def style(self, at: int) -> Style:
        return self.runs[bisect_right(self.starts, at) - 1][1] if at < len(self.text) else PLAIN

    def between(self, start: int, end: int) -> list[Run]:
        found = []
        index = bisect_right(self.starts, start) - 1
        while 0 <= index < len(self.runs) and self.starts[index] < end:
            text, style = self.runs[index]
            begin = self.starts[index]
            found.append((text[max(0, start - begin) : end - begin], style))
            index += 1
        return found

    def cut(self, start: int, end: int) -> int:
        """A good place to end a message that may reach up to `end`."""
        if end >= len(self.text):
            return len(self.text)
        block = self.style(end - 1).pre
        if not block or self.style(end).pre != block:
            return good_cut(self.text, start, end)
        begin = self._block_start(end - 1, block)
        if begin > start and begin - start >= (end - start) // 2:
            return begin  # the code begins late in this message: it goes whole into the next one
        cut = good_cut(self.text, start, end)
        if self.text[cut - 1] == "\n":
            return cut
        # Blanks inside code count: they go to the next message, which begins with its code.
        while cut > start + 1 and self.text[cut - 1] == " ":
            cut -= 1
        return cut

    def _block_start(self, at: int, block: int) -> int:
        index = bisect_right(self.starts, at) - 1
        while index > 0 and self.runs[index - 1][1].pre == block:
            index -= 1
        return self.starts[index]

    def skip_blanks(self, at: int) -> int:
        """Where the next message begins: after blanks, but with the indent of code."""
        begin = at
        while begin < len(self.text) and self.text[begin] in " \n":
            begin += 1
        if begin < len(self.text) and self.style(begin).pre:
            block = self.style(begin).pre
            while begin > at and self.text[begin - 1] == " " and self.style(begin - 1).pre == block:
                begin -= 1
        return begin

    def without_trailing_blanks(self, start: int, end: int) -> int:
        while end > start and self.text[end - 1] in " \n":
            end -= 1
        return end
