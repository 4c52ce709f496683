"""A tool's reply as an agent can use it: text for the model, files in the session's folder, no base64."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.events import FileRef
from agent.history import ImageRef
from agent.tools.base import ToolResult
from agent.tools.mcp.names import file_stem

LARGEST_FILE = 20 * 1024 * 1024
MOST_FILES = 10
FOLDER = "mcp"
_SHOWN_TO_MODELS = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_ENDINGS = {
    "image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp",
    "image/svg+xml": ".svg", "audio/mpeg": ".mp3", "audio/mp3": ".mp3", "audio/wav": ".wav",
    "audio/x-wav": ".wav", "audio/ogg": ".ogg", "audio/flac": ".flac", "audio/webm": ".webm",
    "application/pdf": ".pdf", "application/json": ".json", "application/zip": ".zip", "text/plain": ".txt",
    "text/csv": ".csv", "text/html": ".html", "text/markdown": ".md",
}  # fmt: skip

#: A file inside a text: worth nothing to a model, and thousands of tokens.
_DATA_URI = re.compile(
    r"data:([\w.+-]{1,60}/[\w.+-]{1,100})(?:;[\w=.-]{1,60}){0,3};base64,([A-Za-z0-9+/]{200,}={0,2})"
)


@dataclass(slots=True)
class _Collected:
    folder: Path
    stem: str
    lines: list[str] = field(default_factory=list)
    files: list[FileRef] = field(default_factory=list)
    images: list[ImageRef] = field(default_factory=list)
    saved: int = 0


def render_reply(
    content: tuple[Mapping[str, Any], ...], structured: Any, is_error: bool, *, folder: Path, stem: str
) -> ToolResult:
    """Turn a reply's parts into a `ToolResult`. Does file work: run it in a thread.

    Texts are joined; structured content is shown when there is no text (servers repeat it as text
    otherwise). Pictures and sounds, also those inside a text as `data:` addresses, go to `folder/mcp/` and
    come back as files. What cannot be shown leaves a line that says so.
    """
    got = _Collected(folder, file_stem(stem))
    has_text = False
    for part in content:
        kind = part.get("type")
        if kind == "text":
            text = str(part.get("text") or "")
            has_text = has_text or bool(text.strip())
            got.lines.append(_without_data(got, text))
        elif kind in ("image", "audio"):
            got.lines.append(_save(got, part.get("data"), part.get("mimeType"), kind))
        elif kind == "resource":
            has_text = _resource(got, part.get("resource")) or has_text
        elif kind == "resource_link":
            got.lines.append(_link(part))
        else:
            got.lines.append(f"[a part of type {str(kind)[:40]!r} was left out: it cannot be shown]")
    if structured is not None and not has_text:
        got.lines.insert(0, _without_data(got, json.dumps(structured, ensure_ascii=False)))
    text = "\n".join(line for line in got.lines if line)
    if not text:
        text = (
            "The tool reported an error and did not say which." if is_error else "(the tool returned nothing)"
        )
    return ToolResult(text, is_error, tuple(got.files), tuple(got.images))


def _resource(got: _Collected, resource: Any) -> bool:
    """Show an embedded resource; whether it was text."""
    if not isinstance(resource, Mapping):
        got.lines.append("[a resource was left out: it is empty]")
        return False
    uri = str(resource.get("uri") or "")[:300]
    if isinstance(resource.get("text"), str):
        got.lines.append(f"[resource {uri}]\n{_without_data(got, resource['text'])}")
        return True
    got.lines.append(_save(got, resource.get("blob"), resource.get("mimeType"), f"resource {uri}"))
    return False


def _without_data(got: _Collected, text: str) -> str:
    """The text with the files in it saved and named."""
    return _DATA_URI.sub(lambda found: _save(got, found[2], found[1], "data"), text)


def _link(part: Mapping[str, Any]) -> str:
    keys = ("name", "uri", "mimeType", "description")
    details = [str(part.get(key))[:300] for key in keys if part.get(key)]
    return f"[link to a resource: {', '.join(details)}]"


def _save(got: _Collected, data: Any, mime: Any, what: str) -> str:
    """Save what is base64; the line that says where it is, or why it is not."""
    mime = str(mime or "application/octet-stream").split(";")[0].strip().lower()
    if got.saved >= MOST_FILES:
        return f"[{what} ({mime}) was left out: more than {MOST_FILES} files in one result]"
    if not isinstance(data, str) or len(data) > LARGEST_FILE * 4 // 3 + 4:
        return f"[{what} ({mime}) was left out: it is larger than {LARGEST_FILE >> 20} MiB]"
    try:
        raw = base64.b64decode(data, validate=False)
    except (binascii.Error, ValueError):
        raw = b""
    if not raw:
        return f"[{what} ({mime}) was left out: its data cannot be read]"
    try:
        path = _write(got.folder, got.stem, _ENDINGS.get(mime, ".bin"), raw)
    except OSError as fault:
        reason = fault.strerror or "the folder is not usable"
        return f"[{what} ({mime}) was left out: it could not be saved ({reason})]"
    got.saved += 1
    show = what in ("image", "audio") or mime.startswith(("image/", "audio/"))
    if show and all(file.path != path for file in got.files):
        got.files.append(FileRef(path, Path(path).name, mime))
        if mime in _SHOWN_TO_MODELS:
            got.images.append(ImageRef(path, mime))
    return f"[{what} ({mime}, {len(raw):,} bytes) saved as {path}]"


def _write(folder: Path, stem: str, ending: str, raw: bytes) -> str:
    """Write into the session's folder; the path relative to it. The same bytes get the same name."""
    target = folder / FOLDER
    target.mkdir(exist_ok=True)
    if target.resolve() != folder.resolve() / FOLDER:  # a link that would lead the write out of the folder
        raise OSError(0, "its folder is a link")
    name = f"{stem}-{hashlib.sha256(raw).hexdigest()[:10]}{ending}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(target / name, flags, 0o600), "wb") as file:
        file.write(raw)
    return f"{FOLDER}/{name}"
