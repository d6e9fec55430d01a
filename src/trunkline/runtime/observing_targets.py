"""``observe.json`` of a local cluster: where its processes are observed, in the form of ``file_sd_configs``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

TARGETS: Final = "observe.json"


class Target(msgspec.Struct, frozen=True):
    targets: tuple[str, ...]
    labels: dict[str, str]


def write_targets(directory: Path, addresses: Mapping[str, str]) -> None:
    """Addresses by the name of the process. None of them: no file."""
    path = directory / TARGETS
    if not addresses:
        path.unlink(missing_ok=True)
        return
    told = [Target((address,), {"process": name}) for name, address in addresses.items()]
    written = path.with_suffix(".new")
    written.write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=2) + b"\n")
    written.replace(path)


def read_targets(directory: Path) -> dict[str, str]:
    """The same again; empty where nothing is observed."""
    try:
        told = msgspec.json.decode((directory / TARGETS).read_bytes(), type=list[Target])
    except FileNotFoundError:
        return {}
    return {each.labels["process"]: each.targets[0] for each in told}
