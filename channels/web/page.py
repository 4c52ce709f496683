"""The page and what belongs to it: hand-written files beside this module, labels filled in by language."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from aiohttp import web

from channels.base import Translate

FOLDER = Path(__file__).parent / "assets"
_FILES = tuple(FOLDER / name for name in ("app.js", "base.css", "style.css", "icon.svg"))
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
#: Texts that the script uses after the page was loaded.
_SCRIPT_LABELS = (
    "web.connecting", "web.online", "web.offline", "web.waiting", "web.not_sent", "web.retry",
    "web.copy", "web.copied", "web.tool.running", "web.tool.done", "web.tool.failed", "web.tool.input",
    "web.tool.output", "web.new_conversation", "web.you", "web.bot", "web.file", "web.card",
    "web.card.failed",
)  # fmt: skip
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_LABEL = re.compile(r"\{\{([a-z_.0-9]+)\}\}")


@dataclass(frozen=True, slots=True)
class Assets:
    """The files in memory, each with its entity tag."""

    page: str
    files: Mapping[str, tuple[bytes, str]]

    @classmethod
    def load(cls, page: Path = FOLDER / "page.html", files: Iterable[Path] = _FILES) -> Assets:
        """Blocks: reads a few small files."""
        data = {file.name: file.read_bytes() for file in files}
        tags = {name: hashlib.sha256(content).hexdigest()[:16] for name, content in data.items()}
        return cls(page.read_text("utf-8"), {name: (content, tags[name]) for name, content in data.items()})

    def page_response(
        self, text: Translate, language: str, labels: Iterable[str] = _SCRIPT_LABELS
    ) -> web.Response:
        """The page with its texts. `labels` are the keys that its script uses, which it knows without their
        first word."""
        known = {key.partition(".")[2]: text(key, language) for key in labels}
        # The block is data, not script, but a "</script>" in it would still end it.
        data = json.dumps(known, ensure_ascii=False).replace("<", "\\u003c")
        values = {"labels": data, "lang": "zh-CN" if language.lower().startswith("zh") else "en"}
        values |= {name.replace(".", "_"): tag for name, (_, tag) in self.files.items()}

        def fill(match: re.Match[str]) -> str:
            key = match[1]
            return values[key] if key in values else escape(text(key, language))

        return web.Response(
            text=_LABEL.sub(fill, self.page),
            content_type="text/html",
            headers={**HEADERS, "Cache-Control": "no-store", "Vary": "Accept-Language"},
        )

    def file_response(self, request: web.Request, name: str) -> web.Response:
        if name not in self.files:
            return web.Response(status=404, text="There is no such file.\n", headers=HEADERS)
        data, tag = self.files[name]
        headers = {**HEADERS, "ETag": f'"{tag}"', "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == f'"{tag}"':
            return web.Response(status=304, headers=headers)
        kind = _TYPES[Path(name).suffix]
        return web.Response(body=data, content_type=kind, charset="utf-8", headers=headers)


def language_of(request: web.Request) -> str:
    """The first language that the browser wants, as a BCP-47 tag."""
    tag = request.headers.get("Accept-Language", "").split(",")[0].split(";")[0].strip()
    return tag if re.fullmatch(r"[A-Za-z0-9-]{1,35}", tag) else ""
