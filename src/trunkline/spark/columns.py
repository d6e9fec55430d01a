"""The columns of a log, and stored batches as Arrow record batches of them.

Only the columns of the schema are built. Payloads are not copied: the bytes that a node sent become the buffer of the
Arrow array. Small stored batches are joined, which copies them once, because Spark's overhead for each Arrow batch is
higher than the cost of the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, LongType, MapType, StringType, StructType, TimestampType

from trunkline.client.entries import Batch
from trunkline.client.headers import decode_headers
from trunkline.errors import ConfigError

COLUMNS: Final[dict[str, DataType]] = {
    "glsn": LongType(),
    "payload": BinaryType(),
    "writer": StringType(),
    "seq": LongType(),
    "time": TimestampType(),
    "headers": MapType(StringType(), BinaryType()),
}
TIME_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999; later times are invalid (NULL)
DDL: Final = ", ".join(f"{name} {kind.simpleString().upper()}" for name, kind in COLUMNS.items())


def whole_schema() -> StructType:
    schema = StructType()
    for name, kind in COLUMNS.items():
        schema.add(name, kind)
    return schema


def check_schema(schema: StructType) -> None:
    """Raises ``ConfigError`` unless every column is one of ``COLUMNS``, with its type."""
    for field in schema.fields:
        expected = COLUMNS.get(field.name.lower())
        if expected is None or expected.simpleString() != field.dataType.simpleString():
            raise ConfigError(
                f"a log has no column {field.name} {field.dataType.simpleString().upper()}; choose from: {DDL}"
            )


def arrow_schema(schema: StructType) -> Any:
    """The schema of the Arrow batches that Spark expects."""
    return to_arrow_schema(schema, timezone="UTC")


def record_batch(batches: Sequence[Batch], schema: Any) -> Any:
    """The entries of these batches, in their order."""
    arrays = [BUILDERS[field.name.lower()](batches, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _glsn(batches: Sequence[Batch], kind: Any) -> Any:
    first, end, count = batches[0].first, batches[-1].last + 1, sum(map(len, batches))
    if end - first == count:  # no hole between them
        return _numbers(np.arange(first, end, dtype=np.int64), kind)
    ranges = [np.arange(batch.first, batch.last + 1, dtype=np.int64) for batch in batches]
    return _numbers(np.concatenate(ranges), kind)


def _payload(batches: Sequence[Batch], kind: Any) -> Any:
    arrays = [batch.arrow_payloads() for batch in batches]
    return (arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)).cast(kind)


def _seq(batches: Sequence[Batch], kind: Any) -> Any:
    return _numbers(_repeated([batch.seq for batch in batches], batches), kind)


def _time(batches: Sequence[Batch], kind: Any) -> Any:
    times = [batch.time_ms * 1000 if 0 <= batch.time_ms <= TIME_MS_MAX else None for batch in batches]
    known = [time for time in times if time is not None]
    if len(known) == len(times):
        return _numbers(_repeated(known, batches), kind)
    return pa.array(times, kind).take(pa.array(_repeated(range(len(batches)), batches)))


def _writer(batches: Sequence[Batch], kind: Any) -> Any:
    names = pa.array([batch.writer for batch in batches], kind)
    return names.take(pa.array(_repeated(range(len(batches)), batches)))


def _headers(batches: Sequence[Batch], kind: Any) -> Any:
    if not any(batch.has_headers for batch in batches):
        offsets = pa.array(np.zeros(sum(map(len, batches)) + 1, dtype=np.int32))
        return pa.MapArray.from_arrays(offsets, pa.array([], kind.key_type), pa.array([], kind.item_type), type=kind)
    found = (decode_headers(encoded) for batch in batches for encoded in batch.encoded_headers())
    return pa.array([None if headers is None else tuple(headers.items()) for headers in found], kind)


def _repeated(values: Sequence[int], batches: Sequence[Batch]) -> Any:
    """The value of each batch, once for each of its entries."""
    return np.repeat(np.array(values, dtype=np.int64), [len(batch) for batch in batches])


def _numbers(values: Any, kind: Any) -> Any:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


BUILDERS: Final[dict[str, Callable[[Sequence[Batch], Any], Any]]] = {
    "glsn": _glsn,
    "payload": _payload,
    "writer": _writer,
    "seq": _seq,
    "time": _time,
    "headers": _headers,
}
