"""Opening lakes and their catalogs."""

from __future__ import annotations

import pytest

from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_catalog, attach_lake
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.errors import Unreachable


def test_a_catalog_that_cannot_be_opened_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOG_PASSWORD", "s3cr3t-word")
    address = LakeAddress("postgres:host=127.0.0.1 port=1 dbname=lake", "orders", password_env="CATALOG_PASSWORD")
    with new_duckdb("ducklake", "postgres_scanner") as connection:
        with pytest.raises(Unreachable) as of_lake:
            attach_lake(connection, address, "lake", read_only=True)
        with pytest.raises(Unreachable) as of_catalog:
            attach_catalog(connection, address, "catalog")
    for refused in (of_lake, of_catalog):
        assert "dbname=lake" in str(refused.value)
        assert "s3cr3t-word" not in str(refused.value)
