"""Iceberg tables as destinations: versions, stale writers, lost answers, and what other readers find."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table as IcebergRead

from contract.iceberg_destination import (
    ACCESS_KEY_ENV,
    SECRET_KEY_ENV,
    WAREHOUSE,
    IcebergKind,
    IcebergSite,
    Warehouse,
    independent,
)
from delivery.lost_answers import LosingProxy
from object_server import object_server
from trunkline.cli.deliver_init import make_sample
from trunkline.delivery.changes.columns import Column
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.config import load_pipeline
from trunkline.delivery.config.addresses import IcebergAddress
from trunkline.delivery.destinations.contract import Standing
from trunkline.delivery.destinations.iceberg import IcebergPlace
from trunkline.destination_suite.place import Change, Table, content, plain, staged
from trunkline.destination_suite.steps import (
    CHANGES,
    FLUSH,
    FLUSHED,
    ORDERS,
    SEED,
    SEEDED,
    flushed,
    seeded,
    standing,
    steps,
)
from trunkline.errors import (
    ConfigError,
    DestinationHalted,
    Fenced,
    OutcomeUnknown,
    PositionMoved,
    SchemaMismatch,
    TrunklineError,
    Unreachable,
)

PROGRAM: Final = (sys.executable, "-m", "trunkline.cli.main", "deliver")
PATIENCE_S: Final = 240.0
NEXT: Final = replace(FLUSH, expected=20, through=30)
NOTHING: Final[list[Change]] = []


@pytest.fixture
def site(tmp_path: Path) -> IcebergSite:
    return IcebergKind().make(tmp_path, lambda: None)


@pytest.fixture
def table(site: IcebergSite) -> Table:
    return Table(site)


def read(site: IcebergSite, name: str = "orders") -> IcebergRead:
    """As another program finds it."""
    warehouse = site.warehouse
    catalog = RestCatalog(
        "independent",
        uri=warehouse.catalog,
        warehouse=WAREHOUSE,
        **{"oauth2-server-uri": f"{warehouse.catalog}/v1/oauth/tokens"},
        credential=f"{warehouse.access_key}:{warehouse.secret_key}",
        **{
            "s3.endpoint": warehouse.endpoint,
            "s3.access-key-id": warehouse.access_key,
            "s3.secret-access-key": warehouse.secret_key,
            "s3.region": "us-east-1",
        },
    )
    found: IcebergRead = catalog.load_table((site.schema, name))
    return found


def version(site: IcebergSite) -> int:
    """The number of the newest version of the metadata."""
    name = read(site).metadata_location.rpartition("/")[2]
    return int(name.removeprefix("v").partition(".")[0])


def meanwhile(table: Table, at: str, do: Callable[[], object]) -> Any:
    """A driver of the table. ``do`` happens once, just before the first statement that begins with ``at``."""
    waiting = [do]

    def watch(statement: str) -> None:
        if statement.startswith(at) and waiting:
            waiting.pop()()

    return table.open(watch)


# ------------------------------------------------------------------------------------------------------ one version


def test_rows_position_and_token_are_one_version_of_the_metadata(table: Table, site: IcebergSite) -> None:
    seeded(table)
    assert version(site) == 1
    flushed(table, FLUSH, CHANGES)  # removes, replaces and inserts
    assert version(site) == 2
    found = read(site)
    assert found.properties["trunkline.position"] == "20"
    assert content(found.scan().to_arrow().to_pylist()) == content(FLUSHED)


def test_a_flush_without_rows_has_a_snapshot_of_its_own_and_the_same_rows(table: Table, site: IcebergSite) -> None:
    seeded(table)
    before = read(site).metadata.current_snapshot_id
    flushed(table, FLUSH, NOTHING)
    found = read(site)
    assert version(site) == 2
    assert found.metadata.current_snapshot_id != before
    assert content(found.scan().to_arrow().to_pylist()) == content(SEEDED)


def test_a_row_of_nulls_outlives_a_flush_without_rows(table: Table) -> None:
    nulls: list[Any] = [{"id": None, "tenant": None, "amount": None}] * 2
    append = replace(SEED, mode="append", key=())
    seeded(table, append, nulls)
    flushed(table, replace(FLUSH, mode="append", key=()), NOTHING)
    assert content(table.held()) == content(nulls)


# ---------------------------------------------------------------------------------------------------- stale writers


def test_a_stale_writer_is_refused_by_the_catalog_and_nothing_of_it_is_visible(table: Table) -> None:
    seeded(table)
    other: list[Change] = [(Op.INSERT, {"id": 7, "tenant": "other", "amount": 7})]
    newer = replace(FLUSH, through=15, token=2)
    with closing(meanwhile(table, "COMMIT", lambda: flushed(table, newer, other))) as stale, pytest.raises(Fenced):
        stale.flush(FLUSH, staged(FLUSH.columns, FLUSH.key, CHANGES))
    assert content(table.held()) == content([*SEEDED, other[0][1]])
    assert standing(table) == Standing(15, 2, "lake/orders")


@pytest.mark.parametrize("changes", [CHANGES, NOTHING], ids=["rows", "no rows"])
def test_a_writer_that_is_stale_by_a_commit_without_rows_is_refused_too(table: Table, changes: list[Change]) -> None:
    """The catalog alone would take it: a commit of properties leaves the snapshot as it is."""
    seeded(table)
    moved = replace(FLUSH, through=15)
    begun = closing(meanwhile(table, "COMMIT", lambda: flushed(table, moved, NOTHING)))
    with begun as stale, pytest.raises(PositionMoved) as refused:
        stale.flush(FLUSH, staged(FLUSH.columns, FLUSH.key, changes))
    assert refused.value.position == 15
    assert content(table.held()) == content(SEEDED)
    assert standing(table) == Standing(15, 1, "lake/orders")


def test_a_writer_that_begins_with_a_table_which_another_created_meanwhile_is_refused(table: Table) -> None:
    begun = closing(meanwhile(table, "COMMIT", lambda: seeded(table, replace(SEED, token=2))))
    with begun as late, pytest.raises(TrunklineError) as refused:
        late.seed(SEED, plain(ORDERS, SEEDED[:1]))
    assert isinstance(refused.value, Fenced | PositionMoved)
    assert content(table.held()) == content(SEEDED)


def test_a_flush_whose_table_another_program_rewrote_meanwhile_begins_again(table: Table, site: IcebergSite) -> None:
    seeded(table)
    rewrite = f"UPDATE {site.path('orders')} SET amount = amount WHERE id = 1"
    with closing(meanwhile(table, "COMMIT", lambda: site.run(rewrite))) as driver:
        driver.flush(FLUSH, staged(FLUSH.columns, FLUSH.key, CHANGES))
    assert content(table.held()) == content(FLUSHED)


# ----------------------------------------------------------------------------------------------------- lost answers


@pytest.fixture
def proxy(site: IcebergSite) -> Iterator[LosingProxy]:
    with LosingProxy(site.warehouse.catalog) as running:
        yield running


def through(site: IcebergSite, proxy: LosingProxy) -> Table:
    return Table(replace(site, warehouse=replace(site.warehouse, catalog=proxy.url)))


def test_a_commit_whose_answer_is_lost_is_found_to_be_done_and_its_files_stay(
    table: Table, site: IcebergSite, proxy: LosingProxy
) -> None:
    """DuckDB alone would remove them, although the table names them."""
    proxy.fault = "after"
    seeded(through(site, proxy))
    assert content(table.held()) == content(SEEDED)
    assert not flushed(through(site, proxy), FLUSH, CHANGES).already
    assert proxy.lost == 2
    assert content(table.held()) == content(FLUSHED)
    assert standing(table) == Standing(20, 1, "lake/orders")


def test_a_commit_that_never_arrives_has_an_unknown_outcome_and_can_be_repeated(
    table: Table, site: IcebergSite, proxy: LosingProxy
) -> None:
    seeded(table)
    proxy.fault = "before"
    with pytest.raises(OutcomeUnknown, match="position is read again"):
        flushed(through(site, proxy), FLUSH, CHANGES)
    assert content(table.held()) == content(SEEDED)
    proxy.fault = "none"
    assert not flushed(through(site, proxy), FLUSH, CHANGES).already
    assert content(table.held()) == content(FLUSHED)


def test_each_commit_names_the_snapshot_that_it_was_made_for(site: IcebergSite, proxy: LosingProxy) -> None:
    watched = through(site, proxy)
    seeded(watched)
    flushed(watched, FLUSH, CHANGES)
    flushed(watched, NEXT, NOTHING)
    with closing(watched.open()) as driver:
        driver.retire()
    assert len(proxy.commits) >= 4
    for body in proxy.commits:
        asked = json.loads(body)
        if asked.get("stage-create"):
            continue
        for change in asked.get("table-changes", [asked]):
            kinds = {each["type"] for each in change["requirements"]}
            assert kinds & {"assert-ref-snapshot-id", "assert-create"}, change


# ------------------------------------------------------------------------------------------------- the server's death


def test_the_server_dies_in_the_middle_of_a_flush_which_succeeds_after_it_is_back() -> None:
    with object_server(buckets=(), tables=WAREHOUSE) as server:
        site = IcebergSite(Warehouse.of(server), "site")
        table = Table(site)
        seeded(table)
        for at in ("DELETE", "INSERT", "COMMIT"):
            begun = closing(meanwhile(table, at, server.kill))
            with begun as driver, pytest.raises((Unreachable, OutcomeUnknown)):
                driver.flush(FLUSH, staged(FLUSH.columns, FLUSH.key, CHANGES))
            server.restart()
            independent.cache_clear()
            assert content(table.held()) == content(SEEDED)
            assert standing(table) == Standing(10, 1, "lake/orders")
        flushed(table, FLUSH, CHANGES)
        assert content(table.held()) == content(FLUSHED)
    independent.cache_clear()


# ------------------------------------------------------------------------------------------------------ other readers

EVERY: Final[dict[str, Any]] = {
    "BOOLEAN": True,
    "TINYINT": -1,
    "SMALLINT": -300,
    "INTEGER": -70_000,
    "BIGINT": -(2**62),
    "UBIGINT": decimal.Decimal(2**64 - 1),
    "DOUBLE": 0.1,
    "VARCHAR": "it's é",
    "JSON": '{"a": 1}',
    "BLOB": b"\x00\xff",
    "DATE": datetime.date(1969, 12, 31),
    "TIME": datetime.time(1, 2, 3, 4),
    "TIMESTAMP": datetime.datetime(2024, 2, 29, 1, 2, 3, 4),  # noqa: DTZ001
    "TIMESTAMP WITH TIME ZONE": datetime.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=datetime.UTC),
    "DECIMAL(38,10)": decimal.Decimal("-1234567890123456789012345678.0123456789"),
    "VARCHAR[]": ["a", None, ""],
}


def test_pyiceberg_reads_a_value_of_every_type(table: Table, site: IcebergSite) -> None:
    columns = (Column("id", "BIGINT"), *(Column(f"c{at}", kind) for at, kind in enumerate(EVERY)))
    row = {"id": 1} | {f"c{at}": value for at, value in enumerate(EVERY.values())}
    plan = replace(SEED, columns=columns)
    sent = row | {f"c{at}": int(value) for at, (kind, value) in enumerate(EVERY.items()) if kind == "UBIGINT"}
    seeded(table, plan, [sent, {"id": 2}])
    later = replace(FLUSH, columns=columns)
    flushed(table, later, [(Op.REPLACE, {**sent, "id": 2}), (Op.INSERT, {"id": 3})])
    found = read(site).scan().to_arrow().to_pylist()
    assert content(found) == content([row, {**row, "id": 2}, {"id": 3} | dict.fromkeys(list(row)[1:])])


def test_pyiceberg_reads_renamed_added_and_widened_columns(table: Table, site: IcebergSite) -> None:
    seeded(table)
    after: dict[Column, str | None] = {
        Column("id", "BIGINT"): "id",
        Column("who", "VARCHAR"): "tenant",
        Column("amount", "BIGINT"): "amount",
        Column("note", "VARCHAR"): None,
    }
    moved = steps(ORDERS, after, {"note": "old"})
    flush = replace(FLUSH, columns=tuple(after), steps=moved)
    added = {"id": 9, "who": "new", "amount": 2**40, "note": None}
    flushed(table, flush, [(Op.INSERT, added), (Op.REMOVE, {"id": 1})])
    kept = [{"id": row["id"], "who": row["tenant"], "amount": row["amount"], "note": "old"} for row in SEEDED[1:]]
    assert content(read(site).scan().to_arrow().to_pylist()) == content([*kept, added])


# ----------------------------------------------------------------------------------------------- what cannot be done


def test_a_column_of_lists_that_the_source_gained_is_refused_with_the_remedy(table: Table) -> None:
    seeded(table)
    gained = replace(FLUSH, columns=(*ORDERS, Column("tags", "VARCHAR[]")))
    with pytest.raises(SchemaMismatch, match=r"'tags'.*adds no lists.*drop the table, and reseed"):
        flushed(table, gained, CHANGES)
    assert content(table.held()) == content(SEEDED)
    assert standing(table) == Standing(10, 1, "lake/orders")


def test_nanoseconds_are_refused_before_anything_is_written(table: Table) -> None:
    with pytest.raises(SchemaMismatch, match=r"TIMESTAMP_NS.*cast it to TIMESTAMP"):
        seeded(table, replace(SEED, columns=(*ORDERS, Column("at", "TIMESTAMP_NS"))), [])
    assert table.held() is None


def test_a_wrong_secret_is_not_shown(site: IcebergSite, monkeypatch: pytest.MonkeyPatch) -> None:
    address = replace(site.address("orders"), client_secret_env="WRONG_SECRET")
    monkeypatch.setenv("WRONG_SECRET", "not-to-be-shown")
    with pytest.raises((Unreachable, DestinationHalted)) as refused:
        IcebergPlace().columns(address)
    assert "not-to-be-shown" not in str(refused.value)
    monkeypatch.delenv("WRONG_SECRET")
    with pytest.raises(ConfigError, match="WRONG_SECRET"):
        IcebergPlace().columns(replace(address, schema="other"))


# -------------------------------------------------------------------------------------------------------- a pipeline


def pipeline(address: IcebergAddress, mode: str) -> str:
    keys = "\n".join(
        f"  {key}: {value}"
        for key, value in {
            "type": "iceberg",
            "catalog": address.catalog,
            "warehouse": address.warehouse,
            "schema": address.schema,
            "table": '"orders_{value}"',
            "client_id_env": address.client_id_env,
            "client_secret_env": address.client_secret_env,
            "endpoint": address.endpoint,
            "access_key_env": address.access_key_env,
            "secret_key_env": address.secret_key_env,
            "mode": mode,
        }.items()
    )
    return (
        "pipeline: orders\nsource: {type: ducklake, catalog: source.ducklake, data_path: source, table: orders}\n"
        "routing: {column: tenant}\nkey: [id]\ncontrol: {store: 'sqlite:control.db'}\n"
        f"defaults:\n{keys}\n"
        "destinations:\n  - {name: one, values: [tenant-01]}\n  - {name: two, values: [tenant-02]}\n"
    )


@pytest.mark.parametrize("mode", ["mirror", "history"])
def test_a_pipeline_delivers_and_verifies(tmp_path: Path, site: IcebergSite, mode: str) -> None:
    (tmp_path / "orders.yaml").write_text(pipeline(site.address("orders"), mode))
    make_sample(load_pipeline(tmp_path / "orders.yaml", None))
    for action in (["validate", "orders.yaml"], ["run", "orders.yaml", "--once"], ["verify", "orders.yaml"]):
        done = subprocess.run(
            [*PROGRAM, *action], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, env=dict(os.environ)
        )
        assert done.returncode == 0, (action, done.stdout, done.stderr)
    assert {ACCESS_KEY_ENV, SECRET_KEY_ENV} <= set(os.environ)
    found = read(site, "orders_tenant-01").scan().to_arrow()
    assert len(found)
    assert set(found.column("tenant").to_pylist()) == {"tenant-01"}
