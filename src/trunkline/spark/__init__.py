"""The log as a source and a sink of Spark: ``format("trunkline")``.

    from trunkline.spark import register

    register(spark)
    spark.read.format("trunkline").option("connect", "127.0.0.1:7400").option("log", "orders").load()

Batch and stream, reading and writing; docs/spark.md holds every option and what is promised. Executors need this
package installed as well, with PySpark 4.3, pyarrow and numpy (the extra ``delivery``).
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from trunkline.spark.source import TrunklineSource

__all__ = ["register"]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make ``format("trunkline")`` known to this session, and let Spark hand filters to sources in Python."""
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(TrunklineSource)
