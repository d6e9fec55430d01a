"""A Delta table as a source: every window of random histories against the difference of two pinned snapshots."""

from __future__ import annotations

import datetime
import pickle
import random
import shutil
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from trunkline.delivery.changes.columns import Column
from trunkline.delivery.changes.rows import ROUTE_COLUMN, NetChanges
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.config.addresses import DeltaAddress
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest, RouteFilter
from trunkline.delivery.sources.delta import DeltaSource
from trunkline.errors import ConfigError, SourceExpired

FEED: Final = {"delta.enableChangeDataFeed": "true"}
SCHEMA: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("tenant", pa.string()),
        ("amount", pa.int32()),
        ("share", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.string())),
    ]
)
SHARES: Final = (
    RouteFilter(("a",)),
    RouteFilter(("b", None)),
    RouteFilter(("zzz",), ("a", "b", None)),
)  # together: everything
STEPS: Final = 11
Row = tuple[str, ...]


def source_at(path: Path) -> DeltaSource:
    return DeltaSource(DeltaAddress(str(path)))


def asked(source: DeltaSource, version: int) -> ReadRequest:
    columns = source.columns(version)
    return ReadRequest(columns, tuple(column.name for column in columns), "tenant")


def spelled(rows: Iterable[dict[str, Any]], names: Iterable[str]) -> Counter[Row]:
    """Rows in a form that compares: -0.0 is not 0.0, NaN is NaN, NULL is NULL."""
    listed = list(names)
    return Counter(tuple(repr(row.get(name)) for name in listed) for row in rows)


def difference(before: Counter[Row], after: Counter[Row]) -> dict[Row, int]:
    total = Counter(after)
    total.subtract(before)
    return {row: count for row, count in total.items() if count}


def signed(net: NetChanges, names: Iterable[str]) -> dict[Row, int]:
    listed = list(names)
    return difference(spelled(net.removed.to_pylist(), listed), spelled(net.arrived.to_pylist(), listed))


# --------------------------------------------------------------------------------------------------------------- fuzz


