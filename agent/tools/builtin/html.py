"""The readable text of an HTML page, as plain Markdown. Pure; for a thread, since pages can be large."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser
from urllib.parse import urljoin

#: Elements whose content is not for reading.
_SKIPPED = frozenset({"script", "style", "template", "svg", "math", "iframe", "object", "canvas", "head"})
_BLOCKS = frozenset(
    {
        "address", "article", "aside", "blockquote", "body", "dd", "details", "dialog", "div", "dl", "dt",
        "fieldset", "figcaption", "figure", "footer", "form", "header", "hr", "main", "nav", "ol", "p",
        "section", "summary", "table", "ul",
    }
)  # fmt: skip
_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}
_SPACE = re.compile(r"[ \t\r\n\f\v]+")
_ITEM = re.compile(r"( *(?:-|\d+\.) ) *")
_FEED = 16_384


class _Enough(Exception):
    """The page takes too long or has brought enough text."""


class _Reader(HTMLParser):
    def __init__(self, base: str, most: int, seconds: float) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self._base = base
        self._most = most
        self._until = time.monotonic() + seconds
        self._parts: list[str] = []
        self._size = 0
        self._skipping = ""  # the element whose content is left out
        self._in_title = False
        self._preformatted = 0
        self._lists: list[int] = []  # the next number of each open list; -1 without numbers
        self._links: list[tuple[str, int]] = []  # target, and the index of the part where its text begins

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.check()
        if tag == "title":
            self._in_title = not self.title
        if tag in _SKIPPED:
            self._skipping = self._skipping or tag
            return
        if tag == "body":  # a head that was not closed ends here
            self._skipping = ""
        if self._skipping:
            return
        if tag in _HEADINGS:
            self._break(f"\n\n{_HEADINGS[tag]} ")
        elif tag == "br":
            self._add("\n")
        elif tag == "li":
            self._item()
        elif tag in ("ul", "ol"):
            self._break("" if self._lists else "\n\n")
            self._lists.append(1 if tag == "ol" else -1)
            del self._lists[20:]
        elif tag == "pre":
            self._preformatted += 1
            self._break("\n\n```\n")
        elif tag == "tr":
            self._break("\n")
        elif tag in ("td", "th"):
            self._add(" | ")
        elif tag == "a":
            self._links.append((dict(attrs).get("href") or "", len(self._parts)))
            del self._links[100:]
        elif tag == "img" and (words := dict(attrs).get("alt")):
            self._add(f"[picture: {words.strip()}]")
        elif tag in _BLOCKS:
            self._break("\n\n")

    def handle_endtag(self, tag: str) -> None:
        self.check()
        if tag == "title":
            self._in_title = False
        if tag == self._skipping:
            self._skipping = ""
        elif self._skipping:
            return
        elif tag == "pre" and self._preformatted:
            self._preformatted -= 1
            self._break("\n```\n\n")
        elif tag in ("ul", "ol") and self._lists:
            self._lists.pop()
            self._break("" if self._lists else "\n\n")
        elif tag == "a" and self._links:
            self._close_link()
        elif tag in _HEADINGS or tag in _BLOCKS:
            self._break("\n\n")

    def handle_data(self, data: str) -> None:
        self.check()
        if self._in_title:
            self.title = (self.title + data)[:500]
        elif not self._skipping:
            self._add(data if self._preformatted else _SPACE.sub(" ", data))

    def _item(self) -> None:
        number = self._lists[-1] if self._lists else -1
        if number >= 0:
            self._lists[-1] += 1
        indent = "  " * max(0, len(self._lists) - 1)
        self._break(f"\n{indent}{f'{number}.' if number >= 0 else '-'} ")

    def _close_link(self) -> None:
        target, first = self._links.pop()
        words = "".join(self._parts[first:]).strip()
        if not words or not target or target.startswith(("#", "javascript:", "data:")) or "\n" in words:
            return
        try:
            address = urljoin(self._base, target.strip())
        except ValueError:
            return
        if len(address) <= 300 and address != words:
            del self._parts[first:]
            self._add(f"[{words}]({address})")

    def _add(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)
        if self._size > self._most:
            raise _Enough

    _break = _add

    def check(self) -> None:
        """Raise _Enough when the time is up."""
        # Parsing broken pages can take quadratic time. Most come by here often enough; one that never ends
        # a tag calls nothing back, so that the caller looks too between the pieces it feeds.
        if time.monotonic() > self._until:
            raise _Enough

    @property
    def text(self) -> str:
        return "".join(self._parts)


def readable(page: str, base: str, most: int = 1_000_000, seconds: float = 5.0) -> tuple[str, str, bool]:
    """The title, the text, and whether the whole page was read.

    `base` is the page's address, for relative links. Reading stops at `most` characters of text and after
    `seconds`, since a page may be made to take for ever.
    """
    reader = _Reader(base, most, seconds)
    whole = True
    try:
        for start in range(0, len(page), _FEED):
            reader.check()
            reader.feed(page[start : start + _FEED])
        reader.close()
    except (_Enough, AssertionError):  # the parser asserts on some broken declarations
        whole = False
    return _SPACE.sub(" ", reader.title).strip(), _tidy(reader.text), whole


def _tidy(text: str) -> str:
    """Spaces at the ends of lines and more than one empty line taken out, except in code."""
    lines: list[str] = []
    code = False
    for line in text.split("\n"):
        if line.strip() == "```":
            code = not code
        kept = line.rstrip() if code else _unindented(line.rstrip())
        if kept or code or (lines and lines[-1]):
            lines.append(kept)
    return "\n".join(lines).strip()


def _unindented(line: str) -> str:
    item = _ITEM.match(line)
    return f"{item[1]}{line[item.end() :]}" if item else line.lstrip()
