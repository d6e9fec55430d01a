"""What errors of DuckDB mean for an Iceberg table: whether something was written, and whether to try again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import duckdb

from trunkline.delivery.backends.iceberg_catalog import without_secrets
from trunkline.delivery.backends.sql import first_line
from trunkline.delivery.config.addresses import IcebergAddress
from trunkline.errors import DestinationHalted, Unreachable

REASON_CHARACTERS_MAX: Final = 400  # of an error message of DuckDB
NO_ROOM: Final = "failed to offload data block"  # to a temporary file
CONFLICT: Final = "_409)"
TRANSIENT: Final = (
    duckdb.ConnectionException,
    duckdb.HTTPException,
    duckdb.InterruptException,
    duckdb.IOException,
    duckdb.OutOfMemoryException,
    duckdb.TransactionException,
    duckdb.FatalException,
    duckdb.InternalException,
)


def is_conflict(error: duckdb.Error) -> bool:
    """Whether another writer committed to the table since the transaction began."""
    return CONFLICT in str(error)


@contextmanager
def translated_errors(address: IcebergAddress, what: str, abandon: Callable[[], None]) -> Iterator[None]:
    """Errors of statements other than COMMIT: nothing was written. ``abandon``: called if it may be the instance's."""
    try:
        yield
    except duckdb.Error as error:
        said = reason(error, address)
        abandon()
        if NO_ROOM in str(error):
            raise Unreachable(
                f"rows on their way to {what} do not fit into the temporary directory {tempfile.gettempdir()} "
                f"({said}); free its disk, or let TMPDIR name another directory; retrying"
            ) from error
        if isinstance(error, TRANSIENT) or type(error) is duckdb.Error:
            raise Unreachable(f"{what} cannot be reached ({said}); retrying") from error
        raise DestinationHalted(f"{what} cannot be used ({said}); fix it, then resume the destination") from error


def reason(error: duckdb.Error, address: IcebergAddress) -> str:
    """The message of DuckDB, without secrets that it may repeat."""
    return without_secrets(first_line(error), address)[:REASON_CHARACTERS_MAX]
