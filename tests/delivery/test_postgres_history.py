"""History tables in PostgreSQL: what they have beyond the contract that every kind keeps."""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from msgspec.structs import replace

from contract.postgres_destination import PostgresKind, PostgresSite
from postgres_server import PostgresServer
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.history import HISTORY_COLUMNS
from trunkline.delivery.changes.rows import OP_COLUMN, ORIGIN_COLUMN, ROUTE_COLUMN, UNCHANGED_COLUMN, Op
from trunkline.delivery.destinations.contract import Applied
from trunkline.destination_suite.place import Change, OneTable, Plan, Row, Table, content, plain, staged
from trunkline.errors import DuplicateKey, SchemaMismatch

OWN: Final[Columns] = (Column("a", "BIGINT"), Column("b", "VARCHAR"), Column("v", "INTEGER"))
COLUMNS: Final[Columns] = (*OWN, *HISTORY_COLUMNS)
SEED: Final = Plan(10, 1, "lake/orders", COLUMNS, ("a", "b"), mode="history", seeds=True)
FLUSH: Final = Plan(20, 1, "lake/orders", COLUMNS, ("a", "b"), 10, mode="history")
MANY: Final = 60_000
MANY_S_MAX: Final = 120.0  # of a loaded machine; usually seconds


@pytest.fixture
def site(postgres: PostgresServer, tmp_path: Path) -> PostgresSite:
    return PostgresKind().make(tmp_path, lambda: postgres)


@pytest.fixture
def destination(site: PostgresSite) -> Iterator[OneTable]:
    with closing(Table(site).open()) as opened:
        yield opened


def at(position: int) -> datetime.datetime:
    return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=position)


def version(row: Row, since: int, to: int | None = None) -> dict[str, Any]:
    ends = {"_valid_to": to, "_valid_to_time": None if to is None else at(to), "_current": to is None}
    return {**row, "_valid_from": since, "_valid_from_time": at(since), **ends}


def row(a: int | None, b: str | None, v: int) -> dict[str, Any]:
    return {"a": a, "b": b, "v": v}


def end(a: int | None, b: str | None, to: int) -> Change:
    return Op.REMOVE, {"a": a, "b": b, "_valid_to": to, "_valid_to_time": at(to)}


def seed(destination: OneTable, rows: list[dict[str, Any]], plan: Plan = SEED) -> Applied:
    return destination.seed(plan, plain(plan.columns, rows))


def flush(destination: OneTable, changes: list[Change], plan: Plan = FLUSH) -> Applied:
    return destination.flush(plan, staged(plan.columns, plan.key, changes))


EXTREMES: Final[dict[str, list[Any]]] = {
    "DOUBLE": [float("nan"), float("inf"), -0.0, 5e-324, None],
    "FLOAT": [0.1, None],
    "JSON": ['{"b": 1,  "a": null}', '{"b":1,"a":null}', "null", None],
    "VARCHAR": ["", "(,)", '"', "\\", "NULL", None],
    "BLOB": [b"", b"\x00\xff", None],
    "DECIMAL(38,10)": [Decimal("0.0000000001"), None],
    "VARCHAR[]": [[], ["", None, '"', ","], None],
    "TIMESTAMP WITH TIME ZONE": [at(5), None],
    "TIMESTAMP": [at(5).replace(tzinfo=None), None],
    "UUID": ["00000000-0000-0000-0000-000000000000", None],
    "BOOLEAN": [False, None],
    "UBIGINT": [2**64 - 1, None],
}


def test_equal_rows_of_every_type_are_not_written_again(destination: OneTable) -> None:
    """Also types that the server cannot compare, and values that it takes for others."""
    own = (Column("id", "BIGINT"), *(Column(f"c{n}", kind) for n, kind in enumerate(EXTREMES)))
    rows: list[dict[str, Any]] = []
    for n, values in enumerate(EXTREMES.values()):
        for value in values:
            rows.append({"id": len(rows), **{column.name: None for column in own[1:]}, f"c{n}": value})
    plan = replace(SEED, columns=(*own, *HISTORY_COLUMNS), key=("id",))
    assert seed(destination, [version(each, 10) for each in rows], plan) == Applied(10, written=len(rows))
    again = replace(plan, expected=10, through=20)
    assert seed(destination, [version(each, 20) for each in rows], again) == Applied(20)
    last = replace(plan, expected=20, through=30)
    rows[2]["c0"] = 0.0  # it was -0.0
    rows[rows.index(next(each for each in rows if each["c2"]))]["c2"] = '{"b": 1, "a": null}'  # one blank less
    assert seed(destination, [version(each, 30) for each in rows], last) == Applied(30, removed=2, written=2)


