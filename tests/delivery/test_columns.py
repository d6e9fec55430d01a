"""Columns: which differences a destination follows, and which it refuses."""

from __future__ import annotations

import pytest

from trunkline.delivery.changes.columns import Column, check_columns, evolution, widens
from trunkline.errors import ConfigError


@pytest.mark.parametrize(
    ("old", "new"),
    [("INTEGER", "BIGINT"), ("FLOAT", "DOUBLE"), ("DECIMAL(9,2)", "DECIMAL(11,2)"), ("DECIMAL(9,2)", "DECIMAL(11,4)")],
)
def test_a_wider_type_is_followed_and_a_narrower_one_is_not(old: str, new: str) -> None:
    assert widens(old, new)
    assert not widens(new, old)


@pytest.mark.parametrize("kind", ["INTEGER", "DECIMAL(10,2)", "VARCHAR"])
def test_an_equal_type_is_not_wider(kind: str) -> None:
    assert not widens(kind, kind)
    assert evolution([Column("a", kind)], [Column("a", kind)]) == evolution([], [])


def test_a_decimal_that_gains_scale_at_the_cost_of_whole_digits_is_a_problem() -> None:
    found = evolution([Column("a", "DECIMAL(10,4)")], [Column("a", "DECIMAL(10,2)")])
    assert found.problems == ("column 'a' is DECIMAL(10,2) here and DECIMAL(10,4) in the source",)


def test_columns_are_compared_by_name_and_never_by_position() -> None:
    a, b = Column("a", "INTEGER"), Column("b", "VARCHAR")
    assert evolution([a, b], [b, a]) == evolution([], [])


def test_what_cannot_be_a_key_or_is_reserved_is_refused_by_name() -> None:
    for columns, key, named in (
        ([Column("a", "DOUBLE")], ("a",), "'a'"),
        ([Column("_trunkline_op", "INTEGER")], (), "'_trunkline_op'"),
        ([Column("a", "INTEGER")], ("b",), "'b'"),
        ([Column("a", "GEOMETRY")], (), "'a'"),
        ([Column("a", "BIGINT"), Column("A", "BIGINT")], (), "'a' and 'A' differ only in case"),
    ):
        with pytest.raises(ConfigError, match=named):
            check_columns(columns, key, None)
