"""TLS from files. With a client authority, a server accepts only peers whose certificate that authority signed."""

from __future__ import annotations

import ssl
from pathlib import Path

from trunkline.errors import ConfigError


def server_tls(certificate: Path, key: Path, client_authority: Path | None = None) -> ssl.SSLContext:
    """For a server. ``client_authority`` makes it mutual. Raises ``ConfigError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _identify(context, certificate, key)
    if client_authority is not None:
        _trust(context, client_authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return _modern(context)


def client_tls(authority: Path, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """For a client: ``authority`` signed the server's certificate, which must name the host that is dialled."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _trust(context, authority)
    if (certificate is None) != (key is None):
        raise ConfigError("a client certificate needs its key, and a key its certificate; give both files or none")
    if certificate is not None and key is not None:
        _identify(context, certificate, key)
    return _modern(context)


def _modern(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _identify(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"cannot use certificate {certificate} with key {key} ({error}); give a PEM pair that belongs together"
        ) from error


def _trust(context: ssl.SSLContext, authority: Path) -> None:
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        raise ConfigError(f"cannot use {authority} as an authority ({error}); give a PEM certificate") from error
