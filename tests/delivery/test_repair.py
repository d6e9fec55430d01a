"""``repair`` rewrites the keys that differ, at the position of the destination, in every kind of place."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from delivery.direct_delivery import Direct
from delivery.set_addresses import Make
from delivery.set_delivery import (
    CUSTOMERS,
    ORDERS,
    assert_equal,
    customer,
    direct,
    held,
    order,
    shop,
    tenants,
)
from delivery.set_source import Row, SetSource, memory_table
from delivery.task_pipelines import flush_work, member_of, standing_of
from trunkline.core.delivery_messages import Outcome
from trunkline.delivery.changes.shape import Mask
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.tree import SeedMode, TableConfig
from trunkline.delivery.destinations import factory
from trunkline.delivery.destinations.contract import MemberWrite, Place
from trunkline.delivery.job.small import flush_portion
from trunkline.delivery.job.work import Portion, TaskDestination
from trunkline.delivery.verification import repair as repair_module
from trunkline.delivery.verification.repair import RepairVerdict, repair_all, repair_together
from trunkline.delivery.verification.verify import verify_together

SCAN: dict[str, SeedMode] = {"acme": "scan", "bolt": "scan"}


def rewritten(source: SetSource, **tables: list[Row]) -> None:
    """Another past: destinations at the newest version differ from it now."""
    for name, rows in tables.items():
        columns = CUSTOMERS if name == "customers" else ORDERS
        source.states[-1][f"public.{name}"] = memory_table(columns, *rows)


def delivered(make: Make, **settings: Any) -> tuple[SetSource, Direct]:
    source = shop()
    delivery = direct(source, *tenants(make), **settings)
    delivery.seed()
    return source, delivery


def repaired(delivery: Direct, token: int = 2, **options: Any) -> list[RepairVerdict]:
    return repair_together(delivery.work, dict.fromkeys(("acme", "bolt"), token), SCAN, **options)


def test_only_the_keys_that_differ_are_rewritten_over_all_tables(make: Make) -> None:
    source, delivery = delivered(make)
    rewritten(
        source,
        customers=[customer(1, "acme", "Eve"), customer(7, "acme"), customer(2, "bolt")],  # 1 differs, 7 is missing
        orders=[order(2, "bolt")],  # 1 is extra
    )
    before = standing_of(delivery.work, "acme")
    assert before is not None
    acme, bolt = repaired(delivery)
    assert (acme.outcome, acme.missing, acme.extra, acme.different) == ("repaired", 1, 1, 1), acme
    assert (acme.position, acme.removed, acme.written) == (1, 2, 2)
    assert (bolt.outcome, bolt.written) == ("equal", 0)
    assert_equal(delivery, source, "acme", "bolt")
    assert standing_of(delivery.work, "acme") == replace(before, token=2)
    assert [each.outcome for each in verify_together(delivery.work, ["acme", "bolt"], SCAN)] == ["equal", "equal"]
    source.put("orders", order(3, "acme"))
    members = tuple(member_of(delivery.work, name, 3) for name in ("acme", "bolt"))
    report = flush_portion(delivery.work, flush_work(delivery.work, Window(1, 2)), Portion(0, members, True))
    assert {each.outcome for each in report.results} == {Outcome.APPLIED}
    assert_equal(delivery, source, "acme")


def test_a_destination_that_moves_during_the_repair_is_compared_again(
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, delivery = delivered(make)
    rewritten(source, orders=[order(1, "acme", 5.0), order(2, "bolt", 5.0)])
    real, seen = factory.open_place, list[int]()

    def moving(address: Any) -> Place:
        """Before the first write of acme, another deliverer flushes it."""
        place = real(address)
        apply = place.apply

        def applied(writes: list[MemberWrite]) -> Any:
            [write] = writes
            seen.append(write.step.expected)
            if write.step.member.endswith("acme") and len(seen) == 1:
                source.put("orders", order(9, "acme"))
                members = (member_of(delivery.work, "acme", 1),)
                flush_portion(delivery.work, flush_work(delivery.work, Window(1, 2)), Portion(0, members, True))
            return apply(writes)

        monkeypatch.setattr(place, "apply", applied, raising=False)
        return place

    monkeypatch.setattr(repair_module, "open_place", moving)
    acme, bolt = repaired(delivery)
    assert (acme.outcome, acme.position) == ("repaired", 2), acme
    assert (bolt.outcome, bolt.position) == ("repaired", 1), bolt
    assert seen == [1, 1, 2]
    assert_equal(delivery, source, "acme")


def test_a_repair_that_lost_the_destination_to_a_later_owner_is_fenced(make: Make) -> None:
    source, delivery = delivered(make)
    rewritten(source, orders=[order(1, "acme", 5.0)])
    for token in (3, 0):
        acme, _ = repaired(delivery, token)
        assert acme.outcome == ("repaired" if token else "equal")
    rewritten(source, orders=[order(1, "acme", 6.0)])
    acme, _ = repaired(delivery, 2)
    assert (acme.outcome, acme.fenced_by) == ("differs", 3)
    assert held(delivery, "acme")["orders"] == [order(1, "acme", 5.0)]


@pytest.mark.parametrize("mode", ["append", "history"])
def test_only_mirrors_are_repaired(make: Make, mode: Any) -> None:
    source, delivery = delivered(make, tables=[TableConfig(table="public.orders", mode=mode), TableConfig(table="*.*")])
    rewritten(source, customers=[customer(1, "acme", "Eve"), customer(2, "bolt")])
    assert [each.outcome for each in repaired(delivery)] == ["repaired", "equal"]
    rewritten(source, orders=[order(8, "acme"), order(2, "bolt")])
    before = held(delivery, "acme")
    acme, bolt = repaired(delivery, 3)
    assert (acme.outcome, bolt.outcome) == ("differs", "equal" if mode == "history" else bolt.outcome)
    assert f"public.orders: only mirrors are repaired, and its mode is {mode}" in acme.note
    assert held(delivery, "acme") == before


def test_shaped_rows_and_winners_of_shared_keys_are_written(make: Make) -> None:
    entries = [
        TableConfig(table="public.orders", filter="price < 10", computed={"twice": "price * 2"}),
        TableConfig(table="*.*", mask={"name": Mask("null")}, duplicates="warn"),
    ]
    source, delivery = delivered(make, tables=entries)
    rewritten(
        source,
        customers=[customer(1, "acme"), customer(2, "bolt"), customer(5, "acme"), customer(5, "acme")],
        orders=[order(1, "acme", 4.0), order(2, "bolt", 40.0), order(6, "bolt", 6.0)],
    )
    assert [each.outcome for each in repaired(delivery)] == ["repaired", "repaired"]
    assert held(delivery, "acme") == {
        "customers": [{**customer(1, "acme"), "name": None}, {**customer(5, "acme"), "name": None}],
        "orders": [{**order(1, "acme", 4.0), "twice": 8.0}],
    }
    assert held(delivery, "bolt")["orders"] == [{**order(6, "bolt", 6.0), "twice": 12.0}]


def test_nothing_is_written_where_the_source_has_several_rows_of_a_key(make: Make) -> None:
    source, delivery = delivered(make)
    rewritten(source, orders=[order(1, "acme"), order(1, "acme", 2.0), order(2, "bolt", 3.0)])
    acme, bolt = repaired(delivery)
    assert (acme.outcome, bolt.outcome) == ("differs", "repaired")
    assert "several rows of the source share the key id = 1" in acme.note


def test_rows_that_seed_now_left_out_stay_out(make: Make) -> None:
    source = shop()
    delivery = direct(source, *tenants(make))
    delivery.seed(nothing=True)
    source.put("orders", order(4, "acme"), order(5, "acme"))
    delivery.flush()
    rewritten(source, orders=[order(1, "acme"), order(4, "acme", 9.0)])
    (acme,) = repair_together(delivery.work, {"acme": 2}, {"acme": "now"})
    assert (acme.outcome, acme.removed, acme.written) == ("repaired", 2, 1)
    assert held(delivery, "acme") == {"customers": [], "orders": [order(4, "acme", 9.0)]}


def test_a_reseed_is_advised_if_most_rows_differ(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    source, delivery = delivered(make)
    rewritten(source, orders=[order(1, "acme", 5.0), order(2, "bolt", 5.0)])
    monkeypatch.setattr(repair_module, "KEYS_ANYWAY", 0)
    monkeypatch.setattr(repair_module, "KEYS_MAX", 0)
    acme, _ = repaired(delivery)
    assert acme.outcome == "differs"
    assert "1 key of 2 rows would be rewritten: `trunkline deliver reseed` costs less" in acme.note
    assert [each.outcome for each in repaired(delivery, insists=True)] == ["repaired", "repaired"]
    assert_equal(delivery, source, "acme", "bolt")


def test_a_destination_that_cannot_be_compared_is_not_written(make: Make) -> None:
    source = shop()
    delivery = direct(source, *tenants(make))
    acme, _ = repaired(delivery)
    assert (acme.outcome, acme.position) == ("unverified", None)
    delivery.seed()
    other = memory_table("id BIGINT, tenant VARCHAR, other VARCHAR", {"id": 1, "tenant": "acme", "other": "x"})
    source.states[-1]["public.orders"] = other
    acme, _ = repaired(delivery)
    assert acme.outcome == "differs"
    assert "only `trunkline deliver reseed` helps" in acme.note


def test_many_destinations_and_keys_are_repaired_with_one_read_of_the_source(make: Make) -> None:
    rows = [order(number, f"t{number % 20}") for number in range(3000)]
    source = SetSource(orders=memory_table(ORDERS, *rows))
    targets = [TaskDestination(f"t{number}", make(f"t{number}"), (f"t{number}",)) for number in range(20)]
    delivery = direct(source, *targets)
    delivery.seed()
    rewritten(source, orders=[order(number, f"t{number % 20}", 2.0) for number in range(0, 3000, 2)])
    names = [target.name for target in targets]
    scans, scan = list[int](), source.scan

    def counted(version: int, *rest: Any) -> Any:
        scans.append(version)
        return scan(version, *rest)

    source.scan = counted  # type: ignore[method-assign, assignment]
    tokens = dict.fromkeys(names, 2)
    found = list(repair_all(delivery.work, tokens, dict.fromkeys(names, "scan"), insists=True))
    assert {each.outcome for each in found} == {"repaired"}
    assert sum(each.removed for each in found) == 3000
    assert scans == [1], "the source is read once"
    assert_equal(delivery, source, *names)
