"""Reads the status of a cluster: coordinator, nodes and tails of logs.

Rules
 G1  A read changes nothing: its connection never suspects a node, or it would seal segments as other clients do. A tail
     without an answer is unknown for a moment; clients that append, and the coordinator, do the rest.
 G2  A read ends in time although processes are silent, and asks a limited number of logs and nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from trunkline.client.cluster import Cluster
from trunkline.dashboard.connection import ANSWER_S, ClusterConnection
from trunkline.dashboard.views import ShownCluster, ShownDisk, ShownLog, ShownNode
from trunkline.errors import NoSuchLog, ProtocolError, Refused, TrunklineError

T = TypeVar("T")
R = TypeVar("R")

ASKED_AT_ONCE: Final = 32
NODES_ASKED_MAX: Final = 64  # the others are shown without their disks
LOGS_SHOWN_MAX: Final = 10_000
TAILS_ASKED_MAX: Final = 128  # per poll; with more logs, they take turns


class ClusterCollector:
    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection
        self._turn = 0

    async def collect(self) -> ShownCluster:
        """Raises ``Refused`` if no coordinator answers."""
        cluster = await self._connection.cluster()
        status = await cluster.status(timeout=ANSWER_S)
        seen = msgspec.convert(msgspec.to_builtins(status), ShownCluster)  # the part that a page shows
        live = [node for node in seen.nodes if node.live][:NODES_ASKED_MAX]
        answers = await _some_at_once(partial(_disk, cluster), live)
        disks = dict(zip((node.name for node in live), answers, strict=True))
        nodes = tuple(replace(node, disk=disks.get(node.name)) for node in seen.nodes)
        logs = [log for log in seen.logs if not log.deleted]
        return replace(seen, nodes=nodes, logs=tuple(logs[:LOGS_SHOWN_MAX]), logs_total=max(seen.logs_total, len(logs)))

    async def tails(self, logs: Sequence[ShownLog]) -> dict[str, int]:
        """The tails of logs that may grow, of those whose turn it is."""
        growing = [log.name for log in logs if not log.segments or log.segments[-1].end is None]
        turn = self._turn if self._turn < len(growing) else 0
        asked = growing[turn : turn + TAILS_ASKED_MAX]
        self._turn = turn + TAILS_ASKED_MAX
        answers = await _some_at_once(self._tail, asked)
        return {name: tail for name, tail in zip(asked, answers, strict=True) if tail is not None}

    async def _tail(self, name: str) -> int | None:
        try:
            return await (await self._connection.log(name)).tail(timeout=ANSWER_S)
        except NoSuchLog:
            self._connection.forget(name)
        except TrunklineError:
            pass  # G1: a later poll gets it
        return None


async def _disk(cluster: Cluster, node: ShownNode) -> ShownDisk | None:
    try:
        return msgspec.convert(await cluster.node_status(node.name, timeout=ANSWER_S), ShownDisk, from_attributes=True)
    except (Refused, ProtocolError):
        return None  # the page shows it without figures


async def _some_at_once(work: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    turn = asyncio.Semaphore(ASKED_AT_ONCE)

    async def one(item: T) -> R:
        async with turn:
            return await work(item)

    return list(await asyncio.gather(*(one(item) for item in items)))
