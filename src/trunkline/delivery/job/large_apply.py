"""Writes the settled rows of a large window: a task gets them as blobs, sorted by place, destination and table.

The rows of the members that are written together are spooled to a file, because a place may have to read them again;
no task has a whole destination in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from trunkline.core.delivery_messages import JobMember, Result
from trunkline.delivery.changes.arrow_blobs import BlobSpool
from trunkline.delivery.job.apply import MEMBERS_MAX, apply_drafts
from trunkline.delivery.job.drafts import MemberDraft
from trunkline.delivery.job.large import BlobForm
from trunkline.delivery.job.work import TableWork, TaskPipeline, Work
from trunkline.errors import TrunklineError


class BlobRow(NamedTuple):
    """A row of BLOB_TEXT."""

    hand: int
    place: int
    destination: int
    number: int
    duplicates: int
    blob: bytearray | None


def blob_rows(rows: Iterable[Any]) -> Iterator[BlobRow]:
    """From rows of Spark."""
    return (BlobRow(*row) for row in rows)


def apply_blobs(
    pipeline: TaskPipeline, work: Work, members: Mapping[int, JobMember], rows: Iterator[BlobRow]
) -> Iterator[bytes]:
    """The results of the members of a partition, each encoded."""
    for _, of_place in groupby(rows, attrgetter("place")):
        spool, drafts = BlobSpool(), list[MemberDraft]()
        for destination, of_member in groupby(of_place, attrgetter("destination")):
            draft = MemberDraft(pipeline.targets[destination], members[destination])
            try:
                for number, of_table in groupby(of_member, attrgetter("number")):
                    _add(draft, work.tables[number], spool, of_table)
                for table in work.tables:
                    if table.for_everyone:
                        draft.follow(table, whole=table.whole)
            except TrunklineError as error:
                draft.error = error
            drafts.append(draft)
            if len(drafts) == MEMBERS_MAX:
                yield from _encoded(apply_drafts(pipeline, work, drafts))
                spool, drafts = BlobSpool(), []
        yield from _encoded(apply_drafts(pipeline, work, drafts))


def _add(draft: MemberDraft, table: TableWork, spool: BlobSpool, rows: Iterable[BlobRow]) -> None:
    duplicates = 0

    def blobs() -> Iterator[bytearray]:
        nonlocal duplicates
        for row in rows:
            duplicates += row.duplicates
            if row.blob is not None:
                yield row.blob

    replaces, mode = draft.target.replaces(table, whole=table.whole), draft.target.policy(table).mode
    form = BlobForm(table.shaped.columns, table.shaped.key, mode, replaces)
    batches = spool.add(form.schema, blobs())
    draft.add(table, batches, duplicates, whole=table.whole, exact=table.exact)


def _encoded(results: Iterable[Result]) -> Iterator[bytes]:
    return (msgspec.msgpack.encode(result) for result in results)
