"""Text as Slack sends it, made readable: escapes decoded once, references named.

Slack writes `<@U…>`, `<#C…|name>`, `<!subteam^S…|@x>`, `<!here>`, `<!date^…^…|fallback>`, `<url|label>` and
escapes `&`, `<`, `>` in everything else (docs.slack.dev, Formatting message text), so an angle bracket
always begins a reference. Everything here is pure.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from channels.slack.dialects import escape

Data: TypeAlias = dict[str, Any]

_REFERENCE = re.compile(r"<([^<>\n]+)>")
_USER = re.compile(r"<@([UW][A-Z0-9]+)(?:\|([^<>]*))?>")
_CHANNEL = re.compile(r"<#([CDG][A-Z0-9]+)(?:\|([^<>]*))?>")
#: Elements of rich text that are references in `text`.
_LEAVES = {
    "user": "<@{user_id}>",
    "channel": "<#{channel_id}>",
    "usergroup": "<!subteam^{usergroup_id}>",
    "broadcast": "<!{range}>",
    "emoji": ":{name}:",
}


@dataclass(frozen=True, slots=True)
class Names:
    """What ids are called. An id that is not here stays readable as itself."""

    users: Mapping[str, str] = field(default_factory=dict)
    channels: Mapping[str, str] = field(default_factory=dict)


def users_in(text: str) -> set[str]:
    return {match[1] for match in _USER.finditer(text)}


def channels_in(text: str) -> set[str]:
    """Channels that the text names by id alone."""
    return {match[1] for match in _CHANNEL.finditer(text) if not match[2]}


def mentions(text: str, user: str) -> bool:
    return bool(user) and user in users_in(text)


def calls_another(text: str, me: str) -> bool:
    """Whether a message begins by calling somebody else than `me`: then it is not for the bot."""
    first = _USER.match(text.lstrip())
    return first is not None and first[1] != me


def unescape(text: str) -> str:
    """Decode Slack's three entities, once: `&amp;lt;` is the text `&lt;`."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def readable(text: str, names: Names, me: str = "") -> str:
    """The text as a person reads it, without mentions of `me`."""
    if me:  # the blanks and the comma or colon that went with it go as well
        mine = rf"<@{re.escape(me)}(?:\|[^<>]*)?>"
        text = re.sub(rf"(?m)^[^\S\n]*{mine}[ \t]*[,:，：]?[ \t]*", "", text)
        text = re.sub(rf"[ \t]*{mine}", "", text)
    parts = enumerate(_REFERENCE.split(text))  # every second one is a reference
    return "".join(_reference(part, names) if n % 2 else unescape(part) for n, part in parts).strip()


def _reference(inner: str, names: Names) -> str:
    target, _, label = inner.partition("|")
    label = unescape(label)
    kind, rest = target[:1], target[1:]
    if kind == "@":
        return "@" + (names.users.get(rest) or label.lstrip("@") or rest)
    if kind == "#":
        return "#" + (label.lstrip("#") or names.channels.get(rest) or rest)
    if kind != "!":
        return _link(unescape(target), label)
    word, _, more = rest.partition("^")
    if word in ("here", "channel", "everyone"):
        return "@" + word
    if word == "subteam":
        return "@" + (label.lstrip("@") or more)
    # A date's fallback is what clients show that cannot show it themselves; so for words yet unknown.
    return label or more.split("^")[0] or rest


def _link(target: str, label: str) -> str:
    for scheme in ("mailto:", "tel:"):
        if target.startswith(scheme):
            bare = target.removeprefix(scheme)
            return bare if label in ("", bare) else f"{label} ({bare})"
    plain = re.sub(r"^https?://", "", target).rstrip("/")
    if not label or label.rstrip("/") in (target.rstrip("/"), plain):
        return target
    return f"[{label}]({target})"


# -- messages that keep their words elsewhere than in `text` -----------------------------------------------


