"""What the tests of delivery share, because it takes a while to start: a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server for all tests; each makes a database of its own."""
    with PostgresServer() as server:
        yield server
