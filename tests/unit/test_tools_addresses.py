"""Which addresses are public, and what a configuration allows besides."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from agent.tools.builtin.addresses import AllowedHosts, is_public
from agent.tools.settings import WebFetchSettings


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "172.32.0.1", "2606:4700::1111", "2a00:1450::8a"]
)
def test_addresses_of_the_open_internet_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254",
        "168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1",
        "192.168.1.1", "198.18.0.1", "203.0.113.5", "224.0.0.1", "240.0.0.1", "255.255.255.255",
        "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "64:ff9b::7f00:1", "64:ff9b:1::1",
        "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "2001::1", "2001:db8::1",
        "2002:7f00:1::", "3fff::1", "100::1", "localhost", "", "2130706433",
    ],
)  # fmt: skip
def test_all_other_addresses_are_not(address: str) -> None:
    assert not is_public(address)


def test_exceptions_are_names_ports_addresses_and_networks() -> None:
    allowed = AllowedHosts.parse(
        ["Wiki.Intern", "api.intern:8080", "127.0.0.1:9000", "10.1.0.0/16", "::1", "[::1]:80"]
    )
    assert allowed.names("wiki.intern.", 443)
    assert allowed.names("api.intern", 8080)
    assert not allowed.names("api.intern", 80)
    assert allowed.names("127.0.0.1", 9000)
    assert not allowed.names("127.0.0.1", 9001)
    assert allowed.names("::1", 7)
    assert not allowed.names("evil.wiki.intern", 443)
    assert allowed.covers("10.1.2.3")
    assert not allowed.covers("10.2.0.1")
    assert not allowed.covers("nonsense")


@pytest.mark.parametrize("entry", ["http://x", "10.0.0.0/99", "a b", "x:port", ""])
def test_a_malformed_exception_is_refused_by_the_settings(entry: str) -> None:
    with pytest.raises(ValidationError, match="write"):
        WebFetchSettings(allow_hosts=(entry,))
