"""The guide to MCP says what the program does: its keys and its commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.tools.mcp.config import _ALIASES
from bridge.cli import parser

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("guide", ["mcp.md", "mcp.zh.md"])
def test_every_key_of_an_entry_stands_in_the_guide(guide: str) -> None:
    text = (DOCS / guide).read_text()
    missing = [names for what, names in _ALIASES.items() if what != "enabled" and not _any(names, text)]
    assert missing == []


def _any(names: tuple[str, ...], text: str) -> bool:
    return any(f"`{name}`" in text or f'"{name}":' in text for name in names)


@pytest.mark.parametrize("guide", ["mcp.md", "mcp.zh.md"])
def test_every_command_in_the_guide_exists_and_every_one_is_there(guide: str) -> None:
    text = (DOCS / guide).read_text()
    lines = re.findall(r"causeway mcp (list|\w+ NAME|\w+ \[NAME\]|\w+)(?=  )", text)
    shown = {line.split()[0] for line in lines}
    for line in lines:
        parser().parse_args(["mcp", *line.replace("[NAME]", "").split()])
    assert shown == {"list", "test", "reload", "restart", "login"}
