"""By which names an HTTP server of ours may be asked for, and which pages may ask it for a change.

A browser lets a page talk to the server that the page came from. A site that points its own name at this machine (DNS
rebinding) comes from "here" in the browser's eyes, and only the request's ``Host`` tells it from us.

Rules
 E1  A request is answered under a loopback name or address, under the address that is listened on or was reached, and
     under names that were listed. An address cannot be pointed elsewhere, so it is compared as an address.
 E2  A request without any ``Host`` comes from no browser, and is answered.
 E3  An origin is our own if it is what the ``Host`` says.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from trunkline.errors import ConfigError
from trunkline.net.addresses import parse_address

NOT_OUR_NAME: Final = "this server does not go by that name; use its address, or start it with --allow-host NAME"
WILDCARDS: Final = ("", "*", "0.0.0.0", "::")

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class OwnNames:
    """``listen``: the host that is listened on; ``listed``: further names, as an operator gave them."""

    def __init__(self, listen: str, listed: Iterable[str] = ()) -> None:
        self._names = {"localhost", *(_bare(name) for name in listed)}
        if not is_wildcard(listen):
            self._names.add(listen.lower())

    def has(self, header: str | None, reached: str | None) -> bool:
        """``reached``: the address of this machine that the connection was made to."""
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
    """None where it is no address. One of IPv4 that was reached by a socket of IPv6 is one of IPv4."""
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
        raise ConfigError(f"{name!r} is no name of a host; write it alone, without a port, such as logs.example")
    return bare
