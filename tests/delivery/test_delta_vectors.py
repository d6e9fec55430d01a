"""Delta tables whose owner allows deletion vectors: rows are marked, files stay."""

from __future__ import annotations

import os
import random
import struct
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaProtocolError
from msgspec.structs import replace

from contract.delta_destination import DeltaSite
from trunkline.delivery.backends.table_folder import LocalFolder
from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.destinations import delta_files, delta_merge, delta_vectors
from trunkline.delivery.destinations.contract import Applied, Standing
from trunkline.delivery.destinations.delta import DeltaPlace
from trunkline.delivery.destinations.delta_commit import log_file, put_version
from trunkline.delivery.destinations.delta_log import DeltaLog
from trunkline.delivery.destinations.delta_vectors import (
    MARKED_SHARE,
    PROPERTY,
    _encoded,
    inline_vector,
    vector_of,
)
from trunkline.destination_suite.place import Change, OneTable, Plan, Row, Table, Watch, content, plain, staged
from trunkline.errors import DestinationHalted, DuplicateKey

ORDERS: Final[Columns] = (Column("id", "BIGINT"), Column("name", "VARCHAR"))
SEED: Final = Plan(through=1, token=1, source="lake/orders", columns=ORDERS, key=("id",), seeds=True)
ROWS: Final = 1000


class DeltaTest(Table):
    def open(self, watch: Watch | None = None) -> OneTable:
        """With the limits of production."""
        return OneTable(self, DeltaPlace())

    @property
    def path(self) -> str:
        assert isinstance(self.site, DeltaSite)
        return self.site.path(self.name)

    @property
    def vectors(self) -> dict[str, int]:
        """How many rows are marked, by file, as delta-rs reads them."""
        found = pa.table(DeltaTable(self.path).deletion_vectors()).to_pylist()
        return {each["filepath"].rpartition("/")[2]: each["selection_vector"].count(False) for each in found}

    @property
    def files(self) -> set[str]:
        return {Path(uri).name for uri in DeltaTable(self.path).file_uris()}


@pytest.fixture
def place(tmp_path: Path) -> DeltaTest:
    found = DeltaTest(DeltaSite(str(tmp_path)), "table")
    found.open().seed(SEED, plain(ORDERS, named(*range(ROWS))))
    allow(found)
    return found


def allow(place: DeltaTest) -> None:
    """What the owner of a table does."""
    DeltaTable(place.path).alter.set_table_properties({PROPERTY: "true"})


def named(*ids: int) -> list[Row]:
    return [{"id": number, "name": f"n{number}"} for number in ids]


def flushed(destination: OneTable, at: int, changes: list[Change]) -> Applied:
    flush = replace(SEED, expected=at, through=at + 1, seeds=False)
    return destination.flush(flush, staged(ORDERS, ("id",), changes))


def rows_of(destination: OneTable) -> Any:
    _, batches = destination.rows()
    return content([row for batch in batches for row in batch.to_pylist()])


CHANGES: Final[list[Change]] = [
    (Op.REMOVE, {"id": 1}),
    (Op.REPLACE, {"id": 500, "name": "five hundred"}),
    (Op.INSERT, {"id": 5000, "name": "new"}),
]
AFTER: Final = [*named(*(n for n in range(ROWS) if n not in (1, 500))), CHANGES[1][1], CHANGES[2][1]]


# ------------------------------------------------------------------------------------------------------------- a vector


@pytest.mark.parametrize("count", [1, 2, 3, 40, 4096, 4097, 8000])
@pytest.mark.parametrize("span", [8_000, 65_536, 65_537, 250_000, 2**32])
def test_a_vector_is_read_back_as_it_was_written(count: int, span: int) -> None:
    draw = random.Random(count + span)
    positions = sorted(draw.sample(range(span), count))
    vector = vector_of(np.array(positions))
    assert vector.positions.tolist() == positions
    assert inline_vector(vector.record) == vector
    first = max(0, positions[0] - 1)
    assert vector.kept(first, positions[0] + 1).tolist() == [True] * (positions[0] - first) + [False]
    assert vector.kept(positions[-1], positions[-1] + 2).tolist() == [False, True]


def test_a_vector_of_another_writer_is_left_to_delta_rs() -> None:
    record = vector_of(np.array([1, 5])).record
    assert inline_vector(record) is not None
    for odd in (
        replace(record, storage_type="u"),
        replace(record, path_or_inline_dv=record.path_or_inline_dv[:-5]),
        replace(record, path_or_inline_dv=record.path_or_inline_dv[:-1]),
        replace(record, path_or_inline_dv="~" * 40),
        replace(record, path_or_inline_dv="0" * 50),
        replace(record, path_or_inline_dv=""),
        replace(record, cardinality=3),
    ):
        assert inline_vector(odd) is None


