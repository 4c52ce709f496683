"""The page and what belongs to it: hand-written files beside this module, labels filled in by language."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from aiohttp import web

from channels.base import Translate

_FOLDER = Path(__file__).parent / "assets"
_TYPES = {"app.js": "text/javascript", "style.css": "text/css", "icon.svg": "image/svg+xml"}
#: Texts that the script uses after the page was loaded.
_SCRIPT_LABELS = (
    "web.connecting", "web.online", "web.offline", "web.waiting", "web.not_sent", "web.retry",
    "web.copy", "web.copied", "web.tool.running", "web.tool.done", "web.tool.failed", "web.tool.input",
    "web.tool.output", "web.new_conversation", "web.you", "web.bot", "web.file",
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
    def load(cls) -> Assets:
        """Blocks: reads a few small files."""
        files = {}
        for name in _TYPES:
            data = (_FOLDER / name).read_bytes()
            files[name] = (data, hashlib.sha256(data).hexdigest()[:16])
        return cls((_FOLDER / "page.html").read_text("utf-8"), files)

    def page_response(self, text: Translate, language: str) -> web.Response:
        labels = {key.removeprefix("web."): text(key, language) for key in _SCRIPT_LABELS}
        # The block is data, not script, but a "</script>" in it would still end it.
        data = json.dumps(labels, ensure_ascii=False).replace("<", "\\u003c")
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
        return web.Response(body=data, content_type=_TYPES[name], charset="utf-8", headers=headers)
