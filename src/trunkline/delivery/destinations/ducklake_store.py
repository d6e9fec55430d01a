"""Files of a lake on an object store while a transaction commits.

DuckLake removes the files of a commit that failed. If the connection to a catalog in PostgreSQL breaks after the server
committed, and before it said so, DuckLake takes the commit for failed: the catalog would name objects that do not
exist. In a directory, second names protect new files (``ducklake_kept_files.py``); an object has only one.

Rules
 S1  All objects of a transaction are written before its COMMIT, which itself writes to the catalog alone.
 S2  During a COMMIT to a catalog in PostgreSQL, a secret for the lake's data path leads nowhere: DuckLake cannot remove
     an object. Then that secret is dropped, whatever became of the commit.
 S3  So objects of a commit that failed stay: no catalog names them, and cleaning of orphans removes them.
 S4  Another session of this process that reads objects of the same lake at that moment fails, and is retried.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import duckdb

from trunkline.delivery.backends.ducklake_attachment import catalog_location
from trunkline.delivery.backends.object_store import block, unblock
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.config.object_urls import store_url

RETRIES: Final = "http_retries"  # a setting of the instance; a removal that must fail should do so at once


@contextmanager
def objects_stay(instance: duckdb.DuckDBPyConnection | None, address: LakeAddress) -> Iterator[None]:
    """S2. Does nothing for other lakes."""
    if instance is None or store_url(address) is None or catalog_location(address.catalog)[0] != "postgres":
        yield
        return
    with instance.cursor() as cursor:  # the session's own one is in a transaction
        found = cursor.execute(f"SELECT value FROM duckdb_settings() WHERE name = '{RETRIES}'").fetchall()
        name = block(cursor, address)
        cursor.execute(f"SET GLOBAL {RETRIES} = 0")
        try:
            yield
        finally:
            cursor.execute(f"SET GLOBAL {RETRIES} = {found[0][0]}")
            unblock(cursor, address, name)
