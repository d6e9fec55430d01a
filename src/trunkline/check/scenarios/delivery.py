"""Scenarios of delivery: a source that keeps changing, two destinations, and deliverers that fail.

Most scripts have two keys and two tenants; rows are inserted, updated, deleted and moved between tenants, and some
windows begin and end with the same rows although rows changed in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from trunkline.check.delivery_rows import Change, Row, SourceScript, source_script
from trunkline.check.monitors import Progress
from trunkline.check.monitors.delivery import EventualConsistency, OnePlace, Parts, delivery_safety
from trunkline.check.monitors.places import place_safety
from trunkline.check.scenario import NO_FAULTS, Faults, Operation, Scenario
from trunkline.check.scenarios.delivery_place import PlaceKind, TableImage
from trunkline.check.scenarios.delivery_processes import (
    control_events,
    deliverer,
    lake,
    lone_tables,
    operations,
    place,
)
from trunkline.check.scenarios.delivery_work import (
    Layout,
    OperatorRequest,
    RestoreTable,
    tenants_of,
)
from trunkline.check.scenarios.delivery_world import (
    CONTROL,
    Advance,
    Expire,
    ReplaceSource,
    ReseedRequest,
)
from trunkline.core.delivery_messages import Configured, Life, LifeChanged, Outcome, Planned, Shutdown
from trunkline.core.effects import Message
from trunkline.core.planner_tracks import PlannerConfig

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

FOUR = source_script(  # d1: k, l, nothing, nothing, k and l; d2: nothing, k, k and l, l, nothing
    (Change("k", 1),),
    (Change("l", 1), Change("k", 2)),
    (Change("l", 2),),
    (Change("k"),),
    (Change("k", 1), Change("l", 1)),
)
THREE = source_script(  # d1: k, nothing, k, nothing; d2: nothing, k, nothing, k
    (Change("k", 1),),
    (Change("k", 2),),
    (Change("k", 1),),
    (Change("k", 2),),
)
INSERT_THEN_DELETE = source_script(  # d2: nothing, k, nothing
    (Change("k", 1),),
    (Change("k", 2),),
    (Change("k"),),
)
LATE_INSERT = source_script(  # d2: nothing, l, l and k, l
    (Change("k", 1),),
    (Change("l", 2),),
    (Change("k", 2),),
    (Change("k"),),
)
ONE_TENANT = source_script(  # d2 has nothing until the end
    (Change("k", 1),),
    (Change("k", 1),),
    (Change("l", 1),),
    (Change("k", 2),),
)


def requested(*news: Message | str) -> tuple[Operation, ...]:
    """An operator's requests to a deliverer, one after another. A name restores that table from a backup."""
    requests = [
        RestoreTable(number, each) if isinstance(each, str) else OperatorRequest(number, each)
        for number, each in enumerate(news, start=1)
    ]
    return operations("host", *requests)


def moves(script: SourceScript, *oldest: int) -> tuple[Advance, ...]:
    """The source runs through its script, then forgets the versions before each of these."""
    versions = len(script.versions) - 2
    expiries = [Advance(number, each) for number, each in enumerate(oldest, start=versions + 1)]
    return (*(Advance(number) for number in range(1, versions + 1)), *expiries)


