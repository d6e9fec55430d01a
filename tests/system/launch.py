"""Starts one server process from a JSON file: ``python -m system.launch SPEC.json``.

    {"kind": "node", "parent": 4711, "config": {"directory": "...", "name": "n1", ...}, "bug": ""}

It depends on no command line, so that a test of the servers fails for reasons of the servers only. ``bug`` puts one
known mistake into this process, to show that the checkers would see it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from msgspec import Struct

from system.parent import die_with
from trunkline.core.effects import Address, Effects, Persist
from trunkline.core.entries import Frame
from trunkline.core.storage import StorageNode
from trunkline.core.streams import Stream
from trunkline.runtime.coordinator import CoordinatorServerConfig, run_coordinator
from trunkline.runtime.node import NodeConfig, run_node


class Spec(Struct, frozen=True, forbid_unknown_fields=True):
    kind: str  # node or coordinator
    parent: int
    config: dict[str, Any]
    bug: str = ""


def main(path: Path) -> int:
    spec = msgspec.json.decode(path.read_bytes(), type=Spec)
    die_with(spec.parent)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    if spec.bug:
        BUGS[spec.bug]()
    return uvloop.run(served(spec))


async def served(spec: Spec) -> int:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print_tasks)
    if spec.kind == "node":
        return await run_node(decoded(spec.config, NodeConfig))
    return await run_coordinator(decoded(spec.config, CoordinatorServerConfig))


def print_tasks() -> None:
    """What everything waits for; asked for when a process does not stop."""
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)


def decoded(config: dict[str, Any], kind: type[Any]) -> Any:
    return msgspec.convert(config, kind, dec_hook=lambda wanted, value: wanted(value))


# ------------------------------------------------------------------------------------------------------------- mistakes


def stores_nothing() -> None:
    """A frame is acknowledged and kept in memory only: a restart loses it."""
    store = StorageNode._store

    def forgetful(self: StorageNode, source: Address, stream: Stream, frame: Frame) -> Effects:
        return [effect for effect in store(self, source, stream, frame) if not isinstance(effect, Persist)]

    StorageNode._store = forgetful  # type: ignore[method-assign]


BUGS = {"stores-nothing": stores_nothing}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
