"""Shapes that are refused, each with a message that names the part; and expressions of an enemy."""

from __future__ import annotations

import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from trunkline.config import changed_environment
from trunkline.delivery.changes.columns import Column
from trunkline.delivery.changes.rows import ROUTE_COLUMN
from trunkline.delivery.changes.shape import Mask, Shape, secret_mark
from trunkline.delivery.shapes.expressions import CHARACTERS_MAX
from trunkline.delivery.shapes.functions import LISTED, LISTED_MACROS, allowed_functions
from trunkline.delivery.shapes.sealed_duckdb import sealed_duckdb
from trunkline.delivery.shapes.shaped_table import check_shape, shaped_table
from trunkline.errors import ConfigError, DestinationHalted

COLUMNS = (
    Column("id", "BIGINT", False),
    Column("tenant", "VARCHAR"),
    Column("email", "VARCHAR"),
    Column("amount", "DECIMAL(10,2)"),
    Column("tags", "VARCHAR[]"),
)
VARIABLE = "TRUNKLINE_TEST_SECRET"

HOSTILE = [
    "(SELECT 1)",
    "(FROM duckdb_settings())",
    "EXISTS (SELECT 1)",
    "id IN (SELECT 1)",
    "id = ANY([1, 2])",
    "read_csv('/etc/passwd')",
    "read_text('/etc/passwd')",
    "read_blob('/etc/passwd')",
    "pg_read_file('/etc/passwd')",
    "glob('/etc/*')",
    "getenv('HOME')",
    "current_setting('home_directory')",
    "getvariable('x')",
    "version()",
    "current_user",
    "session_user",
    "current_database()",
    "current_query()",
    "pg_sleep(10)",
    "sleep_ms(10)",
    "write_log('x')",
    "nextval('s')",
    "currval('s')",
    "random()",
    "setseed(0.1)",
    "uuid()",
    "gen_random_uuid()",
    "now()",
    "today()",
    "current_date",
    "current_timestamp",
    "localtimestamp",
    "current_localtimestamp()",
    "get_current_time()",
    "age(TIMESTAMP '2020-01-01')",
    "txid_current()",
    "hash(id)",
    "sum(id)",
    "count(*)",
    "list(id)",
    "row_number() OVER ()",
    "lag(id) OVER (ORDER BY id)",
    "unnest([1, 2])",
    "range(1000000000)",
    "repeat('x', 1000000000)",
    "generate_series(1, 1000000000)",
    "st_read('x')",
    "http_get('http://x')",
    "postgres_query('x', 'y')",
    "load_aws_credentials()",
    "list_transform(tags, x -> upper(x))",
    "list_aggregate(tags, 'max')",
    "email COLLATE nocase",
    "icu_sort_key(email, 'de')",
    "*",
    "COLUMNS('.*')",
    "#1",
    "?",
    "$1",
    "$name",
    "rowid",
    "id AS x",
    "id, email",
    "id FROM shape_rows",
    "id WHERE true",
    "id ORDER BY 1",
    "id LIMIT 1",
    "id UNION SELECT 2",
    "id; SELECT 2",
    "id;",
    "1) , (2",
    "1) FROM (SELECT 1",
    "id) AS a, (id",
    "id -- ) AS a",
    "id /*",
    "COPY shape_rows TO '/tmp/x'",
    "ATTACH '/tmp/x'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "PRAGMA version",
    "SET threads = 8",
    "CREATE MACRO f() AS 1",
    "main.now()",
    "system.main.lower(email)",
    "shape_rows.id",
    "email.upper()",
    "'x'::nosuchtype",
    "1e400",
    "id +",
    "",
    " ",
    "id\0",
    "\ud800",
    "'" + "x" * CHARACTERS_MAX + "'",
    "x" * 1_000_000,
    "(" * 500_000,
    "+".join(["id"] * 300),
    "[" * 300 + "1" + "]" * 300,
    "NOT " * 300 + "true",
    "CASE WHEN true THEN " * 150 + "1" + " END" * 150,
]


