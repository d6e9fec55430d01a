"""A real S3 server for tests, as the demo starts it; with its Iceberg catalog if a test asks for it.

with object_server() as server:
    server.endpoint, server.access_key, server.secret_key
    server.kill(); server.restart()
"""

from __future__ import annotations

import pytest

from outside import program
from trunkline.demo.object_server import ObjectServer, ServerFailed


def object_server(*, buckets: tuple[str, ...] = ("lake",), tables: str | None = None) -> ObjectServer:
    """A server that is to be started, as a context manager. ``tables``: a bucket with a REST catalog of Iceberg."""
    program("setpriv")  # without it the server would outlive tests that are killed
    try:
        return ObjectServer(buckets, tables=tables)
    except ServerFailed as error:
        pytest.fail(str(error))
