"""HTML becomes readable text, in bounded time."""

from __future__ import annotations

import time

import pytest

from agent.tools.builtin.html import readable

PAGE = """<!DOCTYPE html><html><head><title>The &amp; Page</title><style>p{}</style><script>evil()</script>
</head><body><nav><a href="/home">Home</a></nav><h1>Big</h1><p>One   <b>two</b>
three.</p><ul><li>a<li>b<ol><li>c</ol></ul><pre>x = 1
  y</pre><table><tr><th>k</th><th>v</th></tr><tr><td>1</td><td>2</td></tr></table>
<p>See <a href="page?x=1&amp;y=2">this</a> and <a href="javascript:alert(1)">that</a>.<img alt="a cat" src=x>
<script>if (a < b) document.write("<p>no</p>")</script><!-- hidden --><template>t</template></body></html>"""


def test_a_page_becomes_its_title_and_its_text() -> None:
    title, text, whole = readable(PAGE, "https://example.org/d/")
    assert whole
    assert title == "The & Page"
    assert "[Home](https://example.org/home)" in text
    assert "# Big\n\nOne two three." in text
    assert "- a\n- b\n  1. c" in text
    assert "```\nx = 1\n  y\n```" in text
    assert "| k | v\n| 1 | 2" in text
    assert "[this](https://example.org/d/page?x=1&y=2) and that." in text
    assert "[picture: a cat]" in text
    for hidden in ("evil", "hidden", "p{}", "document", "javascript"):
        assert hidden not in text


@pytest.mark.parametrize(
    "part", ["<!--", "<a", "<a href='", "<![CDATA[", "</a", "<div>", "&#", "<ul><li>", "<a href=x>", "<pre>"]
)
def test_a_page_made_to_take_for_ever_is_left_in_time(part: str) -> None:
    began = time.monotonic()
    readable(part * (1_000_000 // len(part)), "https://example.org/", seconds=0.2)
    assert time.monotonic() - began < 5.0


def test_text_without_end_is_cut() -> None:
    _, text, whole = readable("<p>word " * 10_000, "https://example.org/", most=1_000)
    assert not whole
    assert 500 < len(text) <= 1_100
