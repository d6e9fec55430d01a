"""Sets of tables, delivered by tasks to every kind of place: without Spark, planner or control store."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from delivery.direct_delivery import Direct, all_well
from delivery.set_addresses import Make
from delivery.set_delivery import CUSTOMERS, ORDERS, assert_equal, customer, direct, held, order, shop, tenants
from delivery.set_source import Row, SetSource, memory_table
from delivery.task_pipelines import flush_work, member_of, seed_work, standing_of
from trunkline.core.delivery_messages import Outcome
from trunkline.delivery.changes.history import VersionedChanges
from trunkline.delivery.changes.shape import Mask
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.tree import ColumnsConfig, TableConfig
from trunkline.delivery.destinations.factory import open_place
from trunkline.delivery.job.small import flush_portion, seed_portion
from trunkline.delivery.job.table_works import window_tables
from trunkline.delivery.job.work import Portion, TaskDestination
from trunkline.delivery.sources.contract import Requests, RouteFilter
from trunkline.delivery.verification.verify import verify_together
from trunkline.errors import ConfigError, DestinationHalted


def test_a_set_is_seeded_and_follows_the_source_in_every_kind(make: Make) -> None:
    source = shop()
    delivery = direct(source, *tenants(make))
    report = delivery.seed()
    assert report.unrouted == {"none": 1}
    assert_equal(delivery, source, "acme", "bolt")
    source.put("customers", customer(1, "bolt"), customer(3, "acme"))  # 1 moves to another tenant
    source.put("orders", order(1, "acme", 2.0), without=[2])
    delivery.flush()
    assert_equal(delivery, source, "acme", "bolt")
    assert [standing_of(delivery.work, name).position for name in ("acme", "bolt")] == [3, 3]  # type: ignore[union-attr]
    assert delivery.flush().results[0].outcome is Outcome.ALREADY


def test_a_table_without_changes_is_not_read(make: Make) -> None:
    source = SetSource(**{f"t{number}": memory_table(CUSTOMERS, customer(number, "acme")) for number in range(5)})
    delivery = direct(source, TaskDestination("acme", make("acme"), ("acme",)))
    delivery.seed()
    source.put("t3", customer(9, "acme"))
    source.reads.clear()
    delivery.flush()
    assert source.reads == [{"public.t3"}]
    assert_equal(delivery, source, "acme")


def test_a_table_joins_with_all_its_rows_even_if_it_has_none_for_a_destination(make: Make) -> None:
    source = shop()
    delivery = direct(source, *tenants(make))
    delivery.seed()
    source.commit(items=memory_table(CUSTOMERS, customer(1, "acme")), empty=memory_table(CUSTOMERS))
    delivery.flush()
    assert_equal(delivery, source, "acme", "bolt")
    source.put("items", customer(2, "bolt"))
    delivery.flush()
    assert_equal(delivery, source, "acme", "bolt")


def test_a_table_that_is_emptied_is_replaced_in_the_same_flush_as_others(make: Make) -> None:
    source = shop()
    delivery = direct(source, *tenants(make))
    delivery.seed()
    source.commit(
        orders=memory_table(ORDERS, order(7, "acme"), identity="2"),
        customers=memory_table(CUSTOMERS, customer(1, "acme", "Bob"), customer(2, "bolt")),
    )
    delivery.flush()
    assert_equal(delivery, source, "acme", "bolt")


@pytest.mark.parametrize("dropped", ["keep", "drop"])
def test_a_table_that_the_source_drops_leaves_as_configured(make: Make, dropped: str) -> None:
    source = shop()
    delivery = direct(source, *tenants(make), dropped_tables=dropped)
    delivery.seed()
    source.commit(orders=None)
    source.put("customers", customer(5, "acme"))
    delivery.flush()
    assert_equal(delivery, source, "acme", "bolt")
    target = delivery.work.targets[0]
    with closing(open_place(target.address)) as place:
        (orders,) = delivery.work.tables_of(target, ["public.orders"]).tables
        assert (place.columns(orders) is None) == (dropped == "drop")


def test_a_dropped_table_halts_with_its_name_if_configured(tmp_path: Path) -> None:
    source = shop()
    delivery = direct(source, dropped_tables="halt")
    source.commit(orders=None)
    with pytest.raises(DestinationHalted, match=r"public\.orders"):
        flush_work(delivery.work, Window(1, 2))


@pytest.mark.parametrize(
    ("twice", "said"),
    [
        ([customer(8, "acme"), customer(8, "acme", "Eve")], "public.customers: 1 row of the source shares a key (id)"),
        ([customer(1, "acme", "Eve")], "key"),
    ],
)
def test_one_member_fails_and_the_others_commit(make: Make, twice: list[Row], said: str) -> None:
    source = shop()
    delivery = direct(source, *tenants(make))
    delivery.seed()
    source.put("orders", order(4, "acme"), order(5, "bolt"))
    table = source.states[-1]["public.customers"]
    source.commit(customers=memory_table(CUSTOMERS, *table.rows, *twice))
    members = tuple(member_of(delivery.work, name) for name in ("acme", "bolt"))
    report = flush_portion(delivery.work, flush_work(delivery.work, Window(1, 3)), Portion(0, members, True))
    outcomes = {each.destination: each for each in report.results}
    assert outcomes["acme"].outcome is Outcome.PERMANENT
    assert said in outcomes["acme"].error
    assert outcomes["bolt"].outcome is Outcome.APPLIED
    assert_equal(delivery, source, "bolt")
    assert [row["id"] for row in held(delivery, "acme")["orders"]] == [1]


def test_a_stale_member_is_left_out_and_the_others_commit(make: Make) -> None:
    source = shop()
    delivery = direct(source, *tenants(make))
    delivery.seed()
    source.put("orders", order(4, "acme"), order(5, "bolt"))
    members = [member_of(delivery.work, name) for name in ("acme", "bolt")]
    stale = type(members[0])(members[0].destination, 1, 0, members[0].mark)  # an older token
    work = flush_work(delivery.work, Window(1, 2))
    report = flush_portion(delivery.work, work, Portion(0, (stale, members[1]), True))
    assert {each.destination: each.outcome for each in report.results} == {
        "acme": Outcome.FENCED,
        "bolt": Outcome.APPLIED,
    }
    assert_equal(delivery, source, "bolt")


def test_a_destination_may_take_every_row_beside_others(make: Make) -> None:
    source = shop()
    targets = (*tenants(make), TaskDestination("everything", make("everything"), None))
    delivery = direct(source, *targets)
    report = delivery.seed()
    assert report.unrouted == {}, "every row has a destination"
    source.put("orders", order(1, "bolt"), order(9, "nothing"), without=[3])
    delivery.flush()
    assert_equal(delivery, source, "acme", "bolt", "everything")


def test_without_routing_every_destination_takes_everything(make: Make) -> None:
    plain = "id BIGINT, name VARCHAR"
    source = SetSource(things=memory_table(plain, {"id": 1, "name": "a"}, {"id": 2, "name": "b"}))
    targets = [TaskDestination(name, make(name), None) for name in ("one", "two")]
    delivery = direct(source, *targets, routing="")
    delivery.seed()
    source.put("things", {"id": 2, "name": "c"}, {"id": 3, "name": "d"}, without=[1])
    delivery.flush()
    assert_equal(delivery, source, "one", "two")


def test_rows_that_share_a_key_are_settled_for_a_destination_that_takes_every_row(make: Make) -> None:
    """The rows of one key may have any routing values."""
    source = SetSource(customers=memory_table(CUSTOMERS, customer(1, "acme", "a"), customer(1, "bolt", "b")))
    delivery = direct(source, TaskDestination("all", make("all"), None, duplicates="warn"))
    delivery.seed()
    assert held(delivery, "all")["customers"] == [customer(1, "bolt", "b")]
    source.commit(customers=memory_table(CUSTOMERS, customer(1, "acme", "a")))
    delivery.flush()
    assert held(delivery, "all")["customers"] == [customer(1, "acme", "a")]


def test_modes_may_differ_from_table_to_table(make: Make) -> None:
    source = shop()
    entries = [TableConfig(table="public.orders", mode="append"), TableConfig(table="*.*")]
    delivery = direct(source, TaskDestination("acme", make("acme"), ("acme",)), tables=entries)
    delivery.seed()
    source.put("orders", order(1, "acme", 5.0))
    source.put("customers", customer(1, "acme", "Bob"))
    delivery.flush()
    assert held(delivery, "acme") == {
        "customers": [customer(1, "acme", "Bob")],
        "orders": [order(1, "acme"), order(1, "acme", 5.0)],
    }


def test_columns_that_the_source_gains_are_added_in_every_destination(make: Make) -> None:
    source = shop()
    delivery = direct(source, *tenants(make))
    delivery.seed()
    wider = memory_table(
        f"{CUSTOMERS}, age INTEGER", {**customer(1, "acme"), "age": 7}, {**customer(2, "bolt"), "age": None}
    )
    source.commit(customers=wider)
    delivery.flush()
    assert_equal(delivery, source, "acme", "bolt")


def test_an_error_of_one_tables_settings_names_the_table() -> None:
    source = shop()
    source.commit(plain=memory_table("id BIGINT, name VARCHAR", {"id": 1, "name": "x"}))
    delivery = direct(source)
    window = Window(1, 2)
    with pytest.raises(ConfigError, match=r"public\.plain has no routing column 'tenant'"):
        window_tables(delivery.work, source.survey(window), window)
    left_out = direct(source, without_routing_column="leave_out")
    assert window_tables(left_out.work, source.survey(window), window).tables == ()


def test_a_table_that_gains_its_routing_column_joins_whole_and_leaves_with_it(make: Make) -> None:
    plain = memory_table("id BIGINT, price DOUBLE", {"id": 1, "price": 1.0}, {"id": 2, "price": 2.0})
    source = SetSource(customers=memory_table(CUSTOMERS, customer(1, "acme")), orders=plain)
    target = TaskDestination("acme", make("acme"), ("acme",))
    delivery = direct(source, target, without_routing_column="leave_out", dropped_tables="drop")
    delivery.seed()
    assert held(delivery, "acme") == {"customers": [customer(1, "acme")]}
    rows = [{"id": 1, "tenant": "acme", "price": 1.0}, {"id": 2, "tenant": "bolt", "price": 2.0}]
    source.commit(orders=memory_table("id BIGINT, tenant VARCHAR, price DOUBLE", *rows))
    delivery.flush()
    assert_equal(delivery, source, "acme")
    source.commit(orders=plain)
    delivery.flush()
    assert held(delivery, "acme") == {"customers": [customer(1, "acme")]}
    with closing(open_place(target.address)) as place:
        (orders,) = delivery.work.tables_of(target, ["public.orders"]).tables
        assert place.columns(orders) is None


def test_rows_are_shaped_before_they_are_routed_and_settled(make: Make) -> None:
    entries = [
        TableConfig(
            table="public.orders",
            columns=ColumnsConfig(exclude=("customer",), rename={"price": "amount"}),
            filter="price < 10",
            computed={"twice": "price * 2"},
        ),
        TableConfig(table="*.*", mask={"name": Mask("null")}),
    ]
    source = shop()
    delivery = direct(source, *tenants(make), tables=entries)
    delivery.seed()
    assert held(delivery, "acme") == {
        "customers": [{**customer(1, "acme"), "name": None}],
        "orders": [{"id": 1, "tenant": "acme", "amount": 1.0, "twice": 2.0}],
    }
    source.put("orders", order(1, "acme", 11.0), order(4, "acme", 3.0), order(5, "acme", 30.0))  # 1 no longer matches
    delivery.flush()
    assert held(delivery, "acme")["orders"] == [{"id": 4, "tenant": "acme", "amount": 3.0, "twice": 6.0}]
    source.put("orders", order(1, "acme", 2.0), without=[5])
    report = delivery.flush()
    assert [row["id"] for row in held(delivery, "acme")["orders"]] == [1, 4]
    assert [each.missing for each in report.results] == [0, 0]
    seeds = {"acme": "scan", "bolt": "scan"}
    verdicts = verify_together(delivery.work, ["acme", "bolt"], seeds)  # type: ignore[arg-type]
    assert [each.outcome for each in verdicts] == ["equal", "equal"], verdicts


def test_a_history_table_has_every_version_of_its_rows(make: Make) -> None:
    source = shop()
    entries = [TableConfig(table="public.orders", mode="history"), TableConfig(table="*.*")]
    delivery = direct(source, *tenants(make), tables=entries)
    delivery.seed()
    source.put("orders", order(1, "acme", 5.0), order(4, "acme"))
    delivery.flush()
    source.put("orders", without=[4])
    delivery.flush()
    periods = {
        (row["id"], row["price"], row["_valid_from"], row["_valid_to"], row["_current"])
        for row in held(delivery, "acme")["orders"]
    }
    assert periods == {(1, 1.0, 1, 2, False), (1, 5.0, 2, None, True), (4, 1.0, 2, 3, False)}
    seeds = {"acme": "scan", "bolt": "scan"}
    verdicts = verify_together(delivery.work, ["acme", "bolt"], seeds)  # type: ignore[arg-type]
    assert [each.outcome for each in verdicts] == ["equal", "equal"], verdicts
    assert "current versions are compared" in verdicts[0].note


def test_a_truncation_that_names_its_rows_for_a_history_empties_mirrors_beside_it(make: Make) -> None:
    class Naming(SetSource):
        def versions(self, window: Window, requests: Requests, routes: RouteFilter) -> dict[str, VersionedChanges]:
            """The rows that the truncation removed are known."""
            names = {name.partition(".")[2]: replace(table, identity="1") for name, table in self.states[-1].items()}
            same = SetSource(**{name.partition(".")[2]: table for name, table in self.states[-2].items()})
            same.commit(**names)
            return SetSource.versions(same, Window(1, 2), requests, routes)

    source = Naming(orders=memory_table(ORDERS, order(1, "acme"), order(2, "bolt")))
    targets = [
        TaskDestination("history", make("history"), ("bolt",), "history"),
        TaskDestination("mirror", make("mirror"), ("acme",)),
    ]
    delivery = direct(source, *targets)
    delivery.seed()
    source.commit(orders=memory_table(ORDERS, order(3, "bolt"), identity="2"))
    delivery.flush()
    assert held(delivery, "mirror") == {"orders": []}
    versions = [(row["id"], row["_valid_to"], row["_current"]) for row in held(delivery, "history")["orders"]]
    assert sorted(versions) == [(2, 2, False), (3, None, True)]


def test_a_history_goes_on_through_joins_truncations_moved_rows_and_new_seeds(make: Make) -> None:
    source = shop()
    histories = [replace(target, mode="history") for target in tenants(make)]
    delivery = direct(source, *histories)
    delivery.seed()
    assert spans(delivery, "acme", "orders") == {(1, 1.0, 1, None)}
    source.commit(items=memory_table(ORDERS, order(7, "acme"), order(8, "bolt")))  # joins
    source.put("orders", order(1, "bolt"), order(3, "acme"))  # one moves, one had no destination
    delivery.flush()
    assert spans(delivery, "acme", "items") == {(7, 1.0, 3, None)}
    assert spans(delivery, "acme", "orders") == {(1, 1.0, 1, 3), (3, 1.0, 3, None)}
    assert spans(delivery, "bolt", "orders") == {(2, 1.0, 1, None), (1, 1.0, 3, None)}
    source.commit(orders=memory_table(ORDERS, order(3, "acme"), order(4, "acme"), identity="2"))  # emptied
    delivery.flush()
    assert spans(delivery, "acme", "orders") == {(1, 1.0, 1, 3), (3, 1.0, 3, None), (4, 1.0, 4, None)}
    assert spans(delivery, "bolt", "orders") == {(2, 1.0, 1, 4), (1, 1.0, 3, 4)}
    source.put("orders", order(4, "acme", 2.0))
    delivery.seed()
    again = {(1, 1.0, 1, 3), (3, 1.0, 3, None), (4, 1.0, 4, 5), (4, 2.0, 5, None)}
    assert spans(delivery, "acme", "orders") == again
    delivery.seed()
    assert spans(delivery, "acme", "orders") == again
    assert spans(delivery, "bolt", "items") == {(8, 1.0, 3, None)}
    members = tuple(replace(member_of(delivery.work, name), discards=True) for name in ("acme", "bolt"))
    all_well(seed_portion(delivery.work, seed_work(delivery.work, 5), Portion(0, members, True)))
    assert spans(delivery, "acme", "orders") == {(3, 1.0, 5, None), (4, 2.0, 5, None)}
    assert spans(delivery, "bolt", "orders") == set()
    seeds = {"acme": "scan", "bolt": "scan"}
    verdicts = verify_together(delivery.work, ["acme", "bolt"], seeds)  # type: ignore[arg-type]
    assert [each.outcome for each in verdicts] == ["equal", "equal"], verdicts


def spans(delivery: Direct, name: str, table: str) -> set[tuple[Any, ...]]:
    """The versions of orders: number, price, from and to."""
    rows = held(delivery, name)[table]
    assert all(row["_current"] is (row["_valid_to"] is None) for row in rows)
    return {(row["id"], row["price"], row["_valid_from"], row["_valid_to"]) for row in rows}


def test_verify_compares_every_table_and_reads_the_source_once(make: Make) -> None:
    source = shop()
    delivery = direct(source, *tenants(make))
    delivery.seed()
    seeds = {"acme": "scan", "bolt": "scan"}
    verdicts = verify_together(delivery.work, ["acme", "bolt"], seeds)  # type: ignore[arg-type]
    assert [(each.outcome, each.tables, each.rows) for each in verdicts] == [("equal", 2, 2)] * 2, verdicts
    source.states[0]["public.orders"] = memory_table(ORDERS, order(1, "acme", 9.0), order(2, "bolt"), order(4, "bolt"))
    acme, bolt = verify_together(delivery.work, ["acme", "bolt"], seeds)  # type: ignore[arg-type]
    assert (acme.outcome, acme.different, acme.differences[0].table) == ("differs", 1, "public.orders")
    assert (bolt.outcome, bolt.missing, bolt.differences[0].key) == ("differs", 1, {"id": "4"})


def test_every_delivery_is_one_transaction_of_the_place(make: Make) -> None:
    """A retried flush of the same window changes nothing, whichever members it has."""
    source = shop()
    delivery = direct(source, *tenants(make))
    delivery.seed()
    source.put("orders", order(4, "acme"), order(5, "bolt"))
    members = tuple(member_of(delivery.work, name) for name in ("acme", "bolt"))
    work = flush_work(delivery.work, Window(1, 2))
    all_well(flush_portion(delivery.work, work, Portion(0, members[:1], True)))
    report = all_well(flush_portion(delivery.work, work, Portion(0, members, True)))
    assert {each.destination: each.outcome for each in report.results} == {
        "acme": Outcome.ALREADY,
        "bolt": Outcome.APPLIED,
    }
    assert_equal(delivery, source, "acme", "bolt")


def test_a_history_does_not_follow_a_source_that_went_back_unless_it_is_discarded(make: Make) -> None:
    source = shop()
    delivery = direct(source, *(replace(target, mode="history") for target in tenants(make)))
    delivery.seed()
    source.put("orders", order(1, "acme", 2.0))
    source.put("orders", order(1, "acme", 3.0))
    delivery.flush()
    before = spans(delivery, "acme", "orders")
    del source.states[1:]  # restored from a backup
    source.put("orders", order(1, "acme", 9.0))
    report = seed_portion(delivery.work, seed_work(delivery.work, 2), delivery.portion())
    assert {each.outcome for each in report.results} == {Outcome.PERMANENT}
    assert all("reseed it with --discard-history" in each.error for each in report.results)
    assert spans(delivery, "acme", "orders") == before
    members = tuple(replace(member, discards=True) for member in delivery.portion().members)
    all_well(seed_portion(delivery.work, seed_work(delivery.work, 2), Portion(0, members, True)))
    assert spans(delivery, "acme", "orders") == {(1, 9.0, 2, None)}
