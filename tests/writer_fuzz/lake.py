"""A lake under the fuzz: who writes to it, what it should hold at each version, and other programs' statements."""

from __future__ import annotations

import datetime
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import duckdb
import psycopg
from msgspec.structs import replace

from contract.ducklake_destination import LakeSite, unwatched
from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake, catalog_location, detach
from trunkline.delivery.backends.sql import identifier
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.destinations.contract import Applied, MemberWrite
from trunkline.delivery.destinations.ducklake import DuckLakePlace
from trunkline.delivery.destinations.ducklake_direct.direct_lake import DirectLake, DirectOutcome
from trunkline.destination_suite.place import Change, Plan, Row, Table, plain, staged
from trunkline.errors import TrunklineError
from writer_fuzz.shapes import Shape

LAKE: Final = "l"
SOURCE: Final = "lake/fuzz"
# The extension remembers a table of inlined rows that another connection dropped; attached again, it finds out.
STALE: Final = "Failed to read inlined data from DuckLake"
PlainRow = tuple[str, ...]
Rows = Counter[PlainRow]


class Seen(DirectLake):
    """Remembers what became of the last call."""

    last: DirectOutcome | None = None

    def apply(self, writes: Sequence[MemberWrite]) -> DirectOutcome:
        self.last = super().apply(writes)
        return self.last


@dataclass
class Feed:
    """What one direct flush added and removed."""

    version: int
    added: Rows
    removed: Rows


