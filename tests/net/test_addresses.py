"""Addresses as people write them."""

from __future__ import annotations

import pytest

from trunkline.errors import ConfigError
from trunkline.net.addresses import format_address, parse_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7400", "127.0.0.1", 7400),
        ("node-1", "node-1", 7400),
        (" node-1:1 ", "node-1", 1),
        ("[::1]:9", "::1", 9),
        ("[::1]", "::1", 7400),
    ],
)
def test_an_address_is_a_host_and_maybe_a_port(text: str, host: str, port: int) -> None:
    assert parse_address(text, 7400) == (host, port)
    assert parse_address(format_address(host, port)) == (host, port)


@pytest.mark.parametrize(
    "text", ["", ":7400", "host:", "host:x", "host:65536", "host:-1", "::1", "[::1", "[::1]x", "h:²"]
)
def test_a_wrong_address_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ConfigError, match="write "):
        parse_address(text, 7400)


def test_an_address_without_a_port_needs_a_default() -> None:
    with pytest.raises(ConfigError, match="write node-1:port"):
        parse_address("node-1")
