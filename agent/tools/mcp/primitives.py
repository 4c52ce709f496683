"""What servers offer beside tools: resources and prompts, as plain data. Pure but for `render_contents`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent.tools.base import ToolResult
from agent.tools.mcp.results import render_reply

MOST_OFFERS = 2_000  # of one kind, of one server
LONGEST_TEXT = 200_000  # characters of a resource or of a prompt
_LONGEST_DESCRIPTION = 500
_TEXTS = ("uri", "name", "title", "description", "mimeType")


@dataclass(frozen=True, slots=True)
class ResourceInfo:
    """A resource that can be read. `name` is for people; `mime` is empty when the server does not say."""

    server: str
    uri: str
    name: str
    description: str = ""
    mime: str = ""


@dataclass(frozen=True, slots=True)
class PromptInfo:
    """A prompt that can be had. `arguments` are (name, description, required)."""

    server: str
    name: str
    description: str = ""
    arguments: tuple[tuple[str, str, bool], ...] = ()


#: A resource's content: text for the model, and files saved in the folder that was given.
ResourceText = ToolResult


def mend_offers(items: object, needed: tuple[str, ...]) -> list[dict[str, Any]]:
    """The entries of a raw list that can be used, with the parts that are used: the SDK refuses a whole list
    for one bad member."""
    good: list[dict[str, Any]] = []
    for item in items if isinstance(items, list) else ():
        if not isinstance(item, dict) or not all(isinstance(item.get(key), str) for key in needed):
            continue
        mended: dict[str, Any] = {key: item[key] for key in _TEXTS if isinstance(item.get(key), str)}
        if isinstance(item.get("arguments"), list):
            mended["arguments"] = [
                {
                    **{key: part[key] for key in ("name", "description") if isinstance(part.get(key), str)},
                    "required": part.get("required") is True,
                }
                for part in item["arguments"]
                if isinstance(part, dict) and isinstance(part.get("name"), str)
            ]
        good.append(mended)
    return good


def resource_info(server: str, item: Mapping[str, Any]) -> ResourceInfo:
    uri, about, mime = item["uri"], _short(item.get("description")), str(item.get("mimeType") or "")
    return ResourceInfo(server, uri, item["name"] or uri, about, mime)


def prompt_info(server: str, item: Mapping[str, Any]) -> PromptInfo:
    arguments = tuple(
        (part["name"], _short(part.get("description")), bool(part.get("required")))
        for part in item.get("arguments") or ()
    )
    return PromptInfo(server, item["name"], _short(item.get("description") or item.get("title")), arguments)


def render_contents(contents: tuple[Mapping[str, Any], ...], folder: Path, stem: str) -> ResourceText:
    """A resource's parts: texts joined, the rest saved under `folder`. Does file work: run it in a thread."""
    parts = tuple(
        {"type": "text", "text": part["text"]}
        if isinstance(part.get("text"), str)
        else {"type": "resource", "resource": part}
        for part in contents
    )
    if not parts:
        return ResourceText("(the resource is empty)")
    made = render_reply(parts, None, False, folder=folder, stem=stem)
    return replace(made, text=cut(made.text))


def prompt_text(content: Mapping[str, Any]) -> str:
    """One message of a prompt as text; what is no text leaves a line that says so."""
    inner = content.get("resource")
    if isinstance(content.get("text"), str):
        return cut(content["text"])
    if isinstance(inner, Mapping) and isinstance(inner.get("text"), str):
        return cut(f"[resource {str(inner.get('uri'))[:300]}]\n{inner['text']}")
    if content.get("type") == "resource_link":
        return f"[link to a resource: {str(content.get('uri'))[:300]}]"
    return f"[a part of type {str(content.get('type'))[:40]!r} was left out: it is no text]"


def cut(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]}\n[cut: {len(text) - LONGEST_TEXT:,} characters more]"


def _short(text: object) -> str:
    words = " ".join(str(text or "").split())
    return words if len(words) <= _LONGEST_DESCRIPTION else words[: _LONGEST_DESCRIPTION - 1] + "…"
