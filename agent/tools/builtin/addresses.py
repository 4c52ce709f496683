"""Which network addresses a tool may connect to: public ones, and what the configuration names.

Pure. The lists follow the special-purpose registries of IANA (RFC 6890 and its successors).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_NOT_PUBLIC_4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",  # this host
            "10.0.0.0/8",
            "100.64.0.0/10",  # carrier-grade NAT; also a cloud's metadata service
            "127.0.0.0/8",
            "168.63.129.16/32",  # the host agent of Azure machines
            "169.254.0.0/16",  # link-local; the metadata service of most clouds
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/3",  # multicast, reserved, broadcast
        ),
    )
)
# Of IPv6 only global unicast is public, so that mapped, translated (64:ff9b::/96), local and multicast
# addresses are out without being listed. Of it, these are not:
_PUBLIC_6 = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # protocol assignments, Teredo among them
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4: holds an IPv4 address
            "3fff::/20",  # documentation
        ),
    )
)


def is_public(address: str) -> bool:
    """Whether the address is one of the open internet. False for what is no address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv4Address):
        return not any(parsed in network for network in _NOT_PUBLIC_4)
    return parsed in _PUBLIC_6 and not any(parsed in network for network in _NOT_PUBLIC_6)


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """The exceptions of the configuration: names, names with a port, addresses, networks."""

    hosts: frozenset[tuple[str, int]]
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]

    @classmethod
    def parse(cls, entries: Iterable[str]) -> AllowedHosts:
        """Raises ValueError for an entry that is none of these forms."""
        hosts: set[tuple[str, int]] = set()
        networks = []
        for entry in entries:
            if "/" in entry:
                networks.append(ipaddress.ip_network(entry, strict=False))
            else:
                hosts.add(_host_and_port(entry))
        return cls(frozenset(hosts), tuple(networks))

    def names(self, host: str, port: int) -> bool:
        """Whether the host, as it stands in the URL, is an exception at this port."""
        plain = normal_host(host)
        return (plain, port) in self.hosts or (plain, 0) in self.hosts

    def covers(self, address: str) -> bool:
        """Whether the address lies in a network that is an exception."""
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self.networks)


def normal_host(host: str) -> str:
    """A host name or address in the one form in which it is compared."""
    return host.strip("[]").rstrip(".").lower()


def _host_and_port(entry: str) -> tuple[str, int]:
    """The host and its port; 0 for any port."""
    try:
        return str(ipaddress.ip_address(entry.strip("[]"))), 0
    except ValueError:
        pass
    host, colon, port = entry.rpartition(":")
    return (normal_host(host), int(port)) if colon else (normal_host(entry), 0)
