"""Values for stores with few types: rules P1 to P3 of ``destinations/plain_values.py``."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.delivery.changes.columns import ARROW_TYPES, Column, arrow_type
from trunkline.delivery.destinations.plain_values import from_plain, plain_type, to_plain
from trunkline.errors import DestinationHalted

UTC: Final = datetime.UTC
INTEGERS: Final = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64}
VALUES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "BOOLEAN": st.booleans(),
    **{name: st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for name, bits in INTEGERS.items()},
    **{f"U{name}": st.integers(0, 2**bits - 1) for name, bits in INTEGERS.items()},
    "FLOAT": st.floats(width=32),
    "DOUBLE": st.floats(),
    "DECIMAL(18,3)": st.decimals("-99999999999999", "99999999999999", places=3),
    "VARCHAR": st.text(),
    "JSON": st.text(),
    "UUID": st.uuids().map(str),
    "BLOB": st.binary(),
    "DATE": st.dates(),
    "TIME": st.times(),
    "TIMESTAMP": st.datetimes(),
    "TIMESTAMP_S": st.datetimes().map(lambda each: each.replace(microsecond=0)),
    "TIMESTAMP_MS": st.datetimes().map(lambda each: each.replace(microsecond=0)),
    "TIMESTAMP_NS": st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)),  # noqa: DTZ001
    "TIMESTAMP WITH TIME ZONE": st.datetimes(timezones=st.just(UTC)),
}


def same(left: pa.Array, right: pa.Array) -> bool:
    """Bit by bit: NaN is NaN, and -0.0 is not 0.0."""
    if not pa.types.is_floating(left.type):
        return bool(left.equals(right))
    pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
    return all(str(one) == str(two) for one, two in pairs)


def test_every_type_is_tried() -> None:
    assert VALUES.keys() == ARROW_TYPES.keys() | {"DECIMAL(18,3)"}


@pytest.mark.parametrize("type_name", VALUES)
@given(data=st.data())
def test_p1_a_value_comes_back_as_it_was(type_name: str, data: st.DataObject) -> None:
    listed = data.draw(st.lists(st.none() | VALUES[type_name], max_size=5))
    column = Column("c", type_name)
    values = pa.array(listed, arrow_type(column))
    plain = to_plain(column, values)
    forms = {"integer": int, "float": float | str, "text": str, "bytes": bytes}
    assert all(each is None or isinstance(each, forms[plain_type(column)]) for each in plain)
    assert not any(isinstance(each, bool) for each in plain)
    assert same(from_plain(column, plain), values)


@pytest.mark.parametrize("type_name", ["VARCHAR", "BIGINT", "DECIMAL(18,3)", "TIME", "TIMESTAMP WITH TIME ZONE"])
@given(data=st.data())
def test_p1_a_list_comes_back_as_it_was(type_name: str, data: st.DataObject) -> None:
    inner = st.none() | st.lists(st.none() | VALUES[type_name], max_size=3)
    for column, drawn in ((Column("c", f"{type_name}[]"), inner), (Column("c", f"{type_name}[][]"), st.lists(inner))):
        values = pa.array(data.draw(st.lists(drawn, max_size=3)), arrow_type(column))
        assert from_plain(column, to_plain(column, values)).equals(values)


def test_p2_equal_decimals_have_equal_forms_whatever_they_were_written_as() -> None:
    column = Column("c", "DECIMAL(10,2)")
    forms = [to_plain(column, pa.array([Decimal(text)], arrow_type(column))) for text in ("1", "1.0", "1.00")]
    assert forms == [["1.00"]] * 3


def test_p3_floats_that_stores_take_for_null_or_zero_are_texts() -> None:
    column = Column("c", "DOUBLE")
    found = to_plain(column, pa.array([math.nan, -0.0, 0.0, math.inf, 1.5, None]))
    assert found == ["nan", "-0.0", 0.0, math.inf, 1.5, None]


@pytest.mark.parametrize(
    ("type_name", "value"), [("BLOB[]", [b"\xff"]), ("DATE", 5_000_000), ("TIMESTAMP", -(2**62))], ids=str
)
def test_p1_a_value_without_such_a_form_is_refused_with_its_column(type_name: str, value: Any) -> None:
    column = Column("odd", type_name)
    integers = pa.int32() if type_name == "DATE" else pa.int64()
    values = pa.array([value], arrow_type(column)) if type_name == "BLOB[]" else pa.array([value], integers)
    with pytest.raises(DestinationHalted, match=r"'odd'.*leave the column out"):
        to_plain(column, values if type_name == "BLOB[]" else values.view(arrow_type(column)))
