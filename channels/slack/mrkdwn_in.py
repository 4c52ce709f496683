"""Text as Slack sends it, made readable: escapes decoded once, references named.

Slack writes `<@U…>`, `<#C…|name>`, `<!subteam^S…|@x>`, `<!here>`, `<!date^…^…|fallback>`, `<url|label>` and
escapes `&`, `<`, `>` in everything else (docs.slack.dev, Formatting message text), so an angle bracket
always begins a reference. Everything here is pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Data: TypeAlias = dict[str, Any]

_REFERENCE = re.compile(r"<([^<>\n]+)>")
_USER = re.compile(r"<@([UW][A-Z0-9]+)(?:\|([^<>]*))?>")
_CHANNEL = re.compile(r"<#([CDG][A-Z0-9]+)(?:\|([^<>]*))?>")
_EVERYBODY = {"here": "@here", "channel": "@channel", "everyone": "@everyone"}
_BLANKS = re.compile(r"[ \t]{2,}")


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
    if me:
        text = _without(text, me)
    parts, end = [], 0
    for match in _REFERENCE.finditer(text):
        parts += [unescape(text[end : match.start()]), _reference(match[1], names)]
        end = match.end()
    parts.append(unescape(text[end:]))
    return "".join(parts).strip()


def _without(text: str, me: str) -> str:
    """Remove the bot's mention with the blanks and the comma or colon that went with it."""
    mine = re.compile(rf"<@{re.escape(me)}(?:\|[^<>]*)?>")
    lines = []
    for line in text.split("\n"):
        kept = mine.sub("\0", line)
        if kept != line:
            kept = re.sub(r"^\s*\0[ \t]*[,:，：]?[ \t]*", "", kept)
            kept = re.sub(r"[ \t]*\0", "", kept)
        lines.append(kept)
    return "\n".join(lines)


def _reference(inner: str, names: Names) -> str:
    target, bar, label = inner.partition("|")
    label = unescape(label)
    kind, rest = target[:1], target[1:]
    if kind == "@":
        return "@" + (names.users.get(rest) or label.lstrip("@") or rest)
    if kind == "#":
        return "#" + (label.lstrip("#") or names.channels.get(rest) or rest)
    if kind == "!":
        return _special(rest, label)
    return _link(unescape(target), label if bar else "")


def _special(target: str, label: str) -> str:
    word, _, rest = target.partition("^")
    if word in _EVERYBODY:
        return _EVERYBODY[word]
    if word == "subteam":
        return "@" + (label.lstrip("@") or rest)
    # A date's fallback is what clients show that cannot show it themselves; so for words yet unknown.
    return label or rest.split("^")[0] or target


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
        text = "\n".join(filter(None, (_block(block) for block in _dicts(message.get("blocks")))))
    extra = [_attachment(a) for a in _dicts(message.get("attachments")) if not _is_share(a)]
    return "\n".join(part for part in (text, *extra) if part)


def shared(message: Data) -> list[Data]:
    """Messages that were forwarded with this one: `text`, `author_name`, `ts`."""
    return [a for a in _dicts(message.get("attachments")) if _is_share(a)]


def share_text(attachment: Data) -> str:
    if text := str(attachment.get("text") or "").strip():
        return text
    inner = [
        m["message"] for m in _dicts(attachment.get("message_blocks")) if isinstance(m.get("message"), dict)
    ]
    found = "\n".join(_block(block) for m in inner for block in _dicts(m.get("blocks")))
    return found or str(attachment.get("fallback") or "")


def _is_share(attachment: Data) -> bool:
    return bool(attachment.get("is_share") or attachment.get("is_msg_unfurl"))


def _attachment(attachment: Data) -> str:
    """The words of an app's attachment. A link's preview (`from_url`) is not what the person said."""
    if attachment.get("from_url") or attachment.get("original_url"):
        return ""
    fields = [f"{f.get('title', '')}: {f.get('value', '')}" for f in _dicts(attachment.get("fields"))]
    parts = [attachment.get(key) for key in ("pretext", "title", "text")]
    blocks = [_block(block) for block in _dicts(attachment.get("blocks"))]
    found = "\n".join(str(part) for part in (*parts, *fields, *blocks) if part)
    return found or str(attachment.get("fallback") or "")


def _block(block: Data) -> str:
    kind = block.get("type")
    if kind == "rich_text":
        return "\n".join(_rich(element) for element in _dicts(block.get("elements")))
    if kind == "markdown":
        return escape(str(block.get("text") or ""))
    if kind == "image":
        return escape(str(block.get("alt_text") or ""))
    if kind == "table":
        rows = block.get("rows")
        lines = (
            [" | ".join(_cell(cell) for cell in row) for row in rows if isinstance(row, list)] if rows else []
        )
        return "\n".join(lines)
    parts = [_object(block.get("text"))]
    parts += [_object(item) for item in _dicts(block.get("fields"))]
    if kind == "context":
        parts += [_object(item) for item in _dicts(block.get("elements"))]
    return "\n".join(part for part in parts if part)


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
    children = [_rich(child) for child in _dicts(element.get("elements"))]
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
    text = escape(str(element.get("text") or ""))
    if kind == "link":
        url = escape(str(element.get("url") or ""))
        return f"<{url}|{text}>" if text else f"<{url}>"
    if kind == "user":
        return f"<@{element.get('user_id')}>"
    if kind == "channel":
        return f"<#{element.get('channel_id')}>"
    if kind == "usergroup":
        return f"<!subteam^{element.get('usergroup_id')}>"
    if kind == "broadcast":
        return f"<!{element.get('range')}>"
    if kind == "emoji":
        return f":{element.get('name')}:"
    if kind == "date":
        return escape(str(element.get("fallback") or ""))
    if kind == "color":
        return escape(str(element.get("value") or ""))
    return text


def escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _dicts(value: Any) -> Iterable[Data]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
