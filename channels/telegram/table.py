"""Tables for a platform without tables: a monospaced block when it fits a phone, else a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from channels.telegram.styled import PLAIN, Run, Style
from channels.text import display_width

Align: TypeAlias = Literal["left", "right", "center"]
Cell: TypeAlias = list[Run]

#: Widest block, in columns of a monospaced font, that a phone shows without wrapping lines.
MAX_COLUMNS = 40


@dataclass(frozen=True, slots=True)
class Table:
    head: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    align: Sequence[Align]


def plain(cell: Cell) -> str:
    return "".join(text for text, _ in cell)


def as_block(table: Table) -> str | None:
    """The table in aligned columns, or None when it is too wide or holds a link that a block would kill."""
    grid = [[plain(cell).replace("\n", " ") for cell in row] for row in (table.head, *table.rows)]
    if any(style.link for row in table.rows for cell in row for _, style in cell):
        return None
    widths = [max(display_width(row[i]) for row in grid) for i in range(len(table.head))]
    if sum(widths) + 3 * (len(widths) - 1) > MAX_COLUMNS:
        return None
    lines = [
        " │ ".join(_pad(text, widths[i], table.align[i]) for i, text in enumerate(row)).rstrip()
        for row in grid
    ]
    lines.insert(1, "─┼─".join("─" * width for width in widths))
    return "\n".join(lines)


def _pad(text: str, width: int, align: Align) -> str:
    room = width - display_width(text)
    left = room if align == "right" else room // 2 if align == "center" else 0
    return " " * left + text + " " * (room - left)


def as_list(table: Table, base: Style = PLAIN) -> list[list[Run]]:
    """The table as lines of runs. An empty list stands for an empty line.

    Two columns: one line a row. More: the row's first cell as a title, then one line a cell.
    """
    bold = base._replace(bold=True)
    if len(table.head) <= 2 or not table.rows:
        lines = [_joined([_with(cell, bold=True) for cell in table.head], base)]
        lines += [[("• ", base), *_joined(list(row), base)] for row in table.rows]
        return [line for line in lines if line]
    lines = []
    for number, row in enumerate(table.rows):
        if number:
            lines.append([])
        title = [*_label(table.head[0], bold), *_with(row[0], bold=True)]
        lines.append(title or [("•", base)])
        for head, cell in zip(table.head[1:], row[1:], strict=True):
            if plain(cell):
                lines.append([("• ", base), *_label(head, base), *cell])
    return lines


def _joined(cells: Sequence[Cell], base: Style) -> list[Run]:
    line: list[Run] = []
    for cell in cells:
        if plain(cell):
            line += [(" — ", base), *cell] if line else cell
    return line


def _label(head: Cell, style: Style) -> list[Run]:
    text = plain(head)
    return [(f"{text}: ", style)] if text else []


def _with(cell: Cell, *, bold: bool) -> Cell:
    return [(text, style._replace(bold=bold)) for text, style in cell]
