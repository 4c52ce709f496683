"""The console has all its texts in the catalogue, in both languages."""

from __future__ import annotations

import json
import re

import pytest

from bridge import texts
from bridge.console import pages
from bridge.console.texts import TEXTS

texts.add(TEXTS)


@pytest.mark.parametrize(("language", "title"), [("en-GB", "Console"), ("zh-CN", "控制台"), ("", "Console")])
def test_the_console_is_complete_in_both_languages(language: str, title: str) -> None:
    assets = pages._load()
    page = assets.page_response(texts.text, language, TEXTS).text or ""
    assert f"<h1>{title}</h1>" in page
    assert not re.findall(r"\{\{|\bconsole\.[a-z_]+\}", page)
    block = re.search(r'<script id="labels" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert block is not None
    labels = json.loads(block[1])
    script = assets.files["console.js"][0].decode()
    used = set(re.findall(r"labels\.([a-z_]+)", script))
    assert len(used) > 20
    assert used <= labels.keys()
    states = ["ready", "starting", "restarting", "needs_auth", "disabled", "available", "unavailable"]
    outcomes = ["allowed", "session", "always", "denied", "timeout", "not_permitted"]
    groups = ["person", "by_chat", "by_session", "by_model", "by_tool", "each_person", "each_chat", "in_all"]
    groups += ["messages", "day_tokens", "runs"]
    roles, figures = ["admin", "member", "guest"], ["answers", "input", "cached", "output", "cost"]
    for name in (*states, *outcomes, *roles, *figures, *groups, "locked"):
        assert labels[name]
