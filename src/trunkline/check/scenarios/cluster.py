"""Building blocks of scenarios: nodes, the metadata register, clients and a coordinator, small enough to be explored.

Numbers of milliseconds mean nothing here: a timer may fire whenever nothing else can happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from trunkline.check.disks import Folded, FoldingDisk, NodeFiles, Nothing, StorageDisk
from trunkline.check.monitors import Progress, safety
from trunkline.check.scenario import NO_FAULTS, Boot, Cut, Faults, Invoked, Operation, ProcessSpec, Scenario
from trunkline.core.administrator import Administrator, AdministratorConfig
from trunkline.core.appender import Appender, AppenderConfig
from trunkline.core.coordinator import Coordinator, CoordinatorConfig
from trunkline.core.effects import SELF, Address, Announce, Complete, Effects, Event, Message, Record, Send, SetTimer
from trunkline.core.filler import Filler
from trunkline.core.lease import LeaseKeeper
from trunkline.core.messages import (
    AppendRequested,
    CreateLog,
    DeleteRequested,
    Descriptor,
    LeaseExpired,
    NodeInfo,
    NodeState,
    PeekRequested,
    SealRequested,
    Space,
    SubscribeRequested,
    TailRequested,
    TrimRequested,
    descriptor_of,
)
from trunkline.core.peek import Peeker, PeekerConfig
from trunkline.core.projection import Opening, Owner, Policy, Projection, Seat, Settings, create
from trunkline.core.reader import Reader, ReaderConfig
from trunkline.core.reconfigurer import Reconfigurer, ReconfigurerConfig
from trunkline.core.register import MetadataRegister, RegisterImage, fold
from trunkline.core.role import Role
from trunkline.core.sequencer import Sequencer, Serving
from trunkline.core.siblings import DamageFound
from trunkline.core.storage import FramesDamaged, StorageNode
from trunkline.core.streams import StreamOpened
from trunkline.core.tail import TailConfig, TailFinder
from trunkline.core.writer import Writer, WriterConfig

CLUSTER = "cluster"
LOG = "log"
META = "meta"
REGISTER = Address(META, "register")

CHAIN2 = Settings(Policy.CHAIN, replicas=2)
CHAIN3 = Settings(Policy.CHAIN, replicas=3)
BROADCAST2 = Settings(Policy.BROADCAST, replicas=2)
BROADCAST3 = Settings(Policy.BROADCAST, replicas=3)


def chain_log(settings: Settings, *groups: str, sequencer: str) -> Projection:
    """A chain log whose first segment is open; each group is a string of node names."""
    return create(CLUSTER, LOG, settings, Opening(_seats(groups), Owner(sequencer, 1)))


def broadcast_log(settings: Settings, group: str, owner: str) -> Projection:
    return create(CLUSTER, LOG, settings, Opening(_seats((group,)), Owner(owner, 1)))


def _seats(groups: tuple[str, ...]) -> tuple[tuple[Seat, ...], ...]:
    return tuple(tuple(Seat(node, 1) for node in group.split()) for group in groups)


def node(
    name: str,
    log: Projection | None = None,
    *,
    leases: bool = False,
    records: tuple[Record, ...] = (),
    granted: int | None = None,
) -> ProcessSpec:
    """A storage node that may also be a sequencer. It registers at every start but the first, which the registry knows.

    Its disk has the streams of the log's segments open, and what ``records`` add. ``granted``: as a sequencer it has
    served segment 0 up to this position.
    """

    def start(boot: Boot) -> Mapping[str, Role]:
        roles: dict[str, Role] = {
            "storage": StorageNode(CLUSTER, boot.process, boot.incarnation, boot.durable),
            "sequencer": Sequencer(Owner(boot.process, boot.start)),
        }
        if granted is not None and boot.start == 1:
            served = Sequencer(Owner(boot.process, boot.start))
            served.serving[LOG] = Serving(0, granted)
            roles["sequencer"] = served
        if leases or boot.start > 1:
            info = NodeInfo(boot.process, boot.incarnation, boot.start)
            lease_ms = 3000 if leases else None
            roles["lease"] = LeaseKeeper(info, REGISTER, retry_ms=1000, lease_ms=lease_ms)
        return roles

    opened = () if log is None else tuple(StreamOpened(each) for each in descriptors(log, name))
    disk, image = StorageDisk(), NodeFiles()
    for record in (*opened, *records):
        image = disk.sync(disk.write(image, record))
    return ProcessSpec(name, start, disk, image, blank=NodeFiles())


def descriptors(log: Projection, name: str) -> tuple[Descriptor, ...]:
    """The descriptors of the streams that a node keeps of a log."""
    return tuple(
        descriptor_of(log, segment, member)
        for segment in log.segments
        for member in segment.members()
        if member.node == name
    )


def meta(
    projection: Projection | None, nodes: str, *, dead: str = "", draining: str = "", writers: str = ""
) -> ProcessSpec:
    """The metadata register; leases of ``dead`` nodes have run out, ``draining`` ones take nothing new.

    ``writers`` are clients that keep a lease.
    """
    clients = tuple(NodeInfo(name, 0, 1, NodeState.CLIENT) for name in writers.split())
    infos = tuple(
        NodeInfo(
            name,
            1,
            1,
            NodeState.DRAINING if name in draining.split() else NodeState.RW,
            live=name not in dead.split(),
        )
        for name in nodes.split()
    )
    image = RegisterImage((projection,) if projection is not None else (), (*infos, *clients))

    def start(boot: Boot) -> Mapping[str, Role]:
        return {"register": MetadataRegister(boot.durable)}

    return ProcessSpec(META, start, FoldingDisk(fold), Folded(image))


class LeaseClock:
    """The clock of the register's host: says once, at some moment, that the lease of a node has run out."""

    def __init__(self, nodes: tuple[str, ...]) -> None:
        self.nodes = nodes

    @property
    def phase(self) -> str:
        return "running"

    def on_start(self) -> Effects:
        return [SetTimer(node, 3000) for node in self.nodes]

    def on_timer(self, key: str) -> Effects:
        return [Send(REGISTER, LeaseExpired(key, 1))]

    def on_message(self, source: Address, message: Message) -> Effects:
        raise AssertionError(f"a clock takes no message, yet {message} came")

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a clock asks for no choice, yet {key} was made")


