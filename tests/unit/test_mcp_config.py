"""`mcp.json` in the dialects people write it in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.tools.mcp.config import ConfigError, McpConfig, ServerSpec, parse_config


def parse(value: Any, environ: dict[str, str] | None = None, secrets: list[str] | None = None) -> McpConfig:
    data = (
        value
        if isinstance(value, bytes)
        else (value if isinstance(value, str) else json.dumps(value)).encode()
    )
    heard: list[str] = [] if secrets is None else secrets
    return parse_config(data, environ=environ or {}, on_secret=heard.append)


def only(entry: dict[str, Any], environ: dict[str, str] | None = None) -> ServerSpec:
    config = parse({"mcpServers": {"s": entry}}, environ)
    assert config.bad == ()
    (spec,) = config.servers
    return spec


def fault(entry: Any, environ: dict[str, str] | None = None) -> str:
    config = parse({"mcpServers": {"good": {"command": "x"}, "s": entry}}, environ)
    assert [spec.name for spec in config.servers] == ["good"], "a bad entry took another one with it"
    (bad,) = config.bad
    assert bad.name == "s"
    return bad.reason


@pytest.mark.parametrize(
    "file",
    [
        {"mcpServers": {"a": {"command": "x", "args": ["1"]}}},
        {"servers": {"a": {"command": "x", "args": ["1"]}}},
        {"mcp_servers": {"a": {"command": "x", "args": ["1"]}}},
        {"mcp": {"servers": {"a": {"command": "x", "args": ["1"]}}}},
        {"a": {"command": "x", "args": ["1"]}},
        {"mcpServers": [{"name": "a", "command": "x", "args": ["1"]}]},
        {"mcpServers": {"a": {"command": ["x", "1"]}}},
        {"mcpServers": {"a": {"command": "x", "args": [1]}}},
        {"mcpServers": {"a": {"type": "stdio", "command": "x", "args": ["1"]}}},
    ],
)
def test_every_shape_of_the_file_gives_the_same_server(file: Any) -> None:
    (spec,) = parse(file).servers
    assert (spec.name, spec.kind, spec.command, spec.args) == ("a", "stdio", "x", ("1",))


def test_an_empty_map_of_servers_is_no_server_and_no_fault() -> None:
    assert parse({"mcpServers": {}}) == McpConfig()
    assert parse({}) == McpConfig()
    assert parse(b"") == McpConfig()
    assert parse(b"\xef\xbb\xbf\r\n") == McpConfig()


def test_mc_14_a_url_alone_is_streamable_http_and_both_keys_are_a_fault_that_names_them() -> None:
    config = parse(
        {
            "mcpServers": {
                "m": {"url": "http://127.0.0.1:8123/mcp"},
                "n": {"type": "streamable-http", "url": "https://example.org/mcp"},
                "o": {"command": "x", "url": "https://example.org"},
                "p": {"transport": "sse", "url": "https://example.org/sse"},
            }
        }
    )
    assert {spec.name: spec.kind for spec in config.servers} == {"m": "http", "n": "http", "p": "sse"}
    (bad,) = config.bad
    assert bad.name == "o"
    assert "'command'" in bad.reason
    assert "'url'" in bad.reason


def test_mc_23_a_file_with_a_byte_order_mark_and_crlf_reads_like_one_without() -> None:
    text = '{"mcpServers":\r\n{"a": {"command": "x"}}\r\n}'
    assert parse(b"\xef\xbb\xbf" + text.encode()) == parse(text)
    assert parse(b"\xff\xfe" + text.encode("utf-16-le")) == parse(text)
    assert parse(b'\xef\xbb\xbf{"mcpServers":{}}\r\n') == McpConfig()


def test_comments_and_trailing_commas_are_taken() -> None:
    text = """{
      // the servers
      "mcpServers": {
        "a": {"command": "x", "args": ["1",],}, /* one */
      },
    }"""
    assert parse(text).servers == parse({"mcpServers": {"a": {"command": "x", "args": ["1"]}}}).servers


@pytest.mark.parametrize(
    ("text", "line"),
    [('{"mcpServers": {\n "a": {"command": "x"', 2), ('{\n"mcpServers" {}}', 2), ("[]", 1), ('{"a": 1}', 1)],
)
def test_a_broken_file_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert caught.value.line == line


def test_a_half_written_file_says_so() -> None:
    with pytest.raises(ConfigError, match=r"line 1, column 17.*half written"):
        parse('{"mcpServers": {')


def test_mc_22_variables_are_expanded_once_in_all_places() -> None:
    environ = {"DEMO_TOKEN": "s3cr$t-${HOME}", "HOME": "/home/x"}
    local = only(
        {
            "command": "run-${HOME}",
            "args": ["--k=${DEMO_TOKEN}"],
            "env": {"K": "${DEMO_TOKEN}"},
            "cwd": "${HOME}/d",
        },
        environ,
    )
    assert local.command == "run-/home/x"
    assert local.args == ("--k=s3cr$t-${HOME}",)
    assert local.env == (("K", "s3cr$t-${HOME}"),)
    assert local.cwd == "/home/x/d"
    remote = only({"url": "https://h/${HOME}", "headers": {"Authorization": "Bearer ${DEMO_TOKEN}"}}, environ)
    assert remote.url == "https://h//home/x"
    assert remote.headers == (("Authorization", "Bearer s3cr$t-${HOME}"),)


@pytest.mark.parametrize("entry", [
    {"command": "x", "args": ["${DEMO_TOKEN}"]},
    {"command": "x", "env": {"K": "${DEMO_TOKEN}"}},
    {"url": "https://h", "headers": {"Authorization": "Bearer ${DEMO_TOKEN}"}},
])  # fmt: skip
def test_mc_22_an_unset_variable_fails_its_entry_alone_and_is_named(entry: dict[str, Any]) -> None:
    assert "DEMO_TOKEN" in fault(entry)


def test_a_default_stands_in_for_an_unset_or_empty_variable() -> None:
    assert only({"command": "x", "args": ["${A:-1}", "${B:-}", "${C:-x:y}"]}, {"A": ""}).args == (
        "1",
        "",
        "x:y",
    )
    assert only({"command": "x", "args": ["${env:A}", "$A", "$${A}"]}, {"A": "v"}).args == ("v", "$A", "${A}")


def test_a_reference_that_is_no_variable_is_refused() -> None:
    assert "${input:token}" in fault({"command": "x", "args": ["${input:token}"]})


def test_credentials_are_told_to_the_masker_and_ordinary_values_are_not() -> None:
    secrets: list[str] = []
    parse(
        {
            "mcpServers": {
                "a": {
                    "command": "x",
                    "env": {"API_KEY": "key-123456", "LOG_LEVEL": "warning", "H": "${HOME}"},
                },
                "b": {
                    "url": "https://u:passw0rd@h/?token=tok-12345",
                    "headers": {"X-Thing": "Bearer abcdef"},
                },
                "c": {"command": "x", "args": ["${MY_TOKEN}"]},
            }
        },
        {"MY_TOKEN": "from-env-1", "HOME": "/home/someone"},
        secrets,
    )
    assert {"key-123456", "passw0rd", "tok-12345", "Bearer abcdef", "abcdef", "from-env-1"} == set(secrets)


def test_a_spec_shows_no_credential_when_printed() -> None:
    spec = only({"command": "x", "args": ["hush-1"], "env": {"TOKEN": "hush-2"}})
    assert "hush" not in repr(spec)


def test_the_fingerprint_follows_the_environment_but_not_filters() -> None:
    entry = {"command": "x", "env": {"K": "${T}"}}
    one, two = only(entry, {"T": "1"}), only(entry, {"T": "2"})
    assert one.fingerprint != two.fingerprint
    assert only({**entry, "timeout": 5, "excludeTools": ["a"]}, {"T": "1"}).fingerprint == one.fingerprint
    assert only({"env": entry["env"], "command": "x"}, {"T": "1"}).fingerprint == one.fingerprint


def test_settings_of_other_clients_are_understood() -> None:
    spec = only(
        {
            "command": "x", "disabled": False, "timeout": 90_000, "start_timeout": 5, "excludeTools": ["b"],
            "includeTools": ["a", "b"], "autoApprove": ["a"], "restart": "stop-first", "description": "ours",
        }
    )  # fmt: skip
    assert (spec.timeout, spec.start_timeout, spec.stop_first) == (90.0, 5.0, True)
    assert (spec.include, spec.exclude, spec.always_allow) == (("a", "b"), ("b",), ("a",))
    assert only({"command": "x", "tools": ["*"]}).include is None
    assert only({"command": "x", "tools": {"a": True, "b": False}}).exclude == ("b",)
    assert only({"command": "x", "disabled": True}).disabled
    assert only({"command": "x", "enabled": False}).disabled


def test_an_unknown_key_warns_and_does_not_fail() -> None:
    config = parse({"mcpServers": {"a": {"command": "x", "comand": "y"}}, "extra": 1})
    assert [spec.name for spec in config.servers] == ["a"]
    assert any("comand" in warning and "a:" in warning for warning in config.warnings)
    assert any("extra" in warning for warning in config.warnings)


def test_a_name_that_is_given_twice_is_told() -> None:
    config = parse('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}')
    assert any("twice" in warning for warning in config.warnings)


@pytest.mark.parametrize(
    "entry",
    [
        "text", 3, None, [], {}, {"command": ""}, {"command": 3, "args": "no"}, {"command": "x", "env": []},
        {"command": "x", "env": {"A": {}}}, {"url": "ftp://x"}, {"url": "http://"}, {"url": 5},
        {"url": "http://h:port/"}, {"type": "pigeon", "command": "x"}, {"type": "sse", "command": "x"},
        {"command": "x", "timeout": 0}, {"command": "x", "timeout": True}, {"command": "x", "disabled": "no"},
        {"command": "x", "restart": "sometimes"}, {"url": "http://h", "headers": {"A": "b\nc"}},
        {"command": "x", "cwd": 3}, {"command": "x", "args": ["a\0b"]},
    ],
)  # fmt: skip
def test_a_wrong_entry_fails_alone_with_a_reason(entry: Any) -> None:
    assert len(fault(entry)) > 10


def test_a_bad_entry_is_reported_with_its_line() -> None:
    config = parse('{"mcpServers": {\n "a": {"command": "x"},\n "b": {}\n}}')
    assert [(bad.name, bad.line) for bad in config.bad] == [("b", 3)]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = [
    "command",
    "args",
    "env",
    "url",
    "headers",
    "type",
    "transport",
    "timeout",
    "tools",
    "disabled",
    "cwd",
]


@given(
    st.dictionaries(st.text(max_size=5), st.dictionaries(st.sampled_from(KEYS), json_values) | json_values)
)
def test_whatever_an_entry_holds_it_becomes_a_server_or_a_fault(servers: dict[str, Any]) -> None:
    config = parse({"mcpServers": servers})
    assert sorted([s.name for s in config.servers] + [b.name for b in config.bad]) == sorted(servers)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_give_a_configuration_or_a_config_error(data: bytes) -> None:
    try:
        config = parse(data)
    except ConfigError:
        return
    assert all(spec.name for spec in config.servers)
