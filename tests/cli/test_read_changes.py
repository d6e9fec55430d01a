"""``trunkline read --changes``: the transactions of a captured database, on a real cluster."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from delivery.group_log import GroupLog, changed, schema_of
from local_cluster import Command, RunningCluster, wait_until
from trunkline import sync
from trunkline.cli.change_lines import place_text, source_of
from trunkline.client.entries import Entry
from trunkline.delivery.changes.captured import TAKE_OVER_MARK, EntryPlace, change_rows, encoded
from trunkline.delivery.changes.columns import Column
from trunkline.delivery.changes.groups import RowKind
from trunkline.delivery.changes.rows import ChangeKind
from trunkline.delivery.changes.schemas import Identity, SchemaChange, SourceColumn

ORDERS = schema_of(1, "id BIGINT, total DECIMAL(9,2), note VARCHAR", name="orders")
PLAIN = schema_of(2, "a INTEGER, b VARCHAR", (), name="plain")
NOTE = b"\x04"  # the bit of the third column
TIME = "committed 2026-09-21T14:13:20.0000{:02}+00:00, LSN 0/{:X}"


def database() -> GroupLog:
    """1 take-over, 2 catalog, 3 and 4 schemas, 5 snapshot, 6 group, 7 and 8 parts, 9 schema, 10 group."""
    log = GroupLog()
    log.schema(ORDERS)
    log.schema(PLAIN)
    log.chunk(ORDERS, 0, [(1, Decimal("3.50"), "a b"), (2, None, "NULL")])
    log.group(
        [(ORDERS, RowKind.INSERT, (3, Decimal("4.00"), "x")), (PLAIN, RowKind.INSERT, (1, "one"))],
        [
            (ORDERS, RowKind.UPDATE_NEW, (3, Decimal("5.00"), None), NOTE),
            (ORDERS, RowKind.UPDATE_OLD, (1, None, None)),
            (ORDERS, RowKind.UPDATE_NEW, (7, Decimal("3.50"), "a b")),
            (PLAIN, RowKind.UPDATE_OLD, (1, "one")),
            (PLAIN, RowKind.UPDATE_NEW, (1, "two\x1b[2J")),
            (ORDERS, RowKind.DELETE, (2, None, None)),
        ],
    )
    log.part(0, [(ORDERS, RowKind.TRUNCATE, ())])
    log.part(1, [(ORDERS, RowKind.INSERT, (9, Decimal("1.00"), "n" * 300))], last=True)
    wide = (*ORDERS.columns, SourceColumn("at", "TIMESTAMP WITH TIME ZONE", 4, 1184))
    newer = log.schema(changed(ORDERS, SchemaChange.ADDED, columns=wide))
    log.group([(newer, RowKind.INSERT, (10, Decimal("1.00"), "", 1_790_000_000_000_000))])
    return log


def store(cluster: RunningCluster, name: str, entries: Sequence[Entry]) -> None:
    with sync.connect(cluster.connect) as handle:
        log = handle.log(name, create=True)
        for entry in entries:
            log.append(entry.payload, headers=dict(entry.headers))


@pytest.fixture(scope="module")
def captured(cluster: RunningCluster) -> str:
    store(cluster, "captured", database().entries)
    return "captured"


def test_a_captured_database_is_printed_transaction_by_transaction(on_cluster: Command, captured: str) -> None:
    shown = on_cluster("read", captured, "--changes")
    assert (shown.code, shown.err) == (0, "")
    assert shown.text.splitlines() == [
        "1 take-over: a capture begins here",
        "2 catalog of 0 tables",
        "3 schema of public.orders: created; version 1, generation 1",
        "    id BIGINT, total DECIMAL(9,2), note VARCHAR; key id",
        "4 schema of public.plain: created; version 1, generation 1",
        "    a INTEGER, b VARCHAR; no key",
        "5 snapshot of public.orders: chunk 0, the last, 2 rows",
        '    read public.orders id=1 total=3.50 note="a b"',
        '    read public.orders id=2 total=NULL note="NULL"',
        f"6 transaction 1, {TIME.format(10, 10)}, 2 changes",
        "    insert public.orders id=3 total=4.00 note=x",
        "    insert public.plain a=1 b=one",
        f"6 transaction 2, {TIME.format(20, 20)}, 4 changes",
        "    update public.orders id=3 total=5.00 note=(unchanged)",
        '    update public.orders id=1->7 total=3.50 note="a b"',
        '    update public.plain b=one->"two\\u001b[2J"',
        "    delete public.orders id=2",
        f"7 transaction 3, {TIME.format(30, 30)}",
        "    truncate public.orders",
        f'    insert public.orders id=9 total=1.00 note="{"n" * 200}"… (100 more)',
        "9 schema of public.orders: added; version 2, generation 1",
        "    id BIGINT, total DECIMAL(9,2), note VARCHAR, at TIMESTAMP WITH TIME ZONE; key id",
        f"10 transaction 4, {TIME.format(40, 40)}, 1 change",
        '    insert public.orders id=10 total=1.00 note="" at="2026-09-21 14:13:20.000000Z"',
    ]


def test_it_begins_anywhere_because_it_finds_the_catalog_before(on_cluster: Command, captured: str) -> None:
    everything = on_cluster("read", captured, "--changes").text
    for start in range(2, 11):
        shown = on_cluster("read", captured, "--changes", "--from", str(start))
        assert (shown.code, shown.err) == (0, "")
        if start == 8:  # inside of a transaction: its rest, under a heading of its own
            assert shown.text.splitlines()[0].startswith("8 transaction 3, ")
            continue
        assert everything.endswith(shown.text)
        assert shown.text.startswith(f"{start} ")
    assert on_cluster("tail", captured, "--changes", "-n", "1").text.startswith("10 transaction 4, ")
    beyond = on_cluster("read", captured, "--changes", "--from", "12")
    assert beyond.code == 1
    assert "log captured ends at 10, before 12" in beyond.err


def test_one_table_is_shown_alone(on_cluster: Command, captured: str) -> None:
    shown = on_cluster("read", captured, "--changes", "--table", "public.pl*").text.splitlines()
    assert [line.split(",")[0] for line in shown] == [
        "4 schema of public.plain: created; version 1", "    a INTEGER",
        "6 transaction 1", "    insert public.plain a=1 b=one", "6 transaction 2", shown[-1],
    ]  # fmt: skip
    assert on_cluster("read", captured, "--changes", "--table", "plain").text.splitlines() == shown
    assert on_cluster("read", captured, "--table", "plain").code == 2
    assert on_cluster("read", captured, "--changes", "--raw").code == 2


def test_programs_get_a_line_of_json_for_each_change(on_cluster: Command, captured: str) -> None:
    lines = [json.loads(line) for line in on_cluster("read", captured, "--changes", "--json").out.splitlines()]
    assert [line["kind"] for line in lines] == [
        "take-over", "catalog", "schema", "schema", "snapshot", "read", "read", "insert", "insert", "update", "update",
        "update", "delete", "truncate", "insert", "schema", "insert",
    ]  # fmt: skip
    stated = {"glsn": 6, "transaction": 2, "lsn": "0/14", "commit_time": "2026-09-21T14:13:20.000020+00:00"}
    assert lines[9] == stated | {
        "kind": "update", "seq": 2, "table": "public.orders", "row": {"id": 3, "total": "5.00"}, "unchanged": ["note"],
    }  # fmt: skip
    assert lines[10]["old"] == {"id": 1}
    assert lines[12] == stated | {"kind": "delete", "seq": 7, "table": "public.orders", "row": {"id": 2}}
    assert lines[14]["row"]["note"] == "n" * 300


def test_only_what_changed_is_shown_if_the_source_records_whole_rows(
    on_cluster: Command, cluster: RunningCluster
) -> None:
    log = GroupLog()
    full = log.schema(schema_of(1, "id BIGINT, a DOUBLE, b BLOB, c DATE[]", identity=Identity.FULL))
    log.group(
        [
            (full, RowKind.UPDATE_OLD, (1, 0.1, b"\xff", [1])),
            (full, RowKind.UPDATE_NEW, (1, float("nan"), b"\xff", [1, None])),
            (full, RowKind.DELETE, (1, float("nan"), b"\xff", None)),
        ]
    )
    store(cluster, "full", log.entries)
    assert on_cluster("read", "full", "--changes", "--from", "4").text.splitlines()[1:] == [
        "    update public.table1 id=1 a=0.1->NaN c=[1970-01-02]->[1970-01-02, NULL]",
        '    delete public.table1 id=1 a=NaN b="\\\\xff" c=NULL',
    ]


def test_parts_without_a_last_one_are_not_shown(on_cluster: Command, cluster: RunningCluster) -> None:
    log = GroupLog()
    log.schema(ORDERS)
    log.part(0, [(ORDERS, RowKind.INSERT, (1, None, None))])
    log.mark()
    log.part(0, [(ORDERS, RowKind.INSERT, (1, None, "again"))])
    log.part(1, [(ORDERS, RowKind.INSERT, (2, None, "again"))], last=True)
    log.part(0, [(ORDERS, RowKind.INSERT, (3, None, "open"))])
    store(cluster, "interrupted", log.entries)
    shown = on_cluster("read", "interrupted", "--changes", "--from", "4")
    assert [line.split(",")[0] for line in shown.text.splitlines()] == [
        "5 take-over: a capture begins here", "6 transaction 1",
        "    insert public.orders id=1 total=NULL note=again", "    insert public.orders id=2 total=NULL note=again",
    ]  # fmt: skip
    assert shown.err == "trunkline: the transaction whose first entry is 8 has no end yet\n"


def test_entries_whose_catalog_was_trimmed_are_passed_over_with_a_note(
    on_cluster: Command, cluster: RunningCluster
) -> None:
    log = GroupLog()
    log.schema(ORDERS)
    log.group([(ORDERS, RowKind.INSERT, (1, None, None))])
    log.catalog()
    log.group([(ORDERS, RowKind.INSERT, (2, None, None))])
    store(cluster, "trimmed-changes", log.entries)
    assert on_cluster("log", "trim", "trimmed-changes", "3").code == 0
    shown = on_cluster("read", "trimmed-changes", "--changes")
    assert [line.split(",")[0] for line in shown.text.splitlines()] == [
        "5 catalog of 1 table", "6 transaction 2", "    insert public.orders id=2 total=NULL note=NULL",
    ]  # fmt: skip
    assert "the 1 entry before 5 cannot be read: their catalog was trimmed" in shown.err


def test_a_subscription_prints_transactions_as_they_arrive(cluster: RunningCluster, captured: str) -> None:
    log = database()
    store(cluster, "followed-changes", log.entries[:7])  # up to the first part
    with cluster.begin("subscribe", "followed-changes", "--changes", "--from", "6") as following:
        lines = iter(following.stdout or ())
        assert next(lines).startswith(b"6 transaction 1, ")
        assert [next(lines)[:6] for _ in range(7)][-1] == b"    de"
        with sync.connect(cluster.connect) as handle:
            target = handle.log("followed-changes")
            for entry in log.entries[7:]:
                target.append(entry.payload, headers=dict(entry.headers))
        assert next(lines).startswith(b"7 transaction 3, ")
        assert next(lines) == b"    truncate public.orders\n"
        assert next(lines).startswith(b"    insert public.orders id=9")
        following.send_signal(signal.SIGINT)
        wait_until(lambda: following.poll() is not None)
        assert following.returncode == 130


def test_a_corrupt_entry_is_named_with_its_position(on_cluster: Command, cluster: RunningCluster) -> None:
    log = database()
    lost = [*log.entries[:5], *log.entries[6:]]  # a group is missing
    store(cluster, "lost-group", lost)
    shown = on_cluster("read", "lost-group", "--changes")
    assert shown.code == 1
    assert shown.text.count("read public.orders") == 2, "what is before it is shown"
    assert "entry 6 is corrupt" in shown.err
    on_cluster("log", "create", "other")
    on_cluster("append", "other", stdin=b"text\n")
    other = on_cluster("read", "other", "--changes")
    assert other.code == 1
    assert "entry 1: an entry is not a batch of changes" in other.err


def test_a_log_of_one_table_is_shown_without_its_name(on_cluster: Command, cluster: RunningCluster) -> None:
    columns = (Column("id", "BIGINT"), Column("note", "VARCHAR"))

    def payload(*changes: tuple[ChangeKind, Any, Any]) -> bytes:
        rows = [
            change_rows(kind, pa.table({"id": pa.array([key], pa.int64()), "note": pa.array([note], pa.string())}))
            for kind, key, note in changes
        ]
        return encoded(columns, pa.concat_tables(rows))

    update = ((ChangeKind.UPDATE_PREIMAGE, 1, "a"), (ChangeKind.UPDATE_POSTIMAGE, 1, "b"))
    with sync.connect(cluster.connect) as handle:
        log = handle.log("one-table", create=True)
        log.append(b"", headers=TAKE_OVER_MARK.headers())
        log.append(payload((ChangeKind.INSERT, 1, "a")), headers=EntryPlace(0, False).headers())
        log.append(payload((ChangeKind.INSERT, 1, "a")), headers=EntryPlace(0, False).headers())
        log.append(payload(*update, (ChangeKind.DELETE, 1, "b")), headers=EntryPlace(1, True, "9").headers())
    assert on_cluster("read", "one-table", "--changes").text.splitlines() == [
        "1 take-over: a capture begins here",
        "2 transaction",
        "    insert id=1 note=a",
        "3 interrupted: the transaction before does not count; it comes again",
        "3 transaction",
        "    insert id=1 note=a",
        "    update note=a->b",
        "    delete id=1 note=b",
    ]
    assert on_cluster("read", "one-table", "--changes", "--table", "x").code == 2


def test_positions_are_written_as_their_database_writes_them() -> None:
    assert place_text(source_of('{"kind":"mariadb-database","lsn":1}'), (7 << 40) + 345) == ("binlog", "000007:345")
    assert place_text(source_of('{"kind":"postgres"}'), (7 << 32) + 255) == ("LSN", "7/FF")
    assert [source_of(text) for text in (None, "", "[", '{"lsn":1}')] == [""] * 4
