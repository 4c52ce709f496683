"""Parsed blocks written down: as standard Markdown, or as Slack's mrkdwn.

Nothing that a model writes can ping: `<` and `>` are escaped in both dialects (so `<!channel>` and `<@U…>`
are plain words), and `@channel`, `@here`, `@everyone` get a zero-width space. Code stays byte for byte; in
standard Markdown, where Slack's treatment of tokens inside code is not documented, `pings` tells a caller to
take mrkdwn instead, whose escapes hold in code as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from channels.slack.format import Atom, Block, Mark, is_punctuation, visible
from channels.text import display_width

Dialect: TypeAlias = Literal["markdown", "mrkdwn"]

_ZWSP = "\u200b"
_HAIR = "\u200a"  # a space to CommonMark, hardly seen by people
_RULE = "──────────"
_BULLETS = ("•", "◦", "▪")
_BROADCAST = re.compile(r"(?<![\w/.@])@(?=(?:channel|here|everyone|group)\b)", re.IGNORECASE)
_LIVE = re.compile(r"<(?:!(?:channel|here|everyone|group|subteam\^)|@[A-Z0-9])", re.IGNORECASE)
#: Words at the start of a line that Markdown would take for the start of a block.
_STARTS = re.compile(
    r"(?P<lead>#{1,6}(?=\s|$)|[-+*](?=\s|$)|[-=_*]{3,}\s*$|`{3}|~{3})|(?P<number>\d{1,9})[.)](?=\s|$)"
)
_TASK = re.compile(r"\[([ xX])\](?=\s|$)")
_CLOSING = re.compile(r"^ {0,3}(`{3,})[ \t]*$", re.MULTILINE)
#: Literal characters that a later one may still turn into formatting.
_RISKY = re.compile(r"[*_~](?!\s)|[`\[\]|!]")


@dataclass(frozen=True, slots=True)
class Written:
    """A text in one dialect. The first `steady` characters stay when the source only grows; `close` ends a
    fence that the source has not ended yet, and is not part of `text`."""

    text: str
    steady: int
    close: str = ""


def write(blocks: Sequence[Block], dialect: Dialect, *, hide: bool = True) -> Written:
    """The blocks as one text. `hide`: items whose marker stands in an earlier message do not indent it."""
    if not blocks:
        return Written("", 0)
    hidden = frozenset(m.n for m in blocks[0].lead if hide and m.marker != ">" and not m.first)
    text = ""
    before: tuple[Mark, ...] = ()
    steady, close = 0, ""
    for index, block in enumerate(blocks):
        lead = tuple(mark for mark in block.lead if mark.n not in hidden)
        if index:
            text += _between(before, lead, block.gap)
        before = lead
        body = _Body(dialect, lead)
        shown = body.write(block)
        if index == len(blocks) - 1:
            steady = len(text) + body.steady(block, shown)
            close = body.close(block)
        text += shown
    return Written(text, steady, close)


def pings(blocks: Sequence[Block]) -> bool:
    """Whether code in these blocks holds what Slack might take for a mention."""
    for block in blocks:
        lines = [block.atoms, *(cell for row in block.rows for cell in row)]
        code = (atom.text for line in lines for atom in line if atom.kind == "code")
        if any(map(_LIVE.search, (block.code, *code))):
            return True
    return False


def _between(before: tuple[Mark, ...], lead: tuple[Mark, ...], gap: int) -> str:
    if gap < 2:
        return "\n"
    common = []
    for left, right in zip(before, lead, strict=False):
        if left.n != right.n:
            break
        common.append(right._replace(first=False))
    quoted = any(mark.marker == ">" for mark in common)
    return "\n" + (_prefixes(tuple(common))[1].rstrip() if quoted else "") + "\n"


def _prefixes(lead: tuple[Mark, ...]) -> tuple[str, str]:
    first = rest = ""
    for mark in lead:
        width = 2 if mark.marker == ">" else len(mark.marker) + 1
        first += f"{mark.marker} " if mark.first or mark.marker == ">" else " " * width
        rest += "> " if mark.marker == ">" else " " * width
    return first, rest


class _Body:
    """Writes one block behind its lead."""

    def __init__(self, dialect: Dialect, lead: tuple[Mark, ...]) -> None:
        self.markdown = dialect == "markdown"
        self.first, self.rest = _prefixes(lead if self.markdown else _plain_lead(lead))

    def write(self, block: Block) -> str:
        if block.kind == "code":
            return self._code(block)
        if block.kind == "table":
            return self._lines(self._table(block))
        if block.kind == "rule":
            return self.first + ("---" if self.markdown else _RULE)
        return self._lines(self._text(block))

    def _text(self, block: Block) -> str:
        if not self.markdown:
            atoms = block.atoms
            if block.kind == "heading":
                atoms = (Atom("open", "strong"), *atoms, Atom("close", "strong"))
            return mrkdwn_line(_boxes(atoms) if self.first.strip() else atoms)
        line = markdown_line(block.atoms)
        if block.kind == "heading":
            return f"{'#' * block.level} {line}".rstrip()
        return "\n".join(_guard(part) for part in line.split("\n"))

    def _lines(self, text: str) -> str:
        first, *more = text.split("\n")
        if not first:
            return "\n".join((self.first.rstrip(), *(self.rest + line for line in more)))
        rest = (self.rest + line if line else self.rest.rstrip() for line in more)
        return "\n".join((self.first + first, *rest))

    def _code(self, block: Block) -> str:
        if self.markdown:
            body = self._lines(f"{_fence(block.code)}{block.language}\n{block.code}")
            return body if block.open else body + self._end(block)
        # A fence does not stand in a quote or a list in mrkdwn, and a language would show as code.
        marker = f"{self.first.rstrip()}\n" if self.first.strip(" >") else ""
        code = escape(block.code.replace("```", f"``{_ZWSP}`"))
        return f"{marker}```\n{code}" + ("" if block.open else self._end(block))

    def close(self, block: Block) -> str:
        return self._end(block) if block.open else ""

    def _end(self, block: Block) -> str:
        return f"\n{self.rest}{_fence(block.code)}" if self.markdown else "\n```"

    def _table(self, block: Block) -> str:
        if not self.markdown or len(block.align) > _MAX_COLUMNS:
            return f"```\n{aligned(block) if self.markdown else escape(aligned(block))}\n```"
        lines = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in block.rows]
        rule = {"right": "---:", "center": ":---:", "left": ":---"}
        lines.insert(1, "| " + " | ".join(rule.get(side, "---") for side in block.align) + " |")
        return "\n".join(lines)

    def steady(self, block: Block, text: str) -> int:
        """How many characters of `text`, which `write` gave, stay as they are when the source grows."""
        if block.kind == "code":
            if not block.open:
                return len(text)
            head, _, last = text.rpartition("\n")
            return len(head) + 1 if not last.strip("`~> ") else len(text)
        if block.kind == "rule":
            return 0
        last_line = text.rfind("\n") + 1
        if block.kind == "table":
            return last_line
        if "|" in text[last_line:] or len(text) - last_line - len(self.rest) < 4:
            return last_line  # a table's head, or the marker of a block to come
        risk = _risk(block.atoms) if self.markdown else None
        return len(text) if risk is None else max(len(self.first), min(len(text), len(self.first) + risk))


#: Columns of a Slack table; characters of a line in a table of text.
_MAX_COLUMNS = 20
_WIDEST = 120


def _plain_lead(lead: tuple[Mark, ...]) -> tuple[Mark, ...]:
    """mrkdwn has no lists: bullets are characters."""
    marks, depth = [], 0
    for mark in lead:
        if mark.marker in ("-", "*", "+"):
            mark = mark._replace(marker=_BULLETS[min(depth, 2)])
        depth += mark.marker != ">"
        marks.append(mark)
    return tuple(marks)


def _fence(code: str) -> str:
    """Longer than any line of the code that would end it (CommonMark, fenced code blocks)."""
    longest = max((len(run) for run in _CLOSING.findall(code)), default=0)
    return "`" * max(3, longest + 1)


def _risk(atoms: Sequence[Atom]) -> int | None:
    """Where in a line the first literal character stands that may yet become formatting."""
    for index, atom in enumerate(atoms):
        words = atom.source or atom.text
        if atom.kind == "text" and (found := _RISKY.search(words)):
            return len(markdown_line(atoms[:index])) + len(safe_text(words[: found.start()]))
    return None


# -- lines of standard Markdown ----------------------------------------------------------------------


def safe_text(text: str) -> str:
    """Text outside code, as both dialects need it: no token, no ping."""
    # A backslash before an angle would escape the reference that now stands for it.
    text = text.replace("\\<", "<").replace("\\>", ">")
    return _BROADCAST.sub(f"@{_ZWSP}", text).replace("<", "&lt;").replace(">", "&gt;")


def _guard(line: str) -> str:
    """A line that Markdown would take for the start of a block gets a backslash."""
    found = _STARTS.match(line)
    if found is None:
        return line
    if found["number"]:
        return f"{found['number']}\\{line[found.end('number') :]}"
    return f"\\{line}"


def _cell(atoms: Sequence[Atom]) -> str:
    return markdown_line(atoms).replace("\n", " ").replace("|", "\\|")


def markdown_line(atoms: Sequence[Atom]) -> str:
    """A line as standard Markdown. Emphasis that touches a letter across punctuation gets a hair space."""
    parts: list[str] = []
    marks: list[Atom] = []  # delimiters since the last visible character

    def flush(after: str) -> None:
        if marks:
            before = parts[-1][-1:] if parts and parts[-1] else ""
            parts.append(_delimiters(marks, before, after))
            marks.clear()

    for atom in atoms:
        if atom.kind in ("open", "close") and atom.text != "link":
            marks.append(atom)
            continue
        if atom.kind == "code":
            piece = _code_span(atom.text)
        elif atom.kind == "open":
            piece = "["
        elif atom.kind == "close":
            piece = f"]({atom.source})"
        else:
            piece = safe_text(atom.source or atom.text)
        if piece:
            flush(piece[0])
            parts.append(piece)
    flush("")
    return "".join(parts)


def _delimiters(marks: Sequence[Atom], before: str, after: str) -> str:
    run = "".join(mark.source for mark in marks)
    kinds = {mark.kind for mark in marks}
    inside, outside = (before, after) if kinds == {"close"} else (after, before)
    blocked = (len(set(run)) > 1 or is_punctuation(inside or "a")) and outside and not _apart(outside)
    if len(kinds) > 1 or not blocked:
        return run
    return run + _HAIR if kinds == {"close"} else _HAIR + run


def _apart(ch: str) -> bool:
    return ch.isspace() or is_punctuation(ch)


def _code_span(code: str) -> str:
    longest = {len(run) for run in re.findall("`+", code)}
    ticks = next("`" * n for n in range(1, len(longest) + 2) if n not in longest)
    edges = code[:1] + code[-1:]
    pad = " " if "`" in edges or (edges == "  " and code.strip()) else ""
    return f"{ticks}{pad}{code}{pad}{ticks}"


# -- lines of mrkdwn ---------------------------------------------------------------------------------

_MARKERS = {"strong": "*", "em": "_", "s": "~"}


def escape(text: str) -> str:
    """The three characters that Slack reads, once (docs.slack.dev, Formatting message text)."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _words(text: str) -> str:
    return escape(_BROADCAST.sub(f"@{_ZWSP}", text))


