"""The journal of a catalog in SQLite.

With a write-ahead log, which older releases chose, readers see mixed states: DuckDB scans a table of SQLite over
several connections, which may begin before and after a commit. A rollback journal keeps a commit and readers apart. It
is emptied after a commit, not deleted: a plain reader that saw a journal, and then cannot open it, gives up.
"""

from __future__ import annotations

import logging
from typing import Final

import duckdb

from trunkline.delivery.backends.duckdb_pool import extension_file
from trunkline.delivery.backends.sql import literal
from trunkline.delivery.destinations.ducklake_errors import is_locked

ROLLBACK: Final = "TRUNCATE"  # the kind of rollback journal
NAME: Final = "_trunkline_journal"  # of the catalog, while its journal is changed

log = logging.getLogger(__name__)


def mend_journal(instance: duckdb.DuckDBPyConnection, location: str) -> bool:
    """Make a catalog use a rollback journal; returns whether it does. Readers may prevent it for the moment.

    This goes through DuckDB's extension: a second SQLite library in this process would break the locks of the first.
    """
    instance.execute(f"LOAD {literal(str(extension_file('sqlite_scanner')))}")
    options = f"TYPE sqlite, JOURNAL_MODE '{ROLLBACK}', BUSY_TIMEOUT 0"
    try:
        instance.execute(f"ATTACH {literal(location)} AS {NAME} ({options})")
        try:
            instance.execute(f"SELECT * FROM sqlite_query('{NAME}', 'PRAGMA journal_mode')").fetchall()
        finally:
            instance.execute(f"DETACH {NAME}")
    except duckdb.Error as error:
        if is_locked(error):
            log.warning(
                "readers keep the journal of the catalog %s from being changed; if it is a write-ahead log, they may "
                "see mixed states; the next write tries again",
                location,
            )
        return False
    return True
