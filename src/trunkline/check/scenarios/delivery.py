"""Walk-throughs of delivery: a source that keeps moving, two destinations, and deliverers that fail in between.

The script of most of them has two keys and two tenants; rows are inserted, updated, deleted and moved between tenants,
and some windows begin and end with the same rows although something happened inside of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from trunkline.check.delivery_rows import Change, Row, SourceScript, history
from trunkline.check.disks import NoDisk
from trunkline.check.monitors import Progress
from trunkline.check.monitors.delivery import EventualConsistency, OnePlace, Parts, delivery_safety
from trunkline.check.scenario import NO_FAULTS, Boot, Faults, Operation, ProcessSpec, Scenario
from trunkline.check.scenarios.delivery_work import DelivererHost, OperatorRequest, RestoreTable, Worker, tenants_of
from trunkline.check.scenarios.delivery_world import (
    CONTROL,
    LAKE,
    Advance,
    ControlEvents,
    ControlStore,
    Expire,
    ReplaceSource,
    ReseedRequest,
    ScriptedSource,
    Table,
    TableImage,
)
from trunkline.core.delivery_messages import Configured, Life, LifeChanged, Outcome, Planned, Shutdown
from trunkline.core.effects import Message
from trunkline.core.planner import Planner
from trunkline.core.planner_tracks import PlannerConfig
from trunkline.core.role import Role

PLANNED = (Planned("d1", digest="1"), Planned("d2", digest="2"))
CONFIG = PlannerConfig(
    interval_ms=0,
    groups_max=2,
    members_max=2,
    retry_first_ms=1,
    retry_max_ms=2,
    breaker_after=2,
    record_ms=0,
    control=CONTROL,
)
NOTHING: Mapping[str, tuple[Operation, ...]] = MappingProxyType({})

FOUR = history(  # d1: k, l, nothing, nothing, k and l; d2: nothing, k, k and l, l, nothing
    (Change("k", 1),),
    (Change("l", 1), Change("k", 2)),
    (Change("l", 2),),
    (Change("k"),),
    (Change("k", 1), Change("l", 1)),
)
THREE = history(  # d1: k, nothing, k, nothing; d2: nothing, k, nothing, k
    (Change("k", 1),),
    (Change("k", 2),),
    (Change("k", 1),),
    (Change("k", 2),),
)
COMING_AND_GOING = history(  # d2: nothing, k, nothing
    (Change("k", 1),),
    (Change("k", 2),),
    (Change("k"),),
)
COMING_LATE = history(  # d2: nothing, l, l and k, l
    (Change("k", 1),),
    (Change("l", 2),),
    (Change("k", 2),),
    (Change("k"),),
)
ONE_TENANT = history(  # d2 has nothing until the end
    (Change("k", 1),),
    (Change("k", 1),),
    (Change("l", 1),),
    (Change("k", 2),),
)


def operations(role: str, *requests: Message) -> tuple[Operation, ...]:
    return tuple(Operation(role, request) for request in requests)


def told(*news: Message | str) -> tuple[Operation, ...]:
    """What an operator says to a deliverer, one after another. A name: that table is restored from a backup."""
    requests = [
        RestoreTable(number, each) if isinstance(each, str) else OperatorRequest(number, each)
        for number, each in enumerate(news, start=1)
    ]
    return operations("host", *requests)


def moves(past: SourceScript, *oldest: int) -> tuple[Advance, ...]:
    """The source goes through its script, then forgets what lies before each of these versions."""
    versions = len(past.versions) - 2
    expiries = [Advance(number, each) for number, each in enumerate(oldest, start=versions + 1)]
    return (*(Advance(number) for number in range(1, versions + 1)), *expiries)


def lake(
    past: SourceScript, steps: tuple[Advance | ReplaceSource, ...], names: tuple[str, ...], deliverers: tuple[str, ...]
) -> ProcessSpec:
    def start(boot: Boot) -> Mapping[str, Role]:
        return {"source": ScriptedSource(past), "control": ControlStore(names, deliverers)}

    return ProcessSpec(LAKE, start, NoDisk(), None, operations("source", *steps))


def fate(events: tuple[Expire | ReseedRequest, ...]) -> ProcessSpec:
    def start(boot: Boot) -> Mapping[str, Role]:
        return {"fate": ControlEvents(events)}

    return ProcessSpec("fate", start, NoDisk(), None)


def table(name: str, image: TableImage, *, append: bool, troubles: int, broken: Outcome | None) -> ProcessSpec:
    def start(boot: Boot) -> Mapping[str, Role]:
        return {"table": Table(name, image, append=append, troubles=troubles, broken=broken)}

    return ProcessSpec(name, start, NoDisk(), None)


def deliverer(
    name: str,
    past: SourceScript,
    planned: tuple[Planned, ...],
    config: PlannerConfig,
    asked: tuple[Operation, ...],
    *,
    looks: bool,
) -> ProcessSpec:
    def start(boot: Boot) -> Mapping[str, Role]:
        worker = Worker(boot.start, past, planned, looks=looks)
        return {"planner": Planner(config), "worker": worker, "host": DelivererHost(planned)}

    return ProcessSpec(name, start, NoDisk(), None, asked)


def scenario(
    name: str,
    summary: str,
    past: SourceScript,
    *,
    deliverers: str = "a",
    planned: tuple[Planned, ...] = PLANNED,
    seeded: int = 1,
    images: Mapping[str, TableImage] = MappingProxyType({}),
    append: bool = False,
    steps: tuple[Advance | ReplaceSource, ...] | None = None,
    events: tuple[Expire | ReseedRequest, ...] = (),
    asked: Mapping[str, tuple[Operation, ...]] = NOTHING,
    troubles: Mapping[str, int] = MappingProxyType({}),
    broken: Mapping[str, Outcome] = MappingProxyType({}),
    left_alone: str = "",
    becomes: tuple[Planned, ...] | None = None,
    config: PlannerConfig = CONFIG,
    looks: bool = False,
    faults: Faults = NO_FAULTS,
    crashable: str = "",
    lossy: str = "",
    sometimes: tuple[str, ...] = ("TableWritten",),
) -> Scenario:
    """``seeded``: the version that tables hold at the beginning (0: nothing), ``images`` says otherwise for some.

    ``events`` happen to the control store at any moment, ``asked`` is asked of deliverers. ``left_alone``: destinations
    that need not come to their part; ``becomes``: the configuration after the first grant.
    """
    names = tuple(each.destination for each in planned)
    tenants = {each.destination: tenants_of(each) for each in becomes or planned}
    parts = Parts(past, tenants, append, token_first=2 if becomes else 0)
    begin = {each: images.get(each, _seeded(parts, each, seeded)) for each in names}
    consistent = {each: begin[each].rows for each in names if each not in left_alone.split()}
    return Scenario(
        name,
        summary,
        (
            lake(past, moves(past) if steps is None else steps, names, tuple(deliverers.split())),
            fate(events),
            *(
                table(each, begin[each], append=append, troubles=troubles.get(each, 0), broken=broken.get(each))
                for each in names
            ),
            *(deliverer(each, past, planned, config, asked.get(each, ()), looks=looks) for each in deliverers.split()),
        ),
        (*delivery_safety(parts), *_one_place(planned), EventualConsistency(parts, consistent), Progress()),
        faults,
        eager_operations=False,
        crashable=tuple(crashable.split()),
        lossy=tuple(lossy.split()),
        sometimes=sometimes,
    )


def _one_place(planned: tuple[Planned, ...]) -> tuple[OnePlace, ...]:
    places = {each.destination: each.place for each in planned if each.place}
    return (OnePlace(places),) if places else ()


def _seeded(parts: Parts, name: str, version: int) -> TableImage:
    mark = parts.history.mark(0, version)
    return TableImage(parts.expected(name, version), version, 0, version, mark) if version else TableImage()


# ------------------------------------------------------------------------------------------------------ one deliverer


def mirror() -> Scenario:
    return scenario(
        "mirror",
        "2 destinations, 2 keys, 4 versions, and a deliverer that crashes and comes back",
        FOUR,
        faults=Faults(crash=1, restart=1),
        crashable="a",
        sometimes=("TableWritten", "GroupStarted", "JobEnded"),
    )


def append_mode() -> Scenario:
    return scenario(
        "append-mode",
        "destinations without keys: a crash must not bring a row twice",
        FOUR,
        append=True,
        faults=Faults(crash=1, restart=1),
        crashable="a",
    )


def seeding() -> Scenario:
    leftover = TableImage(rows=(Row("x", 1, 0),))
    return scenario(
        "seeding",
        "new destinations, one with rows left over, are seeded while the source moves on; the deliverer crashes",
        THREE,
        seeded=0,
        images={"d1": leftover},
        faults=Faults(crash=1, restart=1),
        crashable="a",
        sometimes=("Seeded", "TableWritten"),
    )


def lost_answers() -> Scenario:
    """A commit without acknowledgement; the worker may also give up too early, and the transaction come later."""
    return scenario(
        "lost-answers",
        "requests and answers of a table are lost, doubled or late: outcomes of seeds and flushes are unknown",
        THREE,
        seeded=0,
        faults=Faults(loss=1, duplicate=1, early_timer=1),
        lossy="d1",
        sometimes=("TableWritten", "BackedOff"),
    )


def empty_windows() -> Scenario:
    return scenario(
        "empty-windows",
        "a destination without changes is not written; after a crash its note tells where to go on",
        ONE_TENANT,
        seeded=0,
        faults=Faults(crash=1, restart=1),
        crashable="a",
    )


def stops() -> Scenario:
    return scenario(
        "stops",
        "a version that no window may cross, as what is read across it is wrong",
        FOUR._replace(stops=(3,)),
        faults=Faults(crash=1, restart=1),
        crashable="a",
    )


def rerouting() -> Scenario:
    """What was flushed, seeded or found empty under the old configuration is no ground to stand on."""
    becomes = (Planned("d1", digest="1 2"),)
    return scenario(
        "rerouting",
        "a destination gets another tenant while a window is read under the old configuration",
        history((Change("k", 1),), (Change("l", 2),), (Change("l", 2),)),
        planned=(Planned("d1", digest="1"),),
        seeded=0,
        becomes=becomes,
        asked={"a": told(Configured(becomes))},
        looks=True,
        sometimes=("PlanDropped", "TableWritten"),
    )


def reseeding() -> Scenario:
    wrong = TableImage(rows=(Row("k", 1, 1), Row("x", 1, 0)), position=1)
    return scenario(
        "reseeding",
        "an operator has a destination with a wrong row seeded again, while it is flushed and answers are lost",
        THREE,
        images={"d1": wrong},
        events=(ReseedRequest("d1"),),
        faults=Faults(loss=1),
        lossy="d1",
        sometimes=("Seeded",),
    )


def backing_off() -> Scenario:
    return scenario(
        "backing-off",
        "two destinations refuse some flushes, one of them so many that its breaker opens",
        THREE,
        troubles={"d1": 1, "d2": 3},
        sometimes=("BackedOff", "BreakerOpened", "BreakerClosed"),
    )


def one_place() -> Scenario:
    return scenario(
        "one-place",
        "two destinations of one place, one of them new: they are never written by two jobs at once",
        THREE,
        planned=(Planned("d1", digest="1", place="p"), Planned("d2", digest="2", place="p")),
        images={"d2": TableImage()},
        troubles={"d1": 1},
        sometimes=("BackedOff", "Seeded", "TableWritten"),
    )


def halting() -> Scenario:
    return scenario(
        "halting",
        "a destination cannot go on until somebody mends it; the other one does not notice",
        THREE,
        broken={"d2": Outcome.PERMANENT},
        left_alone="d2",
        asked={"a": told(LifeChanged("d2", Life.ACTIVE))},
        sometimes=("Halted", "TableWritten"),
    )


def life_cycle() -> Scenario:
    asked = told(LifeChanged("d1", Life.PAUSED), LifeChanged("d1", Life.ACTIVE), LifeChanged("d2", Life.DRAINING))
    return scenario(
        "life-cycle",
        "one destination is paused and resumed, another one drained",
        THREE,
        left_alone="d2",
        asked={"a": asked},
        sometimes=("Drained", "TableWritten"),
    )


def retiring() -> Scenario:
    return scenario(
        "retiring",
        "a destination is retired with a flush in flight",
        THREE,
        left_alone="d2",
        asked={"a": told(LifeChanged("d2", Life.RETIRED))},
        sometimes=("Retired", "TableWritten"),
    )


# ------------------------------------------------------------------------------------------------- several deliverers


def two_deliverers() -> Scenario:
    return scenario(
        "two-deliverers",
        "the lease of a destination runs out, whether its owner is dead or not: both believe that it is theirs",
        THREE,
        deliverers="a b",
        planned=PLANNED[1:],
        events=(Expire("d2"),),
        sometimes=("DeliveryFenced", "TableWritten"),
    )


def lease_returns() -> Scenario:
    return scenario(
        "lease-returns",
        "a destination goes to another deliverer and back, with a flush of its first owner still in flight",
        history((Change("k", 1),), (Change("k", 2),)),
        deliverers="a b",
        planned=PLANNED[1:],
        events=(Expire("d2"), Expire("d2", 2)),
        sometimes=("DeliveryFenced", "TableWritten"),
    )


def hand_over() -> Scenario:
    return scenario(
        "hand-over",
        "a deliverer crashes, comes back, drains and stops; the other one goes on where it ended",
        COMING_AND_GOING,
        deliverers="a b",
        planned=PLANNED[1:],
        asked={"a": operations("planner", Shutdown(1, drain=True))},
        faults=Faults(crash=1, restart=1),
        crashable="a",
        sometimes=("Stopped", "TableWritten"),
    )


def hand_over_in_flight() -> Scenario:
    """The deliverer that stops has written before, so that what it hands over is settled: nothing may follow."""
    return scenario(
        "hand-over-in-flight",
        "a deliverer stops while something is on its way to a destination that it has written to",
        COMING_LATE,
        deliverers="a b",
        planned=PLANNED[1:],
        asked={"a": operations("planner", Shutdown(1, drain=True))},
        sometimes=("Stopped", "TableWritten"),
    )


def lost_control() -> Scenario:
    """The control store was lost, and begins to count tokens from 1 again."""
    past = TableImage((Row("k", 1, 1),), 1, 5, 1)
    return scenario(
        "lost-control",
        "a destination knows a higher token than the control store: it is granted a higher one",
        THREE,
        planned=PLANNED[:1],
        images={"d1": past},
        sometimes=("DeliveryFenced", "TableWritten"),
    )


def delivery() -> Scenario:
    return scenario(
        "delivery",
        "2 destinations, 2 keys, 4 versions, two deliverers, one lease that runs out and one crash",
        FOUR,
        deliverers="a b",
        events=(Expire("d2"),),
        faults=Faults(crash=1),
        crashable="a",
        sometimes=("DeliveryFenced", "TableWritten"),
    )


def delivery_restart() -> Scenario:
    return scenario(
        "delivery-restart",
        "the same with the crashed deliverer coming back",
        FOUR,
        deliverers="a b",
        events=(Expire("d2"),),
        faults=Faults(crash=1, restart=1),
        crashable="a",
        sometimes=("DeliveryFenced", "TableWritten"),
    )


DELIVERY_SCENARIOS = (
    mirror,
    append_mode,
    seeding,
    lost_answers,
    empty_windows,
    stops,
    rerouting,
    reseeding,
    backing_off,
    one_place,
    halting,
    life_cycle,
    retiring,
    two_deliverers,
    lease_returns,
    hand_over,
    hand_over_in_flight,
    lost_control,
    delivery,
    delivery_restart,
)
