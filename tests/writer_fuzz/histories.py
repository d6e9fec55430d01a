"""Random histories of a lake: direct flushes, flushes by the extension, other programs, maintenance; each is judged."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb
from msgspec.structs import replace

from contract.ducklake_destination import LakeKind
from postgres_server import PostgresServer
from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.changes.columns import Column
from trunkline.errors import TrunklineError
from writer_fuzz.judge import Wrong, judge
from writer_fuzz.lake import LAKE, FuzzedLake
from writer_fuzz.shapes import drawn_shape

STEPS_EACH: Final = 40  # of one lake
Servers = Callable[[], PostgresServer]


@contextmanager
def made_lake(seed: int, catalog: str, postgres: Servers) -> Iterator[FuzzedLake]:
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="trunkline-writer-fuzz-") as folder:
        site = LakeKind(catalog).make(Path(folder), postgres)
        lake = FuzzedLake(site, drawn_shape(draw), draw)
        try:
            lake.seed()
            yield lake
        finally:
            lake.close()


def judged_steps(
    seed: int, catalog: str, postgres: Servers, steps: int = STEPS_EACH
) -> Iterator[tuple[str, Wrong | None]]:
    """Each step of a history, and what is wrong after it. Ends after something is."""
    with made_lake(seed, catalog, postgres) as lake:
        for _ in range(steps):
            name, step = lake.draw.choices(STEPS, [weight for weight, *_ in STEPS])[0][1:]
            try:
                step(lake)
                wrong = judge(lake)
            except (AssertionError, duckdb.Error, TrunklineError) as error:
                wrong = Wrong("error", f"{type(error).__name__}: {error}"[:300])
            yield name, wrong
            if wrong is not None:
                return


# ------------------------------------------------------------------------------------------------------------- steps


def _direct(lake: FuzzedLake) -> None:
    lake.flush(directly=True)
    assert lake.inlined or lake.direct.last is not None
    if not lake.inlined and lake.direct.last is not None and lake.direct.last.left:
        raise AssertionError(f"a flush was not direct: {lake.direct.last.reasons}")


def _by_extension(lake: FuzzedLake) -> None:
    lake.flush(directly=False)


def _other_insert(lake: FuzzedLake) -> None:
    """Another program adds rows, perhaps with keys that the table has."""
    inlines = lake.draw.random() < 0.2
    rows = [lake.shape.row(lake.draw, lake.shape.key_value(lake.draw), -1) for _ in range(lake.draw.randint(1, 3))]
    names = ", ".join(identifier(column.name) for column in lake.shape.columns)
    marks = ", ".join(f"CAST(? AS {column.type})" for column in lake.shape.columns)
    with lake.attached(inlines=inlines) as connection:
        connection.execute("BEGIN")
        for row in rows:
            values = [row[column.name] for column in lake.shape.columns]
            connection.execute(f"INSERT INTO {lake.path} ({names}) VALUES ({marks})", values)
        connection.execute("COMMIT")
    lake.rows += rows
    lake.inlined = lake.inlined or inlines
    lake.note()


def _other_delete(lake: FuzzedLake) -> None:
    """Another program removes the rows of some versions."""
    versions = {row["v"] for row in lake.rows}
    if not versions or lake.inlined:
        return
    gone = lake.draw.choice(sorted(versions))
    with lake.attached() as connection:
        connection.execute(f"DELETE FROM {lake.path} WHERE v = {gone}")
    lake.rows = [row for row in lake.rows if row["v"] != gone]
    lake.note()


def _other_update(lake: FuzzedLake) -> None:
    versions = {row["v"] for row in lake.rows}
    if not versions or lake.inlined:
        return
    old = lake.draw.choice(sorted(versions))
    with lake.attached() as connection:
        connection.execute(f"UPDATE {lake.path} SET v = v + 1000 WHERE v = {old}")
    for row in lake.rows:
        if row["v"] == old:
            row["v"] += 1000
    lake.rows = [dict(row) for row in lake.rows]
    lake.note()


def _other_rename(lake: FuzzedLake) -> None:
    """Another program renames a column; what is older is not read any more, under names that it did not have."""
    old = lake.draw.choice([column.name for column in lake.shape.columns if column.name not in (*lake.shape.key, "v")])
    names = {old: f"{old}x"}
    with lake.attached() as connection:
        connection.execute(f"ALTER TABLE {lake.path} RENAME COLUMN {identifier(old)} TO {identifier(names[old])}")
    columns = tuple(Column(names.get(each.name, each.name), each.type) for each in lake.shape.columns)
    lake.shape = replace(lake.shape, columns=columns)
    lake.rows = [{names.get(name, name): value for name, value in row.items()} for row in lake.rows]
    lake.versions.clear()
    lake.feeds.clear()
    lake.note()


def _maintained(*statements: str) -> Callable[[FuzzedLake], None]:
    def step(lake: FuzzedLake) -> None:
        table, schema = literal(lake.address.table), literal(lake.address.schema)
        newest = lake.newest()
        with lake.attached() as connection:
            for statement in statements:
                connection.execute(statement.format(l=LAKE, t=table, s=schema, v=newest))
        lake.feeds.clear()
        if "flush_inlined" in statements[0]:
            lake.inlined = False
        lake.note()

    return step


STEPS: Final[tuple[tuple[int, str, Callable[[FuzzedLake], None]], ...]] = (
    (50, "direct flush", _direct),
    (15, "flush by the extension", _by_extension),
    (6, "insert of another program", _other_insert),
    (4, "delete of another program", _other_delete),
    (3, "update of another program", _other_update),
    (3, "rename of another program", _other_rename),
    (4, "merge_adjacent_files", _maintained("CALL ducklake_merge_adjacent_files('{l}', {t}, schema => {s})")),
    (
        4,
        "rewrite_data_files",
        _maintained("CALL ducklake_rewrite_data_files('{l}', {t}, schema => {s}, delete_threshold => 0.1)"),
    ),
    (
        6,
        "flush_inlined_data",
        _maintained("CALL ducklake_flush_inlined_data('{l}', schema_name => {s}, table_name => {t})"),
    ),
    (2, "flush of records", _maintained("CALL ducklake_flush_inlined_data('{l}', schema_name => {s})")),
    (
        3,
        "expire_snapshots",
        _maintained("CALL ducklake_expire_snapshots('{l}', older_than => now() + INTERVAL 1 HOUR)"),
    ),
    (3, "cleanup_old_files", _maintained("CALL ducklake_cleanup_old_files('{l}', cleanup_all => true)")),
)
