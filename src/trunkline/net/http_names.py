"""The names that an HTTP server answers to, and the origins that are its own.

A browser lets a page talk to the server that the page came from. A site that points its own name at this machine (DNS
rebinding) has the same origin as this server for the browser; only the ``Host`` of the request shows the difference.

Rules
 E1  A server answers to a loopback name or address, to the address that it listens on or that the client reached, and
     to the names that an operator allowed. An address cannot be pointed elsewhere, so it is compared as an address.
 E2  A request without ``Host`` does not come from a browser, and is answered.
 E3  An origin is the server's own if it equals the ``Host``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from trunkline.errors import ConfigError
from trunkline.net.addresses import parse_address

NOT_OUR_NAME: Final = (
    "this server does not answer to that name; use its address, or allow the name "
    "(--allow-host NAME, or listen_names of a pipeline)"
)
WILDCARDS: Final = ("", "*", "0.0.0.0", "::")

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class OwnNames:
    """``listen``: the host that the server listens on; ``allowed``: further names, or ``ConfigError`` for bad ones."""

    def __init__(self, listen: str, allowed: Iterable[str] = ()) -> None:
        self._names = {"localhost", *(_bare(name) for name in allowed)}
        if not is_wildcard(listen):
            self._names.add(listen.lower())

    def has(self, header: str | None, reached: str | None) -> bool:
        """``header``: the ``Host``; ``reached``: the address of this machine that the client connected to."""
        if header is None:
            return True  # E2
        try:
            host = parse_address(header, default_port=80)[0].lower()
        except ConfigError:
            return False
        if host in self._names:
            return True
        address = ip_address(host)
        return address is not None and (address.is_loopback or address == ip_address(reached or ""))  # E1


def is_own_origin(origin: str, host: str | None) -> bool:
    """E3."""
    return host is not None and origin.partition("://")[2].lower() == host.lower()


def is_wildcard(host: str) -> bool:
    return host in WILDCARDS


def is_loopback(host: str) -> bool:
    address = ip_address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def ip_address(text: str) -> IpAddress | None:
    """None if it is not an address. An IPv4 address that an IPv6 socket shows is an IPv4 address."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _bare(name: str) -> str:
    """Raises ``ConfigError`` for a name with a port or a scheme: it would never match."""
    bare = name.strip().lower()
    if not bare or "/" in bare or "*" in bare or (":" in bare and ip_address(bare) is None):
        raise ConfigError(f"{name!r} is not a host name; write it without a port, such as logs.example")
    return bare