def clock(nodes: str) -> ProcessSpec:
    """Lets the leases of these nodes run out, whether they are dead or not."""

    def start(boot: Boot) -> Mapping[str, Role]:
        return {"clock": LeaseClock(tuple(nodes.split()))}

    return ProcessSpec("clock", start, Nothing(), None)


def appends(*checksums: int, count: int = 1, takeover: bool = False) -> tuple[AppendRequested, ...]:
    return tuple(
        AppendRequested(number, LOG, count, checksum, takeover=takeover and number == 1)
        for number, checksum in enumerate(checksums, start=1)
    )


def _helpers(boot: Boot) -> dict[str, Role]:
    return {"reconfigurer": Reconfigurer(ReconfigurerConfig(REGISTER, LOG)), "filler": Filler(1000)}


def appender(
    name: str, view: Projection | None, *requests: AppendRequested, in_flight_max: int = 64, seal_looks: int = 0
) -> ProcessSpec:
    """A client that appends to a chain log. ``seal_looks``: how often it leaves the end of a segment to others."""

    def start(boot: Boot) -> Mapping[str, Role]:
        writer = f"{boot.process}#{boot.start}"
        config = AppenderConfig(LOG, writer, in_flight_max=in_flight_max, seal_looks=seal_looks)
        return {"appender": Appender(config, view), **_helpers(boot)}

    operations = tuple(Operation("appender", request) for request in requests)
    return ProcessSpec(name, start, Nothing(), None, operations)


class Burst(Message, frozen=True):
    """An application's wish for several appends at once."""

    requests: tuple[AppendRequested, ...]


class BurstBegun(Event, frozen=True):
    """The wish ends as its appends begin: they are operations of their own, and number themselves from 1 on as well."""


class Application:
    """Asks for several appends at once: the world by itself hands a process one operation after another."""

    def __init__(self, role: str) -> None:
        self.role = role

    @property
    def phase(self) -> str:
        return "asking"

    def on_start(self) -> Effects:
        return []

    def on_timer(self, key: str) -> Effects:
        raise AssertionError(f"an application sets no timer, yet {key} fired")

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"an application asks for no choice, yet {key} was made")

    def on_message(self, source: Address, message: Message) -> Effects:
        assert isinstance(message, Burst)
        begun: Effects = [Announce(Invoked(request.operation, request)) for request in message.requests]
        return [Complete(1, BurstBegun()), *begun] + [
            Send(Address(SELF, self.role), request) for request in message.requests
        ]


