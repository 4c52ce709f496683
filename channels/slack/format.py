"""Markdown as models write it, turned into what Slack shows: standard Markdown, or Slack's own mrkdwn.

Both dialects are written from the same parsed blocks. In standard Markdown (`markdown` blocks and streams)
the source stays as it was written, save what Slack would read differently: `<…>` is a live token there too,
so `<` and `>` become character references outside code (Slack shows them as they were); emphasis that touches
a letter gets a hair space, since CommonMark would show its asterisks.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

from channels.text import markdown_parser

#: Longest text that Slack makes a heading of (header block).
_MAX_HEADING = 150
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufeff]")
_LANGUAGE = re.compile(r"[\w+#.\-]{1,32}")


class Atom(NamedTuple):
    """A piece of a line. `text` is what people see; `source` how Markdown spells it, or a link's target."""

    kind: Literal["text", "code", "break", "open", "close"]
    text: str  # of open and close: strong, em, s, link
    source: str = ""


class Mark(NamedTuple):
    """A quote (`>`) or list item around a block; `first` in the block that shows the item's marker."""

    n: int
    marker: str
    first: bool


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a page. `gap`: line ends before it. `open`: a fence that the source has not closed yet."""

    kind: Literal["text", "heading", "code", "table", "rule"]
    lead: tuple[Mark, ...] = ()
    gap: int = 2
    atoms: tuple[Atom, ...] = ()
    level: int = 0
    code: str = ""
    language: str = ""
    open: bool = False
    rows: tuple[tuple[tuple[Atom, ...], ...], ...] = ()  # of a table, the head first
    align: tuple[str, ...] = ()


def parse(text: str) -> list[Block]:
    """The blocks of a Markdown text. Never fails: what is no Markdown is text."""
    source = _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _Reader(source).read(_parser().parse(source))


@functools.cache
def _parser() -> MarkdownIt:
    # Escapes and character references stay tokens of their own, so that they can be written as they came.
    return markdown_parser().disable("text_join")


# -- lines -------------------------------------------------------------------------------------------


def _atoms(tokens: Sequence[Token]) -> Iterator[Atom]:
    hrefs: list[str] = []
    begun = 0  # atoms of the label of the link that is open
    for token in tokens:
        name, _, edge = token.type.rpartition("_")
        begun += 1
        if token.type == "link_open":
            hrefs.append(str(token.attrGet("href") or ""))
            begun = 0
            if target(hrefs[-1]):
                yield Atom("open", "link", target(hrefs[-1]))
        elif token.type == "link_close":
            href = hrefs.pop()
            if begun == 1:  # no label
                yield Atom("text", href, "")
            if target(href):
                yield Atom("close", "link", target(href))
            elif begun > 1 and href and not href.lower().startswith("data:"):
                yield Atom("text", f" ({href})")
        elif name in ("strong", "em", "s"):
            yield Atom("open" if edge == "open" else "close", name, token.markup)
        elif token.type == "code_inline":
            yield Atom("code", token.content)
        elif token.type in ("softbreak", "hardbreak"):
            yield Atom("break", "\n")
        elif token.type == "image":
            yield from _image(token, linked=bool(hrefs and target(hrefs[-1])))
        elif token.content:
            yield Atom("text", token.content, token.markup if token.type == "text_special" else token.content)


def _image(token: Token, *, linked: bool) -> Iterator[Atom]:
    """A picture is a link to it: Slack shows none from the text."""
    src = str(token.attrGet("src") or "")
    alt = "".join(child.content for child in token.children or ()).strip()
    goal = target(src)
    if linked or not goal:
        shown = "" if src.lower().startswith("data:") else src
        yield Atom("text", f"{alt} ({shown})" if alt and shown and not linked else alt or shown or "🖼")
        return
    yield from (Atom("open", "link", goal), Atom("text", alt or goal), Atom("close", "link", goal))


def target(url: str) -> str:
    """The link target that Slack takes, written so that no character ends it early; "" for other schemes."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    if parts.scheme.lower() not in ("http", "https", "mailto", "tel") or not (parts.netloc or parts.path):
        return ""
    return re.sub(r"[\s<>|()\\`\"]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), url)


# -- blocks ------------------------------------------------------------------------------------------


class _Reader:
    """Walks the parser's flat list of block tokens."""

    def __init__(self, source: str) -> None:
        self.lines = source.split("\n")
        self.blocks: list[Block] = []
        self.lead: list[Mark] = []
        self.gap = 1
        self.level = 0  # of the heading that is open
        self.lists: list[str] = []  # markers of the lists that are open; "" for numbers
        self._n = 0

    def read(self, tokens: Sequence[Token]) -> list[Block]:
        stream = iter(tokens)
        for token in stream:
            match token.type:
                case "inline":
                    self._line(tuple(_atoms(token.children or ())))
                case "paragraph_open":
                    self._space(token)
                case "heading_open" | "heading_close":
                    self.gap = 2
                    self.level = int(token.tag[1:]) if token.nesting > 0 else 0
                case "fence" | "code_block":
                    self._space(token)
                    self._code(token)
                case "hr":
                    self._add_apart(Block("rule"))
                case "table_open":
                    self._add_apart(_table(stream))
                case "bullet_list_open" | "ordered_list_open":
                    self.lists.append(token.markup if token.type.startswith("bullet") else "")
                case "bullet_list_close" | "ordered_list_close":
                    self.lists.pop()
                case "blockquote_open":
                    self._enter(token, ">")
                case "list_item_open":
                    self._enter(token, self.lists[-1] or f"{token.info}{token.markup}")
                case "list_item_close" | "blockquote_close":
                    if self.lead[-1].first and token.type == "list_item_close":
                        self._add(Block("text"))  # an empty item still shows its marker
                    self.lead.pop()
        return self.blocks

    def _add(self, block: Block) -> None:
        self.blocks.append(replace(block, lead=tuple(self.lead), gap=self.gap))
        self.lead = [mark._replace(first=False) for mark in self.lead]
        self.gap = 1

    def _add_apart(self, block: Block) -> None:
        self.gap = 2
        self._add(block)
        self.gap = 2

    def _space(self, token: Token) -> None:
        """Keep the distance that the source has: one empty line, or none."""
        line = token.map[0] if token.map else 0
        if line > 0 and not self.lines[line - 1].strip(" \t>"):
            self.gap = 2

    def _enter(self, token: Token, marker: str) -> None:
        self._space(token)
        self._n += 1
        self.lead.append(Mark(self._n, marker, first=True))

    def _line(self, atoms: tuple[Atom, ...]) -> None:
        if not self.level:
            self._add(Block("text", atoms=atoms))
            return
        atoms = tuple(Atom("text", " ", " ") if atom.kind == "break" else atom for atom in atoms)
        if len(visible(atoms)) <= _MAX_HEADING:
            self._add(Block("heading", atoms=atoms, level=self.level))
        else:
            bold = Atom("open", "strong", "**"), Atom("close", "strong", "**")
            self._add(Block("text", atoms=(bold[0], *atoms, bold[1])))

    def _code(self, token: Token) -> None:
        language = _LANGUAGE.match(token.info.strip())
        is_open = token.type == "fence" and not self._closed(token)
        code = token.content.removesuffix("\n")
        self._add(Block("code", code=code, language=language[0] if language else "", open=is_open))

    def _closed(self, token: Token) -> bool:
        begin, end = token.map or (0, 0)
        last = self.lines[end - 1].strip(" \t>") if end - 1 > begin else ""
        return len(last) >= len(token.markup) and not last.strip(token.markup[:1])


def _table(stream: Iterator[Token]) -> Block:
    """A table of which the opening token was read."""
    rows: list[list[tuple[Atom, ...]]] = []
    align: list[str] = []
    for part in stream:
        if part.type == "table_close":
            break
        if part.type == "tr_open":
            rows.append([])
        elif part.type == "th_open":
            align.append(str(part.attrGet("style") or "").removeprefix("text-align:"))
        elif part.type == "inline":
            rows[-1].append(tuple(_atoms(part.children or ())))
    return Block("table", rows=tuple(map(tuple, rows)), align=tuple(align))


def visible(atoms: Sequence[Atom]) -> str:
    """The characters that people see of a line."""
    return "".join(atom.text for atom in atoms if atom.kind in ("text", "code", "break"))


def is_punctuation(ch: str) -> bool:
    """As CommonMark counts it: Unicode punctuation and symbols."""
    return unicodedata.category(ch)[0] in "PS"
