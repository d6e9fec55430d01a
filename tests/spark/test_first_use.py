"""The first minutes with Spark: the page's example word for word, the Python of workers, packages that are missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from local_cluster import RunningCluster
from trunkline import sync
from trunkline.delivery.engine.java import write_java_home
from trunkline.errors import ConfigError
from trunkline.spark import register

EXAMPLE_S = 240.0  # on a loaded machine; usually half a minute


def write_python(directory: Path, text: str) -> Path:
    """A program ``python3`` of its own, as the PATH may have one."""
    program = directory / "python3"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return program


def test_the_example_of_the_page_runs_where_no_environment_is_activated(
    repository: Path, java: Path, cluster: RunningCluster, handle: sync.Cluster, tmp_path: Path
) -> None:
    handle.log("orders", create=True).append([b"paid", b"sent", b"paid"])
    copies = handle.log("copies", create=True)
    page = (repository / "docs" / "spark.md").read_text(encoding="utf-8")
    example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    (tmp_path / "example.py").write_text(example.replace("127.0.0.1:7400", cluster.connect))
    write_python(tmp_path, "exit 1")
    home = write_java_home(tmp_path, java)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env=kept | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=EXAMPLE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0 3\n"
    assert [entry.payload for entry in copies.subscribe(to_tail=True)] == [b"paid", b"sent", b"paid"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("exit 1", "does not run"),
        ("""echo '["3.1", []]'""", "is version 3.1, but the driver is {version}"),
        ("""echo '["{version}", ["trunkline", "numpy"]]'""", "lacks trunkline, numpy"),
        (None, "does not exist"),
    ],
)
@pytest.mark.parametrize("by", ["the user", "a cluster"])
def test_a_python_that_workers_cannot_use_is_refused_in_one_line(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, wrong: str, by: str
) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    program = tmp_path / "python3"
    if text is not None:
        write_python(tmp_path, text.replace("{version}", version))
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(program))
    if by == "the user":
        monkeypatch.setenv("PYSPARK_PYTHON", str(program))
    else:
        monkeypatch.setattr(spark.sparkContext, "master", "spark://elsewhere:7077")
    with pytest.raises(ConfigError) as refused:
        register(spark)
    assert str(refused.value) == (
        f"Spark's workers run the Python '{program}', which {wrong.format(version=version)}: set PYSPARK_PYTHON, "
        f"before Spark starts, to a Python {version} that has trunkline[delivery] on every machine that runs them"
    )
    assert spark.sparkContext.pythonExec == str(program)


def test_a_python_of_the_users_that_has_what_is_needed_is_kept(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = write_python(tmp_path, f'exec {sys.executable} "$@"')
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(program))
    monkeypatch.setenv("PYSPARK_PYTHON", str(program))
    register(spark)
    assert spark.sparkContext.pythonExec == str(program)


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "numpy"])
def test_a_package_that_is_missing_is_named_with_what_to_install(package: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; import trunkline.spark"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: trunkline.spark needs the package {package}; install it: pip install 'trunkline[delivery]'"
    )