@dataclass
class FuzzedLake:
    """One table of one member, and the truth about it."""

    site: LakeSite
    shape: Shape
    draw: random.Random
    rows: list[dict[str, Any]] = field(default_factory=list)
    position: int = 1
    versions: dict[int, Rows] = field(default_factory=dict)  # that can be read
    feeds: list[Feed] = field(default_factory=list)  # since the last maintenance
    direct_flushes: int = 0
    inlined: bool = False  # another program may have left rows in the catalog
    expected: Applied | None = None
    got: Applied | TrunklineError | None = None

    def __post_init__(self) -> None:
        self.table = Table(self.site, "fuzzed")
        self.address: LakeAddress = self.site.address("fuzzed")
        self.path = f"{LAKE}.{identifier(self.address.schema)}.{identifier(self.address.table)}"
        self.connection = new_duckdb("ducklake", "sqlite_scanner", "postgres_scanner")
        self.direct = Seen(self.address)
        self.places = {
            True: DuckLakePlace(self.address, unwatched(), direct=self.direct),
            False: DuckLakePlace(self.address, unwatched()),
        }

    # ---------------------------------------------------------------------------------------------------- flushes

    @property
    def plan(self) -> Plan:
        shape = self.shape
        return Plan(
            self.position + 1,
            1,
            SOURCE,
            shape.columns,
            shape.key,
            expected=self.position,
            mode=shape.mode,
            duplicates=shape.duplicates,
        )

    def seed(self) -> None:
        keys = {self.shape.key_value(self.draw) for _ in range(self.draw.choice((0, 3, 30)))}
        self.rows = [self.shape.row(self.draw, key, 0) for key in sorted(keys, key=repr)]
        plan = replace(self.plan, expected=0, seeds=True, through=1)
        step = plan.member(self.site, self.table.member, [plan.table(self.site, self.table.name)])
        batches = list(plain(self.shape.columns, self.rows))
        [result] = self.places[False].apply([MemberWrite(step, {self.table.name: lambda: iter(batches)})]).values()
        assert isinstance(result, Applied), result
        self.note()

    def flush(self, *, directly: bool) -> None:
        """A random flush; ``expected`` is what it should report, or ``None`` for a duplicate key."""
        changes = self._changes()
        self.expected, after = self._model(changes)
        plan = self.plan
        step = plan.member(self.site, self.table.member, [plan.table(self.site, self.table.name)])
        batches = list(staged(self.shape.columns, self.shape.key, changes))
        write = MemberWrite(step, {self.table.name: lambda: iter(batches)})
        version = self.newest() + 1  # of the flush; compaction may follow
        [self.got] = self.places[directly].apply([write]).values()
        if STALE in str(self.got):
            [self.got] = self.places[directly].apply([write]).values()
        if self.expected is not None:
            self.rows, self.position = after, self.position + 1
        if directly:
            self.direct_flushes += not self._handed_over()
        if directly and self.expected is not None and not self._handed_over():
            keys = {self._key(row) for _, row in changes} if self.shape.mode == "mirror" else set()
            removed = Counter(self.spelled(row) for row in self._before if self._key(row) in keys)
            added = Counter(self.spelled(row) for op, row in changes if op is not Op.REMOVE)
            self.feeds.append(Feed(version, added, removed))
        self.note()

    def _handed_over(self) -> bool:
        return self.direct.last is None or bool(self.direct.last.left)

    def _changes(self) -> list[Change]:
        draw, shape = self.draw, self.shape
        keys = list({shape.key_value(draw): None for _ in range(draw.choice((0, 1, 3, 12)))})
        held = {self._key(row) for row in self.rows}
        changes: list[Change] = []
        for key in keys:
            row = shape.row(draw, key, self.position + 1)
            if shape.mode == "append":
                op = Op.INSERT
            elif key in held and draw.random() < 0.97:
                op = draw.choice((Op.REPLACE, Op.REMOVE))
            elif key in held or draw.random() < 0.9:
                op = Op.INSERT
            else:
                op = draw.choice((Op.REPLACE, Op.REMOVE))
            changes.append((op, row))
        return changes

    def _model(self, changes: list[Change]) -> tuple[Applied | None, list[dict[str, Any]]]:
        """What a flush reports (T3, T4), and the rows after it."""
        self._before = list(self.rows)
        through = self.position + 1
        written = [dict(row) for op, row in changes if op is not Op.REMOVE]
        if self.shape.mode == "append":
            return Applied(through, 0, len(written)), [*self.rows, *written]
        held = {self._key(row) for row in self.rows}
        keys = {self._key(row) for _, row in changes}
        kept = [row for row in self.rows if self._key(row) not in keys]
        removed = len(self.rows) - len(kept)
        inserts = [self._key(row) for op, row in changes if op is Op.INSERT]
        others = [self._key(row) for op, row in changes if op is not Op.INSERT]
        duplicates = sum(key in held for key in inserts)
        if self.shape.duplicates == "halt":
            if duplicates:
                return None, self.rows
            missing = max(0, len(others) - removed)
        else:
            missing = len(others) - sum(key in held for key in others)
        return Applied(through, removed, len(written), duplicates, missing), [*kept, *written]

    def _key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.shape.key)

    # ------------------------------------------------------------------------------------------------ other programs

    @contextmanager
    def attached(self, *, inlines: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
        attach_lake(self.connection, self.address, LAKE, read_only=False)
        try:
            limit = 10 if inlines else 0
            self.connection.execute(f"SET ducklake_default_data_inlining_row_limit = {limit}")
            yield self.connection
        finally:
            detach(self.connection, LAKE)

    def newest(self) -> int:
        """The newest version, by a plain driver: attaching takes longer than most steps."""
        query = "SELECT max(snapshot_id) FROM ducklake_snapshot"
        _, location = catalog_location(self.site.catalog)
        if self.in_sqlite:
            with closing(sqlite3.connect(location, timeout=60)) as plain_sqlite:
                return int(plain_sqlite.execute(query).fetchall()[0][0])
        with psycopg.connect(location) as plain_postgres:
            return int(plain_postgres.execute(query).fetchall()[0][0])

    def note(self) -> None:
        """The rows of the newest version are known."""
        self.versions[self.newest()] = Counter(map(self.spelled, self.rows))

    def spelled(self, row: Row) -> PlainRow:
        return tuple(spelled(row[column.name]) for column in self.shape.columns)

    @property
    def in_sqlite(self) -> bool:
        return catalog_location(self.site.catalog)[0] == "sqlite"

    def close(self) -> None:
        for place in self.places.values():
            place.close()
        self.connection.close()


def spelled(value: Any) -> str:
    """The same for what is written and what DuckDB reads."""
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    if isinstance(value, bytearray | memoryview):
        value = bytes(value)
    if hasattr(value, "astimezone") and value.tzinfo is not None:
        value = value.astimezone(datetime.UTC)
    return str(value)
