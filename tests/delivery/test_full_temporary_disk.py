"""A full disk for the temporary files of delivery: a clear error, a retry that succeeds, nothing lost, no file left."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from delivery.set_addresses import Make
from delivery.set_delivery import ORDERS, assert_equal, direct, order
from delivery.set_source import SetSource, memory_table
from delivery.task_pipelines import flush_work, member_of, seed_work, standing_of
from system.volumes import MIB, Volumes
from trunkline.core.delivery_messages import Outcome, Result
from trunkline.delivery.changes.arrow_blobs import BlobSpool, DividedSpool, blobs_of
from trunkline.delivery.changes.columns import arrow_schema
from trunkline.delivery.changes.rows import OP_COLUMN, Op
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.destinations import ducklake_attachments, factory
from trunkline.delivery.job.large import BlobForm
from trunkline.delivery.job.large_apply import BlobRow, apply_blobs
from trunkline.delivery.job.small import seed_portion
from trunkline.delivery.job.work import Portion, TaskDestination
from trunkline.delivery.sources.part_spool import PartSpool
from trunkline.errors import Unreachable

MANY = 40_000  # orders, of more than a MiB


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Temporary files are on a small disk."""
    with Volumes(tmp_path / "disks") as volumes:
        disk = volumes.memory("small", MIB)
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        yield disk


def used(disk: Path) -> int:
    gc.collect()
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def rows(count: int) -> pa.RecordBatch:
    table = memory_table(ORDERS)
    found = pa.Table.from_pylist([dict(order(number, "acme")) for number in range(count)], arrow_schema(table.columns))
    return found.combine_chunks().to_batches()[0]


def test_rows_of_a_large_window_that_do_not_fit_are_retried_and_complete_with_room(make: Make, small: Path) -> None:
    source = SetSource(orders=memory_table(ORDERS, order(-1, "acme"), order(-2, "bolt")))
    targets = [TaskDestination(name, make(name), (name,)) for name in ("acme", "bolt")]
    delivery = direct(source, *targets)
    delivery.seed()
    many = [order(number, "acme") for number in range(MANY)]
    source.put("orders", *many, order(5_000_000, "bolt"))
    work = flush_work(delivery.work, Window(1, 2))
    [table] = work.tables
    form = BlobForm(table.shaped.columns, table.shaped.key, "mirror", False)

    def blobs() -> Iterator[BlobRow]:
        for place, count, first in ((0, MANY, 0), (1, 1, 5_000_000)):
            plain = rows(count)
            numbers = pa.array(range(first, first + count), pa.int64())
            plain = plain.set_column(0, plain.schema.field(0), numbers).set_column(2, plain.schema.field(2), numbers)
            if place:
                plain = plain.set_column(1, plain.schema.field(1), pa.array(["bolt"]))
            ops = pa.array([int(Op.INSERT)] * count, pa.int8())
            staged = plain.add_column(0, pa.field(OP_COLUMN, pa.int8()), ops).cast(form.schema)
            yield from (BlobRow(0, 0, place, 0, 0, bytearray(blob)) for blob in blobs_of(staged))

    def applied() -> dict[str, Result]:
        members = {place: member_of(delivery.work, each.name) for place, each in enumerate(targets)}
        encoded = list(apply_blobs(delivery.work, work, members, blobs()))
        return {each.destination: each for each in (msgspec.msgpack.decode(one, type=Result) for one in encoded)}

    results = applied()
    assert {name: each.outcome for name, each in results.items()} == dict.fromkeys(("acme", "bolt"), Outcome.TRANSIENT)
    assert "No space left on device" in results["acme"].error
    assert "TMPDIR" in results["acme"].error
    assert [standing_of(delivery.work, name).position for name in ("acme", "bolt")] == [1, 1]  # type: ignore[union-attr]
    assert list(small.iterdir()) == []
    assert used(small) < 64 * 1024
    tempfile.tempdir = str(small.parent)
    assert {each.outcome for each in applied().values()} == {Outcome.APPLIED}
    assert_equal(delivery, source, "acme", "bolt")


def fill(add: Callable[[], object]) -> None:
    for _ in range(4):
        add()


def test_a_spool_that_failed_once_gives_no_rows_any_more(small: Path) -> None:
    batch = rows(MANY)
    few = batch.slice(0, 10)
    spool, divided, parts = BlobSpool(), DividedSpool(), PartSpool()
    first = spool.add(few.schema, blobs_of(few))
    divided.add((1, "a"), few)
    parts.add(1, 1, few)
    second = divided.reader((1, "a"), few.schema)
    assert second is not None
    cases: list[tuple[Callable[[], object], list[Callable[[], Any]]]] = [
        (lambda: spool.add(batch.schema, blobs_of(batch)), [first, lambda: spool.add(few.schema, blobs_of(few))]),
        (lambda: divided.add((1, "b"), batch), [second, lambda: divided.add((1, "c"), few)]),
        (lambda: parts.add(1, 2, batch), [lambda: parts.parts(1, few.schema), lambda: parts.add(1, 3, few)]),
    ]
    for add, others in cases:
        with pytest.raises(Unreachable, match="No space left"):
            fill(add)
        for each in others:
            with pytest.raises(Unreachable, match="No space left"):
                list(each() or ())
    divided.close()


def test_a_lake_whose_staged_rows_do_not_fit_is_retried_and_completes_with_room(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ducklake_attachments, "MEMORY_MB_MAX", 24)
    lakes = ducklake_attachments.AttachedLakes()
    monkeypatch.setattr("trunkline.delivery.destinations.ducklake.process_lakes", lambda: lakes)
    address = LakeAddress(f"sqlite:{tmp_path}/lake.db", "{table}", data_path=f"{tmp_path}/lake")
    notes = "id BIGINT, tenant VARCHAR, note VARCHAR"
    text = "x" * 500
    many = [{"id": number, "tenant": "acme", "note": f"{number}{text}"} for number in range(60_000)]
    source = SetSource(notes=memory_table(notes, *many))
    delivery = direct(source, TaskDestination("acme", address, ("acme",)))
    members = (member_of(delivery.work, "acme"),)
    report = seed_portion(delivery.work, seed_work(delivery.work, 1), Portion(0, members, True))
    [result] = report.results
    assert result.outcome is Outcome.TRANSIENT, result
    assert "do not fit into the temporary directory" in result.error
    assert "TMPDIR" in result.error
    assert standing_of(delivery.work, "acme") is None
    factory.forget_place(address)
    monkeypatch.setattr(ducklake_attachments, "MEMORY_MB_MAX", 1024)
    lakes.close()
    delivery.seed()
    assert_equal(delivery, source, "acme")
    assert list(small.iterdir()) == []