def full_text(message: Data) -> str:
    """The words of a message in Slack's escaped form: its text, or what its blocks and attachments say.

    Slack puts a fallback of the blocks into `text` for people's messages; apps often leave it out.
    """
    text = str(message.get("text") or "").strip()
    if not text:
        text = _lines(_block(block) for block in dicts(message.get("blocks")))
    extra = (_attachment(a) for a in dicts(message.get("attachments")) if not _is_share(a))
    return _lines((text, *extra))


def shared(message: Data) -> list[Data]:
    """Messages that were forwarded with this one: `text`, `author_name`, `ts`."""
    return [a for a in dicts(message.get("attachments")) if _is_share(a)]


def share_text(attachment: Data) -> str:
    if text := str(attachment.get("text") or "").strip():
        return text
    inner = dicts([entry.get("message") for entry in dicts(attachment.get("message_blocks"))])
    found = "\n".join(_block(block) for message in inner for block in dicts(message.get("blocks")))
    return found or str(attachment.get("fallback") or "")


def _is_share(attachment: Data) -> bool:
    return bool(attachment.get("is_share") or attachment.get("is_msg_unfurl"))


def _attachment(attachment: Data) -> str:
    """The words of an app's attachment. A link's preview (`from_url`) is not what the person said."""
    if attachment.get("from_url") or attachment.get("original_url"):
        return ""
    parts = [str(attachment.get(key) or "") for key in ("pretext", "title", "text")]
    parts += [f"{f.get('title', '')}: {f.get('value', '')}" for f in dicts(attachment.get("fields"))]
    parts += [_block(block) for block in dicts(attachment.get("blocks"))]
    return _lines(parts) or str(attachment.get("fallback") or "")


def _block(block: Data) -> str:
    kind = block.get("type")
    if kind == "rich_text":
        return "\n".join(_rich(element) for element in dicts(block.get("elements")))
    if kind == "markdown":
        return escape(str(block.get("text") or ""))
    if kind == "image":
        return escape(str(block.get("alt_text") or ""))
    if kind == "table":
        rows = block.get("rows") or ()
        return "\n".join(" | ".join(map(_cell, row)) for row in rows if isinstance(row, list))
    elements = dicts(block.get("elements")) if kind == "context" else []
    return _lines(map(_object, (block.get("text"), *dicts(block.get("fields")), *elements)))


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(filter(None, parts))


def _cell(cell: Any) -> str:
    if not isinstance(cell, dict):
        return ""
    return _block(cell) if cell.get("type") == "rich_text" else escape(str(cell.get("text") or ""))


def _object(value: Any) -> str:
    """A text object: mrkdwn is escaped already, plain text is not."""
    if not isinstance(value, dict):
        return ""
    text = str(value.get("text") or "")
    return text if value.get("type") == "mrkdwn" else escape(text)


def _rich(element: Data) -> str:
    """An element of rich text, back in the form that `readable` reads."""
    kind = element.get("type")
    children = [_rich(child) for child in dicts(element.get("elements"))]
    if kind == "rich_text_list":
        ordered, indent = element.get("style") == "ordered", "  " * int(element.get("indent") or 0)
        first = int(element.get("offset") or 0) + 1
        marks = (f"{n}." if ordered else "-" for n in range(first, first + len(children)))
        return "\n".join(f"{indent}{mark} {child}" for mark, child in zip(marks, children, strict=True))
    if kind == "rich_text_preformatted":
        return "```\n" + "".join(children) + "\n```"
    if kind == "rich_text_quote":
        return "\n".join(f"&gt; {line}" for line in "".join(children).split("\n"))
    return "".join(children) if children else _leaf(kind, element)


def _leaf(kind: Any, element: Data) -> str:
    if kind in _LEAVES:
        return _LEAVES[kind].format_map(defaultdict(str, element))
    field = {"date": "fallback", "color": "value"}.get(kind, "text")
    text = escape(str(element.get(field) or ""))
    if kind == "link":
        url = escape(str(element.get("url") or ""))
        return f"<{url}|{text}>" if text else f"<{url}>"
    return text


def dicts(value: Any) -> list[Data]:
    """The objects in what should be a list of them."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
