"""``register``, and the Python of Spark's workers.

Spark runs its workers with ``PYSPARK_PYTHON``, or else with the ``python3`` of the PATH: in a virtual environment that
is not activated that is another one, without this package.

1. A setting of the user wins. So does Spark's own on a cluster: the paths on other machines are not known here. Either
   is checked, because Spark runs it on this machine, too.
2. Otherwise workers run the Python of this process. Spark reads the setting when the session starts and keeps it in the
   context; every function and source that is registered gets it from there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from trunkline.config import ENVIRONMENT
from trunkline.errors import ConfigError
from trunkline.spark.source import TrunklineSource

SETTING: Final = "PYSPARK_PYTHON"
NEEDED: Final = ("trunkline", "msgspec", "numpy", "pyarrow")  # Spark sends PySpark itself
CHECK: Final = f"""
import importlib.util, json, sys
missing = [name for name in {NEEDED!r} if importlib.util.find_spec(name) is None]
print(json.dumps(["%d.%d" % sys.version_info[:2], missing]))
"""
ANSWER_S_MAX: Final = 60.0


def register(spark: SparkSession) -> None:
    """Register ``format("trunkline")`` with a session. ``ConfigError``: Spark's workers cannot use it."""
    context = getattr(spark, "sparkContext", None)
    if context is not None:  # Spark Connect has none: the server chooses the Python
        _settle_python(context)
    spark.dataSource.register(TrunklineSource)


def _settle_python(context: SparkContext) -> None:
    if context.pythonExec == sys.executable:
        return
    if SETTING in ENVIRONMENT or not str(context.master).startswith("local"):
        _check_python(context.pythonExec, context.pythonVer)  # (1)
    else:
        context.pythonExec = sys.executable  # (2)


def _check_python(program: str, version: str) -> None:
    wrong = _fault(program, version)
    if wrong:
        raise ConfigError(
            f"Spark's workers run the Python {program!r}, which {wrong}: set {SETTING}, before Spark starts, to a "
            f"Python {version} that has trunkline[delivery] on every machine that runs them"
        )


def _fault(program: str, version: str) -> str | None:
    try:
        done = subprocess.run(
            [program, "-c", CHECK], capture_output=True, text=True, check=False, timeout=ANSWER_S_MAX, errors="replace"
        )
        found: tuple[str, list[Any]] = json.loads(done.stdout)
    except FileNotFoundError:
        return "does not exist"
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return "does not run"
    if found[0] != version:
        return f"is version {found[0]}, but the driver is {version}"
    return f"lacks {', '.join(found[1])}" if found[1] else None
