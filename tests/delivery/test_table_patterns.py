"""Patterns select tables as in psql."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.delivery.config.table_patterns import Selection, TablePatterns, exact_name
from trunkline.errors import ConfigError

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("pattern", "wanted", "unwanted"),
    [
        ("public.*", [("public", "orders"), ("public", "Odd.Name")], [("publicx", "orders"), ("sales", "orders")]),
        ("sales.order_*", [("sales", "order_"), ("sales", "order_lines")], [("sales", "orders")]),
        ("sales.order_?", [("sales", "order_1")], [("sales", "order_12"), ("sales", "order_")]),
        ("*.*", [("public", "orders"), ("Odd", "a.b\nc")], []),
        ("orders", [("public", "orders")], [("sales", "orders"), ("public", "orders2")]),
        ("Public.ORDERS", [("public", "orders")], [("Public", "ORDERS")]),
        ('"Public"."OR""D*"', [("Public", 'OR"D*')], [("Public", 'OR"Dx'), ("public", 'or"d*')]),
        ('"a.b".c', [("a.b", "c")], [("a", "b")]),
        ('shop."Order"_*', [("shop", "Order_x")], [("shop", "order_x")]),
        ("a.b$[x]", [("a", "b$[x]")], [("a", "b$x")]),
    ],
)
def test_patterns_match_as_in_psql(
    pattern: str, wanted: list[tuple[str, str]], unwanted: list[tuple[str, str]]
) -> None:
    patterns = TablePatterns([pattern])
    assert [each for each in wanted if not patterns.matches(*each)] == []
    assert [each for each in unwanted if patterns.matches(*each)] == []


def test_excluded_tables_are_not_wanted_also_as_partitions() -> None:
    patterns = TablePatterns(["public.*", "sales.orders"], exclude=["public.tmp_*", "*.secret"])
    assert patterns.matches("public", "orders")
    assert not patterns.matches("public", "tmp_1")
    assert not patterns.matches("public", "secret")
    assert patterns.matches_any([("parts", "orders_1"), ("sales", "orders")])
    assert not patterns.matches_any([("public", "secret_1"), ("public", "secret")])


@pytest.mark.parametrize("pattern", ["", ".", "a.", ".a", "a.b.c", '"a', 'a."b', '""', "\0"])
def test_what_names_no_table_is_refused_with_an_example(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"schema\.table|Odd Name"):
        TablePatterns([pattern])


def test_a_pattern_without_wildcards_names_one_table() -> None:
    assert exact_name("sales.Orders") == ("sales", "orders")
    assert exact_name('"*"."a.b"') == ("*", "a.b")
    assert exact_name("sales.order_*") is None


@given(st.text(min_size=1).filter(lambda text: "\0" not in text), st.text(min_size=1))
def test_a_quoted_name_matches_itself_and_nothing_else(name: str, other: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    patterns = TablePatterns([f"{quoted}.{quoted}"])
    assert patterns.matches(name, name)
    assert patterns.matches(name, other) == (name == other)
    assert exact_name(f"{quoted}.{quoted}") == (name, name)


SELECTION = Selection(("public.orders", "public.*", "!*.tmp_*", "lines", '"Odd"."a.b"'), "shop")


def test_the_first_pattern_of_a_selection_counts_and_what_is_left_out_always_is() -> None:
    tables = {
        "public.orders": 0,
        "public.customers": 1,
        "public.tmp_1": None,
        "shop.lines": 3,
        "public.lines": 1,
        "shop.orders": None,
        "Odd.a.b": 4,
        "public._Trunkline_members": None,
    }
    assert {table: SELECTION.entry(table) for table in tables} == tables
    assert SELECTION.matches("shop", "lines")
    assert not SELECTION.matches("shop", "other")


def test_a_selection_knows_the_tables_that_must_exist_and_the_schemas_that_it_reaches() -> None:
    assert SELECTION.named() == (("public", "orders"), ("shop", "lines"), ("Odd", "a.b"))
    assert [schema for schema in ("public", "shop", "odd", "Odd", "x") if SELECTION.reaches(schema)] == [
        "public",
        "shop",
        "Odd",
    ]
    assert Selection(("*.orders",)).reaches("anything")
    assert SELECTION.matching(1, ["public.orders", "public.tmp_1", "shop.lines"]) == ["public.orders", "public.tmp_1"]