# -------------------------------------------------------------------------------------------------------------- a flush


def test_v1_a_flush_marks_rows_and_leaves_their_file(place: DeltaTest) -> None:
    [before] = place.files
    destination = place.open()
    assert flushed(destination, 1, CHANGES) == Applied(2, 2, 2)
    assert place.vectors == {before: 2}
    assert before in place.files
    assert len(place.files) == 2
    assert content(place.held()) == rows_of(destination) == rows_of(place.open()) == content(AFTER)
    DeltaTable(place.path).create_checkpoint()
    assert content(place.held()) == rows_of(place.open()) == content(AFTER)


def test_which_readers_of_delta_rs_read_vectors_and_which_refuse_them(place: DeltaTest) -> None:
    """If this fails because none refuses them any more, tables can have them from the start."""
    flushed(place.open(), 1, CHANGES)
    table = DeltaTable(place.path)
    assert pa.table(table.scan()).num_rows == ROWS
    [counted] = pa.table(QueryBuilder().register("t", table).execute("SELECT count(*) AS n FROM t")).to_pylist()
    assert counted == {"n": ROWS}
    for read in (table.to_pyarrow_table, table.to_pyarrow_dataset, table.to_pandas):
        with pytest.raises(DeltaProtocolError, match="deletionVectors"):
            read()


def test_v1_a_file_with_many_marks_is_written_again(place: DeltaTest) -> None:
    [before] = place.files
    destination = place.open()
    most = ROWS // MARKED_SHARE
    flushed(destination, 1, [(Op.REMOVE, {"id": number}) for number in range(most)])
    assert place.vectors == {before: most}
    flushed(destination, 2, [(Op.REMOVE, {"id": most})])
    assert place.vectors == {}
    assert before not in place.files
    assert content(place.held()) == content(named(*range(most + 1, ROWS)))


def test_v1_without_the_property_no_row_is_marked_but_vectors_are_honoured(place: DeltaTest) -> None:
    destination = place.open()
    flushed(destination, 1, CHANGES)
    DeltaTable(place.path).alter.set_table_properties({PROPERTY: "false"})
    assert flushed(destination, 2, [(Op.REPLACE, {"id": 2, "name": "two"})]) == Applied(3, 1, 1)
    assert place.vectors == {}
    assert len(place.held() or []) == ROWS


def test_v4_a_row_that_is_marked_is_not_there_for_any_look_up(place: DeltaTest) -> None:
    destination = place.open()
    flushed(destination, 1, CHANGES)
    assert flushed(destination, 2, [(Op.REMOVE, {"id": 1})]) == Applied(3, missing=1)
    assert flushed(destination, 3, [(Op.INSERT, {"id": 1, "name": "again"})]) == Applied(4, written=1)
    with pytest.raises(DuplicateKey, match="id = 1"):
        flushed(destination, 4, [(Op.INSERT, {"id": 1, "name": "twice"})])
    found = [row for row in place.held() or [] if row["id"] in (1, 500)]
    assert content(found) == content([{"id": 500, "name": "five hundred"}, {"id": 1, "name": "again"}])


def test_v3_columns_and_seeds_replace_files_with_vectors(place: DeltaTest) -> None:
    destination = place.open()
    flushed(destination, 1, CHANGES)
    wider = (*ORDERS, Column("more", "BIGINT"))
    flush = replace(SEED, expected=2, through=3, seeds=False, columns=wider)
    added: list[Change] = [(Op.INSERT, {"id": 7000, "name": "x", "more": 7})]
    assert destination.flush(flush, staged(wider, ("id",), added)) == Applied(3, written=1)
    expected = [*({**row, "more": None} for row in AFTER), added[0][1]]
    assert content(place.held()) == content(expected)
    assert place.vectors == {}
    flush = replace(flush, expected=3, through=4)
    destination.flush(flush, staged(wider, ("id",), [(Op.REMOVE, {"id": 7})]))
    assert len(place.vectors) == 1
    seed = replace(SEED, expected=4, through=5, columns=wider)
    assert destination.seed(seed, plain(wider, [added[0][1]])) == Applied(5, len(expected) - 1, 1)
    assert content(place.held()) == content([added[0][1]])
    assert place.vectors == {}


