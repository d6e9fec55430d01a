"""Large windows of logs, read by Spark, come to what one piece does; and rows do not pass through the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import trunkline.sync
from delivery.group_log import GroupLog, schema_of
from delivery.test_log_split import COLUMNS, OneTableLog
from local_cluster import RunningCluster, local_cluster
from trunkline.client.entries import Entry
from trunkline.delivery.changes.groups import RowKind
from trunkline.delivery.changes.rows import ChangeKind, NetChanges
from trunkline.delivery.changes.schemas import Identity
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.config.table_patterns import Selection
from trunkline.delivery.sources import database_split
from trunkline.delivery.sources import log as log_source
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest, Source, WindowFrames
from trunkline.delivery.sources.factory import source_of
from trunkline.delivery.sources.log_reader import forget_reader

INSERT, DELETE, OLD, NEW, TRUNCATE, READ = RowKind
NAMES = count(1)
ORDERS = schema_of(
    1, "id BIGINT, tenant VARCHAR, note VARCHAR, at TIMESTAMP_NS, code UUID", name="orders", identity=Identity.FULL
)
KEYED = schema_of(2, "id BIGINT, note VARCHAR", name="keyed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster"), nodes=1) as running:
        yield running


class Written:
    """A log of a cluster, with entries that were made in memory."""

    def __init__(self, connect: str, entries: Sequence[Entry]) -> None:
        self.address = LogAddress(f"large{next(NAMES)}", connect)
        with trunkline.sync.connect(connect) as opened:
            log = opened.log(self.address.log, create=True)
            for entry in entries:
                log.append(bytes(entry.payload), headers=dict(entry.headers))


def _same(source: Source, table: str, frames: WindowFrames | None, window: Window, request: ReadRequest) -> NetChanges:
    assert frames is not None
    net = source.net_changes(window, {table: request}, ALL_ROUTES)[table]
    assert frames.emptied == net.emptied
    schema = request.empty_rows().schema
    for frame, wanted in ((frames.arrived(), net.arrived), (frames.removed(), net.removed)):
        found = frame.toArrow()
        typed = found.cast(pa.schema([schema.field(name) for name in found.column_names]))
        assert _rows(typed) == _rows(wanted)
    return net


def _rows(table: pa.Table) -> list[Any]:
    return sorted((tuple(map(str, row.values())) for row in table.to_pylist()), key=repr)


def _orders(number: int) -> tuple[Any, ...]:
    return (
        number,
        "xyz"[number % 3],
        f"note {number}",
        number * 10**9 + 1,
        f"0000000{number % 10}-0000-0000-0000-000000000000",
    )


def test_tables_of_a_captured_database(spark: SparkSession, cluster: RunningCluster, monkeypatch: Any) -> None:
    monkeypatch.setattr(database_split, "PART_BYTES", 2000)
    log = GroupLog()
    log.schema(ORDERS)
    log.schema(KEYED)
    log.chunk(ORDERS, 0, [_orders(number) for number in range(100)], complete=False)
    log.catalog()
    log.chunk(ORDERS, 1, [_orders(number) for number in range(100, 200)])
    log.chunk(KEYED, 0, [(number, f"note {number}") for number in range(50)])
    begin = log.last
    log.catalog()
    for number in range(0, 60, 3):
        old, new = _orders(number), (number + 500, *_orders(number)[1:])
        log.group([(ORDERS, OLD, old), (ORDERS, NEW, (*new[:2], None, *new[3:]), b"\x04")])
        log.group([(KEYED, OLD, (number, None)), (KEYED, NEW, (number + 500, None), b"\x02")] if number < 50 else [])
    log.group([(ORDERS, DELETE, _orders(7))], [(ORDERS, INSERT, _orders(900))])
    last = log.last
    written = Written(cluster.connect, log.entries)
    source = source_of(written.address, Selection(("public.*",)))
    tables = {each.name: each for each in source.tables(last)}
    asked = ReadRequest(tables["public.orders"].columns, ("id",), "tenant")
    larges = source.large_reads(list(tables))
    assert larges is not None
    for after in (BEFORE_ALL, begin):
        window = Window(after, last)
        net = _same(source, "public.orders", larges["public.orders"].frames(spark, window, asked), window, asked)
        assert net.arrived.num_rows == (200 if after == BEFORE_ALL else 21)
    keys = ReadRequest(tables["public.keyed"].columns, ("id",), "")
    large = larges["public.keyed"]
    whole = _same(
        source, "public.keyed", large.frames(spark, Window(BEFORE_ALL, last), keys), Window(BEFORE_ALL, last), keys
    )
    assert sum(note is None for note in whole.arrived.column("note").to_pylist()) == 0
    assert large.frames(spark, Window(begin, last), keys) is None  # destinations have the values that it lacks
    forget_reader(written.address)


def test_a_log_of_one_table(spark: SparkSession, cluster: RunningCluster, monkeypatch: Any) -> None:
    monkeypatch.setattr(log_source, "PART_BYTES", 2000)
    log = OneTableLog()
    pieces = [[(number, "xy"[number % 2], "a") for number in range(first, first + 50)] for first in range(0, 500, 50)]
    log.transaction(log.truncation(), *(log.rows(ChangeKind.INSERT, *rows) for rows in pieces[:5]), whole=False)
    log.mark()
    log.transaction(log.truncation(), *(log.rows(ChangeKind.INSERT, *rows) for rows in pieces))
    begin = log.ends[-1]
    for number in range(80):
        log.transaction(log.rows(ChangeKind.DELETE, (number, "xy"[number % 2], "a")))
    written = Written(cluster.connect, log.entries)
    source = source_of(written.address)
    asked = ReadRequest(COLUMNS, ("id",), "tenant")
    larges = source.large_reads([""])
    assert larges is not None
    large = larges[""]
    for after, wanted in ((BEFORE_ALL, 420), (begin, 0), (1, 420)):
        window = Window(after, log.ends[-1])
        frames = large.frames(spark, window, asked)
        net = source.net_changes(window, {"": asked}, ALL_ROUTES)[""]
        assert net.arrived.num_rows == wanted
        assert frames is not None
        if after != BEFORE_ALL:
            _same(source, "", frames, window, asked)
        assert _rows(frames.arrived().toArrow()) == _rows(net.arrived)
    forget_reader(written.address)
