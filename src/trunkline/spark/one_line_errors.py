"""Shows errors to users of Spark in one line, without a traceback.

A PySpark worker sends an exception to the driver with its traceback: two dozen lines for a missing log. The text of a
``TrunklineError`` states what is wrong and what to do next, so its traceback is left out. PySpark has an environment
variable for that. It reads it when it sends the exception, and the worker ends right after; so other errors keep their
tracebacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from trunkline.config import set_variable
from trunkline.errors import TrunklineError

HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"


@contextmanager
def in_one_line() -> Iterator[None]:
    """Wrap every function that Spark calls in a worker."""
    try:
        yield
    except TrunklineError:
        set_variable(HIDE_TRACEBACK, "1")
        raise
