"""Secrets are replaced by `***` before a model, a person or a log sees a text.

Two kinds are found: values that are known (from the configuration and the environment, also in their
URL-encoded, JSON and base64 forms) and text in the shape of a well-known credential. It is a net under
the other precautions, not a wall: a secret that was split or transformed otherwise passes.
"""

from __future__ import annotations

import base64
import functools
import json
import logging
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from typing import Any

MASK = "***"
#: Shorter values are not masked: they would blank out ordinary words.
_SHORTEST = 6
_MAX_KNOWN = 1000
#: The longest credential that a cut through a text may leave half of, in characters.
LONGEST = 4096

_WORD = "[A-Za-z0-9_-]"


def _begins(literal: str) -> str:
    """A literal of fixed width where a word begins: also behind an escape that ends in a letter or a digit,
    as in JSON text (`\\n`, `\\u001b[31m`) and in URLs (`%3D`)."""
    escapes = (r"\\[nrtbfv]", r"\\x[0-9A-Fa-f]{2}", r"\\u[0-9A-Fa-f]{4}", "%[0-9A-Fa-f]{2}", r"[0-9;\[]m")
    behind = "|".join(f"(?<={escape}{literal})" for escape in escapes)
    return f"{literal}(?:(?<!{_WORD}{literal})|{behind})"


# Each shape: literals (in lower case) one of which any match holds, and the pattern. The literals are
# looked for first, which is a hundred times faster than trying patterns at every place of a text. For the
# same reason a pattern begins with a literal and looks back behind it to see that a word begins there;
# its repeats are possessive, so that the time stays linear in the text whatever the text is. What group 1
# matches is kept.
_SHAPES: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...] = tuple(
    (literals, re.compile(pattern))
    for literals, pattern in (
        # OpenAI, Anthropic and their likes
        (("sk-",), rf"{_begins('sk-')}(?=[A-Za-z_-]{{0,60}}[0-9]){_WORD}{{16,}}+"),
        (("gsk_",), rf"{_begins('gsk_')}[A-Za-z0-9]{{30,}}+"),
        (("xai-",), rf"{_begins('xai-')}[A-Za-z0-9]{{30,}}+"),
        # Telegram bot token; the number before the colon is the bot's public id
        ((":", "%3a"), rf"(:(?<=[0-9]{{5}}:)|%3[Aa](?<=[0-9]{{5}}...)){_WORD}{{30,}}+"),
        # AWS access key id, key and session token
        (("akia", "asia"), rf"{_begins('A[KS]IA')}[A-Z0-9]{{16}}(?![A-Z0-9])"),
        (
            ("aws_s", "secretaccesskey", "sessiontoken"),
            r"((?i:aws_secret_access_key|aws_session_token|secretaccesskey|sessiontoken)"
            r"\\{0,3}[\"']?\s{0,3}[=:]\s{0,3}\\{0,3}[\"']?)[A-Za-z0-9/+=]{40,}+",
        ),
        # GitHub, GitLab, Slack, Google, Stripe, Hugging Face, npm, PyPI
        (("github_pat_",), rf"{_begins('github_pat_')}[A-Za-z0-9_]{{40,}}+"),
        (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), rf"{_begins('gh[pousr]_')}[A-Za-z0-9]{{30,}}+"),
        (("glpat-",), rf"{_begins('glpat-')}{_WORD}{{16,}}+"),
        (("xox",), rf"{_begins('xox')}[a-z]-[A-Za-z0-9-]{{10,}}+"),
        (("xapp-",), rf"{_begins('xapp-')}[A-Za-z0-9-]{{10,}}+"),
        (("hooks.slack.com/",), r"(hooks\.slack\.com/(?:services|workflows|triggers)/)[A-Za-z0-9/]{20,}+"),
        (("aiza",), rf"{_begins('AIza')}{_WORD}{{35}}"),
        (("gocspx-",), rf"{_begins('GOCSPX-')}{_WORD}{{20,}}+"),
        (("ya29.",), rf"{_begins('ya29[.]')}{_WORD}{{20,}}+"),
        (("k_live_", "k_test_"), rf"{_begins('[sr]k_(?:live|test)_')}[A-Za-z0-9]{{16,}}+"),
        (("hf_",), rf"{_begins('hf_')}[A-Za-z0-9]{{30,}}+"),
        (("npm_",), rf"{_begins('npm_')}[A-Za-z0-9]{{36,}}+"),
        (("pypi-",), rf"{_begins('pypi-')}{_WORD}{{50,}}+"),
        # JSON web token
        (("eyj",), rf"{_begins('eyJ')}{_WORD}{{8,}}+\.eyJ{_WORD}{{8,}}+\.{_WORD}*+"),
        (("bearer",), r"([Bb](?:earer|EARER)\s{1,3})[A-Za-z0-9._~+/-]{20,}+=*+"),
        (
            ("authorization",),
            r"((?i:authorization)\\{0,3}[\"']?\s{0,3}[:=]\s{0,3}\\{0,3}[\"']?(?i:basic|token|apikey|bot)\s{1,3})"
            r"[A-Za-z0-9._~+/-]{8,}+=*+",
        ),
        (
            ("private key-----",),
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----(?s:.*?)"
            r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)",
        ),
        # A password in a URL, also in one with escaped slashes; it may hold an @ itself
        (("://", ":\\/\\/"), r"(:(?:\\?/){2}[^\s/:@\"'<>\\]{0,100}:)[^\s/\"'<>]{1,300}(?=@)"),
        # A password in a connection string, or in a URL's query
        (
            ("password=", "pwd=", "accountkey=", "sharedaccesskey="),
            r"((?i:password|pwd|accountkey|sharedaccesskey)="
            r"(?:(?<=[;&?\s]password=)|(?<=[;&?\s]Password=)|(?<=[;&?\s]PASSWORD=)|(?<=[;&?\s]pwd=)"
            r"|(?<=[;&?\s]Pwd=)|(?<=[;&?\s]PWD=)|(?<=(?i:key)=)))"
            r"(?![/.~])(?=[^\s;,&\"')]{0,100}[0-9!@#%^*+~-])[^\s;,&\"'(){}<>$]{4,200}+",
        ),
    )
)
#: Where the body of a private key ends whose beginning was cut away, and a line of such a body (in JSON,
#: too).
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----")
_KEY_LINE = re.compile(r"[ \t]*[A-Za-z0-9+/=]{0,80}(?:\\r)?(?:\\n)?\s*")
_LINE_ENDS = re.compile(r"(?<=\n)|(?<=\\n)")
#: Colours and other orders to a terminal. They tear words apart, and say nothing to a reader.
_TERMINAL = re.compile(
    r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78cM])"
)
#: What overwrites a secret: a character that means nothing (it is for private use).
_FILL = "\ue0f0"
_FILLED = re.compile(f"{_FILL}+")
_NO_LINE_END = re.compile(r"[^\r\n]")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


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
        """The text with every secret replaced, and without colours. Time is linear: well under a
        millisecond for 20,000 characters and a few dozen known values."""
        if "\x1b" in text:
            text = _TERMINAL.sub("", text)
        return self._masked(text, lambda kept, secret: f"{kept}{MASK}")

    def blank(self, text: str) -> str:
        """The text with every character of a secret overwritten, save line ends: of the same length, so that
        parts may be cut out of it. `settled` makes such a part readable."""
        return self._masked(text, _overwritten)

    def _masked(self, text: str, instead: Callable[[str, str], str]) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, instead("", form))
        lower = text.lower()
        for (first, *others), pattern in _SHAPES:
            if first in lower or (others and any(literal in lower for literal in others)):
                text = pattern.sub(functools.partial(_replacement, instead), text)
        return _without_rests(text, instead) if "private key-----" in lower else text

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


