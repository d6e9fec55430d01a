"""Errors inside of Spark plans reach the planner as what they are."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from delivery.here_spark import Here
from delivery.pipe_sources import opened_lake
from delivery.set_source import SetSource
from delivery.task_pipelines import standing_of, task_pipeline_of
from trunkline.core.delivery_messages import FlushGroup, JobMember, Outcome, SeedGroup, SeedMode
from trunkline.delivery.config.addresses import DeltaAddress, LakeAddress
from trunkline.delivery.config.table_patterns import Selection
from trunkline.delivery.config.tree import TableConfig
from trunkline.delivery.job.results import broken_off
from trunkline.delivery.job.runner import JobRunner
from trunkline.delivery.job.work import TaskDestination
from trunkline.delivery.sources.lake_tables import LakeTables
from trunkline.delivery.sources.task_errors import TaskError, carried_error, carrying
from trunkline.errors import (
    ConfigError,
    CorruptEntry,
    DestinationHalted,
    SchemaMismatch,
    SourceExpired,
    TrunklineError,
    Unreachable,
)

MEMBERS = (JobMember("acme", 1, 7), JobMember("bolt", 1, 7))


def crossed(error: Exception) -> str:
    """The text of an exception of a task as Spark shows it to the driver."""

    def fails(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise error
        yield

    try:
        list(carrying(fails)(iter(())))
    except Exception:
        text = traceback.format_exc()
        return (
            f"Job aborted due to stage failure: Lost task 0.0 (TID 4): PythonException:\n {text}\n\tat java.lang.Thread"
        )
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "kind", "outcome"),
    [
        (DestinationHalted("two\nlines, and 'ü'"), DestinationHalted, Outcome.PERMANENT),
        (SchemaMismatch("another column"), DestinationHalted, Outcome.PERMANENT),
        (ConfigError("filter: a cast fails"), ConfigError, Outcome.PERMANENT),
        (CorruptEntry("log", 3), DestinationHalted, Outcome.PERMANENT),
        (SourceExpired("the files were removed"), SourceExpired, Outcome.EXPIRED),
        (Unreachable("the store does not answer"), TrunklineError, Outcome.UNKNOWN),
    ],
)
def test_the_type_and_the_message_of_an_error_survive_the_way_through_java(
    error: TrunklineError, kind: type[TrunklineError], outcome: Outcome
) -> None:
    found = carried_error(crossed(error))
    assert (type(found), str(found)) == (kind, str(error))
    assert found is not None
    report = broken_off(MEMBERS, found)
    if outcome is Outcome.UNKNOWN:
        assert (report.results, report.rest, report.error) == ((), Outcome.UNKNOWN, str(error))
    else:
        assert {each.destination: each.outcome for each in report.results} == dict.fromkeys(("acme", "bolt"), outcome)
        assert all(str(error) in each.error for each in report.results)


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: 1",
        "trunkline.TaskError: trunkline-error:!",
        "TaskError: trunkline-error:abc",
        "TaskError: trunkline-error:e30=",
    ],
)
def test_other_texts_have_no_error(text: str) -> None:
    assert carried_error(f"Traceback\n{text}\n") is None
    assert carried_error(crossed(ValueError(text))) is None


@pytest.mark.parametrize("raised", [PythonException, Py4JError])
def test_a_job_that_breaks_off_with_such_an_error_halts_its_members(
    monkeypatch: pytest.MonkeyPatch, raised: type[Exception]
) -> None:
    source = SetSource()
    source.commit()
    runner = JobRunner(Here(), task_pipeline_of(source, (), tables=["*.*"]), 0)  # type: ignore[arg-type]

    def breaks(*_: object) -> None:
        raise raised(crossed(DestinationHalted("computed.number: it fails on a row")))

    monkeypatch.setattr(runner, "_small", breaks)
    report = runner.flush(FlushGroup(1, 1, 2, MEMBERS, stamp=True))
    assert [each.outcome for each in report.results] == [Outcome.PERMANENT] * 2
    assert report.results[0].error == "acme: computed.number: it fails on a row"


def test_an_expression_that_fails_in_a_large_window_halts_with_its_name(spark: SparkSession, tmp_path: Path) -> None:
    address = LakeAddress(f"sqlite:{tmp_path}/source.sqlite", "", data_path=f"{tmp_path}/source")
    with opened_lake(address) as lake:
        lake.execute("CREATE TABLE lake.notes (id BIGINT, text VARCHAR)")
        lake.execute(
            "INSERT INTO lake.notes SELECT i, CASE i WHEN 77 THEN 'x' ELSE i::VARCHAR END FROM range(100) r(i)"
        )
    entry = TableConfig(table="main.notes", key=("id",), computed={"number": "CAST(text AS INTEGER)"})
    target = TaskDestination("one", DeltaAddress(f"{tmp_path}/one/{{table}}"), None)
    source = LakeTables(address, Selection(("main.notes",), "main"))
    work = task_pipeline_of(source, [target], key=(), routing="", tables=[entry])
    runner = JobRunner(spark, work, -1)
    try:
        report = runner.seed(SeedGroup(1, source.state(0).version, SeedMode.SCAN, (JobMember("one", 0, 1),)))
    finally:
        runner.close()
    [result] = report.results
    assert result.outcome is Outcome.PERMANENT, report
    assert "computed.number" in result.error
    assert standing_of(work, "one") is None


def test_the_word_of_an_error_is_one_line_however_long_the_message_is() -> None:
    assert "\n" not in str(TaskError(ConfigError("a\n" * 100_000)))
