"""Secrets are replaced by `***` before a model, a person or a log sees a text.

Two kinds are found: values that are known (from the configuration and the environment, also in their
URL-encoded, JSON and base64 forms) and text in the shape of a well-known credential. It is a net under
the other precautions, not a wall: a secret that was split or transformed otherwise passes.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import threading
import urllib.parse
from collections.abc import Iterable, Iterator
from typing import Any

MASK = "***"
#: Shorter values are not masked: they would blank out ordinary words.
_SHORTEST = 6
_MAX_KNOWN = 1000
#: The longest credential that a cut through a text may leave half of, in characters.
LONGEST = 4096

_WORD = "[A-Za-z0-9_-]"

# Each shape: literals (in lower case) one of which any match holds, and the pattern. The literals are
# looked for first, which is a hundred times faster than trying patterns at every place of a text. For the
# same reason a pattern begins with a literal and looks back behind it to see that a word begins there;
# its repeats are possessive, so that the time stays linear in the text whatever the text is. What group 1
# matches is kept.
_SHAPES: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...] = tuple(
    (literals, re.compile(pattern))
    for literals, pattern in (
        # OpenAI, Anthropic and their likes
        (("sk-",), rf"sk-(?<!{_WORD}sk-)(?=[A-Za-z_-]{{0,60}}[0-9]){_WORD}{{16,}}+"),
        # Telegram bot token; the number before the colon is the bot's public id
        ((":",), rf"(:)(?<=[0-9]{{5}}:){_WORD}{{30,}}+"),
        # AWS access key id and key
        (("akia", "asia"), rf"A[KS]IA(?<!{_WORD}....)[A-Z0-9]{{16}}(?![A-Z0-9])"),
        (
            ("aws_secret_access_key",),
            r"(?i:aws_secret_access_key)[\"']?\s{0,3}[=:]\s{0,3}[\"']?[A-Za-z0-9/+=]{40}",
        ),
        # GitHub, Slack, Google
        (("github_pat_",), rf"github_pat_(?<!{_WORD}github_pat_)[A-Za-z0-9_]{{40,}}+"),
        (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), rf"gh[pousr]_(?<!{_WORD}....)[A-Za-z0-9]{{30,}}+"),
        (("xox",), rf"xox(?<!{_WORD}xox)[a-z]-[A-Za-z0-9-]{{10,}}+"),
        (("xapp-",), rf"xapp-(?<!{_WORD}xapp-)[A-Za-z0-9-]{{10,}}+"),
        (("aiza",), rf"AIza(?<!{_WORD}AIza){_WORD}{{35}}"),
        # JSON web token
        (("eyj",), rf"eyJ(?<!{_WORD}eyJ){_WORD}{{8,}}+\.eyJ{_WORD}{{8,}}+\.{_WORD}*+"),
        (("bearer",), r"([Bb](?:earer|EARER)\s{1,3})[A-Za-z0-9._~+/-]{20,}+=*+"),
        (
            ("private key-----",),
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----(?s:.*?)"
            r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)",
        ),
        # A password in a URL
        (("://",), r"(://[^\s/:@\"'<>]{0,100}:)[^\s/@\"'<>]{1,300}(?=@)"),
    )
)


class Masker:
    """Replaces known secrets and what looks like one. May be used from any thread."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, ...]] = {}
        self._pinned: frozenset[str] = frozenset()
        self._forms: tuple[str, ...] = ()
        for secret in secrets:
            self._remember(secret)
        #: Those of the configuration are never forgotten, however many tokens are learned later.
        self._pinned = frozenset(self._known)
        self._publish()

    def add(self, secret: str) -> None:
        """Mask this value too from now on. Of more than 1,000 learned values the oldest are forgotten."""
        with self._lock:
            self._remember(secret)
            self._publish()

    def mask(self, text: str) -> str:
        """The text with every secret replaced. Time is linear: well under a millisecond for 20,000
        characters and a few dozen known values."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        lower = text.lower()
        for literals, pattern in _SHAPES:
            if any(literal in lower for literal in literals):
                text = pattern.sub(_replacement, text)
        return text

    def _remember(self, secret: str) -> None:
        secret = secret.strip()
        if len(secret) < _SHORTEST:
            return
        pinned = self._pinned
        if secret in pinned:
            return
        self._known.pop(secret, None)
        self._known[secret] = tuple(_forms(secret))
        while len(self._known) - len(pinned) > _MAX_KNOWN:
            del self._known[next(known for known in self._known if known not in pinned)]

    def _publish(self) -> None:
        forms = {form for forms in self._known.values() for form in forms}
        # The longest first: of two secrets one of which begins the other, the whole one is to go.
        self._forms = tuple(sorted(forms, key=lambda form: (-len(form), form)))


def _replacement(match: re.Match[str]) -> str:
    kept = match.group(1) if match.re.groups else ""
    return f"{kept}{MASK}"


def _forms(secret: str) -> Iterator[str]:
    """The spellings in which a secret turns up in texts."""
    yield secret
    for safe in ("", "/", ":", "/:"):
        quoted = urllib.parse.quote(secret, safe=safe)
        yield quoted
        yield re.sub(r"%[0-9A-F]{2}", lambda match: match.group().lower(), quoted)
    yield urllib.parse.quote_plus(secret)
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    data = secret.encode("utf-8", "surrogatepass")
    for shift in range(3):
        # What base64 makes of the secret inside a longer text depends on its offset modulo 3. The
        # characters at either end mix in neighbouring bytes and are left out.
        encoded = base64.b64encode(b"\0" * shift + data).rstrip(b"=").decode()
        first = (0, 2, 3)[shift]
        last = len(encoded) - (1 if (shift + len(data)) % 3 else 0)
        if last - first >= 8:
            yield encoded[first:last]
            yield encoded[first:last].replace("+", "-").replace("/", "_")


class MaskingFilter(logging.Filter):
    """Put on every handler: masks the message, its values, the exception text and extra strings.

    The record is changed in place: `args` are folded into `msg`, and the traceback is kept as masked text
    in `exc_text` (`exc_info` is cleared, so that no formatter writes the raw one).
    """

    def __init__(self, masker: Masker) -> None:
        super().__init__()
        self._masker = masker
        self._formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._masker.mask(_message(record)), None
        if record.exc_info:
            if record.exc_info[0] is not None and not record.exc_text:
                record.exc_text = self._formatter.formatException(record.exc_info)
            record.exc_info = None
        for name, value in record.__dict__.items():
            if name not in ("msg", "name", "levelname", "pathname", "module", "funcName"):
                record.__dict__[name] = self._masked(value)
        return True

    def _masked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._masker.mask(value)
        if isinstance(value, dict):
            return {key: self._masked(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._masked(item) for item in value]
        if value is None or isinstance(value, bool | int | float):
            return value
        return self._masker.mask(str(value))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):
        # A wrong call of the logger must not fail the code that logs.
        return f"{record.msg} {record.args!r}"