class History:
    """A real Delta table that random statements are made on. Few values, so that equal rows come back."""

    def __init__(self, seed: int, path: Path) -> None:
        self.path = path
        self.chance = random.Random(seed)
        self.schema = SCHEMA
        parts = ["tenant"] if self.chance.random() < 0.3 else None
        write_deltalake(path, self.rows(6), configuration=FEED, partition_by=parts)

    def rows(self, count: int) -> pa.Table:
        draw = self.chance.choice
        values: dict[str, tuple[Any, ...]] = {
            "id": (None, *range(10)),
            "tenant": ("a", "b", "c", None),
            "amount": (0, 1, 2),
            "share": (0.0, 0.5, float("nan"), None),
            "price": (Decimal("1.50"), Decimal("-2.00"), None),
            "at": (datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), None),
            "tags": (None, [], ["x"], ["x", None]),
            "note": ("n", None),
        }
        return pa.table({n: [draw(values[n]) for _ in range(count)] for n in self.schema.names}, schema=self.schema)

    def step(self) -> None:
        often = (self.append, self.merge, self.maintain)
        self.chance.choice((*often, *often, self.update, self.delete, self.overwrite, self.restore, self.grow))()

    def append(self) -> None:
        write_deltalake(self.path, self.rows(self.chance.randint(1, 4)), mode="append")

    def update(self) -> None:
        change = self.chance.choice(({"amount": "1"}, {"tenant": "'a'"}, {"id": "id + 1"}, {"share": "0.5"}))
        DeltaTable(self.path).update(predicate=f"amount = {self.chance.randrange(3)}", updates=change)

    def delete(self) -> None:
        where = ("id = 3", "tenant is null", "amount = 2 and id > 4", "id is null", None)
        DeltaTable(self.path).delete(self.chance.choice(where))

    def merge(self) -> None:
        found = {row["id"]: row for row in self.rows(4).to_pylist() if row["id"] is not None}
        rows = pa.Table.from_pylist(list(found.values()), schema=self.schema)
        merge = DeltaTable(self.path).merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        matched = merge.when_matched_delete("s.amount = 0").when_matched_update_all("s.amount = 1")
        matched.when_not_matched_insert_all().execute()

    def maintain(self) -> None:
        table = DeltaTable(self.path)
        self.chance.choice(
            (table.optimize.compact, lambda: table.optimize.z_order(["amount"]), table.create_checkpoint)
        )()

    def overwrite(self) -> None:
        rows = self.rows(self.chance.randint(0, 3))
        if self.chance.random() < 0.5:
            write_deltalake(self.path, rows, mode="overwrite")
        else:
            mine = pa.Table.from_pylist([{**row, "tenant": "a"} for row in rows.to_pylist()], schema=self.schema)
            write_deltalake(self.path, mine, mode="overwrite", predicate="tenant = 'a'")

    def restore(self) -> None:
        table = DeltaTable(self.path)
        if "note" not in self.schema.names and table.version() > 0:
            table.restore(self.chance.randrange(table.version()))

    def grow(self) -> None:
        if "note" not in self.schema.names:
            self.schema = self.schema.append(pa.field("note", pa.string()))
            write_deltalake(self.path, self.rows(2), mode="append", schema_mode="merge")

    def state(self, version: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pa.table(DeltaTable(self.path, version=version - 1).scan()).to_pylist()
        return rows


@pytest.mark.parametrize("seed", range(6))
def test_every_window_is_the_difference_of_its_two_snapshots(seed: int, tmp_path: Path) -> None:
    history = History(seed, tmp_path / "table")
    for _ in range(STEPS):
        history.step()
    source = source_at(history.path)
    newest = source.state(0).version
    states = {0: [], **{version: history.state(version) for version in range(1, newest + 1)}}
    for through in range(1, newest + 1):
        question = asked(source, through)
        names = [column.name for column in question.columns]
        for after in range(through):
            expected = difference(spelled(states[after], names), spelled(states[through], names))
            window = Window(after, through)
            assert signed(source.net_changes(window, question, ALL_ROUTES), names) == expected, window


ODD: Final = (
    "a b", "a%b", "%20", "a/b", "..", "é", "e\u0301", "x'y", 'q"r', "a=b", "c:d", "#?", "a*b", "[z]", "\\", "n\nl",
    "nul\0x", "\0", "+", "", None, "😀", "x" * 100,
)  # fmt: skip
PARTITIONS: Final[dict[str, tuple[pa.DataType, tuple[Any, ...]]]] = {
    "tenant": (pa.string(), ODD),
    "day": (pa.date32(), (datetime.date(2026, 1, 31), datetime.date(1582, 10, 1), None)),
    "at": (pa.timestamp("us", tz="UTC"), (datetime.datetime(2026, 1, 1, 2, 3, 4, 5, tzinfo=datetime.UTC), None)),
    "local": (pa.timestamp("us"), (datetime.datetime.fromisoformat("2026-01-01T02:03:04.000005"), None)),
    "whole": (pa.int32(), (-7, 0, None)),
    "share": (pa.float64(), (1.5e30, -0.1, float("inf"), None)),
    "price": (pa.decimal128(10, 2), (Decimal("12.30"), Decimal("0.00"), None)),
    "paid": (pa.bool_(), (True, False, None)),
}


@pytest.mark.parametrize("column", PARTITIONS)
def test_values_of_partitions_may_be_anything(column: str, tmp_path: Path) -> None:
    kind, values = PARTITIONS[column]
    rows: dict[str, Any] = {"id": range(len(values)), "tenant": pa.array(["a"] * len(values))}
    rows |= {column: pa.array(values, kind)}
    half = len(values) // 2
    write_deltalake(tmp_path, pa.table(rows).slice(0, half), partition_by=[column], configuration=FEED)
    write_deltalake(tmp_path, pa.table(rows).slice(half), mode="append")
    DeltaTable(tmp_path).update(updates={"id": "id + 100"}, predicate="id % 2 = 0")
    DeltaTable(tmp_path).delete("id % 3 = 0")
    source = source_at(tmp_path)
    newest = source.state(0).version
    question = asked(source, newest)
    names = [each.name for each in question.columns]
    states = [pa.table(DeltaTable(tmp_path, version=number).scan()).to_pylist() for number in range(newest)]
    for after in range(1, newest):
        expected = difference(spelled(states[after - 1], names), spelled(states[newest - 1], names))
        window = Window(after, newest)
        assert signed(source.net_changes(window, question, ALL_ROUTES), names) == expected
        if column == "tenant":  # each value is a share of its own, and none keeps another from being read
            shares = [*(RouteFilter((value,)) for value in ODD), RouteFilter((), ODD)]
            parts: Counter[Row] = Counter()
            for share in shares:
                parts.update(signed(source.net_changes(window, question, share), names))
            assert {row: count for row, count in parts.items() if count} == expected


def test_a_table_with_binary_partitions_is_refused(tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "tenant": ["a"], "body": pa.array([b"a b"], pa.binary())})
    write_deltalake(tmp_path, rows, partition_by=["body"], configuration=FEED)
    with pytest.raises(ConfigError, match="partitioned by body, which is binary"):
        source_at(tmp_path).state(0)


