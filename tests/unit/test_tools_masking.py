"""Secrets do not pass, in whatever spelling; and looking for them takes little time."""

from __future__ import annotations

import base64
import io
import json
import logging
import random
import re
import string
import time
import urllib.parse

import pytest

from agent.tools.results import MASK, Masker, MaskingFilter, bound, finish

SECRET = 'p@ss/w+rd "quoted" \\ 7'


@pytest.mark.parametrize(
    "spelled",
    [
        SECRET,
        urllib.parse.quote(SECRET, safe=""),
        urllib.parse.quote(SECRET),
        urllib.parse.quote_plus(SECRET),
        re.sub("%..", lambda found: found.group().lower(), urllib.parse.quote(SECRET, safe="")),
        json.dumps(SECRET),
    ],
)
def test_a_known_secret_is_masked_in_every_spelling(spelled: str) -> None:
    masked = Masker([SECRET]).mask(f"before {spelled} after")
    assert MASK in masked
    assert "w+rd" not in masked
    assert "ss%2Fw" not in masked.upper().replace("%2f", "%2F")
    assert masked.startswith("before ")
    assert masked.endswith(" after")


@pytest.mark.parametrize("prefix", ["", "u", "us", "user:"])
def test_a_known_secret_inside_base64_is_masked(prefix: str) -> None:
    secret = "correct-horse-battery-staple"
    encoded = base64.b64encode(f"{prefix}{secret} and more".encode()).decode()
    masked = Masker([secret]).mask(f"Authorization: Basic {encoded}")
    assert MASK in masked
    start = masked.index("Basic ") + 6
    left = masked[start:].split(MASK)
    assert all(len(part) < len(encoded) // 2 for part in left)


def test_the_longer_of_two_secrets_that_begin_alike_goes_whole() -> None:
    assert Masker(["abcdef", "abcdef-and-more"]).mask("x abcdef-and-more y") == f"x {MASK} y"


def test_short_values_are_left_alone() -> None:
    assert Masker(["yes", "", "     a"]).mask("yes, a word") == "yes, a word"


def test_a_value_learned_later_is_masked() -> None:
    masker = Masker()
    assert masker.mask("see token-of-today") == "see token-of-today"
    masker.add("token-of-today")
    assert masker.mask("see token-of-today") == f"see {MASK}"


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcDEF0123456789abcdef",
        "sk-ant-api03-Zm9vYmFyYmF6cXV4",
        "1234567890:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw",
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_" + "a1B2" * 9,
        "github_pat_" + "x9" * 25,
        "xoxb-1234567890-abcdefghij",
        "xapp-1-A0B1C2-123456-abcdef",
        "AIza" + "Sy0_" * 8 + "abc",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nAAAA\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nMIIEow\nwhose end is missing",
    ],
)
def test_text_in_the_shape_of_a_credential_is_masked(secret: str) -> None:
    masked = Masker().mask(f"it is {secret}")
    assert secret.partition(":")[2] not in masked if secret[0].isdigit() else secret[8:] not in masked
    assert masked.startswith("it is ")


def test_a_password_in_a_url_is_masked_and_its_host_is_kept() -> None:
    masked = Masker().mask("at postgres://bob:hunter2@db.example:5432/x")
    assert masked == f"at postgres://bob:{MASK}@db.example:5432/x"


@pytest.mark.parametrize(
    "harmless",
    [
        "meet at 12:30, room 5:a",
        "image@sha256:" + "ab" * 32,
        "task-runner-with-a-very-long-name",
        "http://example.org:8080/path@x",
        "the bearer of this letter",
        "commit 0123456789abcdef0123456789abcdef01234567",
    ],
)
def test_ordinary_text_is_left_alone(harmless: str) -> None:
    assert Masker(["some-other-secret"]).mask(harmless) == harmless


@pytest.mark.parametrize(
    "text",
    [
        "1" * 200_000,
        "eyJ" * 70_000,
        "-----BEGIN PRIVATE KEY-----" * 8_000,
        "://a:" * 40_000,
        "sk-" * 70_000,
        "bearer " * 30_000,
        "".join(random.Random(1).choices(string.ascii_letters + " ", k=200_000)),
    ],
    ids=["digits", "jwt", "keys", "urls", "sk", "bearer", "words"],
)
def test_masking_takes_linear_time_whatever_the_text(text: str) -> None:
    masker = Masker(f"secret-number-{n}" for n in range(30))
    began = time.thread_time()
    masker.mask(text)
    assert time.thread_time() - began < 1.0


def test_bound_keeps_both_ends_and_says_how_much_is_left_out() -> None:
    text = "\n".join(f"line {n}" for n in range(10_000))
    short = bound(text, 2_000, "Do this.")
    assert short.startswith("line 0\n")
    assert short.endswith("line 9999")
    assert len(short) < 2_200
    left_out = (
        len(text) - sum(len(part) for part in short.split("\n[... ")[0:1]) - len(short.split("...]\n")[1])
    )
    assert f"{left_out} characters left out here. Do this." in short


def test_bound_leaves_what_fits() -> None:
    assert bound("x" * 2_000, 2_000) == "x" * 2_000


@pytest.mark.parametrize("shift", range(0, 40, 3))
def test_a_secret_at_the_cut_is_not_left_in_half(shift: int) -> None:
    secret = "Zq9-Xw8-Vu7-Ts6-Rr5-Po4-Nm3-Lk2"
    limit = 1_000
    for place in (600, 40_000 - 400):  # where the head ends and the tail begins
        at = place - shift
        text = ("." * at + secret).ljust(40_000, ".")
        result = finish(text, limit, Masker([secret]))
        assert not any(secret[n : n + 4] in result for n in range(len(secret) - 3))


def _logged(masker: Masker, log: logging.Logger) -> io.StringIO:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(MaskingFilter(masker))
    handler.setFormatter(logging.Formatter("%(message)s %(where)s", defaults={"where": ""}))
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(logging.DEBUG)
    return stream


def test_sc_05_a_token_in_messages_values_extras_and_exceptions_is_in_no_log() -> None:
    token = "123:CANARY"
    log = logging.getLogger("test.masking.sc05")
    stream = _logged(Masker([token]), log)
    url = f"http://127.0.0.1:9/bot{token}/getMe"
    log.debug("calling %s", url)
    log.info("calling " + url)
    log.info("values %s and %r", {"url": url}, (url,))
    log.info("a dict %(url)s", {"url": url})
    log.info("more", extra={"where": url})
    log.info("encoded %s", urllib.parse.quote(url, safe=""))
    try:
        try:
            raise ConnectionRefusedError(f"cannot reach {url}")
        except ConnectionRefusedError as cause:
            raise RuntimeError(f"no luck with {url}") from cause
    except RuntimeError:
        log.exception("failed at %s", url)
    written = stream.getvalue()
    assert "CANARY" not in written
    assert written.count(MASK) >= 8
    assert "ConnectionRefusedError" in written
    assert "RuntimeError: no luck" in written


def test_a_wrong_call_of_the_logger_still_logs_and_masks() -> None:
    log = logging.getLogger("test.masking.wrong")
    stream = _logged(Masker(["very-secret"]), log)
    log.info("one %s two %s", *["very-secret"])
    assert "very-secret" not in stream.getvalue()
    assert "one" in stream.getvalue()