def test_versions_are_closed_before_others_are_added_in_whatever_chunks_they_come(
    site: PostgresSite, destination: OneTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline.delivery.destinations.postgres_copy.CHUNK_ROWS", 2)
    keys = [(a, b) for a in (1, 2, 3, None) for b in ("x", None)]
    draw = random.Random(3)
    opened = {key: version(row(*key, 0), 1) for key in keys[::2]}
    seed(destination, list(opened.values()), replace(SEED, through=1))
    closed: list[dict[str, Any]] = []
    for position in range(2, 12):
        changes: list[Change] = []
        for key in draw.sample(keys, 5):
            if (before := opened.pop(key, None)) is not None:
                changes.append(end(*key, position))
                closed.append({**before, "_valid_to": position, "_valid_to_time": at(position), "_current": False})
            if draw.random() < 0.7:
                opened[key] = version(row(*key, position), position)
                changes.append((Op.INSERT, opened[key]))
        draw.shuffle(changes)
        plan = replace(FLUSH, expected=position - 1, through=position)
        found = flush(destination, changes, plan)
        assert (found.missing, found.duplicates) == (0, 0)
        assert content(site.held("orders")) == content([*closed, *opened.values()])


def test_policy_warn_ends_the_open_version_of_a_key_that_comes_again(site: PostgresSite, destination: OneTable) -> None:
    seed(destination, [version(row(1, None, 1), 10), version(row(2, "x", 2), 10)])
    again: list[Change] = [
        (Op.INSERT, version(row(1, None, 7), 15)),
        (Op.INSERT, version(row(2, "x", 8), 12, 14)),  # it came and went, but the one before was never removed
        (Op.INSERT, version(row(2, "x", 9), 14, 15)),
        (Op.INSERT, version(row(3, "x", 9), 16)),
    ]
    for part in (again[:1], again[1:3]):
        with pytest.raises(DuplicateKey, match=r"\(a, b\).*[12]"):
            flush(destination, [*part, again[3]])
    warned = replace(FLUSH, duplicates="warn")
    assert flush(destination, again, warned) == Applied(20, removed=2, written=4, duplicates=2)
    held = [version(row(1, None, 1), 10, 15), version(row(2, "x", 2), 10, 12), *(each for _, each in again)]
    assert content(site.held("orders")) == content(held)


def test_two_present_rows_of_one_key_are_refused_also_if_they_equal_the_open_version(destination: OneTable) -> None:
    seed(destination, [version(row(1, None, 1), 10)])
    with pytest.raises(DuplicateKey):
        seed(destination, [version(row(1, None, 1), 20)] * 2, replace(SEED, expected=10, through=20))


def test_a_mirror_becomes_a_history_with_a_seed_only(site: PostgresSite, destination: OneTable) -> None:
    mirror = replace(SEED, mode="mirror", columns=OWN)
    seed(destination, [row(1, "x", 1)], mirror)
    with pytest.raises(SchemaMismatch, match="_current"):
        flush(destination, [(Op.INSERT, version(row(2, "x", 2), 15))])
    assert seed(destination, [version(row(1, "x", 1), 20)], replace(SEED, expected=10, through=20)) == Applied(
        20, removed=1, written=1
    )
    assert content(site.held("orders")) == content([version(row(1, "x", 1), 20)])


def test_values_that_an_update_did_not_state_are_those_of_the_open_version(
    site: PostgresSite, destination: OneTable
) -> None:
    seed(destination, [version(row(1, "x", 1), 10), version(row(2, "x", 2), 10)])
    flush(destination, [end(1, "x", 12), (Op.INSERT, version(row(1, "x", 11), 12))])
    schema = arrow_schema(COLUMNS)
    changes: list[Change] = [end(1, "x", 22), (Op.INSERT, version(row(1, "x", 0), 22))]
    batches = pa.Table.from_batches(list(staged(COLUMNS, ("a", "b"), changes)))
    bits = (1 << 2).to_bytes(-(-len(schema) // 8), "little")  # `v` is not stated
    origin = {ROUTE_COLUMN: None, "a": 1, "b": "x"}
    kind = pa.struct([(ROUTE_COLUMN, pa.string()), ("a", pa.int64()), ("b", pa.string())])
    batches = batches.append_column(UNCHANGED_COLUMN, pa.array([None, bits], pa.binary()))
    batches = batches.append_column(ORIGIN_COLUMN, pa.array([None, origin], kind))
    assert batches.column_names[0] == OP_COLUMN
    found = destination.flush(replace(FLUSH, expected=20, through=30), batches.to_batches())
    assert found == Applied(30, removed=1, written=1)
    held = [each for each in site.held("orders") or [] if each["_current"] and each["a"] == 1]
    assert content(held) == content([version(row(1, "x", 11), 22)])


def test_a_large_history_is_compared_in_seconds(destination: OneTable) -> None:
    def rows(since: int, changed: int) -> list[dict[str, Any]]:
        return [version(row(n, None if n % 2 else "x", -1 if n < changed else n), since) for n in range(MANY)]

    seed(destination, rows(10, 0))
    began = time.monotonic()
    found = seed(destination, rows(20, 100), replace(SEED, expected=10, through=20))
    assert found == Applied(20, removed=100, written=100)
    assert time.monotonic() - began < MANY_S_MAX, "every row would be compared with every other"