def bursting_appender(name: str, view: Projection | None, *requests: AppendRequested) -> ProcessSpec:
    """A client with several appends in flight."""

    def start(boot: Boot) -> Mapping[str, Role]:
        config = AppenderConfig(LOG, f"{boot.process}#{boot.start}", seal_looks=0)
        return {"application": Application("appender"), "appender": Appender(config, view), **_helpers(boot)}

    return ProcessSpec(name, start, Nothing(), None, (Operation("application", Burst(requests)),))


def bursting_writer(name: str, view: Projection | None, *requests: AppendRequested) -> ProcessSpec:
    """An owner with several batches in flight."""

    def start(boot: Boot) -> Mapping[str, Role]:
        config = WriterConfig(LOG, Owner(boot.process, boot.start))
        return {"application": Application("writer"), "writer": Writer(config, view), **_helpers(boot)}

    return ProcessSpec(name, start, Nothing(), None, (Operation("application", Burst(requests)),))


class Scrubber:
    """A node's host that finds, at some moment, that stored frames cannot be read any more."""

    def __init__(self, found: FramesDamaged) -> None:
        self.found = found

    @property
    def phase(self) -> str:
        return "scrubbing"

    def on_start(self) -> Effects:
        return [SetTimer("scrub", 3000)]

    def on_timer(self, key: str) -> Effects:
        return [Send(Address(SELF, "storage"), self.found), Send(Address(SELF, "lease"), DamageFound())]

    def on_message(self, source: Address, message: Message) -> Effects:
        raise AssertionError(f"a scrubber takes no message, yet {message} came")

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a scrubber asks for no choice, yet {key} was made")


def scrubbed(spec: ProcessSpec, found: FramesDamaged) -> ProcessSpec:
    """The same node; in its first life it finds this damage."""

    def start(boot: Boot) -> Mapping[str, Role]:
        if boot.start > 1:
            return spec.start(boot)
        lease = LeaseKeeper(NodeInfo(boot.process, boot.incarnation, boot.start), REGISTER, retry_ms=1000)
        return {"lease": lease, **spec.start(boot), "scrubber": Scrubber(found)}

    return replace(spec, start=start)


def full(spec: ProcessSpec) -> ProcessSpec:
    """The same node with a disk that has no space but the reserve."""

    def start(boot: Boot) -> Mapping[str, Role]:
        roles = spec.start(boot)
        storage = roles["storage"]
        assert isinstance(storage, StorageNode)
        storage.space = Space.FULL
        return roles

    return replace(spec, start=start)


def writer(name: str, view: Projection | None, *requests: AppendRequested, in_flight_max: int = 64) -> ProcessSpec:
    """A client that writes a broadcast log."""

    def start(boot: Boot) -> Mapping[str, Role]:
        config = WriterConfig(LOG, Owner(boot.process, boot.start), in_flight_max=in_flight_max)
        return {"writer": Writer(config, view), **_helpers(boot)}

    operations = tuple(Operation("writer", request) for request in requests)
    return ProcessSpec(name, start, Nothing(), None, operations)


def reader(
    name: str,
    view: Projection | None,
    *,
    start_at: int = 1,
    until: int | None = None,
    push: bool = False,
    seal_looks: int = 0,
) -> ProcessSpec:
    """A client that reads from the beginning on, one frame at a time."""

    def start(boot: Boot) -> Mapping[str, Role]:
        config = ReaderConfig(LOG, read_limit=1, seal_looks=seal_looks, push=push)
        return {"reader": Reader(config, view), **_helpers(boot)}

    request = SubscribeRequested(1, LOG, start_at, until)
    return ProcessSpec(name, start, Nothing(), None, (Operation("reader", request),))


