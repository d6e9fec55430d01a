"""Messages of pgoutput become groups of whole transactions and parts of large ones, exactly and in order."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.numbered_tables import NumberedTables
from delivery.pgoutput_messages import (
    Stream,
    begin,
    commit,
    delete,
    insert,
    logical_message,
    relation,
    texts,
    truncate,
    update,
)
from trunkline.delivery.capture.postgres.change_batches import EPOCH_MICROS, UnfitChange
from trunkline.delivery.capture.postgres.decoder import Cut, Decoder, Limits
from trunkline.delivery.capture.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Field,
    Insert,
    Relation,
    Row,
    Truncate,
    Update,
    parse,
)
from trunkline.delivery.capture.source import Changes, KeepAlive, SchemaUnit, Unit, Watermark
from trunkline.delivery.changes.groups import PLACE_FIELDS, TX, RowKind
from trunkline.delivery.changes.groups import UNCHANGED as UNCHANGED_FIELD
from trunkline.errors import ProtocolError

WIDE = Limits(rows=1000, bytes=1_000_000)
Change = tuple[int, int, RowKind, Row | None]  # xid, table, kind, values


def decoded(messages: Sequence[bytes], limits: Limits = WIDE, *, fed: int = 1000, prefix: str = "mark") -> list[Unit]:
    decoder = Decoder(NumberedTables(), limits, prefix=prefix)
    units: list[Unit] = []
    for first in range(0, len(messages), fed):
        decoder.feed(messages[first : first + fed])
        units += decoder.units()
    units += decoder.units(close=True)
    return units


def changes_of(unit: Unit) -> list[Change]:
    """The changes of a unit in order; every row of it exactly once."""
    if not isinstance(unit, Changes):
        return []
    directory = unit.transactions
    found: list[tuple[int, Change]] = []
    for table in unit.tables:
        for row in table.batch.to_pylist():
            transaction, seq, kind, unsent, *values = row.values()
            bits = int.from_bytes(unsent or b"", "little")
            texts = [None if each is None else each.encode() for each in values]
            marked: Row = tuple(UNCHANGED if bits >> at & 1 else each for at, each in enumerate(texts))
            change = (directory[transaction].xid, table.number, RowKind(kind), marked)
            found.append((seq, (*change[:3], None) if kind == RowKind.TRUNCATE else change))
    found.sort()
    assert [seq for seq, _ in found] == list(range(len(found)))
    assert [each.rows for each in directory] == [sum(c[0] == each.xid for _, c in found) for each in directory]
    return [change for _, change in found]


def expected(messages: Iterable[bytes]) -> list[Change]:
    """By the parser that reads each message alone."""
    found: list[Change] = []
    shapes: dict[int, Relation] = {}
    xid = 0

    def short(oid: int, old: Row, raw: bytes) -> Row:
        key = shapes[oid].key if raw[5:6] == b"K" else range(len(old))
        return tuple(each if at in key or each is not None else UNCHANGED for at, each in enumerate(old))

    def stated(old: Row) -> Row:
        return tuple(None if each == UNCHANGED else each for each in old)

    for raw in messages:
        match parse(raw):
            case Begin(xid=number):
                xid = number
            case Relation() as shape:
                shapes[shape.oid] = shape
            case Insert(relation=oid, new=new):
                found.append((xid, oid, RowKind.INSERT, new))
            case Delete(relation=oid, old=old):
                found.append((xid, oid, RowKind.DELETE, old))
            case Update(relation=oid, old=before, new=new):
                if before is not None:
                    was = short(oid, before, raw)
                    found.append((xid, oid, RowKind.UPDATE_OLD, stated(was)))
                    new = tuple(a if b == UNCHANGED else b for a, b in zip(was, new, strict=True))
                found.append((xid, oid, RowKind.UPDATE_NEW, new))
            case Truncate(relations=oids):
                found += [(xid, oid, RowKind.TRUNCATE, None) for oid in oids]
            case Commit() | None:
                pass
    return found


# --- random streams ---

SHAPES = [
    relation(1, texts(2)),
    relation(2, texts(3), identity="d", key=[0]),
    relation(3, texts(9)),
    relation(4, texts(0)),
]
WIDTHS = {1: 2, 2: 3, 3: 9, 4: 0}
values = st.one_of(st.none(), st.text(max_size=20).map(str.encode))
sent = st.one_of(values, st.just(UNCHANGED))


@st.composite
def changes(draw: st.DrawFn) -> bytes:
    oid = draw(st.sampled_from(sorted(WIDTHS)))

    def row(field: st.SearchStrategy[Any]) -> list[Field]:
        return draw(st.lists(field, min_size=WIDTHS[oid], max_size=WIDTHS[oid]))

    mark = b"K" if oid == 2 else b"O"
    match draw(st.sampled_from("IIIUUDT")):
        case "I":
            return insert(oid, row(values))
        case "U":
            return update(oid, row(sent), draw(st.sampled_from([None, row(values)])), mark)
        case "D":
            return delete(oid, row(values), mark)
    return truncate(*draw(st.permutations(sorted(WIDTHS)))[: draw(st.integers(1, 4))])


transactions = st.lists(st.lists(changes(), max_size=8), min_size=1, max_size=8)


def stream_of(drawn: list[list[bytes]]) -> Stream:
    stream = Stream()
    stream.add(*SHAPES)
    for each in drawn:
        stream.add(*each)
    return stream


@settings(max_examples=150)
@given(
    transactions,
    st.builds(Limits, rows=st.integers(1, 20), bytes=st.sampled_from([1, 100, 500, 10_000])),
    st.integers(1, 60),
)
def test_every_change_comes_once_in_order_whatever_the_limits_and_the_batches(
    drawn: list[list[bytes]], limits: Limits, fed: int
) -> None:
    stream = stream_of(drawn)
    units = decoded(stream.messages, limits, fed=fed)
    assert [change for unit in units for change in changes_of(unit)] == expected(stream.messages)
    assert [unit.schema.number for unit in units if isinstance(unit, SchemaUnit)] == sorted(WIDTHS)
    check_transactions(units, stream)


def check_transactions(units: Sequence[Unit], stream: Stream) -> None:
    """D1: parts are contiguous, numbered and end with the commit; groups hold whole transactions."""
    open_parts, ends = 0, [0]
    for unit in units:
        match unit:
            case Changes(part=None):
                assert open_parts == 0
                assert unit.transactions
                assert ends[-1] <= unit.transactions[0].lsn
                assert unit.transactions[-1].lsn < unit.end
                ends.append(unit.end)
            case Changes():
                assert unit.part == open_parts
                assert (unit.end > ends[-1]) is unit.last
                open_parts = 0 if unit.last else open_parts + 1
                ends += [unit.end] if unit.last else []
            case KeepAlive():
                assert open_parts == 0
                ends.append(unit.position)
    assert open_parts == 0
    assert ends == sorted(ends)
    assert ends[-1] == stream.ends[-1]


@settings(max_examples=150)
@given(transactions, st.integers(0, 10**9))
def test_a_damaged_message_is_refused_or_read_as_the_parser_reads_it(drawn: list[list[bytes]], seed: int) -> None:
    messages = stream_of(drawn).messages
    chance = random.Random(seed)
    at = chance.choice([number for number, each in enumerate(messages) if each[:1] != b"R"])
    damaged = bytearray(messages[at])
    if chance.random() < 0.4:
        del damaged[chance.randrange(len(damaged)) :]
    else:
        damaged[chance.randrange(len(damaged))] = chance.choice([0, 1, 255, *b"BCIUDTKONtnub", chance.randrange(256)])
    messages[at] = bytes(damaged)
    try:
        found = [change for unit in decoded(messages) for change in changes_of(unit)]
    except (ProtocolError, UnfitChange):
        return
    assert found == expected(messages)


# --- cases ---


def test_a_group_holds_the_directory_of_its_transactions() -> None:
    stream = Stream()
    stream.add(relation(1, texts(1)))
    stream.add(insert(1, [b"a"]), insert(1, [b"b"]))
    stream.add()
    stream.add(insert(1, [b"c"]))
    shape, group = decoded(stream.messages)
    assert isinstance(shape, SchemaUnit)
    assert isinstance(group, Changes)
    assert [(each.xid, each.lsn, each.rows) for each in group.transactions] == [(2, 200, 2), (4, 400, 1)]
    assert (group.part, group.last, group.end) == (None, True, 450)
    assert group.transactions[0].commit_us == EPOCH_MICROS + 200
    [table] = group.tables
    assert table.batch.column(TX).to_pylist() == [0, 0, 1]
    assert table.batch.column(UNCHANGED_FIELD).null_count == 3


def test_transactions_without_changes_still_move_the_end() -> None:
    stream = Stream()
    stream.add()
    end = stream.add()
    assert decoded(stream.messages) == [KeepAlive(end)]


def test_a_group_waits_until_it_is_closed_or_full() -> None:
    decoder = Decoder(NumberedTables(), Limits(rows=3, bytes=10**6))
    decoder.feed([relation(1, texts(1))])
    assert len(list(decoder.units())) == 1
    stream = Stream()
    for _ in range(4):
        stream.add(insert(1, [b"x"]))
    decoder.feed(stream.messages[:9])
    assert list(decoder.units()) == []
    decoder.feed(stream.messages[9:11])  # the fourth transaction has not ended
    [group] = decoder.units()
    assert isinstance(group, Changes)
    assert len(group.transactions) == 3
    assert list(decoder.units(close=True)) == []
    assert decoder.pending
    decoder.feed(stream.messages[11:])
    [group] = decoder.units(close=True)
    assert not decoder.pending


def test_a_large_transaction_leaves_in_parts_and_little_stays_pending() -> None:
    decoder = Decoder(NumberedTables(), Limits(rows=100, bytes=10**6))
    decoder.feed([relation(1, texts(1))])
    assert len(list(decoder.units())) == 1
    parts: list[Unit] = []
    decoder.feed([begin(100, 7)])
    for number in range(100):
        decoder.feed([insert(1, [b"%d" % (number * 10 + at)]) for at in range(10)])
        parts += decoder.units()
        assert decoder.pending_bytes <= 101 * len(insert(1, [b"999"]))
    decoder.feed([commit(100, 150)])
    parts += decoder.units()  # its end needs no close
    assert [(each.part, each.last, each.transactions[0].rows) for each in parts if isinstance(each, Changes)] == [
        (number, number == 9, 100) for number in range(10)
    ]
    assert [int(change[3][0]) for each in parts for change in changes_of(each)] == list(range(1000))  # type: ignore[index, arg-type]


def test_a_single_row_beyond_the_limit_is_a_group() -> None:
    stream = Stream()
    stream.add(relation(1, texts(1)), insert(1, [b"x" * 1000]))
    stream.add(insert(1, [b"y"]))
    groups = [each for each in decoded(stream.messages, Limits(rows=10, bytes=100)) if isinstance(each, Changes)]
    assert [(each.part, len(each.transactions)) for each in groups] == [(None, 1), (None, 1)]


def test_a_changed_shape_comes_between_the_changes_before_and_after_it() -> None:
    one, two = relation(1, texts(1)), relation(1, texts(2))
    stream = Stream()
    stream.add(one, insert(1, [b"a"]))
    stream.add(one, insert(1, [b"b"]), two, insert(1, [b"c", b"d"]))
    units = decoded(stream.messages)
    assert [(type(each).__name__, getattr(each, "part", None)) for each in units] == [
        ("SchemaUnit", None),
        ("Changes", None),
        ("Changes", 0),
        ("SchemaUnit", None),
        ("Changes", 1),
    ]
    assert [change[3] for each in units for change in changes_of(each)] == [(b"a",), (b"b",), (b"c", b"d")]
    assert isinstance(units[-1], Changes)
    assert units[-1].last
    assert units[-1].tables[0].version == 2


def test_watermarks_come_in_order_and_messages_of_others_do_not() -> None:
    stream = Stream()
    stream.add(relation(1, texts(1)), insert(1, [b"a"]), logical_message("outbox", b"x", transactional=True))
    stream.messages.append(logical_message("mark", b"low", 7))
    stream.add(logical_message("mark", b"high", 8, transactional=True))
    stream.add(insert(1, [b"b"]))
    _, before, low, high, after = decoded(stream.messages)
    assert [low, high] == [Watermark("low", 7, high=False), Watermark("high", 8, high=True)]
    assert [len(each.transactions) for each in (before, after) if isinstance(each, Changes)] == [1, 1]


def test_values_that_an_update_did_not_send_are_those_of_the_old_row_or_marked() -> None:
    stream = Stream()
    stream.add(*SHAPES)
    stream.add(
        update(1, [b"k2", UNCHANGED], [b"k", b"large"]),
        update(2, [b"k", UNCHANGED, b"v"]),
        update(2, [UNCHANGED, b"v", UNCHANGED], [b"k", None, None], b"K"),
        delete(2, [b"k", None, None], b"K"),
    )
    rows = [change[2:] for each in decoded(stream.messages) for change in changes_of(each)]
    assert rows == [
        (RowKind.UPDATE_OLD, (b"k", b"large")),
        (RowKind.UPDATE_NEW, (b"k2", b"large")),
        (RowKind.UPDATE_NEW, (b"k", UNCHANGED, b"v")),
        (RowKind.UPDATE_OLD, (b"k", None, None)),
        (RowKind.UPDATE_NEW, (b"k", b"v", UNCHANGED)),
        (RowKind.DELETE, (b"k", None, None)),
    ]


def test_a_value_that_does_not_fit_is_named_with_its_table_and_row() -> None:
    stream = Stream()
    stream.add(relation(1, [("id", 23, -1), ("amount", 1700, 4 + (12 << 16 | 3))], name="orders"))
    stream.add(insert(1, [b"1", b"2.500"]), insert(1, [b"2", b"NaN"]))
    with pytest.raises(UnfitChange) as found:
        decoded(stream.messages)
    assert found.value.schema.name == "orders"
    assert (found.value.index, found.value.row) == (1, (b"2", b"NaN"))


ROW = insert(1, [b"abc"])
BAD_STREAMS = {
    "an empty message": [b""],
    "an unknown kind": [b"S\0\0\0\1"],
    "a change outside of a transaction": [ROW, begin(1, 1), commit(1, 2)],
    "a commit without a begin": [commit(1, 2)],
    "two begins": [begin(1, 1), begin(2, 2), commit(2, 3)],
    "a commit of another transaction": [begin(5, 1), ROW, commit(6, 7)],
    "a commit whose end is before it": [begin(5, 1), ROW, commit(5, 5)],
    "a transaction behind the last one": [begin(50, 1), ROW, commit(50, 60), begin(40, 2), ROW, commit(40, 70)],
    "a short begin": [begin(1, 1)[:-1], commit(1, 2)],
    "a short commit": [begin(1, 1), commit(1, 2)[:-1]],
    "an unknown table": [begin(1, 1), insert(9, [b"a"]), commit(1, 2)],
    "an unknown truncated table": [begin(1, 1), truncate(9), commit(1, 2)],
    "too many columns": [begin(1, 1), insert(1, [b"a", b"b"]), commit(1, 2)],
    "a short row": [begin(1, 1), ROW[:-1], commit(1, 2)],
    "bytes after a row": [begin(1, 1), ROW + b"x", commit(1, 2)],
    "a value of a huge length": [begin(1, 1), ROW[:9] + struct.pack(">I", 2**32 - 1) + b"abc", commit(1, 2)],
    "a binary value": [begin(1, 1), ROW[:8] + b"b" + ROW[9:], commit(1, 2)],
    "a change without a row": [begin(1, 1), ROW[:5], commit(1, 2)],
    "an insert with an old row": [begin(1, 1), ROW[:5] + b"O" + ROW[6:], commit(1, 2)],
    "an update without a new row": [begin(1, 1), b"U" + ROW[1:5] + b"O" + ROW[6:], commit(1, 2)],
    "a short truncation": [begin(1, 1), truncate(1)[:-1], commit(1, 2)],
    "a short logical message": [logical_message("mark", b"abc")[:-1]],
    "a short shape": [relation(1, texts(2))[:-1]],
}


@pytest.mark.parametrize("messages", BAD_STREAMS.values(), ids=BAD_STREAMS.keys())
def test_an_invalid_stream_is_refused(messages: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        decoded([relation(1, texts(1)), *messages])


def test_batches_have_the_columns_of_the_format() -> None:
    stream = Stream()
    stream.add(relation(1, [("id", 20, -1)]), insert(1, [b"1"]))
    group = decoded(stream.messages)[-1]
    assert isinstance(group, Changes)
    assert group.tables[0].batch.schema == pa.schema([*PLACE_FIELDS, ("id", pa.int64())])


class Unmoved(NumberedTables):
    """Leaves table 2 out."""

    def relation(self, relation: Relation, lsn: int) -> Cut | None:
        cut = super().relation(relation, lsn)
        return Cut((), ((2, None),)) if cut is not None and relation.oid == 2 else cut


def test_every_shape_is_judged_and_one_that_changes_nothing_ends_nothing() -> None:
    judge = NumberedTables()
    decoder = Decoder(judge, WIDE)
    stream = Stream()
    stream.add(relation(1, texts(1)), insert(1, [b"a"]))
    stream.add(relation(1, texts(1)), insert(1, [b"b"]))
    stream.add(insert(1, [b"c"]))
    decoder.feed(stream.messages)
    shape, group = decoder.units(close=True)
    assert isinstance(shape, SchemaUnit)
    assert isinstance(group, Changes)
    assert [each.rows for each in group.transactions] == [1, 1, 1]
    assert judge.commits == [100, 200]


def test_rows_of_a_table_that_is_left_out_have_no_place() -> None:
    decoder = Decoder(Unmoved(), Limits(rows=2, bytes=10**6))
    stream = Stream()
    stream.add(relation(1, texts(1)), relation(2, texts(1)))
    stream.add(insert(2, [b"x"]), insert(1, [b"a"]), truncate(2, 1), truncate(2))
    end = stream.add(*[insert(2, [b"x"])] * 10)  # a large one
    decoder.feed(stream.messages)
    units = list(decoder.units(close=True))
    kinds = [change[1:3] for each in units for change in changes_of(each)]
    assert kinds == [(1, RowKind.INSERT), (1, RowKind.TRUNCATE)]
    assert units[-1] == KeepAlive(end)
    assert not decoder.pending


def test_numbers_of_transactions_have_64_bits() -> None:
    for near, first, wanted in (
        (0, 7, 7),
        (5 << 32, 7, (5 << 32) + 7),
        (5 << 32, 2**32 - 7, (5 << 32) - 7),
        ((5 << 32) - 9, 4, (5 << 32) + 4),
    ):
        decoder = Decoder(NumberedTables(), WIDE)
        decoder.near = near
        decoder.feed([begin(5, first), relation(1, texts(1)), insert(1, [b"a"]), commit(5, 6)])
        changes = list(decoder.units(close=True))[-1]
        assert isinstance(changes, Changes)
        assert changes.transactions[0].xid == wanted
