"""What the control store needs of a database. Its statements are written once, and run on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

FORMAT_VERSION: Final = 1  # of the tables
DESIRED_STATE: Final = "wish"  # the first names of two columns, which stay on disk
RETIRED: Final = "wound_up"
TABLES: Final = (
    """CREATE TABLE _trunkline_pipelines (
           pipeline text PRIMARY KEY, digest text NOT NULL, revision bigint NOT NULL,
           counted_through bigint NOT NULL, nulls bigint NOT NULL, others bigint NOT NULL)""",
    """CREATE TABLE _trunkline_deliverers (
           pipeline text, name text, renewed_ms bigint NOT NULL, lease_ms bigint NOT NULL,
           PRIMARY KEY (pipeline, name))""",
    f"""CREATE TABLE _trunkline_destinations (
           pipeline text, name text, digest text, digest_last text NOT NULL, value text, {DESIRED_STATE} text NOT NULL,
           {RETIRED} smallint NOT NULL, asked bigint NOT NULL, reseeded bigint NOT NULL, owner text,
           token bigint NOT NULL, empty_after bigint NOT NULL, empty_through bigint NOT NULL, status text,
           PRIMARY KEY (pipeline, name))""",
    # A renewal counts by owner; with its own index it does not read the statuses.
    f"""CREATE INDEX _trunkline_destinations_owners ON _trunkline_destinations (pipeline, owner)
           WHERE digest IS NOT NULL AND {RETIRED} = 0""",
    """CREATE TABLE _trunkline_unrouted (
           pipeline text, value text, counted bigint NOT NULL, PRIMARY KEY (pipeline, value))""",
    "CREATE TABLE _trunkline_format (version bigint NOT NULL)",
    f"INSERT INTO _trunkline_format VALUES ({FORMAT_VERSION})",
)

# Columns that were added later. A program that does not know them leaves them as they are; so each has a default.
ADDED: Final = {
    "empty_mark": "ALTER TABLE _trunkline_destinations ADD COLUMN empty_mark text NOT NULL DEFAULT ''",
    "place": "ALTER TABLE _trunkline_destinations ADD COLUMN place text NOT NULL DEFAULT ''",
    "insisted": "ALTER TABLE _trunkline_destinations ADD COLUMN insisted bigint NOT NULL DEFAULT 0",
    "discarded": "ALTER TABLE _trunkline_destinations ADD COLUMN discarded bigint NOT NULL DEFAULT 0",
}

# Tables that were added later, in the same way.
ADDED_TABLES: Final = {
    "_trunkline_seen_columns": """CREATE TABLE IF NOT EXISTS _trunkline_seen_columns (
           pipeline text, name text, version bigint NOT NULL, names text NOT NULL, PRIMARY KEY (pipeline, name))""",
    "_trunkline_seen_tables": """CREATE TABLE IF NOT EXISTS _trunkline_seen_tables (
           pipeline text, name text, identity text NOT NULL, PRIMARY KEY (pipeline, name))""",
    "_trunkline_addresses": """CREATE TABLE IF NOT EXISTS _trunkline_addresses (
           pipeline text, address text, name text NOT NULL, digest text NOT NULL, PRIMARY KEY (pipeline, address))""",
}

Row = tuple[Any, ...]
Values = dict[str, str | int | None]


class Database(Protocol):
    """One connection, made on first use. In a statement ``:name`` is a parameter. Errors follow rule C8."""

    @property
    def elements(self) -> Callable[[str], str]:
        """The ``FROM`` clause that yields each element of the JSON array in a parameter, as ``j.value``."""
        ...

    def transaction(self, *, writing: bool) -> AbstractContextManager[None]:
        """One thread at a time; two transactions that write the same pipeline run one after the other."""
        ...

    def now_ms(self) -> int:
        """The store's clock."""
        ...

    def run(self, statement: str, values: Values) -> list[Row]: ...

    def close(self) -> None: ...
