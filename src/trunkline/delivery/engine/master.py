"""Where Spark's tasks run: what is a master, and whether a standalone one can be reached.

Spark takes two minutes to give up on a master that is not there, and ends with a stack trace of Java's. So a connection
is tried before Java starts.
"""

from __future__ import annotations

import re
import socket
from typing import Final

from trunkline.errors import ConfigError, Unreachable
from trunkline.net.addresses import parse_address

MASTERS: Final = re.compile(r"local|local\[.+\]|local-cluster\[.+\]|spark://.+|k8s://.+|yarn")
STANDALONE: Final = "spark://"
CONNECT_S_MAX: Final = 5.0  # too small: a slow network counts as none; too big: a master that is down is told late


def is_local(master: str) -> bool:
    return master.startswith("local")


def check_master(master: str) -> None:
    """``ConfigError``: this is none. ``Unreachable``: of a standalone cluster, no master accepts a connection."""
    if not MASTERS.fullmatch(master):
        raise ConfigError(
            f"{master!r} is no Spark master: give local[*], local[N], spark://HOST:PORT, yarn or k8s://URL"
        )
    if master.startswith(STANDALONE):
        _check_standalone(master)


def _check_standalone(master: str) -> None:
    failed = []
    for place in master.removeprefix(STANDALONE).split(","):  # several, of which one leads
        try:
            address = parse_address(place)
        except ConfigError:
            raise ConfigError(f"{master!r} is no Spark master: give spark://HOST:PORT") from None
        try:
            socket.create_connection(address, CONNECT_S_MAX).close()
        except OSError as error:
            failed.append(f"{place}: {error.strerror or error}")
        else:
            return
    raise Unreachable(
        f"no Spark master answers at {master} ({'; '.join(failed)}): is it running, is the address right?"
    )
