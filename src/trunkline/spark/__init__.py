"""The log as a Spark source and sink: ``format("trunkline")``.

    from trunkline.spark import register

    register(spark)
    spark.read.format("trunkline").option("connect", "127.0.0.1:7400").option("log", "orders").load()

Batch and stream, reading and writing; docs/spark.md lists the options and the guarantees. Executors need this package
as well, with PySpark 4.3, pyarrow and numpy (the extra ``delivery``).
"""

from __future__ import annotations

try:
    from trunkline.spark.registration import register
except ModuleNotFoundError as error:
    missing = (error.name or "trunkline").partition(".")[0]
    if missing == "trunkline":
        raise
    needs = f"trunkline.spark needs the package {missing}; install it: pip install 'trunkline[delivery]'"
    raise ImportError(needs, name=missing) from None

__all__ = ["register"]
