"""What every kind of place promises: rules T1 to T7 of ``delivery/destinations/contract.py``.

One member with one table. T3 is in ``rows.py``, T9 and members with several tables are in ``members.py``, members that
commit together in ``groups.py``, T11 in ``history.py``, crashes and races in ``crashes.py``.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest
from msgspec.structs import replace

from trunkline.core import group_commit
from trunkline.core.fence import Decision, PlannedWrite, StoredPosition, decide
from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.changes.rows import OP_COLUMN, Op
from trunkline.delivery.config.address_rules import Ability, identity, lacks, place_of
from trunkline.delivery.destinations.contract import Applied, Standing
from trunkline.destination_suite.place import Change, Kind, Plan, Row, Site, Table, content, plain, staged
from trunkline.destination_suite.steps import (
    CHANGES,
    FLUSH,
    FLUSHED,
    MARK_A,
    MARK_B,
    ORDERS,
    SEED,
    SEEDED,
    flushed,
    leave,
    outcome_of,
    seeded,
    standing,
    unchanged,
    whose,
)
from trunkline.errors import (
    ConfigError,
    DestinationHalted,
    DuplicateKey,
    Fenced,
    PositionMoved,
    SchemaMismatch,
    Unreachable,
)

# ------------------------------------------------------------------------------------ T1: rows, position and token


def test_t1_rows_position_and_token_change_together(table: Table) -> None:
    seeded(table)
    unchanged(table)
    applied = flushed(table, replace(FLUSH, token=3), CHANGES)
    assert applied == Applied(20, removed=2, written=2)
    assert content(table.held()) == content(FLUSHED)
    assert standing(table) == Standing(20, 3, "lake/orders")


def test_t1_a_flush_whose_rows_break_off_changes_nothing(table: Table) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield next(staged(ORDERS, ("id",), CHANGES))
        raise EOFError("the rows broke off")

    seeded(table)
    destination = table.open()
    with pytest.raises(EOFError, match="broke off"):
        destination.flush(FLUSH, broken)
    unchanged(table)
    assert destination.flush(FLUSH, staged(ORDERS, ("id",), CHANGES)).position == 20  # and it can be used again
    destination.close()
    assert content(table.held()) == content(FLUSHED)


def test_t1_a_seed_whose_rows_break_off_changes_nothing(table: Table) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from plain(ORDERS, [{"id": 7}])
        raise EOFError("the rows broke off")

    destination = table.open()
    with pytest.raises(EOFError, match="broke off"):
        destination.seed(SEED, broken)
    assert destination.standing() is None
    destination.close()
    seeded(table)
    destination = table.open()
    with pytest.raises(EOFError, match="broke off"):
        destination.seed(replace(SEED, expected=10, through=30), broken)
    destination.close()
    unchanged(table)


def test_t1_a_flush_without_rows_moves_the_position(table: Table) -> None:
    seeded(table)
    assert flushed(table, FLUSH, []) == Applied(20)
    destination = table.open()
    assert destination.flush(replace(FLUSH, expected=20, through=21), []) == Applied(21)  # not even a batch
    destination.close()
    assert standing(table) == Standing(21, 1, "lake/orders")
    assert content(table.held()) == content(SEEDED)


# ------------------------------------------------------------------------------------------- T2: token and position


def test_t2_a_newer_token_fences_an_older_one(table: Table) -> None:
    seeded(table, replace(SEED, token=5))
    before = table.trace()
    with pytest.raises(Fenced):
        flushed(table, replace(FLUSH, token=4), CHANGES)
    with pytest.raises(Fenced):  # also where the work was done already
        flushed(table, replace(FLUSH, token=4, expected=5, through=10), CHANGES)
    with pytest.raises(Fenced):
        seeded(table, replace(SEED, token=4, expected=10, through=30))
    assert table.trace() == before
    assert standing(table) == Standing(10, 5, "lake/orders")
    assert content(table.held()) == content(SEEDED)


def test_t2_a_flush_that_was_done_already_succeeds_and_writes_nothing(table: Table) -> None:
    seeded(table)
    flushed(table, FLUSH, CHANGES)
    before = table.trace()
    assert flushed(table, FLUSH, CHANGES) == Applied(20, already=True)
    with pytest.raises(PositionMoved):  # only the source knows whether the stored position is a later one
        flushed(table, replace(FLUSH, through=15, token=2), CHANGES)
    assert table.trace() == before
    assert content(table.held()) == content(FLUSHED)
    assert standing(table) == Standing(20, 1, "lake/orders")


def test_t2_a_flush_from_another_position_is_refused(table: Table) -> None:
    seeded(table)
    before = table.trace()
    for expected in (5, 11):
        with pytest.raises(PositionMoved) as refused:
            flushed(table, replace(FLUSH, expected=expected), CHANGES)
        assert refused.value.position == 10
    assert table.trace() == before
    unchanged(table)


def test_t2_a_destination_that_was_never_seeded_takes_a_flush_from_zero_only(table: Table) -> None:
    assert standing(table) is None
    with pytest.raises(PositionMoved) as refused:
        flushed(table, FLUSH, CHANGES)
    assert refused.value.position == 0
    assert table.held() is None
    inserts: list[Change] = [(Op.INSERT, row) for row in SEEDED]
    assert flushed(table, replace(FLUSH, expected=0, through=10), inserts) == Applied(10, written=3)
    unchanged(table)


def test_t2_rows_of_another_source_are_refused(table: Table) -> None:
    seeded(table)
    before = table.trace()
    with pytest.raises(DestinationHalted, match=r"lake/orders.*reseed"):
        flushed(table, replace(FLUSH, source="lake/others"), CHANGES)
    with pytest.raises(PositionMoved):  # it was planned before they were there
        seeded(table, replace(SEED, source="lake/others", through=30, replace_existing=True))
    assert table.trace() == before
    unchanged(table)


def test_t5_a_seed_that_was_planned_from_what_is_there_replaces_it_also_by_an_earlier_version(table: Table) -> None:
    seeded(table, replace(SEED, through=70, through_mark=MARK_A))
    with pytest.raises(Fenced):
        seeded(table, replace(SEED, token=0, expected=70, mark=MARK_A, through=5))
    reseed = replace(SEED, expected=70, mark=MARK_A, through=5, through_mark=MARK_B, source="lake/others")
    seeded(table, reseed, [{"id": 8, "tenant": "acme", "amount": 1}])
    assert standing(table) == Standing(5, 1, "lake/others", MARK_B)
    before = table.trace()
    for late in (replace(reseed, through=4, through_mark=MARK_A), replace(reseed, mark="", through=4)):
        with pytest.raises(PositionMoved):
            seeded(table, late)
    assert table.trace() == before
    assert content(table.held()) == content([{"id": 8, "tenant": "acme", "amount": 1}])


def test_t2_every_kind_decides_as_fencing_does(table: Table) -> None:
    """What is stored beside what a flush or a seed expects: each kind comes to the decision of the one function."""
    flush = replace(FLUSH, token=4, mark=MARK_A, through_mark=MARK_B)
    seed = replace(SEED, token=4, expected=10, mark=MARK_A, through=20, through_mark=MARK_B)
    unmarked = replace(flush, mark="", through_mark="")
    steps: tuple[Plan, ...] = (flush, seed, unmarked, replace(flush, mark=MARK_B, through_mark=MARK_A))
    steps += (replace(flush, token=2), replace(seed, token=2))
    seen = set()
    for position, mark, source in ((10, MARK_A, SEED.source), (10, "", SEED.source), (20, MARK_B, SEED.source)):
        for held in (Standing(position, 3, source, mark), Standing(position, 3, "lake/others", mark)):
            leave(table, held)
            for step in steps:
                asked = PlannedWrite(step.expected, step.mark, step.through, step.through_mark, step.token, whose(step))
                decision = decide(StoredPosition(held.position, held.token, held.mark, held.source), asked)
                seen.add(decision)
                assert outcome_of(table, step) is decision, (held, step)
                if decision is Decision.PROCEED:
                    assert standing(table) == Standing(20, 4, SEED.source, step.through_mark)
                    leave(table, held)
                assert standing(table) == held
    assert seen == set(Decision)


def test_t2_every_kind_asks_fencing(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the one class that decides about a group (U1)."""
    seeded(table)
    asked: list[PlannedWrite] = []

    def refused(held: StoredPosition, step: PlannedWrite) -> Decision:
        asked.append(step)
        return Decision.MOVED

    monkeypatch.setattr(group_commit, "decide", refused)
    for step in (replace(FLUSH, expected=5), replace(SEED, expected=10)):
        assert outcome_of(table, step) is Decision.MOVED
    assert {(step.expected, step.source) for step in asked} == {(5, SEED.source), (10, None)}
    unchanged(table)


