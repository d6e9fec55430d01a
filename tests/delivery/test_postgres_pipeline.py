"""Ordinary members of a PostgreSQL place, written in few round trips: rules Q1 to Q5 of ``postgres_pipeline.py``.

The way of one member after the other, behind savepoints, is the judge: both give the same results and rows.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa
import pytest
from msgspec.structs import replace
from psycopg import sql

from contract.postgres_destination import PostgresKind, PostgresSite
from postgres_server import PostgresServer
from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.destinations import postgres_batch, postgres_elements, postgres_pipeline
from trunkline.delivery.destinations.contract import Applied, MemberResult, Standing
from trunkline.delivery.destinations.postgres_elements import OddValue, elements
from trunkline.delivery.destinations.postgres_pipeline import OrdinaryMembers
from trunkline.destination_suite.place import Change, Doing, Plan, Row, content
from trunkline.destination_suite.steps import CHANGES, FLUSH, FLUSHED, SEED, SEEDED, applied, doing, done, holds, stands
from trunkline.errors import DestinationHalted, DuplicateKey, PositionMoved, TrunklineError

NAMES: Final = ("acme", "bolt", "coil", "dyno")
STANDS: Final = Standing(20, 1, "lake/orders")
WITHOUT_KEY: Final[Change] = (Op.INSERT, {"id": None, "tenant": "acme", "amount": 0})


@pytest.fixture
def site(postgres: PostgresServer, tmp_path: Path) -> PostgresSite:
    return PostgresKind().make(tmp_path, lambda: postgres)


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, no member is ordinary."""
    return lambda: monkeypatch.setattr(OrdinaryMembers, "write", lambda _, steps: {})


def member(name: str) -> str:
    return f"shop/{name}"


def seeded(site: PostgresSite, names: Sequence[str] = NAMES, seed: Plan = SEED, rows: Any = SEEDED) -> None:
    done(site, *(doing(site, {name: rows}, seed, member(name)) for name in names))


def flushes(site: PostgresSite, changes: dict[str, list[Change]] | None = None, flush: Plan = FLUSH) -> list[Doing]:
    """Of all members; ``changes`` of some that differ."""
    return [doing(site, {name: (changes or {}).get(name, CHANGES)}, flush, member(name)) for name in NAMES]


def watched(site: PostgresSite, *doings: Doing) -> tuple[dict[str, MemberResult], list[str]]:
    """The results, and the statements that were sent."""
    statements: list[str] = []
    with closing(site.open(statements.append)) as place:
        return place.apply([one.write() for one in doings]), statements


def counted(statements: list[str], beginning: str) -> int:
    return sum(statement.lstrip().startswith(beginning) for statement in statements)


# --------------------------------------------------------------------------------------------------- what is ordinary


def test_q2_ordinary_members_need_no_savepoints_and_q5_one_statement_for_all_records(site: PostgresSite) -> None:
    seeded(site)
    found, statements = watched(site, *flushes(site))
    assert found == dict.fromkeys(map(member, NAMES), Applied(20, removed=2, written=2))
    assert not any("SAVEPOINT" in statement or statement.startswith("COPY") for statement in statements)
    sent = [counted(statements, verb) for verb in ("DELETE", "INSERT", "UPDATE", "BEGIN", "COMMIT")]
    assert sent == [4, 4, 1, 1, 1]
    for name in NAMES:
        holds(site, {name: FLUSHED})
        assert stands(site, (name,), member(name)) == STANDS


