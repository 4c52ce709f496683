"""The client that was registered by hand, as an entry of mcp.json names it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.tools.mcp.config import OAuthClient, parse_config

URL = "https://example.org/mcp"


def _entry(oauth: Any, **environ: str) -> tuple[Any, list[str]]:
    secrets: list[str] = []
    text = json.dumps({"mcpServers": {"s": {"url": URL, "oauth": oauth}}})
    return parse_config(text.encode(), environ=environ, on_secret=secrets.append), secrets


def test_a_client_is_read_in_either_spelling_and_its_secret_is_told_to_the_masker_and_not_printed() -> None:
    wanted = OAuthClient("bridge", "hush-hush-hush", "https://login.example.org")
    snake = {"client_id": "bridge", "client_secret": "${SECRET}", "issuer": "https://login.example.org"}
    camel = {"clientId": "bridge", "clientSecret": "${SECRET}", "issuer": "https://login.example.org"}
    for oauth in (snake, camel):
        config, secrets = _entry(oauth, SECRET="hush-hush-hush")
        assert config.servers[0].oauth_client == wanted
        assert "hush-hush-hush" in secrets
        assert "hush-hush-hush" not in repr(config.servers[0])


@pytest.mark.parametrize("oauth", [True, {}, {"callbackPort": 3118, "scopes": ["all"]}, {"client_id": None}])
def test_what_other_programs_write_there_is_no_fault(oauth: Any) -> None:
    config, _ = _entry(oauth)
    assert config.bad == ()
    assert config.servers[0].oauth_client is None


def test_settings_of_other_programs_beside_a_client_are_passed_over() -> None:
    config, _ = _entry({"client_id": "x", "scopes": "all"})
    assert config.servers[0].oauth_client == OAuthClient("x", "", "")


@pytest.mark.parametrize("oauth", ["bridge", {"client_secret": "x"}, ["bridge"]])
def test_what_names_no_client_fails_its_entry_alone_and_says_what_belongs_there(oauth: Any) -> None:
    config, _ = _entry(oauth)
    assert config.servers == ()
    assert "oauth" in config.bad[0].reason
