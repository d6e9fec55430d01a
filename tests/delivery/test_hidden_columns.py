"""A column that a pipeline hides stays hidden, whatever becomes of its name and however a table is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from delivery.lake_shop import CUSTOMERS, Shop
from delivery.set_source import SetSource, memory_table
from delivery.task_pipelines import NAME, opened_rows, task_pipeline_of
from trunkline.delivery.changes.shape import Mask
from trunkline.delivery.config.addresses import DeltaAddress
from trunkline.delivery.config.tree import (
    ColumnsConfig,
    TableConfig,
)
from trunkline.delivery.control.seen_columns import SeenTable
from trunkline.delivery.control.store import ControlStore, open_control_store
from trunkline.delivery.deliverer.assembly import pipeline_source, task_pipeline
from trunkline.delivery.deliverer.hidden_columns import HiddenColumns
from trunkline.delivery.job.table_works import known_tables
from trunkline.delivery.sources.contract import SourceTable
from trunkline.delivery.verification.repair import repair_together
from trunkline.delivery.verification.verify import verify_together
from trunkline.errors import ConfigError

NULL = Mask("null")
RENAME = "ALTER TABLE lake.customers RENAME COLUMN email TO mail"
SAID = r"table main\.customers had the column 'email'"


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture(params=["mask", "exclude"])
def hiding(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"mask": {"email": NULL}} if request.param == "mask" else {"columns": ColumnsConfig(exclude=("email",))}


def test_a_seed_after_a_rename_of_a_hidden_column_halts_until_the_file_answers(
    shop: Shop, hiding: dict[str, Any]
) -> None:
    pipeline = shop.pipeline(**hiding)
    assert shop.run(pipeline) == ""
    shop.lake.run(RENAME, "INSERT INTO lake.customers VALUES (2, 'acme', 'bob@example.org')")
    assert "'email'" in shop.run(pipeline)
    assert "table main.customers had the column 'email'" in shop.run(pipeline, reseed=True)
    assert "tables[0]" in shop.run(shop.pipeline("acme", "new", **hiding)), "and a new destination does not show it"
    assert "example.org" not in shop.held(pipeline)
    other = shop.pipeline("acme", **hiding, computed={"one": "1 + id"})
    assert "'email'" in shop.run(other), "a change elsewhere in the file does not count"
    if "mask" in hiding:
        answered = shop.pipeline(mask={"email": NULL, "mail": NULL})
    else:
        answered = shop.pipeline(columns=ColumnsConfig(exclude=("email", "mail")))
    assert shop.run(answered) == ""
    held = shop.held(answered)
    assert ("'id': 2" in held, "example.org" in held) == (True, False)


@pytest.mark.parametrize("way", ["joins again", "is replaced"])
def test_a_table_that_comes_back_with_another_name_of_a_hidden_column_halts(shop: Shop, way: str) -> None:
    pipeline = shop.pipeline(mask={"email": NULL}, dropped_tables="drop")
    assert shop.run(pipeline) == ""
    shop.lake.run("DROP TABLE lake.customers")
    if way == "joins again":
        assert shop.run(pipeline) == ""
    shop.lake.run(
        CUSTOMERS.format("customers").replace("email", "mail"),
        "INSERT INTO lake.customers VALUES (3, 'acme', 'eve@example.org')",
    )
    assert "column 'email'" in shop.run(pipeline)
    assert "column 'email'" in shop.run(pipeline, reseed=True)


def test_a_column_that_an_entry_hides_must_be_there_for_a_seed_too(shop: Shop) -> None:
    entries = (TableConfig(table="main.customers", mask={"email": NULL}), TableConfig(table="main.*"))
    pipeline = shop.pipeline(tables=entries)
    assert shop.run(pipeline) == ""
    shop.lake.run(RENAME)
    assert "'email'" in shop.run(pipeline)
    assert "table main.customers has no column 'email', which the entry names" in shop.run(pipeline, reseed=True)


def test_tables_that_never_had_the_column_join_and_are_seeded(shop: Shop) -> None:
    pipeline = shop.pipeline(mask={"email": NULL, "phone": NULL})
    assert shop.run(pipeline) == ""
    shop.lake.run(
        "CREATE TABLE lake.items (id BIGINT, tenant VARCHAR)", "ALTER TABLE lake.orders ADD COLUMN phone VARCHAR"
    )
    assert shop.run(pipeline) == ""
    assert shop.run(pipeline, reseed=True) == ""


RENAMED = "ALTER TABLE lake.customers RENAME TO clients"
HIDING_ENTRIES: dict[str, dict[str, Any]] = {
    "mask": {"mask": {"email": NULL}},
    "exclude": {"columns": ColumnsConfig(exclude=("email",))},
    "include": {"columns": ColumnsConfig(include=("id", "tenant"))},
    "filter": {"filter": "id > 1"},
}


@pytest.mark.parametrize("by", HIDING_ENTRIES)
def test_a_renamed_table_that_leaves_the_entry_which_hides_something_halts_until_the_file_answers(
    shop: Shop, by: str
) -> None:
    hiding, rest = HIDING_ENTRIES[by], TableConfig(table="main.*", line=9)
    pipeline = shop.pipeline(tables=(TableConfig(table="main.cust*", line=7, **hiding), rest))
    assert shop.run(pipeline) == ""
    shop.lake.run(RENAMED, "INSERT INTO lake.clients VALUES (2, 'acme', 'bob@example.org')")
    for reseed in (False, True):
        said = shop.run(pipeline, reseed=reseed)
        assert "tables[1] (line 9): table main.clients was main.customers" in said
        assert "tables[0] (line 7)" in said
        assert ("filter" if by == "filter" else "'email'") in said
    assert "main.customers" in shop.run(shop.pipeline("acme", "new", tables=pipeline.tables)), "also for a new one"
    clients = TableConfig(table="main.clients", **(hiding if by == "mask" else {}))
    assert shop.run(shop.pipeline(tables=(clients, *pipeline.tables))) == ""


def test_what_verify_and_repair_read_is_of_the_position_and_hidden(shop: Shop) -> None:
    pipeline = shop.pipeline(mask={"email": NULL})
    assert shop.run(pipeline) == ""
    shop.lake.run(RENAME)
    shop.run(pipeline)
    work = task_pipeline(pipeline, pipeline_source(pipeline), pipeline.destinations)
    assert "main.customers" in known_tables(work)
    [verdict] = verify_together(work, ["acme"], {"acme": "scan"})
    assert verdict.outcome == "equal", verdict
    [repaired] = repair_together(work, {"acme": 99}, {"acme": "scan"})
    assert repaired.outcome == "equal", repaired
    assert "example.org" not in shop.held(pipeline)


# ----------------------------------------------------------------------------------------------------------- the record

BEFORE, AFTER = "id BIGINT, tenant VARCHAR, email VARCHAR", "id BIGINT, tenant VARCHAR, mail VARCHAR"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ControlStore]:
    with closing(open_control_store(f"sqlite:{tmp_path}/control.db")) as opened:
        yield opened


def guard(source: SetSource, store: ControlStore, *hidden: str) -> HiddenColumns:
    work = task_pipeline_of(source, (), tables=["*.*"], mask=dict.fromkeys(hidden or ("email",), NULL))
    assert work.rules is not None
    return HiddenColumns(work.rules, source, store.seen_columns)


def test_the_record_outlives_the_process_and_is_shared(store: ControlStore) -> None:
    source = SetSource(customers=memory_table(BEFORE))
    guard(source, store).check(source.tables(1), 1)
    source.commit(customers=memory_table(AFTER))
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"public\.customers had the column 'email'"):
            guard(source, store).check(source.tables(2), 2)
    with pytest.raises(ConfigError, match="email"):
        guard(source, store, "email", "tenant").check(source.tables(2), 2)
    guard(source, store, "email", "mail").check(source.tables(2), 2)
    guard(source, store, "email", "mail").check(source.tables(2), 2)
    guard(source, store, "tenant").check(source.tables(2), 2)


def test_a_destination_that_is_behind_does_not_halt_for_columns_that_come_later(store: ControlStore) -> None:
    source = SetSource(customers=memory_table("id BIGINT, tenant VARCHAR"))
    source.commit(customers=memory_table(BEFORE))
    ahead, behind = guard(source, store), guard(source, store)
    ahead.check(source.tables(2), 2)
    behind.check(source.tables(1), 1)
    behind.check(source.tables(2), 2)
    source.commit(customers=memory_table(AFTER))
    for each in (ahead, behind):
        with pytest.raises(ConfigError, match="email"):
            each.check(source.tables(3), 3)


def test_a_source_that_was_restored_from_a_backup_is_compared_all_the_same(store: ControlStore) -> None:
    source = SetSource(customers=memory_table(BEFORE))
    for _ in range(3):
        source.commit()
    guard(source, store).check(source.tables(4), 4)
    source.states[1:] = []
    source.commit(customers=memory_table(AFTER))
    with pytest.raises(ConfigError, match="email"):
        guard(source, store).check(source.tables(2), 2)


def test_the_columns_before_the_first_window_are_recorded_by_a_program_that_has_no_record(store: ControlStore) -> None:
    source = SetSource(customers=memory_table(BEFORE))
    source.commit(customers=memory_table(AFTER))
    guard(source, store).begin(1)
    with pytest.raises(ConfigError, match="email"):
        guard(source, store).check(source.tables(2), 2)
    known = guard(source, store)
    known.begin(2)
    with pytest.raises(ConfigError, match="email"):
        known.check(source.tables(2), 2)


def test_a_pipeline_that_hides_nothing_records_nothing(store: ControlStore) -> None:
    source = SetSource(customers=memory_table(BEFORE))
    work = task_pipeline_of(source, (), tables=["*.*"])
    assert work.rules is not None
    quiet = HiddenColumns(work.rules, source, store.seen_columns)
    quiet.check(source.tables(1), 1)
    assert store.seen_columns.read(work.name) == {}


# ------------------------------------------------------------------------------------------------------- renamed tables


def two_entries(source: SetSource, store: ControlStore, *tables: TableConfig) -> HiddenColumns:
    work = task_pipeline_of(source, (), tables=["*.*"])
    assert work.rules is not None
    return HiddenColumns(replace(work.rules, tables=tables), source, store.seen_columns)


MASKED = TableConfig(table="public.customers", mask={"email": NULL}, line=1)
ANY = TableConfig(table="public.*", line=2)


def test_a_table_is_known_by_its_identity_and_one_with_another_joins(store: ControlStore) -> None:
    source = SetSource(customers=memory_table(BEFORE))
    two_entries(source, store, MASKED, ANY).check(source.tables(1), 1)
    source.commit(customers=None, archive=memory_table(BEFORE, identity="2"))
    two_entries(source, store, MASKED, ANY).check(source.tables(2), 2)
    source.commit(archive=None, clients=memory_table(BEFORE))
    with pytest.raises(ConfigError, match=r"table public\.clients was public\.customers.*line 1.*'email'"):
        two_entries(source, store, MASKED, ANY).check(source.tables(3), 3)


def test_tables_that_exchange_their_names_keep_what_hides_them(store: ControlStore) -> None:
    first, second = memory_table(BEFORE), memory_table(BEFORE, identity="2")
    other = TableConfig(table="public.clients", line=3)
    source = SetSource(customers=first, clients=second)
    two_entries(source, store, MASKED, other).check(source.tables(1), 1)
    source.commit(customers=second, clients=first)
    with pytest.raises(ConfigError, match=r"line 3.*table public\.clients was public\.customers"):
        two_entries(source, store, MASKED, other).check(source.tables(2), 2)
    both = (MASKED, replace(other, mask={"email": NULL}))
    two_entries(source, store, *both).check(source.tables(2), 2)


def test_a_table_that_has_its_first_name_again_and_one_that_was_answered_go_on(store: ControlStore) -> None:
    source = SetSource(customers=memory_table(BEFORE))
    two_entries(source, store, MASKED, ANY).check(source.tables(1), 1)
    source.commit(customers=None, clients=memory_table(BEFORE))
    with pytest.raises(ConfigError):
        two_entries(source, store, MASKED, ANY).check(source.tables(2), 2)
    source.commit(clients=None, customers=memory_table(BEFORE))
    two_entries(source, store, MASKED, ANY).check(source.tables(3), 3)
    source.commit(customers=None, clients=memory_table(BEFORE))
    two_entries(source, store, MASKED, TableConfig(table="public.clients"), ANY).check(source.tables(4), 4)
    two_entries(source, store, MASKED, ANY).check(source.tables(4), 4)


def test_a_record_of_before_identities_were_recorded_gets_them_at_the_first_window(store: ControlStore) -> None:
    source = SetSource(customers=memory_table(BEFORE))
    source.commit(customers=None, clients=memory_table(BEFORE))
    guarded = two_entries(source, store, MASKED, ANY)
    store.seen_columns.write(NAME, {"public.customers": SeenTable(1, ("id", "tenant", "email"))})
    guarded.begin(1)
    with pytest.raises(ConfigError, match=r"was public\.customers"):
        guarded.check(source.tables(2), 2)


# ------------------------------------------------------------------------------------------- names that are taken again

TAKEN_AGAIN = (
    "BEGIN; ALTER TABLE lake.customers RENAME COLUMN email TO mail; "
    "ALTER TABLE lake.customers ADD COLUMN email VARCHAR; "
    "INSERT INTO lake.customers VALUES (2, 'acme', 'bob@example.org', NULL); COMMIT"
)


@pytest.mark.parametrize("reseed", [False, True])
def test_a_hidden_column_under_another_name_stays_hidden_though_a_new_one_has_its_name(
    shop: Shop, hiding: dict[str, Any], reseed: bool
) -> None:
    pipeline = shop.pipeline(**hiding)
    assert shop.run(pipeline) == ""
    shop.lake.run(TAKEN_AGAIN)
    said = shop.run(pipeline, reseed=reseed)
    assert "table main.customers has the column 'email'" in said
    assert "under the name 'mail' now" in said
    assert "example.org" not in shop.held(pipeline)
    if "mask" in hiding:
        answered = shop.pipeline(mask={"email": NULL, "mail": NULL})
    else:
        answered = shop.pipeline(columns=ColumnsConfig(exclude=("email", "mail")))
    assert shop.run(answered) == ""
    assert "example.org" not in shop.held(answered)


def test_a_pipeline_of_one_table_keeps_such_a_column_hidden_too(shop: Shop) -> None:
    one = replace(shop.pipeline(mask={"email": NULL}, tables=()), source=replace(shop.lake.address, table="customers"))
    one = replace(one, destinations=(replace(one.destinations[0], address=DeltaAddress(str(shop.folder / "one"))),))
    assert shop.run(one) == ""
    shop.lake.run(TAKEN_AGAIN)
    assert "the source's table has the column 'email'" in shop.run(one)
    with opened_rows(one.destinations[0].address) as (_, batches):
        assert "example.org" not in str([batch.to_pylist() for batch in batches])


def numbered(source: SetSource, version: int, *numbers: int) -> list[SourceTable]:
    return [replace(table, numbers=numbers) for table in source.tables(version)]


def test_columns_that_are_numbered_again_or_named_are_no_reason_to_halt(store: ControlStore) -> None:
    source = SetSource(customers=memory_table("id BIGINT, email VARCHAR, phone VARCHAR"))
    guard(source, store).check(numbered(source, 1, 1, 3, 4), 1)
    source.commit(customers=memory_table("id BIGINT, email VARCHAR, phone VARCHAR"))
    guard(source, store).check(numbered(source, 2, 1, 2, 3), 2)  # the database was restored from a dump
    source.commit(customers=memory_table("id BIGINT, phone VARCHAR, email VARCHAR"))
    with pytest.raises(ConfigError, match=r"'email'.*under the name 'phone' now"):
        guard(source, store).check(numbered(source, 3, 1, 2, 3), 3)  # they exchanged their names
    guard(source, store, "email", "phone").check(numbered(source, 3, 1, 2, 3), 3)


def test_a_record_without_numbers_gets_them_at_the_first_window(store: ControlStore) -> None:
    source = SetSource(customers=memory_table(BEFORE))
    (table,) = source.tables(1)
    store.seen_columns.write(NAME, {table.name: SeenTable(1, ("id", "tenant", "email"), table.identity)})
    watch = guard(source, store)
    watch._source = NumberedSource(source)  # type: ignore[assignment]
    watch.begin(1)
    assert store.seen_columns.read(NAME)[table.name].numbers == (1, 2, 3)


class NumberedSource:
    def __init__(self, source: SetSource) -> None:
        self._source = source

    def tables(self, version: int) -> list[SourceTable]:
        return numbered(self._source, version, 1, 2, 3)
