"""The page has all its texts in the catalogue, in both languages."""

from __future__ import annotations

import json
import re

import pytest

from bridge import texts
from bridge.texts import text
from channels.web.page import Assets
from channels.web.texts import TEXTS

texts.add(TEXTS)  # as the bridge does when it opens the channel


@pytest.mark.parametrize(("language", "send"), [("en-GB", "Send"), ("zh-CN", "发送"), ("", "Send")])
def test_the_page_is_complete_in_both_languages(language: str, send: str) -> None:
    page = Assets.load().page_response(text, language).text or ""
    assert f'aria-label="{send}"' in page
    assert not re.findall(r"\{\{|\bweb\.[a-z]", page)
    block = re.search(r'<script id="labels" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert block is not None
    labels = json.loads(block[1])
    script = Assets.load().files["app.js"][0].decode()
    for name in re.findall(r'labels(?:\.([a-z_]+)|\["([a-z_.]+)"\])', script):
        assert labels["".join(name)]


def test_a_text_cannot_break_out_of_the_page() -> None:
    page = Assets.load().page_response(lambda key, language="", /, **_: '</script><b x="', "en").text or ""
    assert "</script><b" not in page
