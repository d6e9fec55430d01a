"""Rows of a flush with values that the source did not state: they are taken from the destination's own rows (T8).

A database does not record large values that an update left as they were. A mirror has them: under the key that the row
had at its position, which may be another one than now; a history has them in the open version of that key. They are
read in the transaction that writes the rows, before any of its keys is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.net import row_codes
from trunkline.delivery.changes.rows import ORIGIN_COLUMN, UNCHANGED_COLUMN
from trunkline.delivery.destinations.contract import TableStep
from trunkline.errors import DestinationHalted

# Keys, the key columns, and columns to read -> the rows of the table that have one of the keys, with all these columns;
# of a history only open versions.
Held = Callable[[pa.Table, Columns, Columns], pa.Table]
Batches = Iterable[pa.RecordBatch]


def completed(staged: Batches, step: TableStep, held: Held, what: str) -> Batches:
    """Staged rows with all values. Raises ``DestinationHalted`` if the table lacks a row that has them."""
    whole, partial = divided(staged)
    return whole if partial is None else filled(partial, step, held, what).to_batches()


def divided(staged: Batches) -> tuple[Batches, pa.Table | None]:
    """Staged rows that have all values; or else all of them, to be filled."""
    batches = iter(staged)
    first = next(batches, None)
    if first is None:
        return (), None
    if UNCHANGED_COLUMN not in first.schema.names:
        return chain([first], batches), None
    return (), pa.Table.from_batches([first, *batches])


def filled(rows: pa.Table, step: TableStep, held: Held, what: str) -> pa.Table:
    """As ``completed``, of rows with UNCHANGED_COLUMN."""
    unchanged = rows.column(UNCHANGED_COLUMN).combine_chunks()
    places = np.flatnonzero(unchanged.is_valid().to_numpy(zero_copy_only=False))
    whole = rows.drop_columns([UNCHANGED_COLUMN, ORIGIN_COLUMN])
    if not len(places):
        return whole
    if step.mode == "append":
        raise DestinationHalted(f"{what}: only a mirror has values that an update did not state")
    bits = _bits(unchanged.take(pa.array(places)), len(step.columns))
    lacking = tuple(column for place, column in enumerate(step.columns) if bits[:, place].any())
    key = tuple(column for column in step.columns if column.name in step.key)
    structs = rows.column(ORIGIN_COLUMN).combine_chunks().take(pa.array(places))
    origins = pa.table({column.name: structs.field(column.name) for column in key})
    found = held(origins, key, lacking)
    at = _matched(origins, found, what)
    for place, column in enumerate(step.columns):
        if column not in lacking:
            continue
        source = np.arange(len(rows))
        mine = bits[:, place]
        source[places[mine]] = len(rows) + at[mine]
        own = whole.column(column.name)
        values = pa.chunked_array([*own.chunks, *found.column(column.name).cast(own.type).chunks], own.type)
        index = whole.schema.get_field_index(column.name)
        whole = whole.set_column(index, whole.schema.field(index), values.take(pa.array(source)))
    return whole


def _bits(unchanged: pa.Array, columns: int) -> npt.NDArray[np.bool_]:
    """For each row, whether the value of each column is not stated."""
    width = -(-columns // 8)
    raw = np.frombuffer(b"".join(unchanged.to_pylist()), np.uint8).reshape(-1, width)
    return np.unpackbits(raw, axis=1, bitorder="little")[:, :columns].astype(np.bool_)


def _matched(origins: pa.Table, found: pa.Table, what: str) -> npt.NDArray[np.int64]:
    """For each key, the row that was found."""
    keys = found.select(origins.column_names).cast(origins.schema)
    codes = row_codes(pa.concat_tables([keys, origins]))
    held, wanted = np.split(codes, [len(found)])
    order = np.argsort(held, kind="stable")
    at = np.searchsorted(held[order], wanted) if len(held) else np.zeros(len(wanted), np.int64)
    known = at < len(held)
    known[known] = held[order][at[known]] == wanted[known]
    if not known.all():
        lost = origins.slice(int(np.flatnonzero(~known)[0]), 1).to_pylist()[0]
        spelled = ", ".join(f"{name} = {value}" for name, value in lost.items())
        raise DestinationHalted(
            f"{what} lacks the row {spelled}, and an update of it did not state all values: another program removed "
            "it; reseed the destination"
        )
    return order[at].astype(np.int64)
