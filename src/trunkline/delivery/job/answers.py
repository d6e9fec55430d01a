"""The rows in which tasks of a large window answer: few, small, and the only ones that reach the driver."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import pyarrow as pa

from trunkline.core.delivery_messages import Result
from trunkline.delivery.job.work import Counted, TaskReport

ANSWER_TEXT: Final = "kind string, text string, number bigint, body binary"
ANSWER_SCHEMA: Final = pa.schema(
    [("kind", pa.string()), ("text", pa.string()), ("number", pa.int64()), ("body", pa.binary())]
)


def answer_batch(result: Result, counted: Counted) -> pa.RecordBatch:
    body = msgspec.msgpack.encode((result, counted))
    return pa.RecordBatch.from_pydict(
        {"kind": ["result"], "text": [result.destination], "number": [0], "body": [body]}, schema=ANSWER_SCHEMA
    )


def report(rows: Iterable[tuple[str, str | None, int, bytes | None]]) -> TaskReport:
    """What all tasks of a large window said."""
    results, counted, unrouted = [], [], {}
    for kind, text, number, body in rows:
        if kind == "unrouted":
            unrouted[text] = int(number)
        else:
            assert body is not None
            result, count = msgspec.msgpack.decode(bytes(body), type=tuple[Result, Counted])
            results.append(result)
            counted.append(count)
    return TaskReport(tuple(results), tuple(counted), unrouted, "large")
