"""Hashes of rows, to split them into parts: equal values of a type have equal hashes, and NULL is a value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trunkline.delivery.backends.duckdb_pool import pooled_duckdb, registered

Hashes = npt.NDArray[np.uint64]


def row_hashes(rows: pa.Table, names: Sequence[str]) -> Hashes:
    """Of some columns. DuckDB makes them: it has the same hash for 0.0 and -0.0, and for every NaN."""
    named = [f"c{place}" for place in range(len(names))]
    values = rows.select(list(names)).rename_columns(named)
    with pooled_duckdb() as connection, registered(connection, split_rows=values):
        found = connection.sql(f"SELECT hash({', '.join(named)}) AS code FROM split_rows").to_arrow_table()
    hashes: Hashes = found.column("code").to_numpy().astype(np.uint64)
    return hashes