# ----------------------------------------------------------------------------------------------- T4: duplicate keys


def test_t4_an_insert_whose_key_is_held_is_refused_and_nothing_is_written(table: Table) -> None:
    seeded(table)
    before = table.trace()
    held: Change = (Op.INSERT, {"id": 3, "tenant": "acme", "amount": 31})
    with pytest.raises(DuplicateKey, match="3"):
        flushed(table, FLUSH, [*CHANGES, held])
    assert table.trace() == before
    unchanged(table)


def test_t4_a_duplicate_is_not_hidden_by_a_missing_key(table: Table) -> None:
    """The counts of both cancel out; the keys do not."""
    seeded(table)
    changes: list[Change] = [(Op.REMOVE, {"id": 77}), (Op.INSERT, {"id": 3, "tenant": "acme", "amount": 31})]
    with pytest.raises(DuplicateKey, match="3"):
        flushed(table, FLUSH, changes)
    unchanged(table)
    assert flushed(table, replace(FLUSH, duplicates="warn"), changes) == Applied(
        20, removed=1, written=1, duplicates=1, missing=1
    )


def test_t4_policy_warn_takes_the_newer_row_and_counts(table: Table) -> None:
    seeded(table)
    changes: list[Change] = [*CHANGES, (Op.INSERT, {"id": 3, "tenant": "acme", "amount": 31})]
    applied = flushed(table, replace(FLUSH, duplicates="warn"), changes)
    assert applied == Applied(20, removed=3, written=3, duplicates=1)
    assert content(table.held()) == content([FLUSHED[0], changes[-1][1], FLUSHED[2]])


