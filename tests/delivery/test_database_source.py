"""A table of a captured database as a source: its versions, windows and states, from the log of the database."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from delivery.group_log import GroupLog, changed, schema_of
from delivery.memory_log import MemoryLog
from delivery.random_database import Database
from trunkline.client.entries import Entry
from trunkline.client.headers import encode_headers
from trunkline.delivery.changes import table_changes
from trunkline.delivery.changes.captured import TAKE_OVER_MARK
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.groups import RowKind
from trunkline.delivery.changes.rebuilt import rebuild
from trunkline.delivery.changes.rows import ORIGIN_COLUMN, ROUTE_COLUMN, UNCHANGED_COLUMN, NetChanges
from trunkline.delivery.changes.schemas import Identity, SchemaChange, SourceColumn
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.sources import log_reader
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest, RouteFilter, TableSurvey
from trunkline.delivery.sources.database import DatabaseSource
from trunkline.delivery.sources.log import LogSource
from trunkline.errors import ConfigError, DestinationHalted, SourceExpired, Unreachable

INSERT, DELETE, OLD, NEW, TRUNCATE, READ = RowKind
ORDERS = schema_of(1, "id BIGINT, tenant VARCHAR, note VARCHAR", key=("id", "tenant"), name="orders")
OTHER = schema_of(2, "id BIGINT, note VARCHAR", name="other")
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
        self.source = DatabaseSource(LogAddress(self.log.address.log, "nowhere:1", table=table))
        self.routing, self.key = routing, tuple(key)

    def columns(self, version: int) -> Columns:
        [table] = self.source.tables(version)
        return table.columns

    def survey(self, after: int, through: int) -> TableSurvey:
        [found] = self.source.survey(Window(after, through)).tables
        return found.survey

    def asked(self, version: int) -> ReadRequest:
        return ReadRequest(self.columns(version), self.key, self.routing)

    def net(self, after: int, through: int, asked: ReadRequest, routes: RouteFilter = ALL_ROUTES) -> NetChanges:
        return self.source.net_changes(Window(after, through), {"": asked}, routes)[""]

    def window(self, after: int, through: int) -> NetChanges:
        return self.net(after, through, self.asked(through))

    def rows(self, version: int) -> list[Row]:
        [(name, found)] = self.source.scan(version, {"": self.asked(version)}, ALL_ROUTES)
        assert name == ""
        batches = list(found)
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
        log_reader._open.pop(log_reader._key(LogAddress(f"log{number}", "nowhere:1")), None)


def _orders(rows: Sequence[Row]) -> GroupLog:
    """A log with two complete tables."""
    log = GroupLog()
    log.schema(ORDERS)
    log.schema(OTHER)
    log.chunk(OTHER, 0, [])
    log.chunk(ORDERS, 0, rows)
    return log


# ------------------------------------------------------------------------------------------------------ any history


@pytest.mark.parametrize("seed", range(16))
def test_windows_and_states_of_any_history_are_those_of_the_database(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        monkeypatch.setattr(table_changes, "COMPACT_ROWS", 7)  # again and again on the way to a state
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
        names = [column.name for column in keyed.columns(through)]
        held, wanted = database.expected[after][0], database.expected[through][0]
        assert held is not None
        if net.emptied:
            assert sorted((tuple(row.values())[1:] for row in net.arrived.to_pylist()), key=repr) == wanted
            continue
        survey = keyed.survey(after, through)
        assert survey.steps is not None
        assert len(survey.steps.added) == len(names) - len(keyed.columns(after))
        assert applied(_widened(held, survey.steps), net, names, ("id",)) == wanted


def _sorted(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: repr(tuple(row.values())))


def _widened(held: Sequence[Row], steps: Any) -> list[Row]:
    """Rows of a destination that followed added columns."""
    [added] = steps.default_row().to_pylist() if steps.added else [{}]
    return [(*row, *(added[column.name] for column in steps.added)) for row in held]


# ---------------------------------------------------------------------------------------------------------- versions


def test_versions_are_ends_and_parts_that_a_crash_left_are_in_no_window() -> None:
    log = _orders(((1, "acme", "a"),))
    begin = log.last
    log.part(0, [(ORDERS, INSERT, (2, "acme", "lost"))])
    read = Reading(log.entries)
    assert read.source.state(0).version == begin
    log.mark()
    log.part(0, [(ORDERS, INSERT, (2, "acme", "b"))])
    log.part(1, [(ORDERS, INSERT, (3, "bolt", "c"))], last=True)
    log.position_mark()
    assert read.source.state(begin).version == log.last
    assert read.survey(begin, log.last).backlog.rows == 3  # the lost part has been written
    assert read.rows(log.last) == [(1, "acme", "a"), (2, "acme", "b"), (3, "bolt", "c")]
    net = read.window(begin, log.last)
    assert net.removed.num_rows == 0
    assert sorted(net.arrived.column("note").to_pylist()) == ["b", "c"]
    some = read.net(begin, log.last, read.asked(log.last), RouteFilter(("bolt",)))
    assert some.arrived.column("id").to_pylist() == [3]
    log.group([(OTHER, INSERT, (9, "x"))])
    assert read.survey(log.last - 1, read.source.state(0).version).backlog.quiet


def test_a_table_that_is_not_complete_is_waited_for_and_others_are_read() -> None:
    log = GroupLog()
    log.schema(ORDERS)
    log.schema(OTHER)
    log.chunk(ORDERS, 0, [(1, "acme", "a")], complete=False)
    log.chunk(OTHER, 0, [(5, "x")])
    read, other = Reading(log.entries), Reading(log.entries, "public.other", routing="id")
    state = read.source.state(0)
    assert state.version == 0
    assert "the snapshot of public.orders is not complete yet (1 chunk so far)" in state.waiting
    assert [column.name for column in read.columns(0)] == ["id", "tenant", "note"]
    assert other.rows(other.source.state(0).version) == [(5, "x")]
    log.chunk(ORDERS, 1, [(2, "acme", "b")])
    state = read.source.state(0)
    assert (state.version, state.waiting, state.first) == (log.last, "", log.last)
    assert read.rows(log.last) == [(1, "acme", "a"), (2, "acme", "b")]


@pytest.mark.parametrize("catalogs", [False, True])
def test_while_a_table_is_captured_again_destinations_stay_at_the_last_end_before(catalogs: bool) -> None:
    log = _orders(((1, "acme", "a"),))
    log.group([(ORDERS, INSERT, (2, "acme", "b"))])
    before = log.last
    following = Reading(log.entries)
    assert following.source.state(0).version == before
    again = log.schema(changed(ORDERS, SchemaChange.RECAPTURED))
    log.group([(OTHER, INSERT, (1, "x"))])
    if catalogs:
        log.catalog()
    log.chunk(again, 0, [(1, "acme", "A")], complete=False)
    for read in (following, Reading(log.entries)):  # one that saw it begin, and one that starts now
        state = read.source.state(before)
        assert state.version == before
        assert (
            f"public.orders is captured again (1 chunk so far): destinations stay at version {before}" in state.waiting
        )
        assert read.rows(before) == [(1, "acme", "a"), (2, "acme", "b")]
    if catalogs:
        log.catalog()
    log.chunk(again, 1, [(3, "acme", "C")])
    log.group([(again, INSERT, (4, "bolt", "D"))])
    for read in (following, Reading(log.entries)):
        assert read.source.state(before).version == log.last
        survey = read.survey(before, log.last)
        assert (survey.steps, survey.backlog.quiet) == (None, False)
        net = read.window(before, log.last)
        assert net.emptied
        assert sorted(net.arrived.column("id").to_pylist()) == [1, 3, 4]
        assert read.rows(log.last) == [(1, "acme", "A"), (3, "acme", "C"), (4, "bolt", "D")]
        assert read.rows(before) == [(1, "acme", "a"), (2, "acme", "b")]


@pytest.mark.parametrize(
    ("change", "new", "why"),
    [
        (SchemaChange.TABLE_DROPPED, {}, "was dropped"),
        (SchemaChange.TABLE_RENAMED, {"name": "old"}, "is public.old now"),
    ],
)
@pytest.mark.parametrize("catalogs", [False, True])
def test_a_table_that_was_dropped_or_renamed_halts_destinations_after_its_last_version(
    change: SchemaChange, new: dict[str, Any], why: str, catalogs: bool
) -> None:
    log = _orders(((1, "acme", "a"),))
    log.catalog()
    log.group([(ORDERS, INSERT, (2, "acme", "b"))])
    last = log.last
    following = Reading(log.entries)
    identity = following.source.state(0).identity
    log.schema(changed(ORDERS, change, **new))
    log.group([(OTHER, INSERT, (1, "x"))])
    gone = log.last
    if catalogs:
        log.catalog()
        log.group([(OTHER, INSERT, (2, "x"))])
    for read in (following, Reading(log.entries)):
        state = read.source.state(0)
        assert (state.version, state.identity.partition("#")[2]) == (gone, "1")
        assert last in state.stops
        assert read.survey(last - 1, last).backlog.rows == 1
        with pytest.raises(DestinationHalted, match=rf"public\.orders {why} since position {gone}.*retire them"):
            read.survey(last, gone)
    if change is SchemaChange.TABLE_DROPPED:
        log.schema(schema_of(3, "id BIGINT, tenant VARCHAR", name="orders"))
        for read in (following, Reading(log.entries)):
            state = read.source.state(gone)
            assert state.identity.endswith("#3")
            assert (state.version, bool(state.waiting)) == (0, True)
        lineage = following.source.lineage([last])
        assert "the source table was replaced" in lineage.divergence(identity, last, "")


def test_names_of_tables_are_checked_against_the_log() -> None:
    log = _orders(())
    with pytest.raises(
        ConfigError, match=r"no table public\.nothing; name one of its 2 tables .*public\.orders, public"
    ):
        Reading(log.entries, "public.nothing").source.state(0)
    read = Reading(log.entries)
    with pytest.raises(
        ConfigError, match=r"all tables of a database; name one in `table`.*such as public\.orders, pub"
    ):
        LogSource(LogAddress(read.log.address.log, "nowhere:1")).state(0)
    kept = [Entry(1, b"", encoded_headers=encode_headers(TAKE_OVER_MARK.headers()))]
    with pytest.raises(ConfigError, match="the changes of one table, not of a database; leave out `table`"):
        Reading(kept).source.state(0)


def test_no_window_crosses_the_end_before_a_catalog_and_a_late_window_reads_from_there() -> None:
    log = _orders(((1, "acme", "a"),))
    begin, stops = log.last, []
    for number in range(2, 202):
        log.group([(ORDERS, INSERT, (number, "acme", "x"))])
        if number % 50 == 0:
            stops.append(log.last)
            log.catalog()
    state = Reading(log.entries).source.state(begin)
    assert (state.version, list(state.stops)) == (log.last, stops)
    assert Reading(log.entries).source.state(0).first <= stops[0]
    read = Reading(log.entries)
    net = read.window(log.last - 1, log.last)
    assert net.arrived.num_rows == 1
    assert read.log.read < 20
    before = read.log.read
    read.source.state(log.last - 1)
    assert read.log.read - before < 10  # only what is new is read


def test_a_trimmed_log_is_read_as_far_as_it_has_what_a_reader_needs() -> None:
    log = _orders(((1, "acme", "a"),))
    log.group([(ORDERS, INSERT, (2, "acme", "b"))])
    before = log.last
    log.catalog()
    log.group([(ORDERS, INSERT, (3, "acme", "c"))])
    read = Reading(log.entries)
    read.log.trimmed = before
    assert read.source.state(0).version == log.last
    assert read.window(before, log.last).arrived.column("id").to_pylist() == [3]
    with pytest.raises(SourceExpired, match="trimmed"):
        read.survey(before - 1, log.last)
    with pytest.raises(DestinationHalted, match=r"no longer has all rows of public\.orders .*capture resnapshot"):
        read.rows(log.last)


def test_a_log_that_was_replaced_has_other_marks_and_is_read_again() -> None:
    log = _orders(((1, "acme", "a"),))
    read = Reading(log.entries)
    state = read.source.state(0)
    read.log.owner = (8, 8)
    now = read.source.state(state.version)
    assert now.known_mark != state.mark
    asked = ReadRequest(read.columns(state.version), ("id",), "tenant", state.mark)
    with pytest.raises(Unreachable, match="was replaced during the read"):
        read.net(BEFORE_ALL, state.version, asked, ALL_ROUTES)


# -------------------------------------------------------------------------------------------------------------- rows


def test_rows_are_found_by_columns_that_removals_state() -> None:
    log = _orders(((1, "acme", "a"),))
    begin = log.last
    log.group([(ORDERS, DELETE, (1, "acme", None))])
    read = Reading(log.entries, routing="note")
    remedy = r"only its key \(id, tenant\), but not 'note'.*ALTER TABLE public\.orders REPLICA IDENTITY FULL"
    with pytest.raises(ConfigError, match=remedy):
        read.source.check_keys("", ("id",), "note")
    with pytest.raises(DestinationHalted, match=remedy):
        read.window(begin, log.last)
    read.source.check_keys("", ("id",), "tenant")
    read.source.check_keys("", (), "note")  # of mode append, which removes nothing
    net = Reading(log.entries).window(begin, log.last)
    assert (net.removed.to_pylist(), net.arrived.num_rows) == ([{ROUTE_COLUMN: "acme", "id": 1}], 0)
    before = log.group([(ORDERS, INSERT, (2, "acme", "two"))])
    whole = log.schema(changed(ORDERS, SchemaChange.KEY, identity=Identity.FULL))
    log.group([(whole, DELETE, (2, "acme", "two"))], [(whole, INSERT, (3, "acme", "three"))])
    read.source.check_keys("", ("id",), "note")
    assert read.rows(log.last) == [(3, "acme", "three")]  # so a new seed is possible
    net = read.window(before, log.last)
    assert net.removed.to_pylist() == [{ROUTE_COLUMN: "two", "id": 2}]


FULL = schema_of(1, "id BIGINT, tenant VARCHAR, note VARCHAR", name="orders", identity=Identity.FULL)


def test_with_whole_old_rows_any_column_routes_and_nothing_is_unstated() -> None:
    log = GroupLog()
    log.schema(FULL)
    log.chunk(FULL, 0, [(1, "acme", "one"), (2, "acme", "two"), (3, "acme", "three")])
    begin = log.last
    log.group(
        [(FULL, OLD, (1, "acme", "one")), (FULL, NEW, (1, "bolt", None), b"\x04")],
        # keys that change hands, as a deferred constraint allows; and rows that come and go
        [
            (FULL, OLD, (2, "acme", "two")),
            (FULL, NEW, (3, "acme", "two")),
            (FULL, OLD, (3, "acme", "three")),
            (FULL, NEW, (2, "acme", "three")),
            (FULL, INSERT, (4, "acme", "x")),
            (FULL, OLD, (4, "acme", "x")),
            (FULL, NEW, (4, "acme", "y")),
            (FULL, DELETE, (4, "acme", "y")),
            (FULL, INSERT, (5, "acme", "x")),
            (FULL, OLD, (5, "acme", "x")),
            (FULL, NEW, (5, "acme", "y")),
        ],
    )
    read = Reading(log.entries)
    read.source.check_keys("", ("id",), "note")
    net = read.window(begin, log.last)
    assert UNCHANGED_COLUMN not in net.arrived.column_names
    assert sorted(tuple(row.values()) for row in net.removed.to_pylist()) == [("acme", 1), ("acme", 2), ("acme", 3)]
    wanted = [(1, "bolt", "one"), (2, "acme", "three"), (3, "acme", "two"), (5, "acme", "y")]
    assert sorted(tuple(row.values())[1:] for row in net.arrived.to_pylist()) == wanted
    assert read.rows(log.last) == wanted


def test_unstated_values_name_the_row_that_has_them_and_later_changes_state_them() -> None:
    log = _orders(((1, "acme", "one"), (2, "acme", "two"), (3, "acme", "three")))
    begin = log.last
    log.group(
        [(ORDERS, NEW, (1, "acme", None), b"\x04")],
        [(ORDERS, OLD, (2, "acme", None)), (ORDERS, NEW, (7, "acme", None), b"\x04")],
        [(ORDERS, OLD, (7, "acme", None)), (ORDERS, NEW, (8, "acme", None), b"\x04")],
        [(ORDERS, NEW, (3, "acme", "stated")), (ORDERS, NEW, (3, "acme", None), b"\x04")],
    )
    read = Reading(log.entries)
    net = read.window(begin, log.last)
    found = {row["id"]: (row["note"], row[UNCHANGED_COLUMN], row[ORIGIN_COLUMN]) for row in net.arrived.to_pylist()}
    assert found == {
        1: (None, b"\x04", {ROUTE_COLUMN: "acme", "id": 1}),
        8: (None, b"\x04", {ROUTE_COLUMN: "acme", "id": 2}),
        3: ("stated", None, None),
    }
    assert sorted(net.removed.column("id").to_pylist()) == [1, 2, 3]
    assert read.rows(log.last) == [(1, "acme", "one"), (3, "acme", "stated"), (8, "acme", "two")]
    keys = ReadRequest(read.columns(log.last)[:2], ("id",), "tenant")  # as for counts: nothing is unstated there
    counted = read.net(begin, log.last, keys, ALL_ROUTES)
    assert counted.arrived.column_names == [ROUTE_COLUMN, "id", "tenant"]


def test_a_truncation_empties_and_columns_are_followed_by_number() -> None:
    log = _orders(((1, "acme", "a"),))
    begin = log.last
    columns = (ORDERS.columns[0], ORDERS.columns[1], SourceColumn("text", "VARCHAR", 3), SourceColumn("n", "BIGINT", 4))
    wide = log.schema(changed(ORDERS, SchemaChange.RENAMED, SchemaChange.ADDED, columns=columns, defaults={"n": 7}))
    log.group([(wide, INSERT, (2, "acme", "b", 1))])
    read = Reading(log.entries)
    survey = read.survey(begin, log.last)
    assert survey.altered
    assert survey.steps is not None
    assert survey.steps.spelled() == "renamed 'note' to 'text', added 'n'"
    assert read.rows(log.last) == [(1, "acme", "a", 7), (2, "acme", "b", 1)]
    before = log.last
    log.group([(wide, TRUNCATE, ()), (wide, INSERT, (9, "bolt", "z", 0))], [(wide, INSERT, (10, "bolt", "z", 0))])
    net = read.window(before, log.last)
    assert net.emptied
    assert sorted(net.arrived.column("id").to_pylist()) == [9, 10]
    assert read.rows(log.last) == [(10, "bolt", "z", 0), (9, "bolt", "z", 0)]
    earlier = read.survey(begin, begin)
    assert [column.name for column in earlier.columns] == ["id", "tenant", "note"]


def test_a_reader_of_a_log_that_was_replaced_is_not_used_for_the_new_one() -> None:
    log, other = _orders(((1, "acme", "a"),)), _orders(((1, "acme", "other"),))
    for number in range(2, 6):
        log.group([(ORDERS, INSERT, (number, "acme", "x"))])
    for number in range(2, 8):
        other.group([(OTHER, INSERT, (number, "y"))], [(ORDERS, INSERT, (number, "acme", "y"))])
    read = Reading(log.entries)
    assert read.window(log.last - 2, log.last).arrived.num_rows == 2
    read.log.owner, read.log._entries = (8, 8), other.entries
    assert read.window(other.last - 1, other.last).arrived.column("note").to_pylist() == ["y"]


def test_over_a_change_of_the_key_destinations_are_seeded_again() -> None:
    log = _orders(((1, "acme", "a"), (2, "acme", "b"), (3, "acme", "c")))
    log.group([(ORDERS, DELETE, (1, "acme", None))], [(ORDERS, INSERT, (4, "acme", "d"))])
    before = log.last
    log.group([(ORDERS, DELETE, (2, "acme", None))], [(ORDERS, NEW, (3, "acme", None), b"\x04")])
    other = log.schema(changed(ORDERS, SchemaChange.KEY, key=("note",)))
    log.group([(other, DELETE, (None, None, "d"))], [(other, INSERT, (5, "acme", "e"))])
    read = Reading(log.entries)
    assert read.rows(log.last) == [(3, "acme", "c"), (5, "acme", "e")]
    assert read.rows(log.last) == [tuple(row.values()) for row in _sorted(rebuild(log.entries, log.last)[1])]
    with pytest.raises(SourceExpired, match=r"the key of public\.orders changed; the destination is seeded again"):
        read.window(before, log.last)
    assert read.rows(before) == [(2, "acme", "b"), (3, "acme", "c"), (4, "acme", "d")]
