"""A reader of a lake in a process of its own, which looks at two tables again and again: do they agree?

    python lake_poll.py CATALOG DATA_PATH STOP_FILE TABLE TABLE

Each look is one transaction. It prints "ready", and at the end one line of JSON: looks, wrong ones, errors, seconds.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb

from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.sql import identifier, literal


def look(connection: duckdb.DuckDBPyConnection, tables: list[str]) -> list[list[Any]]:
    """Number and sum of the rows of each table."""
    connection.execute("BEGIN")
    try:
        names = (f"lake.main.{identifier(table)}" for table in tables)
        return [list(connection.execute(f"SELECT count(*), sum(amount) FROM {name}").fetchall()[0]) for name in names]
    finally:
        with suppress(duckdb.Error):
            connection.execute("ROLLBACK")


def main(catalog: str, data_path: str, stop: str, *tables: str) -> None:
    connection = new_duckdb("ducklake", "sqlite_scanner", "postgres_scanner")
    connection.execute(f"ATTACH {literal(f'ducklake:{catalog}')} AS lake (DATA_PATH {literal(data_path)})")
    print("ready", flush=True)
    looks, slowest = 0, 0.0
    wrong: list[list[list[Any]]] = []
    errors: list[str] = []
    while not Path(stop).exists():
        begun = time.monotonic()
        try:
            first, second = look(connection, list(tables))
        except duckdb.Error as error:
            errors.append(str(error))
        else:
            looks += 1
            if first != second:
                wrong.append([first, second])
        slowest = max(slowest, time.monotonic() - begun)
    found = {"looks": looks, "wrong": wrong[:5], "wrong_count": len(wrong), "errors": errors[:5], "slowest": slowest}
    print(json.dumps(found, default=str), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
