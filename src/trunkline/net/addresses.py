"""Network addresses: ``host:port``, with brackets around an IPv6 host."""

from __future__ import annotations

from trunkline.errors import ConfigError

PORT_MAX = 65_535


def parse_address(address: str, default_port: int | None = None) -> tuple[str, int]:
    """Host and port of ``host``, ``host:port``, ``[::1]`` or ``[::1]:port``. Raises ``ConfigError``."""
    text = address.strip()
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        colon, port_text = rest[:1], rest[1:]
        well_formed = bool(closed) and colon in ("", ":")
    else:
        host, colon, port_text = text.partition(":")
        well_formed = ":" not in port_text
    if not well_formed or not host or (colon and not port_text):
        raise ConfigError(f"{address!r} is not a valid address; write host:port, or [host]:port for IPv6")
    if not colon:
        if default_port is None:
            raise ConfigError(f"{address!r} has no port; write {text}:port")
        return host, default_port
    if not (port_text.isascii() and port_text.isdigit() and 0 <= int(port_text) <= PORT_MAX):
        raise ConfigError(f"{port_text!r} in {address!r} is not a valid port; write a number up to {PORT_MAX}")
    return host, int(port_text)


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
