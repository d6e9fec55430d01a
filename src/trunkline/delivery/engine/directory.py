"""The temporary directory of one Spark session: what Spark reads at start, and all that it writes by itself.

1. The driver holds a lock on its directory as long as it runs.
2. The driver removes it when it ends; if the driver was killed, Java does.
3. If both were killed, the next driver that starts removes it: a directory that is not locked, and not so new that its
   driver may be about to lock it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

import pyspark

from trunkline.delivery.engine.java import write_java_home

PREFIX: Final = "trunkline-driver-"
ABANDONED_AFTER_S: Final = 60.0
LOGGING: Final = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %p %c{1}: %m%n%ex
# Spark takes this level for that of a shell, and logs it if a shell is more verbose than the root logger.
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
# Failures of tasks and of the start are raised in the driver; they need not be logged twice.
logger.start.name = org.apache.spark.SparkContext
logger.start.level = off
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
"""


class SessionDirectory:
    """A new directory, locked until ``remove``."""

    def __init__(self) -> None:
        _remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)  # Java may remove it at the same time
        os.close(self._lock)

    def write_logging(self) -> Path:
        file = self.path / "log4j2.properties"
        file.write_text(LOGGING)
        return file

    def write_java_home(self, java: Path) -> Path:
        return write_java_home(self.path, java)

    def write_spark_home(self) -> Path:
        """Create a ``SPARK_HOME`` with Spark's jars and scripts only.

        Without the archives of PySpark's own sources, Python workers import the installed package, which is compiled:
        a worker starts in a quarter of the time. And executors of a ``local-cluster`` write their files here, not into
        the installation.
        """
        home = self.path / "spark"
        home.mkdir()
        for part in ("bin", "jars"):
            (home / part).symlink_to(Path(pyspark.__file__).parent / part)
        return home


def _remove_abandoned() -> None:
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            lock = os.open(directory, os.O_RDONLY)
        except OSError:
            continue  # just removed, or another user's
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - os.fstat(lock).st_mtime > ABANDONED_AFTER_S:
                shutil.rmtree(directory, ignore_errors=True)
        except BlockingIOError:
            continue  # its driver runs
        finally:
            os.close(lock)