def test_v3_whatever_is_done_to_a_table_its_rows_are_those_of_the_source(
    place: DeltaTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two deliverers in turn, small files that are merged, checkpoints, compactions, vacuums."""
    monkeypatch.setattr(delta_files, "ROWS_PER_FILE", 300)
    monkeypatch.setattr(delta_merge, "SMALL_FILES_MAX", 4)
    draw, model = random.Random(7), {row["id"]: row for row in named(*range(ROWS))}
    places, fresh, seen = [place.open(), place.open()], 10_000, 0
    at = 1
    for _ in range(60):
        changes: list[Change] = []
        for number in draw.sample(sorted(model), draw.randint(0, 12)):
            op = draw.choice((Op.REPLACE, Op.REMOVE))
            changes.append((op, {"id": number, "name": f"{at}"}))
            model.pop(number)
            if op is Op.REPLACE:
                model[number] = changes[-1][1]
        for _ in range(draw.randint(0, 20)):
            fresh += 1
            changes.append((Op.INSERT, {"id": fresh, "name": "new"}))
            model[fresh] = changes[-1][1]
        removed = sum(op is not Op.INSERT for op, _ in changes)
        written = sum(op is not Op.REMOVE for op, _ in changes)
        assert flushed(draw.choice(places), at, changes) == Applied(at + 1, removed, written)
        at += 1
        match draw.randrange(12):
            case 0:
                DeltaTable(place.path).create_checkpoint()
            case 1:
                DeltaTable(place.path).optimize.compact()
            case 2:
                DeltaTable(place.path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
            case 3:
                places[draw.randrange(2)] = place.open()
        assert content(place.held()) == content(model.values())
        seen += bool(place.vectors)
        log = DeltaLog(LocalFolder(Path(place.path)), lambda _: None).load()
        assert log is not None
        assert {file.path: file.vector.record.cardinality for file in log.files if file.vector} == place.vectors
    assert seen > 20
    assert rows_of(places[0]) == content(model.values())


# --------------------------------------------------------------------------------------------- vectors of other writers


def mark_in_a_file(place: DeltaTest, positions: list[int]) -> None:
    """As Spark does: the vector is in a file of its own."""
    vector, name = vector_of(np.array(positions)), os.urandom(16)
    raw = struct.pack("<iQI", delta_vectors.MAGIC, 1, 0) + delta_vectors._bitmap(vector.positions)
    spelled = f"{name.hex()[:8]}-{name.hex()[8:12]}-{name.hex()[12:16]}-{name.hex()[16:20]}-{name.hex()[20:]}"
    path = Path(place.path) / f"deletion_vector_{spelled}.bin"
    path.write_bytes(b"\1" + struct.pack(">I", len(raw)) + raw + struct.pack(">I", zlib.crc32(raw)))
    [action] = pa.table(DeltaTable(place.path).get_add_actions(flatten=True)).to_pylist()
    version = DeltaTable(place.path).version() + 1
    named = f'"path":"{action["path"]}","partitionValues":{{}},"size":{action["size_bytes"]},"dataChange":true'
    record = f'{{"storageType":"u","pathOrInlineDv":"{_encoded(name)}","offset":1,"sizeInBytes":{len(raw)},'
    record += f'"cardinality":{len(positions)}}}'
    stats = f'"{{\\"numRecords\\":{action["num_records"]},\\"tightBounds\\":false}}"'
    lines = [
        f'{{"remove":{{{named},"deletionTimestamp":1,"extendedFileMetadata":true}}}}',
        f'{{"add":{{{named},"modificationTime":1,"stats":{stats},"deletionVector":{record}}}}}',
    ]
    put_version(Path(place.path), version, "\n".join([*lines, ""]).encode(), lambda _: None)


@pytest.mark.parametrize("opened", ["before", "after", "after a checkpoint"])
def test_v2_a_vector_in_a_file_is_read_and_replaced(place: DeltaTest, opened: str) -> None:
    destination = place.open()
    if opened == "before":
        assert destination.standing() == Standing(1, 1, "lake/orders")
    mark_in_a_file(place, [3, 4, 900])
    assert len(place.held() or []) == ROWS - 3
    if opened == "after a checkpoint":
        DeltaTable(place.path).create_checkpoint()
    assert flushed(destination, 1, [*CHANGES, (Op.REMOVE, {"id": 3})]) == Applied(2, 2, 2, missing=1)
    assert content(place.held()) == rows_of(destination) == content([r for r in AFTER if r["id"] not in (3, 4, 900)])
    assert list(place.vectors.values()) == [5]


def test_v3_a_vector_that_only_delta_rs_understands_halts_the_destination(place: DeltaTest) -> None:
    flushed(place.open(), 1, CHANGES)
    table = DeltaTable(place.path)
    table.create_checkpoint()
    version = table.version()
    for number in range(version + 1):
        Path(log_file(Path(place.path), number)).unlink(missing_ok=True)
    whole = Path(place.path) / "_delta_log" / f"{version:020}.checkpoint.parquet"
    whole.rename(whole.with_name(f"{version:020}.checkpoint.0000000001.0000000001.parquet"))
    (whole.parent / "_last_checkpoint").write_text(f'{{"version":{version},"size":9,"parts":1}}')
    assert len(place.held() or []) == ROWS
    with pytest.raises(DestinationHalted, match="PURGE"):
        flushed(place.open(), 2, [])
