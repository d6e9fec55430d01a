"""The control store: its parts, and the records of all that it holds. The rules are in ``contract.py``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trunkline.delivery.changes.versions import Window
from trunkline.delivery.control.configurations import Configurations, routing_value
from trunkline.delivery.control.contract import DelivererRecord, DestinationRecord, Status
from trunkline.delivery.control.database import DESIRED_STATE, RETIRED, Database, Row
from trunkline.delivery.control.desired_states import DesiredStates
from trunkline.delivery.control.ownerships import Ownerships
from trunkline.delivery.control.seen_columns import SeenColumns
from trunkline.delivery.control.sqlite import SqliteDatabase
from trunkline.delivery.control.statistics import Statistics
from trunkline.delivery.control.tables import LIVE, RESEED, Tables
from trunkline.delivery.control.unrouted import UnroutedRows
from trunkline.errors import ConfigError


class ControlStore:
    """Shared by all deliverers of any number of pipelines. Every call may raise as C8 says."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = Tables(database)
        self.configurations = Configurations(self._tables)
        self.ownerships = Ownerships(self._tables)
        self.desired_states = DesiredStates(self._tables)
        self.statistics = Statistics(self._tables)
        self.unrouted = UnroutedRows(self._tables)
        self.seen_columns = SeenColumns(self._tables)

    def close(self) -> None:
        self._database.close()

    def pipelines(self) -> tuple[str, ...]:
        """The names of all pipelines that were ever configured, sorted."""
        with self._tables.reading():
            rows = self._database.run("SELECT pipeline FROM _trunkline_pipelines", {})
        return tuple(sorted(str(name) for (name,) in rows))

    def destinations(self, pipeline: str) -> tuple[DestinationRecord, ...]:
        """Every destination that the pipeline ever had, sorted by name."""
        with self._tables.reading():
            live = self._tables.live(pipeline, self._tables.now_ms())
            rows = self._tables.run(
                f"SELECT name, value, digest, {DESIRED_STATE}, {RETIRED}, {RESEED}, owner, token, empty_after, "
                "empty_through, status FROM _trunkline_destinations WHERE pipeline = :pipeline",
                pipeline,
            )
        return tuple(sorted((_destination(row, live) for row in rows), key=lambda record: record.name))

    def deliverers(self, pipeline: str) -> tuple[DelivererRecord, ...]:
        """Sorted by name. One whose lease expired is included until another deliverer removes it."""
        with self._tables.reading():
            rows = self._tables.run(
                f"SELECT name, CASE WHEN {LIVE} THEN 1 ELSE 0 END, :now - renewed_ms, (SELECT count(*) "
                "FROM _trunkline_destinations d WHERE d.pipeline = :pipeline AND d.owner = _trunkline_deliverers.name) "
                "FROM _trunkline_deliverers WHERE pipeline = :pipeline",
                pipeline,
                now=self._tables.now_ms(),
            )
        records = (DelivererRecord(name, bool(live), int(ago), held) for name, live, ago, held in rows)
        return tuple(sorted(records, key=lambda record: record.name))


def _destination(row: Row, live: set[str | None]) -> DestinationRecord:
    name, value, digest, desired_state, retired, reseed, owner, token, after, through, status = row
    return DestinationRecord(
        name=name,
        value=None if value is None else routing_value(value),
        configured=digest is not None,
        desired_state=desired_state,
        retired=bool(retired),
        reseed=reseed,
        owner=owner if owner in live else None,
        token=token,
        empty=Window(after, through),
        status=None if status is None else msgspec.json.decode(status, type=Status),
    )


def open_control_store(address: str, password: str | None = None, *, create: bool = True) -> ControlStore:
    """Opens ``sqlite:PATH``, or ``postgres:`` and a libpq string; it connects with its first call.

    The password is for PostgreSQL. Without ``create``, calls raise ``NoControlStore`` if no deliverer has created it.
    """
    kind, _, place = address.partition(":")
    if kind == "sqlite" and place:
        return ControlStore(SqliteDatabase(Path(place), create=create))
    if kind == "postgres":
        from trunkline.delivery.control.postgres import PostgresDatabase  # late: SQLite needs no driver

        return ControlStore(PostgresDatabase(place, password, create=create))
    raise ConfigError(f"{address!r} is not a valid control store; write sqlite:PATH or postgres:DSN")
