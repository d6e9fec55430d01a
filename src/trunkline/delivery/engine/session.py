"""The Spark session of a deliverer: quiet, fast for small jobs, and ended together with its process.

1. The Java process has a process session of its own: a signal to the driver's process group (Ctrl-C, a closed terminal,
   a supervisor's SIGTERM) reaches the driver alone, which can shut down cleanly.
2. Java ends when the driver ends in any way: it reads a pipe that only the driver holds open. Spark's Python workers
   and its local executors end with it.
3. All its files are in one temporary directory, which is removed at the end.
4. The handler of SIGINT stays the caller's; that of PySpark is not installed.
5. Settings of the caller override the defaults.
6. Every user of the machine can read a command line. So Java gets secrets while it runs, over its connection to this
   process; executors get them from Java over theirs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from trunkline.config import ENVIRONMENT, changed_environment
from trunkline.delivery.engine.directory import SessionDirectory
from trunkline.delivery.engine.java import find_java
from trunkline.delivery.engine.master import check_master, is_local
from trunkline.errors import ConfigError

END_S_MAX: Final = 30.0  # for Java to shut down cleanly; then it is killed
SOCKET_DIRECTORY_BYTES_MAX: Final = 60  # the path of a Unix socket has at most 107 bytes, and Spark's part takes 42
EVERYWHERE: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ui.retainedExecutions": "20",  # a deliverer runs jobs for months, and old plans are of no use
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.locality.wait": "0",
}
ON_THIS_MACHINE: Final = {
    "spark.driver.host": "localhost",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",  # most of the work and memory is in the Python workers
    "spark.sql.shuffle.partitions": "8",
    "spark.python.daemon.module": "trunkline.delivery.engine.worker_daemon",
}
# For a session of a minute or so: Java compiles with less optimisation, which halves the cost of the first jobs.
SHORT_LIVED: Final = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"}


def spark_session(
    master: str = "local[*]",
    *,
    conf: Mapping[str, str] | None = None,
    secret_conf: Mapping[str, str] | None = None,
    name: str = "trunkline",
) -> SparkSession:
    """Start Spark in this process, which must not have one yet. End it with ``stop_session``.

    ``secret_conf``: settings that other users must not see (6); not for those that Java reads at start.
    """
    check_master(master)
    if SparkContext._active_spark_context is not None:
        raise ConfigError("this process has a Spark session already: stop that one first")
    directory = SessionDirectory()
    try:
        settings = _settings(master, name, directory) | dict(conf or {})
        with _environment(master, settings, directory), _own_interrupts():
            return _start(settings, secret_conf or {}, directory)
    except BaseException:
        directory.remove()
        raise


def stop_session(session: SparkSession) -> None:
    """Stop Spark and end its Java, which may be dead already; no process and no file is left."""
    gateway: Any = SparkContext._gateway
    if gateway.proc is None or gateway.proc.poll() is None:
        session.stop()
    else:
        context: Any = session.sparkContext
        context._jsc = None  # Java is dead and cannot be called
        context.stop()
        SparkSession._instantiatedSession = SparkSession._activeSession = None
    _end_java()
    gateway.directory.remove()


def _settings(master: str, name: str, directory: SessionDirectory) -> dict[str, str]:
    java_options = {
        "log4j2.configurationFile": directory.write_logging(),
        "java.io.tmpdir": directory.path,  # also where Spark keeps its blocks, and sockets to Python workers
    }
    # Over TCP each exchange with a Python worker waits for a delayed acknowledgement: 40 ms a job.
    unix_sockets = len(os.fsencode(directory.path)) <= SOCKET_DIRECTORY_BYTES_MAX
    return {
        "spark.master": master,
        "spark.app.name": name,
        "spark.sql.warehouse.dir": f"{directory.path}/warehouse",
        "spark.driver.defaultJavaOptions": " ".join(f"-D{key}={value}" for key, value in java_options.items()),
        "spark.python.unix.domain.socket.enabled": str(unix_sockets).lower(),
        **EVERYWHERE,
        **(ON_THIS_MACHINE if is_local(master) else {}),
    }


@contextmanager
def _environment(master: str, settings: Mapping[str, str], directory: SessionDirectory) -> Iterator[None]:
    """Settings that Spark reads from the environment only, while it starts."""
    wanted = {"PYSPARK_PYTHON": settings.get("spark.pyspark.python", sys.executable)}
    if "PYSPARK_GATEWAY_PORT" not in ENVIRONMENT:  # otherwise spark-submit started Java and then this process
        wanted["JAVA_HOME"] = str(directory.write_java_home(find_java()))
    if is_local(master):
        wanted |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}
        wanted["SPARK_HOME"] = ENVIRONMENT.get("SPARK_HOME") or str(directory.write_spark_home())
    with changed_environment(wanted):
        yield


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Restore the handler of SIGINT, which PySpark replaces (in the main thread only)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _start(settings: Mapping[str, str], secrets: Mapping[str, str], directory: SessionDirectory) -> SparkSession:
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    try:
        gateway: Any = launch_gateway(conf, {"start_new_session": True})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        raise ConfigError(f"Java could not start Spark ({error}); see its output above") from error
    gateway.directory = directory
    conf.setAll(list(secrets.items()))  # (6)
    try:
        context = SparkContext(conf=conf, gateway=gateway)
        gateway.jvm.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(
            gateway.jvm.java.io.File(str(directory.path))
        )
        return SparkSession(context)
    except Py4JError as error:
        cause = _cause(error)  # calls Java
        _end_java()
        raise ConfigError(f"Spark did not start on master {settings['spark.master']!r}: {cause}") from None
    except BaseException:
        _end_java()
        raise


def _cause(error: Py4JError) -> str:
    exception = getattr(error, "java_exception", None)
    return (str(error) if exception is None else str(exception.getMessage())).partition("\n")[0]


def _end_java() -> None:
    """End the Java process of PySpark, and forget it: the next session starts another."""
    gateway: Any = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    process: subprocess.Popen[bytes] | None = gateway.proc
    if process is not None:  # otherwise it belongs to spark-submit
        assert process.stdin is not None
        process.stdin.close()  # Java ends when this pipe is closed
        try:
            process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
