"""Building blocks of scenarios: nodes, the metadata register, clients and a coordinator, small enough to explore.

Milliseconds mean nothing here: a timer may fire whenever nothing else can happen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from trunkline.check.disks import Folded, FoldingDisk, NodeFiles, NoDisk, StorageDisk
from trunkline.check.monitors import Progress, of_each, safety
from trunkline.check.monitors.upkeep import LastCopy, RepairedAlike
from trunkline.check.scenario import (
    NO_FAULTS,
    Boot,
    Faults,
    FreeTimer,
    MessageDrop,
    Monitor,
    NetworkCut,
    Operation,
    OperationEnd,
    ProcessSpec,
    Scenario,
)
from trunkline.check.scenarios.hosts import Application, BoundedNode, Burst, FullAtFirstDisk, LeaseExpiry, ScrubbingHost
from trunkline.core.administrator import Administrator, AdministratorConfig
from trunkline.core.appender import Appender, AppenderConfig
from trunkline.core.calls import (
    AppendRequested,
    CreateLog,
    DeleteRequested,
    PeekRequested,
    SealRequested,
    SubscribeRequested,
    TailRequested,
    TrimRequested,
)
from trunkline.core.coordinator import Coordinator, DutiesConfig
from trunkline.core.effects import (
    Address,
    Message,
    Record,
)
from trunkline.core.filler import Filler
from trunkline.core.lease import LeaseKeeper
from trunkline.core.messages import (
    Descriptor,
    NodeInfo,
    NodeState,
    Space,
    descriptor_of,
)
from trunkline.core.peek import Peeker, PeekerConfig
from trunkline.core.projection import Opening, Owner, Policy, Projection, Seat, Settings, create
from trunkline.core.reader import Reader, ReaderConfig
from trunkline.core.reconfigurer import Reconfigurer, ReconfigurerConfig
from trunkline.core.register import MetadataRegister, RegisterImage, fold
from trunkline.core.role import Role
from trunkline.core.sequencer import Sequencer, Serving
from trunkline.core.storage import FramesDamaged, StorageNode
from trunkline.core.streams import StreamOpened
from trunkline.core.tail import TailConfig, TailFinder
from trunkline.core.writer import Writer, WriterConfig

CLUSTER = "cluster"
LOG = "log"
META = "meta"
REGISTER = Address(META, "register")

CHAIN1 = Settings(Policy.CHAIN, replicas=1)
CHAIN2 = Settings(Policy.CHAIN, replicas=2)
CHAIN3 = Settings(Policy.CHAIN, replicas=3)
STRIPED = Settings(Policy.CHAIN, replicas=2, groups=2, stripe_unit=1)
BROADCAST2 = Settings(Policy.BROADCAST, replicas=2)
BROADCAST3 = Settings(Policy.BROADCAST, replicas=3)


def chain_log(settings: Settings, *groups: str, sequencer: str, log: str = LOG) -> Projection:
    """A chain log whose first segment is open on these groups."""
    return create(CLUSTER, log, settings, Opening(seats(groups), Owner(sequencer, 1)))


def broadcast_log(settings: Settings, group: str, owner: str, log: str = LOG) -> Projection:
    return create(CLUSTER, log, settings, Opening(seats((group,)), Owner(owner, 1)))


def seats(groups: tuple[str, ...]) -> tuple[tuple[Seat, ...], ...]:
    """Each group is a string of node names."""
    return tuple(tuple(Seat(node, 1) for node in group.split()) for group in groups)


def node(
    name: str,
    *logs: Projection,
    leases: bool = False,
    records: tuple[Record, ...] = (),
    granted: int | None = None,
) -> ProcessSpec:
    """A storage node that may also be a sequencer. The registry knows its first start; it registers at later ones.

    Its disk has open streams for the logs' segments, plus ``records``. ``granted``: as a sequencer it has served
    segment 0 up to this position.
    """

    def start(boot: Boot) -> Mapping[str, Role]:
        sequencer = Sequencer(Owner(boot.process, boot.start))
        roles: dict[str, Role] = {
            "storage": StorageNode(CLUSTER, boot.process, boot.incarnation, boot.durable),
            "sequencer": sequencer,
        }
        if granted is not None and boot.start == 1:
            sequencer.serving[LOG] = Serving(0, granted)
        if leases or boot.start > 1:
            info = NodeInfo(boot.process, boot.incarnation, boot.start)
            lease_ms = 3000 if leases else None
            roles["lease"] = LeaseKeeper(info, REGISTER, retry_ms=1000, lease_ms=lease_ms)
        return roles

    opened = tuple(StreamOpened(each) for log in logs for each in descriptors(log, name))
    disk, image = StorageDisk(), NodeFiles()
    for record in (*opened, *records):
        image = disk.sync(disk.write(image, record))
    return ProcessSpec(name, start, disk, image, blank=NodeFiles())


def descriptors(log: Projection, name: str) -> tuple[Descriptor, ...]:
    """The descriptors of a log's streams on one node."""
    return tuple(
        descriptor_of(log, segment, member)
        for segment in log.segments
        for member in segment.members()
        if member.node == name
    )


