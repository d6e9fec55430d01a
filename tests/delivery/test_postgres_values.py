"""Values in PostgreSQL: each comes back as it went in, or is refused by its column."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from msgspec.structs import replace

from contract.postgres_destination import PostgresKind
from postgres_server import PostgresServer
from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.rows import OP_COLUMN, Op
from trunkline.delivery.destinations.contract import Standing
from trunkline.destination_suite.place import Change, OneTable, Plan, Row, Table, plain, staged
from trunkline.errors import DestinationHalted, SchemaMismatch

ORDERS: Final[Columns] = (Column("id", "BIGINT"), Column("note", "VARCHAR"))
SEED: Final = Plan(through=10, token=1, source="lake/orders", columns=ORDERS, key=("id",), seeds=True)
FLUSH: Final = Plan(expected=10, through=20, token=1, source="lake/orders", columns=ORDERS, key=("id",))
SEEDED: Final[list[Row]] = [{"id": 1, "note": "old"}]


@pytest.fixture
def table(postgres: PostgresServer, tmp_path: Path) -> Table:
    return Table(PostgresKind().make(tmp_path, lambda: postgres))


@pytest.fixture
def destination(table: Table) -> Iterator[OneTable]:
    opened = table.open()
    yield opened
    opened.close()


EXTREMES: Final[dict[str, list[str]]] = {
    "DOUBLE": ["'nan'", "'infinity'", "'-infinity'", "-0.0", "5e-324", "1.7976931348623157e308", "0.1"],
    "FLOAT": ["'nan'", "'infinity'", "1.1754944e-38", "0.1", "16777216"],
    "DATE": ["'infinity'", "'-infinity'", "'0001-01-01 (BC)'", "'4713-01-01 (BC)'", "'9999-12-31'", "'99999-01-01'"],
    "TIME": ["'00:00:00'", "'24:00:00'", "'23:59:59.999999'"],
    "TIMESTAMP": ["'infinity'", "'-infinity'", "'0001-01-01 (BC) 00:00:00.000001'", "'1969-12-31 23:59:59.999999'"],
    "TIMESTAMP WITH TIME ZONE": ["'infinity'", "'-infinity'", "'0044-03-15 (BC) 12:00:00'", "'2026-03-29 02:30:00+01'"],
    "TIMESTAMP_S": ["'infinity'", "'1969-12-31 23:59:59'"],
    "TIMESTAMP_MS": ["'-infinity'", "'2026-01-01 00:00:00.001'"],
    "TIMESTAMP_NS": ["'infinity'", "'2026-01-01 00:00:00.000001'", "'1700-01-01'"],
    "DECIMAL(38,10)": ["'-9999999999999999999999999999.9999999999'", "'0.0000000001'", "'10000'"],
    "DECIMAL(4,4)": ["'0.0001'", "'-0.9999'"],
    "UBIGINT": ["18446744073709551615", "0"],
    "TINYINT": ["-128", "127"],
    "VARCHAR": ["''", "'\\N'", "'\"'", "'a,b'", "e'\\r\\n'", "'\\.'", "'NULL'", "'𝄞'", "repeat('x', 2000000)"],
    "JSON": ['\'{"b": 1,  "a": null}\'', "'\"\"'", "'null'"],
    "BLOB": ["''", "'\\x00\\xFF'", "'\\x5Cx00'"],
    "UUID": ["'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"],
    "DOUBLE[]": ["[]", "[NULL]", "['nan', 'infinity', '0.1']"],
    "VARCHAR[]": ["['', NULL, '\"', '{}', 'NULL', e'\\\\']"],
    "TIMESTAMP[]": ["['infinity', '2026-01-01', NULL]"],
    "BLOB[]": ["['\\x00'::BLOB, ''::BLOB]"],
    "BOOLEAN[]": ["[true, false, NULL]"],
    "UTINYINT[]": ["[255, 0]"],
    "UUID[]": ["['ffffffff-ffff-ffff-ffff-ffffffffffff']"],
    "DATE[]": ["['infinity', '0044-03-15 (BC)']"],
}


def _texts(values: list[Any]) -> list[Any]:
    return [_texts(each) if isinstance(each, list) else None if each is None else str(each) for each in values]


@pytest.mark.parametrize("how", ["seed", "flush"])
@pytest.mark.parametrize("type_name", EXTREMES)
def test_extreme_values_come_back_as_they_went_in(destination: OneTable, type_name: str, how: str) -> None:
    columns = (Column("id", "BIGINT"), Column("v", type_name))
    duck = new_duckdb()
    rows = " UNION ALL ".join(
        f"SELECT {n}::BIGINT AS id, ({value})::{type_name} AS v"
        for n, value in enumerate([*EXTREMES[type_name], "NULL"])
    )
    sent = duck.sql(f"{rows} ORDER BY id").to_arrow_table()
    if type_name.startswith(("UUID", "JSON")):  # they travel as text
        sent = sent.set_column(1, "v", pa.array(_texts(sent["v"].to_pylist()), arrow_schema(columns).field("v").type))
    sent = sent.cast(arrow_schema(columns))
    seed, flush = replace(SEED, columns=columns), replace(FLUSH, columns=columns)
    destination.seed(seed, sent.to_batches() if how == "seed" else [])
    if how == "flush":  # most types go another way than that of a seed
        inserts = sent.add_column(0, OP_COLUMN, pa.array([int(Op.INSERT)] * len(sent), pa.int8()))
        assert destination.flush(flush, inserts.to_batches()).written == len(sent)
    _, batches = destination.rows()
    read = pa.Table.from_batches(list(batches)).sort_by("id")
    assert read.schema == sent.schema
    texts = "SELECT id, v::VARCHAR FROM {} ORDER BY id"  # Python has no infinite dates, and NaN does not equal itself
    assert duck.sql(texts.format("read")).fetchall() == duck.sql(texts.format("sent")).fetchall()


@pytest.mark.parametrize(
    ("type_name", "value", "why"),
    [
        ("VARCHAR", "a\0b", "NUL"),
        ("TIMESTAMP_NS", 1_700_000_000_000_000_001, "nanoseconds"),
        ("UUID", "no uuid", "no uuid"),
        ("JSON", "{", "json"),
        ("TIMESTAMP", -250_000_000_000_000_000, "out of range"),
    ],
)
def test_a_value_that_cannot_be_held_is_refused_by_its_column(
    table: Table, destination: OneTable, type_name: str, value: object, why: str
) -> None:
    columns = (*ORDERS, Column("odd one", type_name))
    destination.seed(SEED, plain(ORDERS, SEEDED))
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([2], pa.int8()),
            pa.array([9], pa.int64()),
            pa.array(["fine"]),
            pa.array([value], arrow_schema(columns).field(2).type),
        ],
        ["_trunkline_op", "id", "note", "odd one"],
    )
    with pytest.raises(DestinationHalted, match=f"(?=.*odd one).*{why}"):
        destination.flush(replace(FLUSH, columns=columns), [batch])
    assert destination.columns() == ORDERS
    assert table.held() == SEEDED


@pytest.mark.parametrize("type_name", ["DECIMAL(5,2)[]", "UBIGINT[]", "INTEGER[][]"])
def test_a_type_that_cannot_be_held_is_refused_by_its_column(destination: OneTable, type_name: str) -> None:
    columns = (*ORDERS, Column("odd", type_name))
    with pytest.raises(SchemaMismatch, match="'odd'"):
        destination.seed(replace(SEED, columns=columns), [])
    destination.seed(SEED, plain(ORDERS, SEEDED))
    with pytest.raises(SchemaMismatch, match="'odd'"):
        destination.flush(replace(FLUSH, columns=columns), [])
    assert destination.standing() == Standing(10, 1, "lake/orders")


@pytest.mark.parametrize(
    ("type_name", "values"),
    {
        "TINYINT": [-128, 127],
        "UTINYINT": [0, 255],
        "USMALLINT": [0, 65535],
        "UINTEGER": [0, 2**32 - 1],
        "UBIGINT": [0, 2**64 - 1],
        "BIGINT": [-(2**63), 2**63 - 1],
    }.items(),
)
@pytest.mark.parametrize("with_null", [False, True])
def test_keys_of_whole_numbers_are_found(
    table: Table, destination: OneTable, type_name: str, values: list[int | None], with_null: bool
) -> None:
    columns = (Column("k", type_name), Column("n", "SMALLINT"))
    keys = [*values, None] if with_null else values
    rows: list[Row] = [{"k": key, "n": n} for key in keys for n in (-1, 1)]
    destination.seed(replace(SEED, columns=columns, key=("k", "n")), plain(columns, rows))
    changes: list[Change] = [(Op.REMOVE, row) for row in rows[1:]]
    how = replace(FLUSH, columns=columns, key=("k", "n"))
    assert destination.flush(how, staged(columns, how.key, changes)).removed == len(rows) - 1
    assert table.held() == rows[:1]