def settled(text: str) -> str:
    """What `blank` overwrote, as one mask each."""
    return _FILLED.sub(MASK, text)


def _overwritten(kept: str, secret: str) -> str:
    return kept + _NO_LINE_END.sub(_FILL, secret)


def _replacement(instead: Callable[[str, str], str], match: re.Match[str]) -> str:
    kept = match.group(1) if match.re.groups else ""
    return instead(kept, match.group()[len(kept) :])


def _without_rests(text: str, instead: Callable[[str, str], str]) -> str:
    """The text without what is left of private keys whose first line is missing."""
    parts: list[str] = []
    at = 0
    for end in _KEY_END.finditer(text):
        kept = end.start()
        for line in reversed(_LINE_ENDS.split(text[max(at, kept - LONGEST) : kept])):
            if not _KEY_LINE.fullmatch(line):
                break
            kept -= len(line)
        parts += [text[at:kept], instead("", text[kept : end.end()])]
        at = end.end()
    return "".join(parts) + text[at:]


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
    yield json.dumps(json.dumps(secret)[1:-1])[1:-1]  # JSON inside JSON
    yield secret.replace("/", "\\/")
    if _UUID.fullmatch(secret):
        for one in (secret, secret.lower(), secret.upper()):
            yield one
            yield one.replace("-", "")
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