def tail_finder(name: str, calls: int = 1) -> ProcessSpec:
    def start(boot: Boot) -> Mapping[str, Role]:
        return {"tail": TailFinder(TailConfig(REGISTER, LOG)), **_helpers(boot)}

    operations = tuple(Operation("tail", TailRequested(number, LOG)) for number in range(1, calls + 1))
    return ProcessSpec(name, start, Nothing(), None, operations)


def peeker(name: str) -> ProcessSpec:
    def start(boot: Boot) -> Mapping[str, Role]:
        return {"peek": Peeker(PeekerConfig(LOG)), **_helpers(boot)}

    return ProcessSpec(name, start, Nothing(), None, (Operation("peek", PeekRequested(1, LOG)),))


def administrator(
    name: str,
    *requests: CreateLog | TrimRequested | SealRequested | DeleteRequested,
    after: int | None = None,
    read_limit: int = 1,
) -> ProcessSpec:
    """An operator. An answer to its reader holds up to ``read_limit`` batches.

    ``after``: it begins when it has read this position; its requests are then numbered from 2 on.
    """

    def start(boot: Boot) -> Mapping[str, Role]:
        return {
            "administrator": Administrator(AdministratorConfig(CLUSTER, LOG)),
            "reader": Reader(ReaderConfig(LOG, read_limit=read_limit, seal_looks=0, push=False)),
            **_helpers(boot),
        }

    first = () if after is None else (Operation("reader", SubscribeRequested(1, LOG, 1, until=after)),)
    operations = tuple(Operation("administrator", request) for request in requests)
    return ProcessSpec(name, start, Nothing(), None, first + operations)


def coordinator(name: str = "coordinator", *, widen_ticks: int = 0, absent_ticks: int = 0) -> ProcessSpec:
    def start(boot: Boot) -> Mapping[str, Role]:
        config = CoordinatorConfig(LOG, widen_ticks=widen_ticks, absent_ticks=absent_ticks)
        return {"coordinator": Coordinator(config), **_helpers(boot)}

    return ProcessSpec(name, start, Nothing(), None)


def scenario(
    name: str,
    summary: str,
    projection: Projection | None,
    *clients: ProcessSpec,
    nodes: str = "n1 n2 n3",
    dead: str = "",
    draining: str = "",
    leases: str = "",
    writers: str = "",
    opened: bool = True,
    records: Mapping[str, tuple[Record, ...]] = MappingProxyType({}),
    granted: Mapping[str, int] = MappingProxyType({}),
    scrubs: Mapping[str, FramesDamaged] = MappingProxyType({}),
    faults: Faults = NO_FAULTS,
    crashable: str = "",
    lossy: str = "",
    stays_down: str = "",
    power_domain: str = "",
    cuts: tuple[Cut, ...] = (),
    sometimes: tuple[str, ...] = ("Committed", "EntriesRead"),
    finishing: bool = False,
    tidy: bool = False,
    atomic_disk: bool = True,
) -> Scenario:
    """A log on some nodes, and clients. Names are given as one string.

    ``dead`` nodes are registered but not there; ``writers`` are clients that keep a lease; ``opened=False``: no stream
    has been made yet; ``records``: what is on a node's disk besides; ``granted``: how far a sequencer has served
    segment 0; ``scrubs``: the damage that a node will find; ``finishing``: a coordinator works; ``tidy``: it has
    streams dropped.
    """
    streams = projection if opened else None
    present = [each for each in nodes.split() if each not in dead.split()]
    storage = tuple(
        node(each, streams, leases=each in leases.split(), records=records.get(each, ()), granted=granted.get(each))
        for each in present
    )
    storage = tuple(scrubbed(spec, scrubs[spec.name]) if spec.name in scrubs else spec for spec in storage)
    gone = tuple(replace(node(each, streams), up=False) for each in dead.split())
    return Scenario(
        name,
        summary,
        (*storage, *gone, meta(projection, nodes, dead=dead, draining=draining, writers=writers), *clients),
        (*safety(projection), Progress(finishing=finishing, drained=tuple(draining.split()), tidy=tidy)),
        faults,
        atomic_disk=atomic_disk,
        every_choice=False,
        crashable=tuple(crashable.split()),
        lossy=tuple(lossy.split()),
        power_domain=tuple(power_domain.split()),
        cuts=cuts,
        sometimes=sometimes,
        stays_down=tuple((dead + " " + stays_down).split()),
    )
