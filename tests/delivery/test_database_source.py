"""A table of a captured database as a source: its versions, windows and states, from the log of the database."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from delivery.group_log import schema_of
from delivery.memory_log import MemoryLog
from delivery.random_database import Database
from trunkline.delivery.changes.groups import RowKind
from trunkline.delivery.changes.rebuilt import rebuild
from trunkline.delivery.changes.rows import ORIGIN_COLUMN, UNCHANGED_COLUMN, NetChanges
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest
from trunkline.delivery.sources.database import DatabaseTableSource
from trunkline.delivery.sources.log_reader import forget_reader

INSERT, DELETE, OLD, NEW, TRUNCATE, READ = RowKind
ORDERS = schema_of(1, "id BIGINT, tenant VARCHAR, note VARCHAR", key=("id", "tenant"), name="orders")
NAMES = count(1)

Row = tuple[Any, ...]


class Reading:
    """A source over a log in memory."""

    def __init__(
        self,
        entries: Sequence[Any],
        table: str = "public.orders",
        *,
        routing: str = "tenant",
        key: Sequence[str] = ("id",),
    ) -> None:
        self.log = MemoryLog(f"log{next(NAMES)}", entries)
        self.source = DatabaseTableSource(LogAddress(self.log.address.log, "nowhere:1", table=table))
        self.routing, self.key = routing, tuple(key)

    def asked(self, version: int) -> ReadRequest:
        return ReadRequest(self.source.columns(version), self.key, self.routing)

    def window(self, after: int, through: int) -> NetChanges:
        return self.source.net_changes(Window(after, through), self.asked(through), ALL_ROUTES)

    def rows(self, version: int) -> list[Row]:
        batches = list(self.source.scan(version, self.asked(version), ALL_ROUTES))
        return sorted((tuple(row.values())[1:] for batch in batches for row in batch.to_pylist()), key=repr)


def applied(held: Sequence[Row], net: NetChanges, names: Sequence[str], key: Sequence[str]) -> list[Row]:
    """What a destination does with the net changes of a window, row by row."""
    places = [list(names).index(name) for name in key]
    before = {tuple(row[place] for place in places): row for row in held}
    after = dict(before)
    for gone in net.removed.to_pylist():
        del after[tuple(gone[name] for name in key)]
    for row in net.arrived.to_pylist():
        whole = [row[name] for name in names]
        if row.get(UNCHANGED_COLUMN) is not None:
            bits = int.from_bytes(row[UNCHANGED_COLUMN], "little")
            origin = before[tuple(row[ORIGIN_COLUMN][name] for name in key)]
            whole = [origin[place] if bits >> place & 1 else value for place, value in enumerate(whole)]
        found = tuple(whole[place] for place in places)
        assert found not in after
        after[found] = tuple(whole)
    return sorted(after.values(), key=repr)


def multiset(held: Sequence[Row], net: NetChanges) -> list[Row]:
    left = list(held)
    for gone in net.removed.to_pylist():
        left.remove(tuple(gone.values())[1:])
    return sorted([*left, *(tuple(row.values())[1:] for row in net.arrived.to_pylist())], key=repr)


@pytest.fixture(scope="module", autouse=True)
def _no_logs_are_left() -> Iterator[None]:
    yield
    for number in range(1, next(NAMES)):
        forget_reader(LogAddress(f"log{number}", "nowhere:1"))


# ------------------------------------------------------------------------------------------------------ any history


@pytest.mark.parametrize("seed", range(16))
def test_windows_and_states_of_any_history_are_those_of_the_database(seed: int) -> None:
    database = Database(seed)
    for _ in range(60):
        database.step()
    chance = random.Random(seed)
    keyed = Reading(database.log.entries, "public.table1", routing="id")
    plain = Reading(database.log.entries, "public.table2", routing="a", key=("a", "b"))
    ends = sorted(end for end, (rows, _) in database.expected.items() if rows is not None)
    for end in chance.sample(ends, min(6, len(ends))):
        expected, loose = database.expected[end]
        assert expected is not None
        assert (
            keyed.rows(end)
            == expected
            == [tuple(row.values()) for row in _sorted(rebuild(database.log.entries, end)[1])]
        )
        assert plain.rows(end) == loose
    for _ in range(12):
        after, through = sorted(chance.sample(sorted(database.expected), 2))
        net = plain.window(after, through)
        assert multiset(database.expected[after][1], net) == database.expected[through][1]
        if after not in ends or through not in ends:
            continue
        net = keyed.window(after, through)
        names = [column.name for column in keyed.source.columns(through)]
        held, wanted = database.expected[after][0], database.expected[through][0]
        assert held is not None
        if net.emptied:
            assert sorted((tuple(row.values())[1:] for row in net.arrived.to_pylist()), key=repr) == wanted
            continue
        survey = keyed.source.survey(Window(after, through))
        assert survey.steps is not None
        assert len(survey.steps.added) == len(names) - len(keyed.source.columns(after))
        assert applied(_widened(held, survey.steps), net, names, ("id",)) == wanted


def _sorted(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: repr(tuple(row.values())))


def _widened(held: Sequence[Row], steps: Any) -> list[Row]:
    """Rows of a destination that followed added columns."""
    [added] = steps.default_row().to_pylist() if steps.added else [{}]
    return [(*row, *(added[column.name] for column in steps.added)) for row in held]
