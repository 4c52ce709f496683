"""Where the commands of the house write: plain lines and tables in the person's language, secrets masked."""

from __future__ import annotations

import io
import json
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from agent.tools.masking import Masker
from bridge.mcp_admin import masked
from bridge.texts import text
from bridge.texts_cli import terminal_language

#: What others wrote must not steer the terminal.
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_WIDEST = 60


class Terminal:
    """`chosen`: the language asked for, None for that of the locale."""

    def __init__(self, chosen: str | None, environ: Mapping[str, str], masker: Masker) -> None:
        self.language = terminal_language(environ, chosen)
        self.masker = masker
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # people have names that not every terminal can show
                stream.reconfigure(errors="backslashreplace")

    def can_show(self, characters: str) -> bool:
        try:
            characters.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:
            return False
        return True

    def text(self, key: str, /, **values: object) -> str:
        return text(key, self.language, **values)

    def clean(self, words: str) -> str:
        return _CONTROL.sub(" ", self.masker.mask(words))

    def raw(self, words: str) -> None:
        sys.stdout.write(self.clean(words))
        sys.stdout.flush()

    def say(self, key: str, /, **values: object) -> None:
        self.raw(self.text(key, **values) + "\n")

    def complain(self, words: str) -> None:
        sys.stderr.write(self.clean(words) + "\n")
        sys.stderr.flush()

    def masked(self, value: Any) -> Any:
        return masked(value, self.masker)

    def json(self, value: Any) -> None:
        sys.stdout.write(json.dumps(self.masked(value), ensure_ascii=False, indent=2) + "\n")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
        """Columns as wide as what stands in them; `empty` is the text for no rows."""
        if not rows:
            self.say(empty)
            return
        lines = [[self._cell(cell) for cell in row] for row in (head, *rows)]
        # The last column may be a key to copy, so it is never cut.
        lines = [[*(_short(cell) for cell in line[:-1]), line[-1]] for line in lines]
        widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            cells = (cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True))
            sys.stdout.write("  ".join(cells).rstrip() + "\n")
        sys.stdout.flush()

    def _cell(self, value: object) -> str:
        if isinstance(value, int | float):  # neither masked nor cleaned: there may be 100,000 rows
            return str(value)
        return " ".join(self.clean(str(value)).split())

    def agreed(self) -> bool:
        """Whether the person says yes; blocking. The end of the input is a no."""
        sys.stdout.write(self.text("cli.sure"))
        sys.stdout.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes", "是", "好")


def _short(cell: str) -> str:
    return cell if len(cell) <= _WIDEST else f"{cell[: _WIDEST - 1]}…"


def _width(cell: str) -> int:
    """How many places of a terminal it takes: Chinese characters take two."""
    if cell.isascii():
        return len(cell)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in cell)
