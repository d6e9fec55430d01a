"""The contract suite of Trunkline's destinations, over SQLite files."""

from __future__ import annotations

from sqlite_site import SqliteKind
from trunkline.destination_suite import contract_tests

globals().update(contract_tests(SqliteKind()))
