"""Fixtures for every test, the marker of fast tests, and the order of files."""

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

TESTS = Path(__file__).resolve().parent
# Fast tests find most mistakes within minutes, and need no program outside Python. The others start Spark, lakes,
# PostgreSQL, etcd, browsers, command lines or whole clusters, or search every scenario and mutant.
FAST = ("core", "check", "storage", "net", "runtime", "client")
FAST_FILES = ("config", "docs", "foundation", "import_directions", "public_names", "words")  # tests/test_*.py
SLOW_FILES = ("check/test_mutants.py", "check/test_scenarios.py", "check/test_spin.py")
LONGEST_FIRST = ("system", "delivery", "contract", "browser", "spark", "cli", "check", "metadata", "proxy", "dashboard")
# The same examples on every run, so that a failure is repeatable.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the repository."""
    return Path(__file__).resolve().parent.parent


def pytest_configure() -> None:
    """A shell starts background jobs with interrupts ignored, which the programs under test would inherit."""
    watch_programs()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_fast(path: Path) -> bool:
    """Whether a file or folder of tests belongs to the fast subset."""
    inner = path.relative_to(TESTS)
    if len(inner.parts) == 1 and path.suffix == ".py":
        return path.stem.removeprefix("test_") in FAST_FILES
    return not inner.parts or (inner.parts[0] in FAST and inner.as_posix() not in SLOW_FILES)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m fast``, do not even import the other tests: that takes longer than many of the fast ones."""
    inside = collection_path.is_relative_to(TESTS)
    return True if config.option.markexpr == "fast" and inside and not is_fast(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the fast tests. With several workers, start the longest files first, so that none runs alone at the end."""
    for item in items:
        if is_fast(item.path):
            item.add_marker(pytest.mark.fast)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: LONGEST_FIRST.index(folder) if (folder := _folder(item)) in LONGEST_FIRST else 99)


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Restore logging after each test: a command that runs in this process configures it."""
    ours = logging.getLogger("trunkline")
    before = (ours.handlers[:], ours.propagate, ours.level)
    yield
    ours.handlers[:], ours.propagate = before[:2]
    ours.setLevel(before[2])


@pytest.fixture(scope="session")
def java() -> Path:
    """The path of Java. Without it the test is skipped; in continuous integration it fails."""
    from trunkline.delivery.engine.java import find_java

    try:
        return find_java()
    except ConfigError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(java: Path) -> Iterator[SparkSession]:
    """One session for all tests; no test may leave its settings changed."""
    from trunkline.delivery.engine.session import SHORT_LIVED, spark_session, stop_session
    from trunkline.spark import register

    session = spark_session("local[2]", conf=SHORT_LIVED, name="tests")
    try:
        register(session)
        yield session
    finally:
        stop_session(session)
