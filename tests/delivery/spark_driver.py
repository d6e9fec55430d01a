"""A process with a Spark session of its own, for tests that harm it: ``spark_driver.py WHAT``."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from trunkline.delivery.engine.session import SHORT_LIVED, spark_session, stop_session
from trunkline.errors import ConfigError

LOOK_AGAIN_S = 0.05
FOR_EVER_S = 600


def rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, 2, 1, numPartitions=2)


def pass_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def java_of(spark: SparkSession) -> int:
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    process: int = gateway.proc.pid
    return process


def wait_in_a_task() -> None:
    """Print the ids of Java, the daemon of Python workers and a worker, which is busy from then on."""
    spark = spark_session("local[2]", conf=SHORT_LIVED)
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        note = Path(directory) / "worker"

        def busy(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            unfinished = note.with_suffix(f".{os.getpid()}")
            unfinished.write_text(f"{os.getppid()} {os.getpid()}")
            unfinished.rename(note)
            time.sleep(FOR_EVER_S)
            yield from batches

        Thread(target=rows(spark).mapInArrow(busy, "id long").collect, daemon=True).start()
        while not note.exists():
            time.sleep(LOOK_AGAIN_S)
        workers = note.read_text()
    print(java_of(spark), workers, flush=True)
    signal.pause()


def drain_when_interrupted() -> None:
    """After a signal, run a last job and stop."""
    interrupted = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: interrupted.set())
    spark = spark_session("local[2]", conf=SHORT_LIVED)
    print("ready", flush=True)
    while not interrupted.wait(LOOK_AGAIN_S):
        pass
    last = sorted(row.id for row in rows(spark).mapInArrow(pass_on, "id long").collect())
    stop_session(spark)
    print("drained", last)


def refused_master() -> None:
    try:
        spark_session("local[some]", conf=SHORT_LIVED)
    except ConfigError as error:
        print(error)


def hold_secrets() -> None:
    """Print the settings of the variable SECRETS as seen here, and hold the session until the pipe is closed."""
    conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.executor.memory": "512m"}
    secrets = json.loads(os.environ["SECRETS"])
    spark = spark_session(os.environ["MASTER"], conf={**SHORT_LIVED, **conf}, secret_conf=secrets)
    java: Any = spark.sparkContext._jsc
    held = {name: java.sc().conf().get(name) for name in secrets}
    hadoop = {name: java.hadoopConfiguration().get(name.removeprefix("spark.hadoop.")) for name in secrets}
    assert rows(spark).mapInArrow(pass_on, "id long").count() == 2, "executors run"
    print(json.dumps([held, hadoop]), flush=True)
    sys.stdin.read()
    stop_session(spark)


def lose_java() -> None:
    """Stop after Java was killed; then PySpark must not count on a session any more."""
    spark = spark_session("local[2]", conf=SHORT_LIVED)
    os.kill(java_of(spark), signal.SIGKILL)
    os.waitid(os.P_PID, java_of(spark), os.WEXITED | os.WNOWAIT)
    stop_session(spark)
    assert SparkSession.getActiveSession() is None
    assert SparkContext._active_spark_context is None
    print("stopped")


if __name__ == "__main__":
    {
        "wait-in-a-task": wait_in_a_task,
        "drain-when-interrupted": drain_when_interrupted,
        "refused-master": refused_master,
        "lose-java": lose_java,
        "hold-secrets": hold_secrets,
    }[sys.argv[1]]()
