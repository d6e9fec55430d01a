"""Sets of tables whose history is odd: tables that go and come, places that break, records of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from delivery.set_addresses import Make
from delivery.set_delivery import CUSTOMERS, ORDERS, assert_equal, customer, direct, held, order, shop, tenants
from delivery.set_source import Row, SetSource, memory_table
from delivery.task_pipelines import flush_work, member_of, standing_of
from trunkline.core.delivery_messages import Outcome
from trunkline.delivery.changes.columns import arrow_schema
from trunkline.delivery.changes.rows import OP_COLUMN, Op
from trunkline.delivery.changes.shape import Mask
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.address_rules import filled
from trunkline.delivery.config.addresses import DeltaAddress, LakeAddress
from trunkline.delivery.config.tree import TableConfig
from trunkline.delivery.destinations.contract import Applied
from trunkline.delivery.destinations.ducklake_attachments import LakeSession
from trunkline.delivery.destinations.ducklake_member import LakeMember
from trunkline.delivery.destinations.factory import open_place
from trunkline.delivery.job.apply import apply_drafts
from trunkline.delivery.job.drafts import MemberDraft, in_memory
from trunkline.delivery.job.small import flush_portion
from trunkline.delivery.job.table_works import known_tables
from trunkline.delivery.job.work import Portion, TaskDestination
from trunkline.delivery.verification.verify import verify_together
from trunkline.errors import ConfigError, DestinationHalted

PLAIN = "id BIGINT, price DOUBLE"


def acme(make: Make, **options: Any) -> TaskDestination:
    return TaskDestination("acme", make("acme"), ("acme",), **options)


# ------------------------------------------------------------------------------------------ tables that go and come


def test_a_table_that_was_left_out_all_the_time_may_go_without_a_word(make: Make) -> None:
    source = shop()
    source.commit(plain=memory_table(PLAIN, {"id": 1, "price": 1.0}))
    delivery = direct(source, acme(make), without_routing_column="leave_out", dropped_tables="halt")
    delivery.seed()
    source.commit(plain=None)
    source.put("orders", order(4, "acme"))
    delivery.flush()
    assert_equal(delivery, source, "acme")


def test_a_table_that_is_created_again_without_its_routing_column_leaves(make: Make) -> None:
    source = shop()
    delivery = direct(source, acme(make), without_routing_column="leave_out", dropped_tables="drop")
    delivery.seed()
    source.commit(orders=memory_table(PLAIN, {"id": 1, "price": 1.0}, identity="2"))
    delivery.flush()
    assert held(delivery, "acme") == {"customers": [customer(1, "acme")]}
    target = delivery.work.targets[0]
    with closing(open_place(target.address)) as place:
        (orders,) = delivery.work.tables_of(target, ["public.orders"]).tables
        assert place.columns(orders) is None, "it leaves as one that the source dropped"


@pytest.mark.parametrize("mode", ["mirror", "append"])
def test_a_table_that_is_created_again_with_its_routing_column_joins(make: Make, mode: Any) -> None:
    source = SetSource(
        customers=memory_table(CUSTOMERS, customer(1, "acme")), orders=memory_table(PLAIN, {"id": 1, "price": 1.0})
    )
    delivery = direct(source, acme(make, mode=mode), without_routing_column="leave_out")
    delivery.seed()
    source.commit(orders=memory_table(ORDERS, order(1, "acme"), identity="2"))
    delivery.flush()
    assert_equal(delivery, source, "acme")


def test_a_set_without_tables_is_seeded_and_its_first_table_joins(make: Make) -> None:
    source = SetSource()
    delivery = direct(source, acme(make))
    delivery.seed()
    source.commit(customers=memory_table(CUSTOMERS, customer(1, "acme")))
    if standing_of(delivery.work, "acme") is None:  # a Delta destination has no place for a record yet
        delivery.seed()
    else:
        delivery.flush()
    assert_equal(delivery, source, "acme")


def test_all_tables_of_a_set_leave_and_others_join(make: Make) -> None:
    source = shop()
    delivery = direct(source, acme(make), dropped_tables="drop")
    delivery.seed()
    source.commit(customers=None, orders=None)
    delivery.flush()
    source.commit(items=memory_table(CUSTOMERS, customer(1, "acme")))
    if standing_of(delivery.work, "acme") is None:
        delivery.seed()
    else:
        delivery.flush()
    assert_equal(delivery, source, "acme")


def test_a_table_joins_while_another_is_captured_again_and_a_third_leaves(make: Make) -> None:
    source = shop()
    source.commit(old=memory_table(CUSTOMERS, customer(1, "acme")))
    delivery = direct(source, *tenants(make), dropped_tables="drop")
    delivery.seed()
    source.commit(
        customers=memory_table(CUSTOMERS, customer(7, "acme"), customer(8, "bolt"), identity="2"),
        items=memory_table(CUSTOMERS, customer(9, "acme")),
        old=None,
    )
    source.put("orders", order(1, "bolt", 3.0))
    delivery.flush()
    assert_equal(delivery, source, "acme", "bolt")


# --------------------------------------------------------------------------------------------------- several at once


def test_retiring_a_destination_leaves_the_record_of_another_that_has_its_tables(make: Make) -> None:
    source = shop()
    delivery = direct(source, acme(make))
    delivery.seed()
    before = standing_of(delivery.work, "acme")
    target = delivery.work.targets[0]
    other = delivery.work.tables_of(target, known_tables(delivery.work))
    with closing(open_place(target.address)) as place:
        place.retire(type(other)("another pipeline/acme", other.home, other.tables))
    assert standing_of(delivery.work, "acme") == before


def test_a_destination_that_was_renamed_goes_on_though_a_table_joined_before_its_first_flush(make: Make) -> None:
    source = shop()
    direct(source, acme(make)).seed()
    source.commit(items=memory_table(CUSTOMERS, customer(1, "acme")))
    source.put("orders", order(7, "acme"))
    renamed = direct(source, replace(acme(make), name="renamed"))
    if isinstance(make("acme"), DeltaAddress):  # a digest does not say of which pipeline it is
        assert standing_of(renamed.work, "renamed") is None
        return
    renamed.flush()
    assert_equal(renamed, source, "renamed")
    other = direct(source, replace(acme(make), name="other"), replace(acme(make), name="renamed"))
    source.commit(more=memory_table(CUSTOMERS, customer(1, "acme")))
    assert standing_of(other.work, "other") is None, "the destination that has the tables is there"


def test_an_error_that_no_one_expects_concerns_only_the_member_that_has_it(make: Make) -> None:
    source = shop()
    delivery = direct(source, *tenants(make))
    delivery.seed()
    source.put("orders", order(4, "acme"), order(5, "bolt"))
    work, drafts = flush_work(delivery.work, Window(1, 2)), []
    (orders,) = work.tables

    def full() -> Iterator[pa.RecordBatch]:
        raise OSError(28, "No space left on device")
        yield

    for target in delivery.work.targets:
        drafts.append(MemberDraft(target, member_of(delivery.work, target.name)))
        staged = {**order(5, "bolt"), OP_COLUMN: int(Op.INSERT)}
        schema = pa.schema([*arrow_schema(orders.columns), pa.field(OP_COLUMN, pa.int8())])
        rows = pa.Table.from_pylist([staged], schema)
        drafts[-1].add(orders, full if target.name == "acme" else in_memory(rows), whole=False)
    outcomes = {each.destination: each for each in apply_drafts(delivery.work, work, drafts)}
    assert outcomes["acme"].outcome is Outcome.UNKNOWN
    assert "No space left on device" in outcomes["acme"].error
    assert outcomes["bolt"].outcome is Outcome.APPLIED
    assert_equal(delivery, source, "bolt")


def test_many_members_that_fail_inside_of_statements_do_not_undo_the_others_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB has no savepoints: each error undoes the transaction of all."""
    names = [f"m{number:02}" for number in range(40)]
    source = SetSource(things=memory_table(CUSTOMERS, *(customer(at, name) for at, name in enumerate(names))))
    address = LakeAddress(f"{tmp_path}/lake.ducklake", "{value}_{table}", data_path=str(tmp_path / "lake"))
    targets = [TaskDestination(name, filled(address, name, name), (name,)) for name in names]
    delivery = direct(source, *targets)
    delivery.seed()
    source.put("things", *(customer(100 + at, name) for at, name in enumerate(names)))
    written: list[str] = []
    write = LakeMember.write

    def fails(member: LakeMember, lake: LakeSession) -> Applied:
        written.append(member.step.member)
        if not member.step.member.endswith("9"):
            raise DestinationHalted("a row that is not there")
        return write(member, lake)

    monkeypatch.setattr(LakeMember, "write", fails)
    members = tuple(member_of(delivery.work, name) for name in names)
    report = flush_portion(delivery.work, flush_work(delivery.work, Window(1, 2)), Portion(0, members, True))
    outcomes = {each.destination: each.outcome for each in report.results}
    wanted = {name: Outcome.APPLIED if name.endswith("9") else Outcome.PERMANENT for name in names}
    assert outcomes == wanted
    assert len(written) < 2 * len(names)
    assert_equal(delivery, source, "m09", "m39")


