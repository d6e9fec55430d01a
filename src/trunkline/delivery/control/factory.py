"""Opens a control store by its address in a configuration: ``sqlite:PATH``, or ``postgres:`` and a libpq string."""

from __future__ import annotations

from pathlib import Path

from trunkline.delivery.control.contract import ControlStore
from trunkline.delivery.control.postgres import PostgresDatabase
from trunkline.delivery.control.sqlite import SqliteDatabase
from trunkline.delivery.control.store import SqlControlStore
from trunkline.errors import ConfigError


def open_control_store(address: str, password: str | None = None) -> ControlStore:
    """A store that connects with its first call. The password is for PostgreSQL."""
    kind, _, place = address.partition(":")
    match kind:
        case "sqlite" if place:
            return SqlControlStore(SqliteDatabase(Path(place)))
        case "postgres":
            return SqlControlStore(PostgresDatabase(place, password))
    raise ConfigError(f"{address!r} is no control store; write sqlite:PATH or postgres:DSN")
