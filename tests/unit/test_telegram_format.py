"""Markdown as Telegram shows it; every result is judged by TDLib."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from channels.telegram.chunks import split
from channels.telegram.format import link_target, markdown
from tests.fakes.telegram_judge import Refused, judge, units

Piece = tuple[str, list[dict[str, Any]]]


def show(text: str, limit: int = 4096) -> list[Piece]:
    """Rendered and cut; each piece is accepted by the judge exactly as it is."""
    pieces = split(markdown(text), limit)
    for shown, entities in pieces:
        judged = judge(shown, entities)
        assert judged.text == shown  # the server trims nothing
        assert judged.entities == entities
        assert len(entities) <= 100
        assert units(shown) <= limit
    return pieces


def one(text: str) -> Piece:
    pieces = show(text)
    assert len(pieces) == 1
    return pieces[0]


def marked(piece: Piece) -> list[tuple[str, str]]:
    """(type, the text it covers) of each entity."""
    text, entities = piece
    coded = text.encode("utf-16-le")
    return [
        (e["type"], coded[2 * e["offset"] : 2 * (e["offset"] + e["length"])].decode("utf-16-le"))
        for e in entities
    ]


def without_blanks(text: str) -> str:
    return "".join(text.split())


# -- cases -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", ["!", "<", "&", "_", "\\", "*"])
def test_tg_01_4096_signs_that_a_parse_mode_would_escape_arrive_as_they_are(sign: str) -> None:
    text = f"a{sign * 4094}b"
    pieces = show(text)
    shown = "".join(text for text, _ in pieces)
    # A backslash escapes the next one in Markdown itself; all others are literal here.
    assert shown == (text if sign != "\\" else f"a{sign * 2047}b")
    assert len(pieces) == 1


def test_tg_02_5000_emoji_are_cut_by_utf16_units() -> None:
    text = "\U0001f600" * 5000
    pieces = show(text)
    assert [units(text) for text, _ in pieces] == [4096, 4096, 1808]
    assert "".join(text for text, _ in pieces) == text


@pytest.mark.parametrize(("fence", "inner"), [("````", "```"), ("~~~", "```"), ("~~~~", "~~~")])
def test_tg_04_an_inner_fence_does_not_close_the_outer_one(fence: str, inner: str) -> None:
    piece = one(f"{fence}text\n{inner}py\nprint(1)\n{inner}\n{fence}\nafter **x**")
    assert marked(piece) == [("pre", f"{inner}py\nprint(1)\n{inner}"), ("bold", "x")]
    assert piece[1][0]["language"] == "text"
    assert piece[0].endswith("after x")


def test_tg_05_a_fence_that_never_closes_is_cut_in_time() -> None:
    began = time.perf_counter()
    pieces = show("```\n" + "a" * 9000, limit=4000)
    assert time.perf_counter() - began < 1
    assert [len(text) for text, _ in pieces] == [4000, 4000, 1000]
    assert all(entities[0]["type"] == "pre" for _, entities in pieces)


def test_tg_05_the_smallest_limit_still_comes_to_an_end() -> None:
    pieces = show("```\n😀a 🇩🇪\n\n  😀\n```\n😀", limit=2)
    assert without_blanks("".join(text for text, _ in pieces)) == "😀a🇩🇪😀😀"


@pytest.mark.parametrize("limit", [0, 1])
def test_tg_05_a_nonsense_limit_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="larger"):
        split(markdown("text"), limit)


def test_tg_07_a_link_keeps_the_parentheses_of_its_target() -> None:
    text, entities = one("[t](https://example.org/wiki/Foo_(bar)) and ([t](https://example.org/a))")
    assert text == "t and (t)"
    assert [e["url"] for e in entities] == ["https://example.org/wiki/Foo_(bar)", "https://example.org/a"]


def test_tg_08_identifiers_keep_their_underscores() -> None:
    piece = one("call user_id_field, then MAX_RETRY_COUNT, then _really_ stop")
    assert piece[0] == "call user_id_field, then MAX_RETRY_COUNT, then really stop"
    assert marked(piece) == [("italic", "really")]


def test_tg_14_a_list_item_with_code_and_a_table_with_a_link_are_readable() -> None:
    piece = one("1. Foo:\n\n```\nBar\n```\n\n| A | B |\n|---|---|\n| [x](https://example.org/1) | 3 |\n")
    assert piece[0] == "1. Foo:\n\nBar\n\nA — B\n• x — 3"
    assert ("pre", "Bar") in marked(piece)
    assert ("text_link", "x") in marked(piece)


def test_sc_07_a_local_path_in_a_link_or_image_is_only_text() -> None:
    text, entities = one(
        "![pic](../../secret.txt) [f](/etc/passwd) [g](file:///etc/passwd) MEDIA:/etc/passwd"
    )
    assert entities == []
    assert text.startswith("pic (../../secret.txt) f (/etc/passwd) ")


# -- forms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "text", "entities"),
    [
        ("**a _b_ `c` d**", "a b c d", [("bold", "a b "), ("italic", "b"), ("code", "c"), ("bold", " d")]),
        ("# Title\ntext", "Title\ntext", [("bold", "Title")]),
        ("~~gone~~", "gone", [("strikethrough", "gone")]),
        ("> a\n> b\n\nc", "a\nb\n\nc", [("blockquote", "a\nb")]),
        ("> `a`", "a", [("blockquote", "a"), ("code", "a")]),
        ("> a\n>> b", "a\n> b", [("blockquote", "a\n> b")]),
        ("> a\n\n---\n\n> b", "a\n\n──────────\n\nb", [("blockquote", "a"), ("blockquote", "b")]),
        ("- a\n- b\n  - c\n    1. d", "• a\n• b\n  ◦ c\n    1. d", []),
        ("7. a\n8. b", "7. a\n8. b", []),
        ("- [ ] todo\n- [x] done", "☐ todo\n☑ done", []),
        ("- a\n\n  b", "• a\n\n  b", []),
        ("-", "•", []),
        ("1. ```py\n   x\n   ```\n2. y", "1. \nx\n2. y", [("pre", "x")]),
        ("```\n\tx\n```", "    x", [("pre", "    x")]),
        ("<https://example.org>", "https://example.org", []),
        ("<a@example.org> [mail](mailto:b@example.org)", "a@example.org mail (b@example.org)", []),
        ("![a cat](https://example.org/c.png)", "a cat", [("text_link", "a cat")]),
        (
            "![](https://example.org/c.png)",
            "https://example.org/c.png",
            [("text_link", "https://example.org/c.png")],
        ),
        ("[x](http://localhost:8080/a)", "x (http://localhost:8080/a)", []),
        ("[`c` **b**](https://example.org)", "c b", [("text_link", "c b"), ("bold", "b")]),
        ("a\nb  \nc", "a\nb\nc", []),
        ("&lt;b&gt; &amp; <i>", "<b> & <i>", []),
        ("😀 **b**", "😀 b", [("bold", "b")]),
        ("**注意：**后面", "注意：后面", [("bold", "注意：")]),
        ("- - a", "• ◦ a", []),
        ("- > a", "• a", [("blockquote", "• a")]),
        ("> - > a\n>   > b", "• \n  > a\n  > b", [("blockquote", "• \n  > a\n  > b")]),
        (
            "|A|B|\n|-|-:|\n|1|数字|",
            "A │    B\n──┼─────\n1 │ 数字",
            [("pre", "A │    B\n──┼─────\n1 │ 数字")],
        ),
    ],
)
def test_each_form_is_shown(source: str, text: str, entities: list[tuple[str, str]]) -> None:
    piece = one(source)
    assert piece[0] == text
    assert marked(piece) == entities


def test_a_wide_table_becomes_a_list_that_names_each_cell() -> None:
    head = "| Name | Purpose of the thing | Price |\n|---|---|---|\n"
    piece = one(head + "| hammer | drives long nails into **wood** | 10 |\n| saw | cuts | 12 |")
    assert piece[0].split("\n") == [
        "Name: hammer",
        "• Purpose of the thing: drives long nails into wood",
        "• Price: 10",
        "",
        "Name: saw",
        "• Purpose of the thing: cuts",
        "• Price: 12",
    ]
    assert ("bold", "wood") in marked(piece)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("a\rb\r\nc", "a\nb\nc"),
        ("a\u2028b\u202ec", "a\nbc"),
        ("A\u030a", "Å"),
        ("a\x07b", "a b"),
        ("half \ud83d pair", "half \ufffd pair"),
        ("tab\there", "tab here"),
        ("a&#x202e;b&#9;c&#13;d", "ab c\nd"),
        ("[a](x%0D%0A%E2%80%AEy)", "a (x y)"),
    ],
)
def test_what_the_server_would_change_silently_is_changed_before(raw: str, text: str) -> None:
    assert one(raw)[0] == text


@pytest.mark.parametrize("nothing", ["", "  \n\n ", "\u200b", "```\n```", "\u2800\u3000"])
def test_what_cannot_be_seen_makes_no_message(nothing: str) -> None:
    assert split(markdown(nothing)) == []


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/wiki/Foo_(bar)", "http://localhost/x", "https://x", "mailto:a@b.c", "tg://user?id=1",
        "tg://resolve?domain=a", "https://a b.c", "http://", "https://exa_mple.org", "http://1.2.3.4:80/a",
        "http://[::1]/x", "HTTPS://Example.ORG", "ftp://a.b/c", "https://u:p@host.de/x", "https://a.de:99999/",
        "https://a.de:0/", "https://a.b?x#y", "tel:+1", "https://é.de", "/etc/passwd", "./a.txt", "https://a..b/",
        "https://a.b:80:80/", "https://.a.de", "https://a.de.", "https:///x.de",
    ],
)  # fmt: skip
def test_a_target_is_a_link_only_if_the_server_keeps_it(url: str) -> None:
    target = link_target(url)
    if target:
        judge("t", [{"type": "text_link", "offset": 0, "length": 1, "url": target}])


def test_most_web_addresses_are_links() -> None:
    for url in ("https://example.org/a?b=c#d", "http://1.2.3.4:80/a", "https://é.de", "http://[::1]/x"):
        assert link_target(url) == url


# -- cutting -----------------------------------------------------------------------------------------


def test_code_goes_on_as_code_in_the_next_message_with_its_indent() -> None:
    code = "\n".join(f"    line {n}" for n in range(600))
    pieces = show(f"before\n```py\n{code}\n```\nafter **x**")
    assert len(pieces) > 1
    for text, entities in pieces[1:]:
        assert entities[0] == {"type": "pre", "offset": 0, "length": entities[0]["length"], "language": "py"}
        assert text.startswith("    line ")
    lines = "\n".join(text for text, _ in pieces)
    assert [line for line in lines.split("\n") if "line" in line] == code.split("\n")


def test_code_that_fits_one_message_is_not_torn() -> None:
    code = "\n".join(f"line {n}" for n in range(300))
    pieces = show("word " * 700 + f"\n```\n{code}\n```")
    assert [marked(piece) for piece in pieces] == [[], [("pre", code)]]


def test_bold_over_a_cut_is_bold_on_both_sides() -> None:
    pieces = show("**" + "word " * 1500 + "end**")
    assert [marked(piece) for piece in pieces] == [[("bold", text)] for text, _ in pieces]
    assert len(pieces) == 2


def test_more_than_100_entities_are_spread_over_messages() -> None:
    pieces = show(" ".join(f"**b{n}**" for n in range(250)))
    found = [word for piece in pieces for _, word in marked(piece)]
    assert found == [f"b{n}" for n in range(250)]


def test_a_chunk_that_is_full_does_not_change_when_the_text_grows() -> None:
    words = [f"word{n}" for n in range(3000)]
    full = show(" ".join(words))
    for count in (1000, 1700, 2500):
        grown = show(" ".join(words[:count]))
        assert grown[:-1] == full[: len(grown) - 1]


PIECES = [
    *("**", "*", "_", "~~", "`", "```", "````", "~~~", "\n", "\n\n", " ", "  ", "> ", "- ", "1. ", "# "),
    *("| ", "|", "|-|-|\n", "\n| a | b |\n|---|--:|\n| 1 | 数 |\n", "---\n", "    ", "\t", "- [ ] "),
    *("[", "](", ")", "](https://example.org/x_(y))", "![", "](./a)", "<", ">", "<https://example.org>"),
    *(
        "\\",
        "&amp;",
        "&#9;",
        "&#x202e;",
        "&#xd800;",
        "&#13;",
        "%0D",
        "\r",
        "word",
        "snake_case_name",
        "中文",
        "：",
        "“",
        "”",
        "。",
        "😀",
        "🇩🇪",
    ),
    *("👩\u200d👩\u200d👧", "\u0301", "\u202e", "\u200b", "\u2800", "\ud83d", "a" * 50, "x.py"),
    *("long line of words " * 4, "```py\n", "\n```\n", "<b>", "=="),
]


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=60),
    st.sampled_from([2, 7, 40, 200, 4096]),
)
def test_any_markdown_is_accepted_and_complete(parts: list[str], limit: int) -> None:
    accepted_and_complete("".join(parts), limit)


@pytest.mark.parametrize("limit", [2, 7, 40, 200, 4096])
def test_long_mixtures_of_markdown_are_accepted_and_complete(limit: int) -> None:
    rng = random.Random(limit)
    for _ in range(150):
        accepted_and_complete("".join(rng.choices(PIECES, k=rng.randint(30, 90))), limit)


def accepted_and_complete(source: str, limit: int) -> None:
    whole = "".join(text for text, _ in markdown(source))
    pieces = show(source, limit)
    at = 0
    for text, _ in pieces:
        found = whole.find(text, at)
        assert found >= 0, "a piece is not the next part of the text"
        assert _invisible(whole[at:found]), "something between two pieces was lost"
        at = found + len(text)
    assert _invisible(whole[at:])


def _invisible(text: str) -> bool:
    try:
        judge(text or " ", [])
    except Refused as refused:
        return "non-empty" in str(refused)
    return False


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_words_survive_rendering(text: str) -> None:
    letters = "".join(ch for ch in text if ch.isalpha() and ch.isascii())
    rendered = "".join(shown for shown, _ in split(markdown(letters)))
    assert without_blanks(rendered) == letters
