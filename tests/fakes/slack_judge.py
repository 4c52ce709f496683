"""What Slack refuses in a message, and what people see of one that it takes.

Blocks are judged by slack_sdk's own models; the limits that span blocks and the words of the errors are
Slack's (docs.slack.dev, Block Kit and chat.postMessage; 13,200 characters in all: bolt-js issue 2509).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

MAX_TEXT, MAX_UPDATE, MAX_MARKDOWN, MAX_BLOCKS, MAX_ALL_BLOCKS = 40_000, 4_000, 12_000, 50, 13_200
_PINGS = re.compile(r"<!(?:channel|here|everyone)[|>]|<!subteam\^|<@[UW][A-Z0-9]+")
_ELEMENTS = ("button", "overflow", "static_select", "users_select", "datepicker", "plain_text_input")

Json = dict[str, Any]


class Refused(Exception):
    """The error of an answer; `more` goes into it besides."""

    def __init__(self, error: str, **more: Any) -> None:
        super().__init__(error)
        self.error, self.more = error, more


def refuse_blocks(*messages: str) -> Refused:
    return Refused("invalid_blocks", response_metadata={"messages": [f"[ERROR] {m}" for m in messages]})


def judge_blocks(blocks: Any) -> list[Json]:
    """The blocks, or Refused."""
    from slack_sdk.errors import SlackObjectFormationError
    from slack_sdk.models.blocks import Block

    if not isinstance(blocks, list) or not all(isinstance(b, dict) for b in blocks):
        raise Refused("invalid_blocks_format")
    if len(blocks) > MAX_BLOCKS:
        raise refuse_blocks(f"no more than {MAX_BLOCKS} items allowed [json-pointer:/blocks]")
    for n, block in enumerate(blocks):
        try:
            parsed = Block.parse(block)
            if parsed is None:
                raise refuse_blocks(f"unsupported type: {block.get('type')} [json-pointer:/blocks/{n}/type]")
            parsed.validate_json()
            for element in getattr(parsed, "elements", None) or ():
                if getattr(element, "type", "") in _ELEMENTS:
                    element.validate_json()
        except (SlackObjectFormationError, TypeError, KeyError, AttributeError) as error:
            raise refuse_blocks(f"{error} [json-pointer:/blocks/{n}]") from error
        _judge_more(n, block)
    ids = [b["block_id"] for b in blocks if b.get("block_id")]
    if len(ids) != len(set(ids)):
        raise refuse_blocks("block_id must be unique [json-pointer:/blocks]")
    if sum(len(b.get("text", "")) for b in blocks if b.get("type") == "markdown") > MAX_MARKDOWN:
        raise refuse_blocks(
            f"markdown blocks hold more than {MAX_MARKDOWN} characters [json-pointer:/blocks]"
        )
    if sum(len(text) for b in blocks for text in _texts(b)) > MAX_ALL_BLOCKS:
        raise Refused("msg_blocks_too_long")
    return blocks


def _judge_more(n: int, block: Json) -> None:
    """What the models let pass and Slack does not."""
    where = f"[json-pointer:/blocks/{n}]"
    kind = block.get("type")
    if kind == "markdown" and not block.get("text", "").strip():
        raise refuse_blocks(f"must be more than 0 characters {where}")
    if kind in ("section", "header") and (text := block.get("text")):
        if not isinstance(text, dict) or text.get("type") not in ("mrkdwn", "plain_text"):
            raise refuse_blocks(f"invalid text object {where}")
        if not text.get("text", ""):
            raise refuse_blocks(f"must be more than 0 characters {where}")
        if kind == "header" and text["type"] != "plain_text":
            raise refuse_blocks(f"must be plain_text {where}")
    if kind == "actions":
        elements = block.get("elements") or []
        if not elements:
            raise refuse_blocks(f"must have at least 1 element {where}")
        ids = [e.get("action_id") for e in elements]
        if len(set(ids)) != len(ids):
            raise refuse_blocks(f"action_id must be unique {where}")
        for element in elements:
            label = element.get("text") or {}
            if element.get("type") == "button" and not label.get("text"):
                raise refuse_blocks(f"must be more than 0 characters {where}")
            if element.get("style", "primary") not in ("primary", "danger"):
                raise refuse_blocks(f"invalid style {where}")
    if kind == "table":
        rows = block.get("rows") or []
        if not rows or len(rows) > 100 or any(len(row) > 20 for row in rows):
            raise refuse_blocks(f"a table has 1 to 100 rows of at most 20 cells {where}")
        if sum(len(text) for text in _texts(block)) > 10_000:
            raise refuse_blocks(f"a table holds at most 10,000 characters {where}")


def _texts(value: Any) -> Iterable[str]:
    """All texts within a block, in order."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("text", "alt_text", "title", "name", "details", "output", "label") and isinstance(
                item, str
            ):
                yield item
            elif key not in ("action_id", "block_id", "value", "style"):
                yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def pings(message: Json) -> list[str]:
    """What in a message would call a channel, a group or a person."""
    found = []
    for text in [str(message.get("text", "")), *(t for b in message.get("blocks") or () for t in _texts(b))]:
        found += _PINGS.findall(text)
    for block in message.get("blocks") or ():
        found += _rich_pings(block)
    return found


def _rich_pings(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [f"<{value['type']}>"] if value.get("type") in ("broadcast", "usergroup", "user") else []
        return own + [p for item in value.values() for p in _rich_pings(item)]
    if isinstance(value, list):
        return [p for item in value for p in _rich_pings(item)]
    return []


def unescape(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def visible(message: Json) -> str:
    """The words that people see: the blocks where there are any, else the text."""
    blocks = message.get("blocks") or []
    if not blocks:
        shown = str(message.get("text", ""))
        return shown if message.get("_markdown") else unescape(shown)
    lines = []
    for block in blocks:
        escaped = block.get("type") != "markdown"
        text = "\n".join(_texts(block))
        lines.append(unescape(text) if escaped else text)
    return "\n".join(lines)