def problems(shape: Shape, key: tuple[str, ...] = ("id",), routing: str = "tenant") -> list[str]:
    return check_shape(shape, COLUMNS, key, routing)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:30].encode("ascii", "replace").decode())
@pytest.mark.parametrize("part", ["filter", "computed.x"])
def test_a_hostile_expression_is_refused_with_the_name_of_its_part(text: str, part: str) -> None:
    if part == "filter" and text == "id -- ) AS a":
        return
    shape = Shape(filter=text) if part == "filter" else Shape(computed={"x": text})
    begin = time.monotonic()
    found = problems(shape)
    allowed = {"id -- ) AS a"}  # a comment is harmless
    if text in allowed:
        assert found == []
        return
    assert len(found) == 1
    assert found[0].startswith(f"{part}: ")
    assert len(found[0]) < 1000
    assert "\n" not in found[0]
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize(
    "text",
    [
        "id * 2 + 1",
        "upper(email) || '-' || lower(tenant)",
        "CASE WHEN amount > 0 THEN 'in' ELSE 'out' END",
        "coalesce(email, 'none')",
        "nullif(email, '')",
        "split_part(email, '@', 2)",
        "CAST(amount AS DOUBLE)",
        "amount::INTEGER",
        "TRY_CAST(email AS INTEGER)",
        "email LIKE '%@example.com' AND amount BETWEEN 1 AND 2",
        "email IN ('a', 'b') OR NOT (tenant IS NULL)",
        "regexp_matches(email, '^a')",
        "tags[1]",
        "list_contains(tags, 'x')",
        "DATE '2026-01-01' + INTERVAL 1 MONTH",
        "extract(year FROM TIMESTAMP '2026-01-01')",
        "TIMESTAMPTZ '2026-01-01 00:00:00+00' AT TIME ZONE 'Europe/Berlin'",
        "sha256(email)",
        "EMAIL",
        '"id"',
        "id IS DISTINCT FROM 3",
        "json_extract_string('{\"a\": 1}', '$.a')",
    ],
)
def test_an_expression_over_the_columns_of_its_row_is_allowed(text: str) -> None:
    assert problems(Shape(computed={"x": text})) == []


def test_every_listed_function_is_scalar_and_consistent_in_the_installed_duckdb() -> None:
    assert allowed_functions() == LISTED | LISTED_MACROS


def test_a_sealed_duckdb_reaches_no_file_and_keeps_its_settings(tmp_path: Path) -> None:
    for statement in (
        f"SELECT * FROM read_text('{tmp_path}')",
        f"ATTACH '{tmp_path}/x.db'",
        f"COPY (SELECT 1) TO '{tmp_path}/x.csv'",
        "INSTALL httpfs",
        "SET threads = 8",
        "SET TimeZone = 'Europe/Berlin'",
        "SET enable_external_access = true",
        "SELECT getenv('HOME')",
    ):
        with pytest.raises(duckdb.Error), sealed_duckdb() as connection:
            connection.execute(statement)