def meta(
    projections: tuple[Projection, ...], nodes: str, *, dead: str = "", draining: str = "", writers: str = ""
) -> ProcessSpec:
    """The metadata register. Leases of ``dead`` nodes have expired, ``draining`` nodes get no new segments.

    ``writers`` are clients with a lease.
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
    image = RegisterImage(projections, (*infos, *clients))

    def start(boot: Boot) -> Mapping[str, Role]:
        return {"register": MetadataRegister(boot.durable)}

    return ProcessSpec(META, start, FoldingDisk(fold), Folded(image))


def clock(nodes: str) -> ProcessSpec:
    """The leases of these nodes expire, whether they are alive or not."""

    def start(boot: Boot) -> Mapping[str, Role]:
        return {"clock": LeaseExpiry(REGISTER, tuple(nodes.split()))}

    return ProcessSpec("clock", start, NoDisk(), None)


def appends(*checksums: int, count: int = 1, takeover: bool = False, log: str = LOG) -> tuple[AppendRequested, ...]:
    return tuple(
        AppendRequested(number, log, count, checksum, takeover=takeover and number == 1)
        for number, checksum in enumerate(checksums, start=1)
    )


def _helpers(log: str = LOG) -> dict[str, Role]:
    return {"reconfigurer": Reconfigurer(ReconfigurerConfig(REGISTER, log)), "filler": Filler()}


def _name_of(view: Projection | None) -> str:
    return LOG if view is None else view.log


def _asked(role: str, requests: Sequence[Message], after: tuple[OperationEnd, ...] = ()) -> tuple[Operation, ...]:
    """One request after another; the first begins ``after`` these operations have ended."""
    return tuple(Operation(role, request, () if place else after) for place, request in enumerate(requests))


def appender(
    name: str,
    view: Projection | None,
    *requests: AppendRequested,
    in_flight_max: int = 64,
    seal_checks: int = 0,
    after: tuple[OperationEnd, ...] = (),
) -> ProcessSpec:
    """A client that appends to a chain log. ``seal_checks``: how often it waits for others to end a segment."""
    log = _name_of(view)

    def start(boot: Boot) -> Mapping[str, Role]:
        writer = f"{boot.process}#{boot.start}"
        config = AppenderConfig(log, writer, in_flight_max=in_flight_max, seal_checks=seal_checks)
        return {"appender": Appender(config, view), **_helpers(log)}

    return ProcessSpec(name, start, NoDisk(), None, _asked("appender", requests, after))


def bursting_appender(name: str, view: Projection | None, *requests: AppendRequested) -> ProcessSpec:
    """A client with several appends in flight."""

    def start(boot: Boot) -> Mapping[str, Role]:
        config = AppenderConfig(_name_of(view), f"{boot.process}#{boot.start}", seal_checks=0)
        roles = _helpers(_name_of(view))
        return {"application": Application("appender"), "appender": Appender(config, view), **roles}

    return ProcessSpec(name, start, NoDisk(), None, (Operation("application", Burst(requests)),))


def bursting_writer(name: str, view: Projection | None, *requests: AppendRequested) -> ProcessSpec:
    """An owner with several batches in flight."""

    def start(boot: Boot) -> Mapping[str, Role]:
        config = WriterConfig(_name_of(view), Owner(boot.process, boot.start))
        roles = _helpers(_name_of(view))
        return {"application": Application("writer"), "writer": Writer(config, view), **roles}

    return ProcessSpec(name, start, NoDisk(), None, (Operation("application", Burst(requests)),))


def bounded(spec: ProcessSpec, answer_max: int) -> ProcessSpec:
    """The same node; its answers hold at most so many batches."""

    def start(boot: Boot) -> Mapping[str, Role]:
        storage = BoundedNode(CLUSTER, boot.process, boot.incarnation, boot.durable)
        storage.answer_max = answer_max
        return {**spec.start(boot), "storage": storage}

    return replace(spec, start=start)


def scrubbed(spec: ProcessSpec, found: FramesDamaged) -> ProcessSpec:
    """The same node; its first process finds this damage."""

    def start(boot: Boot) -> Mapping[str, Role]:
        if boot.start > 1:
            return spec.start(boot)
        lease = LeaseKeeper(NodeInfo(boot.process, boot.incarnation, boot.start), REGISTER, retry_ms=1000)
        return {"lease": lease, **spec.start(boot), "scrubber": ScrubbingHost(found)}

    return replace(spec, start=start)


def full(spec: ProcessSpec) -> ProcessSpec:
    """The same node; its disk has no space except the reserve."""

    def start(boot: Boot) -> Mapping[str, Role]:
        roles = spec.start(boot)
        storage = roles["storage"]
        assert isinstance(storage, StorageNode)
        storage.space = Space.FULL
        return roles

    return replace(spec, start=start)


def on_nodes(built: Scenario, names: str, change: Callable[[ProcessSpec], ProcessSpec]) -> Scenario:
    """The same scenario with changed nodes."""
    changed = names.split()
    return replace(built, processes=tuple(change(p) if p.name in changed else p for p in built.processes))


def full_at_first(spec: ProcessSpec) -> ProcessSpec:
    """The same node; its disk is full at first."""

    def start(boot: Boot) -> Mapping[str, Role]:
        return {**spec.start(boot), "disk": FullAtFirstDisk()}

    return replace(spec, start=start)


def writer(
    name: str,
    view: Projection | None,
    *requests: AppendRequested,
    in_flight_max: int = 64,
    after: tuple[OperationEnd, ...] = (),
) -> ProcessSpec:
    """A client that writes to a broadcast log."""
    log = _name_of(view)

    def start(boot: Boot) -> Mapping[str, Role]:
        config = WriterConfig(log, Owner(boot.process, boot.start), in_flight_max=in_flight_max)
        return {"writer": Writer(config, view), **_helpers(log)}

    return ProcessSpec(name, start, NoDisk(), None, _asked("writer", requests, after))


def reader(
    name: str,
    view: Projection | None,
    *,
    start_at: int = 1,
    until: int | None = None,
    to_tail: bool = False,
    push: bool = False,
    seal_checks: int = 0,
    read_limit: int = 1,
    replica: int = 0,
    after: tuple[OperationEnd, ...] = (),
) -> ProcessSpec:
    """A client that reads from the beginning, by default one frame at a time and without an end."""
    log = _name_of(view)

    def start(boot: Boot) -> Mapping[str, Role]:
        config = ReaderConfig(REGISTER, log, read_limit=read_limit, seal_checks=seal_checks, push=push, replica=replica)
        return {"reader": Reader(config, view), **_helpers(log)}

    request = SubscribeRequested(1, log, start_at, until, to_tail)
    return ProcessSpec(name, start, NoDisk(), None, _asked("reader", (request,), after))


def tail_finder(name: str, calls: int = 1, *, log: str = LOG, after: tuple[OperationEnd, ...] = ()) -> ProcessSpec:
    def start(boot: Boot) -> Mapping[str, Role]:
        return {"tail": TailFinder(TailConfig(REGISTER, log)), **_helpers(log)}

    requests = [TailRequested(number, log) for number in range(1, calls + 1)]
    return ProcessSpec(name, start, NoDisk(), None, _asked("tail", requests, after))


def peeker(name: str) -> ProcessSpec:
    def start(boot: Boot) -> Mapping[str, Role]:
        return {"peek": Peeker(PeekerConfig(LOG)), **_helpers()}

    return ProcessSpec(name, start, NoDisk(), None, (Operation("peek", PeekRequested(1, LOG)),))


def administrator(
    name: str,
    *requests: CreateLog | TrimRequested | SealRequested | DeleteRequested,
    after: int | None = None,
    read_limit: int = 1,
    tries: int = 1,
) -> ProcessSpec:
    """An operator. An answer to its reader holds up to ``read_limit`` batches.

    ``after``: it first reads up to this position; its requests are then numbered from 2.
    """

    def start(boot: Boot) -> Mapping[str, Role]:
        return {
            "administrator": Administrator(AdministratorConfig(CLUSTER, LOG, tries=tries)),
            "reader": Reader(ReaderConfig(REGISTER, LOG, read_limit=read_limit, seal_checks=0, push=False)),
            **_helpers(),
        }

    first = () if after is None else (Operation("reader", SubscribeRequested(1, LOG, 1, until=after)),)
    operations = tuple(Operation("administrator", request) for request in requests)
    return ProcessSpec(name, start, NoDisk(), None, first + operations)


def coordinator(
    name: str = "coordinator",
    *,
    widen_ms: int = 0,
    absent_ms: int = 0,
    examined_max: int = 1000,
    span: int = 4096,
    log: str = LOG,
) -> ProcessSpec:
    config = DutiesConfig(
        log, widen_ms=widen_ms, absent_ms=absent_ms, silences_max=1, examined_max=examined_max, span=span
    )

    def start(boot: Boot) -> Mapping[str, Role]:
        return {"coordinator": Coordinator(config), **_helpers(log)}

    return ProcessSpec(name, start, NoDisk(), None)


def scenario(
    name: str,
    summary: str,
    projection: Projection | None,
    *clients: ProcessSpec,
    nodes: str = "n1 n2 n3",
    dead: str = "",
    silent: str = "",
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
    cuts: tuple[NetworkCut, ...] = (),
    sometimes: tuple[str, ...] = ("Committed", "EntriesRead"),
    finishing: bool = False,
    tidy: bool = False,
    atomic_disk: bool = True,
    beside: tuple[Projection, ...] = (),
    answer_max: int | None = None,
    free_timers: tuple[FreeTimer, ...] = (),
    drops: tuple[MessageDrop, ...] = (),
    copies: int = 1,
    monitors: tuple[Monitor, ...] = (),
) -> Scenario:
    """A log on some nodes, and clients. Several names are one string.

    ``dead`` nodes are registered but down, ``silent`` ones are down although their leases are valid; ``writers`` are
    clients with a lease; ``opened=False``: no stream exists yet; ``records``: further records on a node's disk;
    ``granted``: how far a sequencer has served segment 0; ``scrubs``: the damage that a node will find;
    ``finishing``: a coordinator runs; ``tidy``: it drops streams; ``beside``: more logs on the same nodes, each judged
    by its own monitors; ``answer_max``: the most batches in an answer of a node; ``monitors``: in addition to those of
    every log.
    """
    logs = (*((projection,) if projection is not None else ()), *beside)
    streams = logs if opened else ()
    down = dead.split() + silent.split()
    present = [each for each in nodes.split() if each not in down]
    storage = tuple(
        node(each, *streams, leases=each in leases.split(), records=records.get(each, ()), granted=granted.get(each))
        for each in present
    )
    storage = tuple(scrubbed(spec, scrubs[spec.name]) if spec.name in scrubs else spec for spec in storage)
    if answer_max is not None:
        storage = tuple(bounded(spec, answer_max) for spec in storage)
    stopped = tuple(replace(node(each, *streams), up=False) for each in down)
    if finishing:
        monitors = (LastCopy(projection, tuple(down)), RepairedAlike(projection), *monitors)
    progress = Progress(finishing=finishing, drained=tuple(draining.split()), tidy=tidy)
    return Scenario(
        name,
        summary,
        (*storage, *stopped, meta(logs, nodes, dead=dead, draining=draining, writers=writers), *clients),
        of_each(logs, progress, *monitors)
        if beside
        else (*safety(projection, max(granted.values(), default=0)), progress, *monitors),
        faults,
        atomic_disk=atomic_disk,
        every_choice=False,
        crashable=tuple(crashable.split()),
        lossy=tuple(lossy.split()),
        power_domain=tuple(power_domain.split()),
        cuts=cuts,
        sometimes=sometimes,
        stays_down=(*down, *stays_down.split()),
        free_timers=free_timers,
        drops=drops,
        copies=copies,
    )
