"""Markdown to styled text that Telegram can show.

Plain text with entities is used, never a parse mode: nothing needs escaping, so nothing can be refused.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

from channels.telegram.styled import PLAIN, Run, Style, clean
from channels.telegram.table import Align, Cell, Table, as_block, as_list
from channels.text import markdown_parser

BULLETS = ("• ", "◦ ", "▪ ")
RULE = "──────────"
TAB = 4
#: A target of another kind is shown as text up to this length (a data: image can be megabytes).
MAX_SHOWN_TARGET = 300

# What Telegram takes as the target of a link (tdlib, LinkManager::check_link): a host with a dot or an
# address in brackets. Others it drops silently, so they are shown as text; mailto: it would spoil.
_WEB = re.compile(
    r"https?://(?:[^\s/@?#\[\]]*@)?(?:[\w\-]+(?:\.[\w\-]+)+|\[[0-9a-f:.]+\])(?::(?P<port>\d{1,5}))?(?:[/?#]\S*)?",
    re.IGNORECASE,
)
_INTERNAL = re.compile(r"tg:(?://)?(?!user\b)[a-z]\w*(?:\?[^\s]*)?", re.IGNORECASE)
_TASK = re.compile(r"\[([ xX])\](?:\s+|$)")
_LANGUAGE = re.compile(r"[\w+#.\-]{1,32}")


def markdown(text: str) -> list[Run]:
    """Render Markdown. Never fails: what is no Markdown is text."""
    source = clean(text)
    return _Renderer(source).render(_parser().parse(source))


@functools.cache
def _parser() -> MarkdownIt:
    return markdown_parser()


def link_target(url: str) -> str:
    """The URL if Telegram makes a link of it, else ""."""
    web = _WEB.fullmatch(url)
    if web:
        port = web["port"]
        return url if port is None or 0 < int(port) < 65536 else ""
    return url if _INTERNAL.fullmatch(url) else ""


# -- inside a line -----------------------------------------------------------------------------------


def inline(tokens: Sequence[Token], base: Style = PLAIN) -> list[Run]:
    """Render the children of an inline token."""
    runs: list[Run] = []
    style = base
    outer: list[tuple[Style, str, int]] = []  # style before a link, its target, where its label begins
    for token in tokens:
        kind = token.type
        if kind in ("softbreak", "hardbreak"):
            runs.append(("\n", style))
        elif kind == "code_inline":
            runs.append((token.content, style._replace(code=True)))
        elif kind == "image":
            runs += _image(token, style)
        elif kind == "link_open":
            href = str(token.attrGet("href") or "")
            outer.append((style, href, len(runs)))
            style = style._replace(link=link_target(href))
        elif kind == "link_close":
            style, href, begin = outer.pop()
            _end_link(runs, begin, href, style)
        elif kind in _MARKS:
            style = _mark(style, base, *_MARKS[kind])
        else:
            runs.append((token.content, style))
    return runs


_MARKS = {
    "strong_open": ("bold", True),
    "strong_close": ("bold", False),
    "em_open": ("italic", True),
    "em_close": ("italic", False),
    "s_open": ("strike", True),
    "s_close": ("strike", False),
}


def _mark(style: Style, base: Style, name: str, on: bool) -> Style:
    value = on or bool(getattr(base, name))
    if name == "bold":
        return style._replace(bold=value)
    return style._replace(italic=value) if name == "italic" else style._replace(strike=value)


def _end_link(runs: list[Run], begin: int, href: str, outside: Style) -> None:
    label = "".join(text for text, _ in runs[begin:])
    if not label.strip():
        runs[begin:] = [(_shown(href), outside._replace(link=link_target(href)))]
    elif label in (href, f"mailto:{label}") or href == f"mailto:{label}":
        # Telegram finds the link by itself.
        runs[begin:] = [(text, style._replace(link="")) for text, style in runs[begin:]]
    elif not link_target(href) and href and _shown(href) != label:
        target = _shown(href).removeprefix("mailto:")
        if target and target != label:
            runs.append((f" ({target})", outside))


def _image(token: Token, style: Style) -> list[Run]:
    src = str(token.attrGet("src") or "")
    alt = "".join(text for text, _ in inline(token.children or ())).strip()
    target = link_target(src)
    if style.link or target:
        return [(alt or _shown(src), style._replace(link=style.link or target))]
    shown = _shown(src)
    if alt and shown and alt != shown:
        return [(f"{alt} ({shown})", style)]
    return [(alt or shown or "🖼", style)]


def _shown(url: str) -> str:
    """A target as a reader may see it."""
    if url.lower().startswith("data:") or len(url) > MAX_SHOWN_TARGET:
        return "" if url.lower().startswith("data:") else url[:MAX_SHOWN_TARGET] + "…"
    return url if link_target(url) else " ".join(unquote(url).split())


# -- blocks ------------------------------------------------------------------------------------------


class _Page:
    """Collects runs; keeps blocks apart and list items indented."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.indent: list[str] = []
        self.markers: list[str] = []  # list markers not yet written; they replace the last indents
        self.quote = 0
        self._gap = 0

    @property
    def base(self) -> Style:
        return Style(quote=self.quote)

    def gap(self, lines: int) -> None:
        """At least so many line ends stand before the next block."""
        self._gap = max(self._gap, lines)

    def write(self, runs: Sequence[Run]) -> None:
        """Write a block's lines, each after the indent that holds here."""
        self._begin_line()
        indent = "".join(self.indent)
        for text, style in runs:
            first, *rest = text.split("\n")
            self._put(first, style)
            for line in rest:
                self._put("\n", style)
                self._put(indent, self.base)
                self._put(line, style)

    def write_code(self, text: str, style: Style) -> None:
        """Write preformatted text: without indent, so that it can be copied."""
        if self.markers:
            self._begin_line()
            self.gap(1)
        self._line_ends()
        self._put(text, style)

    def flush_marker(self) -> None:
        """An empty list item still shows its marker."""
        if self.markers:
            self._begin_line()

    def _begin_line(self) -> None:
        if not self._gap and self.runs and not self.markers:
            return
        self._line_ends()
        kept = self.indent[: len(self.indent) - len(self.markers)]
        self._put("".join((*kept, *self.markers)), self.base)
        self.markers.clear()

    def _line_ends(self) -> None:
        if self.runs and self._gap:
            same_quote = self.runs[-1][1].quote == self.quote
            self._put("\n" * self._gap, self.base if same_quote else PLAIN)
        self._gap = 0

    def _put(self, text: str, style: Style) -> None:
        # Once more: character references (&#x202e;) and escapes in targets (%0D) bring back what was cleaned.
        text = clean(text).replace("\t", " ")
        if text:
            self.runs.append((text, style))