def test_shares_of_a_window_make_up_the_whole(tmp_path: Path) -> None:
    history = History(3, tmp_path / "table")
    for _ in range(4):
        history.append()
    history.delete()
    source = source_at(history.path)
    newest = source.state(0).version
    question = asked(source, newest)
    names = [ROUTE_COLUMN, *(column.name for column in question.columns)]
    for window in (Window(1, newest), Window(0, newest)):
        whole = source.net_changes(window, question, ALL_ROUTES)
        total: Counter[Row] = Counter()
        for share in SHARES:
            part = source.net_changes(window, question, share)
            routes = set(part.arrived[ROUTE_COLUMN].to_pylist())
            assert routes <= ({"c"} if share.all_but else set(share.values))
            total.update(signed(part, names))
        assert dict(total) == signed(whole, names)


# -------------------------------------------------------------------------------------------------------------- cases

THREE: Final = pa.table({"id": [1, 2, 3], "tenant": ["a", "b", None]})


def made(path: Path, *tables: pa.Table) -> DeltaSource:
    for at, table in enumerate(tables):
        write_deltalake(path, table, mode="append", configuration=None if at else FEED)
    return source_at(path)


def test_versions_count_from_one_and_zero_is_before_the_table(tmp_path: Path) -> None:
    source = made(tmp_path / "t", THREE, THREE)
    state = source.state(0)
    assert (state.version, state.oldest, state.stops) == (2, 1, ())
    assert state.identity == str(DeltaTable(tmp_path / "t").metadata().id)
    question = asked(source, 2)
    for after, count in ((BEFORE_ALL, 6), (0, 6), (1, 3)):
        net = source.net_changes(Window(after, 2), question, ALL_ROUTES)
        assert (net.removed.num_rows, net.arrived.num_rows) == (0, count)
    assert (
        source.net_changes(Window(0, 1), question, ALL_ROUTES).arrived.num_rows == 3
    )  # the trailing version is not in it


def test_equal_rows_are_counted_and_not_joined_into_one(tmp_path: Path) -> None:
    source = made(tmp_path / "t", THREE, THREE, THREE)
    question = asked(source, 3)
    assert sorted(source.net_changes(Window(1, 3), question, ALL_ROUTES).arrived["id"].to_pylist()) == [
        1,
        1,
        2,
        2,
        3,
        3,
    ]
    DeltaTable(tmp_path / "t").delete("id = 1")
    gone = source.net_changes(Window(3, 4), question, ALL_ROUTES)
    assert gone.removed["id"].to_pylist() == [1, 1, 1]
    assert gone.removed[ROUTE_COLUMN].to_pylist() == ["a", "a", "a"]
    assert gone.arrived.num_rows == 0


def test_a_zero_with_a_sign_and_one_without_are_two_values(tmp_path: Path) -> None:
    zeros = [
        pa.table({"id": [1, 2], "tenant": ["a", "a"], "share": [first, second]})
        for first, second in ((0.0, -0.0), (-0.0, 0.0))
    ]
    source = made(tmp_path / "t", zeros[0])
    write_deltalake(tmp_path / "t", zeros[1], mode="overwrite")
    net = source.net_changes(Window(1, 2), asked(source, 2), ALL_ROUTES)
    names = ["id", "share"]
    assert signed(net, names) == {("1", "-0.0"): 1, ("2", "0.0"): 1, ("1", "0.0"): -1, ("2", "-0.0"): -1}


def test_removed_rows_have_the_key_and_arrived_ones_every_column_in_its_type(tmp_path: Path) -> None:
    history = History(1, tmp_path / "t")
    source = source_at(history.path)
    DeltaTable(history.path).delete()
    history.append()
    question = ReadRequest(source.columns(3), ("id", "at"), "tenant")
    net = source.net_changes(Window(1, 3), question, ALL_ROUTES)
    assert net.arrived.schema == question.empty_rows().schema
    assert net.removed.schema.names == [ROUTE_COLUMN, "id", "at"]
    assert net.removed.num_rows == 6


