"""The S3 server of tests and the demo."""

from __future__ import annotations

from pathlib import Path

import duckdb
import duckdb_extension_httpfs
import pytest

from object_server import object_server
from trunkline.demo.object_server import SOCKET, ObjectServer


def connected(server: ObjectServer) -> duckdb.DuckDBPyConnection:
    [extension] = Path(duckdb_extension_httpfs.__file__).parent.rglob("httpfs.duckdb_extension")
    connection = duckdb.connect(config={"autoinstall_known_extensions": False})
    connection.execute(f"LOAD '{extension}'")
    connection.execute(
        f"CREATE SECRET s (TYPE s3, KEY_ID '{server.access_key}', SECRET '{server.secret_key}', USE_SSL false, "
        f"ENDPOINT '{server.endpoint.removeprefix('http://')}', URL_STYLE 'path', REGION '{server.region}')"
    )
    return connection


def test_what_the_server_acknowledged_survives_a_kill() -> None:
    with object_server() as server, connected(server) as connection:
        connection.execute("COPY (SELECT 42 AS answer) TO 's3://lake/one.parquet'")
        server.kill()
        with pytest.raises(duckdb.Error):
            connection.execute("FROM 's3://lake/one.parquet'")
        server.restart()
        connection.execute("COPY (SELECT 43 AS answer) TO 's3://lake/two.parquet'")
        assert connection.execute("FROM 's3://lake/*.parquet' ORDER BY 1").fetchall() == [(42,), (43,)]


def test_a_bucket_that_was_not_made_does_not_exist() -> None:
    with object_server() as server, connected(server) as held, pytest.raises(duckdb.Error, match="NoSuchBucket"):
        held.execute("COPY (SELECT 1) TO 's3://other/one.parquet'")


def test_two_servers_run_side_by_side_and_leave_no_files() -> None:
    with object_server() as one, object_server(tables="warehouse") as other:
        folders = [one.directory, other.directory]
        ports = [one.ports, other.ports]
        assert one.endpoint != other.endpoint
    assert not any(folder.exists() for folder in folders)
    found = [Path(SOCKET.format(part="s3", port=each["s3.port.grpc"])) for each in ports]
    assert not any(path.exists() for path in found)