@pytest.mark.parametrize(
    ("shape", "key", "routing", "message"),
    [
        (Shape(include=("nix",)), ("id",), "tenant", "columns.include: 'nix' is not a column of the source table"),
        (Shape(exclude=("nix",)), ("id",), "tenant", "columns.exclude: 'nix' is not a column"),
        (Shape(exclude=("ID",)), ("id",), "tenant", "columns.exclude: 'ID' is not a column"),
        (Shape(exclude=("email", "email")), ("id",), "tenant", "columns.exclude: 'email' is there 2 times"),
        (Shape(rename={"nix": "x"}), ("id",), "tenant", "columns.rename: 'nix' is not a column"),
        (Shape(mask={"nix": Mask("null")}), ("id",), "tenant", "mask: 'nix' is not a column"),
        (
            Shape(exclude=("email",), mask={"email": Mask("null")}),
            ("id",),
            "tenant",
            "mask: column 'email' is not deli",
        ),
        (Shape(exclude=("email",), rename={"email": "x"}), ("id",), "tenant", "columns.rename: column 'email' is not"),
        (Shape(rename={"email": "amount"}), ("id",), "tenant", "columns: 2 columns would have the name 'amount'"),
        (Shape(rename={"email": "ID"}), ("id",), "tenant", "columns: 2 columns would have the name 'id'"),
        (Shape(computed={"email": "1"}), ("id",), "tenant", "columns: 2 columns would have the name 'email'"),
        (Shape(rename={"email": "_trunkline_x"}), ("id",), "tenant", "begins with _trunkline, which is reserved"),
        (Shape(computed={"_Trunkline_op": "1"}), ("id",), "tenant", "begins with _trunkline, which is reserved"),
        (Shape(exclude=tuple(each.name for each in COLUMNS)), (), "", "columns: no column is left to deliver"),
        (Shape(filter="amount"), ("id",), "tenant", "filter: it is DECIMAL(10,2), not BOOLEAN"),
        (Shape(filter="nix > 1"), ("id",), "tenant", "filter: nix is not a column of the source table"),
        (Shape(filter="email > 1 + DATE '2020-01-01'"), ("id",), "tenant", "filter: "),
        (Shape(computed={"x": "INTERVAL 1 DAY"}), ("id",), "tenant", "computed.x: its type is INTERVAL, which cannot"),
        (Shape(computed={"x": "'a'::INTEGER"}), ("id",), "tenant", "computed.x: Conversion Error"),
        (Shape(computed={"x": "upper(1, 2, 3)"}), ("id",), "tenant", "computed.x: Binder Error"),
        (
            Shape(mask={"amount": Mask("constant", "x")}),
            ("id",),
            "tenant",
            "mask.amount: the constant 'x' does not fit",
        ),
        (Shape(mask={"amount": Mask("constant")}), ("id",), "tenant", "mask.amount: a constant needs a value"),
        (Shape(mask={"tags": Mask("hash")}, secret_env="PATH"), ("id",), "tenant", "mask.tags: VARCHAR[] values"),
        (Shape(mask={"email": Mask("hash")}), ("id",), "tenant", "mask_secret_env is missing"),
        (Shape(mask={"email": Mask("hash")}, secret_env=VARIABLE), ("id",), "", f"variable {VARIABLE} is not set"),
        (Shape(exclude=("id",)), ("id",), "tenant", "key: key column 'id' is not in the source table"),
        (Shape(rename={"id": "number"}), ("id",), "tenant", "id is number there"),
        (
            Shape(mask={"id": Mask("null")}),
            ("id",),
            "tenant",
            "key: column 'id' is masked; a key or routing column can",
        ),
        (Shape(mask={"tenant": Mask("constant", "x")}), ("id",), "tenant", "routing: column 'tenant' is masked"),
        (Shape(rename={"tenant": "t"}), ("id",), "tenant", "routing: column 'tenant' is 't' after `columns.rename`"),
        (Shape(computed={"x": "1"}), ("id",), "nix", "routing: 'nix' is neither a column of the source table nor a"),
        (Shape(computed={"x": "1"}), ("x",), "tenant", "key: column 'x' is computed from no column"),
        (
            Shape(computed={"x": "amount::DOUBLE"}),
            ("x",),
            "tenant",
            "key column 'x' is DOUBLE, which cannot be compared",
        ),
        (Shape(computed={"x": "amount"}), ("id",), "x", "routing.column: 'x' is DECIMAL(10,2)"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_with_the_line_to_change(
    shape: Shape, key: tuple[str, ...], routing: str, message: str
) -> None:
    found = problems(shape, key, routing)
    assert any(message in each for each in found), found
    with pytest.raises(ConfigError):
        shaped_table(shape, COLUMNS, key, routing)


def test_every_problem_of_a_shape_is_named_at_once() -> None:
    shape = Shape(include=("nix",), filter="now()", computed={"a": "b", "c": "("}, mask={"tags": Mask("hash")})
    assert [each.partition(":")[0] for each in problems(shape)] == [
        "columns.include",
        "mask",
        "computed.a",
        "computed.c",
        "filter",
        "mask_secret_env is missing",
    ]


def rows(**values: list[object]) -> list[pa.RecordBatch]:
    count = len(next(iter(values.values())))
    nothing: list[object] = [None] * count
    given: dict[str, list[object]] = {"id": list(range(count)), "tenant": ["t"] * count}
    given |= {name: values.get(name, nothing) for name in ("email", "amount", "tags")}
    types = [pa.int64(), pa.string(), pa.string(), pa.decimal128(10, 2), pa.list_(pa.string())]
    arrays = [pa.array(given[column.name], kind) for column, kind in zip(COLUMNS, types, strict=True)]
    table = pa.table([pa.array(["t"] * count), *arrays], names=[ROUTE_COLUMN, *(column.name for column in COLUMNS)])
    return table.to_batches()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            Shape(computed={"ok": "1", "n": "email::INTEGER"}),
            "computed.n fails on a row of the source: Conversion Error",
        ),
        (Shape(computed={"n": "(id + 200)::TINYINT"}), "computed.n fails on a row"),
        (Shape(computed={"n": "(id + 9223372036854775807)"}), "computed.n fails on a row"),
        (Shape(filter="email::INTEGER > 1"), "filter fails on a row"),
    ],
)
def test_a_row_on_which_an_expression_fails_halts_with_its_name(shape: Shape, message: str) -> None:
    shaped = shaped_table(shape, COLUMNS, ("id",), "tenant")
    with pytest.raises(DestinationHalted, match=message):
        list(shaped.rows(rows(email=["1", "many"])))


