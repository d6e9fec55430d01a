"""Errors as a user of Spark is to see them: one line, without a traceback.

A worker of PySpark sends the text of an exception to the driver, and the traceback with it: two dozen lines for a log
that is missing. A ``TrunklineError`` says by itself what is wrong and what to do next, so its traceback is left out.
PySpark has a variable of the environment for that. It looks there as it sends the exception, and the worker ends right
after; so no other error goes without its traceback.
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
    """Around all that Spark calls in a worker."""
    try:
        yield
    except TrunklineError:
        set_variable(HIDE_TRACEBACK, "1")
        raise
