"""Checks the address of a Spark master, and connects to a standalone one.

Spark retries an unreachable master for two minutes, and ends with a stack trace of Java. So this checks the connection
before Java starts.
"""

from __future__ import annotations

import re
import socket
from typing import Final

from trunkline.errors import ConfigError, Unreachable
from trunkline.net.addresses import parse_address

MASTERS: Final = re.compile(r"local|local\[.+\]|local-cluster\[.+\]|spark://.+|k8s://.+|yarn")
STANDALONE: Final = "spark://"
CONNECT_S_MAX: Final = 5.0  # shorter: a slow network seems down; longer: a master that is down is reported late


def is_local(master: str) -> bool:
    return master.startswith("local")


def check_master(master: str) -> None:
    """Raises ``ConfigError`` for an invalid one, ``Unreachable`` if no standalone master accepts a connection."""
    if not MASTERS.fullmatch(master):
        raise ConfigError(
            f"{master!r} is not a valid Spark master: use local[*], local[N], spark://HOST:PORT, yarn or k8s://URL"
        )
    if master.startswith(STANDALONE):
        _check_standalone(master)


def _check_standalone(master: str) -> None:
    failed = []
    for place in master.removeprefix(STANDALONE).split(","):  # several, of which one leads
        try:
            address = parse_address(place)
        except ConfigError:
            raise ConfigError(f"{master!r} is not a valid Spark master: use spark://HOST:PORT") from None
        try:
            socket.create_connection(address, CONNECT_S_MAX).close()
        except OSError as error:
            failed.append(f"{place}: {error.strerror or error}")
        else:
            return
    raise Unreachable(
        f"no Spark master answers at {master} ({'; '.join(failed)}): is it running, is the address right?"
    )