def scenario(
    name: str,
    summary: str,
    script: SourceScript,
    *,
    deliverers: str = "a",
    planned: tuple[Planned, ...] = PLANNED,
    seeded: int = 1,
    images: Mapping[str, TableImage] = MappingProxyType({}),
    append: bool = False,
    together: bool = False,
    alone: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    savepoints: bool = False,
    races: int = 0,
    unknowns: int = 0,
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
    """``seeded``: the version that tables hold at the beginning (0: nothing), except those in ``images``.

    ``together``: all destinations are in one place, where a transaction may lose ``races`` and end ``unknowns`` times
    unknown; also those that are planned with a place. ``alone``: the keys of tables that commit alone, by destination.
    ``events`` of the control store happen at any moment, ``asked`` are operations of deliverers. ``left_alone``:
    destinations that need not reach their part; ``becomes``: the configuration after the first grant.
    """
    names = tuple(each.destination for each in planned)
    shared = {each.destination: each.place or ("p" if together else "") for each in planned}
    layout = Layout(tuple((name, each) for name, each in shared.items() if each), tuple(alone.items()), append)
    tenants = {each.destination: tenants_of(each) for each in becomes or planned}
    parts = Parts(script, tenants, append, token_first=2 if becomes else 0)
    begin = {each: images.get(each, _seeded(parts, each, seeded)) for each in names}
    consistent = {each: begin[each].rows for each in names if each not in left_alone.split()}
    kind = PlaceKind(append, savepoints, tuple(troubles.items()), tuple(broken.items()), races, unknowns)
    places: dict[str, dict[str, TableImage]] = {}
    for each in [name for name in names if name not in alone]:
        places.setdefault(layout.place(each), {})[each] = begin[each]
    return Scenario(
        name,
        summary,
        (
            lake(script, moves(script) if steps is None else steps, names, tuple(deliverers.split())),
            control_events(events),
            *(place(each, members, kind) for each, members in places.items()),
            *(lone_tables(each, begin[each], keys, troubles.get(each, 0)) for each, keys in alone.items()),
            *(
                deliverer(each, script, planned, config, asked.get(each, ()), layout, looks=looks)
                for each in deliverers.split()
            ),
        ),
        (
            *delivery_safety(parts),
            *place_safety(),
            *_one_place(planned),
            EventualConsistency(parts, consistent),
            Progress(),
        ),
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
    mark = parts.script.mark(0, version)
    return TableImage(parts.expected(name, version), version, 0, version, mark) if version else TableImage()


# ------------------------------------------------------------------------------------------------------ one deliverer


def mirror() -> Scenario:
    return scenario(
        "mirror",
        "2 destinations, 2 keys, 4 versions, and a deliverer that crashes and restarts",
        FOUR,
        faults=Faults(crash=1, restart=1),
        crashable="a",
        sometimes=("TableWritten", "GroupStarted", "JobEnded"),
    )


def append_mode() -> Scenario:
    return scenario(
        "append-mode",
        "destinations without keys: a crash must not add a row twice",
        FOUR,
        append=True,
        faults=Faults(crash=1, restart=1),
        crashable="a",
    )


def seeding() -> Scenario:
    leftover = TableImage(rows=(Row("x", 1, 0),))
    return scenario(
        "seeding",
        "new destinations, one with leftover rows, are seeded while the source advances; the deliverer crashes",
        THREE,
        seeded=0,
        images={"d1": leftover},
        faults=Faults(crash=1, restart=1),
        crashable="a",
        sometimes=("Seeded", "TableWritten"),
    )


def lost_answers() -> Scenario:
    """A commit without an answer; the worker may also time out too early, before the transaction commits."""
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
        "a destination without changes is not written; after a crash its note says where to continue",
        ONE_TENANT,
        seeded=0,
        faults=Faults(crash=1, restart=1),
        crashable="a",
    )


def stops() -> Scenario:
    return scenario(
        "stops",
        "a version that no window may cross, because a read across it is wrong",
        FOUR._replace(stops=(3,)),
        faults=Faults(crash=1, restart=1),
        crashable="a",
    )


def rerouting() -> Scenario:
    """What was flushed, seeded or found empty under the old configuration does not count."""
    becomes = (Planned("d1", digest="1 2"),)
    return scenario(
        "rerouting",
        "a destination gets another tenant while a window is read under the old configuration",
        source_script((Change("k", 1),), (Change("l", 2),), (Change("l", 2),)),
        planned=(Planned("d1", digest="1"),),
        seeded=0,
        becomes=becomes,
        asked={"a": requested(Configured(becomes))},
        looks=True,
        sometimes=("PlanDropped", "TableWritten"),
    )


def reseeding() -> Scenario:
    wrong = TableImage(rows=(Row("k", 1, 1), Row("x", 1, 0)), position=1)
    return scenario(
        "reseeding",
        "an operator reseeds a destination with a wrong row while it is flushed and answers are lost",
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
        "two destinations of one place, one of them new: two jobs never write there at once",
        THREE,
        planned=(Planned("d1", digest="1", place="p"), Planned("d2", digest="2", place="p")),
        images={"d2": TableImage()},
        troubles={"d1": 1},
        sometimes=("BackedOff", "Seeded", "TableWritten"),
    )


def halting() -> Scenario:
    return scenario(
        "halting",
        "a destination halts until an operator repairs it; the other one is not affected",
        THREE,
        broken={"d2": Outcome.PERMANENT},
        left_alone="d2",
        asked={"a": requested(LifeChanged("d2", Life.ACTIVE))},
        sometimes=("Halted", "TableWritten"),
    )


def life_cycle() -> Scenario:
    asked = requested(LifeChanged("d1", Life.PAUSED), LifeChanged("d1", Life.ACTIVE), LifeChanged("d2", Life.DRAINING))
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
        asked={"a": requested(LifeChanged("d2", Life.RETIRED))},
        sometimes=("Retired", "TableWritten"),
    )


