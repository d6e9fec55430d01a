"""A log with a coordinator and its nodes, led by hand."""

from __future__ import annotations

from core.driver import (
    FILLER,
    META,
    Company,
    data,
    registered,
    storage,
    target,
)
from trunkline.check.scenarios.cluster import CHAIN3, CLUSTER, LOG, chain_log
from trunkline.core.coordinator import Coordinator, DutiesConfig
from trunkline.core.effects import Address
from trunkline.core.entries import Frame
from trunkline.core.filler import Filler
from trunkline.core.messages import (
    Finalize,
    NodeInfo,
    Open,
    Seal,
    Write,
    descriptor_of,
)
from trunkline.core.projection import (
    EndSegment,
    MarkRepaired,
    Member,
    Opening,
    Owner,
    Projection,
    RemoveMember,
    Seat,
    apply,
)
from trunkline.core.reconfigurer import Reconfigurer, ReconfigurerConfig
from trunkline.core.register import MetadataRegister, RegisterImage
from trunkline.core.storage import NodeImage, StorageNode

ME = Address("coordinator", "coordinator")
FIRST = chain_log(CHAIN3, "a b c", sequencer="a")
NEXT = Opening((tuple(Seat(node, 1) for node in "abc"),), Owner("a", 1))
ENDED = apply(FIRST, EndSegment(0, 4, FIRST.last.groups, NEXT))
REPAIRED = apply(ENDED, MarkRepaired(0))
A, B, C = FIRST.last.members()


class Cluster:
    """Everything that a coordinator needs, on one table."""

    def __init__(
        self,
        view: Projection,
        nodes: tuple[NodeInfo, ...],
        storing: dict[Member, tuple[Frame, ...]],
        absent_ms: int = 0,
    ) -> None:
        self.view, self.nodes = view, nodes
        self.register = MetadataRegister(RegisterImage((view,), nodes))
        self.storage = {info.node: StorageNode(CLUSTER, info.node, info.incarnation, NodeImage()) for info in nodes}
        for member, frames in storing.items():
            self._store(member, frames)
        self.coordinator = Coordinator(DutiesConfig(LOG, absent_ms=absent_ms))
        self.company = Company(
            {
                META: self.register,
                ME: self.coordinator,
                Address("coordinator", "reconfigurer"): Reconfigurer(ReconfigurerConfig(META, LOG)),
                Address("coordinator", "filler"): Filler(),
                **{storage(name): node for name, node in self.storage.items()},
            },
            down=[info.node for info in nodes if not info.live],
        )
        self.company.carry_out(ME, self.coordinator.on_start())

    def _store(self, member: Member, frames: tuple[Frame, ...]) -> None:
        node = self.storage[member.node]
        node.on_message(FILLER, Open(descriptor_of(FIRST, FIRST.last, member)))
        for frame in frames:
            node.on_message(FILLER, Write(target(FIRST, member.stream), frame))
        node.on_message(FILLER, Seal(descriptor_of(FIRST, FIRST.last, member)))

    def work(self, ticks: int = 12, *, but: str = "") -> Projection:
        """The projection after every timer has fired so often, but those of a longer time."""
        for _ in range(ticks):
            self.company.pass_time(but=but)
        return self.register.projections[LOG]

    def frames(self, member: Member) -> tuple[Frame, ...]:
        stream = self.storage[member.node].streams[LOG, member.stream]
        return tuple(stream.frames.all())


def singles(*positions: int) -> tuple[Frame, ...]:
    return tuple(data(glsn, seq=glsn) for glsn in positions)


FULL = singles(1, 2, 3)


NARROW = apply(REPAIRED, RemoveMember(0, C.stream))


def finalize(view: Projection, member: Member, nonce: int = 1) -> Finalize:
    return Finalize(descriptor_of(view, view.segments[0], member), 4, nonce)


def joining_member() -> tuple[Projection, Member]:
    cluster = Cluster(NARROW, registered("a b c"), {A: FULL, B: FULL})
    cluster.company.down.add("c")  # the joiner is named, but cannot be reached
    view = cluster.work(2)
    joiner = view.segments[0].members()[-1]
    assert joiner.joining
    return view, joiner
