"""The metadata register: projections under compare-and-swap, and the registry of nodes with their leases.

It is the one place that decides the history of a log. In production the SQLite or etcd store takes its place behind the
same messages; this role is their contract.

Rules
 M1  A projection is stored only if the epoch of the log is the expected one and the new epoch is the next.
 M2  A swap that was answered is never lost.
 M3  Leases are hints for placement and duties. No safety depends on them, and their clock belongs to the host, which
     sends ``LeaseExpired``.
 M4  A client is in the registry as long as its lease holds. No client takes the name of a node, and no node that of a
     client.
 M5  A sender that knows the present epoch of the log receives only that; any other receives the projection. There is
     one projection for each epoch of a log (M1), so nothing is missed, and the map of a long log travels only after a
     change.
 M6  A projection that cannot follow the stored one is not stored, whatever its sender; there is no answer.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from trunkline.core.effects import Address, Announce, Effects, Message, Persist, Record, Send
from trunkline.core.events import LeaseLost, Projected
from trunkline.core.messages import (
    Get,
    Got,
    LeaseExpired,
    NodeInfo,
    NodeState,
    Register,
    Registered,
    Swap,
    SwapLost,
    Swapped,
)
from trunkline.core.projection import Projection
from trunkline.core.transitions import transition_fault


class RegisterImage(Struct, frozen=True):
    projections: tuple[Projection, ...] = ()
    nodes: tuple[NodeInfo, ...] = ()


class ProjectionAccepted(Record, frozen=True):
    projection: Projection


class NodeRegistered(Record, frozen=True):
    info: NodeInfo


class NodeForgotten(Record, frozen=True):
    node: str


def fold(image: RegisterImage, record: Record) -> RegisterImage:
    """The image after one record."""
    match record:
        case ProjectionAccepted(projection):
            kept = tuple(p for p in image.projections if p.log != projection.log)
            return replace(image, projections=(*kept, projection))
        case NodeRegistered(info):
            others = [n for n in image.nodes if n.node != info.node]
            return replace(image, nodes=tuple(sorted([*others, info], key=lambda n: n.node)))
        case NodeForgotten(node):
            return replace(image, nodes=tuple(n for n in image.nodes if n.node != node))
    raise AssertionError(f"the register does not store {record}")


class MetadataRegister:
    def __init__(self, image: RegisterImage) -> None:
        self.projections = {projection.log: projection for projection in image.projections}
        self.nodes = {info.node: info for info in image.nodes}

    @property
    def phase(self) -> str:
        return "ready"

    def on_start(self) -> Effects:
        """Announce the stored projections: a swap may have become durable just before a crash."""
        return [Announce(Projected(projection)) for projection in self.projections.values()]

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"the register makes no choice, but {key} was chosen")

    def on_timer(self, key: str) -> Effects:
        raise AssertionError(f"the register sets no timer, but {key} fired")

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case Get():
                return [Send(source, self._got(message))]
            case Swap(log, expected, projection):
                return self._on_swap(source, log, expected, projection)
            case Register(info):
                return self._on_register(source, info)
            case LeaseExpired(node, start):
                return self._on_lease_expired(node, start)
        raise AssertionError(f"the register does not accept {message}")

    def _got(self, get: Get) -> Got:
        nodes = tuple(self.nodes[node] for node in sorted(self.nodes))
        projection = self.projections.get(get.log)
        if projection is not None and projection.epoch == get.known:  # M5
            return Got(get.log, get.nonce, None, nodes, unchanged=get.known)
        return Got(get.log, get.nonce, projection, nodes)

    def _on_swap(self, source: Address, log: str, expected: int, projection: Projection) -> Effects:
        current = self.projections.get(log)
        if (current.epoch if current is not None else 0) != expected:  # M1
            return [Send(source, SwapLost(log, expected))]
        if transition_fault(current, projection):  # M6
            return []
        self.projections[log] = projection
        accepted: Effects = [Persist(ProjectionAccepted(projection)), Announce(Projected(projection))]
        return [*accepted, Send(source, Swapped(log, projection.epoch))]

    def _on_register(self, source: Address, info: NodeInfo) -> Effects:
        known = self.nodes.get(info.node)
        effects: Effects = []
        if known is not None and (known.start, known.damaged) > (info.start, info.damaged):
            return []  # a late message
        if known is not None and (known.state is NodeState.CLIENT) != (info.state is NodeState.CLIENT):  # M4
            return []
        if known is not None and known.state is not NodeState.RW:
            info = replace(info, state=known.state)
        if known is None or replace(known, live=True) != info:
            effects.append(Persist(NodeRegistered(info)))
        self.nodes[info.node] = info
        return [*effects, Send(source, Registered(info.node, info.start))]

    def _on_lease_expired(self, node: str, start: int) -> Effects:
        info = self.nodes.get(node)
        if info is None or info.start != start or not info.live:
            return []
        if info.state is NodeState.CLIENT:  # M4
            del self.nodes[node]
            return [Persist(NodeForgotten(node)), Announce(LeaseLost(node))]
        self.nodes[node] = replace(info, live=False)  # M3: volatile, a restart counts every node as live
        return [Announce(LeaseLost(node))]