# ------------------------------------------------------------------------------------------------------ what is hidden


def test_a_masked_column_that_has_another_name_after_a_new_capture_halts_the_set(make: Make) -> None:
    source = shop()
    delivery = direct(source, acme(make), mask={"name": Mask("null")})
    delivery.seed()
    renamed = "id BIGINT, tenant VARCHAR, full_name VARCHAR"
    row: Row = {"id": 1, "tenant": "acme", "full_name": "Ann"}
    source.commit(customers=memory_table(renamed, row, identity="2"))
    with pytest.raises(ConfigError, match=r"public\.customers: column 'name'.* was removed"):
        flush_work(delivery.work, Window(1, 2))


def test_a_table_that_was_kept_and_is_created_again_later_halts_unless_it_may_be_replaced(make: Make) -> None:
    source = shop()
    delivery = direct(source, acme(make))
    delivery.seed()
    source.commit(orders=None)
    delivery.flush()
    source.commit(orders=memory_table(ORDERS, order(9, "acme"), identity="2"))
    members = (member_of(delivery.work, "acme"),)
    report = flush_portion(delivery.work, flush_work(delivery.work, Window(2, 3)), Portion(0, members, True))
    assert [each.outcome for each in report.results] == [Outcome.PERMANENT]
    assert "replace_existing" in report.results[0].error
    allowed = direct(source, acme(make, replace_existing=True))
    allowed.flush()
    assert_equal(allowed, source, "acme")


def test_rows_with_a_computed_key_enter_and_leave_what_a_filter_lets_through(make: Make) -> None:
    """Also while they move from one tenant to another."""
    entries = [
        TableConfig(table="public.orders", filter="price < 10", computed={"code": "'o' || id"}, key=("code",)),
        TableConfig(table="*.*"),
    ]
    source = shop()
    delivery = direct(source, *tenants(make), tables=entries)
    delivery.seed()
    for price, tenant in ((20.0, "acme"), (3.0, "bolt"), (30.0, "bolt"), (4.0, "acme"), (5.0, "acme")):
        source.put("orders", order(1, tenant, price))
        delivery.flush()
        found = [row["code"] for name in ("acme", "bolt") for row in held(delivery, name)["orders"] if row["id"] == 1]
        assert found == (["o1"] if price < 10 else [])
        seeds = {"acme": "scan", "bolt": "scan"}
        verdicts = verify_together(delivery.work, ["acme", "bolt"], seeds)  # type: ignore[arg-type]
        assert [each.outcome for each in verdicts] == ["equal", "equal"], verdicts