_Tokens: TypeAlias = Iterator[Token]


class _Renderer:
    """Walks the parser's flat list of block tokens."""

    def __init__(self, source: str) -> None:
        self.lines = source.split("\n")
        self.page = _Page()
        self.blocks = 0  # numbers of pre blocks and quotes, so that neighbours stay apart
        self.depth = 0  # of quotes
        self.lists: list[str] = []  # bullet of each open list, "" for a numbered one
        self.heading = False

    def render(self, tokens: Sequence[Token]) -> list[Run]:
        stream = iter(tokens)
        handlers: dict[str, Callable[[Token, _Tokens], None]] = {
            "inline": self._inline,
            "heading_open": self._heading_open,
            "heading_close": self._heading_close,
            "paragraph_open": self._block,
            "fence": self._code,
            "code_block": self._code,
            "hr": self._rule,
            "blockquote_open": self._quote_open,
            "blockquote_close": self._quote_close,
            "bullet_list_open": self._list_open,
            "ordered_list_open": self._list_open,
            "bullet_list_close": self._list_close,
            "ordered_list_close": self._list_close,
            "list_item_open": self._item_open,
            "list_item_close": self._item_close,
            "table_open": self._table,
        }
        for token in stream:
            handler = handlers.get(token.type)
            if handler:
                handler(token, stream)
        return self.page.runs

    def _block(self, token: Token, _: _Tokens) -> None:
        """Keep the distance that the source has: one empty line, or none."""
        line = token.map[0] if token.map else 0
        empty_before = line > 0 and not self.lines[line - 1].strip(" \t>")
        self.page.gap(2 if empty_before else 1)

    def _inline(self, token: Token, _: _Tokens) -> None:
        children = list(token.children or ())
        base = self.page.base._replace(bold=self.heading)
        if self.page.markers and children and children[0].type == "text":
            task = _TASK.match(children[0].content)
            if task:
                self.page.markers[-1] = "☐ " if task[1] == " " else "☑ "
                children[0].content = children[0].content[task.end() :]
        self.page.write(inline(children, base))

    def _heading_open(self, token: Token, _: _Tokens) -> None:
        self.page.gap(2)
        self.heading = True

    def _heading_close(self, token: Token, _: _Tokens) -> None:
        self.heading = False

    def _code(self, token: Token, stream: _Tokens) -> None:
        text = token.content.removesuffix("\n").expandtabs(TAB)
        if not text.strip():
            return
        self._block(token, stream)
        self.blocks += 1
        language = _LANGUAGE.match(token.info.strip())
        self.page.write_code(
            text,
            self.page.base._replace(pre=self.blocks, language=language[0] if language else ""),
        )

    def _rule(self, token: Token, stream: _Tokens) -> None:
        self._block(token, stream)
        self.page.write([(RULE, self.page.base)])

    def _quote_open(self, token: Token, _: _Tokens) -> None:
        self.depth += 1
        if self.depth == 1:
            self.blocks += 1
            self.page.quote = self.blocks
        else:  # quotes do not nest in Telegram
            self.page.flush_marker()
            self.page.indent.append("> ")

    def _quote_close(self, token: Token, _: _Tokens) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.page.quote = 0
        else:
            self.page.indent.pop()

    def _list_open(self, token: Token, _: _Tokens) -> None:
        bullets = sum(1 for bullet in self.lists if bullet)
        ordered = token.type == "ordered_list_open"
        self.lists.append("" if ordered else BULLETS[min(bullets, len(BULLETS) - 1)])

    def _list_close(self, token: Token, _: _Tokens) -> None:
        self.lists.pop()

    def _item_open(self, token: Token, stream: _Tokens) -> None:
        if not self.page.markers:
            self._block(token, stream)
        marker = self.lists[-1] or f"{token.info}{token.markup} "
        self.page.indent.append(" " * len(marker))
        self.page.markers.append(marker)

    def _item_close(self, token: Token, _: _Tokens) -> None:
        self.page.flush_marker()
        self.page.indent.pop()

    def _table(self, token: Token, stream: _Tokens) -> None:
        self._block(token, stream)
        table = _read_table(stream, self.page.base)
        block = as_block(table)
        if block is not None:
            self.blocks += 1
            self.page.write_code(block, self.page.base._replace(pre=self.blocks))
            return
        for number, line in enumerate(as_list(table, self.page.base)):
            if number:
                self.page.gap(1 if line else 2)
            if line:
                self.page.write(line)


def _read_table(stream: _Tokens, base: Style) -> Table:
    rows: list[list[Cell]] = []
    align: list[Align] = []
    for token in stream:
        if token.type == "table_close":
            break
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "th_open":
            style = str(token.attrGet("style") or "")
            align.append("right" if "right" in style else "center" if "center" in style else "left")
        elif token.type == "inline":
            rows[-1].append(inline(token.children or (), base))
    head, *body = rows
    return Table(head, body, align)
