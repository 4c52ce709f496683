"""What the page is given as HTML: safe whatever a model writes, and whole."""

from __future__ import annotations

import time
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.web.html import blocks

TAGS = {
    "p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "hr", "br", "a", "strong", "em",
    "s", "code", "pre", "div", "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip
ATTRIBUTES = {
    ("a", "href"), ("a", "title"), ("a", "target"), ("a", "rel"), ("pre", "data-language"), ("ol", "start"),
    ("code", "tabindex"), ("div", "class"), ("div", "tabindex"), ("th", "class"), ("td", "class"),
}  # fmt: skip


class Judge(HTMLParser):
    """Reads HTML as a browser would tokenise it and notes every tag and attribute that is not expected."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        self.faults += [f"<{tag}> is not closed" for tag in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in TAGS:
            self.faults.append(f"<{tag}>")
        for name, value in attrs:
            if (tag, name) not in ATTRIBUTES:
                self.faults.append(f"<{tag} {name}>")
            if name == "href":
                self.links.append(value or "")
                if not (value or "").lower().startswith(("http://", "https://", "mailto:")):
                    self.faults.append(f"link to {value!r}")
                if dict(attrs).get("rel") != "noopener noreferrer nofollow":
                    self.faults.append("link without rel")
        if tag not in ("br", "hr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in ("br", "hr"):
            self.faults.append(f"<{tag}/>")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes another")

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.faults.append("comment")

    def handle_decl(self, decl: str) -> None:
        self.faults.append("declaration")


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "a <b onmouseover=alert(1)>b</b>",
    "<!-- --><iframe src=//evil.example>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java\tscript:alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[x](%6aavascript:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](vbscript:x)",
    "[x](file:///etc/passwd)",
    "[x](/web/file/1)",
    "[x](//evil.example)",
    "[x](?after=1)",
    '[x](https://a.example/"onmouseover="alert(1))',
    '[x](https://a.example "t\\" onmouseover=\\"alert(1)")',
    "![x](javascript:alert(1))",
    '![x" onerror="alert(1)](https://a.example/p.png)',
    "![](https://a.example/track.png?q=secret)",
    "[![alt](https://a.example/i.png)](https://b.example)",
    "<https://a.example/<script>>",
    "<javascript:alert(1)>",
    "[ref]\n\n[ref]: javascript:alert(1) 'x'",
    '```html"><script>alert(1)</script>\n<script>alert(2)</script>\n```',
    '~~~ x" onclick="alert(1)\ncode\n~~~',
    "    <script>indented</script>",
    "`<script>alert(1)</script>`",
    "| <script> | [x](javascript:1) |\n|:-:|--:|\n| `</table>` | <b> |",
    'https://a.example/"><script>alert(1)</script>',
    "https://a.example/' onmouseover='alert(1)",
    "https://user:pw@evil.example/",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "[a](https://x.example\x00y)",
    "\x00<script>",
    "**<script>** _<i>_ ~~<s onclick=x>~~",
    "# <h1 onclick=x>",
    "1. <li onclick=x>\n   > <q>",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_markdown_becomes_harmless_html(text: str) -> None:
    judge = Judge("".join(blocks(text)))
    assert not judge.faults


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from([*HOSTILE, *"\n<>[)\"`a", "\n\n", "> ", "- ", "](", "```", "| ", "**"]),
        max_size=12,
    ).map("".join)
)  # fmt: skip
def test_pieces_of_hostile_markdown_put_together_stay_harmless(text: str) -> None:
    for block in blocks(text):
        assert not Judge(block).faults


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_any_text_gives_well_formed_html(text: str) -> None:
    assert not Judge("".join(blocks(text))).faults


def test_html_in_a_reply_is_shown_as_text() -> None:
    assert Judge("".join(blocks("use <b>bold</b> & co"))).text.strip() == "use <b>bold</b> & co"


def test_what_people_write_often_is_rendered() -> None:
    html = "".join(
        blocks(
            "# T\n\n**b** _i_ ~~s~~ `c`\n\n- a\n  - b\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n"
            "```python\nx<1\n```\n\n**注意：**后面"
        )
    )
    for part in (
        "<h1>T</h1>", "<strong>b</strong>", "<em>i</em>", "<s>s</s>", "<code>c</code>",
        '<td class="right">2</td>', '<pre data-language="python"><code tabindex="0">x&lt;1\n</code></pre>',
        "<strong>注意：</strong>后面",
    ):  # fmt: skip
        assert part in html


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("see https://a.example/x_y_z.", ["https://a.example/x_y_z"]),
        ("(https://a.example/w_(x))", ["https://a.example/w_(x)"]),
        ("见https://a.example/a。然后", ["https://a.example/a"]),
        ("`https://a.example`", []),
        ("[https://b.example](https://a.example)", ["https://a.example"]),
        ("<https://a.example>", ["https://a.example"]),
        ("mail [me](mailto:a@b.example)", ["mailto:a@b.example"]),
        ("![cat](https://a.example/cat.png)", ["https://a.example/cat.png"]),
        ("http://", []),
    ],
)
def test_web_addresses_become_links(text: str, links: list[str]) -> None:
    assert Judge("".join(blocks(text))).links == links


def test_a_line_break_in_a_reply_stays_one() -> None:
    assert "".join(blocks("**Model:** demo\n**Tools:** 7")).count("<br>") == 1


def test_of_a_growing_text_only_the_last_blocks_change() -> None:
    text = "# Title\n\nFirst paragraph.\n\n- a\n- b\n\n```\ncode\n```\n\nThe end is near."
    whole = blocks(text)
    assert len(whole) == 5
    assert blocks(text[:-5])[:4] == whole[:4]


def test_long_and_deep_texts_are_rendered_in_time() -> None:
    for text in (
        "> " * 3000 + "x",
        "[" * 5000,
        "*a **b " * 3000,
        "| a " * 2000 + "|\n" + "|-" * 2000 + "|\n",
    ):
        begun = time.perf_counter()
        blocks(text)
        assert time.perf_counter() - begun < 3
