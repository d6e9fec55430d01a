"""A Spark cluster of its own for tests: a real master with one worker, on any free ports of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from trunkline.delivery.engine.java import write_java_home

WAIT_S_MAX = 120.0  # a loaded machine; usually a few seconds
LOOK_AGAIN_S = 0.05
HOME = Path(pyspark.__file__).parent
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
READY = {MASTER: r"Starting Spark master at (spark://\S+)", WORKER: r"Successfully registered with master (\S+)"}
HERE = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")


@contextmanager
def standalone(java: Path, directory: Path, *, cores: int = 2) -> Iterator[str]:
    """Its address, until the block is left."""
    with _daemon(java, directory, MASTER) as master:
        sizes = ("--cores", str(cores), "--memory", "1g", "--work-dir", str(directory / "work"))
        with _daemon(java, directory, WORKER, *sizes, master):
            yield master


@contextmanager
def _daemon(java: Path, directory: Path, name: str, *arguments: str) -> Iterator[str]:
    log = directory / f"{name}.log"
    (directory / name).mkdir()
    home = write_java_home(directory / name, java)
    environment = {**os.environ, "SPARK_HOME": str(HOME), "JAVA_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [HOME / "bin" / "spark-class", name, *HERE, *arguments],
            env={**environment, "SPARK_DAEMON_MEMORY": "256m"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + WAIT_S_MAX
        while not (ready := re.search(READY[name], log.read_text(errors="replace"))):
            assert process.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(LOOK_AGAIN_S)
        yield ready[1]
    finally:
        process.terminate()
        process.wait()
