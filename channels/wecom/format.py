"""Replies as WeCom shows them: plain text, or the small Markdown of the WeCom client. Pure.

The client knows headings, bold, links, code within a line, quotes and colours (WW 90236, appendix), and
cannot escape any of it. Lists get bullets, tables become lines, code blocks are code line by line.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from channels.base import Chunk, Outbound
from channels.text import length, markdown_parser, split_plain
from channels.wechat.plain import MAX_BYTES, clean, plain, split_bytes
from channels.wecom.sending import ENDING

#: What one message may hold, in bytes of UTF-8 (WW 90236: the rest is cut off), less the room for an ending.
LIMIT = MAX_BYTES - ENDING
_BULLETS = ("• ", "◦ ", "▪ ")
_RULE = "──────────"
#: A piece of styled text shorter than this is not begun at the end of a message.
_LEAST = 48
_LONGEST_TARGET = 500


class Atom(NamedTuple):
    """A stretch of text with the marks around it; cut, each part gets the marks."""

    text: str
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        return self.before + self.text + self.after


class Line(NamedTuple):
    """One line. `prefix` stands before each part that it is cut into, `first` only before the first."""

    prefix: str
    first: str
    atoms: tuple[Atom, ...]

    def __str__(self) -> str:
        return self.prefix + self.first + "".join(map(str, self.atoms))


def render(outbound: Outbound, *, markdown: bool) -> list[Chunk]:
    """The chunks of a reply; a file's caption goes before it, since WeCom's files have none."""
    chunks = _words(outbound.text, markdown)
    for file in outbound.files:
        chunks += _words(file.caption, markdown)
        chunks.append(Chunk("", file=file))
    return chunks


def _words(text: str, markdown: bool) -> list[Chunk]:
    if not text.strip():
        return []
    if markdown:
        lines = list(_lines(clean(text)))
        if any(line.atoms for line in lines):
            return [Chunk(piece, {"kind": "markdown"}) for piece in pack(lines, LIMIT)]
    return [Chunk(piece) for piece in split_bytes(plain(text), LIMIT) if piece.strip()]


# -- packing -----------------------------------------------------------------------------------------


def pack(lines: Sequence[Line], limit: int) -> list[str]:
    """Messages of at most `limit` bytes, cut between paragraphs, else lines, else within a line."""
    pieces: list[str] = []
    held: list[str] = []
    size = 0

    def close(count: int) -> None:
        nonlocal held, size
        if text := "\n".join(held[:count]).strip("\n"):
            pieces.append(text)
        held = held[count:]
        while held and not held[0]:
            held.pop(0)
        size = sum(_bytes(text) + 1 for text in held)

    for line in (part for whole in lines for part in _cut(whole, limit)):
        if held and size + _bytes(line) > limit:
            close(_good_end(held, limit))
            if held and size + _bytes(line) > limit:
                close(len(held))
        held.append(line)
        size += _bytes(line) + 1
    close(len(held))
    return pieces


def _good_end(held: Sequence[str], limit: int) -> int:
    """How many lines to close with: up to the last empty one that leaves the message at least half full."""
    size, best = 0, len(held)
    for number, line in enumerate(held):
        size += _bytes(line) + 1
        if not line and size > limit // 2:
            best = number
    return best


def _cut(line: Line, limit: int) -> Iterator[str]:
    """A line as parts that fit a message; marks are closed and opened again at a cut."""
    done, rest = line.prefix + line.first, list(line.atoms)
    while rest:
        atom = rest.pop(0)
        room = limit - _bytes(done)
        if _bytes(str(atom)) <= room:
            done += str(atom)
            continue
        inside = room - _bytes(atom.before + atom.after)
        if inside < _LEAST:  # nothing of it fits: a new part, where all the room is
            rest.insert(0, atom)
            if done.strip(line.prefix + line.first):
                yield done
                done = line.prefix
            else:  # marks longer than a message: the words go without them
                rest[0] = Atom(atom.text)
                done = ""
            continue
        head, *tail = split_plain(atom.text, inside, "bytes")
        yield done + str(atom._replace(text=head))
        done = line.prefix
        rest.insert(0, atom._replace(text="".join(tail)))
    yield done.rstrip()


def _bytes(text: str) -> int:
    return length(text, "bytes")


# -- Markdown to lines ---------------------------------------------------------------------------------


@functools.cache
def _parser() -> MarkdownIt:
    return markdown_parser()


def _lines(text: str) -> Iterator[Line]:
    walker = _Walker(text.split("\n"))
    walker.walk(iter(_parser().parse(text)))
    return iter(walker.lines)


class _Walker:
    """Collects lines from the parser's flat list of tokens."""

    def __init__(self, source: Sequence[str]) -> None:
        self._source = source
        self.lines: list[Line] = []
        self._quotes = 0
        self._lists: list[str] = []  # the bullet of each open list, "" for a numbered one
        self._marker = ""
        self._heading = 0

    def walk(self, stream: Iterator[Token]) -> None:
        for token in stream:
            kind = token.type
            if kind in ("paragraph_open", "heading_open", "list_item_open", "table_open", "fence", "hr"):
                self._gap(token)
            if kind == "inline":
                self._write(_inline(token.children or ()))
            elif kind == "heading_open":
                self._heading = int(token.tag[1:])
            elif kind == "heading_close":
                self._heading = 0
            elif kind in ("fence", "code_block"):
                self._write(
                    [_code(row) for row in token.content.removesuffix("\n").expandtabs(4).split("\n")]
                )
            elif kind == "hr":
                self._write([[Atom(_RULE)]])
            elif kind in ("blockquote_open", "blockquote_close"):
                self._quotes += 1 if kind == "blockquote_open" else -1
            elif kind in ("bullet_list_open", "ordered_list_open"):
                depth = sum(1 for bullet in self._lists if bullet)
                self._lists.append("" if kind[0] == "o" else _BULLETS[min(depth, 2)])
            elif kind in ("bullet_list_close", "ordered_list_close"):
                self._lists.pop()
            elif kind == "list_item_open":
                indent = "\u3000" * (len(self._lists) - 1)  # wide spaces: the client drops others
                self._marker = indent + (self._lists[-1] or f"{token.info}{token.markup} ")
            elif kind == "table_open":
                self._write(_table(stream))

    def _gap(self, token: Token) -> None:
        """Keep an empty line where the source has one."""
        line = token.map[0] if token.map else 0
        if self.lines and not self._marker and line and not self._source[line - 1].strip(" \t>"):
            self.lines.append(Line("", "", ()))

    def _write(self, rows: Sequence[Sequence[Atom]]) -> None:
        prefix = "> " if self._quotes else ""
        if self._heading:
            prefix += "#" * self._heading + " "
        for row in rows:
            self.lines.append(Line(prefix, self._marker, tuple(atom for atom in row if atom.text)))
            self._marker = ""


