"""What becomes of a tool's text before a model sees it: bounded head-and-tail, secrets masked."""

from __future__ import annotations

from agent.tools.masking import LONGEST, MASK, Masker, MaskingFilter

__all__ = ["MASK", "Masker", "MaskingFilter", "bound", "finish"]

_HOW = "Ask for less (a narrower path, pattern or range) to see the rest."


def bound(text: str, limit: int, how: str = _HOW) -> str:
    """At most about `limit` characters: the beginning and the end, and between them a line that says how
    many characters were left out and `how` to get them."""
    if len(text) <= limit:
        return text
    head, tail = _cut(text[: _head(limit)], text[-(limit - _head(limit)) :])
    return _joined(head, tail, len(text) - len(head) - len(tail), how)


def finish(text: str, limit: int, masker: Masker, how: str = _HOW) -> str:
    """`bound` with secrets masked, in time that depends on `limit` and not on the text's length.

    A secret that the cut goes through is not left in half: some more than is shown is masked, and the
    surplus is dropped afterwards.
    """
    if len(text) <= limit + LONGEST:
        return bound(masker.mask(text), limit, how)
    size = _head(limit)
    head = masker.mask(text[: size + LONGEST])[:-LONGEST][:size]
    tail = masker.mask(text[-(limit - size + LONGEST) :])[LONGEST:][-(limit - size) :]
    head, tail = _cut(head, tail)
    return _joined(head, tail, len(text) - len(head) - len(tail), how)


def _head(limit: int) -> int:
    return limit * 3 // 5


def _cut(head: str, tail: str) -> tuple[str, str]:
    """Move both cuts to the ends of lines when these are near."""
    end = head.rfind("\n")
    if end > len(head) * 3 // 4:
        head = head[:end]
    start = tail.find("\n")
    if 0 <= start < len(tail) // 4:
        tail = tail[start + 1 :]
    return head, tail


def _joined(head: str, tail: str, left_out: int, how: str) -> str:
    return f"{head}\n[... {left_out} characters left out here. {how} ...]\n{tail}"