def test_every_type_of_delta_has_a_name_in_the_vocabulary(tmp_path: Path) -> None:
    types = {
        "BOOLEAN": pa.bool_(),
        "TINYINT": pa.int8(),
        "SMALLINT": pa.int16(),
        "INTEGER": pa.int32(),
        "BIGINT": pa.int64(),
        "FLOAT": pa.float32(),
        "DOUBLE": pa.float64(),
        "VARCHAR": pa.string(),
        "BLOB": pa.binary(),
        "DATE": pa.date32(),
        "TIMESTAMP": pa.timestamp("us"),
        "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", tz="UTC"),
        "DECIMAL(38,9)": pa.decimal128(38, 9),
        "INTEGER[]": pa.list_(pa.int32()),
    }
    fields = [pa.field(f"c{at}", kind) for at, kind in enumerate(types.values())]
    schema = pa.schema([*fields, pa.field("tenant", pa.string(), nullable=False)])
    source = made(tmp_path / "t", pa.Table.from_pylist([{"tenant": "a"}], schema=schema))
    columns = source.columns(1)
    assert columns == (*(Column(f"c{at}", name) for at, name in enumerate(types)), Column("tenant", "VARCHAR", False))
    net = source.net_changes(Window(0, 1), ReadRequest(columns, ("c4",), "tenant"), ALL_ROUTES)
    assert net.arrived.num_rows == 1


def test_live_rows_are_looked_up_by_route_and_key_null_safe(tmp_path: Path) -> None:
    source = made(tmp_path / "t", THREE, pa.table({"id": [3, None], "tenant": [None, "a"]}, schema=THREE.schema))
    question = ReadRequest(source.columns(2), ("id",), "tenant")
    keys = pa.table({ROUTE_COLUMN: [None, "a", "b"], "id": [3, None, 1]})
    found = source.live(2, question, keys).to_pylist()
    assert sorted((row["id"] or 0, row["tenant"] or "") for row in found) == [(0, "a"), (3, ""), (3, "")]
    assert source.live(1, question, keys).num_rows == 1


def test_a_scan_is_of_one_version_and_of_some_routes(tmp_path: Path) -> None:
    source = made(tmp_path / "t", THREE, THREE)
    question = asked(source, 2)
    assert sum(batch.num_rows for batch in source.scan(1, question, ALL_ROUTES)) == 3
    assert sum(batch.num_rows for batch in source.scan(2, question, RouteFilter(("a", None)))) == 4


def test_a_survey_has_the_backlog_and_whether_it_is_quiet(tmp_path: Path) -> None:
    source = made(tmp_path / "t", THREE, THREE)
    DeltaTable(tmp_path / "t").optimize.compact()
    assert source.survey(Window(1, 2)).backlog.rows == 3
    assert not source.survey(Window(1, 2)).backlog.quiet
    compacted = source.survey(Window(2, 3))
    assert compacted.backlog.quiet
    assert compacted.columns == source.columns(3)
    assert source.survey(Window(BEFORE_ALL, 3)).backlog.rows == 6


def test_the_mark_changes_with_each_commit_and_only_then(tmp_path: Path) -> None:
    source = source_at(tmp_path / "t")
    seen = [source.change_hint()]
    assert seen == [None]
    made(tmp_path / "t", THREE)
    for at in range(12):
        if at % 5 == 4:
            DeltaTable(tmp_path / "t").create_checkpoint()
            assert source.change_hint() == seen[-1] or at == 4
        write_deltalake(tmp_path / "t", THREE, mode="append")
        seen.append(source.change_hint())
        assert source.change_hint() == seen[-1]
        assert source.state(0).version == at + 2
    assert len(set(seen)) == len(seen)


def test_a_source_travels_to_another_process() -> None:
    source = DeltaSource(DeltaAddress("somewhere"))
    assert pickle.loads(pickle.dumps(source)) == source


# ------------------------------------------------------------------------------------------------ columns that change


