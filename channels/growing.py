"""What to print next of a text that grows, where nothing printed can be taken back.

Streams of server-sent deltas and terminals show a reply by appending. A reply mostly only grows, but a
model stream that broke and was tried again makes it shrink and grow anew.
"""

from __future__ import annotations

#: Stands between what was shown in vain and the rest of the final text.
BREAK = "\n\n"


class Growing:
    """Follows one growing text. `more` gives what to append now.

    While the text is not an extension of what was shown, everything is held back: mostly the second try says
    the same words and catches up. If even the final text parted from what was shown, its rest follows after a
    blank line, from the start of the line in which the two part, so that no final line is shown by halves.
    """

    __slots__ = ("shown",)

    def __init__(self) -> None:
        self.shown = ""

    def more(self, text: str, *, final: bool = False) -> str:
        if text.startswith(self.shown):
            delta = text[len(self.shown) :]
            self.shown = text
            return delta
        if not final:
            return ""
        rest = text[_line_of_parting(self.shown, text) :]
        self.shown = text
        return BREAK + rest if rest else ""


def _line_of_parting(shown: str, text: str) -> int:
    """Where the line begins in which `text` first differs from `shown`; len(text) when it never does."""
    if shown.startswith(text):
        return len(text)
    low, high = 0, min(len(shown), len(text))
    while low < high:  # binary search on equal prefixes: comparing slices is faster than a Python loop
        middle = (low + high + 1) // 2
        if shown[:middle] == text[:middle]:
            low = middle
        else:
            high = middle - 1
    return text.rfind("\n", 0, low) + 1
