"""A node with ten million entries: its memory, and how long a restart takes.

A client creates the log and appends one batch. Then, while the node is stopped, its storage engine writes the others,
which is faster than appends over the network and gives the same files. As a program it does that writing.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from log_processes import Processes, free_ports, listening, memory_mib, own_directory, run_client
from msgspec.structs import replace

import trunkline
from trunkline.core.streams import FrameWritten
from trunkline.storage.engine import Engine
from trunkline.storage.options import StorageOptions

NODE = "n1"
LOG = "big"
PAYLOAD = b"x" * 100
SYNC_EVERY_BYTES = 64 * 1024 * 1024
ANSWER_WITHIN_S = 120.0
ASK_EVERY_S = 0.02


@dataclass(frozen=True)
class BigNode:
    """Measured after ``kill -9`` and a start."""

    entries: int
    per_batch: int
    restart_s: float  # from the start of the process until it answers
    read_s: float  # ... until it has answered a read of the last entry
    rss_mib: float  # after that read
    peak_mib: float


class OneNode:
    """A coordinator and a node that can be stopped and started."""

    def __init__(self, processes: Processes, directory: Path) -> None:
        self._processes = processes
        self._directory = directory
        coordinator, node = free_ports(2)
        self.address, self._node_address = f"127.0.0.1:{coordinator}", f"127.0.0.1:{node}"
        self.data = directory / NODE
        own_directory(directory, "coordinator")
        self._start("coordinator", "--dir", str(directory / "coordinator"), "--listen", self.address)
        processes.until("the coordinator", lambda: listening(coordinator))

    def start(self) -> float:
        """When it was started."""
        options = ("--name", NODE, "--dir", str(self.data), "--listen", self._node_address)
        began = time.perf_counter()
        self._start("node", *options, "--coordinators", self.address)
        return began

    def kill(self) -> None:
        self._processes.kill("node")

    def memory_mib(self) -> tuple[float, float]:
        return memory_mib(self._processes.pid("node"))

    def _start(self, server: str, *options: str) -> None:
        command = [sys.executable, "-m", "trunkline.cli.serve", server, *options]
        self._processes.start(server, command, self._directory / f"{server}.log")


@contextmanager
def one_node(directory: Path) -> Iterator[OneNode]:
    with Processes() as processes:
        yield OneNode(processes, directory)


def measure_big_node(directory: Path, entries: int, per_batch: int) -> BigNode:
    own = own_directory(directory, f"big-{per_batch}")
    with one_node(own) as node:
        node.start()
        asyncio.run(_begin(node, per_batch))
        node.kill()
        run_client("log_big_node", {"directory": str(node.data), "entries": entries})
        for _ in range(2):  # the first start may have to finish what was written
            began = node.start()
            answered, served = asyncio.run(_until_answers(node, entries))
            restart_s, read_s = answered - began, served - began
            rss, peak = node.memory_mib()
            node.kill()
    return BigNode(entries, per_batch, restart_s, read_s, rss, peak)


async def _begin(node: OneNode, per_batch: int) -> None:
    async with asyncio.timeout(ANSWER_WITHIN_S), trunkline.connect(node.address) as cluster:
        while not any(info.live for info in await cluster.nodes()):
            await asyncio.sleep(ASK_EVERY_S)
        log = await cluster.log(LOG, create=True, replicas=1)
        await log.append([PAYLOAD] * per_batch)


async def _until_answers(node: OneNode, entries: int) -> tuple[float, float]:
    """When the node first answered, and when it served the last entry."""
    async with asyncio.timeout(ANSWER_WITHIN_S), trunkline.connect(node.address) as cluster:
        while True:
            try:
                await cluster.node_status(NODE, timeout=ASK_EVERY_S)
                break
            except trunkline.Unreachable:
                continue
        answered = time.perf_counter()
        log = await cluster.log(LOG)
        entry = await log.read(entries)
        assert entry.payload == PAYLOAD, "the last entry is not what was written"
        return answered, time.perf_counter()


# ------------------------------------------------------------------------------------------------------- the writing


def write(directory: str, entries: int) -> dict[str, int]:
    """Repeat the only batch of the node's only stream up to a number of entries."""
    engine = Engine.open(Path(directory), StorageOptions())
    (stream,) = engine.image.streams
    key = (stream.descriptor.target.log, stream.descriptor.target.stream)
    (frame,) = stream.frames
    (body,) = engine.read(key, [frame], len(PAYLOAD) * frame.count * 2, may_block=True) or []
    body = bytes(body)
    written = 0
    for first in range(frame.next, entries + 1, frame.count):
        frame = replace(frame, first=first, seq=frame.seq + 1)
        engine.put(FrameWritten(key, frame), body)
        if engine.unsynced_bytes > SYNC_EVERY_BYTES:
            _sync(engine)
        written += 1
    _sync(engine)
    engine.close()
    return {"batches": written}


def _sync(engine: Engine) -> None:
    batch = engine.begin_sync()
    batch.run()
    engine.end_sync(batch)


def main() -> int:
    print(json.dumps(write(**json.loads(sys.argv[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