def test_a_widened_column_has_its_new_type_in_the_whole_window(tmp_path: Path) -> None:
    narrow = pa.table({"id": pa.array([1, 2], pa.int32()), "tenant": ["a", "a"]})
    wide = pa.table({"id": pa.array([2, 2**40], pa.int64()), "tenant": ["a", "a"]})
    source = made(tmp_path / "t", narrow)
    write_deltalake(tmp_path / "t", wide, mode="overwrite", schema_mode="overwrite")
    net = source.net_changes(Window(1, 2), asked(source, 2), ALL_ROUTES)
    assert (net.removed["id"].to_pylist(), net.arrived["id"].to_pylist()) == ([1], [2**40])


def test_a_dropped_column_does_not_tell_rows_apart(tmp_path: Path) -> None:
    source = made(tmp_path / "t", THREE.append_column("note", pa.array(["x", "y", "z"])))
    write_deltalake(tmp_path / "t", THREE.slice(1), mode="overwrite", schema_mode="overwrite")
    net = source.net_changes(Window(1, 2), asked(source, 2), ALL_ROUTES)
    assert (net.removed["id"].to_pylist(), net.arrived.num_rows) == ([1], 0)


# ----------------------------------------------------------------------------------------------------- what goes wrong


def test_a_table_without_the_feed_is_refused_with_the_way_to_turn_it_on(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", THREE)
    with pytest.raises(ConfigError, match=r"delta\.enableChangeDataFeed"):
        source_at(tmp_path / "t").state(0)
    with pytest.raises(ConfigError, match="no Delta table"):
        source_at(tmp_path / "nothing").state(0)


def test_a_table_that_is_read_in_another_way_is_refused_by_the_name_of_the_feature(tmp_path: Path) -> None:
    source = made(tmp_path / "t", THREE)
    table = DeltaTable(tmp_path / "t")
    table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises(ConfigError, match="deletionVectors"):
        source.state(0)


def test_a_window_from_before_the_feed_was_on_has_expired(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_deltalake(path, THREE)
    write_deltalake(path, THREE, mode="append")
    DeltaTable(path).alter.set_table_properties(FEED)
    write_deltalake(path, THREE, mode="append")
    source = source_at(path)
    question = asked(source, 4)
    for after in (2, 3):
        assert source.survey(Window(after, 4)).backlog.rows == 3
        assert source.net_changes(Window(after, 4), question, ALL_ROUTES).arrived.num_rows == 3
    with pytest.raises(SourceExpired, match="version 1"):
        source.survey(Window(1, 4))
    assert source.net_changes(Window(0, 4), question, ALL_ROUTES).arrived.num_rows == 9  # needs no feed


def test_a_window_whose_files_were_vacuumed_has_expired(tmp_path: Path) -> None:
    path = tmp_path / "t"
    source = made(path, THREE, THREE)
    DeltaTable(path).update(predicate="id = 1", updates={"tenant": "'z'"})
    question = asked(source, 3)
    assert source.net_changes(Window(2, 3), question, ALL_ROUTES).arrived.num_rows == 2
    DeltaTable(path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    shutil.rmtree(path / "_change_data")
    with pytest.raises(SourceExpired, match="vacuumed"):
        source.survey(Window(2, 3))
    with pytest.raises(SourceExpired, match="vacuumed"):
        source.net_changes(Window(2, 3), question, ALL_ROUTES)
    with pytest.raises(SourceExpired, match="vacuumed"):
        list(source.scan(2, question, ALL_ROUTES))
    assert sum(batch.num_rows for batch in source.scan(3, question, ALL_ROUTES)) == 6


def test_a_window_whose_log_was_cut_has_expired(tmp_path: Path) -> None:
    path = tmp_path / "t"
    source = made(path, THREE, THREE, THREE, THREE)
    question = asked(source, 4)
    DeltaTable(path).create_checkpoint()
    write_deltalake(path, THREE, mode="append")
    for number in range(3):
        (path / "_delta_log" / f"{number:020}.json").unlink()
    assert source.state(0).oldest == 4
    assert source.net_changes(Window(4, 5), question, ALL_ROUTES).arrived.num_rows == 3
    with pytest.raises(SourceExpired, match="version 2"):
        source.survey(Window(2, 5))
    with pytest.raises(SourceExpired, match="version 2"):
        source.net_changes(Window(2, 5), question, ALL_ROUTES)
    with pytest.raises(SourceExpired, match="no longer has version 1"):
        list(source.scan(2, question, ALL_ROUTES))