def test_t4_a_null_key_that_exists_is_a_duplicate(table: Table) -> None:
    seeded(table, rows=[{"id": None, "tenant": "acme", "amount": 1}])
    with pytest.raises(DuplicateKey, match="id"):
        flushed(table, FLUSH, [(Op.INSERT, {"id": None, "tenant": "acme", "amount": 2})])
    assert len(table.held() or []) == 1


# --------------------------------------------------------------------------------------------------------- T5: seeds


def test_t5_a_seed_makes_the_table_and_a_second_one_replaces_it(table: Table) -> None:
    assert standing(table) is None
    assert table.held() is None
    seeded(table)
    unchanged(table)
    flushed(table, FLUSH, CHANGES)
    other = (Column("id", "BIGINT"), Column("note", "VARCHAR"))
    rows: list[Row] = [{"id": 8, "note": "x"}, {"id": 9, "note": None}]
    destination = table.open()
    seed = replace(SEED, expected=20, through=30, token=2, columns=other)
    assert destination.seed(seed, plain(other, rows)) == Applied(30, removed=3, written=2)
    assert destination.columns() == other
    destination.close()
    assert content(table.held()) == content(rows)
    assert standing(table) == Standing(30, 2, "lake/orders")


def test_t5_an_empty_seed_is_a_table_without_rows(table: Table) -> None:
    destination = table.open()
    assert destination.seed(SEED, iter(())) == Applied(10)
    assert destination.columns() == ORDERS
    destination.close()
    assert table.held() == []
    inserts: list[Change] = [(Op.INSERT, row) for row in SEEDED]
    assert flushed(table, FLUSH, inserts) == Applied(20, written=3)


def test_t5_a_foreign_table_is_replaced_only_with_replace_existing(table: Table) -> None:
    table.make_foreign()
    before = table.trace()
    assert standing(table) is None
    with pytest.raises(DestinationHalted, match="replace_existing"):
        seeded(table)
    with pytest.raises(DestinationHalted, match="replace_existing"):
        flushed(table, replace(FLUSH, expected=0), CHANGES)
    assert table.trace() == before
    assert content(table.held()) == content([{"id": 99}])
    seeded(table, replace(SEED, replace_existing=True))
    unchanged(table)


def test_t5_a_seed_with_two_rows_of_one_key_is_refused(table: Table) -> None:
    with pytest.raises(DuplicateKey, match="id"):
        seeded(table, rows=[*SEEDED, SEEDED[1]])
    assert standing(table) is None
    assert table.held() is None


def test_t5_a_seed_that_comes_too_late_changes_nothing(table: Table) -> None:
    seeded(table)
    flushed(table, FLUSH, CHANGES)
    before = table.trace()
    destination = table.open()
    with pytest.raises(PositionMoved):
        destination.seed(SEED, plain(ORDERS, SEEDED))
    destination.close()
    assert table.trace() == before
    assert content(table.held()) == content(FLUSHED)


def test_t5_a_seed_repeated_by_the_same_deliverer_gives_the_same_state(table: Table) -> None:
    seeded(table)
    seeded(table)
    unchanged(table)


# ------------------------------------------------------------------------------------------------------- T6: columns


