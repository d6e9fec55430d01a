"""A program that runs Spark's own Auto CDC over batches of events: slowly changing dimensions of type 1 and 2.

    python auto_cdc.py FOLDER CLASSES

FOLDER has ``batch*.json``, each with an event on each line; every batch is one run of the pipeline. ``result.json`` has
the rows in the end, by type. CLASSES: the compiled ``memory_catalog.scala``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from pyspark import pipelines
from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context
from pyspark.pipelines.graph_element_registry import graph_element_registration_context
from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, handle_pipeline_events, start_run
from pyspark.sql import SparkSession

EVENTS: Final = "source string, id bigint, tenant string, note string, size int, seq bigint, gone boolean"
KEYS: Final = ["source", "id"]
CATALOG: Final = "org.apache.spark.sql.memorytables.MemoryCatalog"
TYPES: Final = (1, 2)


def main(folder: Path, classes: str) -> None:
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.driver.extraClassPath", classes)
        .config("spark.sql.catalog.memory", CATALOG)
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    (folder / "seen").mkdir()
    for batch in sorted(folder.glob("batch*.json")):
        batch.rename(folder / "seen" / batch.name)
        _run(spark, folder)
    rows = {f"scd{kind}": _rows(spark.table(f"memory.default.scd{kind}")) for kind in TYPES}
    (folder / "result.json").write_text(json.dumps(rows))


def _run(spark: Any, folder: Path) -> None:
    """One update of the pipeline: it reads the files that it has not seen."""
    graph = create_dataflow_graph(spark, default_catalog="memory", default_database="default", sql_conf={})
    registry = SparkConnectGraphElementRegistry(spark, graph)
    with (
        graph_element_registration_context(registry),
        add_pipeline_analysis_context(spark=spark, dataflow_graph_id=graph, flow_name=None),
    ):

        @pipelines.temporary_view
        def events() -> Any:
            return spark.readStream.schema(EVENTS).json(str(folder / "seen"))

        for kind in TYPES:
            pipelines.create_streaming_table(f"scd{kind}")
            pipelines.create_auto_cdc_flow(
                target=f"scd{kind}",
                source="events",
                keys=KEYS,
                sequence_by="seq",
                apply_as_deletes="gone",
                except_column_list=["gone", "seq"],
                stored_as_scd_type=kind,
            )
    storage = (folder / "storage").as_uri()
    options: dict[str, Any] = {"full_refresh": None, "full_refresh_all": False, "refresh": None, "dry": False}
    handle_pipeline_events(start_run(spark, graph, storage=storage, **options))


def _rows(frame: Any) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.asDict().items() if name[:8] != "__spark_"} for row in frame.collect()]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
