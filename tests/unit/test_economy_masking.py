"""Secrets in the disguises in which tools bring them."""

from __future__ import annotations

import json

import pytest

from agent.tools.masking import MASK, Masker
from agent.tools.results import finish

AWS = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
KEYS = {
    "openai": "sk-proj-a1B2c3D4e5F6g7H8i9J0",
    "anthropic": "sk-ant-api03-Zm9vYmFyYmF6cXV4a1",
    "groq": "gsk_" + "a1B2c3" * 6,
    "google": "AIza" + "Sy0_" * 8 + "abc",
    "google oauth": "GOCSPX-" + "a1B2c3" * 4,
    "slack": "xoxb-1234567890-abcdefghij",
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "github": "ghp_" + "a1B2" * 9,
    "gitlab": "glpat-" + "a1B2" * 5,
    "stripe": "sk_live_" + "a1B2" * 6,
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize(
    "around",
    [
        "key {} rest",
        r'{{"log": "a\n{}\n"}}',
        r"\u001b[31m{}\u001b[0m",
        "\x1b[31m{}\x1b[0m",
        "\x1b[1;32m{}",
        "x%3D{}&y=1",
        r"\x1b[0m{}",
        "\t{}\t",
        "({})",
        "key={};",
    ],
)
def test_a_key_is_found_behind_escapes_and_colours(kind: str, around: str) -> None:
    masked = Masker().mask(around.format(KEYS[kind]))
    assert KEYS[kind][-10:] not in masked
    assert MASK in masked


@pytest.mark.parametrize(
    "text", ["a task-list-of-things-to-do-2024", "risk-based-approach-number-12345", "basic information here"]
)
def test_words_that_only_hold_such_a_beginning_are_left_alone(text: str) -> None:
    assert Masker().mask(text) == text


def test_a_key_that_colours_tear_apart_is_found() -> None:
    key = KEYS["openai"]
    assert key[-8:] not in Masker().mask(f"{key[:9]}\x1b[31m\x1b[K{key[9:14]}\x1b[0m{key[14:]}")
    assert "horse" not in Masker(["correct-horse"]).mask("correct\x1b[7m-horse\x1b[0m")


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("postgres://app:p@ss:w0rd@db/x", "w0rd"),
        ("postgres:\\/\\/app:s3cr3tpass@db", "s3cr3tpass"),
        ("amqp://:s3cr3tpass@mq", "s3cr3tpass"),
        ("Server=db;User Id=sa;Password=s3cr3tpass;", "s3cr3tpass"),
        ("host=db user=app password=s3cr3tpass dbname=x", "s3cr3tpass"),
        ("AccountName=x;AccountKey=abcd1234efgh==;", "abcd1234efgh"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNz"),
        ('{"authorization": "Basic dXNlcjpwYXNzd29yZA=="}', "dXNlcjpwYXNz"),
        (json.dumps(json.dumps({"aws_secret_access_key": AWS})), "wJalr"),
        ('"SecretAccessKey": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"', "wJalr"),
        ("https://hooks.slack.com/services/T0AB/B0CD/abcdefghijkl", "abcdefghijkl"),
        ("https://api.telegram.org/bot123456%3AAAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw/x", "AAHdqTcv"),
    ],
)  # fmt: skip
def test_passwords_in_addresses_strings_and_headers_go(text: str, secret: str) -> None:
    masked = Masker().mask(text)
    assert secret not in masked
    assert MASK in masked


@pytest.mark.parametrize(
    "text",
    [
        "connect(user=user, password=password)",
        "PWD=/srv/of/2024",
        "see https://example.org:8080/path?x=1 and a@b.example",
        "password=${DB_PASSWORD1}",
    ],
)
def test_code_and_addresses_without_a_password_are_left_alone(text: str) -> None:
    assert Masker().mask(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "MIIEabc\nDEFgh==\n-----END RSA PRIVATE KEY-----\nrest",
        "    MIIEabc\n    DEFgh==\n    -----END PRIVATE KEY-----\nrest",
        r"MIIEabc\nDEFgh==\n-----END PRIVATE KEY-----\nrest",
    ],
)
def test_the_rest_of_a_private_key_whose_beginning_is_missing_goes(text: str) -> None:
    masked = Masker().mask(text)
    assert "MIIE" not in masked
    assert "DEFgh" not in masked
    assert masked.endswith("rest")


def test_words_before_the_end_of_a_key_stay() -> None:
    assert Masker().mask("A key ends with -----END PRIVATE KEY-----.") == f"A key ends with {MASK}."


@pytest.mark.parametrize(
    "form", [str.upper, str.lower, lambda s: s.replace("-", ""), lambda s: s.upper().replace("-", "")]
)
def test_a_known_uuid_is_found_however_it_is_written(form: object) -> None:
    known = "7D5a2c14-93be-4f0a-b1d6-0c8e5f7a9b23"
    assert callable(form)
    assert Masker([known]).mask(f"id {form(known)}.") == f"id {MASK}."


@pytest.mark.parametrize("limit", range(1000, 1400, 7))
def test_the_cut_leaves_no_half_of_a_secret(limit: int) -> None:
    masker = Masker(["correct-horse-battery-staple"])
    text = ("correct-horse-battery-staple sk-proj-a1B2c3D4e5F6g7H8i9J0 " * 900)[: 40_000 + limit]
    shown = finish(text, limit, masker)
    assert "horse" not in shown
    assert "B2c3" not in shown
