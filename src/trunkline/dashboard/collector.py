"""Looking at a cluster: what its coordinator, its nodes and its logs say, without changing anything.

Rules
 G1  A look changes nothing: its connection takes no node for dead, or it would end segments as any client does. A tail
     that nobody tells is unknown for a moment; those who append, and the coordinator, see to the rest.
 G2  A look ends in time, whoever is silent, and asks a bounded number of logs and nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from trunkline.client.cluster import Cluster as ClusterHandle
from trunkline.dashboard.connection import ANSWER_S, Connection
from trunkline.dashboard.views import Cluster, Disk, Log, Node
from trunkline.errors import NoSuchLog, ProtocolError, Refused, TrunklineError

T = TypeVar("T")
R = TypeVar("R")

ASKED_AT_ONCE: Final = 32
NODES_ASKED_MAX: Final = 64  # the others are shown without their disks
LOGS_SHOWN_MAX: Final = 10_000
TAILS_ASKED_MAX: Final = 128  # at one look; where there are more logs, they take turns


class Gatherer:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._turn = 0

    async def look(self) -> Cluster:
        """Raises ``Refused`` where no coordinator answers."""
        cluster = await self._connection.cluster()
        status = await cluster.status(timeout=ANSWER_S)
        seen = msgspec.convert(msgspec.to_builtins(status), Cluster)  # the part that a page shows
        live = [node for node in seen.nodes if node.live][:NODES_ASKED_MAX]
        told = await _some_at_once(partial(_disk, cluster), live)
        disks = dict(zip((node.name for node in live), told, strict=True))
        nodes = tuple(replace(node, disk=disks.get(node.name)) for node in seen.nodes)
        logs = [log for log in seen.logs if not log.deleted]
        return replace(seen, nodes=nodes, logs=tuple(logs[:LOGS_SHOWN_MAX]), logs_total=max(seen.logs_total, len(logs)))

    async def tails(self, logs: Sequence[Log]) -> dict[str, int]:
        """The position after the last entry of logs that may grow, of those whose turn it is."""
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
            pass  # G1: it is told at a later look
        return None


async def _disk(cluster: ClusterHandle, node: Node) -> Disk | None:
    try:
        return msgspec.convert(await cluster.node_status(node.name, timeout=ANSWER_S), Disk, from_attributes=True)
    except (Refused, ProtocolError):
        return None  # it is shown without figures


async def _some_at_once(work: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    turn = asyncio.Semaphore(ASKED_AT_ONCE)

    async def one(item: T) -> R:
        async with turn:
            return await work(item)

    return list(await asyncio.gather(*(one(item) for item in items)))