def test_the_reason_of_a_failure_has_no_value_of_a_hidden_column() -> None:
    for shape in (
        Shape(exclude=("email",), filter="email::INTEGER > 1"),
        Shape(mask={"email": Mask("null")}, computed={"n": "email::INTEGER"}),
    ):
        with pytest.raises(DestinationHalted) as caught:
            list(shaped_table(shape, COLUMNS, ("id",), "tenant").rows(rows(email=["1", "many"])))
        assert "many" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_a_computed_column_is_not_evaluated_on_rows_that_the_filter_drops() -> None:
    shape = Shape(filter="email <> 'many'", computed={"n": "email::INTEGER"})
    found = list(shaped_table(shape, COLUMNS, ("id",), "tenant").rows(rows(email=["1", "many", None])))
    assert [row["n"] for batch in found for row in batch.to_pylist()] == [1]


def test_a_secret_is_in_no_message_and_in_no_text_of_a_shaped_table() -> None:
    shape = Shape(mask={"email": Mask("hash")}, secret_env=VARIABLE)
    with changed_environment({VARIABLE: "hunter2"}):
        shaped = shaped_table(shape, COLUMNS, ("id",), "tenant")
        assert "hunter2" not in repr(vars(shaped)) + repr(shaped.request())
    with changed_environment({VARIABLE: ""}), pytest.raises(ConfigError, match=f"{VARIABLE} is not set or is empty"):
        list(shaped.rows(rows(email=["a"])))


def test_a_task_with_another_secret_than_the_deliverer_hashes_nothing() -> None:
    shape = Shape(mask={"email": Mask("hash")}, secret_env=VARIABLE, secret_mark=secret_mark(b"hunter2"))
    with changed_environment({VARIABLE: "hunter3"}):
        with pytest.raises(ConfigError, match=f"{VARIABLE} has another value on this machine") as caught:
            shaped_table(shape, COLUMNS, ("id",), "tenant")
        assert "hunter" not in str(caught.value)
    with changed_environment({VARIABLE: "hunter2"}):
        assert list(shaped_table(shape, COLUMNS, ("id",), "tenant").rows(rows(email=["a"])))