def mrkdwn_line(atoms: Sequence[Atom]) -> str:
    """A line as mrkdwn. Its markers count at word borders only: a zero-width space makes one where needed."""
    out = ""
    depth = dict.fromkeys(_MARKERS, 0)
    border = False  # a marker was just closed
    for atom in atoms:
        if atom.kind == "open" and atom.text == "link":
            piece = f"<{escape(atom.source)}|"
        elif atom.kind == "close" and atom.text == "link":
            piece = ">"
        elif atom.kind in ("open", "close"):
            opens = atom.kind == "open"
            depth[atom.text] += 1 if opens else -1
            if depth[atom.text] != (1 if opens else 0):
                continue  # bold in bold is bold
            if opens and out[-1:] and not _apart(out[-1]):
                out += _ZWSP
            out += _MARKERS[atom.text]
            border = not opens
            continue
        elif atom.kind == "code":
            piece = (
                f"`{escape(atom.text)}`" if "`" not in atom.text and atom.text.strip() else escape(atom.text)
            )
        else:
            piece = _words(atom.text)
        if border and piece and not _apart(piece[0]):
            out += _ZWSP
        border = False
        out += piece
    return out


def _boxes(atoms: Sequence[Atom]) -> Sequence[Atom]:
    """`[x]` at the start of a list item is a box."""
    if atoms and atoms[0].kind == "text" and (found := _TASK.match(atoms[0].text)):
        box = "☐" if found[1] == " " else "☑"
        return (Atom("text", box + atoms[0].text[found.end() :]), *atoms[1:])
    return atoms


def aligned(block: Block) -> str:
    """A table in aligned columns, for a monospaced font."""
    grid = [[_with_targets(cell) for cell in row] for row in block.rows]
    widths = [max(display_width(row[i]) for row in grid) for i in range(len(block.align))]
    if sum(widths) > _WIDEST:  # lines wrap anyway; one long cell must not fill all the others with blanks
        widths = [0] * len(widths)
    lines = [
        " │ ".join(_pad(cell, widths[i], block.align[i]) for i, cell in enumerate(row)).rstrip()
        for row in grid
    ]
    lines.insert(1, "─┼─".join("─" * (width or 3) for width in widths))
    return "\n".join(lines)


def _with_targets(cell: Sequence[Atom]) -> str:
    """A cell's words; code shows no links, so targets stand beside them."""
    words = visible(cell)
    goals = [a.source for a in cell if (a.kind, a.text) == ("close", "link") and a.source not in words]
    return " ".join((words, *(f"({goal})" for goal in goals if goal))).replace("\n", " ").strip()


def _pad(text: str, width: int, align: str) -> str:
    room = width - display_width(text)
    left = room if align == "right" else room // 2 if align == "center" else 0
    return " " * left + text + " " * (room - left)
