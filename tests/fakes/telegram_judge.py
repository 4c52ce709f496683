"""What Telegram's server says to a text with formatting, found out with TDLib's own parser (`tdjson`).

TDLib judges parse modes and the places of entities. The rest is written down here from the Bot API's page and
the server's source: the clean-up of a text, its length after parsing, which entities may lie in which.
"""

from __future__ import annotations

import functools
import html
import json
from dataclasses import dataclass
from typing import Any

Entity = dict[str, Any]

_SPLITTABLE = {"bold", "italic", "underline", "strikethrough", "spoiler"}
_QUOTES = {"blockquote", "expandable_blockquote"}
_CODE = {"code", "pre"}
_NAMES = {
    "textEntityTypeBold": "bold",
    "textEntityTypeItalic": "italic",
    "textEntityTypeUnderline": "underline",
    "textEntityTypeStrikethrough": "strikethrough",
    "textEntityTypeSpoiler": "spoiler",
    "textEntityTypeCode": "code",
    "textEntityTypePre": "pre",
    "textEntityTypePreCode": "pre",
    "textEntityTypeTextUrl": "text_link",
    "textEntityTypeBlockQuote": "blockquote",
    "textEntityTypeExpandableBlockQuote": "expandable_blockquote",
    "textEntityTypeMention": "mention",
    "textEntityTypeBotCommand": "bot_command",
    "textEntityTypeUrl": "url",
    "textEntityTypeEmailAddress": "email",
    "textEntityTypeHashtag": "hashtag",
    "textEntityTypeCashtag": "cashtag",
    "textEntityTypePhoneNumber": "phone_number",
    "textEntityTypeBankCardNumber": "bank_card",
}
_TYPES = {name: type_ for type_, name in _NAMES.items()}
_EMPTY = set(" \n\u00a0\u1680\u180e\u202e\u202f\u205f\u2800\u3000\ufeff\ufffc") | {
    chr(code) for code in range(0x2000, 0x2010)
}


class Refused(Exception):
    """The text of the server's 400 after "Bad Request: "."""


@dataclass(frozen=True)
class Formatted:
    text: str
    entities: list[Entity]


