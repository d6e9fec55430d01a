"""``seed: {from: NAME}``: a destination begins as a copy of a mirror, and follows a log that no longer has all rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count, product
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from msgspec.structs import replace

from delivery.direct_delivery import Direct, all_well
from delivery.group_log import GroupLog, Work, schema_of
from delivery.here_spark import Here
from delivery.memory_log import MemoryLog
from delivery.set_addresses import KINDS, addresses
from delivery.set_delivery import held as held_rows
from delivery.task_pipelines import flush_work, member_of, seed_work, standing_of
from postgres_server import PostgresServer
from trunkline.core.delivery_events import Stopped
from trunkline.core.delivery_messages import JobMember, Outcome, Result, SeedGroup, SeedMode
from trunkline.delivery.changes.arrow_blobs import DividedSpool
from trunkline.delivery.changes.groups import RowKind
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.config.table_patterns import Selection
from trunkline.delivery.config.tree import DestinationConfig, Pipeline, RetryConfig, RoutingConfig, TableConfig
from trunkline.delivery.control.store import open_control_store
from trunkline.delivery.deliverer.host import Deliverer
from trunkline.delivery.deliverer.observer import Observer
from trunkline.delivery.destinations.contract import MemberTables, Place, Standing
from trunkline.delivery.destinations.delta import DeltaPlace
from trunkline.delivery.destinations.delta_log import DeltaLog
from trunkline.delivery.destinations.delta_member import MemberState
from trunkline.delivery.destinations.factory import open_place
from trunkline.delivery.job import mirror_copy
from trunkline.delivery.job.mirror_copy import copy_mirrors
from trunkline.delivery.job.runner import JobRunner
from trunkline.delivery.job.small import flush_portion, seed_portion
from trunkline.delivery.job.work import Portion, TaskDestination
from trunkline.delivery.sources import log_reader
from trunkline.delivery.sources.database import DatabaseSource

INSERT, DELETE, OLD, NEW, TRUNCATE, READ = RowKind
CUSTOMERS: Final = schema_of(1, "id BIGINT, tenant VARCHAR, name VARCHAR", key=("id", "tenant"), name="customers")
ORDERS: Final = schema_of(2, "id BIGINT, tenant VARCHAR, price DOUBLE", key=("id", "tenant"), name="orders")
TENANTS: Final = ("acme", "bolt")
NAMES: Final = count(1)

Targets = tuple[TaskDestination, ...]  # a mirror and two copies
Rows = dict[str, list[dict[str, Any]]]


class TrimmedShop:
    """A captured database of two tables, and a log that can be trimmed."""

    def __init__(self) -> None:
        self.log = GroupLog()
        for schema in (CUSTOMERS, ORDERS):
            self.log.schema(schema)
        self.rows: dict[str, dict[Any, tuple[Any, ...]]] = {"customers": {}, "orders": {}}
        customers = [(number, TENANTS[number % 2], f"name {number}") for number in range(10)]
        self.log.chunk(CUSTOMERS, 0, customers)
        self.log.chunk(ORDERS, 0, [])
        self.rows["customers"] = {row[0]: row for row in customers}
        self.memory = MemoryLog(f"seeds{next(NAMES)}", self.log.entries)
        address = LogAddress(self.memory.address.log, "nowhere:1")
        self.source = DatabaseSource(address, Selection(("public.*",)))

    def write(self, *numbers: int) -> int:
        """A transaction: for each number an order comes, and a customer changes its name."""
        work: Work = []
        for number in numbers:
            order, customer = (
                (number, TENANTS[number % 2], number / 4),
                (number % 10, TENANTS[number % 2], f"new {number}"),
            )
            work += [(ORDERS, INSERT, order), (CUSTOMERS, NEW, customer)]
            self.rows["orders"][number], self.rows["customers"][number % 10] = order, customer
        return self.log.group(work)

    def trim(self) -> None:
        """Up to the present end; what follows can be read."""
        before = self.log.last
        self.log.catalog()
        self.memory.trimmed = before

    def of(self, *tenants: str) -> Rows:
        names = {"customers": ("id", "tenant", "name"), "orders": ("id", "tenant", "price")}
        return {
            table: [dict(zip(names[table], row, strict=True)) for row in sorted(rows.values()) if row[1] in tenants]
            for table, rows in self.rows.items()
        }


@pytest.fixture
def shop() -> Iterator[TrimmedShop]:
    made = TrimmedShop()
    yield made
    log_reader._open.pop(log_reader._key(made.source.address), None)


@pytest.fixture(params=list(product(KINDS, KINDS)), ids="-".join)
def targets(request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer) -> Targets:
    """A mirror of one kind, and two copies of another."""
    kinds = {kind: addresses(kind, tmp_path, postgres) for kind in set(request.param)}
    mirror, copy = (kinds[kind] for kind in request.param)
    return (
        TaskDestination("everything", mirror("everything"), None),
        *(TaskDestination(name, copy(name), (name,), seed_from="everything") for name in TENANTS),
    )


@pytest.fixture
def plain(tmp_path: Path, postgres: PostgresServer) -> Targets:
    """For what does not depend on the kind."""
    make = addresses("delta", tmp_path, postgres)
    return (
        TaskDestination("everything", make("everything"), None),
        *(TaskDestination(name, make(name), (name,), seed_from="everything") for name in TENANTS),
    )


def direct(shop: TrimmedShop, targets: Sequence[TaskDestination]) -> Direct:
    return Direct(shop.source, *targets, tables=["*.*"], key=())


def held(delivery: Direct, name: str) -> Rows:
    return {
        table: sorted(map(dict, rows), key=lambda row: row["id"]) for table, rows in held_rows(delivery, name).items()
    }


def seed_mirror(delivery: Direct) -> None:
    work = seed_work(delivery.work, delivery.work.source.state(0).version)
    all_well(seed_portion(delivery.work, work, Portion(0, (member_of(delivery.work, "everything"),), False)))


def flush(delivery: Direct, *names: str, through: int) -> None:
    for name in names:
        member = member_of(delivery.work, name)
        work = flush_work(delivery.work, Window(member.expected, through), stamp=True)
        all_well(flush_portion(delivery.work, work, Portion(0, (member,), False)))


def copied(delivery: Direct, *names: str) -> dict[str, Result]:
    members = [member_of(delivery.work, name) for name in names or TENANTS]
    return {each.destination: each for each in copy_mirrors(delivery.work, members).results}


def test_a_trimmed_log_is_followed_from_a_copy_of_a_mirror(shop: TrimmedShop, targets: Targets) -> None:
    delivery = direct(shop, targets)
    seed_mirror(delivery)
    flush(delivery, "everything", through=shop.write(*range(20)))
    shop.trim()
    wanted = {name: shop.of(name) for name in TENANTS}
    newest = shop.write(*range(20, 30))
    with pytest.raises(Exception, match="no longer has all rows"):
        seed_portion(
            delivery.work, seed_work(delivery.work, newest), Portion(0, (member_of(delivery.work, "acme"),), False)
        )
    mirror = standing_of(delivery.work, "everything")
    assert mirror is not None
    results = copied(delivery)
    for name in TENANTS:
        result = results[name]
        assert (result.outcome, result.position, result.mark) == (Outcome.APPLIED, mirror.position, mirror.mark)
        assert held(delivery, name) == wanted[name]
        assert standing_of(delivery.work, name) == replace(mirror, token=1)
    flush(delivery, *TENANTS, through=newest)
    for name in TENANTS:
        assert held(delivery, name) == shop.of(name)
    again = copied(delivery, "acme")["acme"]  # requested once more: it is as the mirror is
    assert (again.outcome, again.position) == (Outcome.APPLIED, mirror.position)
    assert held(delivery, "acme") == wanted["acme"]
    flush(delivery, "acme", "everything", through=newest)
    assert held(delivery, "acme") == shop.of("acme")
    assert held(delivery, "everything") == shop.of(*TENANTS)


def test_a_mirror_behind_the_trim_point_halts_with_the_reason(shop: TrimmedShop, plain: Targets) -> None:
    delivery = direct(shop, plain)
    seed_mirror(delivery)
    shop.write(1)
    shop.trim()
    shop.write(2)
    [result] = copied(delivery, "acme").values()
    assert result.outcome is Outcome.PERMANENT
    assert "everything cannot be copied: it is at version" in result.error
    assert f"has changes from version {shop.memory.trimmed} on" in result.error
    assert standing_of(delivery.work, "acme") is None


def test_a_mirror_that_is_not_seeded_or_not_level_lets_its_copies_wait(
    shop: TrimmedShop, plain: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = direct(shop, plain)
    [result] = copied(delivery, "acme").values()
    assert (result.outcome, "not seeded yet" in result.error) == (Outcome.TRANSIENT, True)
    seed_mirror(delivery)
    standing = MemberState.standing

    def ahead(state: MemberState[Any, Any]) -> Standing | None:
        found = standing(state)
        return found if found is None else replace(found, ahead=found.position + 1)

    with monkeypatch.context() as patched:
        patched.setattr(MemberState, "standing", ahead)
        patched.setattr(mirror_copy, "LEVEL_S", 0.0)
        [result] = copy_mirrors(delivery.work, [JobMember("acme", 0, 1)]).results
    assert (result.outcome, "waiting for it" in result.error) == (Outcome.TRANSIENT, True)
    assert copied(delivery, "acme")["acme"].outcome is Outcome.APPLIED


def test_a_mirror_of_another_source_halts(shop: TrimmedShop, plain: Targets) -> None:
    delivery = direct(shop, plain)
    seed_mirror(delivery)
    other = TrimmedShop()
    [result] = copied(direct(other, plain), "acme").values()
    log_reader._open.pop(log_reader._key(other.source.address), None)
    assert result.outcome is Outcome.PERMANENT
    assert "everything cannot be copied: it holds rows of the source" in result.error


def test_a_mirror_is_read_once_for_all_its_copies(
    shop: TrimmedShop, targets: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = direct(shop, targets)
    seed_mirror(delivery)
    read: list[str] = []

    def counting(address: Any) -> Place:
        place = open_place(address)
        rows = place.rows

        def counted(member: MemberTables) -> Any:
            read.append(member.member)
            return rows(member)

        monkeypatch.setattr(place, "rows", counted, raising=False)
        return place

    monkeypatch.setattr(mirror_copy, "open_place", counting)
    assert {each.outcome for each in copied(delivery).values()} == {Outcome.APPLIED}
    assert read == ["shop/everything"]


# ------------------------------------------------------------------------------------------------------------- the job


def test_a_job_seeds_members_that_copy_apart_from_those_that_scan(shop: TrimmedShop, plain: Targets) -> None:
    everything, acme, bolt = plain
    delivery = direct(shop, (everything, acme, replace(bolt, seed_from="")))
    runner = JobRunner(Here(), delivery.work, 2**60)  # type: ignore[arg-type]
    seed_mirror(delivery)
    at = standing_of(delivery.work, "everything")
    assert at is not None
    newest = shop.write(1, 2, 3)
    members = tuple(JobMember(name, 0, 1) for name in TENANTS)
    report = runner.seed(SeedGroup(1, newest, SeedMode.SCAN, members))
    found = {each.destination: each for each in report.results}
    assert (found["acme"].position, found["acme"].mark) == (at.position, at.mark)
    assert (found["bolt"].position, found["bolt"].mark, report.rest) == (newest, "", Outcome.EMPTY)
    assert report.mark == shop.source.survey(Window(newest, newest)).mark
    shop.trim()
    report = runner.seed(SeedGroup(2, newest, SeedMode.SCAN, tuple(member_of(delivery.work, name) for name in TENANTS)))
    outcomes = {each.destination: each.outcome for each in report.results}
    assert outcomes == {"acme": Outcome.PERMANENT, "bolt": Outcome.PERMANENT}, "each for its own reason"


# -------------------------------------------------------------------------------------------------- a whole deliverer


def run_once(shop: TrimmedShop, folder: Path, targets: Sequence[TaskDestination], *reseeded: str) -> Stopped:
    """With a real planner and a real control store; ``reseeded``: what an operator requests before."""
    destinations = tuple(
        DestinationConfig(
            name=each.name,
            address=each.address,
            values=None if each.values is None else (each.name,),
            mode="mirror",
            duplicates="halt",
            seed="scan",
            seed_from=each.seed_from or None,
        )
        for each in targets
    )
    pipeline = Pipeline(
        name="shop",
        source=shop.source.address,
        routing=RoutingConfig(column="tenant"),
        tables=(TableConfig(table="public.*"),),
        destinations=destinations,
        retry=RetryConfig(first_ms=20, most_ms=40, breaker_after=3),
    )
    with closing(open_control_store(f"sqlite:{folder}/control.db")) as store:
        if reseeded:
            store.desired_states.request_reseed("shop", reseeded)
        observer = Observer("shop", "one")
        runner = lambda work: JobRunner(Here(), work, 2**60)  # type: ignore[arg-type]  # noqa: E731
        return Deliverer(pipeline, runner, store, f"one-{next(NAMES)}", observer).run(once=True)


def test_a_deliverer_brings_a_new_destination_from_a_copy_to_the_newest_version(
    shop: TrimmedShop, targets: Targets, tmp_path: Path
) -> None:
    everything, acme, bolt = targets
    delivery = direct(shop, targets)
    assert run_once(shop, tmp_path, [everything]).behind == ()
    shop.write(*range(20))
    assert run_once(shop, tmp_path, [everything]).behind == ()
    shop.trim()
    shop.write(*range(20, 30))
    scanning = replace(bolt, seed_from="")
    assert run_once(shop, tmp_path, [everything, acme, scanning]).behind == ("bolt",), "it cannot be scanned"
    assert held(delivery, "acme") == shop.of("acme")
    shop.write(*range(30, 40))
    assert run_once(shop, tmp_path, targets, "acme").behind == ()
    for name in TENANTS:
        assert held(delivery, name) == shop.of(name)
    assert held(delivery, "everything") == shop.of(*TENANTS)


# ------------------------------------------------------------------------------------------------------------ its parts


def test_rows_of_many_parts_are_spooled_in_any_order_and_read_again() -> None:
    schema = pa.schema([("id", pa.int64())])
    spool = DividedSpool()
    for number in range(100):
        spool.add((number % 3, "t"), pa.RecordBatch.from_pylist([{"id": number}], schema))
    read = spool.reader((1, "t"), schema)
    assert read is not None
    for _ in range(2):
        assert [row["id"] for batch in read() for row in batch.to_pylist()] == list(range(1, 100, 3))
    assert spool.reader((9, "t"), schema) is None
    spool.close()


def test_the_tables_of_a_delta_mirror_are_read_as_of_one_moment(
    shop: TrimmedShop, plain: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush between the reads of two tables must not make an old table pass for one of the new position."""
    delivery = direct(shop, plain)
    seed_mirror(delivery)
    member = delivery.work.tables_of(plain[0], ["public.orders", "public.customers"])  # the lead comes last
    place, load, reads = DeltaPlace(), DeltaLog.load, count()

    def racing(log: DeltaLog) -> Any:
        if log.folder.name.endswith("customers") and next(reads) == 0:
            flush(delivery, "everything", through=shop.write(*range(6)))
        return load(log)

    monkeypatch.setattr(DeltaLog, "load", racing)
    standing, rows, end = place.rows(member)
    orders, customers = (sum(batch.num_rows for batch in batches) for batches in rows)
    end()
    assert (standing.position, orders, customers) == (shop.log.last, 6, 10)


def test_a_copy_that_keeps_a_history_waits_for_a_mirror_that_is_behind_it(shop: TrimmedShop, plain: Targets) -> None:
    mirror, first, second = plain
    delivery = direct(shop, (mirror, replace(first, mode="history"), second))
    seed_mirror(delivery)
    assert {each.outcome for each in copied(delivery).values()} == {Outcome.APPLIED}
    newest = shop.write(1, 2, 3)
    flush(delivery, *TENANTS, through=newest)
    before = held_rows(delivery, first.name)
    found = copied(delivery)
    assert {name: each.outcome for name, each in found.items()} == {
        first.name: Outcome.TRANSIENT,
        second.name: Outcome.APPLIED,
    }
    assert "waiting for it" in found[first.name].error
    assert held_rows(delivery, first.name) == before
    flush(delivery, "everything", through=newest)
    assert copied(delivery, first.name)[first.name].outcome is Outcome.APPLIED
    assert held_rows(delivery, first.name) == before