# ------------------------------------------------------------------------------------------------- several deliverers


def two_deliverers() -> Scenario:
    return scenario(
        "two-deliverers",
        "the lease of a destination expires while its owner is alive: two deliverers hold it",
        THREE,
        deliverers="a b",
        planned=PLANNED[1:],
        events=(Expire("d2"),),
        sometimes=("DeliveryFenced", "TableWritten"),
    )


def lease_returns() -> Scenario:
    return scenario(
        "lease-returns",
        "a destination moves to another deliverer and back while a flush of its first owner is in flight",
        source_script((Change("k", 1),), (Change("k", 2),)),
        deliverers="a b",
        planned=PLANNED[1:],
        events=(Expire("d2"), Expire("d2", 2)),
        sometimes=("DeliveryFenced", "TableWritten"),
    )


def hand_over() -> Scenario:
    return scenario(
        "hand-over",
        "a deliverer crashes, restarts, drains and stops; the other one continues from there",
        INSERT_THEN_DELETE,
        deliverers="a b",
        planned=PLANNED[1:],
        asked={"a": operations("planner", Shutdown(1, drain=True))},
        faults=Faults(crash=1, restart=1),
        crashable="a",
        sometimes=("Stopped", "TableWritten"),
    )


def hand_over_in_flight() -> Scenario:
    """The stopping deliverer has written before, so it hands the destination over as settled: no flush may follow."""
    return scenario(
        "hand-over-in-flight",
        "a deliverer stops while a flush is in flight to a destination that it has written to",
        LATE_INSERT,
        deliverers="a b",
        planned=PLANNED[1:],
        asked={"a": operations("planner", Shutdown(1, drain=True))},
        sometimes=("Stopped", "TableWritten"),
    )


def lost_control() -> Scenario:
    """The control store was lost, and counts tokens from 1 again."""
    image = TableImage((Row("k", 1, 1),), 1, 5, 1)
    return scenario(
        "lost-control",
        "a destination knows a higher token than the control store: the store grants a higher one",
        THREE,
        planned=PLANNED[:1],
        images={"d1": image},
        sometimes=("DeliveryFenced", "TableWritten"),
    )


def delivery() -> Scenario:
    return scenario(
        "delivery",
        "2 destinations, 2 keys, 4 versions, two deliverers, one lease that expires and one crash",
        FOUR,
        deliverers="a b",
        events=(Expire("d2"),),
        faults=Faults(crash=1),
        crashable="a",
        sometimes=("DeliveryFenced", "TableWritten"),
    )


def delivery_restart() -> Scenario:
    summary = "the same, and the crashed deliverer restarts"
    return replace(delivery(), name="delivery-restart", summary=summary, faults=Faults(crash=1, restart=1))


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
