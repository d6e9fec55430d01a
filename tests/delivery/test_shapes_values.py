"""Masks by type, values that an update did not state, and columns of the source that change under a shape."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from trunkline.config import changed_environment
from trunkline.delivery.changes.column_steps import NEW, ColumnSteps, check_names, no_steps
from trunkline.delivery.changes.columns import Column, arrow_schema, arrow_type
from trunkline.delivery.changes.rows import ORIGIN_COLUMN, ROUTE_COLUMN, UNCHANGED_COLUMN, NetChanges
from trunkline.delivery.changes.shape import Mask, Shape
from trunkline.delivery.shapes.masks import constant_of, hashed
from trunkline.delivery.shapes.projected_steps import check_shape_names
from trunkline.delivery.shapes.shaped_table import shaped_table
from trunkline.errors import ConfigError, SourceExpired

KEY = b"secret"
VARIABLE = "TRUNKLINE_TEST_SECRET"
HASH = Mask("hash")


@pytest.fixture(autouse=True)
def _secret() -> Iterator[None]:
    with changed_environment({VARIABLE: KEY.decode()}):
        yield


def digest(text: str) -> str:
    return hmac.new(KEY, text.encode(), hashlib.sha256).hexdigest()


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("VARCHAR", "ä\0'", "ä\0'"),
        ("VARCHAR", "", ""),
        ("JSON", '{"a": 1}', '{"a": 1}'),
        ("UUID", "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000a"),
        ("BOOLEAN", True, "true"),
        ("BOOLEAN", False, "false"),
        ("TINYINT", -128, "-128"),
        ("UBIGINT", 2**64 - 1, "18446744073709551615"),
        ("DECIMAL(10,2)", Decimal("1.50"), "1.5"),
        ("DECIMAL(12,4)", Decimal("1.5000"), "1.5"),
        ("DECIMAL(10,2)", Decimal("-20.00"), "-20"),
        ("DECIMAL(38,10)", Decimal("0E-10"), "0"),
        ("DECIMAL(38,0)", Decimal(10**37), "1" + "0" * 37),
        ("DOUBLE", 0.1, "0.1"),
        ("DOUBLE", -0.0, "0.0"),
        ("DOUBLE", float("nan"), "nan"),
        ("DOUBLE", float("-inf"), "-inf"),
        ("FLOAT", 0.5, "0.5"),
        ("BLOB", b"\x00\xff", "00ff"),
        ("DATE", dt.date(2024, 2, 29), "2024-02-29"),
        ("DATE", dt.date(1, 1, 1), "0001-01-01"),
        ("DATE", dt.date(9999, 12, 31), "9999-12-31"),
        ("TIME", dt.time(23, 59, 59, 1), "23:59:59.000001"),
        ("TIMESTAMP", dt.datetime.fromisoformat("1969-12-31 23:59:59.999999"), "1969-12-31 23:59:59.999999"),
        ("TIMESTAMP_S", dt.datetime.fromisoformat("2026-01-31 01:02:03"), "2026-01-31 01:02:03"),
        ("TIMESTAMP_MS", dt.datetime.fromisoformat("2026-01-31 01:02:03.004"), "2026-01-31 01:02:03.004"),
        ("TIMESTAMP_NS", dt.datetime.fromisoformat("2026-01-31 01:02:03.004"), "2026-01-31 01:02:03.004000000"),
        (
            "TIMESTAMP WITH TIME ZONE",
            dt.datetime.fromisoformat("2026-01-31 01:02:03+05:00"),
            "2026-01-30 20:02:03.000000Z",
        ),
    ],
)
def test_a_hash_is_that_of_the_documented_text_of_its_type(kind: str, value: Any, text: str) -> None:
    values = pa.chunked_array([pa.array([value, None, value], arrow_type(Column("c", kind)))])
    assert hashed(values, kind, KEY).to_pylist() == [digest(text), None, digest(text)]


def test_dates_of_every_day_are_spelled_as_by_python() -> None:
    days = range(-719_162, 2_932_896, 997)
    values = pa.chunked_array([pa.array(days, pa.int32()).cast(pa.date32())])
    expected = [digest((dt.date(1970, 1, 1) + dt.timedelta(days=day)).isoformat()) for day in days]
    assert hashed(values, "DATE", KEY).to_pylist() == expected


def test_dates_outside_of_pythons_range_have_hashes() -> None:
    values = pa.chunked_array([pa.array([-(2**31), 2**31 - 1], pa.int32()).cast(pa.date32())])
    assert len(set(hashed(values, "DATE", KEY).to_pylist())) == 2


def test_different_values_have_different_hashes() -> None:
    values = pa.chunked_array([pa.array([f"user{number}@example.com" for number in range(100_000)])])
    assert len(hashed(values, "VARCHAR", KEY).unique()) == 100_000


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("VARCHAR", "a'\0b", "a'\0b"),
        ("INTEGER", "7", 7),
        ("DECIMAL(10,2)", "1.5", Decimal("1.50")),
        ("DATE", "2026-01-31", dt.date(2026, 1, 31)),
        ("TIMESTAMP WITH TIME ZONE", "2026-01-31", dt.datetime(2026, 1, 31, tzinfo=dt.UTC)),
        ("UUID", "00000000-0000-0000-0000-00000000000A", "00000000-0000-0000-0000-00000000000a"),
        ("VARCHAR[]", "[a, b]", ["a", "b"]),
        ("BLOB", "x", b"x"),
    ],
)
def test_a_constant_has_the_type_of_its_column(kind: str, text: str, value: Any) -> None:
    column = Column("c", kind)
    found = constant_of(column, text)
    assert found.type == arrow_type(column)
    assert found.as_py() == value


# --------------------------------------------------------------------------------------------------- unstated values

COLUMNS = (
    Column("id", "BIGINT", False),
    Column("tenant", "VARCHAR"),
    Column("note", "VARCHAR"),
    Column("photo", "VARCHAR"),
    Column("size", "INTEGER"),
)


def unstated(request: Any, lacking: list[tuple[str, ...]], origins: list[tuple[str, int] | None]) -> NetChanges:
    """Rows of tenant t; of each, the columns whose values are not stated, and the route and key that it had."""
    schema = arrow_schema(request.columns)
    given = {"id": 1, "tenant": "t", "note": "n", "photo": "p", "size": 3}
    rows = [{name: None if name in names else given[name] for name in schema.names} for names in lacking]
    width = -(-len(schema) // 8)
    bits = [sum(1 << schema.get_field_index(name) for name in names) for names in lacking]
    struct = pa.struct([pa.field(ROUTE_COLUMN, pa.string()), *(schema.field(name) for name in request.key)])
    marks = pa.array([{**given, ROUTE_COLUMN: each[0], "id": each[1]} if each else None for each in origins], struct)
    arrived = pa.table(
        [pa.array(["t"] * len(rows)), *(pa.array([row[field.name] for row in rows], field.type) for field in schema)],
        names=[ROUTE_COLUMN, *schema.names],
    )
    arrived = arrived.append_column(
        UNCHANGED_COLUMN, pa.array([each.to_bytes(width, "little") if each else None for each in bits], pa.binary())
    ).append_column(ORIGIN_COLUMN, marks)
    return NetChanges(arrived.slice(0, 0).select([ROUTE_COLUMN, *request.key]), arrived)


def test_an_unstated_value_stays_unstated_under_its_new_name_and_as_a_hash() -> None:
    shape = Shape(exclude=("tenant",), rename={"id": "no", "photo": "image"}, mask={"note": HASH}, secret_env=VARIABLE)
    shaped = shaped_table(shape, COLUMNS, ("no",), "tenant")
    net = unstated(shaped.request(), [("photo",), (), ("note", "photo")], [("t", 1), None, ("other", 7)])
    assert not shaped.needs_whole_rows(net)
    found = shaped.net(net).arrived
    assert found.column_names == [ROUTE_COLUMN, "no", "note", "image", "size", UNCHANGED_COLUMN, ORIGIN_COLUMN]
    assert found.column(UNCHANGED_COLUMN).to_pylist() == [b"\x04", None, b"\x06"]
    assert found.column(ORIGIN_COLUMN).to_pylist() == [
        {ROUTE_COLUMN: "t", "no": 1},
        None,
        {ROUTE_COLUMN: "other", "no": 7},
    ]


def test_the_origin_of_a_row_has_the_key_as_the_destination_knows_it() -> None:
    shape = Shape(mask={"id": HASH}, secret_env=VARIABLE)
    shaped = shaped_table(shape, COLUMNS, ("id",), "tenant")
    found = shaped.net(unstated(shaped.request(), [("photo",)], [("t", 7)])).arrived
    assert found.column(ORIGIN_COLUMN).to_pylist() == [{ROUTE_COLUMN: "t", "id": digest("7")}]


def test_an_unstated_value_of_a_column_that_is_not_delivered_does_not_matter() -> None:
    for shape in (Shape(exclude=("photo",)), Shape(mask={"photo": Mask("null")})):
        shaped = shaped_table(shape, COLUMNS, ("id",), "tenant")
        assert "photo" not in [column.name for column in shaped.request().columns]
    shaped = shaped_table(Shape(exclude=("photo",), computed={"x": "length(photo)"}), COLUMNS, ("id",), "tenant")
    net = unstated(shaped.request(), [("note",)], [("t", 1)])
    assert UNCHANGED_COLUMN in shaped.net(net).arrived.column_names
    assert not shaped.needs_whole_rows(net)


@pytest.mark.parametrize(
    ("shape", "routing"),
    [
        (Shape(computed={"x": "length(photo)"}), "tenant"),
        (Shape(filter="size > 1"), "tenant"),  # the row may not have been there before
        (Shape(computed={"x": "upper(tenant)"}), "x"),
    ],
)
def test_rows_with_unstated_values_that_a_shape_needs_are_looked_up_first(shape: Shape, routing: str) -> None:
    shaped = shaped_table(shape, COLUMNS, ("id",), routing)
    assert shaped.needs_whole_rows(unstated(shaped.request(), [("photo",)], [("t", 1)]))
    assert not shaped.needs_whole_rows(unstated(shaped.request(), [()], [None]))


# ------------------------------------------------------------------------------------------ columns of the source

WIDER = Column("size", "BIGINT")


def steps(*after: tuple[Column, int], default: Any = None) -> ColumnSteps:
    columns = tuple(column for column, _ in after)
    defaults = b""
    if default is not None:
        schema = arrow_schema(columns)
        arrays = [
            pa.array([default if at == NEW else None], field.type) for field, (_, at) in zip(schema, after, strict=True)
        ]
        defaults = pa.RecordBatch.from_arrays(arrays, schema=schema).serialize().to_pybytes()
    return ColumnSteps(COLUMNS, columns, tuple(at for _, at in after), defaults)


def kept(*places: int) -> list[tuple[Column, int]]:
    return [(COLUMNS[place], place) for place in places]


def test_columns_that_a_shape_does_not_name_follow_the_source() -> None:
    shape = Shape(exclude=("photo",), rename={"id": "no"}, computed={"x": "upper(note)"})
    changed = steps(
        *kept(0), (Column("tenant2", "VARCHAR"), 1), *kept(2, 3), (WIDER, 4), (Column("new", "INTEGER"), NEW), default=5
    )
    check_shape_names(shape, changed)
    found = shaped_table(shape, changed.after, ("no",), "tenant2").steps(changed)
    assert found is not None
    assert [column.name for column in found.before] == ["no", "tenant", "note", "size", "x"]
    assert [column.name for column in found.after] == ["no", "tenant2", "note", "size", "new", "x"]
    assert found.origins == (0, 1, 2, 3, NEW, 4)
    assert found.default_row().to_pylist() == [{"new": 5}]
    assert [new.type for _, new in found.widened] == ["BIGINT"]
    with pytest.raises(ConfigError, match=r"routing\.column: column 'tenant' is 'tenant2' in the source now"):
        check_names(found, ("no",), "tenant")


def test_columns_that_did_not_change_have_no_steps() -> None:
    shaped = shaped_table(Shape(exclude=("photo",), computed={"x": "size"}), COLUMNS, ("id",), "tenant")
    found = shaped.steps(no_steps(COLUMNS))
    assert found is not None
    assert found.unchanged
    assert found.after == shaped.columns
    assert shaped.steps(None) is None


@pytest.mark.parametrize(
    ("shape", "line"),
    [
        (Shape(include=("id", "tenant", "note")), r"columns\.include"),
        (Shape(exclude=("note",)), r"columns\.exclude"),
        (Shape(rename={"note": "x"}), r"columns\.rename"),
        (Shape(mask={"note": Mask("null")}), "mask"),
        (Shape(filter="NOTE > ''"), "filter"),
        (Shape(computed={"x": "upper(note)"}), r"computed\.x"),
    ],
)
def test_a_column_that_a_shape_names_and_that_changed_its_name_halts_with_the_line(shape: Shape, line: str) -> None:
    renamed = steps(*kept(0, 1), (Column("remark", "VARCHAR"), 2), *kept(3, 4))
    with pytest.raises(ConfigError, match=f"{line}: column 'note' is 'remark' in the source now; write remark there"):
        check_shape_names(shape, renamed)
    with pytest.raises(ConfigError, match=f"{line}: column 'note' was dropped from the source"):
        check_shape_names(shape, steps(*kept(0, 1, 3, 4)))
    swapped = steps(*kept(0, 1), (COLUMNS[3], 2), (COLUMNS[2], 3), *kept(4))
    with pytest.raises(ConfigError, match=f"{line}: column 'note' is 'photo' in the source now.*another column"):
        check_shape_names(shape, swapped)


def test_a_widened_column_under_an_expression_means_a_new_seed_and_under_a_hash_it_does_not() -> None:
    wider = steps(*kept(0, 1, 2, 3), (WIDER, 4))
    for shape in (Shape(computed={"x": "size::VARCHAR"}), Shape(filter="size > 1")):
        with pytest.raises(SourceExpired, match="seeded again"):
            shaped_table(shape, wider.after, ("id",), "tenant").steps(wider)
    shape = Shape(mask={"size": HASH}, secret_env=VARIABLE)
    found = shaped_table(shape, wider.after, ("id",), "tenant").steps(wider)
    assert found is not None
    assert found.unchanged


def test_a_column_that_an_expression_uses_and_that_is_new_means_a_new_seed() -> None:
    more = steps(*kept(0, 1, 2, 3, 4), (Column("extra", "INTEGER"), NEW))
    for shape in (Shape(computed={"x": "extra + 1"}), Shape(mask={"extra": Mask("null")})):
        with pytest.raises(SourceExpired, match="seeded again"):
            shaped_table(shape, more.after, ("id",), "tenant").steps(more)


def test_without_a_shape_everything_passes_as_it_is() -> None:
    shaped = shaped_table(None, COLUMNS, ("id",), "tenant")
    net = unstated(shaped.request("m"), [("photo",)], [("t", 1)])
    assert shaped.net(net) is net
    assert shaped.columns == COLUMNS
    assert shaped.request("m").mark == "m"
    assert shaped.request(whole=True).also == ("tenant", "note", "photo", "size")
    assert not shaped.needs_whole_rows(net)
    assert shaped.exact(net)
    assert shaped.one_to_one
    changed = no_steps(COLUMNS)
    assert shaped.steps(changed) is changed
