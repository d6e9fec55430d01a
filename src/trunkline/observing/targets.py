"""Where processes are observed: the address that ``--observe`` gives, and ``observe.json`` of a local cluster.

The file has the form of Prometheus's ``file_sd_configs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from trunkline.errors import ConfigError
from trunkline.net.addresses import parse_address

TARGETS: Final = "observe.json"
LOOPBACK: Final = "127.0.0.1"


class Target(msgspec.Struct, frozen=True):
    targets: tuple[str, ...]
    labels: dict[str, str]


def observe_address(text: str, setting: str = "--observe") -> tuple[str, int]:
    """Host and port of ``host:port``, or of a port alone: then the host is this machine. Raises ``ConfigError``."""
    try:
        return parse_address(f"{LOOPBACK}:{text.strip()}" if text.strip().isdecimal() else text)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from None


def write_targets(directory: Path, addresses: Mapping[str, str]) -> None:
    """Write the addresses by the names of processes; without any, delete the file."""
    path = directory / TARGETS
    if not addresses:
        path.unlink(missing_ok=True)
        return
    targets = [Target((address,), {"process": name}) for name, address in addresses.items()]
    written = path.with_suffix(".new")
    written.write_bytes(msgspec.json.format(msgspec.json.encode(targets), indent=2) + b"\n")
    written.replace(path)


def read_targets(directory: Path) -> dict[str, str]:
    """Addresses by the names of processes; empty where no process is observed."""
    try:
        targets = msgspec.json.decode((directory / TARGETS).read_bytes(), type=list[Target])
    except FileNotFoundError:
        return {}
    return {each.labels["process"]: each.targets[0] for each in targets}
