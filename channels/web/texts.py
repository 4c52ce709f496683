"""Texts of the page's cards, in English and Chinese; the page's other texts stand with the bridge's."""

from __future__ import annotations

TEXTS: dict[str, tuple[str, str]] = {
    "web.card": ("Question", "需要确认"),
    "web.card.failed": (
        "That did not reach the bridge. Please try again.",
        "没有送达,请重试。",
    ),
    "web.console": ("Console", "控制台"),
}
