"""Options that are wrong are refused, each with a message that says what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from spark.spark_log import SparkLog
from trunkline.errors import ConfigError
from trunkline.spark.options import BATCH, SINK, STREAM, TIMEOUT_S, batch_options, stream_options, write_options

PLACE = {"connect": "127.0.0.1:7400", "log": "orders"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"log": "no-such-log"}, "log no-such-log does not exist; create it first"),
        ({"connect": "127.0.0.1:1", "timeout": "0.5"}, "no coordinator answered .*is the cluster up"),
        ({"tokenEnv": "NO_SUCH_VARIABLE"}, "option tokenEnv names NO_SUCH_VARIABLE, which is not set"),
    ],
)
def test_spark_shows_what_is_wrong(log: SparkLog, options: dict[str, str], message: str) -> None:
    with pytest.raises(PySparkException, match=message):
        log.frame(**options).collect()


def test_an_unknown_option_is_refused_as_the_frame_is_loaded(log: SparkLog) -> None:
    with pytest.raises(PySparkException, match="unknown option 'startingoffsets' of format trunkline"):
        log.frame(startingOffsets="oldest")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"log": ""}, 'needs the option log: .option("log", "orders")'),
        ({"startingOffset": "yesterday"}, "option startingOffset is 'yesterday': give oldest or a position from 1 on"),
        ({"startingOffset": "latest"}, "option startingOffset is 'latest': give oldest or a position"),
        ({"endingOffset": "0"}, "option endingOffset is '0': give latest or a position from 1 on"),
        ({"partitions": "0"}, "option partitions is '0': give a whole number from 1 to 10000"),
        ({"failOnTrim": "maybe"}, "option failOnTrim is 'maybe': give true or false"),
        ({"timeout": "soon"}, "option timeout is 'soon': give a number of seconds, 0 for ever"),
        ({"maxEntriesPerTrigger": "5"}, "unknown option 'maxEntriesPerTrigger'"),
        (
            {"token": "secret"},
            "unknown option 'token' of format trunkline; here are known: connect, log, timeout",
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
