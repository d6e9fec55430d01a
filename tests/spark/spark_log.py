"""A log as tests use it: appended to by the client, read and written by Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from local_cluster import wait_until
from trunkline import sync

QUERY_S = 30


class SparkLog:
    def __init__(self, spark: SparkSession, connect: str, log: sync.Log) -> None:
        self.spark = spark
        self.connect = connect
        self.log = log

    @property
    def name(self) -> str:
        return self.log.name

    def append(self, *payloads: bytes) -> int:
        return self.log.append(payloads)

    def entries(self, *, dedupe: bool = False) -> list[Any]:
        return list(self.log.subscribe(to_tail=True, dedupe=dedupe))

    def options(self, **options: object) -> dict[str, str]:
        given = {"connect": self.connect, "log": self.name, **options}
        return {name: str(value) for name, value in given.items()}

    def frame(self, schema: str | None = None, **options: object) -> DataFrame:
        reader = self.spark.read.format("trunkline").options(**self.options(**options))
        return (reader.schema(schema) if schema else reader).load()

    def payloads(self, **options: object) -> list[bytes]:
        return [bytes(row.payload) for row in self.frame(None, **options).orderBy("glsn").collect()]

    def stream(self, **options: object) -> DataFrame:
        return self.spark.readStream.format("trunkline").options(**self.options(**options)).load()

    def write(self, rows: DataFrame, **options: object) -> None:
        rows.write.format("trunkline").options(**self.options(**options)).mode("append").save()


class Following:
    """A streaming query that keeps what it was given, batch by batch."""

    def __init__(self, frame: DataFrame, checkpoint: Path, *, available_now: bool = True) -> None:
        self.batches: dict[int, list[Row]] = {}
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint))
        self.query: StreamingQuery = (writer.trigger(availableNow=True) if available_now else writer).start()
        if available_now:
            assert self.query.awaitTermination(QUERY_S)

    def _take(self, rows: DataFrame, number: int) -> None:
        self.batches[number] = sorted(rows.collect(), key=lambda row: int(row.glsn))

    @property
    def sizes(self) -> list[int]:
        return [len(rows) for _, rows in sorted(self.batches.items())]

    @property
    def payloads(self) -> list[bytes]:
        return [bytes(row.payload) for _, rows in sorted(self.batches.items()) for row in rows]

    def until(self, *payloads: bytes) -> None:
        """Wait until exactly these were given."""
        wait_until(lambda: len(self.payloads) >= len(payloads) or self.query.exception() is not None, QUERY_S)
        assert self.payloads == list(payloads), self.query.exception()
