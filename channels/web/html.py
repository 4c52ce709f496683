"""Markdown to HTML that is safe to put into the page, cut into its top-level blocks.

What a model writes is not trusted: HTML in it is text, links lead only to http, https and mailto, a picture
becomes a link (loading it would tell its server who reads here). Inline styles are not used, since the page's
content policy forbids them. Blocks are separate so that of a growing text only the last ones travel again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

from channels.text import markdown_parser

_ALLOWED = re.compile(r"(?:https?://|mailto:)[^\s]", re.IGNORECASE)
#: A web address in running text: ASCII only, so that Chinese text right behind it is not taken along.
_ADDRESS = re.compile(r"https?://[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+", re.IGNORECASE)
_LANGUAGE = re.compile(r"[A-Za-z0-9+#_.-]{1,30}")
_LINK = 'target="_blank" rel="noopener noreferrer nofollow"'


def blocks(text: str) -> list[str]:
    """The HTML of each top-level block of `text`. About 0.4 ms a kilobyte: long ones in a thread."""
    parser = _parser()
    env: dict[str, Any] = {}
    tokens = parser.parse(text, env)
    return [parser.renderer.render(group, parser.options, env) for group in _groups(tokens)]


def _groups(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    group: list[Token] = []
    depth = 0
    for token in tokens:
        group.append(token)
        depth += token.nesting
        if depth == 0:
            yield group
            group = []
    if group:
        yield group


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    parser = markdown_parser()
    setattr(parser, "validateLink", lambda url: _ALLOWED.match(url) is not None)  # noqa: B010 (a method)
    for name, rule in _RULES.items():
        parser.add_render_rule(name, rule)
    return parser


def _link_open(
    self: RendererHTML, tokens: Sequence[Token], i: int, options: OptionsDict, env: dict[str, Any]
) -> str:
    return f"{_anchor(str(tokens[i].attrGet('href') or ''), str(tokens[i].attrGet('title') or ''))}"


def _anchor(href: str, title: str = "") -> str:
    titled = f' title="{escapeHtml(title)}"' if title else ""
    return f'<a href="{escapeHtml(href)}"{titled} {_LINK}>'


def _image(
    self: RendererHTML, tokens: Sequence[Token], i: int, options: OptionsDict, env: dict[str, Any]
) -> str:
    token = tokens[i]
    address = str(token.attrGet("src") or "")
    label = escapeHtml(self.renderInlineAsText(token.children, options, env).strip() or address)
    if _inside_link(tokens, i):
        return label
    return f"{_anchor(address)}{label}</a>"


def _text(
    self: RendererHTML, tokens: Sequence[Token], i: int, options: OptionsDict, env: dict[str, Any]
) -> str:
    content = tokens[i].content
    if "://" not in content or _inside_link(tokens, i):
        return escapeHtml(content)
    parts: list[str] = []
    end = 0
    for found in _ADDRESS.finditer(content):
        address = _without_tail(found.group())
        parts.append(escapeHtml(content[end : found.start()]))
        parts.append(f"{_anchor(address)}{escapeHtml(address)}</a>")
        end = found.start() + len(address)
    parts.append(escapeHtml(content[end:]))
    return "".join(parts)


def _without_tail(address: str) -> str:
    """Without the punctuation of the sentence around it, and without a bracket that opened before it."""
    while True:
        last = address[-1]
        unopened = (last == ")" and address.count(")") > address.count("(")) or (
            last == "]" and address.count("]") > address.count("[")
        )
        if last not in ".,:;!?'*" and not unopened:
            return address
        address = address[:-1]


def _inside_link(tokens: Sequence[Token], i: int) -> bool:
    opened = sum(token.type == "link_open" for token in tokens[:i])
    return opened > sum(token.type == "link_close" for token in tokens[:i])


def _code(
    self: RendererHTML, tokens: Sequence[Token], i: int, options: OptionsDict, env: dict[str, Any]
) -> str:
    language = _LANGUAGE.match(tokens[i].info.strip()) if tokens[i].info else None
    label = f' data-language="{escapeHtml(language.group())}"' if language else ""
    return f'<pre{label}><code tabindex="0">{escapeHtml(tokens[i].content)}</code></pre>\n'


def _cell(
    self: RendererHTML, tokens: Sequence[Token], i: int, options: OptionsDict, env: dict[str, Any]
) -> str:
    style = str(tokens[i].attrGet("style") or "")
    side = next((side for side in ("right", "center") if style.endswith(side)), "")
    return f'<{tokens[i].tag} class="{side}">' if side else f"<{tokens[i].tag}>"


_RULES = {
    "link_open": _link_open,
    "image": _image,
    "text": _text,
    "fence": _code,
    "code_block": _code,
    # In a chat a line break is meant as one.
    "softbreak": lambda *_: "<br>\n",
    "th_open": _cell,
    "td_open": _cell,
    "table_open": lambda *_: '<div class="table" tabindex="0"><table>\n',
    "table_close": lambda *_: "</table></div>\n",
}
