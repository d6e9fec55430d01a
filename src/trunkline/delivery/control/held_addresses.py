"""What the tables at each address of a pipeline were last configured to hold (rule C12).

A destination is known by its name, and its tables by their address: one that has another name in the file takes over
the tables, with the rows that they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trunkline.delivery.control.tables import Tables, json_rows

DONE: Final = "d.asked <= d.reseeded"  # no seed of it is open


class HeldAddresses:
    """Calls are part of a transaction that configures the pipeline."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def digests(self, pipeline: str) -> dict[str, str]:
        rows = self._tables.run("SELECT address, digest FROM _trunkline_addresses WHERE pipeline = :pipeline", pipeline)
        return {str(address): str(digest) for address, digest in rows}

    def take(self, pipeline: str, digests: Mapping[str, str], addresses: Mapping[str, str]) -> frozenset[str]:
        """Destinations take their addresses. Returns those whose tables may hold other rows, of which another
        destination may have left a position; call it before they are configured themselves."""
        run, rows = self._tables.run, [(name, each, addresses[name]) for name, each in digests.items()]
        items, given = json_rows(rows), self._tables.given("name text", "digest text", "address text")
        # It is new, and its address is unknown. One that was removed may have had it in another spelling, or before
        # addresses were recorded: then equal digests show that the tables are the same, with the same rows.
        removed = "SELECT d.name FROM _trunkline_destinations d WHERE d.pipeline = :pipeline AND d.digest IS NULL"
        owed = run(
            given + "SELECT i.name FROM i LEFT JOIN _trunkline_addresses a ON a.pipeline = :pipeline "
            "AND a.address = i.address "
            "LEFT JOIN _trunkline_destinations d ON d.pipeline = :pipeline AND d.name = a.name "
            "LEFT JOIN _trunkline_destinations own ON own.pipeline = :pipeline AND own.name = i.name "
            f"WHERE (a.digest <> i.digest) OR (a.name <> i.name AND NOT ({DONE})) "
            f"OR (a.address IS NULL AND own.name IS NULL AND EXISTS ({removed}) "
            f"AND i.digest NOT IN (SELECT d.digest_last FROM _trunkline_destinations d WHERE d.pipeline = :pipeline "
            f"AND d.digest IS NULL AND {DONE}))",
            pipeline,
            items=items,
        )
        run(
            given + "INSERT INTO _trunkline_addresses (pipeline, address, name, digest) "
            "SELECT :pipeline, i.address, i.name, i.digest FROM i WHERE true "
            "ON CONFLICT (pipeline, address) DO UPDATE SET name = excluded.name, digest = excluded.digest",
            pipeline,
            items=items,
        )
        return frozenset(str(name) for (name,) in owed)
