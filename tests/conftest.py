"""What every test may use."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from outside import watch_programs
from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONGEST_FIRST = ("system", "delivery", "contract", "browser", "spark", "cli", "check", "metadata", "proxy", "dashboard")
# The same examples on every run: a failure that is seen once can be seen again.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the repository."""
    return Path(__file__).resolve().parent.parent


def pytest_configure() -> None:
    """Started in the background by a shell we would ignore interrupts, and so would the programs under test."""
    watch_programs()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Beside other processes, begin with the files that take long: at the end none is left alone with one of them."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: LONGEST_FIRST.index(folder) if (folder := _folder(item)) in LONGEST_FIRST else 99)


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).parts[0]


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command that runs in this process sets up logging for itself; the next test is not to find it so."""
    ours = logging.getLogger("trunkline")
    before = (ours.handlers[:], ours.propagate, ours.level)
    yield
    ours.handlers[:], ours.propagate = before[:2]
    ours.setLevel(before[2])


@pytest.fixture(scope="session")
def java() -> Path:
    """Where Java is. Skips what needs it where it is missing, but fails it in continuous integration."""
    from trunkline.delivery.engine.java import find_java

    try:
        return find_java()
    except ConfigError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(java: Path) -> Iterator[SparkSession]:
    """A session for all tests, of delivery and of the log in Spark; none of them changes its settings for good."""
    from trunkline.delivery.engine.session import SHORT_LIVED, spark_session, stop_session
    from trunkline.spark import register

    session = spark_session("local[2]", conf=SHORT_LIVED, name="tests")
    try:
        register(session)
        yield session
    finally:
        stop_session(session)
