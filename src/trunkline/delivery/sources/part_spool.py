"""Parts of tables in a file: rows that are too many to hold, until all rows of a part are there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from trunkline.delivery.changes.arrow_blobs import batch_of, blobs_of
from trunkline.delivery.changes.net import row_codes
from trunkline.delivery.changes.rows import ROUTE_COLUMN
from trunkline.delivery.changes.spool_file import SpoolFile
from trunkline.delivery.sources.contract import ReadRequest


class PartSpool:
    def __init__(self) -> None:
        self._file = SpoolFile()
        self._places: dict[int, dict[int, list[tuple[int, int]]]] = {}  # table -> part -> positions and sizes

    def add(self, table: int, part: int, rows: pa.RecordBatch) -> None:
        places = self._places.setdefault(table, {}).setdefault(part, [])
        for blob in blobs_of(rows):
            places.append((self._file.write(blob), len(blob)))

    def parts(self, table: int, schema: pa.Schema) -> Iterator[list[pa.RecordBatch]]:
        """The rows of each part of a table, in the order in which they were added."""
        for _, places in sorted(self._places.get(table, {}).items()):
            yield [batch_of(self._file.read(at, size), schema) for at, size in places]


def rows_among(batches: Iterable[pa.RecordBatch], request: ReadRequest, keys: pa.Table) -> pa.Table:
    """Those whose (route, key) is in ``keys``; NULL equals NULL."""
    names = [ROUTE_COLUMN, *request.key]
    wanted = keys.select(names).cast(request.empty_rows().select(names).schema)
    found = [request.empty_rows()]
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        mine, theirs = np.split(row_codes(pa.concat_tables([rows.select(names), wanted])), [rows.num_rows])
        found.append(rows.take(np.flatnonzero(np.isin(mine, theirs))))
    return pa.concat_tables(found)