def test_t6_a_column_that_the_source_gained_is_added_within_the_flush(table: Table) -> None:
    seeded(table)
    wider = (Column("note", "VARCHAR"), *ORDERS)  # not at the end: columns go by name
    changes: list[Change] = [(Op.INSERT, {"id": 4, "tenant": "acme", "amount": 40, "note": "new"})]
    assert flushed(table, replace(FLUSH, columns=wider), changes) == Applied(20, written=1)
    assert content(table.held()) == content([{**row, "note": None} for row in SEEDED] + [changes[0][1]])


def test_t6_a_column_that_was_widened_is_widened_within_the_flush(table: Table, kind: Kind) -> None:
    seeded(table)
    wider = (*ORDERS[:2], Column("amount", "BIGINT"))
    changes: list[Change] = [(Op.INSERT, {"id": 4, "tenant": "acme", "amount": 2**40})]
    if not kind.widens:
        with pytest.raises(SchemaMismatch, match="amount"):
            flushed(table, replace(FLUSH, columns=wider), changes)
        return unchanged(table)
    assert flushed(table, replace(FLUSH, columns=wider), changes) == Applied(20, written=1)
    assert content(table.held()) == content([*SEEDED, changes[0][1]])
    destination = table.open()
    assert destination.columns() == wider
    return destination.close()


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ((*ORDERS[:2], Column("amount", "VARCHAR")), "amount"),
        ((*ORDERS[:2], Column("amount", "SMALLINT")), "amount"),
        (ORDERS[:2], "amount"),
        ((*ORDERS[:2], Column("sum", "INTEGER")), "amount"),
    ],
    ids=["another type", "narrower", "dropped", "renamed"],
)
def test_t6_any_other_difference_is_named_and_nothing_is_written(table: Table, columns: Columns, named: str) -> None:
    seeded(table)
    before = table.trace()
    with pytest.raises(SchemaMismatch, match=named):
        flushed(table, replace(FLUSH, columns=columns), [(Op.REMOVE, {"id": 1})])
    assert table.trace() == before
    unchanged(table)


def test_t6_columns_in_another_order_are_matched_by_name(table: Table) -> None:
    seeded(table)
    assert flushed(table, replace(FLUSH, columns=ORDERS[::-1]), CHANGES) == Applied(20, removed=2, written=2)
    assert content(table.held()) == content(FLUSHED)


# ---------------------------------------------------------------------------------------------- T7: what went wrong


def test_t7_a_destination_without_a_server_is_unreachable(table: Table) -> None:
    destination = table.lost().open()
    with pytest.raises(Unreachable):
        destination.standing()
    with pytest.raises(Unreachable):
        destination.flush(FLUSH, staged(ORDERS, ("id",), CHANGES))
    with pytest.raises(Unreachable):
        destination.seed(SEED, plain(ORDERS, SEEDED))
    destination.close()


# --------------------------------------------------------------------------------------------------- everything else


def test_a_kind_lacks_what_its_addresses_say(kind: Kind, site: Site) -> None:
    """The suite leaves out what is refused before a place is called, and nothing else."""
    abilities: tuple[Ability, ...] = ("history", "column_steps", "repairs")
    assert {each for each in abilities if lacks(site.address("orders"), each)} == kind.lacks - {"older_records"}


def test_addresses_of_one_site_are_of_one_place_and_survive_the_way_to_a_worker(site: Site, kind: Kind) -> None:
    one, two = site.address("orders"), site.address("items")
    assert kind.commits_alone or place_of(one) == place_of(two)
    assert identity(one) != identity(two)
    assert pickle.loads(pickle.dumps(one)) == one


def test_reading_writes_nothing(table: Table) -> None:
    seeded(table)
    before = table.trace()
    destination = table.open()
    for _ in range(3):
        assert destination.standing() == Standing(10, 1, "lake/orders")
        assert destination.columns() == ORDERS
        at, batches = destination.rows()
        assert at == Standing(10, 1, "lake/orders")
        assert content(row for batch in batches for row in batch.to_pylist()) == content(SEEDED)
    destination.close()
    assert table.trace() == before


def test_a_reserved_column_name_is_refused(table: Table) -> None:
    for name in (OP_COLUMN, "_trunkline_x", "_Trunkline"):
        columns = (*ORDERS, Column(name, "BIGINT"))
        with pytest.raises(ConfigError, match=name):
            seeded(table, replace(SEED, columns=columns), [])
    assert table.held() is None


def test_a_retired_table_keeps_its_rows_and_has_no_position(table: Table) -> None:
    seeded(table)
    destination = table.open()
    destination.retire()
    destination.retire()  # twice is as good as once
    assert destination.standing() is None
    destination.close()
    assert content(table.held()) == content(SEEDED)
    with pytest.raises(DestinationHalted, match="replace_existing"):
        seeded(table)
    seeded(table, replace(SEED, replace_existing=True))
    unchanged(table)
