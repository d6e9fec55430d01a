"""What errors of DuckDB mean for a lake: whether something was written, whom they concern, and whether to try again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import duckdb

from trunkline.delivery.backends.ducklake_attachment import NEEDS_DATA_PATH, password_part
from trunkline.delivery.backends.object_errors import StoreRefusal, store_error, store_reason
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.errors import DestinationHalted, OutcomeUnknown, Refused, Unreachable

REASON_CHARACTERS_MAX: Final = 400  # of an error message of DuckDB
CONFLICTS: Final = ("Exceeded the maximum retry count", "Transaction conflict")
SENT: Final = 'Failed to execute query "COMMIT"'  # the catalog may have done it
NOT_A_LAKE: Final = "creating a new DuckLake is explicitly disabled"
NO_DATA_PATH: Final = "data_path is not set"  # of a lake that does not exist yet
STILL_OPEN: Final = "Unique file handle conflict"  # in this process
LOCKED: Final = "database is locked"  # by another connection to SQLite
NO_ROOM: Final = "failed to offload data block"  # to a temporary file
BUSY: Final = (LOCKED, STILL_OPEN)
PERMANENT: Final = (  # parts of messages about what only an operator can resolve
    "password authentication failed",
    "no password supplied",
    "pg_hba.conf",
    "FATAL:  database",
    "FATAL:  role",
    "not a valid DuckDB database",
)
FATAL: Final = (duckdb.FatalException, duckdb.InternalException)
TRANSIENT: Final = (
    duckdb.ConnectionException,
    duckdb.HTTPException,
    duckdb.InterruptException,
    duckdb.IOException,
    duckdb.OutOfMemoryException,
    duckdb.TransactionException,
)


class NoLake(DestinationHalted):
    """There is no lake at this address."""


class CommitConflict(Refused):
    """Another process committed to the catalog since this transaction began; nothing was written."""


class CatalogLocked(CommitConflict):
    """Another process reads or writes the catalog, which is in SQLite; nothing was written."""


def no_lake(address: LakeAddress) -> NoLake:
    return NoLake(f"there is no lake at {address.catalog}; seed the destination")


def is_locked(error: BaseException) -> bool:
    """Also one that became ``Unreachable``, whose text has the first line only."""
    return LOCKED in f"{error} {error.__cause__}"


def may_happen_to_anybody(error: duckdb.Error) -> bool:
    """Whether an error says nothing about a table or its rows."""
    return isinstance(error, (*TRANSIENT, *FATAL)) or any(text in str(error) for text in BUSY)


def halted(error: duckdb.Error, what: str, address: LakeAddress) -> DestinationHalted:
    if NO_DATA_PATH in str(error):
        return DestinationHalted(f"there is no lake at {address.catalog} yet; {NEEDS_DATA_PATH}, and run again")
    return DestinationHalted(f"{what} cannot be used ({reason(error, address)}); fix it, then resume the destination")


def commit_error(error: duckdb.Error, address: LakeAddress) -> CommitConflict | OutcomeUnknown:
    """Of a COMMIT. DuckLake says that it tried often enough whatever went wrong, also if only the answer was lost."""
    sent = SENT in str(error) and f"{SENT}: {LOCKED}" not in str(error)
    if not sent and any(text in str(error) for text in CONFLICTS):
        kind, does = (CatalogLocked, "uses") if is_locked(error) else (CommitConflict, "wrote to")
        return kind(f"another process {does} {address.catalog} at the same time; retrying")
    return OutcomeUnknown(
        f"the outcome of a commit to {address.catalog} is unknown ({reason(error, address)}); "
        "the position is read again before the next write"
    )


@contextmanager
def translated_errors(address: LakeAddress) -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        said, what = reason(error, address), f"the lake {address.catalog}"
        if NO_ROOM in str(error):
            raise Unreachable(
                f"rows on their way to {what} do not fit into the temporary directory {tempfile.gettempdir()} "
                f"({said}); free its disk, or let TMPDIR name another directory; retrying"
            ) from error
        refused = isinstance(store_error(error, address), StoreRefusal) or any(text in said for text in PERMANENT)
        transient = isinstance(error, TRANSIENT) and not refused
        if transient or any(text in str(error) for text in BUSY):
            raise Unreachable(f"{what} cannot be reached ({said}); retrying") from error
        raise halted(error, what, address) from error


def reason(error: duckdb.Error, address: LakeAddress) -> str:
    """The message of DuckDB, without the password that it repeats."""
    said = store_reason(error, address)
    return said.replace(password_part(address) or "\0", "")[:REASON_CHARACTERS_MAX]