def units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def judge(text: str, entities: list[Entity], parse_mode: str = "", limit: int = 4096) -> Formatted:
    """The message as the server would show it. Raises Refused with the server's words."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused("strings must be encoded in UTF-8") from None
    if parse_mode:
        text, entities = _parse(text, parse_mode)
    else:
        entities = [dict(entity) for entity in entities]
        _check_places(text, entities)
        _check_nesting(entities)
        _check_links(entities)
    shown = _clean_and_trim(text, entities)
    if is_empty(shown.text):
        raise Refused("text must be non-empty" if limit == 4096 else "caption must be non-empty")
    if units(shown.text) > limit:
        raise Refused("message is too long" if limit == 4096 else "message caption is too long")
    return Formatted(shown.text, shown.entities[:100])


def is_empty(text: str) -> bool:
    return all(ch in _EMPTY or 0xE0000 <= ord(ch) <= 0xE007F for ch in text)


def found_entities(text: str) -> list[Entity]:
    """What a Telegram client marks by itself: mentions, commands, links."""
    result = _execute({"@type": "getTextEntities", "text": text})
    return _read_entities(result["entities"])


def _parse(text: str, parse_mode: str) -> tuple[str, list[Entity]]:
    modes: dict[str, dict[str, Any]] = {
        "html": {"@type": "textParseModeHTML"},
        "markdownv2": {"@type": "textParseModeMarkdown", "version": 2},
        "markdown": {"@type": "textParseModeMarkdown", "version": 1},
    }
    mode = modes.get(parse_mode.lower())
    if mode is None:
        raise Refused("unsupported parse_mode")
    result = _execute({"@type": "parseTextEntities", "text": text, "parse_mode": mode})
    if result["@type"] == "error":
        message = str(result["message"])
        raise Refused(message[:1].lower() + message[1:])
    return result["text"], _read_entities(result["entities"])


def _check_places(text: str, entities: list[Entity]) -> None:
    """TDLib refuses an entity outside the text or in the middle of a surrogate pair."""
    for entity in entities:
        if entity.get("type") not in _TYPES:
            raise Refused(f"can't parse MessageEntity: unsupported type {entity.get('type')!r}")
        if not isinstance(entity.get("offset"), int) or not isinstance(entity.get("length"), int):
            raise Refused("can't parse MessageEntity: offset and length must be numbers")
        if entity["offset"] < 0 or entity["length"] <= 0:
            raise Refused("can't parse MessageEntity: offset or length out of range")
    places = [
        {
            "@type": "textEntity",
            "offset": entity["offset"],
            "length": entity["length"],
        }
        for entity in entities
    ]
    # TDLib mends overlaps and joins equal neighbours before it looks: so no overlaps, and types take turns.
    for layer in _layers(places):
        for number, place in enumerate(layer):
            place["type"] = {"@type": ("textEntityTypeBold", "textEntityTypeItalic")[number % 2]}
        request = {
            "@type": "getMarkdownText",
            "text": {"@type": "formattedText", "text": text, "entities": layer},
        }
        result = _execute(request)
        if result["@type"] == "error":
            raise Refused(str(result["message"]))


def _layers(places: list[Entity]) -> list[list[Entity]]:
    layers: list[list[Entity]] = []
    for place in sorted(places, key=lambda p: int(p["offset"])):
        for layer in layers:
            if layer[-1]["offset"] + layer[-1]["length"] <= place["offset"]:
                layer.append(place)
                break
        else:
            layers.append([place])
    return layers


def _check_nesting(entities: list[Entity]) -> None:
    """Bot API, MessageEntity: the server mends or drops what breaks these rules; here it is refused."""
    for number, one in enumerate(entities):
        for other in entities[number + 1 :]:
            outer, inner = sorted((one, other), key=lambda e: (e["offset"], -e["length"]))
            outer_end = outer["offset"] + outer["length"]
            if inner["offset"] >= outer_end:
                continue
            where = f"{outer['type']} at {outer['offset']} and {inner['type']} at {inner['offset']}"
            if inner["offset"] + inner["length"] > outer_end:
                raise Refused(f"entities overlap: {where}")
            kinds = {outer["type"], inner["type"]}
            if len(kinds) == 1:
                raise Refused(f"entities of one type nest: {where}")
            if kinds & _CODE and not (outer["type"] in _QUOTES and inner["type"] in _CODE):
                raise Refused(f"code nests with something: {where}")
            same_span = outer["length"] == inner["length"]
            if inner["type"] in _QUOTES and not same_span:
                raise Refused(f"a quote lies inside something: {where}")


def _check_links(entities: list[Entity]) -> None:
    """The server drops a link whose target it does not like; then the reader has no link: refused here."""
    for entity in entities:
        if entity["type"] != "text_link":
            continue
        markup = f'<a href="{html.escape(str(entity.get("url", "")))}">t</a>'
        _, found = _parse(markup, "html")
        if [e["type"] for e in found] != ["text_link"]:
            raise Refused(f"the server would drop the link to {entity.get('url')!r}")


def _clean_and_trim(text: str, entities: list[Entity]) -> Formatted:
    """The server's clean-up: control characters, then blanks at both ends."""
    for ch in text:
        if ch in "\r\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u0333\u033f\u030a":
            # A real server removes it and moves the entities; our channels have to do it first.
            raise Refused(f"the server would silently remove U+{ord(ch):04X}")
        if ch < " " and ch != "\n":
            raise Refused(f"the server would silently turn U+{ord(ch):04X} into a blank")
    end = len(text.rstrip(" \n"))
    text = text[:end]
    size = units(text)
    kept = [entity for entity in entities if entity["offset"] < size]
    for entity in kept:
        entity["length"] = min(entity["length"], size - entity["offset"])
    first = min((entity["offset"] for entity in kept), default=size)
    lead = 0
    while lead < min(first, len(text)) and text[lead] in " \n":
        lead += 1
    for entity in kept:
        entity["offset"] -= lead
    return Formatted(text[lead:], kept)


def _read_entities(found: list[dict[str, Any]]) -> list[Entity]:
    entities: list[Entity] = []
    for item in found:
        kind = _NAMES.get(item["type"]["@type"])
        if kind is None:
            continue
        entity: Entity = {"type": kind, "offset": item["offset"], "length": item["length"]}
        if kind == "text_link":
            entity["url"] = item["type"]["url"]
        elif item["type"]["@type"] == "textEntityTypePreCode":
            entity["language"] = item["type"]["language"]
        entities.append(entity)
    return entities


def _execute(request: dict[str, Any]) -> dict[str, Any]:
    answer = _tdlib().td_execute(json.dumps(request).encode())
    if answer is None:
        raise AssertionError(f"TDLib gave no answer to {request['@type']}")
    result: dict[str, Any] = json.loads(answer)
    return result


@functools.cache
def _tdlib() -> Any:
    import tdjson

    tdjson.td_execute(json.dumps({"@type": "setLogVerbosityLevel", "new_verbosity_level": 0}).encode())
    return tdjson