def _code(text: str) -> list[Atom]:
    """Text as code within a line; the client has no way to write a backtick there."""
    return [Atom(text, "`", "`")] if text.strip() and "`" not in text else [Atom(text)]


def _inline(tokens: Sequence[Token]) -> list[list[Atom]]:
    """Lines of atoms. Bold within a link and the like is dropped: the client nests nothing."""
    rows: list[list[Atom]] = [[]]
    bold = 0
    links: list[tuple[str, int]] = []  # target, how many atoms the row had
    for token in tokens:
        kind = token.type
        if kind in ("softbreak", "hardbreak"):
            rows.append([])
            links = [(target, 0) for target, _ in links]
        elif kind == "code_inline":
            rows[-1] += _code(token.content)
        elif kind in ("strong_open", "strong_close"):
            bold += 1 if kind == "strong_open" else -1
        elif kind == "link_open":
            links.append((str(token.attrGet("href") or ""), len(rows[-1])))
        elif kind == "link_close":
            target, begin = links.pop()
            label = "".join(atom.text for atom in rows[-1][begin:])
            rows[-1][begin:] = [_link(label, target)]
        elif kind == "image":
            alt = "".join(child.content for child in token.children or ())
            rows[-1].append(_link(alt, str(token.attrGet("src") or "")))
        elif kind in ("s_open", "s_close"):
            rows[-1].append(Atom("~"))
        elif token.content:
            marks = ("**", "**") if bold and token.content.strip() == token.content else ("", "")
            rows[-1] += _bold(token.content) if bold and not marks[0] else [Atom(token.content, *marks)]
    return rows


def _bold(text: str) -> list[Atom]:
    """Marks must touch the words: spaces stay outside them."""
    core = text.strip()
    left, _, right = text.partition(core) if core else (text, "", "")
    return [Atom(left), Atom(core, "**", "**"), Atom(right)]


def _link(label: str, target: str) -> Atom:
    label, target = label.strip(), target.strip()
    if not target.startswith(("http://", "https://")) or len(target) > _LONGEST_TARGET or ")" in target:
        bare = target.removeprefix("mailto:")
        named = label and bare and label != bare and not target.startswith("data:")
        return Atom(f"{label} ({bare[:_LONGEST_TARGET]})" if named else label or bare[:_LONGEST_TARGET])
    if label in ("", target):
        return Atom(target)  # the client links bare addresses
    return Atom(label.replace("[", "(").replace("]", ")"), "[", f"]({target})")


def _table(stream: Iterator[Token]) -> list[list[Atom]]:
    """A table as lines: its head in bold, then each row's cells side by side."""
    rows: list[list[list[Atom]]] = []
    for token in stream:
        if token.type == "table_close":
            break
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append([atom for line in _inline(token.children or ()) for atom in line])
    head = [
        [Atom(atom.text, "**", "**") if not atom.before else atom for atom in cell if atom.text.strip()]
        for cell in (rows[0] if rows else ())
    ]
    return [
        [atom for number, cell in enumerate(row) for atom in ((Atom(" | "),) if number else ()) + tuple(cell)]
        for row in (head, *rows[1:])
    ]