def test_q1_other_members_are_written_beside_ordinary_ones_and_fail_alone(site: PostgresSite) -> None:
    seeded(site)
    noted: Columns = (*FLUSH.columns, Column("note", "VARCHAR"))
    doings = flushes(site, {"acme": [*CHANGES, WITHOUT_KEY], "coil": [*CHANGES, WITHOUT_KEY, (Op.INSERT, SEEDED[2])]})
    doings[3] = doing(site, {"dyno": CHANGES}, replace(FLUSH, columns=noted), "shop/dyno")
    found, statements = watched(site, *doings)
    assert isinstance(found.pop("shop/coil"), DuplicateKey)
    assert found == {
        "shop/acme": Applied(20, removed=2, written=3),
        "shop/bolt": Applied(20, removed=2, written=2),
        "shop/dyno": Applied(20, removed=2, written=2),
    }
    assert counted(statements, "BEGIN") == 1
    assert counted(statements, "INSERT") == 1, "only bolt is ordinary"
    holds(site, {"acme": [*FLUSHED, WITHOUT_KEY[1]], "bolt": FLUSHED, "coil": SEEDED})
    holds(site, {"dyno": [{**row, "note": None} for row in FLUSHED]})
    assert stands(site, ("coil",), "shop/coil") == Standing(10, 1, "lake/orders")


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_rows_as_arrays_and_as_a_copy_are_the_same(
    site: PostgresSite, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(postgres_batch, "ARRAY_ROWS_MAX", 3)
    seeded(site)
    more: list[Change] = [(Op.INSERT, {"id": 10 + n, "tenant": None, "amount": n}) for n in range(rows)]
    found, statements = watched(site, *flushes(site, {"bolt": [*CHANGES, *more]}))
    assert found["shop/bolt"] == Applied(20, removed=2, written=2 + rows)
    assert counted(statements, "COPY") == (rows > 1)
    holds(site, {"acme": FLUSHED, "bolt": [*FLUSHED, *(row for _, row in more)]})


@pytest.mark.parametrize("most", [1, 3, 7, 1000])
def test_q2_a_pipeline_has_a_chunk_of_rows(site: PostgresSite, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(postgres_pipeline, "CHUNK_ROWS", most)
    seeded(site)
    found, statements = watched(site, *flushes(site))
    assert found == dict.fromkeys(map(member, NAMES), Applied(20, removed=2, written=2))
    assert (counted(statements, "COPY") == 4) == (most < len(CHANGES)), "a member with more than a chunk goes alone"
    for name in NAMES:
        holds(site, {name: FLUSHED})


def test_a_member_with_many_tables_is_ordinary(site: PostgresSite) -> None:
    applied(site, doing(site, dict.fromkeys(NAMES, SEEDED), SEED))
    flush = doing(site, {"acme": CHANGES, "bolt": [], "coil": [(Op.REMOVE, {"id": 1})], "dyno": CHANGES})
    found, statements = watched(site, flush)
    assert found == {"shop/acme": Applied(20, removed=5, written=4)}
    assert (counted(statements, "DELETE"), counted(statements, "INSERT")) == (3, 2)
    holds(site, {"acme": FLUSHED, "bolt": SEEDED, "coil": SEEDED[1:], "dyno": FLUSHED})


def test_members_whose_rows_come_in_other_types_of_arrow_share_a_pipeline(site: PostgresSite) -> None:
    seeded(site)
    writes = [one.write() for one in flushes(site)]
    kept = writes[1].rows["bolt"]

    def wide() -> Iterator[pa.RecordBatch]:
        for batch in kept():
            place = batch.schema.get_field_index("tenant")
            yield batch.set_column(place, "tenant", batch.column(place).cast(pa.large_string()))

    writes[1] = writes[1]._replace(rows={"bolt": wide})
    statements: list[str] = []
    with closing(site.open(statements.append)) as place:
        found = place.apply(writes)
    assert found == dict.fromkeys(map(member, NAMES), Applied(20, removed=2, written=2))
    assert counted(statements, "INSERT") == len(NAMES)
    holds(site, {"acme": FLUSHED, "bolt": FLUSHED})


# ------------------------------------------------------------------------------------------------------------- errors


def test_q3_a_member_that_fails_does_so_alone_with_its_own_error(site: PostgresSite) -> None:
    seeded(site)
    changes: dict[str, list[Change]] = {"bolt": [*CHANGES, (Op.INSERT, SEEDED[2])]}
    found, statements = watched(site, *flushes(site, changes))
    error = found.pop("shop/bolt")
    assert isinstance(error, DuplicateKey)
    assert "(id)=(3)" in str(error)
    assert set(found.values()) == {Applied(20, removed=2, written=2)}
    assert counted(statements, "BEGIN") == 2
    assert counted(statements, "RELEASE SAVEPOINT") == 3
    holds(site, {"acme": FLUSHED, "bolt": SEEDED, "coil": FLUSHED, "dyno": FLUSHED})


def test_q3_everything_is_judged_again_after_an_error(site: PostgresSite) -> None:
    """Another process moves a member between the two transactions."""
    seeded(site)
    begun = 0

    def watch(statement: str) -> None:
        nonlocal begun
        begun += statement == "BEGIN"
        if statement == "BEGIN" and begun == 2:
            site.run("UPDATE {} SET position = 15 WHERE member = 'shop/coil'", "_trunkline_members")

    with closing(site.open(watch)) as place:
        doings = flushes(site, {"bolt": [(Op.INSERT, SEEDED[0])]})
        found = place.apply([one.write() for one in doings])
    assert {type(found[member(name)]) for name in ("acme", "dyno")} == {Applied}
    assert isinstance(found["shop/coil"], PositionMoved)
    assert isinstance(found["shop/bolt"], DuplicateKey)
    holds(site, {"acme": FLUSHED, "bolt": SEEDED, "coil": SEEDED, "dyno": FLUSHED})


def test_q3_a_record_that_does_not_move_undoes_the_rows(site: PostgresSite) -> None:
    seeded(site)
    function = sql.SQL(
        "CREATE FUNCTION {home}.stay() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
        "CREATE TRIGGER stay BEFORE UPDATE ON {home}._trunkline_members FOR EACH ROW WHEN (old.member = 'shop/bolt') "
        "EXECUTE FUNCTION {home}.stay()"
    )
    with psycopg.connect(site.dsn) as connection:
        connection.execute(function.format(home=sql.Identifier(site.home)))
    found = done(site, *flushes(site))
    assert isinstance(found.pop("shop/bolt"), PositionMoved)
    assert set(found.values()) == {Applied(20, removed=2, written=2)}
    holds(site, {"acme": FLUSHED, "bolt": SEEDED, "coil": FLUSHED, "dyno": FLUSHED})


def test_an_odd_value_is_named_by_its_column_and_fails_alone(site: PostgresSite) -> None:
    seeded(site)
    odd: Change = (Op.INSERT, {"id": 9, "tenant": "a\0b", "amount": 1})
    found, statements = watched(site, *flushes(site, {"bolt": [odd]}))
    error = found.pop("shop/bolt")
    assert isinstance(error, DestinationHalted)
    assert "'tenant'" in str(error)
    assert "NUL" in str(error)
    assert set(found.values()) == {Applied(20, removed=2, written=2)}
    assert counted(statements, "BEGIN") == 1, "it is found before anything is sent"


# -------------------------------------------------------------------------------------------------------------- plans


def test_q4_a_kept_plan_finds_keys_by_the_index_when_the_table_has_grown(site: PostgresSite) -> None:
    seeded(site, ["acme"], rows=[])
    grown = 20_000
    with closing(site.open()) as place:
        for number in range(12):  # by then the server has settled for a plan
            flush = replace(FLUSH, expected=10 + number, through=11 + number)
            changes: list[Change] = [(Op.REPLACE, {"id": 0, "tenant": "a", "amount": number})]
            [result] = place.apply([doing(site, {"acme": changes}, flush).write()]).values()
            assert isinstance(result, Applied)
        name = site.address("acme").table
        site.run(f"INSERT INTO {{}} SELECT n, 'b', n FROM generate_series(1, {grown}) AS n", name)
        flush = replace(FLUSH, expected=22, through=23)
        several: list[Change] = [(Op.REMOVE, {"id": n}) for n in range(1, 100)]
        assert place.apply([doing(site, {"acme": several}, flush).write()]) == {"shop/acme": Applied(23, removed=99)}
    scans = sql.SQL("SELECT seq_tup_read FROM pg_stat_user_tables WHERE relid = {}::regclass")
    with psycopg.connect(site.dsn) as connection:
        row = connection.execute(scans.format(sql.Literal(site.named("acme")))).fetchone()
    assert row is not None
    assert row[0] < grown


def test_more_tables_than_plans_are_kept_for_are_written_all_the_same(
    site: PostgresSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline.delivery.backends.postgres_session.PLANS_MAX", 5)
    seeded(site)
    with closing(site.open()) as place:
        for number in range(8):
            plan = replace(FLUSH, expected=10 + number, through=11 + number, counts_missing=False)
            some = NAMES if number % 4 == 3 else NAMES[:2]  # in between, two tables are few enough to be kept
            plans = [replace(plan, expected=10 + 4 * (number // 4)) if name not in NAMES[:2] else plan for name in some]
            rows: list[Change] = [(Op.REPLACE, {"id": 1, "tenant": "a", "amount": number}), (Op.REMOVE, {"id": 2})]
            doings = [doing(site, {name: rows}, own, member(name)) for name, own in zip(some, plans, strict=True)]
            found = place.apply([one.write() for one in doings])
            assert {type(each) for each in found.values()} == {Applied}, found
    for name in NAMES:
        holds(site, {name: [SEEDED[2], {"id": 1, "tenant": "a", "amount": 7}]})


def test_an_error_in_the_middle_of_a_long_pipeline_is_the_one_that_counts(site: PostgresSite) -> None:
    names = [f"t{n}" for n in range(120)]
    seeded(site, names)
    doings = [doing(site, {name: CHANGES}, FLUSH, member(name)) for name in names]
    doings[40] = doing(site, {"t40": [(Op.INSERT, SEEDED[0])]}, FLUSH, "shop/t40")
    doings[80] = doing(site, {"t80": [(Op.INSERT, SEEDED[1])]}, FLUSH, "shop/t80")
    found = done(site, *doings)
    assert {name for name, each in found.items() if isinstance(each, DuplicateKey)} == {"shop/t40", "shop/t80"}
    assert sum(each == Applied(20, removed=2, written=2) for each in found.values()) == 118
    holds(site, {"t0": FLUSHED, "t40": SEEDED, "t80": SEEDED, "t119": FLUSHED})


def test_settings_for_ordinary_members_end_with_them(site: PostgresSite) -> None:
    seeded(site)
    shown: list[str] = []

    def watch(statement: str) -> None:
        if statement.startswith("COPY"):
            connection = place._own._connection  # type: ignore[attr-defined]
            settings = "SELECT current_setting('enable_seqscan'), current_setting('plan_cache_mode')"
            shown.extend(connection.execute(settings).fetchone())

    with closing(site.open(watch)) as place:
        found = place.apply([one.write() for one in flushes(site, {"coil": [*CHANGES, WITHOUT_KEY]})])
    assert {type(each) for each in found.values()} == {Applied}
    assert shown == ["on", "auto"]


# ---------------------------------------------------------------------------------------------------- beside the judge

KEYS: Final[dict[str, tuple[Columns, Callable[[int], Row]]]] = {
    "an integer": ((Column("id", "BIGINT"),), lambda n: {"id": n}),
    "a text": ((Column("id", "VARCHAR"),), lambda n: {"id": f"k%s {n}"}),
    "a decimal": ((Column("id", "DECIMAL(9,3)"),), lambda n: {"id": _decimal(n)}),
    "a text and a date": (
        (Column("id", "VARCHAR"), Column('of "day"', "DATE")),
        lambda n: {"id": str(n // 3), 'of "day"': _day(n % 3)},
    ),
}


def _decimal(n: int) -> Any:
    return pa.scalar(str(n * 1009), pa.string()).cast(pa.decimal128(9, 3)).as_py() / 1000


def _day(n: int) -> Any:
    return pa.scalar(n, pa.int32()).cast(pa.date32()).as_py()


def random_flush(rng: random.Random, live: set[int], key: Callable[[int], Row], *, clean: bool) -> list[Change]:
    """Changes of distinct keys; unless ``clean``, some insert a key that is there, or remove one that is not."""
    changes: list[Change] = []
    for n in rng.sample(range(40), rng.randint(0, 12)):
        there = n in live if clean or rng.random() < 0.95 else n not in live
        op = rng.choice([Op.REMOVE, Op.REPLACE]) if there else Op.INSERT
        values = {"note": rng.choice(["", None, "long " * 50]), "size": rng.choice([None, -1, 2**31 - 1])}
        changes.append((op, key(n) if op is Op.REMOVE else {**key(n), **values}))
        live.discard(n) if op is Op.REMOVE else live.add(n)
    return changes


@pytest.mark.parametrize("mode", ["mirror halt", "mirror warn", "append halt"])
@pytest.mark.parametrize("key", KEYS)
def test_random_flushes_give_the_same_as_one_member_after_the_other(
    site: PostgresSite, one_by_one: Callable[[], None], key: str, mode: str
) -> None:
    keys, make = KEYS[key]
    kind, policy = mode.split()
    columns = (*keys, Column("note", "VARCHAR"), Column("size", "INTEGER"))
    seed = replace(SEED, columns=columns, key=tuple(each.name for each in keys), mode=kind, duplicates=policy)
    rng = random.Random(f"{key} {mode}")
    steps: list[dict[str, list[Change]]] = []
    live: dict[str, set[int]] = {name: set() for name in NAMES}
    for _ in range(6):
        made = {name: random_flush(rng, live[name], make, clean=rng.random() < 0.7) for name in NAMES}
        steps.append({n: [c for c in each if kind == "mirror" or c[0] is Op.INSERT] for n, each in made.items()})
    found = []
    for prefix in ("fast", "slow"):
        if prefix == "slow":
            one_by_one()
        found.append(list(_played(site, prefix, seed, steps)))
    assert found[0] == found[1]


def _played(
    site: PostgresSite, prefix: str, seed: Plan, steps: Sequence[dict[str, list[Change]]]
) -> Iterator[tuple[object, ...]]:
    """What each step results in, and the rows after it, by member; a member that fails stays where it is."""
    names = {name: f"{prefix}_{name}" for name in NAMES}
    seeded(site, list(names.values()), seed, [])
    at = dict.fromkeys(NAMES, 10)
    for number, step in enumerate(steps, 11):
        flush = replace(seed, seeds=False, through=number)
        doings = [
            doing(site, {names[name]: changes}, replace(flush, expected=at[name]), member(names[name]))
            for name, changes in step.items()
        ]
        results = done(site, *doings)
        for name in NAMES:
            result = results[member(names[name])]
            at[name] = number if isinstance(result, Applied) else at[name]
            spelled = re.sub(f"{prefix}_|s[0-9a-f]{{32}}", "", str(result))
            yield name, isinstance(result, TrunklineError), spelled, content(site.held(names[name]))


# ------------------------------------------------------------------------------------------------------------ encoding


@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("VARCHAR", pa.array(["a", "b\0"])),
        ("UUID", pa.array(["{00000000-0000-0000-0000-000000000000}"])),
        ("UUID", pa.array(["00000000000000000000000000000000"])),
        ("UUID", pa.array(["0000000g-0000-0000-0000-000000000000"])),
        ("TIME", pa.array([-1], pa.int64()).cast(pa.time64("us"))),
        ("TIMESTAMP", pa.array([-(2**63)], pa.int64()).cast(pa.timestamp("us"))),
        ("TIMESTAMP_MS", pa.array([2**60], pa.int64()).cast(pa.timestamp("ms"))),
        ("DATE", pa.array([-(2**31)], pa.int32()).cast(pa.date32())),
        ("UBIGINT", pa.array([1], pa.uint64())),
        ("INTEGER[]", pa.array([[1]], pa.list_(pa.int32()))),
    ],
)
def test_values_that_are_not_encoded_exactly_are_left_to_the_other_way(type_name: str, value: pa.Array) -> None:
    with pytest.raises(OddValue):
        elements(Column("c", type_name), pa.chunked_array([value]))


def test_slices_of_columns_are_encoded_like_whole_ones() -> None:
    """Rows of a member are a slice of those of all members: offsets and NULLs of Arrow are easily misread."""
    texts = pa.array(["a", None, "ccc", "", "é", None])
    sliced = pa.chunked_array([texts.slice(1, 3), texts.slice(4)])
    found = elements(Column("c", "VARCHAR"), sliced)
    head = bytes.fromhex("00000001 00000001 00000019 00000005 00000001")
    assert found.array(0, 5) == head + b"\xff\xff\xff\xff\0\0\0\3ccc\0\0\0\0\0\0\0\2\xc3\xa9\xff\xff\xff\xff"
    numbers = pa.array([None, 7, None, -2], pa.int16()).slice(1)
    content = postgres_elements.CopyRows([elements(Column("c", "SMALLINT"), pa.chunked_array([numbers]))])
    assert content.content(0, 2) == postgres_elements.COPY_HEADER + bytes.fromhex(
        "0001 00000002 0007 0001 ffffffff ffff"
    )
