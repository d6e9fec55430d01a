"""Invalid options are refused, each with a message that names the remedy."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from spark.spark_log import SparkLog
from trunkline.errors import ConfigError
from trunkline.spark.columns import DDL
from trunkline.spark.options import BATCH, SINK, STREAM, TIMEOUT_S, batch_options, stream_options, write_options

KNOWN = ", ".join(dict.fromkeys((*BATCH, *STREAM, *SINK)))
LINES_MAX = 2  # the second one is Spark's " SQLSTATE: 38000"
PLACE = {"connect": "127.0.0.1:7400", "log": "orders"}


Ends = Callable[[SparkLog, dict[str, str]], object]


def load(log: SparkLog, options: dict[str, str]) -> None:
    log.frame(**options)


def load_stream(log: SparkLog, options: dict[str, str]) -> None:
    log.stream(**options)


def load_with_schema_and_count(log: SparkLog, options: dict[str, str]) -> None:
    log.frame("payload STRING" if options.pop("wrong", "") else "payload BINARY", **options).count()


def stream(log: SparkLog, options: dict[str, str]) -> None:
    query = log.stream(**options).writeStream.format("noop").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def write(log: SparkLog, options: dict[str, str]) -> None:
    log.write(log.spark.sql("SELECT 'a' AS payload"), **options)


def write_stream(log: SparkLog, options: dict[str, str]) -> None:
    log.append(b"a")
    with tempfile.TemporaryDirectory() as checkpoint:
        given = {**log.options(**options), "checkpointLocation": checkpoint}
        query = log.stream().select("payload").writeStream.format("trunkline").options(**given).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()


GONE = "log no-such-log does not exist; create it first"
AWAY = {"connect": "127.0.0.1:1", "timeout": "0.5"}
UNREACHABLE = (
    "no coordinator answered at 127.0.0.1:1 (connection refused); is the cluster up? Start one with `trunkline up`, or "
    "give the address of the one that runs"
)
UNSET = (
    "the environment variable NO_SUCH_VARIABLE is not set or is empty; set it to the token of the cluster, on the "
    "driver and, with spark.executorEnv, on executors"
)
TABLE: list[tuple[Ends, dict[str, str], str]] = [
    (load, {"log": "no-such-log"}, GONE),
    (load, AWAY, UNREACHABLE),
    (load, {"connect": ""}, 'format trunkline needs the option connect: .option("connect", "127.0.0.1:7400")'),
    (load, {"startingOffsets": "1"}, f"unknown option 'startingoffsets' of format trunkline; choose from: {KNOWN}"),
    (load, {"startingOffset": "first"}, "option startingOffset is 'first': give oldest or a position from 1 on"),
    (load, {"endingOffset": "0"}, "option endingOffset is '0': give latest or a position from 1 on"),
    (load, {"tokenFile": "/no/such"}, "option tokenFile: cannot read /no/such: No such file or directory"),
    (
        load,
        {"tokenEnv": "NO_SUCH_VARIABLE"},
        UNSET,
    ),
    (load_stream, {"log": "no-such-log"}, GONE),
    (load_stream, AWAY, UNREACHABLE),
    (
        load_stream,
        {"maxEntriesPerTrigger": "none"},
        "option maxEntriesPerTrigger is 'none': give a whole number from 1 to 9223372036854775807",
    ),
    (load_with_schema_and_count, {"log": "no-such-log"}, GONE),
    (
        load_with_schema_and_count,
        {"wrong": "true"},
        f"a log has no column payload STRING; choose from: {DDL}",
    ),
    (
        stream,
        {"endingOffset": "7"},
        f"unknown option 'endingoffset' of format trunkline; choose from: {', '.join(STREAM)}",
    ),
    (write, {"log": "no-such-log"}, GONE),
    (write, AWAY, UNREACHABLE),
    (
        write,
        {"partitions": "2"},
        f"unknown option 'partitions' of format trunkline; choose from: {', '.join(SINK)}",
    ),
    (write_stream, {"log": "no-such-log"}, GONE),
]


@pytest.mark.parametrize(("ends", "options", "message"), TABLE)
def test_spark_shows_in_one_line_what_is_wrong(
    log: SparkLog, ends: Ends, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException) as refused:
        ends(log, dict(options))
    shown = str(refused.value).partition("=== Streaming Query ===")[0].strip().splitlines()
    assert shown[0].endswith(message), str(refused.value)
    assert len(shown) <= LINES_MAX, str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"log": ""}, 'needs the option log: .option("log", "orders")'),
        ({"startingOffset": "yesterday"}, "option startingOffset is 'yesterday': give oldest or a position from 1 on"),
        ({"startingOffset": "latest"}, "option startingOffset is 'latest': give oldest or a position"),
        ({"endingOffset": "0"}, "option endingOffset is '0': give latest or a position from 1 on"),
        ({"partitions": "0"}, "option partitions is '0': give a whole number from 1 to 10000"),
        ({"failOnTrim": "maybe"}, "option failOnTrim is 'maybe': give true or false"),
        ({"timeout": "soon"}, "option timeout is 'soon': give a number of seconds, or 0 to wait forever"),
        ({"maxEntriesPerTrigger": "5"}, "unknown option 'maxEntriesPerTrigger'"),
        (
            {"token": "secret"},
            "unknown option 'token' of format trunkline; choose from: connect, log, timeout",
        ),
        ({"tokenEnv": "A", "tokenFile": "b"}, "options tokenEnv and tokenFile both name the cluster's secret"),
    ],
)
def test_each_wrong_option_of_a_read_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        batch_options({**PLACE, **options})
    assert message in str(refused.value)


def test_options_are_known_without_regard_to_case_and_underscores() -> None:
    given = stream_options(
        {"CONNECT": "host:1", "Log": "orders", "token_env": "SECRET", "max_entries_per_trigger": "7"}
    )
    assert (given.connection.connect, given.connection.token_env) == ("host:1", "SECRET")
    assert (given.entries_per_trigger, given.connection.timeout_s) == (7, TIMEOUT_S)


def test_a_sink_takes_what_spark_adds_to_its_options_and_nothing_else() -> None:
    assert write_options({**PLACE, "checkpointlocation": "/x", "queryname": "nightly"}).query == "nightly"
    with pytest.raises(ConfigError, match="unknown option 'startingOffset'"):
        write_options({**PLACE, "startingOffset": "1"})


def test_the_page_has_every_option_in_its_table_and_no_other(repository: Path) -> None:
    page = (repository / "docs" / "spark.md").read_text(encoding="utf-8")
    table = page.split("## Options")[1].split("##")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    named = re.findall(r"`(\w+)`", " ".join(first_cells))
    assert sorted(named) == sorted({*BATCH, *STREAM, *SINK})
