"""What a provider's failure means: pure functions from status, body and headers to a `ModelError`."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from agent.models.base import (
    BadRequest,
    Connection,
    ContextTooLong,
    ModelError,
    Overloaded,
    RateLimited,
    Refused,
    Unauthorised,
)

#: Characters of a provider's message that are kept for the log.
LONGEST_DETAIL = 600

# What servers say when a request does not fit, as seen from OpenAI, DeepSeek, vLLM, llama.cpp, Ollama,
# LM Studio, Anthropic, Gemini, Mistral, Qwen (DashScope), Groq, Moonshot, Zhipu, xAI, MiniMax, Cohere.
_CONTEXT = re.compile(
    r"context_length_exceeded|exceed_context_size|model_context_window_exceeded"
    r"|maximum context length|max(imum)? context|context (length|window|size|limit)"
    r"|prompt is too long|prompt too long|input is too long|prompt exceeds max length"
    r"|maximum prompt length|input length (should be|exceeds)|range of input length"
    r"|input token count .{0,40}exceeds|exceeded model token limit|too many (input )?tokens"
    r"|reduce the length of (the|your) (messages|prompt|input)|tokens? .{0,60}exceeds? .{0,40}(limit|maximum)"
    r"|request (exceeds the maximum size|too large)|request_too_large"
    r"|tokens to keep from the initial prompt|messages\[\d+\]\.content.{0,20}string too long",
    re.IGNORECASE,
)
_CONTENT = re.compile(
    r"content_filter|content_policy|content policy|content management policy|responsible.?ai"
    r"|data_?inspection_?failed|content exists risk|moderation|inappropriate content|sensitive content"
    r"|usage polic(y|ies)|safety system|flagged",
    re.IGNORECASE,
)
_ACCOUNT = re.compile(
    r"insufficient_quota|insufficient.?(balance|credit|funds)|credit balance is too low|billing"
    r"|exceeded your current quota|arrears|account.{0,20}(suspended|deactivated)",
    re.IGNORECASE,
)
# The same words as above stand in Gemini's ordinary 429, so there only these count.
_ACCOUNT_429 = re.compile(r"insufficient_quota|insufficient.?(balance|credit|funds)|arrears", re.IGNORECASE)
_KEY = re.compile(
    r"invalid_api_key|incorrect api key|invalid api.?key|invalid x-api-key|authentication_error", re.I
)
_BUSY = re.compile(r"overloaded|server_error|api_error|internal.?error|unavailable|timeout|try again", re.I)
_LATER = re.compile(
    r"(?:try again in|retry after|retry in|retryDelay\W+)\s*(\d+(?:\.\d+)?)\s*(ms|s\b|sec|m\b|min)?", re.I
)
_SECRET = re.compile(r"\b(?:sk|pk|rk|gsk|xai|AIza|Bearer)[-_ ][A-Za-z0-9_\-.*]{6,}|(?<=://)[^/\s@]+@")


@dataclass(frozen=True, slots=True)
class Said:
    """What an error body says."""

    message: str
    labels: str  # type and code, for the patterns
    status: int  # a status inside the body, 0 when there is none


def read_body(body: object) -> Said:
    """Find message, type and code in the shapes of error bodies that are in use."""
    if isinstance(body, bytes | str):
        text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            return Said(_plain(text), "", 0)
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, dict):
        return Said("" if body is None else str(body), "", 0)
    error = body.get("error", body)
    if not isinstance(error, dict):
        return Said(str(error), str(body.get("type") or ""), 0)
    # "metadata.raw" is where OpenRouter puts the words of the provider behind it.
    metadata = error.get("metadata")
    inner = metadata.get("raw") if isinstance(metadata, dict) else None
    message = error.get("message") or error.get("detail") or error.get("error") or error.get("msg") or ""
    words = " / ".join(
        part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)
        for part in (message, inner)
        if part
    )
    labels = " ".join(str(error[key]) for key in ("type", "code", "status") if error.get(key))
    code = error.get("code")
    number = int(code) if isinstance(code, int | str) and re.fullmatch(r"[45]\d\d", str(code)) else 0
    return Said(words or json.dumps(body, ensure_ascii=False)[:LONGEST_DETAIL], labels, number)


def _plain(text: str) -> str:
    if "<html" in text[:500].lower() or "<!doctype" in text[:500].lower():
        title = re.search(r"<title>(.{0,200}?)</title>", text[:20_000], re.I | re.S)
        return f"an HTML page{': ' + title[1].strip() if title else ''}"
    return text.strip()


def retry_after(
    headers: Mapping[str, str], message: str = "", now: Callable[[], float] = time.time
) -> float | None:
    """Seconds to wait as the provider said it: `retry-after-ms`, `retry-after` as seconds or as a date,
    else words in the message. None when it did not say."""
    value = headers.get("retry-after", "")
    seconds = _number(headers.get("retry-after-ms", ""))
    seconds = _number(value) if seconds is None else seconds / 1000
    if seconds is None and (until := _moment(value)) is not None:
        # By the server's own clock where it tells it: this machine's may be wrong.
        said = _moment(headers.get("date", ""))
        seconds = until - (now() if said is None else said)
    if seconds is None and (found := _LATER.search(message)):
        unit = (found[2] or "s").lower()
        seconds = float(found[1]) * {"ms": 0.001, "m": 60.0, "min": 60.0}.get(unit, 1.0)
    return None if seconds is None else max(0.0, seconds)


def _moment(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def classify(
    status: int,
    body: object,
    headers: Mapping[str, str],
    *,
    provider: str,
    secrets: tuple[str, ...] = (),
) -> ModelError:
    """The error for a refused request, or for an error inside a stream (then `status` is 200).

    `headers` are looked up in lower case. `provider` names the server in the detail.
    """
    said = read_body(body)
    if status < 400 and said.status:
        status = said.status
    words = f"{said.labels} {said.message}"
    label = f"HTTP {status}" if status >= 400 else "an error in the stream"
    detail = clean(f"{provider} answered {label}: {said.message or 'no text'}", secrets)
    if said.labels:
        detail = clean(f"{detail} ({said.labels})", secrets)
    wait = retry_after(headers, said.message)
    if status not in (401, 402) and status < 500 and _CONTENT.search(words):
        return Refused(detail)
    if (_ACCOUNT_429 if status == 429 else _ACCOUNT).search(words) or status == 402:
        return Unauthorised(f"{detail}. Look at the account's balance and limits.")
    if status not in (401, 403) and _does_not_fit(status, words):
        return ContextTooLong(detail)
    if status in (401, 403) or (status in (200, 400) and _KEY.search(words)):
        return Unauthorised(f"{detail}. Look at the key and what it may do.")
    if status == 429 or (status < 400 and "rate_limit" in words):
        return RateLimited(detail, wait)
    if status in (408, 504, 522, 524):
        return Connection(detail, wait)
    if status in (409, 425) or status >= 500:
        return Overloaded(detail, wait)
    if status < 300 and not re.search(r"invalid_request|not_found|bad_request", words):
        return Overloaded(detail, wait) if _BUSY.search(words) else Connection(detail, wait)
    if status in (404, 405):
        detail += ". Look at the model's name and at base_url."
    elif 300 <= status < 400:
        address = clean(headers.get("location", "?"))
        detail += f". The server wants another address: set base_url to {address}."
    return BadRequest(detail)


def _does_not_fit(status: int, words: str) -> bool:
    # A 429 about tokens by the minute is no matter of length, unless it can never be met.
    if status == 429:
        return bool(re.search(r"request too large", words, re.I))
    return status == 413 or bool(_CONTEXT.search(words))


def clean(text: str, secrets: tuple[str, ...] = ()) -> str:
    """A detail without keys and passwords, of bounded length."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, "***")
    text = _SECRET.sub("***", text)
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_DETAIL else text[: LONGEST_DETAIL - 1] + "…"
