"""Text as platforms count and cut it, and the one Markdown parser that every renderer starts from.

Everything here is pure. Lengths are counted in the unit that a platform counts in: `chars` (Unicode code
points), `utf16` (code units, two for a character above U+FFFF) or `bytes` (UTF-8).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Literal, TypeAlias

from markdown_it import MarkdownIt
from markdown_it.parser_inline import ParserInline
from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline.state_inline import Scanned
from markdown_it.token import Token

Unit: TypeAlias = Literal["chars", "utf16", "bytes"]

#: The longest single character in each unit: a smaller limit could not be kept.
_LONGEST_CHARACTER: dict[Unit, int] = {"chars": 1, "utf16": 2, "bytes": 4}
#: How far a cut moves back to keep a grapheme whole. Longer ones (stacked marks) are cut all the same.
_GRAPHEME_REACH = 64

_ZWJ = "\u200d"
#: Quotation marks and dashes that stand in Chinese text without spaces around them.
_CLOSING = frozenset("”’」』）》】")
_CJK_PUNCTUATION = frozenset("“”‘’…—·")


# -- length ------------------------------------------------------------------------------------------


def length(text: str, unit: Unit) -> int:
    """Length of `text` in `unit`."""
    if unit == "chars" or text.isascii():
        return len(text)
    if unit == "utf16":
        return len(text) + sum(1 for ch in text if ch > "\uffff")
    return len(text.encode("utf-8", "surrogatepass"))


def display_width(text: str) -> int:
    """Columns that `text` takes in a monospaced font: wide characters two, marks and joiners none."""
    if text.isascii():
        return len(text)
    return sum(_columns(ch) for ch in text)


def _columns(ch: str) -> int:
    if ch == _ZWJ or "\ufe00" <= ch <= "\ufe0f" or unicodedata.category(ch) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if is_wide(ch) else 1


def is_wide(ch: str) -> bool:
    """East Asian wide or full-width (Chinese, Japanese, Korean, most emoji)."""
    return ch > "\u10ff" and unicodedata.east_asian_width(ch) in ("W", "F")


# -- cutting -----------------------------------------------------------------------------------------


def split_plain(text: str, limit: int, unit: Unit = "chars") -> list[str]:
    """Cut `text` into pieces of at most `limit` units; joined, the pieces are the text.

    Cuts after a paragraph, else a line, a sentence, a word; a word that is too long is cut between two
    graphemes. Raises ValueError when the limit could not hold every single character.
    """
    if limit < _LONGEST_CHARACTER[unit]:
        raise ValueError(f"a limit of {limit} {unit} cannot hold every character; use a larger one")
    pieces = []
    start = 0
    while start < len(text):
        end = reach(text, start, limit, unit)
        if end < len(text):
            end = good_cut(text, start, end)
        pieces.append(text[start:end])
        start = end
    return pieces


def reach(text: str, start: int, room: int, unit: Unit) -> int:
    """The largest `end` with `text[start:end]` at most `room` units long."""
    longest = min(len(text), start + room)
    if unit == "chars":
        return longest
    stretch = text[start:longest]
    if stretch.isascii():
        return longest
    cost: Callable[[str], int] = _utf16_cost if unit == "utf16" else _byte_cost
    used = 0
    for offset, ch in enumerate(stretch):
        used += cost(ch)
        if used > room:
            return start + offset
    return longest


def _utf16_cost(ch: str) -> int:
    return 2 if ch > "\uffff" else 1


def _byte_cost(ch: str) -> int:
    code = ord(ch)
    return 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4


def good_cut(text: str, start: int, end: int) -> int:
    """Where to cut `text[start:]` so that the first part ends at or before `end` (which is within the text).

    A paragraph, line or sentence end counts when it leaves the piece at least half full, a word end when
    a quarter full.
    """
    half = start + max(1, (end - start) // 2)
    for separator in ("\n\n", "\n"):
        # The separator may begin right at `end`'s left; it stays with the left part.
        at = text.rfind(separator, half - 1, end)
        if at >= 0 and at + len(separator) > start:
            return at + len(separator)
    sentence = _sentence_end(text, half, end)
    if sentence:
        return sentence
    quarter = start + max(1, (end - start) // 4)
    word = _word_end(text, quarter, end)
    return word or grapheme_cut(text, start, end)


def _sentence_end(text: str, low: int, end: int) -> int:
    """The last cut in (low, end] that follows a sentence, or 0."""
    for cut in range(end, low, -1):
        last = text[cut - 1]
        # Closing quotes and brackets (two at most) still belong to the sentence.
        end_mark = next((ch for ch in text[max(0, cut - 3) : cut][::-1] if ch not in _CLOSING), "")
        if end_mark and end_mark in "。！？；" and text[cut : cut + 1] not in _CLOSING:
            return cut
        if last in " \t" and cut >= 2 and text[cut - 2] in ".!?…":
            return cut
    return 0


def _word_end(text: str, low: int, end: int) -> int:
    """The last cut in (low, end] after a blank, or between two wide characters, or 0."""
    for cut in range(end, low, -1):
        last = text[cut - 1]
        if last.isspace() and last != "\u00a0":
            return cut
        if last in "，、：" and cut < len(text):
            return cut
    return 0


def grapheme_cut(text: str, start: int, end: int) -> int:
    """The last cut in (start, end] that does not split a grapheme, or `end` when there is none near."""
    low = max(start, end - _GRAPHEME_REACH)
    for cut in range(end, low, -1):
        if not _joined(text, start, cut):
            return cut
    return end


def _joined(text: str, start: int, cut: int) -> bool:
    """Whether the characters on both sides of `cut` are shown as one."""
    if cut >= len(text):
        return False
    left, right = text[cut - 1], text[cut]
    if right < "\u0300" and left < "\u0300":
        return left == "\r" and right == "\n"
    if left == _ZWJ or _extends(right):
        return True
    if _is_regional(left) and _is_regional(right):
        run = cut
        while run > start and _is_regional(text[run - 1]):
            run -= 1
        return (cut - run) % 2 == 1
    return _is_hangul_part(left, right)


def _extends(ch: str) -> bool:
    """Characters that change the one before them: marks, variation selectors, skin tones, tags, joiner."""
    return (
        ch == _ZWJ
        or "\U0001f3fb" <= ch <= "\U0001f3ff"
        or "\U000e0020" <= ch <= "\U000e007f"
        or unicodedata.category(ch) in ("Mn", "Me", "Mc")
    )


def _is_regional(ch: str) -> bool:
    return "\U0001f1e6" <= ch <= "\U0001f1ff"


def _is_hangul_part(left: str, right: str) -> bool:
    """Old Hangul written as separate letters: leading, vowel and trailing jamo form one syllable."""
    leading, vowel = "\u1100" <= left <= "\u115f", "\u1160" <= left <= "\u11a7"
    return (leading and "\u1100" <= right <= "\u11a7") or (vowel and "\u1160" <= right <= "\u11ff")


# -- Markdown ----------------------------------------------------------------------------------------


_CLOSERS = frozenset(":;.,!?)]}>%\"'”’»…`*~")
_OPENERS = frozenset("\"'“‘«`[*~")


class _CjkStateInline(StateInline):
    """CommonMark's emphasis rule looks for spaces, which Chinese and Japanese do not write.

    `**注意：**后面` stays literal under the rule of the specification (0.31, "delimiter runs"). Where a
    run of `*` or `~` touches a wide character, it opens and closes wherever no space forbids it. Two or
    more of them also do beside a word when a mark stands on the other side: `**Status:**OK`.
    """

    def scanDelims(self, start: int, canSplitWord: bool) -> Scanned:  # noqa: N802, N803 - the parser's names
        scanned = super().scanDelims(start, canSplitWord)
        if self.src[start] not in "*~":
            return scanned
        after = start + scanned.length
        left = self.src[start - 1] if start > 0 else " "
        right = self.src[after] if after < self.posMax else " "
        if _sets_tight(left) or _sets_tight(right):
            return Scanned(not right.isspace(), not left.isspace(), scanned.length)
        if scanned.length < 2:
            return scanned  # 2*(3+4)*5 is arithmetic
        opens = scanned.can_open or (left.isalnum() and right in _OPENERS)
        closes = scanned.can_close or (right.isalnum() and left in _CLOSERS)
        return Scanned(opens, closes, scanned.length)


class _CjkParserInline(ParserInline):
    def parse(self, src: str, md: MarkdownIt, env: dict[str, object], tokens: list[Token]) -> list[Token]:  # type: ignore[override]
        state = _CjkStateInline(src, md, env, tokens)
        self.tokenize(state)
        for rule in self.ruler2.getRules(""):
            rule(state)
        return state.tokens


def _sets_tight(ch: str) -> bool:
    return is_wide(ch) or ch in _CJK_PUNCTUATION


def markdown_parser() -> MarkdownIt:
    """A parser for what models write: CommonMark, tables and ~~strikethrough~~, with the rule for CJK text.

    HTML is not interpreted (a tag is text). A new instance each time: a renderer may add its own rules.
    """
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False})
    inline = _CjkParserInline()
    inline.ruler, inline.ruler2 = parser.inline.ruler, parser.inline.ruler2
    parser.inline = inline
    return parser.enable(["table", "strikethrough"])
