"""The steps between versions of a table: columns are followed by their numbers, whatever they are called."""

from __future__ import annotations

import pickle
import random
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from delivery.group_log import changed, schema_of
from trunkline.delivery.changes.column_steps import (
    ColumnSteps,
    check_names,
    composed,
    no_steps,
    renaming,
    stepped_rows,
    steps_of,
)
from trunkline.delivery.changes.columns import Column, arrow_schema
from trunkline.delivery.changes.schemas import Malformed, SchemaChange, SourceColumn, TableSchema, stepped
from trunkline.errors import ConfigError

FIRST = schema_of(1, "id BIGINT, a VARCHAR, b VARCHAR, n INTEGER")
ADDED, DROPPED, RENAMED, WIDENED = (
    SchemaChange.ADDED,
    SchemaChange.DROPPED,
    SchemaChange.RENAMED,
    SchemaChange.WIDENED,
)
ROW = {"id": 1, "a": "x", "b": "y", "n": 5}


def with_columns(schema: TableSchema, columns: str, defaults: dict[str, Any] | None = None) -> TableSchema:
    """The next version: "1 id BIGINT, 3 b VARCHAR" are numbers, names and types."""
    words = (text.strip().split(" ", 2) for text in columns.split(", "))
    found = tuple(SourceColumn(name, kind, int(number), 20) for number, name, kind in words)
    return changed(schema, RENAMED, defaults=defaults, columns=found)


def steps(*versions: TableSchema) -> ColumnSteps:
    found = steps_of(versions)
    assert found is not None
    return found


def after(found: ColumnSteps) -> dict[str, Any]:
    """What becomes of the row."""
    rows = pa.Table.from_pylist([ROW], arrow_schema(found.before))
    [row] = stepped_rows(rows.select(rows.column_names[::-1]), found).to_pylist()
    return dict(row)


def renamed(found: ColumnSteps) -> dict[str, Any]:
    """What becomes of the row in a table that renames, adds and drops one column after the other."""
    row = {name: (name, value) for name, value in ROW.items()}
    plan = renaming(found)
    for old, new in plan.renames:
        row[new] = row.pop(old)
        assert len({name.lower() for name in row}) == len(row), "two columns with one name"
    for name, value in (found.default_row().to_pylist() or [{}])[0].items():
        assert name.lower() not in {each.lower() for each in row}
        row[name] = (name, value)
    for name in plan.drops:
        del row[name]
    return {name: value for name, (_, value) in row.items()}


def test_nothing_happens_between_a_version_and_itself_and_when_only_the_order_changes() -> None:
    assert steps(FIRST) == no_steps(FIRST.vocabulary())
    turned = with_columns(FIRST, "4 n INTEGER, 3 b VARCHAR, 2 a VARCHAR, 1 id BIGINT")
    for found in (steps(FIRST), steps(FIRST, turned)):
        assert found.unchanged
        assert found.spelled() == ""
        assert after(found) == ROW


def test_each_kind_of_step_is_named_and_applied() -> None:
    next_one = with_columns(
        FIRST, "1 id BIGINT, 2 name VARCHAR, 4 n BIGINT, 5 note VARCHAR, 6 more INTEGER", {"more": 7}
    )
    found = steps(FIRST, next_one)
    assert found.renamed == ((Column("a", "VARCHAR"), Column("name", "VARCHAR")),)
    assert found.dropped == (Column("b", "VARCHAR"),)
    assert found.added == (Column("note", "VARCHAR"), Column("more", "INTEGER"))
    assert found.widened == ((Column("n", "INTEGER"), Column("n", "BIGINT")),)
    assert found.default_row().to_pylist() == [{"note": None, "more": 7}]
    assert not found.unchanged
    assert found.spelled() == "renamed 'a' to 'name', dropped 'b', added 'note', added 'more', widened 'n' to BIGINT"
    assert (found.now("a"), found.now("b"), found.now("more")) == ("name", None, None)
    assert after(found) == {"id": 1, "name": "x", "n": 5, "note": None, "more": 7}
    assert pickle.loads(pickle.dumps(found)) == found


def test_two_names_that_are_swapped_at_once_or_one_after_the_other() -> None:
    once = with_columns(FIRST, "1 id BIGINT, 2 b VARCHAR, 3 a VARCHAR, 4 n INTEGER")
    out = with_columns(FIRST, "1 id BIGINT, 2 c VARCHAR, 3 b VARCHAR, 4 n INTEGER")
    over = with_columns(out, "1 id BIGINT, 2 c VARCHAR, 3 a VARCHAR, 4 n INTEGER")
    back = with_columns(over, "1 id BIGINT, 2 b VARCHAR, 3 a VARCHAR, 4 n INTEGER")
    assert steps(FIRST, once) == steps(FIRST, out, over, back)
    assert after(steps(FIRST, once)) == {"id": 1, "b": "x", "a": "y", "n": 5}
    assert not steps(FIRST, once).unchanged


