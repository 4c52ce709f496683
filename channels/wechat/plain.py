"""Markdown as readable plain text, for platforms that show no formatting, and text cut by bytes. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

from channels.text import display_width, markdown_parser, split_plain

#: What WeChat and WeCom take in one text, in bytes of UTF-8.
MAX_BYTES = 2048
_BULLETS = ("• ", "◦ ", "▪ ")
_RULE = "──────────"
_LONGEST_TARGET = 500
#: Columns of a table that a phone shows in one line of a proportional font.
_COLUMNS = 30
_TASK = re.compile(r"\[([ xX])\](?:\s+|$)")
#: What XML cannot carry, and characters that turn the direction of everything behind them.
_UNWANTED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def split_bytes(text: str, limit: int = MAX_BYTES) -> list[str]:
    """Pieces of at most `limit` bytes of UTF-8, cut at good places; joined, they are the text."""
    return split_plain(text, limit, "bytes")


def clean(text: str) -> str:
    """Without control characters and halves of characters."""
    return _UNWANTED.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def plain(text: str) -> str:
    """Markdown as plain text: bullets, "label (target)" for links, code as it is, tables as lines. What
    Markdown would show nothing of is shown as it was written."""
    source = clean(text)
    return _Page(source).render(_parser().parse(source)) or source.strip()


@functools.cache
def _parser() -> MarkdownIt:
    return markdown_parser()


# -- inside a line -----------------------------------------------------------------------------------


def inline(tokens: Sequence[Token]) -> str:
    out: list[str] = []
    links: list[tuple[str, int]] = []  # target, where its label begins
    marks: list[str] = []
    for token in tokens:
        if token.type in ("softbreak", "hardbreak"):
            out.append("\n")
        elif token.type == "image":
            alt = inline(token.children or ()).strip()
            out.append(_link(alt, str(token.attrGet("src") or "")) or "🖼")
        elif token.type == "link_open":
            links.append((str(token.attrGet("href") or ""), len(out)))
        elif token.type == "link_close":
            target, begin = links.pop()
            out[begin:] = [_link("".join(out[begin:]), target)]
        elif token.type in ("s_open", "s_close"):
            out.append("~")  # what is struck out must not read as if it held
        elif token.type in ("em_open", "strong_open"):
            # `2*3*4` is emphasis by the letter of Markdown; without formatting the signs carry the sense.
            before = next((text for text in reversed(out) if text), "")[-1:]
            marks.append(token.markup if before.isascii() and before.isalnum() else "")
            out.append(marks[-1])
        elif token.type in ("em_close", "strong_close"):
            out.append(marks.pop())
        else:
            out.append(token.content)
    return "".join(out)


def _link(label: str, target: str) -> str:
    target = "" if target.lower().startswith("data:") else target[:_LONGEST_TARGET]
    bare = target.removeprefix("mailto:")
    if not target or label.strip() in (target, bare) or _same_address(label, bare):
        return label if label.strip() else bare
    return f"{label} ({bare})" if label.strip() else bare


def _same_address(label: str, target: str) -> bool:
    """A label that is the whole address needs no target behind it; without its scheme it would be no link."""
    return label.startswith(("http://", "https://")) and label.rstrip("/") == target.rstrip("/")


# -- blocks ------------------------------------------------------------------------------------------


class _Page:
    """Walks the parser's flat list of tokens and collects lines."""

    def __init__(self, source: str) -> None:
        self.source = source.split("\n")
        self.lines: list[str] = []
        self.indent: list[str] = []
        self.markers: list[str] = []  # list markers not written yet; they stand in place of the last indents
        self.lists: list[str] = []  # bullet of each open list, "" for a numbered one
        self.heading = False

    def render(self, tokens: Sequence[Token]) -> str:
        stream = iter(tokens)
        for token in stream:
            self._token(token, stream)
        return "\n".join(self.lines).strip("\n")

    def _token(self, token: Token, stream: Iterator[Token]) -> None:
        kind = token.type
        if kind in ("paragraph_open", "heading_open", "list_item_open", "table_open"):
            self._gap(token)
        if kind == "inline":
            self._inline(token)
        elif kind in ("heading_open", "heading_close"):
            self.heading = kind == "heading_open"
        elif kind in ("fence", "code_block"):
            self._gap(token)
            self._write(token.content.removesuffix("\n").expandtabs(4))
        elif kind == "hr":
            self._gap(token)
            self._write(_RULE)
        elif kind == "blockquote_open":
            self._gap(token)
            self._flush()
            self.indent.append("│ ")
        elif kind in ("bullet_list_open", "ordered_list_open"):
            depth = sum(1 for bullet in self.lists if bullet)
            self.lists.append("" if kind[0] == "o" else _BULLETS[min(depth, 2)])
        elif kind in ("bullet_list_close", "ordered_list_close"):
            self.lists.pop()
        elif kind == "list_item_open":
            marker = self.lists[-1] or f"{token.info}{token.markup} "
            self.indent.append(" " * len(marker))
            self.markers.append(marker)
        elif kind in ("list_item_close", "blockquote_close"):
            self._flush()
            self.indent.pop()
        elif kind == "table_open":
            self._write("\n".join(_table(stream)))

    def _gap(self, token: Token) -> None:
        """Keep an empty line where the source has one; headings always stand off."""
        if not self.lines or self.markers:
            return
        line = token.map[0] if token.map else 0
        wanted = token.type == "heading_open" or (line > 0 and not self.source[line - 1].strip(" \t>"))
        if wanted and self.lines[-1].strip():
            self.lines.append("".join(self.indent).rstrip())

    def _inline(self, token: Token) -> None:
        text = inline(token.children or ())
        if self.markers and (task := _TASK.match(text)):
            self.markers[-1] = "☐ " if task[1] == " " else "☑ "
            text = text[task.end() :]
        self._write(f"【{text}】" if self.heading and "\n" not in text and text else text)

    def _flush(self) -> None:
        """An empty list item still shows its marker."""
        if self.markers:
            self._write("")

    def _write(self, text: str) -> None:
        kept = self.indent[: len(self.indent) - len(self.markers)]
        first = "".join((*kept, *self.markers))
        self.markers.clear()
        indent = "".join(self.indent)
        for number, line in enumerate(clean(text).split("\n")):
            # Character references (&#x202e;) bring back what was cleaned: hence once more.
            self.lines.append(((indent if number else first) + line).rstrip())


def _table(stream: Iterator[Token]) -> list[str]:
    """Short rows as one line of cells; others as the row's first cell and one line "head: cell" each, since
    columns cannot be aligned in a proportional font."""
    rows: list[list[str]] = []
    for token in stream:
        if token.type == "table_close":
            break
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(" ".join(inline(token.children or ()).split()))
    head, *body = rows
    lines = [" | ".join(row) for row in rows]
    if not body or len(head) == 1 or all(display_width(line) <= _COLUMNS for line in lines):
        return lines
    out: list[str] = []
    for row in body:
        cells = [(name, cell) for name, cell in zip(head[1:], row[1:], strict=False) if cell]
        if len(head) == 2:
            out.append(f"• {row[0]}: {row[1]}" if row[1] else f"• {row[0]}")
            continue
        out.append(f"• {head[0]}: {row[0]}" if head[0] and row[0] else f"• {row[0] or head[0]}")
        out += [f"  {name}: {cell}" if name else f"  {cell}" for name, cell in cells]
    return [lines[0], *out] if len(head) == 2 and any(head) else out
