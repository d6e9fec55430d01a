"""How to reach a cluster, from flags, the environment and a file; a flag overrides the environment, and that the file.

The file is TOML: the one that is named, else ``./trunkline.toml``, else ``~/.config/trunkline/config.toml``. An error
names the flag, variable or file that a value came from.

No other module reads or changes environment variables: ``secret``, ``ENVIRONMENT`` and ``changed_environment`` do it
for all of them.
"""

from __future__ import annotations

import os
import ssl
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from trunkline.errors import ConfigError
from trunkline.net.addresses import format_address, parse_address
from trunkline.net.tls import client_tls

DEFAULT_CONNECT = "127.0.0.1:7400"
DEFAULT_PORT = 7400
DEFAULT_TIMEOUT_S = 30.0
TOKEN_BYTES_MAX = 4096

VARIABLES = {
    "connect": "TRUNKLINE_CONNECT",
    "token": "TRUNKLINE_TOKEN",
    "timeout": "TRUNKLINE_TIMEOUT",
    "tls_ca": "TRUNKLINE_TLS_CA",
    "tls_cert": "TRUNKLINE_TLS_CERT",
    "tls_key": "TRUNKLINE_TLS_KEY",
}
FILE_VARIABLE = "TRUNKLINE_CONFIG"
FILE_KEYS = ("connect", "token", "token_file", "timeout", "tls_ca", "tls_cert", "tls_key")

ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType(os.environ)  # as it is now, to read


def secret(variable: str, what: str, environment: Mapping[str, str] = ENVIRONMENT) -> str:
    """The secret in an environment variable; ``what`` says which one belongs there. Raises ``ConfigError``."""
    found = environment.get(variable)
    if not found:
        raise ConfigError(f"the environment variable {variable} is not set or is empty; set it to {what}")
    return found


def set_variable(name: str, value: str) -> None:
    """For libraries that read a setting from the environment only."""
    os.environ[name] = value


@contextmanager
def changed_environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set these variables, and restore them afterwards: for libraries that read settings from the environment only."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class ConnectionConfig(msgspec.Struct, frozen=True):
    """How to reach a cluster."""

    connect: tuple[str, ...] = (DEFAULT_CONNECT,)  # coordinators, host:port
    token: str = ""  # the cluster's shared secret; wrong: the cluster rejects every connection
    timeout_s: float | None = DEFAULT_TIMEOUT_S  # too small: calls fail during a fail-over; None: no limit
    tls_ca: str = ""  # the authority that signed the servers' certificates; empty: connections are not encrypted
    tls_cert: str = ""  # of this client, if the cluster requires one
    tls_key: str = ""

    def tls(self) -> ssl.SSLContext | None:
        """None if connections are not encrypted. Raises ``ConfigError``."""
        if not self.tls_ca:
            if self.tls_cert or self.tls_key:
                raise ConfigError("a client certificate needs the cluster's authority: set tls-ca, too")
            return None
        certificate = Path(self.tls_cert) if self.tls_cert else None
        return client_tls(Path(self.tls_ca), certificate, Path(self.tls_key) if self.tls_key else None)


class Value(msgspec.Struct, frozen=True):
    """A value, and the flag, variable or key that it came from."""

    value: object
    origin: str


def load(
    flags: Mapping[str, str | None], environment: Mapping[str, str] = ENVIRONMENT, *, home: Path | None = None
) -> ConnectionConfig:
    """The configuration of one command. ``flags`` has the keys of the file, and ``config`` for the file itself.

    Raises ``ConfigError``.
    """
    found: dict[str, Value] = {}
    path = _file(flags.get("config"), environment.get(FILE_VARIABLE), home)
    if path is not None:
        found |= _from_file(path)
    for key, variable in VARIABLES.items():
        if environment.get(variable):
            _put(found, key, Value(environment[variable], f"the environment variable {variable}"))
    for key in FILE_KEYS:
        given = flags.get(key)
        if given is not None:
            _put(found, key, Value(given, f"--{key.replace('_', '-')}"))
    return ConnectionConfig(
        connect=_addresses(found.get("connect")),
        token=_token(found),
        timeout_s=_timeout(found.get("timeout")),
        tls_ca=_text(found.get("tls_ca")),
        tls_cert=_text(found.get("tls_cert")),
        tls_key=_text(found.get("tls_key")),
    )


def _put(found: dict[str, Value], key: str, value: Value) -> None:
    """A token replaces a token file of lower precedence, and the other way round."""
    for other in ("token", "token_file"):
        if key in ("token", "token_file"):
            found.pop(other, None)
    found[key] = value


def _file(flag: str | None, variable: str | None, home: Path | None) -> Path | None:
    """The named file, which must exist; else the first default file that exists."""
    named = flag or variable
    if named:
        return Path(named)
    usual = [Path("trunkline.toml")]
    if home is not None:
        usual.append(home / ".config" / "trunkline" / "config.toml")
    return next((path for path in usual if path.is_file()), None)


def _from_file(path: Path) -> dict[str, Value]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; name another file with --config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; correct it") from None
    unknown = sorted(set(document) - set(FILE_KEYS))
    if unknown:
        raise ConfigError(f"{path}: unknown key {', '.join(unknown)}; the keys are {', '.join(FILE_KEYS)}")
    if "token" in document and "token_file" in document:
        raise ConfigError(f"{path} has both token and token_file; keep one")
    found = {key: Value(value, f"{key} in {path}") for key, value in document.items()}
    for key in ("token_file", "tls_ca", "tls_cert", "tls_key"):  # relative to the directory of the file
        if key in found:
            found[key] = Value(str(path.parent / _text(found[key])), found[key].origin)
    return found


def _text(given: Value | None) -> str:
    if given is None:
        return ""
    if not isinstance(given.value, str):
        raise ConfigError(f"{given.origin} must be a string, not {given.value!r}")
    return given.value


def _addresses(given: Value | None) -> tuple[str, ...]:
    if given is None:
        return (DEFAULT_CONNECT,)
    listed = given.value if isinstance(given.value, list) else _text(given).split(",")
    addresses = []
    for each in listed:
        if not isinstance(each, str):
            raise ConfigError(f"{given.origin} must contain addresses such as {DEFAULT_CONNECT}, not {each!r}")
        if each.strip():
            try:
                addresses.append(format_address(*parse_address(each, DEFAULT_PORT)))
            except ConfigError as error:
                raise ConfigError(f"{given.origin}: {error}") from None
    if not addresses:
        raise ConfigError(f"{given.origin} contains no address; write one such as {DEFAULT_CONNECT}")
    return tuple(addresses)


def _token(found: Mapping[str, Value]) -> str:
    if "token_file" not in found:
        return _text(found.get("token"))
    path = Path(_text(found["token_file"]))
    try:
        with path.open("rb") as file:
            token = file.read(TOKEN_BYTES_MAX + 1).decode("utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{found['token_file'].origin}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{found['token_file'].origin}: {path} is not UTF-8 text") from None
    if not token or len(token) > TOKEN_BYTES_MAX:
        raise ConfigError(f"{found['token_file'].origin}: {path} must contain a token of 1 to {TOKEN_BYTES_MAX} bytes")
    return token


def _timeout(given: Value | None) -> float | None:
    """In seconds; 0 means no limit."""
    if given is None:
        return DEFAULT_TIMEOUT_S
    try:
        seconds = float(given.value) if isinstance(given.value, str | int | float) else -1.0
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ConfigError(f"{given.origin} must be a number of seconds (0: no limit), not {given.value!r}")
    return seconds or None