def test_a_column_that_is_dropped_and_added_again_is_another_one() -> None:
    gone = with_columns(FIRST, "1 id BIGINT, 3 b VARCHAR, 4 n INTEGER")
    again = with_columns(gone, "1 id BIGINT, 3 b VARCHAR, 4 n INTEGER, 5 a VARCHAR", {"a": "new"})
    found = steps(FIRST, gone, again)
    assert (found.dropped, found.added) == ((Column("a", "VARCHAR"),), (Column("a", "VARCHAR"),))
    assert not found.unchanged
    assert after(found) == {**ROW, "a": "new"}


def test_a_new_column_that_is_renamed_and_widened_keeps_its_default_and_one_that_goes_leaves_nothing() -> None:
    two = with_columns(
        FIRST, "1 id BIGINT, 2 a VARCHAR, 3 b VARCHAR, 4 n INTEGER, 5 m INTEGER, 6 p INTEGER", {"m": 3, "p": 4}
    )
    three = with_columns(two, "1 id BIGINT, 2 a VARCHAR, 3 b VARCHAR, 4 n INTEGER, 5 mm BIGINT, 6 p INTEGER")
    four = with_columns(three, "1 id BIGINT, 2 a VARCHAR, 3 b VARCHAR, 4 n INTEGER, 5 mm BIGINT")
    found = steps(FIRST, two, three, four)
    assert found.added == (Column("mm", "BIGINT"),)
    assert after(found) == {**ROW, "mm": 3}
    gone = with_columns(four, "1 id BIGINT, 2 a VARCHAR, 3 b VARCHAR, 4 n INTEGER")
    assert steps(FIRST, two, three, four, gone) == no_steps(FIRST.vocabulary())


def test_there_are_no_steps_to_another_generation_and_none_between_versions_that_are_not_neighbours() -> None:
    second = changed(FIRST, ADDED)
    third = changed(second, SchemaChange.RECAPTURED)
    assert steps_of([FIRST, second, third]) is None
    with pytest.raises(Malformed, match="does not follow"):
        steps_of([FIRST, msgspec.structs.replace(second, version=3)])
    with pytest.raises(ValueError, match="do not begin where"):
        composed(no_steps(FIRST.vocabulary()), no_steps(FIRST.vocabulary()[:2]))


def test_the_configuration_names_a_column_that_was_renamed_or_dropped() -> None:
    found = steps(FIRST, with_columns(FIRST, "1 number BIGINT, 2 a VARCHAR, 4 n INTEGER"))
    check_names(found, ("number",), "a")
    check_names(found, ("never there",), "a")  # that is reported elsewhere
    with pytest.raises(ConfigError, match=r"^key: column 'id' is 'number' in the source now; write number there"):
        check_names(found, ("id",), "a")
    with pytest.raises(ConfigError, match=r"^routing.column: column 'b' was dropped from the source"):
        check_names(found, ("number",), "b")


@pytest.mark.parametrize("seed", range(40))
def test_any_history_of_columns_gives_rows_the_values_that_one_step_after_the_other_gives_them(seed: int) -> None:
    chance = random.Random(seed)
    versions, number = [FIRST], 5
    for _ in range(chance.randrange(1, 7)):
        columns = list(versions[-1].columns)
        fresh = []
        if len(columns) > 2 and chance.random() < 0.5:
            columns.pop(chance.randrange(1, len(columns)))
        names = [column.name for column in columns[1:]]
        if chance.random() < 0.5:
            chance.shuffle(names)
            names = [name.swapcase() if chance.random() < 0.2 else name for name in names]
        named = [msgspec.structs.replace(one, name=name) for one, name in zip(columns[1:], names, strict=True)]
        columns = [columns[0], *named]
        free = [name for name in "abnxyz" if name not in {each.lower() for each in names}]
        for name in chance.sample(free, chance.randrange(2)):
            columns.append(SourceColumn(name, chance.choice(["INTEGER", "SMALLINT"]), number, 20))
            fresh.append(name)
            number += 1
        if chance.random() < 0.3:
            wider = {"INTEGER": "BIGINT", "SMALLINT": "INTEGER"}
            columns = [msgspec.structs.replace(one, type=wider.get(one.type, one.type)) for one in columns]
        defaults = {name: chance.randrange(9) for name in fresh if chance.random() < 0.7}
        versions.append(changed(versions[-1], ADDED, defaults=defaults, columns=tuple(columns)))
    rows = pa.RecordBatch.from_pylist([ROW], arrow_schema(FIRST.vocabulary()))
    for older, newer in pairwise(versions):
        rows = stepped(rows, older, newer)
    assert after(steps(*versions)) == rows.to_pylist()[0]
    assert renamed(steps(*versions)) == rows.to_pylist()[0]
    middle = chance.randrange(len(versions))
    assert composed(steps(*versions[: middle + 1]), steps(*versions[middle:])) == steps(*versions)
