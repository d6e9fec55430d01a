"""What `./run bench spark` measures: a table of a log's entries read by Spark, and the delay of a stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from log_load import percentile
from log_machine import machine_facts
from log_processes import Failed
from log_trunkline import LOG, TrunklineCluster, trunkline_cluster
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from trunkline import sync
from trunkline.delivery.engine.session import spark_session, stop_session
from trunkline.spark import register

CORES = 2
RECORD_BYTES = 100
PER_BATCH = 1000
STREAM_LOG = "bench-stream"
STAMP_EVERY_S = 0.02
LAST_SEEN_S = 30.0  # the wait for the last entries of the stream
WARM_UP_READS = 3  # until Java has compiled the hot code


@dataclass(frozen=True)
class Plan:
    rounds: int = 5
    records: int = 4_000_000
    stream_s: float = 20.0
    stream_warm_up_s: float = 8.0


QUICK = Plan(rounds=1, records=200_000, stream_s=4.0, stream_warm_up_s=2.0)


@dataclass
class Results:
    machine: dict[str, Any]
    records: int
    client_rates: list[float]  # records per second of batches(), in one process
    spark_rates: list[float]
    all_columns_rates: list[float]
    latencies_ms: list[float]

    @property
    def spark_rate(self) -> float:
        return median(self.spark_rates)

    @property
    def client_rate(self) -> float:
        return median(self.client_rates)

    @property
    def p50_ms(self) -> float:
        return median(self.latencies_ms)

    @property
    def p99_ms(self) -> float:
        return percentile(self.latencies_ms, 0.99)


def measure_all(plan: Plan, directory: Path, say: Callable[[str], None]) -> Results:
    facts = machine_facts(directory)
    with trunkline_cluster(directory) as cluster:
        say(f"filling a log with {plan.records:,} records of {RECORD_BYTES} B, and reading it with the plain client")
        client = cluster.subscribe(
            records=plan.records, count=PER_BATCH, payload_bytes=RECORD_BYTES, repeats=min(plan.rounds, 3)
        )
        with _session() as spark:
            narrow = _reads(spark, cluster, plan, "glsn BIGINT, payload BINARY", say)
            wide = _reads(spark, cluster, plan, None, say)
            say(f"a stream for {plan.stream_s:.0f} s, with an entry every {STAMP_EVERY_S * 1000:.0f} ms")
            latencies = _stream(spark, cluster, plan, directory / "checkpoint")
    return Results(facts, plan.records, client["batches"], narrow, wide, latencies)


@contextmanager
def _session() -> Iterator[SparkSession]:
    session = spark_session(f"local[{CORES}]", name="bench")
    try:
        register(session)
        yield session
    finally:
        stop_session(session)


# -------------------------------------------------------------------------------------------------------------- a table


def _reads(
    spark: SparkSession, cluster: TrunklineCluster, plan: Plan, schema: str | None, say: Callable[[str], None]
) -> list[float]:
    """Records a second of each round; the rounds before it warm Java up."""
    rates = []
    for number in range(-WARM_UP_READS, plan.rounds):
        began = time.perf_counter()
        _read(spark, cluster.address, plan.records, schema)
        rate = plan.records / (time.perf_counter() - began)
        say(f"  {'round' if number >= 0 else 'warming up'}: {rate:,.0f} records/s of {schema or 'all columns'}")
        if number >= 0:
            rates.append(rate)
    return rates


def _read(spark: SparkSession, address: str, records: int, schema: str | None) -> None:
    reader = spark.read.format("trunkline").options(connect=address, log=f"{LOG}-subscribe", partitions=CORES)
    reader = reader.option("endingOffset", records)
    frame = (reader.schema(schema) if schema else reader).load()
    found = frame.agg(f.count("*"), f.sum("glsn"), f.sum(f.length("payload"))).collect()[0]
    expected = (records, records * (records + 1) // 2, records * RECORD_BYTES)
    if tuple(found) != expected:
        raise Failed(f"Spark read {tuple(found)} where {expected} was appended")


# ------------------------------------------------------------------------------------------------------------- a stream


def _stream(spark: SparkSession, cluster: TrunklineCluster, plan: Plan, checkpoint: Path) -> list[float]:
    """Milliseconds from before an append until foreachBatch has the entry."""
    with sync.connect(cluster.address) as handle:
        log = handle.log(STREAM_LOG, create=True)
        log.append(b"0")
        seen: list[tuple[int, int]] = []  # stamp, when it was seen

        def take(rows: DataFrame, _: int) -> None:
            stamps = [int(row.payload) for row in rows.select("payload").collect()]
            now = time.time_ns()
            seen.extend((stamp, now) for stamp in stamps)

        options = {"connect": cluster.address, "log": STREAM_LOG}
        rows = spark.readStream.format("trunkline").schema("payload BINARY").options(**options).load()
        query = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint)).start()
        try:
            _until(lambda: len(seen) >= 1, query)
            began = time.time_ns() + int(plan.stream_warm_up_s * 1e9)
            appended = _append_stamps(log, plan.stream_warm_up_s + plan.stream_s)
            _until(lambda: len(seen) > appended, query)
        finally:
            query.stop()
    return [(at - stamp) / 1e6 for stamp, at in seen if stamp >= began]


def _append_stamps(log: sync.Log, seconds: float) -> int:
    count, ends = 0, time.monotonic() + seconds
    pause = threading.Event()
    while time.monotonic() < ends:
        log.append(b"%d" % time.time_ns())
        count += 1
        pause.wait(STAMP_EVERY_S)
    return count


def _until(condition: Callable[[], bool], query: Any) -> None:
    ends = time.monotonic() + LAST_SEEN_S
    while not condition():
        if query.exception() is not None or time.monotonic() > ends:
            raise Failed(f"the stream did not come that far: {query.exception()}")
        time.sleep(0.01)
